"""Real files under STABLERNN_DATA: counts of the archives' own tables, values by an independent parser.

The files are not part of the project; without the variable these tests are skipped.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import TextIO

import numpy as np
import pytest

from stablernn.data import ClassificationData, load_data

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
    ("ArrowHead", "ArrowHead_TRAIN.ts", 36, 175, 1, 251, 251, 3),
    ("BasicMotions", "BasicMotions_TRAIN.ts", 40, 40, 6, 100, 100, 4),
    ("Crop", "Crop_TRAIN.tsv.gz", 7200, 16800, 1, 46, 46, 24),
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
