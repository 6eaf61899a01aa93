"""What a registry hands out: models, and versions whose files are checked as they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from . import disk
from .errors import RESTORE, IntegrityError, UnknownRefError, near
from .journal import RecordEntry
from .layout import Layout
from .manifest import FileEntry, Manifest


@dataclass(frozen=True)
class ModelInfo:
    """One line of ``Registry.list``.

    Attributes:
        name: Name of the model.
        versions: Its version numbers, ascending.
        aliases: Version number by alias.
    """

    name: str
    versions: tuple[int, ...]
    aliases: dict[str, int]


@dataclass(frozen=True)
class Version:
    """One published version; its files never change.

    Attributes:
        name: Name of the model.
        version: Its number.
        digest: ``sha256:`` and the hash of its manifest file.
        manifest: What was published.
        aliases: Aliases that pointed here when it was looked up.
    """

    name: str
    version: int
    digest: str
    manifest: Manifest
    aliases: tuple[str, ...]
    _layout: Layout = field(repr=False)

    @property
    def ref(self) -> str:
        """``NAME:VERSION``."""
        return f"{self.name}:{self.version}"

    @property
    def _stored(self) -> StoredFiles:
        return StoredFiles(f"'{self.ref}'", self.manifest.files, self._layout)

    def path(self, filename: str) -> Path:
        """Returns where a file lies, for programs that must open it themselves; its content is not checked here.

        Raises:
            UnknownRefError: If the version has no such file.
            IntegrityError: If it is missing on disk or has another size.
        """
        return self._stored.path(filename)

    def read(self, filename: str) -> bytes:
        """Returns the bytes of a file, checked against the hash in the manifest.

        Raises:
            UnknownRefError: If the version has no such file.
            IntegrityError: If it is missing on disk or any byte differs.
        """
        return self._stored.read(filename)


@dataclass(frozen=True)
class Record:
    """What was recorded of a version after it was published.

    Attributes:
        ref: ``NAME:VERSION`` of the version.
        entry: The line of the log.
    """

    ref: str
    entry: RecordEntry
    _layout: Layout = field(repr=False)

    @property
    def _stored(self) -> StoredFiles:
        return StoredFiles(record_name(self.ref, self.entry.kind), self.entry.files, self._layout)

    def path(self, filename: str) -> Path:
        """As :meth:`Version.path`."""
        return self._stored.path(filename)

    def read(self, filename: str) -> bytes:
        """As :meth:`Version.read`; the hash is that in the log."""
        return self._stored.read(filename)


def record_name(ref: str, kind: str) -> str:
    """A record as messages name it."""
    return f"the record '{kind}' of '{ref}'"


@dataclass(frozen=True)
class StoredFiles:
    """Files among the blobs; each is checked as it is read.

    Attributes:
        owner: Whose they are, as messages name it.
        files: Size and hash by file name.
        layout: Paths of the registry.
    """

    owner: str
    files: Mapping[str, FileEntry]
    layout: Layout

    def path(self, filename: str) -> Path:
        """Returns where a file lies, if it has the right size."""
        entry = self._entry(filename)
        path = self.layout.blob(entry.sha256)
        with disk.explained(f"read '{filename}' of {self.owner}", self.layout.root):
            try:
                found = path.stat().st_size
            except FileNotFoundError as error:
                raise self._missing(filename, path) from error
        disk.check_bytes(FileEntry(bytes=found, sha256=entry.sha256), entry, self._what(filename, path))
        return path

    def read(self, filename: str) -> bytes:
        """Returns the bytes of a file, if their hash is the right one."""
        entry = self._entry(filename)
        path = self.layout.blob(entry.sha256)
        with disk.explained(f"read '{filename}' of {self.owner}", self.layout.root):
            data = disk.read_or_none(path)
        if data is None:
            raise self._missing(filename, path)
        found = FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        disk.check_bytes(found, entry, self._what(filename, path))
        return data

    def _entry(self, filename: str) -> FileEntry:
        if (entry := self.files.get(filename)) is None:
            raise UnknownRefError(
                f"{self.owner[0].upper()}{self.owner[1:]} has no file '{filename}'.{near(filename, self.files)} "
                f"It has {quoted(self.files)}."
            )
        return entry

    def _what(self, filename: str, path: Path) -> str:
        return f"'{filename}' of {self.owner} ({self.layout.relative(path)})"

    def _missing(self, filename: str, path: Path) -> IntegrityError:
        return IntegrityError(f"{self._what(filename, path)} is missing. {RESTORE}, or publish the same file again.")


def quoted(names: Iterable[str]) -> str:
    """Returns names as messages list them: ``'a', 'b'``."""
    return ", ".join(f"'{name}'" for name in sorted(names))
