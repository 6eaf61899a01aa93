"""The streams of a bridge on disk: a checkpoint, and the events since then.

Events are appended and synced before the broker is told that they have come, and read again after a restart. A line
that was cut by a crash is one that the broker sends again. Each event has its number, so that a line which the
checkpoint has already seen is not stepped again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stablernn_registry.disk.atomic_io import rename_and_sync


class Event(NamedTuple):
    """An event of a stream: its key, its number, and its sample as JSON has it."""

    key: str
    number: int
    sample: Any


def journal_path(checkpoint: Path) -> Path:
    """Return the file of the events since a checkpoint."""
    return checkpoint.with_name(checkpoint.name + ".events")


def write_checkpoint(path: Path, content: bytes) -> None:
    """Replace a file in one step, so that a crash leaves the old content or the new one."""
    staged = path.with_name(path.name + ".new")
    with staged.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    rename_and_sync(staged, path)


class Journal:
    """The events since the last checkpoint, open for appending.

    Args:
        path: The file, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+b")

    def read(self) -> list[Event]:
        """Return the events; a line that is cut ends them, and is removed."""
        self._file.seek(0)
        events, end = [], 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            events.append(Event(*json.loads(line)))
            end += len(line)
        self._file.truncate(end)
        return events

    def append(self, events: Sequence[Event]) -> None:
        """Write events, and wait until they are on disk."""
        self._file.write(b"".join(json.dumps(event).encode() + b"\n" for event in events))
        self._file.flush()
        os.fsync(self._file.fileno())

    def clear(self) -> None:
        """Drop all events, once a checkpoint holds them."""
        self._file.truncate(0)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
