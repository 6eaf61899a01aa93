"""Reads of logs, manifests and the policy below one root, and the steps that all writes share.

A write adds the next line of a log or of the policy: under a lock, staged and synced, then renamed over the old file. A
process that is killed before the rename has changed nothing; the next writer removes what it left. After the rename the
line counts. Later failures, in removing the staging folder or releasing the lock, are logged as warnings, because an
error would make callers repeat a finished write.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from stablernn_registry import atomic_io
from stablernn_registry.errors import IntegrityError, ManifestError, StorageError, UnknownRefError, did_you_mean
from stablernn_registry.files import (
    FILESYSTEM_FOLDERS,
    MARKER,
    MAX_LOG_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_MARKER_BYTES,
    MAX_POLICY_BYTES,
    POLICY,
    SCHEMA,
    Layout,
    copy_new,
    read_or_none,
    translate_os_errors,
)
from stablernn_registry.log import History, Line, LogCache, encode
from stablernn_registry.manifest import FileEntry, check_filenames, verify_and_decode
from stablernn_registry.model_version import Version, format_names
from stablernn_registry.policy import POLICY_LABEL, Policy, decode_policy, missing_policy_message
from stablernn_registry.refs import Ref, is_name

if TYPE_CHECKING:
    import filelock
logger = logging.getLogger(__name__)

ENVIRONMENT_VARIABLE = "STABLERNN_REGISTRY"
_MAX_LISTED_NAMES = 8
"""Number of models up to which an error lists them all."""


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
        with translate_os_errors(f"lock {target.label}", root):
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
        with translate_os_errors(action, self.layout.root):
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

    def stage_line(self, target: WriteTarget, entry: Line) -> None:
        """Write a copy of the file with its next line to the staging folder."""
        old_data = read_or_none(target.file, self.layout.root, target.max_bytes) or b""
        new_data = old_data + encode(entry)
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


class Storage:
    """The files below one root. Readers take no lock: a log is always whole, and what it names never changes.

    Attributes:
        root: Folder of the registry.
        layout: Paths below it.
        writer: Writes below it.
    """

    def __init__(self, root: Path, lock_timeout_seconds: float) -> None:
        self.root = root
        self.layout = Layout(root)
        self.writer = Writer(self.layout, self.exists, lock_timeout_seconds)
        self._logs = LogCache()

    def exists(self) -> bool:
        """Return whether the root is a registry; False if nothing is there yet.

        Raises:
            StorageError: If the root is something else.
            IntegrityError: If ``registry.json`` is damaged or missing.
        """
        with translate_os_errors("open it", self.root):
            marker = read_or_none(self.layout.marker, self.root, MAX_MARKER_BYTES)
            if marker is None:
                if not self.root.exists():
                    return False
                if not self.root.is_dir():
                    raise StorageError(f"The registry {self.root} is a file, not a folder. Choose a folder.")
                # A first write creates locks and tmp before registry.json.
                names = {entry.name for entry in self.root.iterdir()} - FILESYSTEM_FOLDERS - {"locks", "tmp"}
                # Read again: another process may have published the first version since the first read.
                marker = read_or_none(self.layout.marker, self.root, MAX_MARKER_BYTES)
                if marker is None and not names:
                    return False
                # With content of ours the registry is damaged; otherwise the folder is not a registry.
                if marker is None and not names & {"models", "blobs", "policy.jsonl"}:
                    contents = format_names(sorted(names)[:5]) + (
                        f" and {len(names) - 5} more" if len(names) > 5 else ""
                    )
                    raise StorageError(
                        f"{self.root} is not a registry: it has no registry.json but holds {contents}. "
                        f"Point {ENVIRONMENT_VARIABLE} to a registry, or to a new or empty folder."
                    )
        if marker is None:
            raise IntegrityError(
                f"The registry {self.root} has lost its registry.json. Restore it: its whole content is "
                f"{MARKER.decode().strip()} and a newline."
            )
        if marker != MARKER:
            raise IntegrityError(
                f"registry.json of the registry {self.root} is damaged, or written by a newer stablernn. With schema "
                f"{SCHEMA} its whole content is {MARKER.decode().strip()} and a newline."
            )
        return True

    def names(self) -> tuple[str, ...]:
        """Return the names of all published models, sorted."""
        if not self.exists():
            return ()
        with translate_os_errors("list the models", self.root):
            try:
                candidates = [entry.name for entry in self.layout.models.iterdir() if is_name(entry.name)]
            except FileNotFoundError:
                # A registry that has a policy but no models yet.
                return ()
            # A model exists from the rename of its log on; its folder is created before.
            return tuple(name for name in sorted(candidates) if self.layout.log(name).exists())

    def history(self, name: str) -> History | None:
        """Return the replayed log of a model, or None if nothing was published under that name.

        The history is shared with the cache and must not be changed.

        Raises:
            IntegrityError: If the log is damaged.
        """
        if not self.exists():
            return None
        path = self.layout.log(name)
        with translate_os_errors(f"read '{name}'", self.root):
            return self._logs.read(path, self.root, f"The log of '{name}' ({self.layout.relative(path)})")

    def existing_history(self, name: str) -> History:
        """Return the replayed log of a model that must exist.

        Raises:
            UnknownRefError: If there is no such model.
            IntegrityError: If the log is damaged.
        """
        if (history := self.history(name)) is not None:
            return history
        if not self.exists():
            raise UnknownRefError(
                f"Unknown model '{name}': the registry {self.root} is empty. Publish a model, or point "
                f"{ENVIRONMENT_VARIABLE} to the registry that has it."
            )
        names = self.names()
        names_text = (
            format_names(names) or "no models"
            if len(names) <= _MAX_LISTED_NAMES
            else f"{len(names)} models, see 'stablernn registry list'"
        )
        raise UnknownRefError(
            f"Unknown model '{name}' in the registry {self.root}.{did_you_mean(name, names)} It has {names_text}."
        )

    @staticmethod
    def resolve(ref: Ref, history: History) -> int:
        """Return the number of the version that a reference names.

        Raises:
            UnknownRefError: If the model has no such version or alias.
        """
        if ref.alias is not None:
            if (version := history.aliases.get(ref.alias)) is None:
                available_text = f"It has {format_names(history.aliases)}." if history.aliases else "It has no aliases."
                hint = did_you_mean(ref.alias, history.aliases)
                raise UnknownRefError(f"Model '{ref.name}' has no alias '{ref.alias}'.{hint} {available_text}")
            return version
        number = ref.version or history.highest
        if number not in history.digests:
            available_text = "only version 1" if history.highest == 1 else f"versions 1 to {history.highest}"
            raise UnknownRefError(f"Model '{ref.name}' has no version {number}, it has {available_text}.")
        return number

    def get(self, ref: Ref) -> Version:
        """Return a version after checking its manifest against the digest in the log.

        Raises:
            UnknownRefError: If there is no such model, version or alias.
            IntegrityError: If the log or the manifest is damaged.
        """
        history = self.existing_history(ref.name)
        number = self.resolve(ref, history)
        path = self.layout.manifest(ref.name, number)
        with translate_os_errors(f"read '{ref}'", self.root):
            data = read_or_none(path, self.root, MAX_MANIFEST_BYTES)
        manifest = verify_and_decode(data, ref.name, number, history.digests[number], self.layout.relative(path))
        return Version(
            ref.name, number, history.digests[number], manifest, history.aliases_of(number), _layout=self.layout
        )

    def policy(self) -> Policy:
        """Return the policy for aliases; it is empty if no rules were set.

        Raises:
            IntegrityError: If ``policy.jsonl`` is damaged or missing: no alias may move under unknown rules.
        """
        if not self.exists():
            return Policy()
        layout = self.layout
        with translate_os_errors("read the policy", self.root):
            data = read_or_none(layout.policy, self.root, MAX_POLICY_BYTES)
            if data is None and layout.lock(POLICY).exists() and not layout.staging(POLICY).exists():
                # Its lock outlives the policy, so this one is lost, unless a first line was written since: read again.
                data = read_or_none(layout.policy, self.root, MAX_POLICY_BYTES)
                if data is None and layout.lock(POLICY).exists():
                    raise IntegrityError(missing_policy_message(layout))
        return Policy() if data is None else decode_policy(data, POLICY_LABEL)

    def write_target(self, name: str) -> WriteTarget:
        """Return the target of a write to a model."""
        layout = self.layout

        def find_orphan() -> Path:
            # Called only while a staged log exists: the write did not finish, and no log names this manifest.
            return layout.manifest(name, (self.history(name) or History()).highest + 1)

        return WriteTarget(
            label=f"'{name}'",
            file=layout.log(name),
            lock=layout.lock(name),
            staging=layout.staging(name),
            max_bytes=MAX_LOG_BYTES,
            checked_folders=(layout.versions(name), layout.blobs),
            created_folders=(layout.versions(name), layout.model(name)),
            find_orphan=find_orphan,
        )

    def install_blobs(self, staging: Path, entries: Mapping[str, FileEntry]) -> None:
        """Rename staged files to their blobs. An existing blob is replaced, too, which repairs a damaged one."""
        # Not strict: the staged paths never end.
        for staged_file, entry in zip(staged_paths(staging), entries.values(), strict=False):
            blob = self.layout.blob(entry.sha256)
            self.writer.refuse_links(blob.parent)
            atomic_io.make_folders(blob.parent)
            atomic_io.rename_and_sync(staged_file, blob)


def staged_paths(staging: Path) -> Iterator[Path]:
    """Yield paths for files in a staging folder, without end, in the order of the entries of a manifest."""
    return (staging / f"file-{index}" for index in count())


def check_sources(files: Mapping[str, str | Path], empty_message: str) -> dict[str, Path]:
    """Return the paths of files to copy, sorted by name.

    Args:
        files: Path of each file, by its name in the version.
        empty_message: Error message if there are no files.

    Raises:
        ManifestError: If a file is missing or badly named, or there are no files.
    """
    if not files:
        raise ManifestError(empty_message)
    check_filenames(sorted(files))
    sources = {filename: Path(files[filename]) for filename in sorted(files)}
    for filename, source in sources.items():
        if not source.is_file():
            raise ManifestError(f"Cannot publish '{filename}': there is no file {source}.")
    return sources


def stage_files(staging: Path, sources: Mapping[str, Path]) -> dict[str, FileEntry]:
    """Copy files to a staging folder, and return their sizes and hashes by name."""
    return {
        filename: copy_new(source, staged_file, filename)
        for (filename, source), staged_file in zip(sources.items(), staged_paths(staging), strict=False)
    }
