"""Options that stand for settings of a run, made from the fields of its configuration, and the reading of settings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union, cast, get_args, get_origin

import typer

from stablernn_cli.errors import UsageError
from stablernn_cli.options import DATA_PANEL, MODEL_PANEL, TRAINING_PANEL, option

if TYPE_CHECKING:
    from pydantic import BaseModel

    from stablernn.data.options import CommandOption
    from stablernn.training import Config

_PANELS = {"data": DATA_PANEL, "task": DATA_PANEL, "model": MODEL_PANEL, "training": TRAINING_PANEL}
"""Panel of the help by the section of the settings."""


class SettingOption(NamedTuple):
    """The option of a setting.

    Attributes:
        key: Key of the setting, such as ``model.cell``.
        type: Type of the values on the command line.
        stated: What the field of the setting states of its option.
    """

    key: str
    type: Any
    stated: CommandOption

    @property
    def is_comma_list(self) -> bool:
        """True if one value names several, separated by commas."""
        return self.type == list[str] and self.stated.metavar is not None

    def parameter(self, name: str, text: str | None = None) -> inspect.Parameter:
        """Return the parameter of a command, with another help text if one is given."""
        stated = option(
            text or self.stated.help,
            *([self.stated.flags] if self.stated.flags else []),
            metavar=self.stated.metavar,
            rich_help_panel=_PANELS[self.key.partition(".")[0]],
        )
        annotation = Annotated[self.type | None, stated]  # type: ignore[name-defined]
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


@cache
def setting_options() -> Mapping[str, SettingOption]:
    """Return the options of settings by the names of their parameters, those of the options with underscores."""
    from stablernn.data.options import CommandOption
    from stablernn.training.settings.config import Config

    return {
        stated.name or name: SettingOption(f"{section}.{name}", _option_type(field.annotation), stated)
        for section, part in Config.model_fields.items()
        for name, field in cast("type[BaseModel]", part.annotation).model_fields.items()
        for stated in field.metadata
        if isinstance(stated, CommandOption)
    }


def _option_type(hint: Any) -> Any:
    """Return the type of an option by that of its setting; a pair of flags is a list, see :func:`_single_flag`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _option_type(next(part for part in parts if part is not NoneType))
    if origin is Annotated:
        return _option_type(parts[0])
    if origin is tuple:
        return list[str]
    return list[bool] if hint is bool else hint


def takes_settings(
    *names: str, sections: Sequence[str] = (), after: Mapping[str, str] | None = None, **texts: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options for settings, in place of its parameter ``options``, which gets those in use.

    Args:
        names: Names of options.
        sections: Sections of which all options are taken, too.
        after: Own parameters of the command that stand behind the option of a setting, by its name.
        texts: Help texts that differ from those of the settings, by the name of the option.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        # Those after an option of a setting must be keyword-only too; typer passes all by their names.
        own = {name: value.replace(kind=value.KEYWORD_ONLY) for name, value in signature.parameters.items()}
        moved = {name: own.pop(parameter) for name, parameter in (after or {}).items()}
        parameters: list[inspect.Parameter] = []
        for parameter in own.values():
            if parameter.name != "options":
                parameters.append(parameter)
                continue
            for name, setting in setting_options().items():
                if name not in own and (name in names or setting.key.partition(".")[0] in sections):
                    parameters += [setting.parameter(name, texts.get(name)), *([moved[name]] if name in moved else [])]

        @wraps(command)
        def run(context: typer.Context, **arguments: Any) -> None:
            given = {name: value for name, value in arguments.items() if name in signature.parameters}
            command(context, options=_options_in_use(context), **given)

        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


ConfigOption = Annotated[
    Path | None,
    option("YAML with the sections data, task, model, training.", metavar="FILE"),
]
SetOption = Annotated[
    list[str] | None,
    option(
        "Any key of the configuration, such as training.clip_norm=1 or data.channels=a,b; may be repeated. "
        "Overrides --config.",
        "--set",
        metavar="KEY=VALUE",
    ),
]
TrackOption = Annotated[
    list[str] | None,
    option(
        "Also log each run to tensorboard, mlflow or wandb, may be repeated; each takes its settings from its "
        "environment variables.",
        rich_help_panel=TRAINING_PANEL,
    ),
]
# Options of `train` and of `quickstart`.
RunDirOption = Annotated[
    Path | None,
    option("Directory of the run; default: a new one in runs/.", metavar="DIR"),
]


def _options_in_use(context: typer.Context) -> dict[str, Any]:
    """Return the options of settings that were set, by the name of their parameter.

    Raises:
        UsageError: If both flags of a pair are on the command line.
    """
    flags = {parameter.name: parameter for parameter in context.command.params if parameter.secondary_opts}
    values: dict[str, Any] = {}
    for name, setting in setting_options().items():
        value = context.params.get(name)
        # Typer passes an empty list for a repeatable option that is absent.
        if value in (None, [], ()):
            continue
        if setting.is_comma_list:
            value = [part.strip() for text in value for part in text.split(",")]
        values[name] = _single_flag(flags[name], value) if name in flags else value
    return values


def check_options(options: Mapping[str, Any], *, has_source: bool) -> None:
    """Reject combinations of options of a training before anything is loaded.

    Args:
        options: Options that were set, by the name of their parameter.
        has_source: Whether something else may name the data; the settings themselves are checked when they are read.

    Raises:
        UsageError: If ``--data`` is missing, or two options exclude each other.
    """
    if "epochs" in options and "max_steps" in options:
        raise UsageError(
            f"--epochs and --max-steps exclude each other, got {options['epochs']} and {options['max_steps']}. "
            "Give only one of them."
        )
    if not has_source and "data" not in options:
        raise UsageError("Missing option '--data'. See `stablernn data list` for the choices.")


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
        options: Options that were set, by the name of their parameter.
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
        settings = load_config(
            config, overrides, defaults, options={setting_options()[name].key: options[name] for name in options}
        )
    except ConfigError as error:
        raise ConfigError(_with_flags(str(error), options)) from error
    # load_config lets --set win; a value that differs from the option's was set twice.
    tree = settings.tree()
    for name, value in options.items():
        section, key = setting_options()[name].key.split(".")
        if tree[section][key] != value:
            words = " ".join(option_words(name, value))
            # Either length of training clears the other.
            rival = {"epochs": "max_steps", "max_steps": "epochs"}.get(key, key)
            named = rival if tree[section][key] is None else key
            raise UsageError(
                f"{words} contradicts --set {section}.{named}={tree[section][named]}. Give only one of them."
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
        message = re.sub(re.escape(setting_options()[name].key) + r"(?!\w)", flag(name), message)
    return message
