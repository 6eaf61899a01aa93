"""Named datasets: their description and files, and requests for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from stablernn import errors
from stablernn.data.arrays import Int64Array, SplitName, fingerprint
from stablernn.data.named.places import DataFile, presence, read_verified
from stablernn.data.options import LoadOptions, TaskName
from stablernn.data.step_data import Data


@dataclass(frozen=True)
class DatasetInfo:
    """A named dataset.

    Attributes:
        key: Name of the dataset in ``load_data``.
        title: Title.
        task: Task of the dataset.
        licence: Terms under which its publisher provides it.
        source: Reference to its origin.
        splits: Description of the splits, and whether its publisher, the papers or this project made them.
        file: Path of its file, for datasets that are part of this package.
        settings: Defaults of ``load_data`` for this dataset.
        members: Function from the number of sequences to the indices of each split, for sequences in one file of this
            package.
        files: Its files, for datasets that are not part of this package.
        folders: Folders below a data folder in which its files are searched for; downloads go to the first one.
        variants: Values of ``data.variant``, the default first; empty: there is one form only.
        options: Other settings of ``data`` that it takes, see :data:`~stablernn.data.options.NAMED_OPTIONS`.
        load: Function that loads the dataset; None: its file is read as any file is.
        obtain: Source of files that may not be downloaded automatically.
    """

    key: str
    title: str
    task: TaskName
    licence: str
    source: str
    splits: str
    file: Path | None = None
    settings: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    members: Callable[[int], dict[SplitName, Int64Array]] | None = None
    files: tuple[DataFile, ...] = ()
    folders: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    load: Callable[[Request], Data] | None = None
    obtain: str | None = None

    @property
    def takes(self) -> tuple[str, ...]:
        """All settings of ``data`` that it takes in addition to those of its task."""
        return (("variant",) if self.variants else ()) + self.options

    @property
    def presence(self) -> str:
        """Presence of the files: ``yes``, ``partly`` or ``no``; ``yes`` for generated and bundled datasets."""
        return presence(self.files, self.folders)

    def facts(self) -> dict[str, Any]:
        """Return everything that a list of datasets needs, as JSON types.

        ``files`` and ``folders`` name the files and where they are searched for; ``bundled`` names a file of this
        package.
        """
        return {
            "name": self.key,
            "title": self.title,
            "task": self.task,
            "splits": self.splits,
            "variants": list(self.variants),
            "options": list(self.takes),
            "licence": self.licence,
            "source": self.source,
            "settings": dict(self.settings),
            "bundled": self.file.name if self.file else None,
            "files": [{"name": file.name, "also": list(file.also), "packed": file.packed} for file in self.files],
            "folders": list(self.folders),
        }


@dataclass(frozen=True)
class Request:
    """A validated request for a dataset, with the paths of its files.

    Attributes:
        info: The dataset.
        paths: Path of each file that is present, by its name.
        missing: Names of the files that are missing, which ``partial`` allows.
        options: Options of loading the dataset.
        variant: One of ``info.variants``, the default if the options name none; empty if the dataset has none.
    """

    info: DatasetInfo
    paths: Mapping[str, Path]
    missing: tuple[str, ...]
    options: LoadOptions
    variant: str = ""

    def content(self, name: str) -> bytes:
        """Return the decompressed content of a file, verified by its checksum.

        Raises:
            DataError: If the file is truncated or its checksum differs from the published one.
        """
        file = next(file for file in self.info.files if file.name == name)
        return read_verified(self.info.key, file, self.paths[name])

    def fingerprint(self, *parts: str | int) -> str:
        """Return a hash of the published checksums of the files, the variant, and other values.

        Args:
            parts: Other values that the sequences depend on.
        """
        # The checksums stand for the content, which was verified against them.
        files = [f"{file.name} {file.checksum}" for file in self.info.files if file.name in self.paths]
        return fingerprint(["named", self.info.key, self.variant, *files, *parts])

    def notes(self) -> dict[str, Any]:
        """Return the notes for every score: the variant, and the missing files."""
        notes: dict[str, Any] = {"variant": self.variant} if self.variant else {}
        return {**notes, "partial": list(self.missing)} if self.missing else notes


def check_variant(info: DatasetInfo, variant: str | None) -> str:
    """Return the variant, or the default variant if it is None.

    Raises:
        ConfigError: If the dataset has no such variant.
    """
    if variant is None:
        return info.variants[0] if info.variants else ""
    if variant not in info.variants:
        hint = errors.did_you_mean(variant, info.variants)
        raise errors.ConfigError(
            f"variant of '{info.key}' must be one of {', '.join(info.variants)}, got '{variant}'.{hint}"
        )
    return variant
