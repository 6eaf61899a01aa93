"""What a named dataset is: its description, its files, and what may be asked of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from stablernn import errors
from stablernn.data.arrays import Int64Array, SplitName
from stablernn.data.fingerprint import fingerprint
from stablernn.data.named.places import DataFile, presence, verified
from stablernn.data.options import LoadOptions
from stablernn.data.step_data import StepData
from stablernn.data.types import ClassificationData, ForecastData

DatasetTask = Literal["classify", "forecast", "predict-next"]
NamedData = ClassificationData | ForecastData | StepData


@dataclass(frozen=True)
class DatasetInfo:
    """A named dataset.

    Attributes:
        key: The name that ``load_data`` takes.
        title: What it is, for people.
        task: What it is for.
        licence: Terms under which its home gives it away.
        source: Where it comes from.
        splits: How its publisher, the papers or this project split it.
        file: Where its file lies, for those that are part of this package.
        settings: What ``load_data`` uses where nothing else is asked for.
        members: Which of so many sequences belong to which split, for sequences in one file of this package.
        files: What it is made of, for those that are not part of this package.
        folders: Where below a data folder its files may lie; the first is where fetched ones go.
        variants: Words that ``data.variant`` takes, the default first; empty: there is one form only.
        options: Which further settings of ``data`` it takes, see :data:`~stablernn.data.options.NAMED_OPTIONS`.
        load: Makes the dataset; None: its file is read as any file is.
        obtain: For files that may not be fetched: where the user gets them.
    """

    key: str
    title: str
    task: DatasetTask
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
    load: Callable[[Request], NamedData] | None = None
    obtain: str | None = None

    @property
    def takes(self) -> tuple[str, ...]:
        """All settings of ``data`` that it takes beside those of its task."""
        return (("variant",) if self.variants else ()) + self.options

    @property
    def presence(self) -> str:
        """``yes``, ``partly`` or ``no``: whether the files are here. Generated and bundled datasets are."""
        return presence(self.files, self.folders)

    def facts(self) -> dict[str, Any]:
        """Return everything that a list of datasets needs, as JSON types.

        ``files`` and ``folders`` say which files are looked for and where; ``bundled`` names a file of this package.
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
    """What is asked of a dataset, checked, and where its files are.

    Attributes:
        info: The dataset.
        paths: Where each file lies that is here, by its name.
        missing: Names of the files that are not here and that ``partial`` does without.
        options: How the dataset is to be loaded.
        variant: One of ``info.variants``, the default where the options name none; empty where it has none.
    """

    info: DatasetInfo
    paths: Mapping[str, Path]
    missing: tuple[str, ...]
    options: LoadOptions
    variant: str = ""

    def content(self, name: str) -> bytes:
        """A file's content, decompressed and equal to what was published.

        Raises:
            DataError: If it is cut off or is not what was published.
        """
        file = next(file for file in self.info.files if file.name == name)
        return verified(self.info.key, file, self.paths[name])

    def fingerprint(self, *drawn: str | int) -> str:
        """Hash of the content, by the checksums that it was held against, and of how it is brought into form.

        Args:
            drawn: Whatever else the sequences depend on.
        """
        files = [f"{file.name} {file.checksum}" for file in self.info.files if file.name in self.paths]
        return fingerprint(["named", self.info.key, self.variant, *files, *drawn])

    def notes(self) -> dict[str, Any]:
        """What every score must carry: the variant, and what is missing."""
        found: dict[str, Any] = {"variant": self.variant} if self.variant else {}
        return {**found, "partial": list(self.missing)} if self.missing else found


def check_variant(info: DatasetInfo, given: str | None) -> str:
    """The variant, or the default where none is given.

    Raises:
        ConfigError: If the dataset has no such variant.
    """
    if given is None:
        return info.variants[0] if info.variants else ""
    if given not in info.variants:
        hint = errors.did_you_mean(given, info.variants)
        raise errors.ConfigError(
            f"variant of '{info.key}' must be one of {', '.join(info.variants)}, got '{given}'.{hint}"
        )
    return given
