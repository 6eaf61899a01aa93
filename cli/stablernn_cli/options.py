"""Options that several commands share, and names of the panels in which help shows them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Device = Literal["auto", "cpu", "cuda"]
Split = Literal["train", "validation", "test"]
# As stablernn_registry.certificates has it, whose import is too slow for a program that only prints its help.
Kind = Literal["contracting", "non-expansive", "bounded", "local", "none"]

DATA_PANEL = "Data"
MODEL_PANEL = "Model"
TRAINING_PANEL = "Training"

DeviceOption = Annotated[Device, typer.Option(help="Where to compute; auto takes a GPU where one can be used.")]

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A run directory, or a registry version: NAME (the highest), NAME:VERSION or NAME@ALIAS.",
        show_default=False,
    ),
]
RefArgument = Annotated[
    str, typer.Argument(metavar="REF", help="NAME (the highest version), NAME:VERSION or NAME@ALIAS.")
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory.", show_default=False)]
