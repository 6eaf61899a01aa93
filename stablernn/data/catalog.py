"""The named datasets: two that are part of this package, and those of the papers, which are looked for or fetched."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from stablernn import errors
from stablernn.data.named import cifar, fsdd, memory, mnist, polyphonic, series, text, timit
from stablernn.data.named.entry import OPTIONS, DatasetInfo, NamedData, Request, check_variant
from stablernn.data.named.fetch import locate_files
from stablernn.data.sequences import wrong_features
from stablernn.data.types import ForecastData
from stablernn.data.windows import Int64Array, SplitName

BUNDLED = Path(__file__).parent / "bundled"


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
        *mnist.DATASETS,
        *cifar.DATASETS,
        *memory.DATASETS,
        *text.DATASETS,
        *polyphonic.DATASETS,
        *fsdd.DATASETS,
        *timit.DATASETS,
        *series.DATASETS,
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
        raise errors.unknown("dataset or file", key, _DATASETS, "See 'stablernn data list'.")
    return _DATASETS[key]


def check_options(name: str, info: DatasetInfo | None, options: Mapping[str, Any]) -> None:
    """Refuse settings of named datasets that this source does not take.

    Args:
        name: What the source is called in messages.
        info: The dataset; None for a file.
        options: Those of :data:`OPTIONS` that are given.

    Raises:
        ConfigError: If one is not for this source.
    """
    for word in options:
        if info is None:
            raise errors.ConfigError(f"{word} is for named datasets; '{name}' is a file.")
        if word not in info.takes:
            takes = f"; of {', '.join(OPTIONS)} it takes {', '.join(info.takes) or 'none'}"
            raise errors.ConfigError(f"{word} is not for '{name}'{takes}.")


def load_named(
    info: DatasetInfo, options: Mapping[str, Any], settings: Mapping[str, Any], *, seed: int = 0
) -> NamedData:
    """A dataset of the papers, from its files here, or fetched.

    Args:
        info: The dataset.
        options: Those of :data:`OPTIONS` that are given.
        settings: Settings of the task that are given.
        seed: Draws what is drawn.

    Raises:
        ConfigError: If an option or a setting is not for this dataset, or out of its range.
        DataError: If files are not here and cannot be fetched, or are not what was published.
    """
    assert info.load is not None
    check_options(info.key, info, options)
    variant = check_variant(info, options.get("variant"))
    channels = settings.get("channels")
    if info.task != "forecast":
        strange = next((word for word in settings if word != "channels"), None)
        if strange is not None:
            raise errors.ConfigError(f"{strange} is for forecasting; '{info.key}' is read for task '{info.task}'.")
        settings = {}
    column = next((word for word in ("id_column", "time_column", "label_column", "stamps") if word in settings), None)
    if column is not None:
        raise errors.ConfigError(f"{column} is for files; the columns of '{info.key}' are known.")
    partial = bool(options.get("partial", False))
    paths, missing = locate_files(info, partial=partial)
    data = info.load(
        Request(
            info,
            paths,
            missing,
            seed=seed,
            variant=variant,
            permutation=options.get("permutation"),
            length=options.get("length"),
            partial=partial,
            settings=settings,
        )
    )
    if channels is not None and not isinstance(data, ForecastData) and tuple(channels) != data.features:
        raise wrong_features(info.key, data.features, tuple(channels))
    return data
