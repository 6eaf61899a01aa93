"""Lists of the runs below a folder, in an order of choice; reads no weights and imports no torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stablernn.errors import UnknownNameError, unknown
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.run_directory import RunDirectory
from stablernn.training.stored_runs.stored_run import StoredRun, read_run

MOST_LEVELS = 6
"""Folders below the first one down to which runs are listed: twice what `reproduce` and searches nest them."""

_SORT_KEYS: dict[str, Callable[[StoredRun], Any]] = {
    "path": lambda run: str(run.path),
    "state": lambda run: run.state,
    "data": lambda run: run.data,
    "task": lambda run: run.task,
    "cell": lambda run: run.cell,
    "parameters": lambda run: run.parameters,
    "epochs": lambda run: run.epochs,
    "seconds": lambda run: run.seconds,
    "rate": lambda run: (run.certificate or {}).get("contraction_rate"),
    "started": lambda run: run.started,
}

SORT_KEYS = tuple(_SORT_KEYS)
"""Facts that runs can be sorted by, besides the metrics."""

_TEST_PREFIX = "test."


def list_runs(folders: Iterable[Path]) -> list[StoredRun]:
    """Return the runs in folders and below, the newest first.

    Args:
        folders: Folders that exist; a run directory is listed itself. A run that lies in several of them is listed
            once.
    """
    paths = {path.resolve(): path for folder in folders for path in find_runs(folder)}
    return sort_runs([read_run(path) for path in paths.values()])


def find_runs(folder: Path) -> Iterator[Path]:
    """Yield the run directories in a folder and up to :data:`MOST_LEVELS` levels below, in alphabetical order.

    Links to folders are not followed, and hidden folders are left out, as are those inside a run.
    """
    for parent, names, files in os.walk(folder):
        path = Path(parent)
        if is_run_directory(path, {*names, *files}):
            names.clear()
            yield path
            continue
        depth = len(path.relative_to(folder).parts)
        # os.walk goes on with what is left in its list.
        names[:] = sorted(name for name in names if not name.startswith(".")) if depth < MOST_LEVELS else []


def is_run_directory(path: Path, entries: Iterable[str]) -> bool:
    """Return True for the directory of a run, damaged ones included.

    Args:
        path: The directory.
        entries: Names of its files and folders.
    """
    directory, names = RunDirectory(path), set(entries)
    others = (directory.data, directory.environment, directory.metrics, directory.summary)
    # A config.yaml alone may be anything, such as the settings for a run that is still to be trained.
    return directory.config.name in names and any(file.name in names for file in others)


def sort_runs(runs: Sequence[StoredRun], key: str = "started") -> list[StoredRun]:
    """Return runs in the order of a fact or of a metric.

    Args:
        runs: The runs.
        key: One of :data:`SORT_KEYS`, the smallest first, but the newest first for ``started``; or a metric of the
            validation split, of the test split with the prefix ``test.``, the best first. Runs without it come last.

    Raises:
        UnknownNameError: If it is neither, or no run has the metric.
    """
    if key in _SORT_KEYS:
        return _sorted(runs, _SORT_KEYS[key], is_descending=key == "started")
    split, metric = split_and_metric(key)
    if runs and all(run.score(split, metric) is None for run in runs):
        raise _unknown_key(runs, key)
    return _sorted(runs, lambda run: run.score(split, metric), is_descending=direction(metric) == "higher")


def split_and_metric(key: str) -> tuple[str, str]:
    """Return the split and the metric that a key of :func:`sort_runs` names."""
    is_test = key.startswith(_TEST_PREFIX)
    return ("test" if is_test else "validation"), key.removeprefix(_TEST_PREFIX)


def _sorted(runs: Sequence[StoredRun], fact: Callable[[StoredRun], Any], *, is_descending: bool) -> list[StoredRun]:
    with_fact = sorted((run for run in runs if fact(run) is not None), key=fact, reverse=is_descending)
    return with_fact + [run for run in runs if fact(run) is None]


def _unknown_key(runs: Sequence[StoredRun], key: str) -> UnknownNameError:
    """Return the error for a key that is neither a fact nor a metric of the runs."""
    # Scores of baselines are mappings, which no run is sorted by.
    metrics = dict.fromkeys(
        name
        for run in runs
        for scores in run.metrics.values()
        for name, value in scores.items()
        if isinstance(value, int | float)
    )
    names = [*SORT_KEYS, *metrics, *(_TEST_PREFIX + name for name in metrics)]
    hint = (
        f"It is one of {', '.join(SORT_KEYS)}, or a metric of the runs, for the test split with '{_TEST_PREFIX}' in "
        f"front: {', '.join(metrics) or 'they have none yet'}."
    )
    return unknown("key to sort runs by", key, names, hint)
