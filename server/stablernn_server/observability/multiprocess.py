"""The folder in which worker processes share their metrics. Imports no prometheus_client: see :mod:`.metrics`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stablernn_server.errors import SettingsError

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def prepare_metrics_dir(directory: Path) -> None:
    """Make the folder, and remove what an earlier server left in it; called once, before the workers start.

    Raises:
        SettingsError: If it cannot be made or written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for pattern in ("*.db", "statistics_*"):
            for stale in directory.glob(pattern):
                stale.unlink()
    except OSError as error:
        raise SettingsError(f"The metrics folder {directory} cannot be used: {error.strerror}.") from error
    if not os.access(directory, os.W_OK):
        raise SettingsError(f"The metrics folder {directory} cannot be written; choose another metrics_dir.")


def forget_worker(directory: Path, pid: int) -> None:
    """Drop what only a live worker has, such as its sessions; called when a worker has ended. Totals are kept."""
    for gauge in directory.glob(f"gauge_live*_{pid}.db"):
        gauge.unlink(missing_ok=True)


def share_metrics(directory: Path | None) -> str | None:
    """Have the metrics of this process in ``directory`` from now on.

    Args:
        directory: The folder, made by :func:`prepare_metrics_dir`; None for that of the environment variable
            PROMETHEUS_MULTIPROC_DIR, if it is set.

    Returns:
        The folder; None if the metrics are this process's own.

    Raises:
        SettingsError: If it is no folder, or it is too late.
    """
    before = os.environ.get(VARIABLE)
    wanted = before if directory is None else str(directory)
    if wanted is None:
        return None
    if not os.path.isdir(wanted):
        raise SettingsError(f"metrics_dir is no folder, got '{wanted}'; make it before the workers start.")
    if "prometheus_client" in sys.modules and before != wanted:
        raise SettingsError(
            f"metrics_dir '{wanted}' comes too late: this process has metrics already. Set {VARIABLE} to it before "
            "the process starts, or give each server a process of its own."
        )
    os.environ[VARIABLE] = wanted
    return wanted
