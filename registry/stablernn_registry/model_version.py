"""Models, versions and records. Their files are checked as they are read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from stablernn_registry.errors import RESTORE, IntegrityError, StorageError, UnknownRefError, did_you_mean
from stablernn_registry.files import (
    Layout,
    check_entry,
    file_size,
    hash_file,
    open_plain,
    translate_os_errors,
    write_stream,
)
from stablernn_registry.log import RecordEntry
from stablernn_registry.manifest import FileEntry, Manifest

MAX_READ_BYTES = 2**31
"""Maximum size of a file that is read into memory as a whole."""


@dataclass(frozen=True)
class ModelInfo:
    """One entry of ``Registry.list``.

    Attributes:
        name: Name of the model.
        versions: Version numbers, ascending.
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
        version: Number of the version.
        digest: ``sha256:`` and the hash of its manifest file.
        manifest: Manifest of the version.
        aliases: Aliases that pointed to the version when it was looked up.
    """

    name: str
    version: int
    digest: str
    manifest: Manifest
    aliases: tuple[str, ...]
    _layout: Layout = field(repr=False)

    @property
    def ref(self) -> str:
        """Reference ``NAME:VERSION``."""
        return f"{self.name}:{self.version}"

    @property
    def _stored_files(self) -> StoredFiles:
        return StoredFiles(f"'{self.ref}'", self.manifest.files, self._layout)

    def path(self, filename: str) -> Path:
        """Return the path of a file, for programs that must open it themselves; its content is not checked.

        Raises:
            UnknownRefError: If the version has no such file.
            IntegrityError: If it is missing on disk or has another size.
        """
        return self._stored_files.path(filename)

    def read(self, filename: str) -> bytes:
        """Return the bytes of a file, checked against the hash in the manifest.

        Raises:
            UnknownRefError: If the version has no such file.
            IntegrityError: If it is missing on disk or any byte differs.
            StorageError: If it is larger than 2 GiB, or than the available memory.
        """
        return self._stored_files.read(filename)

    def check(self, filename: str) -> None:
        """Check a file of any size against the hash in the manifest, in chunks.

        Raises:
            UnknownRefError: If the version has no such file.
            IntegrityError: If it is missing on disk or any byte differs.
        """
        self._stored_files.check(filename)


@dataclass(frozen=True)
class Record:
    """A report that was attached to a version after it was published.

    Attributes:
        ref: Reference ``NAME:VERSION`` of the version.
        entry: Line of the log.
    """

    ref: str
    entry: RecordEntry
    _layout: Layout = field(repr=False)

    @property
    def _stored_files(self) -> StoredFiles:
        return StoredFiles(record_label(self.ref, self.entry.kind), self.entry.files, self._layout)

    def path(self, filename: str) -> Path:
        """Return the path of a file, as :meth:`Version.path` does."""
        return self._stored_files.path(filename)

    def read(self, filename: str) -> bytes:
        """Return the bytes of a file, as :meth:`Version.read` does, checked against the hash in the log."""
        return self._stored_files.read(filename)


def record_label(ref: str, kind: str) -> str:
    """Return the name of a record in messages."""
    return f"the record '{kind}' of '{ref}'"


@dataclass(frozen=True)
class StoredFiles:
    """Files that are stored as blobs; each is checked as it is read.

    Attributes:
        owner: Name of their owner in messages.
        files: Size and hash by file name.
        layout: Paths of the registry.
    """

    owner: str
    files: Mapping[str, FileEntry]
    layout: Layout

    def path(self, filename: str) -> Path:
        """Return the path of a file after checking its size."""
        entry = self._find_entry(filename)
        path = self.layout.blob(entry.sha256)
        with translate_os_errors(f"read '{filename}' of {self.owner}", self.layout.root):
            try:
                length = file_size(path, self.layout.root)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise self._missing_error(filename, path) from error
        self._check_size(filename, path, length)
        return path

    def read(self, filename: str) -> bytes:
        """Return the bytes of a file after checking their hash."""
        entry = self._find_entry(filename)
        with self._open(filename) as file:
            if entry.bytes > MAX_READ_BYTES:
                raise self._too_large_error(filename, f"at most {MAX_READ_BYTES} are read into memory")
            try:
                data = file.read(entry.bytes)
            except MemoryError as error:
                # A container may have less memory than the fixed limit allows.
                raise self._too_large_error(filename, "there is not enough memory for them") from error
        actual = FileEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        check_entry(actual, entry, self._file_label(filename, self.layout.blob(entry.sha256)))
        return data

    def check(self, filename: str) -> None:
        """Check the hash of a file without holding the file in memory."""
        entry = self._find_entry(filename)
        with self._open(filename) as file:
            actual = hash_file(file, entry.bytes)
        check_entry(actual, entry, self._file_label(filename, self.layout.blob(entry.sha256)))

    def copy(self, filename: str, destination: Path) -> None:
        """Copy a file to a path that must not exist yet, and check the hash of the copied bytes."""
        entry = self._find_entry(filename)
        with self._open(filename) as file:
            actual = write_stream(file, destination, entry.bytes)
        check_entry(actual, entry, self._file_label(filename, self.layout.blob(entry.sha256)))

    @contextmanager
    def _open(self, filename: str) -> Iterator[BinaryIO]:
        """Open the blob of a file after checking its size."""
        path = self.layout.blob(self._find_entry(filename).sha256)
        with translate_os_errors(f"read '{filename}' of {self.owner}", self.layout.root):
            try:
                with open_plain(path, self.layout.root) as (file, length):
                    self._check_size(filename, path, length)
                    yield file
            except (FileNotFoundError, NotADirectoryError) as error:
                raise self._missing_error(filename, path) from error

    def _check_size(self, filename: str, path: Path, length: int) -> None:
        entry = self._find_entry(filename)
        # With the expected hash on both sides, only the sizes are compared.
        check_entry(FileEntry(bytes=length, sha256=entry.sha256), entry, self._file_label(filename, path))

    def _too_large_error(self, filename: str, reason: str) -> StorageError:
        size = self._find_entry(filename).bytes
        return StorageError(
            f"'{filename}' of {self.owner} cannot be read: it has {size} bytes, and {reason}. Read it piece by piece "
            "from the path that 'stablernn registry show' prints."
        )

    def _find_entry(self, filename: str) -> FileEntry:
        if (entry := self.files.get(filename)) is None:
            owner = self.owner[0].upper() + self.owner[1:]
            raise UnknownRefError(
                f"{owner} has no file '{filename}'.{did_you_mean(filename, self.files)} It has "
                f"{format_names(self.files)}."
            )
        return entry

    def _file_label(self, filename: str, path: Path) -> str:
        return f"'{filename}' of {self.owner} ({self.layout.relative(path)})"

    def _missing_error(self, filename: str, path: Path) -> IntegrityError:
        return IntegrityError(
            f"{self._file_label(filename, path)} is missing. {RESTORE}, or publish the same file again."
        )


def format_names(names: Iterable[str]) -> str:
    """Format names for a message: ``'a', 'b'``, sorted."""
    return ", ".join(f"'{name}'" for name in sorted(names))
