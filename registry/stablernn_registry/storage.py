"""Reads what lies below one root: logs, manifests and the policy; and says what a write to a model touches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

from stablernn_registry import atomic_io, plain_files
from stablernn_registry import policy as rulebook
from stablernn_registry.errors import IntegrityError, ManifestError, StorageError, UnknownRefError, did_you_mean
from stablernn_registry.layout import (
    FOREIGN,
    MARKER,
    MAX_LOG_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_MARKER_BYTES,
    MAX_POLICY_BYTES,
    POLICY,
    SCHEMA,
    Layout,
)
from stablernn_registry.log import History
from stablernn_registry.log_cache import LogCache
from stablernn_registry.manifest import FileEntry, check_filenames, checked
from stablernn_registry.model_version import Version, format_names
from stablernn_registry.policy import Policy
from stablernn_registry.refs import Ref, is_name
from stablernn_registry.transaction import Writer, WriteTarget

ENVIRONMENT = "STABLERNN_REGISTRY"
_LISTED_NAMES = 8
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
        with atomic_io.explained("open it", self.root):
            marker = plain_files.read_or_none(self.layout.marker, self.root, MAX_MARKER_BYTES)
            if marker is None:
                if not self.root.exists():
                    return False
                if not self.root.is_dir():
                    raise StorageError(f"The registry {self.root} is a file, not a folder. Choose a folder.")
                names = {entry.name for entry in self.root.iterdir()} - FOREIGN - {"locks", "tmp"}
                # Read again: the first version may have been published between the two looks.
                marker = plain_files.read_or_none(self.layout.marker, self.root, MAX_MARKER_BYTES)
                if marker is None and not names:
                    return False
                if marker is None and not names & {"models", "blobs", "policy.jsonl"}:
                    contents = format_names(sorted(names)[:5]) + (
                        f" and {len(names) - 5} more" if len(names) > 5 else ""
                    )
                    raise StorageError(
                        f"{self.root} is not a registry: it has no registry.json but holds {contents}. "
                        f"Point {ENVIRONMENT} to a registry, or to a new or empty folder."
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
        with atomic_io.explained("list the models", self.root):
            try:
                candidates = [entry.name for entry in self.layout.models.iterdir() if is_name(entry.name)]
            except FileNotFoundError:
                return ()
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
        with atomic_io.explained(f"read '{name}'", self.root):
            return self._logs.read(path, self.root, f"The log of '{name}' ({self.layout.relative(path)})")

    def existing_history(self, name: str) -> History:
        """Return the replayed log of a model; as :meth:`history` otherwise.

        Raises:
            UnknownRefError: If there is no such model.
        """
        if (history := self.history(name)) is not None:
            return history
        if not self.exists():
            raise UnknownRefError(
                f"Unknown model '{name}': the registry {self.root} is empty. Publish a model, or point {ENVIRONMENT} "
                f"to the registry that has it."
            )
        names = self.names()
        listing = (
            format_names(names)
            if len(names) <= _LISTED_NAMES
            else f"{len(names)} models, see 'stablernn registry list'"
        )
        raise UnknownRefError(
            f"Unknown model '{name}' in the registry {self.root}.{did_you_mean(name, names)} It has {listing}."
        )

    @staticmethod
    def resolve(ref: Ref, history: History) -> int:
        """Return the number of the version that a reference names.

        Raises:
            UnknownRefError: If the model has no such version or alias.
        """
        if ref.alias is not None:
            if (version := history.aliases.get(ref.alias)) is None:
                has = f"It has {format_names(history.aliases)}." if history.aliases else "It has no aliases."
                raise UnknownRefError(
                    f"Model '{ref.name}' has no alias '{ref.alias}'.{did_you_mean(ref.alias, history.aliases)} {has}"
                )
            return version
        number = ref.version or history.highest
        if number not in history.digests:
            has = "only version 1" if history.highest == 1 else f"versions 1 to {history.highest}"
            raise UnknownRefError(f"Model '{ref.name}' has no version {number}, it has {has}.")
        return number

    def get(self, ref: Ref) -> Version:
        """Return a version, its manifest checked against the digest in the log.

        Raises:
            UnknownRefError: If there is no such model, version or alias.
            IntegrityError: If the log or the manifest is damaged.
        """
        history = self.existing_history(ref.name)
        number = self.resolve(ref, history)
        path = self.layout.manifest(ref.name, number)
        with atomic_io.explained(f"read '{ref}'", self.root):
            data = plain_files.read_or_none(path, self.root, MAX_MANIFEST_BYTES)
        manifest = checked(data, ref.name, number, history.digests[number], self.layout.relative(path))
        return Version(
            ref.name, number, history.digests[number], manifest, history.aliases_of(number), _layout=self.layout
        )

    def policy(self) -> Policy:
        """Return what the aliases may point to; empty if no rules were set.

        Raises:
            IntegrityError: If ``policy.jsonl`` is damaged or missing: no alias moves by rules that are not known.
        """
        if not self.exists():
            return Policy()
        layout = self.layout
        with atomic_io.explained("read the policy", self.root):
            data = plain_files.read_or_none(layout.policy, self.root, MAX_POLICY_BYTES)
            if data is None and layout.lock(POLICY).exists() and not layout.staging(POLICY).exists():
                # Read again: the first line may have been written between the two reads.
                data = plain_files.read_or_none(layout.policy, self.root, MAX_POLICY_BYTES)
                if data is None and layout.lock(POLICY).exists():
                    raise IntegrityError(rulebook.missing(layout))
        return Policy() if data is None else rulebook.decode(data, rulebook.WHERE)

    def write_target(self, name: str) -> WriteTarget:
        """Return what a write to a model touches."""
        layout = self.layout

        def orphan() -> Path:
            # The staged log is still there, so the write did not finish, and no log names this manifest.
            return layout.manifest(name, (self.history(name) or History()).highest + 1)

        return WriteTarget(
            what=f"'{name}'",
            file=layout.log(name),
            lock=layout.lock(name),
            staging=layout.staging(name),
            max_bytes=MAX_LOG_BYTES,
            guarded=(layout.versions(name), layout.blobs),
            folders=(layout.versions(name), layout.model(name)),
            orphan=orphan,
        )

    def place_files(self, staging: Path, entries: Mapping[str, FileEntry]) -> None:
        """Rename staged files to their blobs. A blob that exists is replaced too, which repairs one that is damaged."""
        for staged, entry in zip(staged_paths(staging), entries.values(), strict=False):
            blob = self.layout.blob(entry.sha256)
            self.writer.refuse_links(blob.parent)
            atomic_io.make_folders(blob.parent)
            atomic_io.place(staged, blob)


def staged_paths(staging: Path) -> Iterator[Path]:
    """Yield paths for files in a staging folder, in the order of the entries of a manifest."""
    return (staging / f"file-{index}" for index in count())


def check_sources(files: Mapping[str, str | Path], none: str) -> dict[str, Path]:
    """Return the paths of files to copy, sorted by name.

    Args:
        files: Path of each file by its name in the version.
        none: Error message if there are no files.

    Raises:
        ManifestError: If a file is missing, badly named or there is none.
    """
    if not files:
        raise ManifestError(none)
    check_filenames(sorted(files))
    sources = {filename: Path(files[filename]) for filename in sorted(files)}
    for filename, source in sources.items():
        if not source.is_file():
            raise ManifestError(f"Cannot publish '{filename}': there is no file {source}.")
    return sources


def stage_files(staging: Path, sources: Mapping[str, Path]) -> dict[str, FileEntry]:
    """Copy files into a staging folder, and return their sizes and hashes by name."""
    return {
        filename: atomic_io.copy_new(source, staged, filename)
        for (filename, source), staged in zip(sources.items(), staged_paths(staging), strict=False)
    }
