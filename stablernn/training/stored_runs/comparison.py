"""Comparison of runs by their settings and by their data; reads no weights and imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stablernn.catalog import get_cell_facts
from stablernn.errors import CheckpointError, ConfigError, UnknownNameError
from stablernn.training.run_directory import RunDirectory
from stablernn.training.settings.config import AUTO, Config, DataConfig
from stablernn.training.stored_runs.stored_run import StoredRun
from stablernn.training.stored_runs.stored_settings import stored_settings

_BY_DATA = ("epochs", "batch_size")
"""Recommendations of the catalog that a task adjusts to the number of samples."""


def read_settings(run: StoredRun) -> Config:
    """Return the resolved settings of a run; keys that its version did not have yet have their defaults.

    Raises:
        CheckpointError: If a file that they are read from is damaged.
    """
    try:
        return stored_settings(RunDirectory(run.path))
    except ConfigError as error:
        raise CheckpointError(
            f"The settings of the run in '{run.path}' cannot be read: {error} Restore its config.yaml, or train again."
        ) from error


def differing_settings(configs: Sequence[Config]) -> dict[str, list[Any]]:
    """Return the values of the settings that are not the same in all runs, by dotted key, in the order of the runs.

    None stands for a setting that is off, or that a cell of another run has.
    """
    settings = [_values(config) for config in configs]
    # The union in order of appearance: cells have different options.
    keys = dict.fromkeys(key for values in settings for key in values)
    rows = {key: [values.get(key) for values in settings] for key in keys}
    return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}


def changed_settings(config: Config) -> dict[str, tuple[Any, Any]]:
    """Return value and default of the settings that differ from their defaults, by dotted key.

    A run stores resolved settings. Those whose default depends on the data, such as the number of epochs, do not show
    whether they were set, and are left out.
    """
    defaults = _known_defaults(config)
    # None stands for a setting of another optimizer or schedule. Options that the catalog does not have were set, too.
    return {
        key: (value, defaults.get(key))
        for key, value in _values(config).items()
        if (key in defaults or key.startswith("model.cell_options.")) and value not in (None, defaults.get(key))
    }


def _known_defaults(config: Config) -> dict[str, Any]:
    """Return the defaults that do not depend on the data: of the settings, and of the cell in the catalog."""
    fixed = Config(data=DataConfig(source=config.data.source)).by_key()
    # None and "auto" stand for values that the data decide; only the device stays as it was set.
    defaults = {
        key: value for key, value in fixed.items() if value is not None and (value != AUTO or key == "training.device")
    }
    try:
        cell = get_cell_facts(config.model.cell)
    except UnknownNameError:
        # A cell of another distribution, or of a version that had it.
        return defaults
    options: Mapping[str, Any] = cell["options"][config.model.preset]
    training: Mapping[str, Any] = cell["training"].get(config.model.preset, {})
    defaults |= {f"model.cell_options.{name}": value for name, value in options.items()}
    return defaults | {f"training.{key}": value for key, value in training.items() if key not in _BY_DATA}


def _values(config: Config) -> dict[str, Any]:
    # An empty object is no setting: the cell's options at their defaults.
    return {key: value for key, value in config.by_key().items() if value != {}}


def has_same_data(runs: Sequence[StoredRun]) -> bool:
    """Return True if all runs were trained on data of the same fingerprint."""
    fingerprints = {run.fingerprint for run in runs}
    return len(fingerprints) == 1 and None not in fingerprints
