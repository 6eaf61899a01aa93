"""Options that stand for keys of a run's configuration, shared by `train`, `data check` and `quickstart`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stablernn_cli.errors import UsageError
from stablernn_cli.options import DATA_PANEL, MODEL_PANEL, TRAINING_PANEL, Stamps

if TYPE_CHECKING:
    from stablernn.training import Config

# The names of the parameters are those of the options, with underscores.
KEYS = {
    "data": "data.source",
    "test": "data.test",
    "target": "data.target",
    "id_column": "data.id_column",
    "time_column": "data.time_column",
    "stamps": "data.stamps",
    "frequency": "data.frequency",
    "calendar": "data.calendar",
    "future": "data.future",
    "static": "data.static",
    "group": "data.group_column",
    "task": "task.name",
    "horizon": "task.horizon",
    "context_length": "task.context_length",
    "season": "task.season",
    "cell": "model.cell",
    "preset": "model.preset",
    "engine": "model.engine",
    "hidden_size": "model.hidden_size",
    "num_layers": "model.num_layers",
    "dropout": "model.dropout",
    "patch_size": "model.patch_size",
    "patch_stride": "model.patch_stride",
    "readout": "model.readout",
    "members": "model.members",
    "epochs": "training.epochs",
    "max_steps": "training.max_steps",
    "batch_size": "training.batch_size",
    "lr": "training.lr",
    "optimizer": "training.optimizer",
    "patience": "training.patience",
    "certified": "training.certified",
    "seed": "training.seed",
    "device": "training.device",
    "threads": "training.threads",
}
"""Key of the configuration that each option stands for, by the name of its parameter."""


_COMMA_LISTS = ("calendar", "future", "static")
"""Options whose values are separated by commas."""


def data_option(text: str, **options: Any) -> Any:
    """Return an option in the panel of the data, without a default in the help: the text states it."""
    return typer.Option(help=text, rich_help_panel=DATA_PANEL, show_default=False, **options)


def model_option(text: str) -> Any:
    """Return an option in the panel of the model."""
    return typer.Option(help=text, rich_help_panel=MODEL_PANEL, show_default=False)


def training_option(text: str) -> Any:
    """Return an option in the panel of the training."""
    return typer.Option(help=text, rich_help_panel=TRAINING_PANEL, show_default=False)


# Options of `train` and of `data check`.
TestOption = Annotated[
    str | None, data_option("File with the test split; default: the NAME_TEST next to a NAME_TRAIN.")
]
TargetOption = Annotated[
    list[str] | None, data_option("Column to forecast, may be repeated; default: y, or the only one.")
]
IdColumnOption = Annotated[str | None, data_option("Column that identifies the series; default: unique_id.")]
TimeColumnOption = Annotated[str | None, data_option("Column of timestamps; default: ds.")]
StampsOption = Annotated[
    Stamps | None,
    data_option("Meaning of whole numbers as times; default: step, rejected where they look like dates."),
]
FrequencyOption = Annotated[
    str | None, data_option("Frequency of the time grid, such as h or W; default: inferred from the data.")
]
CalendarOption = Annotated[
    list[str] | None,
    data_option("Periods of which a forecast is told where each step lies: day, week, year.", metavar="PERIOD,..."),
]
FutureOption = Annotated[
    list[str] | None, data_option("Columns that are known in advance, such as prices.", metavar="COLUMN,...")
]
StaticOption = Annotated[list[str] | None, data_option("Columns with one value for each series.", metavar="COLUMN,...")]
GroupOption = Annotated[
    str | None,
    data_option("Column, or array of an .npz file, with the group of each sequence, such as a person: held out whole."),
]
TaskOption = Annotated[
    Literal["classify", "forecast", "predict-next"] | None, data_option("Task; default: the one that fits the data.")
]
HorizonOption = Annotated[int | None, data_option("Steps to forecast; default: the dataset's, else one season.")]
ContextLengthOption = Annotated[
    int | None,
    data_option(
        "Steps before a forecast that the model sees; default: twice the season or the horizon; chosen by validation "
        "if there is no season."
    ),
]
SeasonOption = Annotated[int | None, data_option("Steps of the main season, 1 = none; default: from the frequency.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="YAML with the sections data, task, model, training.", show_default=False),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any key of the configuration, such as training.clip_norm=1 or data.channels=a,b; may be repeated. "
        "Overrides --config.",
        show_default=False,
    ),
]
TrackOption = Annotated[
    list[str] | None,
    training_option(
        "Also log each run to tensorboard, mlflow or wandb, may be repeated; each takes its settings from its "
        "environment variables."
    ),
]
# Options of `train` and of `quickstart`.
RunDirOption = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Directory of the run; default: a new one in runs/.", show_default=False),
]


def options_in_use(context: typer.Context, names: Iterable[str] = KEYS) -> dict[str, Any]:
    """Return the options that were set, by the name of their parameter.

    Raises:
        UsageError: If both flags of a pair are on the command line.
    """
    # Typer passes an empty list for a repeatable option that is absent.
    values = {name: context.params[name] for name in names if context.params[name] not in (None, [], ())}
    for name in values.keys() & set(_COMMA_LISTS):
        values[name] = [part.strip() for text in values[name] for part in text.split(",")]
    flags = {parameter.name: parameter for parameter in context.command.params if parameter.secondary_opts}
    return {name: _single_flag(flags[name], value) if name in flags else value for name, value in values.items()}


def _single_flag(parameter: Any, values: Sequence[bool]) -> bool:
    """Return the value of a pair of flags such as ``--certified/--free``, an option of the type ``list[bool]``.

    An option of the type ``bool`` would take the last of two flags that contradict each other.
    """
    if len(set(values)) > 1:
        names = f"{parameter.opts[0]} and {parameter.secondary_opts[0]}"
        raise UsageError(f"{names} exclude each other, got both. Give only one of them.")
    return values[0]


def flag(name: str) -> str:
    """Return a parameter's name as the user types the option."""
    return f"--{name.replace('_', '-')}"


def option_words(name: str, value: object) -> list[str]:
    """Return an option and its value as the user types them, in one word if it is a flag."""
    if isinstance(value, bool):
        # The only pair of flags.
        return ["--certified" if value else "--free"]
    return [flag(name), str(value)]


def read_settings(
    options: Mapping[str, Any],
    config: Path | None,
    overrides: Sequence[str],
    defaults: Mapping[str, Any] | None = None,
) -> Config:
    """Return the settings of a run.

    Args:
        options: Options that were set, by the name of their parameter in :data:`stablernn_cli.config_options.KEYS`.
        config: YAML file; options and ``overrides`` win over it.
        overrides: Values of ``--set``.
        defaults: Tree of settings that everything else wins over.

    Raises:
        UsageError: If an option and ``--set`` contradict each other.
        stablernn.errors.ConfigError: If a setting does not exist or is out of its range.
    """
    from stablernn.errors import ConfigError
    from stablernn.training import load_config

    try:
        settings = load_config(config, overrides, defaults, options={KEYS[name]: options[name] for name in options})
    except ConfigError as error:
        raise ConfigError(_with_flags(str(error), options)) from error
    # load_config lets --set win; a value that differs from the option's was set twice.
    tree = settings.tree()
    for name, value in options.items():
        section, key = KEYS[name].split(".")
        if tree[section][key] != value:
            option = " ".join(option_words(name, value))
            raise UsageError(
                f"{option} contradicts --set, which makes {section}.{key} {tree[section][key]}. Give only one of them."
            )
    return settings


def check_cell(settings: Config) -> None:
    """Create the cell once, which imports torch, to reject its options before the data is read.

    Raises:
        stablernn.errors.ConfigError: If the cell has no such option, or its value is out of range.
        stablernn.errors.UnknownNameError: If there is no such cell.
    """
    from stablernn.cells import create_cell

    model = settings.model
    # A size that does not fit into memory raises RuntimeError here; training has a message for it.
    with suppress(RuntimeError):
        create_cell(model.cell, 1, model.hidden_size, preset=model.preset, **model.cell_options)


def _with_flags(message: str, options: Mapping[str, Any]) -> str:
    """Replace keys by the options that the user typed: ``--lr`` for ``training.lr``."""
    for name in options:
        # Not within a longer key: training.lr is none of the words of training.lr_decay.
        message = re.sub(re.escape(KEYS[name]) + r"(?!\w)", flag(name), message)
    return message
