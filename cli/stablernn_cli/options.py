"""Options and arguments that several commands share, and the names of the panels in which help shows them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import typer

from stablernn_cli.errors import UsageError

logger = logging.getLogger(__name__)

Device = Literal["auto", "cpu", "cuda"]
Split = Literal["train", "validation", "test"]
# Same as stablernn_registry.certificates.Kind, whose import is too slow for printing the help.
Kind = Literal["contracting", "non-expansive", "bounded", "none"]
# Same as stablernn.data.options.Stamps, for the same reason.
Stamps = Literal["unix-s", "unix-ms", "yyyymmdd", "yyyyww", "yyyyddd", "yyyyq", "excel", "step"]

KIND_METAVAR = f"[{'|'.join(get_args(Kind))}]"
"""Values of ``--require`` in the help; typer cannot list them, since the option has a parser of its own."""

DATA_PANEL = "Data"
MODEL_PANEL = "Model"
TRAINING_PANEL = "Training"


def option(text: str, *flags: str, **details: Any) -> Any:
    """Return an option whose default is not in the help, or is in its text."""
    return typer.Option(*flags, help=text, show_default=False, **details)


def parse_kind(text: str) -> Kind:
    """Return the kind of certificate for ``--require``; the withdrawn kind is replaced by the one it counts as.

    Raises:
        typer.BadParameter: If there is no such kind.
    """
    from stablernn_registry.certificates import REQUIRED_INSTEAD, WITHDRAWN_KIND, WITHDRAWN_SENTENCE

    if text == WITHDRAWN_KIND:
        logger.warning(WITHDRAWN_SENTENCE)
        return REQUIRED_INSTEAD
    kinds = get_args(Kind)
    if text not in kinds:
        raise typer.BadParameter(f"'{text}' is not one of {', '.join(repr(kind) for kind in kinds)}.")
    return cast(Kind, text)


def complete_kind(incomplete: str) -> list[str]:
    """Return the kinds that start with the typed text, for shell completion."""
    return [kind for kind in get_args(Kind) if kind.startswith(incomplete)]


def require_option(text: str, **options: Any) -> Any:
    """Return the option ``--require KIND``."""
    return typer.Option(
        parser=parse_kind,
        metavar=KIND_METAVAR,
        autocompletion=complete_kind,
        help=text,
        show_default=False,
        **options,
    )


def check_figure_path(path: Path, option: str) -> None:
    """Refuse a file that no figure can be written to, before anything is computed.

    Args:
        path: The file.
        option: Option that names it.

    Raises:
        UsageError: If it does not end in .png, or its folder does not exist.
    """
    if path.suffix.lower() != ".png":
        raise UsageError(f"{option} must end in .png, got '{path}'.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"There is no folder '{path.parent}'. Make it, or choose another {option}.")


DeviceOption = Annotated[Device, typer.Option(help="Device to compute on; auto uses a GPU if one is available.")]
EngineOption = Annotated[
    str | None,
    option(
        "Engine: of a run that of its steps, such as loop, default: the fastest for the cell; of a version onnx, "
        "the default, torch, native, or one of another installed package."
    ),
]
JsonOption = Annotated[bool, option("Print one JSON document on stdout and nothing else there.", "--json")]

TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="A run directory, or a registry version: NAME (the highest), NAME:VERSION or NAME@ALIAS.",
        show_default=False,
    ),
]
# Data on which a trained model is scored or drawn: `eval` and `plot`.
ScoredDataOption = Annotated[
    str | None,
    option("Dataset name or file; default: the training data.", "--data"),
]
ScoredStampsOption = Annotated[
    Stamps | None,
    option("Meaning of whole numbers as times in --data; default: that of the training data.", "--stamps"),
]
RepairsOption = Annotated[
    list[str] | None,
    option(
        "A repair of the table, such as data.sort=true (see docs/guides/data.md); default: those of the training data. "
        "May be repeated.",
        "--set",
        metavar="KEY=VALUE",
    ),
]
SplitOption = Annotated[Split, typer.Option("--split", help="Split of the data.")]
