"""The named datasets: small, free to ship, stored in this package beside their licences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

import numpy as np

from stablernn import errors
from stablernn.data.files import Task
from stablernn.data.windows import Int64Array, SplitName

BUNDLED = Path(__file__).parent / "bundled"


@dataclass(frozen=True)
class DatasetInfo:
    """A named dataset.

    Attributes:
        key: The name that ``load_data`` takes.
        title: What it is, for people.
        task: What it is for.
        file: Where its file lies.
        licence: Terms under which it is shipped.
        source: Where it comes from.
        splits: How its publisher or this project splits it.
        settings: What ``load_data`` uses where nothing else is asked for.
        members: Which of so many sequences belong to which split, for sequences.
    """

    key: str
    title: str
    task: Task
    file: Path
    licence: str
    source: str
    splits: str
    settings: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    members: Callable[[int], dict[SplitName, Int64Array]] | None = None


def _every_fifth(count: int) -> dict[SplitName, Int64Array]:
    remainder = np.arange(count) % 5
    return {
        "train": np.flatnonzero(remainder > 1),
        "validation": np.flatnonzero(remainder == 1),
        "test": np.flatnonzero(remainder == 0),
    }


_DATASETS = {
    info.key: info
    for info in (
        DatasetInfo(
            key="digits",
            title="Handwritten digits, 8x8 pixels read one by one",
            task="classify",
            file=BUNDLED / "digits.npz",
            licence="CC BY 4.0",
            source="UCI Machine Learning Repository, Optical Recognition of Handwritten Digits "
            "(E. Alpaydin, C. Kaynak, 1998), the test part as in scikit-learn",
            splits="index % 5: 0 is test, 1 is validation, the rest is train",
            members=_every_fifth,
        ),
        DatasetInfo(
            key="co2",
            title="Weekly atmospheric CO2 at Mauna Loa, 1958 to 2001, ppmv",
            task="forecast",
            file=BUNDLED / "co2.csv.gz",
            licence="public domain",
            source="C.D. Keeling and T.P. Whorf, Scripps Institution of Oceanography, by CDIAC, as in statsmodels",
            splits="the last 104 weeks are test, the 104 before them validation",
            settings=MappingProxyType(
                {"horizon": 52, "season": 52, "context_length": 104, "validation_steps": 104, "test_steps": 104}
            ),
        ),
    )
}


def list_datasets(pattern: str = "*") -> tuple[DatasetInfo, ...]:
    """The named datasets whose key matches a pattern with wildcards, sorted by key."""
    return tuple(info for key, info in sorted(_DATASETS.items()) if fnmatchcase(key, pattern))


def is_dataset(key: str) -> bool:
    """Whether a dataset has this name."""
    return key in _DATASETS


def dataset_info(key: str) -> DatasetInfo:
    """The dataset of that name.

    Raises:
        UnknownNameError: If there is none.
    """
    if key not in _DATASETS:
        raise errors.unknown("dataset or file", key, _DATASETS, f"Datasets: {', '.join(sorted(_DATASETS))}.")
    return _DATASETS[key]
