"""Bytes to and from disk: staged writes that are synced before they are renamed, reads that are checked by hash."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from stablernn_registry.errors import RESTORE, IntegrityError, ManifestError, RegistryError, StorageError
from stablernn_registry.manifest import FileEntry

_CHUNK_BYTES = 1 << 20
# EFBIG is the limit on file size of a process or a file system, EDQUOT a quota: for the user all three are a full disk.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


@contextmanager
def explained(action: str, root: Path) -> Iterator[None]:
    """Turn an ``OSError`` of the block into a ``StorageError`` of one sentence.

    Args:
        action: What was being done and to what, e.g. ``publish 'digits'``.
        root: The registry.
    """
    try:
        yield
    except RegistryError:
        raise
    except OSError as error:
        place = f" ({error.filename})" if error.filename else ""
        if error.errno in _FULL:
            message = (
                f"Could not {action}: no space is left for the registry {root} ({error.strerror}). Nothing was "
                f"changed; free some space or point STABLERNN_REGISTRY to another disk, then do it again."
            )
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            message = (
                f"Could not {action}: the registry {root} does not allow it: {error.strerror}{place}. Change its "
                f"permissions or point STABLERNN_REGISTRY to another folder."
            )
        else:
            message = f"Could not {action} in the registry {root}: {error.strerror or error}{place}."
        raise StorageError(message) from error


def write_new(path: Path, data: bytes, *, writable: bool = False) -> None:
    """Write and syncs a file that must not exist yet.

    Args:
        path: The file.
        data: Its bytes.
        writable: Whether its owner may write to it later; what never changes is made read-only.
    """
    with os.fdopen(_create(path, writable=writable), "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def copy_new(source: Path, path: Path, filename: str) -> FileEntry:
    """Copy a file to one that must not exist yet, hashing what is written, and syncs it.

    Raises:
        ManifestError: If the source cannot be opened, or is no plain file.
    """
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for whoever writes to it.
        handle = os.open(source, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError as error:
        raise ManifestError(f"Cannot read '{filename}' from {source}: {error.strerror}.") from error
    with os.fdopen(handle, "rb") as reader:
        status = os.fstat(reader.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ManifestError(f"Cannot read '{filename}' from {source}: it is not a plain file.")
        return write_from(reader, path, status.st_size)


def write_from(reader: BinaryIO, path: Path, length: int) -> FileEntry:
    """Write and syncs a file that must not exist yet, hashing what is written.

    Args:
        reader: Where the bytes come from.
        path: The file.
        length: How many are read at most.

    Returns:
        Size and hash of what was written.
    """
    sha256, size = hashlib.sha256(), 0
    with os.fdopen(_create(path, writable=False), "wb") as out:
        while chunk := reader.read(min(_CHUNK_BYTES, length - size)):
            sha256.update(chunk)
            size += len(chunk)
            out.write(chunk)
        out.flush()
        os.fsync(out.fileno())
    return FileEntry(bytes=size, sha256=sha256.hexdigest())


def place(staged: Path, path: Path) -> None:
    """Rename a staged file to its place, over an older one if there is one, and syncs the folder."""
    os.replace(staged, path)
    sync_folder(path.parent)


def make_folders(folder: Path) -> None:
    """Make a folder and those above it; each new one is synced into the one above it."""
    missing = []
    while not folder.is_dir():
        # Asked again: another process may have made the folder in between.
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
        sync_folder(new.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems cannot sync a folder and say EINVAL; they order renames themselves.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


def check_bytes(found: FileEntry, wanted: FileEntry, what: str) -> None:
    """Compare what was read with the manifest.

    Args:
        found: Size and hash of the bytes on disk.
        wanted: What the manifest says.
        what: The file as messages name it.

    Raises:
        IntegrityError: If they differ.
    """
    if found != wanted:
        differs = (
            f"has {found.bytes} bytes, its manifest says {wanted.bytes}"
            if found.bytes != wanted.bytes
            else f"has sha256 {found.sha256[:12]}..., its manifest says {wanted.sha256[:12]}..."
        )
        raise IntegrityError(f"{what} is damaged: it {differs}. {RESTORE}, or publish the same file again.")


def _create(path: Path, *, writable: bool) -> int:
    # Not tempfile: its files are private to the user, and a server under another user must read the registry.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if writable else 0o444)
