"""Options that several commands share, and names of the panels in which help shows them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

import typer

logger = logging.getLogger(__name__)

Device = Literal["auto", "cpu", "cuda"]
Split = Literal["train", "validation", "test"]
# As stablernn_registry.documents.certificates has it, whose import is too slow for a program that only prints its help.
Kind = Literal["contracting", "non-expansive", "bounded", "none"]


def parse_kind(text: str) -> Kind:
    """Return the kind of certificate that ``--require`` asks for; a withdrawn one becomes what it means now.

    Raises:
        typer.BadParameter: If it is no kind.
    """
    from stablernn_registry.documents.certificates import REQUIRED_INSTEAD, WITHDRAWN_KIND, WITHDRAWN_SENTENCE

    if text == WITHDRAWN_KIND:
        logger.warning(WITHDRAWN_SENTENCE)
        return REQUIRED_INSTEAD
    kinds = get_args(Kind)
    if text not in kinds:
        raise typer.BadParameter(f"'{text}' is not one of {', '.join(repr(kind) for kind in kinds)}.")
    return cast(Kind, text)


def complete_kind(incomplete: str) -> list[str]:
    """Return the kinds that begin with what was typed, for completion in the shell."""
    return [kind for kind in get_args(Kind) if kind.startswith(incomplete)]


KIND_METAVAR = f"[{'|'.join(get_args(Kind))}]"
"""How help shows the values of ``--require``: a parser of our own hides them from typer."""

# As stablernn.data.time.numeric_timestamps has it, for the same reason.
Stamps = Literal["unix-s", "unix-ms", "yyyymmdd", "step"]

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
