"""Counts and nanoseconds by model and version, in the words of Triton's statistics extension."""

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
"""Batches above that are counted under the next power of two, so that the sizes stay few."""
WRITE_SECONDS = 0.25

Duration = list[int]
"""Count and nanoseconds."""


def _duration() -> Duration:
    return [0, 0]


@dataclass(slots=True)
class ModelStatistics:
    """What one version has done since the server started.

    Attributes:
        last_ms: When a run last ended, in milliseconds of Unix time; 0 for never.
        rows: Sequences and streams in all runs.
        executions: Runs.
        success: Requests that were answered, and their time from beginning to end.
        fail: Those that were refused or failed, likewise.
        queue: Requests that came to a run, and how long they waited for it.
        compute: Requests that came to a run, and how long the run took, counted once for each of them.
        sizes: By rows in a run: how many such runs, and how long they took.
    """

    last_ms: int = 0
    rows: int = 0
    executions: int = 0
    success: Duration = field(default_factory=_duration)
    fail: Duration = field(default_factory=_duration)
    queue: Duration = field(default_factory=_duration)
    compute: Duration = field(default_factory=_duration)
    sizes: dict[int, Duration] = field(default_factory=dict)

    def ran(self, requests: int, rows: int, queue_ns: int, compute_ns: int) -> None:
        """Count one run of ``rows`` sequences or streams, for ``requests`` requests."""
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

    def answered(self, nanoseconds: int, *, is_success: bool) -> None:
        """Count one request."""
        entry = self.success if is_success else self.fail
        entry[0] += 1
        entry[1] += nanoseconds

    def add(self, other: ModelStatistics) -> None:
        """Add what another process has counted."""
        self.last_ms = max(self.last_ms, other.last_ms)
        self.rows += other.rows
        self.executions += other.executions
        for mine, its in (
            (self.success, other.success),
            (self.fail, other.fail),
            (self.queue, other.queue),
            (self.compute, other.compute),
            # A copy: runs are counted while this is summed up on a thread.
            *((self.sizes.setdefault(size, [0, 0]), entry) for size, entry in other.sizes.copy().items()),
        ):
            mine[0] += its[0]
            mine[1] += its[1]


Key = tuple[str, int]


class Statistics:
    """The statistics of all versions, by name and number; with those of the other workers where there are any.

    A worker writes its own into the shared folder a quarter of a second after they have changed, from a thread.
    """

    def __init__(self, directory: str | None = None) -> None:
        self.is_changed = False
        self._models: dict[Key, ModelStatistics] = {}
        self._stopped = threading.Event()
        self._folder = None if directory is None else Path(directory)
        if self._folder is not None:
            threading.Thread(target=self._keep_writing, args=(self._folder,), name="statistics", daemon=True).start()

    def of(self, name: str, version: int) -> ModelStatistics:
        """Of this process alone, to be counted in."""
        found = self._models.get((name, version))
        if found is None:
            found = self._models[name, version] = ModelStatistics()
        return found

    def total(self, keys: Iterable[Key]) -> list[tuple[Key, ModelStatistics]]:
        """Of all workers, for each of ``keys``; zeros for one that did nothing. May read files."""
        sums = {key: ModelStatistics() for key in keys}
        parts = [self._models]
        if self._folder is not None:
            parts += [
                _read(file) for file in self._folder.glob("statistics_*.json") if file != self._file(self._folder)
            ]
        for part in parts:
            for key in sums.keys() & part.keys():
                sums[key].add(part[key])
        return list(sums.items())

    def close(self) -> None:
        """Write what is left to write."""
        self._stopped.set()
        if self._folder is not None:
            self._write(self._folder)

    def _keep_writing(self, folder: Path) -> None:
        while not self._stopped.wait(WRITE_SECONDS):
            self._write(folder)

    def _write(self, folder: Path) -> None:
        if not self.is_changed:
            return
        self.is_changed = False
        rows = [[name, version, found] for (name, version), found in list(self._models.items())]
        file = self._file(folder)
        partial = file.with_suffix(f".{threading.get_ident()}")
        # The folder may be gone at the very end; whoever removed it wants no statistics.
        with contextlib.suppress(FileNotFoundError):
            partial.write_bytes(orjson.dumps(rows, option=orjson.OPT_NON_STR_KEYS))
            partial.replace(file)

    def _file(self, folder: Path) -> Path:
        return folder / f"statistics_{os.getpid()}.json"


def _read(file: Path) -> dict[Key, ModelStatistics]:
    try:
        rows = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    return {
        (name, version): ModelStatistics(
            **{**fields, "sizes": {int(size): entry for size, entry in fields["sizes"].items()}}
        )
        for name, version, fields in rows
    }
