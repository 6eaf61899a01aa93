"""Atomic and durable writes, and locks of open files, for every package.

A file that is replaced has its old content or its new one, never a part of it, whatever ends the process; after a write
has returned, a power cut no longer brings back the old content. Named lock files are those of filelock.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_check_write: ContextVar[Callable[[], None] | None] = ContextVar("check_write", default=None)


@contextmanager
def checked_writes(check: Callable[[], None]) -> Iterator[None]:
    """Call a function right before each write of this thread in the ``with`` block takes effect.

    Args:
        check: The function. If it raises, the file keeps its old content, and the exception goes on to the writer.
    """
    before = _check_write.set(check)
    try:
        yield
    finally:
        _check_write.reset(before)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of ``path`` at the end of the ``with`` block, and is removed if it raises.

    Raises:
        OSError: If it cannot be written (a full disk, missing permissions).
    """
    # In the same folder, since os.replace is atomic within one file system only.
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            # Before the rename: a power cut must not leave the new name with missing content.
            os.fsync(file.fileno())
        publish(Path(temporary), path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def publish(temporary: Path, path: Path) -> None:
    """Rename a private temporary file to its final path, with the mode of an ordinary new file, and sync the folder.

    A power cut may cut the content of a file that was not synced before.
    """
    # mkstemp makes files private, and the mask is read by setting it.
    mask = os.umask(0o022)
    os.umask(mask)
    os.chmod(temporary, 0o666 & ~mask)
    if (check := _check_write.get()) is not None:
        check()
    rename_and_sync(temporary, path)


def create_new(path: Path, *, writable: bool = False) -> int:
    """Open a file that must not exist yet for writing; the arguments are those of :func:`write_new`."""
    # Not tempfile: its files are private to the user, but a server under another user must read the registry. O_EXCL
    # never overwrites a file.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if writable else 0o444)


def write_new(path: Path, data: bytes, *, writable: bool = False) -> None:
    """Write and sync a file that must not exist yet.

    Args:
        path: Path of the file.
        data: Content of the file.
        writable: True if its owner may write to it later. Files that never change are read-only.
    """
    with os.fdopen(create_new(path, writable=writable), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


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
    if os.name == "nt":
        # Windows opens no folders.
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems refuse to sync a folder with EINVAL; they order renames themselves.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(handle)


def lock_open_file(descriptor: int, *, shared: bool = False) -> bool | None:
    """Lock an open file or folder for this process until it closes it or ends, however that is.

    Args:
        descriptor: The open file.
        shared: True to share the lock with others, and to wait until nobody has it for themselves.

    Returns:
        True if it is locked, False if another process has locked it, None where there are no such locks: on Windows,
        and on some network file systems.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def lock_is_free(path: Path, flags: int) -> bool | None:
    """Return what :func:`lock_open_file` does for a file or folder that is opened for this moment; None without one.

    Args:
        path: The file or folder.
        flags: Flags of ``os.open``. Network file systems lock exclusively only what is open for writing.
    """
    try:
        descriptor = os.open(path, flags)
    except OSError:
        return None
    try:
        return lock_open_file(descriptor)
    finally:
        os.close(descriptor)
