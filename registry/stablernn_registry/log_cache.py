"""A cache of replayed logs: reading an unchanged log costs one stat, reading a longer one only its new lines."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from stablernn_registry import log
from stablernn_registry.disk import plain_files
from stablernn_registry.disk.layout import MAX_LOG_BYTES
from stablernn_registry.log import History

MAX_LINES = 100_000
"""Maximum number of lines in all cached logs together; a line takes about 1.5 kB."""
_SETTLED_NS = 2_000_000_000
"""Age at which a file's times are sure to change with its next write: the coarsest timestamps have steps of 2 s."""

_Status = tuple[int, int, int, int, int]


@dataclass(frozen=True)
class _Entry:
    """A cached log.

    Attributes:
        status: Status of its file; None if the file changed while it was read, or so recently that its status may not
            show the next change.
        size: Number of bytes that were read.
        sha256: Hash of these bytes.
        history: Replay of these bytes; shared with callers, and never changed.
    """

    status: _Status | None
    size: int
    sha256: bytes
    history: History


class LogCache:
    """A thread-safe cache of the most recently read logs, by path."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Path, _Entry] = OrderedDict()
        # Guards the dictionary, not the reads: a slow disk must not block readers of other logs.
        self._lock = threading.Lock()

    def read(self, path: Path, root: Path, label: str) -> History | None:
        """Return the replay of a log, which callers must not change; None if there is no such file.

        Args:
            path: Path of the log.
            root: Root folder of the registry.
            label: Name of the file in messages.

        Raises:
            OSError: If it cannot be read.
            IntegrityError: If it is damaged, or not a plain file.
            RegistryError: If a newer program wrote a line.
        """
        # Before the data: if the file changes in between, the two do not match and the entry gets no status.
        status = _read_status(path)
        with self._lock:
            cached_entry = self._entries.get(path)
            if cached_entry is not None:
                self._entries.move_to_end(path)
        if cached_entry is not None and status is not None and cached_entry.status == status:
            return cached_entry.history
        data = plain_files.read_or_none(path, root, MAX_LOG_BYTES)
        if data is None:
            with self._lock:
                self._entries.pop(path, None)
            return None
        history = _replay(data, label, cached_entry)
        is_stable = status is not None and status == _read_status(path) and _is_settled(status)
        entry = _Entry(status if is_stable else None, len(data), hashlib.sha256(data).digest(), history)
        with self._lock:
            self._entries[path] = entry
            self._entries.move_to_end(path)
            lines = sum(len(entry.history.entries) for entry in self._entries.values())
            # The newest log stays even if it exceeds the limit by itself.
            while lines > MAX_LINES and len(self._entries) > 1:
                _, oldest_entry = self._entries.popitem(last=False)
                lines -= len(oldest_entry.history.entries)
        return history


def _replay(data: bytes, label: str, cached_entry: _Entry | None) -> History:
    """Replay a log; if it begins with the cached bytes, replay only the lines after them."""
    if cached_entry is None or len(data) < cached_entry.size:
        return log.decode(data, label)
    # Writers only append, but a log that was restored from a copy may differ.
    if hashlib.sha256(memoryview(data)[: cached_entry.size]).digest() != cached_entry.sha256:
        return log.decode(data, label)
    if len(data) == cached_entry.size:
        return cached_entry.history
    return log.extend(cached_entry.history, data[cached_entry.size :], label)


def _read_status(path: Path) -> _Status | None:
    """Return the fields of its status that change when a file is replaced or written to; None if there is no file."""
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_settled(status: _Status) -> bool:
    # The change time, too: programs can set the modification time.
    *_, mtime_ns, ctime_ns = status
    return time.time_ns() - max(mtime_ns, ctime_ns) > _SETTLED_NS
