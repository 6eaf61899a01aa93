"""How a log or the policy gets its next line: under a lock, staged and synced, then renamed over the old file.

A process that is killed before that rename has changed nothing; whoever writes next removes what it left. From the
rename on the write counts: what fails afterwards (removing the staging folder, releasing the lock) is logged as a
warning, since an error would make callers repeat a write that was done.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import filelock

from stablernn_registry import atomic_io, log, plain_files
from stablernn_registry.errors import IntegrityError, StorageError
from stablernn_registry.layout import MARKER, Layout

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WriteTarget:
    """What one lock guards: a model, or the policy.

    Attributes:
        what: As messages name it: ``'digits'``, ``the policy``.
        file: The file that grows by a line.
        lock: The lock file.
        staging: Folder that only the holder of the lock writes to.
        max_bytes: The largest size of the file that is read.
        guarded: Other places that a write reaches, none of which may be a link.
        folders: What a first write makes beside it, from the inside out; taken away again if it fails.
        orphan: Finds the file that a write puts in place before its line makes it count, if there is one.
    """

    what: str
    file: Path
    lock: Path
    staging: Path
    max_bytes: int
    guarded: tuple[Path, ...] = ()
    folders: tuple[Path, ...] = ()
    orphan: Callable[[], Path | None] = field(default=lambda: None)


@dataclass(frozen=True)
class Writer:
    """Writes below one root.

    Attributes:
        layout: Paths of the registry.
        exists: Whether the root is a registry; raises if it is something else.
        lock_timeout_seconds: How long a write waits for another write to the same place.
    """

    layout: Layout
    exists: Callable[[], bool]
    lock_timeout_seconds: float

    @contextmanager
    def locked(self, place: WriteTarget) -> Iterator[None]:
        """Hold the lock of a place."""
        self.exists()
        root = self.layout.root
        with atomic_io.explained(f"lock {place.what}", root):
            self.refuse_links(place.lock, place.staging, *place.guarded)
            if not place.lock.exists():
                # Says to verify, from before the lock is there, why there is a lock without what it guards.
                atomic_io.make_folders(place.staging)
            atomic_io.make_folders(self.layout.locks)
            lock = filelock.FileLock(place.lock)
            try:
                lock.acquire(timeout=self.lock_timeout_seconds)
            except filelock.Timeout as error:
                raise StorageError(
                    f"Another process has been writing to {place.what} for {self.lock_timeout_seconds:g} s "
                    f"({place.lock} is locked). Wait for it to end, then do it again."
                ) from error
        try:
            yield
        except BaseException as error:
            self._unlock(place, lock, is_done=_is_done(error))
            raise
        self._unlock(place, lock, is_done=True)

    def _unlock(self, place: WriteTarget, lock: filelock.BaseFileLock, *, is_done: bool) -> None:
        """Release a lock, after removing it together with the staging folder if there is nothing that it guards."""
        try:
            try:
                if not place.file.exists():
                    # A first write that failed must not leave traces of a model that never existed.
                    self._clear(place)
                    place.staging.rmdir()
                    place.lock.unlink()
            finally:
                lock.release()
        except (OSError, IntegrityError) as error:
            self._warn_of_leftovers(place, error, is_done=is_done)

    def refuse_links(self, *paths: Path) -> None:
        """Raise if a path, or a folder between it and the root, is a link: a write would change files elsewhere."""
        root = self.layout.root
        for path in paths:
            for part in (*reversed(path.relative_to(root).parents), path.relative_to(root)):
                if part != Path() and (root / part).is_symlink():
                    raise IntegrityError(
                        f"{part.as_posix()} is a link: a write would change files outside the registry {root}. "
                        f"Take it out; a registry holds no links."
                    )

    @contextmanager
    def staged(self, place: WriteTarget, action: str) -> Iterator[Path]:
        """A staging folder, empty at the start; gone at the end if the file exists, as it explains the lock if not.

        The caller holds the lock, and leaves the block without an exception only if the write is done.
        """
        with atomic_io.explained(action, self.layout.root):
            self._clear(place)
            atomic_io.make_folders(place.staging)
            try:
                if not self.exists():
                    atomic_io.write_new(place.staging / "registry.json", MARKER)
                    atomic_io.place(place.staging / "registry.json", self.layout.marker)
                yield place.staging
            except BaseException as error:
                self._unstage(place, is_done=_is_done(error))
                raise
        self._unstage(place, is_done=True)

    def _unstage(self, place: WriteTarget, *, is_done: bool) -> None:
        """Remove the staging folder; a failure to do so never hides how the write itself ended."""
        try:
            self._clear(place)
            if place.file.exists():
                place.staging.rmdir()
        except (OSError, IntegrityError) as error:
            self._warn_of_leftovers(place, error, is_done=is_done)

    def _warn_of_leftovers(self, place: WriteTarget, error: OSError | IntegrityError, *, is_done: bool) -> None:
        if isinstance(error, OSError):
            reason = f"{error.strerror or error}. What is left does no harm; the next write removes it"
        else:
            reason = str(error).rstrip(".")
        # Ctrl-C may come before or after the commit, so that an early end says nothing of whether the line counts.
        outcome = "is done and must not be repeated" if is_done else "ended early"
        staging = self.layout.relative(place.staging)
        logger.warning("The write to %s %s; %s cannot be removed: %s.", place.what, outcome, staging, reason)

    def stage_line(self, place: WriteTarget, entry: log.Line) -> None:
        """Write the file with its next line into the staging folder."""
        old = plain_files.read_or_none(place.file, self.layout.root, place.max_bytes) or b""
        new = old + log.encode(entry)
        if len(new) > place.max_bytes:
            raise StorageError(
                f"Could not write to {place.what}: {self.layout.relative(place.file)} would have {len(new)} bytes, and "
                f"at most {place.max_bytes} are read. Go on under another name, or in a new registry."
            )
        atomic_io.write_new(place.staging / place.file.name, new, writable=True)
        # It marks a manifest that comes next as unfinished, so it must be there first after a power cut too.
        atomic_io.sync_folder(place.staging)

    def commit(self, place: WriteTarget, done: str) -> None:
        """Rename the staged file over the old one: from here on the line counts.

        Raises:
            StorageError: If that cannot be relied on; ``done`` says what has happened all the same.
        """
        staged = place.staging / place.file.name
        status = os.lstat(staged)
        try:
            os.replace(staged, place.file)
        except OSError:
            # A network file system may rename the file and lose the answer: then the line counts all the same.
            if not _is_file(place.file, status):
                raise
        try:
            atomic_io.sync_folder(place.file.parent)
        except OSError as error:
            raise StorageError(
                f"{done}, but the disk did not confirm it ({error.strerror}), so a power cut may undo it. Check the "
                f"disk, then run 'stablernn registry verify'.",
                is_done=True,
            ) from error

    def _clear(self, place: WriteTarget) -> None:
        """Remove what a write that was not finished left behind; does nothing after one that was.

        A staged file that still lies there means that its line does not count, so what was put in place for it belongs
        to nobody. It is gone for good before the staged file is: a kill in between leaves the same picture.
        """
        if not place.staging.is_dir():
            return
        if (place.staging / place.file.name).exists():
            orphan = place.orphan()
            if orphan is not None and orphan.exists():
                orphan.unlink()
                atomic_io.sync_folder(orphan.parent)
        for leftover in place.staging.iterdir():
            if leftover.is_dir() and not leftover.is_symlink():
                stray = self.layout.relative(leftover)
                raise IntegrityError(f"{stray} does not belong in a registry: take it out before the next write.")
            leftover.unlink()
        for folder in place.folders:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _is_done(error: BaseException) -> bool:
    return isinstance(error, StorageError) and error.is_done


def _is_file(path: Path, status: os.stat_result) -> bool:
    """Return whether a path names the file that had this status under another name."""
    try:
        return os.path.samestat(os.lstat(path), status)
    except OSError:
        return False
