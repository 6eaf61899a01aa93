"""What .ts has beside rows of equal length: time stamps, short channels, and headers that say otherwise."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stablernn.data import ClassificationData, load_data, read_inputs
from stablernn.data.readers.ts import read_ts
from stablernn.data.sequences import Sequences
from stablernn.errors import DataError

LABELS = "@classLabel true up down\n@data\n"
STAMPED = "@timeStamps true\n" + LABELS


def read(folder: Path, text: str) -> Sequences:
    path = folder / "a.ts"
    path.write_text(text)
    return read_ts(path)


def refused(folder: Path, text: str) -> str:
    with pytest.raises(DataError) as caught:
        read(folder, text)
    return str(caught.value)


def test_short_channels_are_filled_up_and_counted(tmp_path: Path) -> None:
    found = read(tmp_path, LABELS + "1,2,3:4:up\n5:6,7:down\n")
    np.testing.assert_array_equal(found.values[0], [[1, 4], [2, np.nan], [3, np.nan]])
    np.testing.assert_array_equal(found.values[1], [[5, 6], [np.nan, 7]])
    assert found.notes == {"short_channels_padded": 3}


def test_stamps_that_are_dates_are_seconds(tmp_path: Path) -> None:
    row = "(2024-01-01 00:00:00,1),(2024-01-01 00:01:30,2):(2024-01-01 00:00:00,3),(2024-01-01T00:01:30,4):up\n"
    found = read(tmp_path, STAMPED + row)
    assert found.values[0].tolist() == [[1, 3], [2, 4]]
    assert found.times is not None
    assert np.diff(found.times[0]).tolist() == [90]


def test_channels_with_other_stamps_are_missing_where_they_have_none(tmp_path: Path) -> None:
    found = read(tmp_path, STAMPED + "(0,1),(2,2):(1,3),(2,4),(9,5):up\n")
    np.testing.assert_array_equal(found.values[0], [[1, np.nan], [np.nan, 3], [2, 4], [np.nan, 5]])
    assert found.times is not None
    assert found.times[0].tolist() == [0, 1, 2, 9]
    assert found.notes == {"unshared_stamps": 3}


def test_stamps_reach_the_model_as_distances(tmp_path: Path) -> None:
    rows = "".join(f"(0,1),(1,{i}),(4,3):{'up' if i % 2 else 'down'}\n" for i in range(8))
    path = tmp_path / "a.ts"
    path.write_text(STAMPED + rows)
    data = load_data(path)
    assert isinstance(data, ClassificationData)
    assert data.time_step == 2
    assert data.train.dt is not None
    assert data.train.dt[0].tolist() == [1, 0.5, 1.5]
    inputs = read_inputs(path, task="classify", features=["value"], time_step=1)
    assert inputs.dt is not None
    assert inputs.dt[0].tolist() == [1, 1, 3]


@pytest.mark.parametrize(
    ("header", "rows", "said"),
    [
        ("@equalLength true\n", "1,2:up\n3:down\n", ["@equalLength true"]),
        ("@equalLength true\n@seriesLength 2\n@missing false\n@univariate true\n", "1,2:up\n3,4:down\n", None),
    ],
)
def test_a_header_that_says_otherwise_of_lengths_and_gaps_is_noted(
    tmp_path: Path, header: str, rows: str, said: list[str] | None
) -> None:
    assert read(tmp_path, header + LABELS + rows).notes.get("header_contradicted") == said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "@dimensions 3\n" + LABELS + "1:2:up\n",
            "'a.ts' line 4 has 2 channels, @dimensions says 3. Correct one of them.",
        ),
        (LABELS + "1:up\n1:2:down\n", "'a.ts' line 4 has 2 channels, the rows before have 1."),
        (
            "@univariate true\n" + LABELS + "1:2:up\n",
            "'a.ts' line 4 has 2 channels, @univariate says true. Correct one of them.",
        ),
        (
            STAMPED + "1,2:up\n",
            "'a.ts' line 4: channel 0 must be pairs (stamp,value), as @timeStamps says, got '1,2'.",
        ),
        (
            STAMPED + "(noon,1):up\n",
            "'a.ts' line 4: the timestamp 'noon' is neither a number nor a date as 2024-01-31 or 2024-01-31 13:00:00.",
        ),
        (STAMPED + "(2,1),(1,2):up\n", "'a.ts' line 4: timestamps must never fall. Sort the steps by time."),
        (
            STAMPED + "(1,1),(1,2):(2,3):up\n",
            "'a.ts' line 4: channel 0 has a timestamp twice, and the channels have different ones, so its values "
            "cannot be matched.",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    assert refused(tmp_path, text) == sentence
