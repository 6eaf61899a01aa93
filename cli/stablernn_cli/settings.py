"""Settings of a run, from a file, from options and from ``--set``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn_cli.config_options import KEYS, flag, option_words
from stablernn_cli.errors import UsageError

if TYPE_CHECKING:
    from stablernn.training import Config


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
