"""Data in: named datasets, readers of files, splits and windows.

All values are in raw units and NaN means missing. ``docs/guides/data.md`` describes the formats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stablernn._lazy import lazy_names

if TYPE_CHECKING:
    from stablernn.data.arrays import Samples
    from stablernn.data.catalog import dataset_info, list_datasets
    from stablernn.data.load import load_data
    from stablernn.data.named.entry import DatasetInfo
    from stablernn.data.prediction_inputs import InputSet, read_inputs
    from stablernn.data.types import ClassificationData, ForecastData, SequenceSplit, Series
    from stablernn.data.windows import WindowSet

__all__ = [
    "ClassificationData",
    "DatasetInfo",
    "ForecastData",
    "InputSet",
    "Samples",
    "SequenceSplit",
    "Series",
    "WindowSet",
    "dataset_info",
    "list_datasets",
    "load_data",
    "read_inputs",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ClassificationData": "types",
        "DatasetInfo": "named.entry",
        "ForecastData": "types",
        "InputSet": "prediction_inputs",
        "Samples": "windows",
        "SequenceSplit": "types",
        "Series": "types",
        "WindowSet": "windows",
        "dataset_info": "catalog",
        "list_datasets": "catalog",
        "load_data": "load",
        "read_inputs": "prediction_inputs",
    },
)
