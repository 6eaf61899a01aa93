"""Writes of the next line of a log or of the policy: under a lock, staged and synced, then renamed over the old file.

A process that is killed before the rename has changed nothing; the next writer removes what it left. After the rename
the line counts. Later failures, in removing the staging folder or releasing the lock, are logged as warnings, because
an error would make callers repeat a finished write.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from stablernn_registry import atomic_io, log
from stablernn_registry.disk import plain_files
from stablernn_registry.disk.layout import MARKER, Layout
from stablernn_registry.errors import IntegrityError, StorageError

if TYPE_CHECKING:
    import filelock

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WriteTarget:
    """The target of a write, guarded by one lock: a model, or the policy.

    Attributes:
        label: Name in messages: ``'digits'``, ``the policy``.
        file: File that gets another line.
        lock: Lock file.
        staging: Folder that only the holder of the lock writes to.
        max_bytes: Maximum size of the file.
        checked_folders: Other folders that a write changes, none of which may be a link.
        created_folders: Folders that a first write creates, innermost first; removed again if it fails.
        find_orphan: Function that returns the path at which a write puts a file before its line counts, or None.
    """

    label: str
    file: Path
    lock: Path
    staging: Path
    max_bytes: int
    checked_folders: tuple[Path, ...] = ()
    created_folders: tuple[Path, ...] = ()
    find_orphan: Callable[[], Path | None] = field(default=lambda: None)


@dataclass(frozen=True)
class Writer:
    """Writes below one root.

    Attributes:
        layout: Paths of the registry.
        exists: Function that returns whether the root is a registry, and raises if it is something else.
        lock_timeout_seconds: Maximum wait for another write to the same target.
    """

    layout: Layout
    exists: Callable[[], bool]
    lock_timeout_seconds: float

    @contextmanager
    def lock(self, target: WriteTarget) -> Iterator[None]:
        """Hold the lock of a target."""
        # Imported here, since readers take no lock.
        import filelock

        self.exists()
        root = self.layout.root
        with plain_files.translate_os_errors(f"lock {target.label}", root):
            self.refuse_links(target.lock, target.staging, *target.checked_folders)
            if not target.lock.exists():
                # Before the lock, since it tells verify why there is a lock without the file that it guards.
                atomic_io.make_folders(target.staging)
            atomic_io.make_folders(self.layout.locks)
            lock = filelock.FileLock(target.lock)
            try:
                lock.acquire(timeout=self.lock_timeout_seconds)
            except filelock.Timeout as error:
                raise StorageError(
                    f"Another process has been writing to {target.label} for {self.lock_timeout_seconds:g} s "
                    f"({target.lock} is locked). Wait for it to end, then do it again."
                ) from error
        try:
            yield
        except BaseException as error:
            # KeyboardInterrupt, too, must release the lock.
            self._release(target, lock, is_done=_is_done(error))
            raise
        self._release(target, lock, is_done=True)

    def _release(self, target: WriteTarget, lock: filelock.BaseFileLock, *, is_done: bool) -> None:
        """Release a lock; if the file that it guards does not exist, remove the lock and the staging folder first."""
        try:
            try:
                if not target.file.exists():
                    # A first write that failed must not leave traces of a model that never existed.
                    self._clear(target)
                    target.staging.rmdir()
                    target.lock.unlink()
            finally:
                lock.release()
        except (OSError, IntegrityError) as error:
            # The outcome of the write is final by now: a failed cleanup must not change it.
            self._warn_of_leftovers(target, error, is_done=is_done)

    def refuse_links(self, *paths: Path) -> None:
        """Raise if a path, or a folder between it and the root, is a link: a write would change files elsewhere."""
        root = self.layout.root
        for path in paths:
            # Outermost first, so that the message names the link itself.
            for part in (*reversed(path.relative_to(root).parents), path.relative_to(root)):
                if part != Path() and (root / part).is_symlink():
                    raise IntegrityError(
                        f"{part.as_posix()} is a link: a write would change files outside the registry {root}. "
                        f"Take it out; a registry holds no links."
                    )

    @contextmanager
    def stage(self, target: WriteTarget, action: str) -> Iterator[Path]:
        """Yield an empty staging folder and remove it at the end, unless the file still does not exist.

        In that case it explains the lock without a file, and ``lock`` removes both. The caller holds the lock, and
        leaves the block without an exception only if the write is done.
        """
        with plain_files.translate_os_errors(action, self.layout.root):
            self._clear(target)
            atomic_io.make_folders(target.staging)
            try:
                # The first write of all turns the root into a registry.
                if not self.exists():
                    atomic_io.write_new(target.staging / "registry.json", MARKER)
                    atomic_io.rename_and_sync(target.staging / "registry.json", self.layout.marker)
                yield target.staging
            except BaseException as error:
                self._clean_up(target, is_done=_is_done(error))
                raise
        self._clean_up(target, is_done=True)

    def _clean_up(self, target: WriteTarget, *, is_done: bool) -> None:
        """Remove the staging folder; a failure is logged, so that it never hides how the write itself ended."""
        try:
            self._clear(target)
            if target.file.exists():
                target.staging.rmdir()
        except (OSError, IntegrityError) as error:
            self._warn_of_leftovers(target, error, is_done=is_done)

    def _warn_of_leftovers(self, target: WriteTarget, error: OSError | IntegrityError, *, is_done: bool) -> None:
        if isinstance(error, OSError):
            reason = f"{error.strerror or error}. What is left does no harm; the next write removes it"
        else:
            reason = str(error).rstrip(".")
        # Ctrl-C may arrive before or after the commit, so "ended early" does not tell whether the line counts.
        outcome = "is done and must not be repeated" if is_done else "ended early"
        staging = self.layout.relative(target.staging)
        logger.warning("The write to %s %s; %s cannot be removed: %s.", target.label, outcome, staging, reason)

    def stage_line(self, target: WriteTarget, entry: log.Line) -> None:
        """Write a copy of the file with its next line to the staging folder."""
        old_data = plain_files.read_or_none(target.file, self.layout.root, target.max_bytes) or b""
        new_data = old_data + log.encode(entry)
        if len(new_data) > target.max_bytes:
            raise StorageError(
                f"Could not write to {target.label}: {self.layout.relative(target.file)} would have {len(new_data)} "
                f"bytes, and at most {target.max_bytes} are read. Go on under another name, or in a new registry."
            )
        atomic_io.write_new(target.staging / target.file.name, new_data, writable=True)
        # The staged file marks the next manifest as unfinished, so it must reach the disk before that manifest does.
        atomic_io.sync_folder(target.staging)

    def commit(self, target: WriteTarget, summary: str) -> None:
        """Rename the staged file over the old one, which makes the line count.

        Args:
            target: Target of the write.
            summary: Outcome for the error message, such as ``'digits:1' is published``.

        Raises:
            StorageError: If the file was renamed but a power cut may undo it; its ``is_done`` is True.
        """
        staged_file = target.staging / target.file.name
        status = os.lstat(staged_file)
        try:
            os.replace(staged_file, target.file)
        except OSError:
            # A network file system may rename the file and then lose the reply: the line counts nevertheless.
            if not _is_same_file(target.file, status):
                raise
        try:
            atomic_io.sync_folder(target.file.parent)
        except OSError as error:
            raise StorageError(
                f"{summary}, but the disk did not confirm it ({error.strerror}), so a power cut may undo it. Check the "
                f"disk, then run 'stablernn registry verify'.",
                is_done=True,
            ) from error

    def _clear(self, target: WriteTarget) -> None:
        """Remove what an unfinished write left behind; after a finished one, do nothing.

        If the staged file is still there, its line does not count, so the file that was put in place for that line is
        an orphan.
        """
        if not target.staging.is_dir():
            return
        if (target.staging / target.file.name).exists():
            # Removed and synced before the staged file is: after a kill in between, the next writer finds it again.
            orphan = target.find_orphan()
            if orphan is not None and orphan.exists():
                orphan.unlink()
                atomic_io.sync_folder(orphan.parent)
        for leftover in target.staging.iterdir():
            # Writers stage plain files only: a folder belongs to another program and is not ours to delete.
            if leftover.is_dir() and not leftover.is_symlink():
                stray = self.layout.relative(leftover)
                raise IntegrityError(f"{stray} does not belong in a registry: take it out before the next write.")
            leftover.unlink()
        # A folder that is not empty belongs to a published model.
        for folder in target.created_folders:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _is_done(error: BaseException) -> bool:
    return isinstance(error, StorageError) and error.is_done


def _is_same_file(path: Path, status: os.stat_result) -> bool:
    """Return whether a path leads to the file with this status, whatever its name was before."""
    try:
        return os.path.samestat(os.lstat(path), status)
    except OSError:
        # Without a file at the path, the rename has failed.
        return False
