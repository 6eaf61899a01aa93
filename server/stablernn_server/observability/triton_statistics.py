"""Counts and nanoseconds by model and version, as Triton's statistics extension defines them."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import orjson

EXACT_SIZES = 1024
"""Larger batches are counted under the next power of two, so that there are few sizes."""
WRITE_SECONDS = 0.25
"""Interval at which a worker writes its statistics, if they have changed."""

Duration = list[int]
"""Count and nanoseconds."""


def _duration() -> Duration:
    return [0, 0]


@dataclass(slots=True)
class ModelStatistics:
    """Counts and durations of one version since the server started.

    Attributes:
        last_ms: End of the last run, in milliseconds of Unix time; 0 for never.
        rows: Sequences and streams in all runs.
        executions: Number of runs.
        success: Requests that were answered, and their time from beginning to end.
        fail: Requests that were refused or failed, and their time from beginning to end.
        queue: Requests that were run, and their wait for it.
        compute: Requests that were run, and the time of the run, counted once for each of them.
        sizes: Number of runs and their time, by rows in a run.
    """

    last_ms: int = 0
    rows: int = 0
    executions: int = 0
    success: Duration = field(default_factory=_duration)
    fail: Duration = field(default_factory=_duration)
    queue: Duration = field(default_factory=_duration)
    compute: Duration = field(default_factory=_duration)
    sizes: dict[int, Duration] = field(default_factory=dict)

    def record_run(self, requests: int, rows: int, queue_ns: int, compute_ns: int) -> None:
        """Count one run of ``rows`` sequences or streams for ``requests`` requests, and their summed wait."""
        self.last_ms = time.time_ns() // 1_000_000
        self.rows += rows
        self.executions += 1
        self.queue[0] += requests
        self.queue[1] += queue_ns
        self.compute[0] += requests
        self.compute[1] += compute_ns * requests
        size = rows if rows <= EXACT_SIZES else 1 << (rows - 1).bit_length()
        entry = self.sizes.get(size)
        if entry is None:
            entry = self.sizes[size] = [0, 0]
        entry[0] += 1
        entry[1] += compute_ns

    def record_request(self, nanoseconds: int, *, is_success: bool) -> None:
        """Count one request."""
        entry = self.success if is_success else self.fail
        entry[0] += 1
        entry[1] += nanoseconds

    def add(self, other: ModelStatistics) -> None:
        """Add the counts of another process."""
        self.last_ms = max(self.last_ms, other.last_ms)
        self.rows += other.rows
        self.executions += other.executions
        for total, increment in (
            (self.success, other.success),
            (self.fail, other.fail),
            (self.queue, other.queue),
            (self.compute, other.compute),
            # A copy: the event loop counts runs while this is summed on a thread.
            *((self.sizes.setdefault(size, [0, 0]), entry) for size, entry in other.sizes.copy().items()),
        ):
            total[0] += increment[0]
            total[1] += increment[1]


Key = tuple[str, int]
"""Name and version of a model."""


class Statistics:
    """The statistics of all versions, with those of the other workers if there are any.

    A worker writes its own into the shared folder a quarter of a second after they have changed, from a thread.

    Attributes:
        is_changed: Whether something was counted since they were written; set by those who count.
    """

    def __init__(self, directory: str | None = None) -> None:
        self.is_changed = False
        self._models: dict[Key, ModelStatistics] = {}
        self._is_closed = threading.Event()
        self._folder = None if directory is None else Path(directory)
        if self._folder is not None:
            threading.Thread(
                target=self._write_periodically, args=(self._folder,), name="statistics", daemon=True
            ).start()

    def by_version(self, name: str, version: int) -> ModelStatistics:
        """Return the statistics of a version in this process, to count in; created at the first call."""
        statistics = self._models.get((name, version))
        if statistics is None:
            statistics = self._models[name, version] = ModelStatistics()
        return statistics

    def totals(self, keys: Iterable[Key]) -> list[tuple[Key, ModelStatistics]]:
        """Return the sums over all workers for each of ``keys``, zeros for a version without a run. May read files."""
        sums = {key: ModelStatistics() for key in keys}
        workers = [self._models]
        if self._folder is not None:
            workers += [
                _read(file) for file in self._folder.glob("statistics_*.json") if file != self._file(self._folder)
            ]
        for models in workers:
            for key in sums.keys() & models.keys():
                sums[key].add(models[key])
        return list(sums.items())

    def close(self) -> None:
        """Write out what was counted last, and stop the thread."""
        self._is_closed.set()
        if self._folder is not None:
            self._write(self._folder)

    def _write_periodically(self, folder: Path) -> None:
        while not self._is_closed.wait(WRITE_SECONDS):
            self._write(folder)

    def _write(self, folder: Path) -> None:
        if not self.is_changed:
            return
        # Before the values are read: what is counted from now on is written next time.
        self.is_changed = False
        rows = [[name, version, statistics] for (name, version), statistics in list(self._models.items())]
        file = self._file(folder)
        # A name per thread, since `close` writes on another one; renamed, so that readers only see whole files.
        partial = file.with_suffix(f".{threading.get_ident()}")
        try:
            partial.write_bytes(orjson.dumps(rows, option=orjson.OPT_NON_STR_KEYS))
            partial.replace(file)
        except OSError:
            # A full disk; or the supervisor has removed the folder already, at the very end. The next write has it all.
            self.is_changed = True
            with contextlib.suppress(OSError):
                partial.unlink()

    def _file(self, folder: Path) -> Path:
        return folder / f"statistics_{os.getpid()}.json"


def _read(file: Path) -> dict[Key, ModelStatistics]:
    try:
        rows = json.loads(file.read_bytes())
    except FileNotFoundError:
        # Removed since it was listed.
        return {}
    return {
        (name, version): ModelStatistics(
            **{**fields, "sizes": {int(size): entry for size, entry in fields["sizes"].items()}}
        )
        for name, version, fields in rows
    }
