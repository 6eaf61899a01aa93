"""What a registry hands out: models, and versions whose files are checked as they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from stablernn_registry import atomic_io, plain_files
from stablernn_registry.errors import RESTORE, IntegrityError, StorageError, UnknownRefError, did_you_mean
from stablernn_registry.layout import Layout
from stablernn_registry.log import RecordEntry
from stablernn_registry.manifest import FileEntry, Manifest

MAX_READ_BYTES = 2**31
"""Size up to which a file is read into memory as a whole."""


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
        """Return where a file lies, for programs that must open it themselves; its content is not checked here.

        Raises:
            UnknownRefError: If the version has no such file.
            IntegrityError: If it is missing on disk or has another size.
        """
        return self._stored.path(filename)

    def read(self, filename: str) -> bytes:
        """Return the bytes of a file, checked against the hash in the manifest.

        Raises:
            UnknownRefError: If the version has no such file.
            IntegrityError: If it is missing on disk or any byte differs.
            StorageError: If it has more than 2 GiB, or than there is memory.
        """
        return self._stored.read(filename)

    def check(self, filename: str) -> None:
        """Check a file of any size against the hash in the manifest, a piece at a time.

        Raises:
            UnknownRefError: If the version has no such file.
            IntegrityError: If it is missing on disk or any byte differs.
        """
        self._stored.check(filename)


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
        """Return where a file lies, if it has the right size."""
        entry = self._entry(filename)
        path = self.layout.blob(entry.sha256)
        with atomic_io.explained(f"read '{filename}' of {self.owner}", self.layout.root):
            try:
                length = plain_files.size(path, self.layout.root)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise self._missing(filename, path) from error
        self._check_size(filename, path, length)
        return path

    def read(self, filename: str) -> bytes:
        """Return the bytes of a file, if their hash is the right one."""
        entry = self._entry(filename)
        with self._opened(filename) as file:
            if entry.bytes > MAX_READ_BYTES:
                raise self._too_large(filename, f"at most {MAX_READ_BYTES} are read into memory")
            try:
                data = file.read(entry.bytes)
            except MemoryError as error:
                raise self._too_large(filename, "there is not enough memory for them") from error
        actual = FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        atomic_io.check_bytes(actual, entry, self._what(filename, self.layout.blob(entry.sha256)))
        return data

    def check(self, filename: str) -> None:
        """Check a file as ``read`` does, without holding it in memory."""
        entry = self._entry(filename)
        with self._opened(filename) as file:
            actual = plain_files.hash_of(file, entry.bytes)
        atomic_io.check_bytes(actual, entry, self._what(filename, self.layout.blob(entry.sha256)))

    def copy(self, filename: str, target: Path) -> None:
        """Copy a file to one that must not exist yet; it is checked as ``check`` does while it is written."""
        entry = self._entry(filename)
        with self._opened(filename) as file:
            actual = atomic_io.write_from(file, target, entry.bytes)
        atomic_io.check_bytes(actual, entry, self._what(filename, self.layout.blob(entry.sha256)))

    @contextmanager
    def _opened(self, filename: str) -> Iterator[BinaryIO]:
        """The open blob of a file; it has the stated size."""
        path = self.layout.blob(self._entry(filename).sha256)
        with atomic_io.explained(f"read '{filename}' of {self.owner}", self.layout.root):
            try:
                with plain_files.opened(path, self.layout.root) as (file, length):
                    self._check_size(filename, path, length)
                    yield file
            except (FileNotFoundError, NotADirectoryError) as error:
                raise self._missing(filename, path) from error

    def _check_size(self, filename: str, path: Path, length: int) -> None:
        entry = self._entry(filename)
        atomic_io.check_bytes(FileEntry(bytes=length, sha256=entry.sha256), entry, self._what(filename, path))

    def _too_large(self, filename: str, reason: str) -> StorageError:
        size = self._entry(filename).bytes
        return StorageError(
            f"'{filename}' of {self.owner} cannot be read: it has {size} bytes, and {reason}. Read it piece by piece "
            "from the path that 'stablernn registry show' prints."
        )

    def _entry(self, filename: str) -> FileEntry:
        if (entry := self.files.get(filename)) is None:
            owner = self.owner[0].upper() + self.owner[1:]
            raise UnknownRefError(
                f"{owner} has no file '{filename}'.{did_you_mean(filename, self.files)} It has "
                f"{format_names(self.files)}."
            )
        return entry

    def _what(self, filename: str, path: Path) -> str:
        return f"'{filename}' of {self.owner} ({self.layout.relative(path)})"

    def _missing(self, filename: str, path: Path) -> IntegrityError:
        return IntegrityError(f"{self._what(filename, path)} is missing. {RESTORE}, or publish the same file again.")


def format_names(names: Iterable[str]) -> str:
    """Return names as messages list them: ``'a', 'b'``."""
    return ", ".join(f"'{name}'" for name in sorted(names))
