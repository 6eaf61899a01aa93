"""Data in: named datasets, readers of files, splits and windows.

All values are in raw units and NaN means missing. ``docs/data.md`` describes the formats.
"""

from stablernn.data.catalog import dataset_info, list_datasets
from stablernn.data.inputs import InputSet, read_inputs
from stablernn.data.load import load_data
from stablernn.data.named.entry import DatasetInfo
from stablernn.data.types import ClassificationData, ForecastData, SequenceSplit, Series
from stablernn.data.windows import Samples, WindowSet

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
