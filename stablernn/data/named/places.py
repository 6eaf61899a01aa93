"""Where files of named datasets lie, and whether they are what was published."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from stablernn import errors
from stablernn.data.readers.paths import read_bytes

MIB = 2**20
#: Endings under which a file is taken for the same file, and decompressed.
COMPRESSIONS = ("", ".gz", ".xz")


@dataclass(frozen=True)
class DataFile:
    """One file of a dataset.

    Attributes:
        name: As its home calls it, without the ending of a compression.
        checksum: ``sha256:`` or ``md5:`` of its decompressed content; None where none was published.
        address: Where its home has it; None where its terms let nobody fetch it for the user.
        most_bytes: More than this is not read from the address.
        member: Its path in the archive that the address has; None where the address has the file itself.
        archive_checksum: As ``checksum``, of that archive as it comes.
        may_miss: Whether a set without it is a set in part, and not none.
        also: Other names under which it may lie.
        packed: Whether it may be compressed; a folder is not.
        digest: Computes what the checksum is compared with, for what is not the content of one file.
    """

    name: str
    checksum: str | None = None
    address: str | None = None
    most_bytes: int = 64 * MIB
    member: str | None = None
    archive_checksum: str | None = None
    may_miss: bool = False
    also: tuple[str, ...] = ()
    packed: bool = True
    digest: Callable[[Path], str] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Every name under which it is looked for."""
        endings = COMPRESSIONS if self.packed else ("",)
        return tuple(name + ending for name in (self.name, *self.also) for ending in endings)


def user_folder() -> Path:
    """The user's own folder of data: ``STABLERNN_DATA``, or where this system keeps such things."""
    given = os.environ.get("STABLERNN_DATA")
    return Path(given) if given else platformdirs.user_data_path("stablernn", appauthor=False) / "data"


def cache_folder() -> Path:
    """Where fetched data lies if the user's folder cannot take it: ``STABLERNN_CACHE/datasets``."""
    given = os.environ.get("STABLERNN_CACHE")
    cache = Path(given) if given else platformdirs.user_cache_path("stablernn", appauthor=False)
    return cache / "datasets"


def place_to_fetch(folders: Sequence[str]) -> Path:
    """Where its fetched files go: the user's folder if it is named and can be written to, else the cache."""
    if os.environ.get("STABLERNN_DATA") and os.access(user_folder(), os.W_OK):
        return user_folder() / folders[0]
    return cache_folder() / folders[0]


def find(file: DataFile, folders: Sequence[str]) -> Path | None:
    """Where the file lies; None where it is not here."""
    roots = (user_folder(), cache_folder())
    candidates = (root / folder / name for root in roots for folder in folders for name in file.names)
    return next((path for path in candidates if path.exists()), None)


def presence(files: Sequence[DataFile], folders: Sequence[str]) -> str:
    """Return ``yes``, ``partly`` or ``no``: whether the files of a dataset are here."""
    paths = [find(file, folders) for file in files]
    return "yes" if None not in paths else "partly" if any(paths) else "no"


def verified(key: str, file: DataFile, path: Path) -> bytes:
    """The decompressed content of a file, if it is what was published.

    Raises:
        DataError: If it is not, or cannot be read.
    """
    content = read_bytes(path)
    if file.checksum is not None:
        check(key, file.checksum, digest(content, file.checksum), path)
    return content


def digest(content: bytes, like: str) -> str:
    """The checksum of the content, of the same kind as another one."""
    kind = like.partition(":")[0]
    return f"{kind}:{hashlib.new(kind, content, usedforsecurity=False).hexdigest()}"


def check(key: str, expected: str, found: str, path: Path) -> None:
    """Refuse what is not as published.

    Raises:
        DataError: If the two checksums differ.
    """
    if found != expected:
        raise errors.DataError(
            f"'{key}': '{path.name}' is not what was published ({found}, published {expected}). "
            f"Remove '{path}' and fetch it again."
        )
