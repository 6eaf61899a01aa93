"""The folder in which worker processes share their metrics. Imports no prometheus_client: see :mod:`.prometheus`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stablernn_server.errors import SettingsError

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def prepare_metrics_dir(directory: Path) -> None:
    """Create the folder, and remove the files of an earlier server; called once, before the workers start.

    Raises:
        SettingsError: If it cannot be created or written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for pattern in ("*.db", "statistics_*"):
            for stale in directory.glob(pattern):
                stale.unlink()
    except OSError as error:
        raise SettingsError(f"The metrics folder {directory} cannot be used: {error.strerror}.") from error
    # An existing, empty folder has passed all of the above.
    if not os.access(directory, os.W_OK):
        raise SettingsError(f"The metrics folder {directory} cannot be written to; choose another metrics_dir.")


def remove_worker_gauges(directory: Path, pid: int) -> None:
    """Remove the gauges of a worker that has ended, such as its number of sessions; its counters stay."""
    for gauge in directory.glob(f"gauge_live*_{pid}.db"):
        gauge.unlink(missing_ok=True)


def use_metrics_dir(directory: Path | None) -> str | None:
    """Let prometheus_client keep the metrics of this process in ``directory``.

    Args:
        directory: The folder, created by :func:`prepare_metrics_dir`; None for that of the environment variable
            PROMETHEUS_MULTIPROC_DIR, if it is set.

    Returns:
        The folder; None if this process does not share its metrics.

    Raises:
        SettingsError: If it is not a folder, or prometheus_client was imported without it.
    """
    current = os.environ.get(VARIABLE)
    folder = current if directory is None else str(directory)
    if folder is None:
        return None
    if not os.path.isdir(folder):
        raise SettingsError(f"metrics_dir must be a folder, got '{folder}'; create it before the workers start.")
    # Its import decides, once for the process, whether values live in memory or in files.
    if "prometheus_client" in sys.modules and current != folder:
        raise SettingsError(
            f"metrics_dir '{folder}' comes too late: this process has metrics already. Set {VARIABLE} to it before "
            "the process starts, or run each server in a process of its own."
        )
    os.environ[VARIABLE] = folder
    return folder
