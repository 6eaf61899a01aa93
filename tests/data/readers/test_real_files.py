"""Real files under STABLERNN_DATA: counts of the archives' own tables, values by an independent parser.

The files are not part of the project; without the variable these tests are skipped.
"""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest

from stablernn.data import ClassificationData, ForecastData, load_data

ROOT = os.environ.get("STABLERNN_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ROOT, reason="STABLERNN_DATA does not say where the real files lie"),
]


def located(*parts: str) -> Path:
    path = Path(ROOT or "").joinpath(*parts)
    if not path.is_file():
        pytest.skip(f"STABLERNN_DATA has no {'/'.join(parts)}")
    return path


def opened(path: Path) -> TextIO:
    return gzip.open(path, "rt") if path.suffix == ".gz" else path.open()


# name, file, train, test, channels, shortest, longest, classes
ARCHIVE = [
    ("Adiac", "Adiac_TRAIN.tsv", 390, 391, 1, 176, 176, 37),
    ("ArrowHead", "ArrowHead_TRAIN.ts", 36, 175, 1, 251, 251, 3),
    ("BasicMotions", "BasicMotions_TRAIN.ts", 40, 40, 6, 100, 100, 4),
    ("Coffee", "Coffee_TRAIN.tsv", 28, 28, 1, 286, 286, 2),
    ("Crop", "Crop_TRAIN.tsv.gz", 7200, 16800, 1, 46, 46, 24),
    ("ECG200", "ECG200_TRAIN.tsv", 100, 100, 1, 96, 96, 2),
    ("ECG5000", "ECG5000_TRAIN.tsv", 500, 4500, 1, 140, 140, 5),
    ("FordA", "FordA_TRAIN.tsv.gz", 3601, 1320, 1, 500, 500, 2),
    ("GunPoint", "GunPoint_TRAIN.ts", 50, 150, 1, 150, 150, 2),
    ("ItalyPowerDemand", "ItalyPowerDemand_TRAIN.ts", 67, 1029, 1, 24, 24, 2),
    ("JapaneseVowels", "JapaneseVowels_TRAIN.ts", 270, 370, 12, 7, 29, 9),
]


def parse(path: Path, every: int) -> dict[str, tuple[str, list[list[float]]]]:
    """(label, channels of values) of every so-manyth row, by the plainest code that can read these files."""
    with opened(path) as file:
        lines = [line.strip() for line in file if line.strip() and line[0] not in "#@"]
    rows = {}
    for i in range(0, len(lines), every):
        if "tsv" in path.name:
            label, *cells = lines[i].split("\t")
            rows[str(i)] = label, [[float(cell) for cell in cells]]
        else:
            *channels, label = lines[i].split(":")
            rows[str(i)] = label, [[float(cell) for cell in channel.split(",")] for channel in channels]
    return rows


@pytest.mark.parametrize(("name", "file", "train", "test", "channels", "shortest", "longest", "classes"), ARCHIVE)
def test_archive_has_the_published_counts_and_values(
    name: str, file: str, train: int, test: int, channels: int, shortest: int, longest: int, classes: int
) -> None:
    path = located("ucr-uea", name, file)
    data = load_data(path)
    assert isinstance(data, ClassificationData)
    assert data.test is not None
    assert (len(data.train) + len(data.validation), len(data.test)) == (train, test)
    assert (len(data.features), len(data.labels)) == (channels, classes)
    assert data.notes["lengths"] == {"min": shortest, "max": longest, "unequal": shortest < longest}
    assert data.notes["missing_values"] == {"train": 0, "validation": 0, "test": 0}
    # All rows of small files, some 500 of the large ones.
    rows = parse(path, every=train // 500 + 1)
    for split in (data.train, data.validation):
        for sequence, y, i in zip(split.sequences(), split.y, split.ids, strict=True):
            if i in rows:
                label, values = rows.pop(i)
                assert data.labels[y] == label
                np.testing.assert_array_equal(sequence.T, np.array(values, dtype=np.float32))
    assert not rows


def test_arff_and_ts_of_one_problem_are_the_same_data() -> None:
    paths = [located("ucr-uea", "BasicMotions", f"BasicMotions_TRAIN{ending}") for ending in (".arff", ".ts")]
    arff, ts = (load_data(path) for path in paths)
    assert isinstance(arff, ClassificationData)
    assert arff.test is not None
    assert arff.fingerprint == ts.fingerprint


# file, options, frequency, season, rows, first, last, gap steps, channels
TABLES: list[Any] = [
    ("ETT-small/ETTh1.csv", {"target": "OT"}, "h", 24, 17420, "2016-07-01T00:00", "2018-06-26T19:00", 0, 7),
    ("ETT-small/ETTh2.csv.gz", {"target": "OT"}, "h", 24, 17420, "2016-07-01T00:00", "2018-06-26T19:00", 0, 7),
    ("ETT-small/ETTm1.csv.gz", {"target": "OT"}, "15min", 96, 69680, "2016-07-01T00:00", "2018-06-26T19:45", 0, 7),
    ("ETT-small/ETTm2.csv.gz", {"target": "OT"}, "15min", 96, 69680, "2016-07-01T00:00", "2018-06-26T19:45", 0, 7),
    ("exchange_rate/exchange_rate.csv.gz", {"target": "3"}, "D", 7, 7588, "1990-01-01T00:00", "2010-10-10T00:00", 0, 8),
    ("univariate/airline-passengers.csv", {}, "MS", 12, 144, "1949-01-01T00:00", "1960-12-01T00:00", 0, 1),
    ("univariate/monthly-sunspots.csv", {}, "MS", 12, 2820, "1749-01-01T00:00", "1983-12-01T00:00", 0, 1),
    # The two 31st of December that this file lacks are leap years' last days.
    ("univariate/daily-min-temperatures.csv", {}, "D", 7, 3650, "1981-01-01T00:00", "1990-12-31T00:00", 2, 1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "options", "frequency", "season", "rows", "first", "last", "gaps", "channels"),
    TABLES,
    ids=[row[0].split("/")[1] for row in TABLES],
)
def test_tables_have_the_published_counts_and_values(
    file: str,
    options: dict[str, Any],
    frequency: str,
    season: int,
    rows: int,
    first: str,
    last: str,
    gaps: int,
    channels: int,
) -> None:
    path = located("forecasting", *file.split("/"))
    data = load_data(path, **options)
    assert isinstance(data, ForecastData)
    (series,) = data.series
    assert (data.frequency, data.season, len(data.channels)) == (frequency, season, channels)
    assert (data.notes["rows"], data.notes["gap_steps_filled"]) == (rows, gaps)
    assert (str(series.ds[0])[:16], str(series.ds[-1])[:16]) == (first, last)
    with opened(path) as text:
        lines = list(csv.reader(text))[1::7]
    present = ~np.isnan(series.values).all(axis=1)
    expected = np.array([[float(cell) for cell in line[1:]] for line in lines], dtype=np.float32)
    np.testing.assert_array_equal(series.values[present][::7], expected)


def test_etth1_takes_the_usual_number_of_steps_for_validation_and_test() -> None:
    data = load_data(
        located("forecasting", "ETT-small", "ETTh1.csv"), target="OT", validation_steps=2880, test_steps=2880
    )
    assert isinstance(data, ForecastData)
    assert len(data.windows("test")) == len(data.windows("validation")) == 2880 - data.horizon + 1


def test_pollution_is_read_by_chosen_columns_and_its_missing_cells_counted() -> None:
    path = located("forecasting", "beijing_pm25", "pollution.csv.gz")
    data = load_data(path, time_column="No", channels=["pm2.5", "TEMP"], target="pm2.5")
    assert data.notes["missing_values"] == 2067
    assert data.notes["ignored_columns"] == ["year", "month", "day", "hour", "DEWP", "PRES", "cbwd", "Iws", "Is", "Ir"]


def test_pollution_names_the_text_cell_that_is_no_number() -> None:
    path = located("forecasting", "beijing_pm25", "pollution.csv.gz")
    with pytest.raises(ValueError, match=r"^'pollution.csv.gz' row 2, column 'cbwd': 'NW' is not a number\."):
        load_data(path, time_column="No", target="pm2.5")
