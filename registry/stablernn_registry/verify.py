"""Checks every byte below the root against the hashes that lie there.

Blobs by the hash they are named after and by the manifests, manifests by the digests in the logs, logs and the policy
by their chains, ``registry.json`` by its only possible content, lock files by being empty; anything else is a stray.

It takes no lock and writes nothing. Where a write may be under way, the order of the looks matters and is explained.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stablernn_registry import atomic_io, log, plain_files, policy
from stablernn_registry.errors import RESTORE, IntegrityError, RegistryError
from stablernn_registry.layout import (
    FOREIGN,
    MARKER,
    MAX_LOG_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_MARKER_BYTES,
    MAX_POLICY_BYTES,
    POLICY,
    SHA256,
    STAGED,
    STAGED_POLICY,
    Layout,
)
from stablernn_registry.log import History
from stablernn_registry.manifest import FileEntry, Manifest
from stablernn_registry.manifest import checked as checked_manifest
from stablernn_registry.model_version import record_name
from stablernn_registry.refs import is_name


@dataclass(frozen=True)
class VerifyReport:
    """What ``verify`` found.

    Attributes:
        ref: The reference asked for, or the root where everything was checked.
        checked: Files that were read and compared.
        problems: One sentence each.
        notes: What is in order but worth knowing: traces of a write that was interrupted or is still running.
    """

    ref: str
    checked: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


@dataclass(frozen=True)
class _Owner:
    """One file of one version, or of a record of it, that a blob is wanted for."""

    ref: str
    what: str
    entry: FileEntry


@dataclass
class Verifier:
    """One pass over a registry; collects what it finds instead of raising.

    Attributes:
        layout: Paths of the registry.
        checked: Files that were read and compared so far.
        problems: Damage found so far.
        notes: Remarks so far.
    """

    layout: Layout
    checked: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _wanted: dict[str, list[_Owner]] = field(default_factory=dict)
    _strays: set[str] = field(default_factory=set)

    def root(self) -> Sequence[str]:
        """Check the root's own files: ``registry.json``, the policy, ``locks``, ``tmp``, and that there are no others.

        Returns:
            The names of the models, of those too that only a lock file tells of.
        """
        layout, names = self.layout, set()
        for entry in self._scan(layout.root):
            if entry.name in (layout.marker.name, layout.policy.name):
                self._file(entry)
            elif entry.name in {"blobs", "locks", "models", "tmp"} | FOREIGN:
                self._folder(entry)
            else:
                self._stray(entry)
        # Looked at before registry.json, which the first write of all makes before these.
        has_content = any(path.exists() for path in (layout.models, layout.blobs.parent, layout.policy))
        marker = self._read(layout.marker, MAX_MARKER_BYTES)
        if marker is not None and marker != MARKER:
            self.problems.append(
                f"registry.json is damaged, or written by a newer stablernn: its whole content should be "
                f"{MARKER.decode().strip()} and a newline."
            )
        if marker is None and has_content and not self._is_stray(layout.marker):
            self.problems.append(
                f"registry.json is missing: write {MARKER.decode().strip()} and a newline to {layout.marker}."
            )
        self._policy()
        for entry in self._scan(layout.locks):
            if is_name(entry.name):
                names.add(entry.name)
            elif entry.name != POLICY:
                self._stray(entry)
                continue
            if self._file(entry) and self._read(layout.locks / entry.name, MAX_MARKER_BYTES):
                self.problems.append(f"locks/{entry.name} is not empty, a lock file always is: empty it.")
        for entry in self._scan(layout.tmp):
            if not is_name(entry.name) and entry.name != POLICY:
                self._stray(entry)
            elif self._folder(entry):
                self._staging(entry.name)
        for entry in self._scan(layout.models):
            if not is_name(entry.name):
                self._stray(entry)
            elif self._folder(entry):
                names.add(entry.name)
        return sorted(names)

    def model(self, name: str) -> History | None:
        """Check log and manifests of one model, and notes which blobs its versions want.

        Returns:
            The replayed log, or None if there is none or it is damaged.
        """
        layout = self.layout
        for entry in self._scan(layout.model(name)):
            if entry.name == "log.jsonl":
                self._file(entry)
            elif entry.name == "versions":
                self._folder(entry)
            else:
                self._stray(entry)
        # First the manifests that are there, then whether a write is under way, then the log: a manifest that a running
        # write has put in place is then either in the log by now, or its staged log was seen.
        found = [entry for entry in self._scan(layout.versions(name)) if self._file(entry)]
        under_way = layout.staging(name).exists()
        unfinished = (layout.staging(name) / "log.jsonl").exists()
        data = self._read(layout.log(name), MAX_LOG_BYTES)
        history = History()
        if data is not None:
            try:
                history = log.decode(data, f"The log of '{name}' ({layout.relative(layout.log(name))})")
            except RegistryError as error:
                self.problems.append(str(error))
                return None
        elif self._is_stray(layout.log(name)) or self._is_stray(layout.model(name)):
            return None
        elif found and not unfinished:
            self.problems.append(f"The log of '{name}' ({layout.relative(layout.log(name))}) is missing. {RESTORE}.")
            return None
        elif not under_way and layout.lock(name).exists():
            # Looked at last: a first write that fails takes its lock away.
            self.problems.append(
                f"The model '{name}' is missing: locks/{name} is there, {layout.relative(layout.log(name))} is not. "
                f"{RESTORE}; if it was taken out on purpose, take out locks/{name} too."
            )
            return None
        published = {f"{number}.json" for number in history.digests}
        coming = f"{history.highest + 1}.json"
        for entry in found:
            if entry.name not in published and not (unfinished and entry.name == coming):
                self._stray(entry)
        for number, digest in history.digests.items():
            manifest = self._manifest(name, number, digest)
            self._want(f"{name}:{number}", f"'{name}:{number}'", manifest.files if manifest else {})
        for record in history.records:
            ref = f"{name}:{record.version}"
            self._want(ref, record_name(ref, record.kind), record.files)
        return history if data is not None else None

    def blobs_of(self, ref: str) -> None:
        """Check the blobs of a version and its records, of a model that was checked; given as ``NAME:VERSION``."""
        for sha256, owners in self._wanted.items():
            if any(owner.ref == ref for owner in owners):
                self._blob(self.layout.blob(sha256))

    def all_blobs(self) -> None:
        """Check every blob, wanted or not, and that every wanted one is there."""
        layout = self.layout
        for entry in self._scan(layout.blobs.parent):
            if entry.name != layout.blobs.name:
                self._stray(entry)
            else:
                self._folder(entry)
        seen = set()
        for prefix in self._scan(layout.blobs):
            if not self._folder(prefix):
                continue
            for entry in self._scan(layout.blobs / prefix.name):
                if not SHA256.fullmatch(entry.name) or entry.name[:2] != prefix.name:
                    self._stray(entry)
                elif self._file(entry):
                    seen.add(entry.name)
                    self._blob(layout.blob(entry.name))
        for sha256 in self._wanted.keys() - seen:
            self._blob(layout.blob(sha256))
        if spare := len(seen - self._wanted.keys()):
            self.notes.append(f"{spare} blob{'s belong' if spare > 1 else ' belongs'} to no version; they do no harm.")

    def _want(self, ref: str, owner: str, files: Mapping[str, FileEntry]) -> None:
        for filename, entry in files.items():
            self._wanted.setdefault(entry.sha256, []).append(_Owner(ref, f"'{filename}' of {owner}", entry))

    def _policy(self) -> None:
        layout = self.layout
        # First the lock, then whether a write is under way, then the policy: of a first write that is running, either
        # the staging folder is seen or what it wrote.
        locked = layout.lock(POLICY).exists()
        under_way = layout.staging(POLICY).exists()
        data = self._read(layout.policy, MAX_POLICY_BYTES)
        if data is not None:
            try:
                policy.decode(data, policy.WHERE)
            except RegistryError as error:
                self.problems.append(str(error))
        elif locked and not under_way and not os.path.lexists(layout.policy) and layout.lock(POLICY).exists():
            # Looked at last: a first write that fails takes its lock away.
            self.problems.append(policy.missing(layout))

    def _manifest(self, name: str, number: int, digest: str) -> Manifest | None:
        path = self.layout.manifest(name, number)
        data = self._read(path, MAX_MANIFEST_BYTES)
        if data is None and (self._is_stray(path) or self._is_stray(self.layout.versions(name))):
            return None
        try:
            return checked_manifest(data, name, number, digest, self.layout.relative(path))
        except RegistryError as error:
            self.problems.append(str(error))
            return None

    def _blob(self, path: Path) -> None:
        place = self.layout.relative(path)
        owners = self._wanted.get(path.name, [])
        who = ", ".join(owner.what for owner in owners) or "A blob"
        try:
            with plain_files.opened(path, self.layout.root) as (file, length):
                wanted = [owner.entry for owner in owners] or [FileEntry(bytes=length, sha256=path.name)]
                for entry in wanted:
                    # A file of another size is not read: it may be one of terabytes without content.
                    atomic_io.check_bytes(FileEntry(bytes=length, sha256=entry.sha256), entry, f"{who} ({place})")
                actual = plain_files.hash_of(file, length)
                for entry in wanted:
                    atomic_io.check_bytes(actual, entry, f"{who} ({place})")
        except (FileNotFoundError, NotADirectoryError):
            if owners:
                self.problems.append(f"{who} ({place}) is missing. {RESTORE}, or publish the same file again.")
            return
        except plain_files.NotPlainError as error:
            self._not_plain(error)
            return
        except IntegrityError as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(f"{place} cannot be read: {error.strerror}. {RESTORE}.")
            return
        self.checked += 1

    def _staging(self, name: str) -> None:
        staged, allowed = 0, STAGED_POLICY if name == POLICY else STAGED
        what = "the policy" if name == POLICY else f"'{name}'"
        for entry in self._scan(self.layout.staging(name)):
            if not allowed.fullmatch(entry.name):
                self._stray(entry)
            elif self._file(entry):
                staged += 1
        self.notes.append(
            f"tmp/{name} holds {staged} staged file{'' if staged == 1 else 's'}: a write to {what} is running or was "
            f"interrupted; the next write to it clears them."
        )

    def _read(self, path: Path, at_most: int) -> bytes | None:
        try:
            data = plain_files.read_or_none(path, self.layout.root, at_most)
        except plain_files.NotPlainError as error:
            self._not_plain(error)
            return None
        except IntegrityError as error:
            self.problems.append(str(error))
            return None
        except OSError as error:
            self.problems.append(f"{self.layout.relative(path)} cannot be read: {error.strerror}. {RESTORE}.")
            return None
        self.checked += data is not None
        return data

    def _not_plain(self, error: plain_files.NotPlainError) -> None:
        # Usually listed as a stray already, when the folder was looked through.
        if error.relative not in self._strays:
            self.problems.append(str(error))

    def _is_stray(self, path: Path) -> bool:
        return self.layout.relative(path) in self._strays

    def _scan(self, folder: Path) -> Iterator[os.DirEntry[str]]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            # Not there yet, or gone since it was listed; a file in place of a folder is reported where it is listed.
            return
        except OSError as error:
            self.problems.append(f"{self.layout.relative(folder)} cannot be read: {error.strerror}. {RESTORE}.")
            return
        yield from entries

    def _file(self, entry: os.DirEntry[str]) -> bool:
        if entry.is_file(follow_symlinks=False):
            return True
        self._stray(entry, " in place of a file")
        return False

    def _folder(self, entry: os.DirEntry[str]) -> bool:
        if entry.is_dir(follow_symlinks=False):
            return True
        self._stray(entry, " in place of a folder")
        return False

    def _stray(self, entry: os.DirEntry[str], what: str = "") -> None:
        # What a running write has moved away since it was listed is no stray.
        if not os.path.lexists(entry.path):
            return
        place = self.layout.relative(Path(entry.path))
        self._strays.add(place)
        self.problems.append(f"{place} does not belong in a registry{what}: take it out.")
