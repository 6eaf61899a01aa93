"""Verification of every byte below the root against the stored hashes.

Blobs are checked by the hash they are named after and by the manifests, manifests by the digests in the logs, logs and
the policy by their chains, and ``registry.json`` by its only possible content. Lock files must be empty. Anything else
is a stray.

Verification takes no lock and writes nothing. Since a write may be running, the order of its reads matters; comments
explain it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stablernn_registry import log
from stablernn_registry.errors import RESTORE, IntegrityError, RegistryError
from stablernn_registry.files import (
    FILESYSTEM_FOLDERS,
    MARKER,
    MAX_LOG_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_MARKER_BYTES,
    MAX_POLICY_BYTES,
    POLICY,
    SHA256,
    STAGED_NAME,
    STAGED_POLICY_NAME,
    Layout,
    NotPlainError,
    check_entry,
    hash_file,
    open_plain,
    read_or_none,
)
from stablernn_registry.log import History
from stablernn_registry.manifest import FileEntry, Manifest, verify_and_decode
from stablernn_registry.model_version import record_label
from stablernn_registry.policy import POLICY_LABEL, decode_policy, missing_policy_message
from stablernn_registry.refs import is_name


@dataclass(frozen=True)
class VerifyReport:
    """The result of ``verify``.

    Attributes:
        ref: Reference of the version that was checked, or the root if everything was.
        checked: Number of files that were read and compared.
        problems: Damage, one sentence each.
        notes: Remarks that are no problems, such as traces of a write that was interrupted or is still running.
    """

    ref: str
    checked: int
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True if there are no problems."""
        return not self.problems


@dataclass(frozen=True)
class _Owner:
    """A file of a version or of a record that refers to a blob."""

    ref: str
    label: str
    entry: FileEntry


@dataclass
class Verifier:
    """One pass over a registry, which collects problems instead of raising them.

    Attributes:
        layout: Paths of the registry.
        checked: Number of files that were read and compared so far.
        problems: Damage found so far.
        notes: Remarks so far.
    """

    layout: Layout
    checked: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _expected: dict[str, list[_Owner]] = field(default_factory=dict)
    _strays: set[str] = field(default_factory=set)

    def check_root(self) -> Sequence[str]:
        """Check the root's own files: ``registry.json``, the policy, ``locks``, ``tmp``, and that there are no others.

        Returns:
            Names of the models, including those of which only a lock file is left.
        """
        layout, names = self.layout, set()
        for entry in self._scan(layout.root):
            if entry.name in (layout.marker.name, layout.policy.name):
                self._require_file(entry)
            elif entry.name in {"blobs", "locks", "models", "tmp"} | FILESYSTEM_FOLDERS:
                self._require_folder(entry)
            else:
                self._report_stray(entry)
        # Before registry.json is read: the first write of all creates that file before these.
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
        self._check_policy()
        for entry in self._scan(layout.locks):
            if is_name(entry.name):
                names.add(entry.name)
            elif entry.name != POLICY:
                self._report_stray(entry)
                continue
            if self._require_file(entry) and self._read(layout.locks / entry.name, MAX_MARKER_BYTES):
                self.problems.append(f"locks/{entry.name} is not empty, a lock file always is: empty it.")
        for entry in self._scan(layout.tmp):
            if not is_name(entry.name) and entry.name != POLICY:
                self._report_stray(entry)
            elif self._require_folder(entry):
                self._report_staging(entry.name)
        for entry in self._scan(layout.models):
            if not is_name(entry.name):
                self._report_stray(entry)
            elif self._require_folder(entry):
                names.add(entry.name)
        return sorted(names)

    def check_model(self, name: str) -> History | None:
        """Check the log and the manifests of a model, and collect the blobs that they refer to.

        Returns:
            Replayed log, or None if there is none or it is damaged.
        """
        layout = self.layout
        for entry in self._scan(layout.model(name)):
            if entry.name == "log.jsonl":
                self._require_file(entry)
            elif entry.name == "versions":
                self._require_folder(entry)
            else:
                self._report_stray(entry)
        # First the manifests, then traces of a running write, then the log: a manifest that a running write has put in
        # place is either in the log by now, or its staged log was seen.
        manifests = [entry for entry in self._scan(layout.versions(name)) if self._require_file(entry)]
        has_staging_folder = layout.staging(name).exists()
        has_staged_log = (layout.staging(name) / "log.jsonl").exists()
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
        elif manifests and not has_staged_log:
            self.problems.append(f"The log of '{name}' ({layout.relative(layout.log(name))}) is missing. {RESTORE}.")
            return None
        elif not has_staging_folder and layout.lock(name).exists():
            # The lock is checked last, because a first write that fails removes it.
            self.problems.append(
                f"The model '{name}' is missing: locks/{name} is there, {layout.relative(layout.log(name))} is not. "
                f"{RESTORE}; if it was taken out on purpose, take out locks/{name} too."
            )
            return None
        published_names = {f"{number}.json" for number in history.digests}
        next_manifest = f"{history.highest + 1}.json"
        for entry in manifests:
            if entry.name not in published_names and not (has_staged_log and entry.name == next_manifest):
                self._report_stray(entry)
        for number, digest in history.digests.items():
            manifest = self._check_manifest(name, number, digest)
            self._expect_blobs(f"{name}:{number}", f"'{name}:{number}'", manifest.files if manifest else {})
        for record in history.records:
            ref = f"{name}:{record.version}"
            self._expect_blobs(ref, record_label(ref, record.kind), record.files)
        return history if data is not None else None

    def check_version_blobs(self, ref: str) -> None:
        """Check the blobs of a version and its records, after its model was checked.

        Args:
            ref: Reference ``NAME:VERSION``.
        """
        for sha256, owners in self._expected.items():
            if any(owner.ref == ref for owner in owners):
                self._check_blob(self.layout.blob(sha256))

    def check_all_blobs(self) -> None:
        """Check every blob on the disk, and that every blob which a version or record refers to exists."""
        layout = self.layout
        for entry in self._scan(layout.blobs.parent):
            if entry.name != layout.blobs.name:
                self._report_stray(entry)
            else:
                self._require_folder(entry)
        blob_names = set()
        for prefix in self._scan(layout.blobs):
            if not self._require_folder(prefix):
                continue
            for entry in self._scan(layout.blobs / prefix.name):
                if not SHA256.fullmatch(entry.name) or entry.name[:2] != prefix.name:
                    self._report_stray(entry)
                elif self._require_file(entry):
                    blob_names.add(entry.name)
                    self._check_blob(layout.blob(entry.name))
        # Those that the folders do not have: each is reported as missing.
        for sha256 in self._expected.keys() - blob_names:
            self._check_blob(layout.blob(sha256))
        if unused_count := len(blob_names - self._expected.keys()):
            self.notes.append(
                f"{unused_count} blob{'s belong' if unused_count > 1 else ' belongs'} to no version; they do no harm."
            )

    def _expect_blobs(self, ref: str, owner: str, files: Mapping[str, FileEntry]) -> None:
        for filename, entry in files.items():
            self._expected.setdefault(entry.sha256, []).append(_Owner(ref, f"'{filename}' of {owner}", entry))

    def _check_policy(self) -> None:
        layout = self.layout
        # First the lock, then traces of a running write, then the policy: of a first write that is running, either the
        # staging folder is seen or its result.
        has_lock = layout.lock(POLICY).exists()
        has_staging_folder = layout.staging(POLICY).exists()
        data = self._read(layout.policy, MAX_POLICY_BYTES)
        if data is not None:
            try:
                decode_policy(data, POLICY_LABEL)
            except RegistryError as error:
                self.problems.append(str(error))
        elif (
            has_lock and not has_staging_folder and not os.path.lexists(layout.policy) and layout.lock(POLICY).exists()
        ):
            # The lock is checked once more at the end, because a first write that fails removes it.
            self.problems.append(missing_policy_message(layout))

    def _check_manifest(self, name: str, number: int, digest: str) -> Manifest | None:
        path = self.layout.manifest(name, number)
        data = self._read(path, MAX_MANIFEST_BYTES)
        # Something else in its place was reported by the scan.
        if data is None and (self._is_stray(path) or self._is_stray(self.layout.versions(name))):
            return None
        try:
            return verify_and_decode(data, name, number, digest, self.layout.relative(path))
        except RegistryError as error:
            self.problems.append(str(error))
            return None

    def _check_blob(self, path: Path) -> None:
        relative_path = self.layout.relative(path)
        owners = self._expected.get(path.name, [])
        owner_text = ", ".join(owner.label for owner in owners) or "A blob"
        try:
            with open_plain(path, self.layout.root) as (file, length):
                expected = [owner.entry for owner in owners] or [FileEntry(bytes=length, sha256=path.name)]
                for entry in expected:
                    # Sizes first: a file of another size is not read, since it may be a sparse one of terabytes.
                    check_entry(FileEntry(bytes=length, sha256=entry.sha256), entry, f"{owner_text} ({relative_path})")
                actual = hash_file(file, length)
                for entry in expected:
                    check_entry(actual, entry, f"{owner_text} ({relative_path})")
        except (FileNotFoundError, NotADirectoryError):
            if owners:
                self.problems.append(
                    f"{owner_text} ({relative_path}) is missing. {RESTORE}, or publish the same file again."
                )
            return
        except NotPlainError as error:
            self._report_not_plain(error)
            return
        except IntegrityError as error:
            self.problems.append(str(error))
        except OSError as error:
            self.problems.append(f"{relative_path} cannot be read: {error.strerror}. {RESTORE}.")
            return
        self.checked += 1

    def _report_staging(self, name: str) -> None:
        staged_count, name_pattern = 0, STAGED_POLICY_NAME if name == POLICY else STAGED_NAME
        label = "the policy" if name == POLICY else f"'{name}'"
        for entry in self._scan(self.layout.staging(name)):
            if not name_pattern.fullmatch(entry.name):
                self._report_stray(entry)
            elif self._require_file(entry):
                staged_count += 1
        self.notes.append(
            f"tmp/{name} holds {staged_count} staged file{'' if staged_count == 1 else 's'}: a write to {label} is "
            f"running or was interrupted; the next write to it clears them."
        )

    def _read(self, path: Path, max_bytes: int) -> bytes | None:
        try:
            data = read_or_none(path, self.layout.root, max_bytes)
        except NotPlainError as error:
            self._report_not_plain(error)
            return None
        except IntegrityError as error:
            self.problems.append(str(error))
            return None
        except OSError as error:
            self.problems.append(f"{self.layout.relative(path)} cannot be read: {error.strerror}. {RESTORE}.")
            return None
        self.checked += data is not None
        return data

    def _report_not_plain(self, error: NotPlainError) -> None:
        # The scan of its folder has usually reported it as a stray already.
        if error.relative not in self._strays:
            self.problems.append(str(error))

    def _is_stray(self, path: Path) -> bool:
        return self.layout.relative(path) in self._strays

    def _scan(self, folder: Path) -> Iterator[os.DirEntry[str]]:
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):
            # Not created yet, or removed since it was listed. The scan of its parent reports a file in its place.
            return
        except OSError as error:
            self.problems.append(f"{self.layout.relative(folder)} cannot be read: {error.strerror}. {RESTORE}.")
            return
        yield from entries

    def _require_file(self, entry: os.DirEntry[str]) -> bool:
        if entry.is_file(follow_symlinks=False):
            return True
        self._report_stray(entry, " in place of a file")
        return False

    def _require_folder(self, entry: os.DirEntry[str]) -> bool:
        if entry.is_dir(follow_symlinks=False):
            return True
        self._report_stray(entry, " in place of a folder")
        return False

    def _report_stray(self, entry: os.DirEntry[str], detail: str = "") -> None:
        # A running write may have moved it since it was listed.
        if not os.path.lexists(entry.path):
            return
        relative_path = self.layout.relative(Path(entry.path))
        self._strays.add(relative_path)
        self.problems.append(f"{relative_path} does not belong in a registry{detail}: take it out.")
