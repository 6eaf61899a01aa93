"""Files below the root: their paths, built here from checked names only, and reads and copies of plain files.

A read follows no links, looks at the size first, and never takes a byte more than that size.

Anyone who can write to the folder of a registry can replace a file: by a named pipe, on which a read blocks forever, by
a link to an endless device, or by a sparse file of terabytes. A read must end in all these cases.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from stablernn_registry import atomic_io
from stablernn_registry.errors import RESTORE, IntegrityError, ManifestError, RegistryError, StorageError
from stablernn_registry.manifest import FileEntry

MARKER = b'{"format":"stablernn-registry","schema":1}\n'
SCHEMA = 1
# Present if the root is the mount point of a file system; neither part of the registry nor a stray.
FILESYSTEM_FOLDERS = frozenset({"lost+found"})
# Limits for each kind of file: readers check the size before they read, writers before they write.
MAX_MARKER_BYTES = 2**12
MAX_MANIFEST_BYTES = 2**26
MAX_LOG_BYTES = 2**28
MAX_POLICY_BYTES = 2**24
SHA256 = re.compile(r"[0-9a-f]{64}")
# Names that a writer stages; in a staging folder any other file is a stray.
STAGED_NAME = re.compile(r"file-[0-9]+|manifest\.json|log\.jsonl|registry\.json")
STAGED_POLICY_NAME = re.compile(r"policy\.jsonl|registry\.json")
# Name of the policy's lock and staging folder; no model name contains "@".
POLICY = "@policy"
_CHUNK_BYTES = 1 << 20
# EFBIG is a limit on file size, EDQUOT a quota. For the user all three mean a full disk.
_DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# Without O_NONBLOCK, opening a pipe that replaced the file after its check would block until a process writes to it.
# Windows has neither these flags nor such pipes.
_OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_FILE_TYPES: tuple[tuple[Callable[[int], bool], str], ...] = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True)
class Layout:
    """Paths below one root; names must have passed ``refs.check_name`` and hashes ``SHA256``."""

    root: Path

    @property
    def marker(self) -> Path:
        return self.root / "registry.json"

    @property
    def blobs(self) -> Path:
        return self.root / "blobs" / "sha256"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def policy(self) -> Path:
        return self.root / "policy.jsonl"

    def blob(self, sha256: str) -> Path:
        return self.blobs / sha256[:2] / sha256

    def model(self, name: str) -> Path:
        return self.models / name

    def log(self, name: str) -> Path:
        return self.models / name / "log.jsonl"

    def versions(self, name: str) -> Path:
        return self.models / name / "versions"

    def manifest(self, name: str, version: int) -> Path:
        return self.models / name / "versions" / f"{version}.json"

    def lock(self, name: str) -> Path:
        """Return the lock file of a model, or of the policy if the name is ``POLICY``."""
        return self.locks / name

    def staging(self, name: str) -> Path:
        """Return the folder that only the holder of that lock writes to; nothing in it is published."""
        return self.tmp / name

    def relative(self, path: Path) -> str:
        """Return the path below the root, with forward slashes, for messages."""
        return path.relative_to(self.root).as_posix()


class NotPlainError(IntegrityError):
    """Something other than a plain file in place of one, or a link in place of a folder.

    Attributes:
        relative: Path below the root.
    """

    def __init__(self, message: str, relative_path: str) -> None:
        super().__init__(message)
        self.relative = relative_path


@contextmanager
def open_plain(path: Path, root: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a plain file for reading, and yield it with its size.

    Args:
        path: Path of the file.
        root: Root folder of the registry; no folder between it and the file may be a link.

    Raises:
        NotPlainError: If it is not a plain file, or a folder on the way is a link.
        OSError: If it is missing or cannot be read.
    """
    file_size(path, root)
    with os.fdopen(os.open(path, _OPEN_FLAGS), "rb") as file:
        # Check what was opened: the path may have been replaced since its own check.
        status = os.fstat(file.fileno())
        _check_type(status.st_mode, path, root, stat.S_ISREG)
        yield file, status.st_size


def file_size(path: Path, root: Path) -> int:
    """Return the size of a plain file; arguments and errors are those of :func:`open_plain`."""
    relative_path = path.relative_to(root)
    # O_NOFOLLOW covers only the last part of a path, so the folders above it are checked here.
    for folder in reversed(relative_path.parents[:-1]):
        mode = os.lstat(root / folder).st_mode
        if stat.S_ISLNK(mode):
            _check_type(mode, root / folder, root, stat.S_ISDIR)
    status = os.lstat(path)
    _check_type(status.st_mode, path, root, stat.S_ISREG)
    return status.st_size


def read_or_none(path: Path, root: Path, max_bytes: int) -> bytes | None:
    """Return the bytes of a file, or None if there is none.

    Args:
        path: Path of the file.
        root: Root folder of the registry.
        max_bytes: Maximum size of such a file.

    Raises:
        NotPlainError: If :func:`open_plain` raises it.
        IntegrityError: If the file is larger.
        OSError: If it cannot be read.
    """
    try:
        with open_plain(path, root) as (file, length):
            if length > max_bytes:
                raise IntegrityError(
                    f"{path.relative_to(root).as_posix()} has {length} bytes, and no file of its kind has more than "
                    f"{max_bytes}. {RESTORE}."
                )
            return file.read(length)
    except (FileNotFoundError, NotADirectoryError):
        # The latter for a file in place of a parent folder.
        return None


def hash_file(file: BinaryIO, length: int, copy: BinaryIO | None = None) -> FileEntry:
    """Return the size and hash of the first ``length`` bytes of an open file, or of the whole file if it is shorter.

    The bytes are written to ``copy`` on the way.
    """
    sha256, count = hashlib.sha256(), 0
    while chunk := file.read(min(_CHUNK_BYTES, length - count)):
        sha256.update(chunk)
        count += len(chunk)
        if copy is not None:
            copy.write(chunk)
    return FileEntry(bytes=count, sha256=sha256.hexdigest())


def _check_type(mode: int, path: Path, root: Path, is_expected: Callable[[int], bool]) -> None:
    if not is_expected(mode):
        kind = next((name for matches, name in _FILE_TYPES if matches(mode)), "something else")
        expected = "file" if is_expected is stat.S_ISREG else "folder"
        relative_path = path.relative_to(root).as_posix()
        raise NotPlainError(
            f"{relative_path} is {kind} in place of a {expected}: a registry holds plain files and folders only. "
            f"{RESTORE}.",
            relative_path,
        )


@contextmanager
def translate_os_errors(action: str, root: Path) -> Iterator[None]:
    """Convert an ``OSError`` in the block to a ``StorageError`` whose message is one sentence.

    Args:
        action: Action of the block, e.g. ``publish 'digits'``.
        root: Root folder of the registry.
    """
    try:
        yield
    except RegistryError:
        # StorageError is an OSError, too: do not wrap it twice.
        raise
    except OSError as error:
        location = f" ({error.filename})" if error.filename else ""
        if error.errno in _DISK_FULL_ERRORS:
            message = (
                f"Could not {action}: no space is left for the registry {root} ({error.strerror}). Nothing was "
                f"changed; free some space or point STABLERNN_REGISTRY to another disk, then do it again."
            )
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            message = (
                f"Could not {action}: the registry {root} does not allow it: {error.strerror}{location}. Change its "
                f"permissions or point STABLERNN_REGISTRY to another folder."
            )
        else:
            message = f"Could not {action} in the registry {root}: {error.strerror or error}{location}."
        raise StorageError(message) from error


def copy_new(source: Path, path: Path, filename: str) -> FileEntry:
    """Copy a file to a path that must not exist yet, hash the copied bytes, and sync the copy.

    Raises:
        ManifestError: If the source cannot be opened, or is no plain file.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would block until a process writes to it.
        handle = os.open(source, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise ManifestError(f"Cannot read '{filename}' from {source}: {error.strerror}.") from error
    with os.fdopen(handle, "rb") as reader:
        # Of the open file, not of the path, which may lead to another file by now.
        status = os.fstat(reader.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ManifestError(f"Cannot read '{filename}' from {source}: it is not a plain file.")
        return write_stream(reader, path, status.st_size)


def write_stream(reader: BinaryIO, path: Path, length: int) -> FileEntry:
    """Write and sync a file that must not exist yet, and hash the written bytes.

    Args:
        reader: Source of the bytes.
        path: Path of the file.
        length: Maximum number of bytes to read.

    Returns:
        Size and hash of the written bytes.
    """
    with os.fdopen(atomic_io.create_new(path), "wb") as file:
        # The limit makes the copy end even if another process keeps appending to the source.
        entry = hash_file(reader, length, file)
        file.flush()
        os.fsync(file.fileno())
    return entry


def check_entry(actual: FileEntry, expected: FileEntry, label: str) -> None:
    """Compare a file with what was published.

    Args:
        actual: Size and hash of the bytes on disk.
        expected: Size and hash in the manifest, or in the log for a file of a record.
        label: Name of the file in messages.

    Raises:
        IntegrityError: If they differ.
    """
    if actual != expected:
        difference = (
            f"has {actual.bytes} bytes, its manifest says {expected.bytes}"
            if actual.bytes != expected.bytes
            else f"has sha256 {actual.sha256[:12]}..., its manifest says {expected.sha256[:12]}..."
        )
        raise IntegrityError(f"{label} is damaged: it {difference}. {RESTORE}, or publish the same file again.")
