"""Reads of files below the root: plain files only, no links, the size first, and never a byte more than that.

Whoever may write to the folder of a registry can put anything in the place of a file: a named pipe, on which a read
waits for ever, a link to a device that never ends, a file of terabytes without content. A reader must end all the same.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from stablernn_registry.errors import RESTORE, IntegrityError
from stablernn_registry.manifest import FileEntry

_CHUNK_BYTES = 1 << 20
# O_NONBLOCK: without it, opening a pipe that replaced the file after it was looked at would wait for a writer. Windows
# has neither the flags nor such pipes.
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_KINDS: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotPlainError(IntegrityError):
    """Something else than a plain file lies in the place of one, or a link in that of a folder.

    Attributes:
        relative: Its path below the root.
    """

    def __init__(self, message: str, relative: str) -> None:
        super().__init__(message)
        self.relative = relative


@contextmanager
def opened(path: Path, root: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a plain file for reading; gives it with its size.

    Args:
        path: The file.
        root: The registry; no folder between it and the file may be a link.

    Raises:
        NotPlainError: If it is not a plain file, or a folder on the way is a link.
        OSError: If it is missing or cannot be read.
    """
    size(path, root)
    with os.fdopen(os.open(path, _FLAGS), "rb") as file:
        # Once more, of what was opened: it may have been replaced since.
        status = os.fstat(file.fileno())
        _check_kind(status.st_mode, path, root, stat.S_ISREG)
        yield file, status.st_size


def size(path: Path, root: Path) -> int:
    """Return the size of a plain file; arguments and errors are those of ``opened``."""
    relative = path.relative_to(root)
    for folder in reversed(relative.parents[:-1]):
        mode = os.lstat(root / folder).st_mode
        if stat.S_ISLNK(mode):
            _check_kind(mode, root / folder, root, stat.S_ISDIR)
    status = os.lstat(path)
    _check_kind(status.st_mode, path, root, stat.S_ISREG)
    return status.st_size


def read_or_none(path: Path, root: Path, at_most: int) -> bytes | None:
    """Return the bytes of a file, or None if there is none.

    Args:
        path: The file.
        root: The registry.
        at_most: The largest size that such a file can have.

    Raises:
        NotPlainError: As ``opened``.
        IntegrityError: If it is larger.
    """
    try:
        with opened(path, root) as (file, length):
            if length > at_most:
                raise IntegrityError(
                    f"{path.relative_to(root).as_posix()} has {length} bytes, and no file of its kind has more than "
                    f"{at_most}. {RESTORE}."
                )
            return file.read(length)
    except (FileNotFoundError, NotADirectoryError):
        return None


def hash_of(file: BinaryIO, length: int) -> FileEntry:
    """Return size and hash of the first ``length`` bytes of an open file, or of all that it has."""
    sha256, count = hashlib.sha256(), 0
    while chunk := file.read(min(_CHUNK_BYTES, length - count)):
        sha256.update(chunk)
        count += len(chunk)
    return FileEntry(bytes=count, sha256=sha256.hexdigest())


def _check_kind(mode: int, path: Path, root: Path, is_expected: Callable[[int], bool]) -> None:
    if not is_expected(mode):
        kind = next((name for matches, name in _KINDS if matches(mode)), "something else")
        expected = "file" if is_expected is stat.S_ISREG else "folder"
        relative = path.relative_to(root).as_posix()
        raise NotPlainError(
            f"{relative} is {kind} in place of a {expected}: a registry holds plain files and folders only. {RESTORE}.",
            relative,
        )
