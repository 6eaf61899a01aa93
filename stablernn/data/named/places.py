"""Locations of the files of named datasets, and verification of their checksums."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from stablernn import errors
from stablernn.data.files import read_bytes

MIB = 2**20
#: File name endings of a file as it is and compressed.
COMPRESSIONS = ("", ".gz", ".xz")


@dataclass(frozen=True)
class DataFile:
    """One file of a dataset.

    Attributes:
        name: Published name without the ending of a compression.
        checksum: ``sha256:`` or ``md5:`` of its decompressed content; None if none was published.
        address: URL of the file or of its archive; None if its terms do not allow an automatic download.
        max_bytes: Maximum size of the download.
        member: Path in the archive at the address; None if the address is that of the file itself.
        archive_checksum: Checksum of that archive as downloaded.
        is_optional: Whether the dataset can be used in part without this file.
        also: Other names under which the file is searched for.
        packed: Whether it may be compressed; False for a folder.
        digest: Function that computes the checksum, for data that are not the content of one file.
    """

    name: str
    checksum: str | None = None
    address: str | None = None
    max_bytes: int = 64 * MIB
    member: str | None = None
    archive_checksum: str | None = None
    is_optional: bool = False
    also: tuple[str, ...] = ()
    packed: bool = True
    digest: Callable[[Path], str] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names under which the file is searched for."""
        endings = COMPRESSIONS if self.packed else ("",)
        return tuple(name + ending for name in (self.name, *self.also) for ending in endings)


def user_folder() -> Path:
    """Return the data folder of the user: ``STABLERNN_DATA``, or the default of this system."""
    path = os.environ.get("STABLERNN_DATA")
    return Path(path) if path else platformdirs.user_data_path("stablernn", appauthor=False) / "data"


def cache_folder() -> Path:
    """Return the folder of downloads if the data folder cannot be used: ``STABLERNN_CACHE/datasets``."""
    path = os.environ.get("STABLERNN_CACHE")
    cache = Path(path) if path else platformdirs.user_cache_path("stablernn", appauthor=False)
    return cache / "datasets"


def download_folder(folders: Sequence[str]) -> Path:
    """Return the folder for downloads: in the data folder if it is set and writable, else in the cache."""
    if os.environ.get("STABLERNN_DATA") and os.access(user_folder(), os.W_OK):
        return user_folder() / folders[0]
    return cache_folder() / folders[0]


def find(file: DataFile, folders: Sequence[str]) -> Path | None:
    """Return the path of a file; None if it is missing."""
    # The data folder of the user takes precedence over downloads in the cache.
    roots = (user_folder(), cache_folder())
    candidates = (root / folder / name for root in roots for folder in folders for name in file.names)
    return next((path for path in candidates if path.exists()), None)


def presence(files: Sequence[DataFile], folders: Sequence[str]) -> str:
    """Return ``yes``, ``partly`` or ``no`` for the presence of the files of a dataset."""
    paths = [find(file, folders) for file in files]
    return "yes" if None not in paths else "partly" if any(paths) else "no"


def read_verified(key: str, file: DataFile, path: Path) -> bytes:
    """Read and decompress a file and verify its checksum.

    Raises:
        DataError: If the checksum differs, or the file cannot be read.
    """
    content = read_bytes(path)
    if file.checksum is not None:
        check_digest(key, file.checksum, digest(content, file.checksum), path)
    return content


def digest(content: bytes, reference: str) -> str:
    """Return the checksum of the content by the algorithm of a reference checksum."""
    algorithm = reference.partition(":")[0]
    # Not for security, so that MD5 works where policy disables it for that use.
    return f"{algorithm}:{hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()}"


def check_digest(key: str, expected: str, actual: str, path: Path) -> None:
    """Compare the checksum of a file with the published one.

    Raises:
        DataError: If the two checksums differ.
    """
    if actual != expected:
        raise errors.DataError(
            f"'{key}': '{path.name}' is not what was published ({actual}, published {expected}). "
            f"Remove '{path}' and fetch it again."
        )
