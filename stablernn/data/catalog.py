"""The named datasets: bundled ones, others that are located or fetched, and those of other packages.

A package adds a dataset by an entry point of the group ``stablernn.datasets``, whose name is the key of the dataset and
whose object is a :class:`~stablernn.data.named.entry.DatasetInfo`.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from importlib.metadata import EntryPoint
from pathlib import Path
from types import MappingProxyType

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Int64Array, SplitName
from stablernn.data.named import mnist, series
from stablernn.data.named.entry import DatasetInfo, Request, check_variant
from stablernn.data.named.fetch import locate_files
from stablernn.data.options import TABLE_OPTIONS, TASK_OPTIONS, LoadOptions
from stablernn.data.sequences import wrong_features_error
from stablernn.data.step_data import Data
from stablernn.data.types import ForecastData
from stablernn.extensions import PAPERS_DATASETS, dataset_entry_points, package_of

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
        *series.DATASETS,
    )
}


def list_datasets(pattern: str = "*") -> tuple[DatasetInfo, ...]:
    """Return the named datasets whose key matches a pattern with wildcards, sorted by key."""
    keys = {*_DATASETS, *dataset_entry_points()}
    return tuple(dataset_info(key) for key in sorted(keys) if fnmatchcase(key, pattern))


def is_dataset(key: str) -> bool:
    """Return True if a dataset has this name."""
    return key in _DATASETS or key in dataset_entry_points()


def dataset_info(key: str) -> DatasetInfo:
    """Return the dataset of that name.

    Raises:
        UnknownNameError: If there is none, or its package is not installed.
        ConfigError: If it is a dataset of another package that cannot be loaded.
    """
    if key in _DATASETS:
        return _DATASETS[key]
    points = dataset_entry_points()
    if key in points:
        return _load_entry_point(points[key])
    if key in PAPERS_DATASETS:
        raise errors.UnknownNameError(
            f"The dataset '{key}' is in the package 'stablernn-papers', which is not installed. Install it: "
            "pip install ./papers in the checkout."
        )
    raise errors.unknown("dataset or file", key, [*_DATASETS, *points], "See 'stablernn data list'.")


def _load_entry_point(point: EntryPoint) -> DatasetInfo:
    refusal = f"The dataset '{point.name}' of the package '{package_of(point)}' could not be loaded"
    try:
        info = point.load()
    # Code of another package, which may raise anything.
    except Exception as error:
        reason = str(error).removesuffix(".") or type(error).__name__
        raise errors.ConfigError(f"{refusal}: {reason}. Repair or remove that package.") from error
    if not isinstance(info, DatasetInfo) or info.key != point.name:
        raise errors.ConfigError(
            f"{refusal}: '{point.value}' is not the DatasetInfo of this key. Mend its entry point."
        )
    return info


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
