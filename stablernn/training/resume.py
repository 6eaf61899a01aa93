"""Checks before a run is resumed: there is one, its settings are the same, and so is its data."""

from __future__ import annotations

from pathlib import Path

from stablernn.errors import ConfigError
from stablernn.training.run_directory import RunDirectory
from stablernn.training.settings.config import Config
from stablernn.training.settings.resolve import described_cell

_LENGTH = ("training.epochs", "training.max_steps", "training.patience", "training.patience_steps")
"""Settings that a resumed run may change where the learning rate does not depend on the length of the run."""
_ADDABLE = ("data.stamps",)
"""Settings that a resumed run may set if they were not set when it began."""
_MACHINE = ("training.device", "training.threads", "training.recompute_every", "model.engine")
"""Settings that a resumed run may always change."""


def directory_to_resume(run_dir: str | Path | None) -> RunDirectory:
    """Return the directory of a run that exists.

    Raises:
        ConfigError: If no directory is named, or there is no run in it.
    """
    if run_dir is None:
        raise ConfigError("To resume a run, its directory must be named (--run-dir).")
    directory = RunDirectory(Path(run_dir))
    if not directory.has_run:
        raise ConfigError(f"There is no run to resume in '{run_dir}'. Start it without --resume.")
    return directory


def check_resumable(stored: Config, resolved: Config) -> None:
    """Refuse settings with which a run could not go on as it began.

    Args:
        stored: The resolved settings with which it began.
        resolved: Those with which it is to go on.

    Raises:
        ConfigError: If one has changed that decides the numbers of the steps to come.
    """
    before, after = stored.by_key(), resolved.by_key()
    changed = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key) and key not in _MACHINE]
    # A setting that was missing may be added: the fingerprint tells whether the data are still the same.
    changed = [key for key in changed if key not in _ADDABLE or before.get(key) is not None]
    if not changed:
        return
    # A setting that can never change is named before one that only cannot change here.
    fixed = [key for key in changed if key not in _LENGTH]
    key = (fixed or changed)[0]
    difference = f"'{key}' was {before.get(key)!r} when the run began, got {after.get(key)!r}"
    if fixed:
        raise ConfigError(f"A resumed run keeps its settings: {difference}. Start a new run to change it.")
    # These were laid out over the length that the run had when it began.
    planned = (
        []
        if stored.training.schedule in ("constant", "step", "plateau")
        else [f"schedule '{stored.training.schedule}'"]
    )
    planned += [f"cell '{stored.model.cell}'"] if described_cell(stored.model).plans_ahead else []
    if planned:
        raise ConfigError(
            f"The {planned[0]} is laid out over the whole run, so its length cannot change on resume: {difference}. "
            "Start a new run to change it."
        )
