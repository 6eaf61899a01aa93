"""Access to the files below one root: reads of logs, manifests and the policy, and steps that writes share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

from stablernn_registry import atomic_io
from stablernn_registry.disk import plain_files
from stablernn_registry.disk.layout import (
    FILESYSTEM_FOLDERS,
    MARKER,
    MAX_LOG_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_MARKER_BYTES,
    MAX_POLICY_BYTES,
    POLICY,
    SCHEMA,
    Layout,
)
from stablernn_registry.disk.transaction import Writer, WriteTarget
from stablernn_registry.documents.manifest import FileEntry, check_filenames, verify_and_decode
from stablernn_registry.errors import IntegrityError, ManifestError, StorageError, UnknownRefError, did_you_mean
from stablernn_registry.log import History
from stablernn_registry.log_cache import LogCache
from stablernn_registry.model_version import Version, format_names
from stablernn_registry.policy import POLICY_LABEL, Policy, decode_policy, missing_policy_message
from stablernn_registry.refs import Ref, is_name

ENVIRONMENT_VARIABLE = "STABLERNN_REGISTRY"
_MAX_LISTED_NAMES = 8
"""Number of models up to which an error lists them all."""


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
        with plain_files.translate_os_errors("open it", self.root):
            marker = plain_files.read_or_none(self.layout.marker, self.root, MAX_MARKER_BYTES)
            if marker is None:
                if not self.root.exists():
                    return False
                if not self.root.is_dir():
                    raise StorageError(f"The registry {self.root} is a file, not a folder. Choose a folder.")
                # A first write creates locks and tmp before registry.json.
                names = {entry.name for entry in self.root.iterdir()} - FILESYSTEM_FOLDERS - {"locks", "tmp"}
                # Read again: another process may have published the first version since the first read.
                marker = plain_files.read_or_none(self.layout.marker, self.root, MAX_MARKER_BYTES)
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
        with plain_files.translate_os_errors("list the models", self.root):
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
        with plain_files.translate_os_errors(f"read '{name}'", self.root):
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
        with plain_files.translate_os_errors(f"read '{ref}'", self.root):
            data = plain_files.read_or_none(path, self.root, MAX_MANIFEST_BYTES)
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
        with plain_files.translate_os_errors("read the policy", self.root):
            data = plain_files.read_or_none(layout.policy, self.root, MAX_POLICY_BYTES)
            if data is None and layout.lock(POLICY).exists() and not layout.staging(POLICY).exists():
                # Its lock outlives the policy, so this one is lost, unless a first line was written since: read again.
                data = plain_files.read_or_none(layout.policy, self.root, MAX_POLICY_BYTES)
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
        filename: plain_files.copy_new(source, staged_file, filename)
        for (filename, source), staged_file in zip(sources.items(), staged_paths(staging), strict=False)
    }
