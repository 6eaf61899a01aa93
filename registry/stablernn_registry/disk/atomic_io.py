"""Durable writes: files are hashed as they are written, and synced before they are renamed."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from stablernn_registry.documents.manifest import FileEntry
from stablernn_registry.errors import RESTORE, IntegrityError, ManifestError, RegistryError, StorageError

_CHUNK_BYTES = 1 << 20
# EFBIG is a limit on file size, EDQUOT a quota. For the user all three mean a full disk.
_DISK_FULL_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


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


def write_new(path: Path, data: bytes, *, writable: bool = False) -> None:
    """Write and sync a file that must not exist yet.

    Args:
        path: Path of the file.
        data: Content of the file.
        writable: True if its owner may write to it later. Files that never change are read-only.
    """
    with os.fdopen(_create(path, writable=writable), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


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
    sha256, size = hashlib.sha256(), 0
    with os.fdopen(_create(path, writable=False), "wb") as file:
        # The limit makes the copy end even if another process keeps appending to the source.
        while chunk := reader.read(min(_CHUNK_BYTES, length - size)):
            sha256.update(chunk)
            size += len(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return FileEntry(bytes=size, sha256=sha256.hexdigest())


def rename_and_sync(staged_file: Path, path: Path) -> None:
    """Rename a staged file to its final path, replacing an older file, and sync the folder."""
    os.replace(staged_file, path)
    # Until its folder is synced, a power cut may undo the rename.
    sync_folder(path.parent)


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents; each new folder is synced into its parent."""
    missing_folders = []
    while not folder.is_dir():
        # Check again: another process may have created the folder since is_dir().
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        missing_folders.append(folder)
        folder = folder.parent
    for new_folder in reversed(missing_folders):
        new_folder.mkdir(exist_ok=True)
        sync_folder(new_folder.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that renames in it survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems refuse to sync a folder with EINVAL; they order renames themselves.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


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


def _create(path: Path, *, writable: bool) -> int:
    # Not tempfile: its files are private to the user, but a server under another user must read the registry. O_EXCL
    # never overwrites a file.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if writable else 0o444)
