"""The named datasets: two that are part of this package, and those of the papers, which are located or fetched."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Int64Array, SplitName
from stablernn.data.named import cifar, fsdd, memory, mnist, polyphonic, series, text, timit
from stablernn.data.named.entry import DatasetInfo, Request, check_variant
from stablernn.data.named.fetch import locate_files
from stablernn.data.options import TABLE_OPTIONS, TASK_OPTIONS, LoadOptions
from stablernn.data.sequences import wrong_features_error
from stablernn.data.step_data import Data
from stablernn.data.types import ForecastData

BUNDLED = Path(__file__).parent / "bundled"


def _split_by_fives(count: int) -> dict[SplitName, Int64Array]:
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
            members=_split_by_fives,
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
    """Return the named datasets whose key matches a pattern with wildcards, sorted by key."""
    return tuple(info for key, info in sorted(_DATASETS.items()) if fnmatchcase(key, pattern))


def is_dataset(key: str) -> bool:
    """Return True if a dataset has this name."""
    return key in _DATASETS


def dataset_info(key: str) -> DatasetInfo:
    """Return the dataset of that name.

    Raises:
        UnknownNameError: If there is none.
    """
    if key not in _DATASETS:
        raise errors.unknown("dataset or file", key, _DATASETS, "See 'stablernn data list'.")
    return _DATASETS[key]


def load_named(info: DatasetInfo, options: LoadOptions) -> Data:
    """Load a dataset of the papers, from its files here, or fetched.

    Args:
        info: The dataset.
        options: How to load it; its source, test split and validation fraction are not used.

    Raises:
        ConfigError: If an option is not for this dataset, or out of its range.
        DataError: If files are not here and cannot be fetched, or differ from what was published.
    """
    assert info.load is not None
    # Options are checked before files are fetched, which may take long.
    variant = check_variant(info, options.variant)
    names = options.changed(TASK_OPTIONS)
    if info.task != "forecast":
        unused = next((name for name in names if name != "channels"), None)
        if unused is not None:
            raise errors.ConfigError(f"{unused} is for forecasting; '{info.key}' is read for task '{info.task}'.")
    table_option = next((name for name in TABLE_OPTIONS if name in names), None)
    if table_option is not None:
        raise errors.ConfigError(f"{table_option} is for files; the columns of '{info.key}' are known.")
    paths, missing = locate_files(info, partial=options.partial)
    data = info.load(Request(info, paths, missing, options, variant))
    # A loader of series has selected the channels; sequences have theirs in one fixed order.
    if options.channels is not None and not isinstance(data, ForecastData) and options.channels != data.features:
        raise wrong_features_error(info.key, data.features, options.channels)
    return data
