"""The streams of a bridge on disk: a checkpoint, and the events since then.

Events are appended and synced before the broker is told that they have come, and read again after a restart. Those that
were taken together stand in one line: they are stepped together again, so that the same numbers are skipped, and a line
that was cut by a crash holds none of which the broker was told. Each event has its number, so that a line which the
checkpoint has already seen is not stepped again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from stablernn_cli.errors import CommandError
from stablernn_registry.disk.atomic_io import rename_and_sync, sync_folder

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked.
    fcntl = None  # type: ignore[assignment]


class Event(NamedTuple):
    """An event of a stream: its key, its number, and its sample as JSON has it."""

    key: str
    number: int
    sample: Any


def journal_path(checkpoint: Path) -> Path:
    """Return the file of the events since a checkpoint."""
    return checkpoint.with_name(checkpoint.name + ".events")


def write_checkpoint(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Replace a file in one step, so that a crash leaves the old content or the new one.

    Args:
        path: The file.
        parts: Its content, parts that follow each other.
    """
    staged = path.with_name(path.name + ".new")
    with staged.open("wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
    rename_and_sync(staged, path)


class Journal:
    """The events since the last checkpoint, open for appending and locked.

    The lock covers the checkpoint too: a program that writes it holds its journal open.

    Args:
        path: The file, which need not exist.

    Raises:
        CommandError: If another process has it open.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("a+b")
        try:
            self._lock()
        except BlockingIOError as error:
            self._file.close()
            raise CommandError(f"Another program is using {path}: end it first, or use another checkpoint.") from error
        # A power cut may undo the creation of the file until then.
        sync_folder(path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> list[list[Event]]:
        """Return the events, in lists of those that were appended together; a line that is cut is removed.

        Raises:
            CommandError: If a line is damaged.
        """
        self._file.seek(0)
        batches: list[list[Event]] = []
        end = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            try:
                batches.append([Event(*event) for event in json.loads(line)])
            except (ValueError, TypeError) as error:
                raise CommandError(
                    f"Line {len(batches) + 1} of {self._path} is damaged: restore the file, or remove the line and "
                    "those after it, which loses their events."
                ) from error
            end += len(line)
        self._file.truncate(end)
        return batches

    def append(self, events: Sequence[Event]) -> None:
        """Write events, and wait until they are on disk."""
        self._file.write(json.dumps(events).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def clear(self) -> None:
        """Drop all events, once a checkpoint holds them."""
        self._file.truncate(0)
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file, which ends the lock."""
        self._file.close()

    def _lock(self) -> None:
        if fcntl is None:
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some network file systems have no locks.
            if isinstance(error, BlockingIOError):
                raise
