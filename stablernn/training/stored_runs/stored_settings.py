"""The settings of a run, read from its directory."""

from __future__ import annotations

from stablernn.training.run_directory import RunDirectory
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import load_config, with_stamps_of_training


def stored_settings(directory: RunDirectory) -> Config:
    """Return the resolved settings of a run.

    Raises:
        ConfigError: If ``config.yaml`` cannot be read.
        CheckpointError: If ``data.json`` cannot be read.
    """
    # data.json is written before config.yaml, so a run has one.
    stored = load_config(directory.config).as_stored()
    return with_stamps_of_training(stored, directory.read_data().get("frequency"))
