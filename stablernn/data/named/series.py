"""Time series for forecasting: the four ETT tables and M4 Hourly."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from stablernn import errors
from stablernn.data.forecasting import forecast_data, read_series
from stablernn.data.messages import quote
from stablernn.data.named.entry import DatasetInfo, Request
from stablernn.data.named.places import DataFile
from stablernn.data.table.series import Table, open_table
from stablernn.data.types import ForecastData, Series

_ETT_HOME = "https://raw.githubusercontent.com/zhouhaoyi/ETDataset/main/ETT-small/"
_M4_HOME = "https://raw.githubusercontent.com/Mcompetitions/M4-methods/master/Dataset/"
#: Rows of training, validation and test for each transformer: 12, 4 and 4 months of 30 days.
ETT_ROWS = {"h": (8640, 2880, 2880), "m": (34560, 11520, 11520)}
M4_TRAIN, M4_TEST = "Hourly-train.csv", "Hourly-test.csv"


def load_ett(request: Request) -> ForecastData:
    """Load twenty months of a transformer; later rows are not used, as in the papers."""
    (file,) = request.info.files
    # Verifies the checksum; the table is then read from the file.
    request.content(file.name)
    options = request.options.with_defaults({"target": ("OT",), **request.info.settings})
    table = read_series(open_table(request.paths[file.name], time_column="date"), options)
    (series,) = table.series
    count = sum(ETT_ROWS[request.info.key[3]])
    first_rows = replace(series, unique_id=request.info.key, ds=series.ds[:count], values=series.values[:count])
    rows_left_out = len(series.ds) - len(first_rows.ds)
    shortened = Table(table.name, (first_rows,), table.channels, {**table.notes, "rows_left_out": rows_left_out})
    return forecast_data(request.info.key, shortened, options)


def load_m4(request: Request) -> ForecastData:
    """Load 414 series of 700 to 960 hours and the next 48 hours of each; hours are numbered from 1, without dates."""
    options = request.options.with_defaults(request.info.settings)
    if options.channels not in (None, ("y",)) or options.future or options.static:
        raise errors.ConfigError("The series of 'm4-hourly' have only the channel 'y', and no covariates.")
    train_series = read_m4(M4_TRAIN, request.content(M4_TRAIN))
    test_series = read_m4(M4_TEST, request.content(M4_TEST))
    # The hours of the test file start at 1 again; they continue those of training.
    lengths = {series.unique_id: len(series.ds) for series in train_series}
    continued = tuple(
        Series(series.unique_id, series.ds + lengths.get(series.unique_id, 0), series.values) for series in test_series
    )
    table, test = (Table(name, series, ("y",), {}) for name, series in ((M4_TRAIN, train_series), (M4_TEST, continued)))
    return forecast_data(request.info.key, table, options.with_options(channels=None), test=test)


def read_m4(name: str, content: bytes) -> tuple[Series, ...]:
    """Read one series per row: its name, its values, and empty cells after the end of shorter series.

    Raises:
        DataError: If a cell is not a number, or a row has no value.
    """
    header, *rows = csv.reader(io.StringIO(content.decode("utf-8")))
    all_series = []
    # Row 1 is the header.
    for number, row in enumerate(rows, start=2):
        cells = row[1:]
        while cells and cells[-1] in ("", "NA"):
            cells.pop()
        if not cells:
            raise errors.DataError(f"'{name}' row {number} has no values.")
        all_series.append(Series(row[0], np.arange(1, len(cells) + 1), _parse_numbers(name, number, cells)))
    return tuple(all_series)


def _parse_numbers(name: str, row: int, cells: list[str]) -> Any:
    try:
        return np.array(cells, np.float32)[:, None]
    except ValueError as error:
        raise errors.DataError(f"'{name}' row {row} has a cell that is not a number ({quote(str(error))}).") from error


def _ett(key: str, checksum: str) -> DatasetInfo:
    kind = key[3]
    train, validation, test = ETT_ROWS[kind]
    name = f"ETT{key[3:]}.csv"
    return DatasetInfo(
        key=key,
        title=f"Electricity transformer {key[4]}, 7 channels {'an hour' if kind == 'h' else 'a quarter of an hour'}",
        task="forecast",
        licence="CC BY-ND 4.0",
        source="H. Zhou et al., Informer, 2021, zhouhaoyi/ETDataset",
        splits=f"the first {train:,}, {validation:,} and {test:,} rows; the rest is not used",
        settings=MappingProxyType(
            {
                "horizon": 96,
                "season": 24 if kind == "h" else 96,
                "context_length": 336,
                "validation_steps": validation,
                "test_steps": test,
            }
        ),
        files=(DataFile(name, f"sha256:{checksum}", f"{_ETT_HOME}{name}"),),
        folders=("forecasting/ETT-small", "ETT-small", "ETDataset/ETT-small", "ETT", "ett"),
        load=load_ett,
    )


DATASETS = (
    _ett("etth1", "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066"),
    _ett("etth2", "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b"),
    _ett("ettm1", "6ce1759b1a18e3328421d5d75fadcb316c449fcd7cec32820c8dafda71986c9e"),
    _ett("ettm2", "db973ca252c6410a30d0469b13d696cf919648d0f3fd588c60f03fdbdbadd1fd"),
    DatasetInfo(
        key="m4-hourly",
        title="M4 competition, 414 hourly series",
        task="forecast",
        licence="none stated",
        source="S. Makridakis, E. Spiliotis, V. Assimakopoulos, The M4 competition, Mcompetitions/M4-methods",
        splits="the published 48 hours are test, the 48 before them validation",
        settings=MappingProxyType({"horizon": 48, "season": 24, "context_length": 336, "validation_steps": 48}),
        files=(
            DataFile(
                M4_TRAIN,
                "sha256:ea59b7783573c49077a835ab6465c7d66f1474783360f310988a9a737fbca62f",
                f"{_M4_HOME}Train/{M4_TRAIN}",
            ),
            DataFile(
                M4_TEST,
                "sha256:71a57fccb15e534d973626ada4fb87febf789e9317715b7cc6dd3b5f90db6f42",
                f"{_M4_HOME}Test/{M4_TEST}",
            ),
        ),
        folders=("forecasting/m4", "m4", "M4", "M4/Dataset"),
        load=load_m4,
    ),
)
