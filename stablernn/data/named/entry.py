"""Named datasets: their description and files, requests for them, and what their loaders share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array, Samples, SplitName, fingerprint
from stablernn.data.classification import count_splits
from stablernn.data.named.places import DataFile, presence, read_verified
from stablernn.data.options import LoadOptions, TaskName
from stablernn.data.step_data import MAX_NUMBERS, Data
from stablernn.data.types import ClassificationData, SequenceSplit


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


def classification_data(
    request: Request,
    labels: Sequence[str],
    features: Sequence[str],
    splits: Mapping[SplitName, SequenceSplit],
    *,
    fingerprint_parts: Sequence[str | int] = (),
    notes: Mapping[str, Any] | None = None,
) -> ClassificationData:
    """Build the dataset.

    Args:
        request: The request.
        labels: The classes.
        features: Names of the channels.
        splits: Training, validation and test split.
        fingerprint_parts: Values that the sequences depend on in addition to files and variant.
        notes: Additional notes, which are stored with every score.
    """
    counts = count_splits(splits, labels, dict.fromkeys(splits, 0)) | {"validation": {"how": request.info.splits}}
    return ClassificationData(
        name=request.info.key,
        labels=tuple(labels),
        features=tuple(features),
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        notes={**counts, **request.notes(), **(notes or {})},
        fingerprint=request.fingerprint(*fingerprint_parts),
    )


class LazySplit(SequenceSplit):
    """Labeled sequences of one split that are computed on demand and reproducible.

    Args:
        make: Function from indices to sequences, float32 (n, time, features), padded with 0 after their lengths.
        held_bytes: Memory of the data from which the sequences are computed.
        lengths: Sequence lengths, int64 (samples,).
        y: Classes, int64 (samples,).
        ids: Name of each sequence.
    """

    def __init__(
        self,
        make: Callable[[Int64Array], Float32Array],
        held_bytes: int,
        lengths: Int64Array,
        y: Int64Array,
        ids: Sequence[str],
    ) -> None:
        values = {"_make": make, "_num_bytes": held_bytes, "lengths": lengths, "y": y, "ids": tuple(ids), "dt": None}
        for name, value in values.items():
            # The base is a frozen dataclass, and x is a property here instead of a field.
            object.__setattr__(self, name, value)

    _make: Callable[[Int64Array], Float32Array]
    _num_bytes: int

    @property
    def x(self) -> Float32Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All sequences at once, which may not fit into memory; :meth:`gather` computes only some."""
        return self._make(np.arange(len(self)))

    @property
    def held_bytes(self) -> int:
        """Memory of the data from which the sequences are computed."""
        return self._num_bytes

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        """Compute the sequences with these indices."""
        rows = np.asarray(indices, dtype=np.int64)
        # An empty batch takes its number of features from the first sequence.
        x = self._make(rows) if len(rows) else self._make(np.arange(1))[:0]
        return Samples(x, self.lengths[rows], self.y[rows])

    def merged(self, other: SequenceSplit) -> SequenceSplit:
        """Return both splits as one, this one first; computed on demand if both are."""
        if not isinstance(other, LazySplit):
            return super().merged(other)
        features = self._make(np.arange(1)).shape[2]
        lengths = np.concatenate([self.lengths, other.lengths])

        def make(indices: Int64Array) -> Float32Array:
            x = np.zeros((len(indices), int(lengths[indices].max()), features), np.float32)
            is_first = indices < len(self)
            for rows, split, numbers in ((is_first, self, indices), (~is_first, other, indices - len(self))):
                if rows.any():
                    # The two splits may pad to different lengths.
                    values = split.gather(numbers[rows]).x
                    x[rows, : values.shape[1]] = values
            return x

        num_bytes = self.held_bytes + other.held_bytes
        return LazySplit(make, num_bytes, lengths, np.concatenate([self.y, other.y]), (*self.ids, *other.ids))

    def sequences(self) -> list[Float32Array]:
        """Return all sequences without padding."""
        return self._unpadded(np.arange(len(self)))

    def for_scaling(self) -> list[Float32Array]:
        """Return all sequences or, above :data:`MAX_NUMBERS` values, a random sample of about that size."""
        numbers = self._make(np.arange(1)).shape[2] * int(self.lengths.sum())
        count = min(len(self), max(1, len(self) * MAX_NUMBERS // numbers))
        # Drawn at random: the images of MNIST alternate between two sources whose brightness differs by 6 %.
        return self._unpadded(np.sort(np.random.RandomState(0).permutation(len(self))[:count]))

    def _unpadded(self, indices: Int64Array) -> list[Float32Array]:
        return [self._make(indices[i : i + 1])[0, : self.lengths[indices[i]]] for i in range(len(indices))]
