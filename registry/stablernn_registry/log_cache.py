"""Replayed logs in memory, so that a look at an unchanged log costs a stat and a longer one only its new lines."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from stablernn_registry import log, plain_files
from stablernn_registry.layout import MAX_LOG_BYTES
from stablernn_registry.log import History

MAX_LINES = 100_000
"""Lines of all cached logs together; a line takes about 1.5 kB."""
_SETTLED_NS = 2_000_000_000
"""Age at which a file's times are sure to change with its next write: the coarsest file systems count in 2 s."""

_Status = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class _Entry:
    """A log that was read.

    Attributes:
        status: Of its file; None if the file changed while it was read, or so recently that its status may not show
            the next change.
        size: Bytes that were read.
        sha256: Of these bytes.
        history: Their replay; shared with callers, and never changed.
    """

    status: _Status | None
    size: int
    sha256: bytes
    history: History


class LogCache:
    """The logs that were read last, by path. Safe to use from several threads."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Path, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: Path, root: Path, where: str) -> History | None:
        """Return the replay of a log, which callers must not change; None if there is no such file.

        Args:
            path: The file.
            root: The registry.
            where: How messages name it.

        Raises:
            OSError: If it cannot be read.
            IntegrityError, RegistryError: As for :func:`plain_files.read_or_none` and :func:`log.decode`.
        """
        status = _status(path)
        with self._lock:
            cached = self._entries.get(path)
            if cached is not None:
                self._entries.move_to_end(path)
        if cached is not None and status is not None and cached.status == status:
            return cached.history
        data = plain_files.read_or_none(path, root, MAX_LOG_BYTES)
        if data is None:
            with self._lock:
                self._entries.pop(path, None)
            return None
        history = _replay(data, where, cached)
        is_stable = status is not None and status == _status(path) and _is_settled(status)
        entry = _Entry(status if is_stable else None, len(data), hashlib.sha256(data).digest(), history)
        with self._lock:
            self._entries[path] = entry
            self._entries.move_to_end(path)
            lines = sum(len(entry.history.entries) for entry in self._entries.values())
            while lines > MAX_LINES and len(self._entries) > 1:
                _, oldest = self._entries.popitem(last=False)
                lines -= len(oldest.history.entries)
        return history


def _replay(data: bytes, where: str, cached: _Entry | None) -> History:
    """Replays a log, from where the cached part of it ends if it still begins with that."""
    if cached is None or len(data) < cached.size:
        return log.decode(data, where)
    if hashlib.sha256(memoryview(data)[: cached.size]).digest() != cached.sha256:
        return log.decode(data, where)
    if len(data) == cached.size:
        return cached.history
    return log.continued(cached.history, data[cached.size :], where)


def _status(path: Path) -> _Status | None:
    """Return what changes when a file is replaced or written to; None if there is none."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_settled(status: _Status) -> bool:
    *_, modified, changed = status
    return time.time_ns() - max(modified, changed) > _SETTLED_NS
