"""From a table to a forecasting dataset: targets, gaps, defaults, the test file, and what is too short."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stablernn.data import ForecastData, load_data
from stablernn.errors import ConfigError, DataError, StableRNNError

SMALL: dict[str, Any] = {"horizon": 2, "context_length": 3, "validation_steps": 2, "test_steps": 2}


def days(count: int, start: str = "2024-01-01") -> list[str]:
    return [str(day) for day in np.datetime64(start) + np.arange(count)]


def write(path: Path, header: str, rows: Sequence[str]) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def daily(folder: Path, count: int, name: str = "d.csv") -> Path:
    return write(folder / name, "ds,y", [f"{day},{i}" for i, day in enumerate(days(count))])


def load(source: Path, **options: Any) -> ForecastData:
    data = load_data(source, **options)
    assert isinstance(data, ForecastData)
    return data


def test_missing_rows_become_steps_without_values_and_are_counted(tmp_path: Path) -> None:
    rows = [f"{day},{i}" for i, day in enumerate(days(20)) if i not in (4, 5, 11)]
    data = load(write(tmp_path / "d.csv", "ds,y", rows), **SMALL)
    (series,) = data.series
    assert data.frequency == "D"
    assert data.notes["gap_steps_filled"] == 3
    assert [str(day)[:10] for day in series.ds] == days(20)
    assert np.flatnonzero(np.isnan(series.values[:, 0])).tolist() == [4, 5, 11]
    assert series.values[12, 0] == 12


def test_irregular_times_are_taken_row_by_row_and_counted(tmp_path: Path) -> None:
    rows = [f"{day} 00:00:{i * 7 % 13:02d},{i}" for i, day in enumerate(days(20))]
    data = load(write(tmp_path / "d.csv", "ds,y", rows), **SMALL)
    assert data.frequency is None
    assert data.season == 1
    assert len(data.series[0].values) == 20
    steps = np.diff(data.series[0].ds).astype(int)
    assert data.notes["irregular_intervals"] == len(steps) - np.unique(steps, return_counts=True)[1].max()


def test_targets_keep_the_order_in_which_they_were_named(tmp_path: Path) -> None:
    rows = [f"{day},{i},{-i},0" for i, day in enumerate(days(20))]
    data = load(write(tmp_path / "a.csv", "date,a,b,c", rows), target=["c", "a"], **SMALL)
    assert (data.channels, data.targets, data.target_indices) == (("a", "b", "c"), ("c", "a"), (2, 0))


def test_defaults_follow_from_frequency_and_length(tmp_path: Path) -> None:
    data = load(daily(tmp_path, 200))
    assert (data.season, data.horizon, data.context_length) == (7, 7, 14)
    assert (data.validation_steps, data.test_steps) == (40, 40)


def test_test_file_continues_the_series(tmp_path: Path) -> None:
    train = write(tmp_path / "d_TRAIN.csv", "ds,y", [f"{day},{i}" for i, day in enumerate(days(20))])
    write(tmp_path / "d_TEST.csv", "ds,y", [f"{day},{i}" for i, day in enumerate(days(4, "2024-01-22"), start=21)])
    data = load(train, horizon=2, context_length=3, validation_steps=2)
    # The day between the files is a gap: it belongs to the test steps, which begin after the last training row.
    assert data.test_steps == 5
    assert data.notes["rows"] == 24
    assert data.notes["gap_steps_filled"] == 1
    assert data.windows("test").origins[0] == (0, 20)
    np.testing.assert_array_equal(data.series[0].values[:, 0], [*range(20), np.nan, *range(21, 25)])


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            ["a,11,1", "b,12,1"],
            r"'b\.csv': series 'a' begins at 11, which is not after 11, the",
        ),
        (
            ["a,12,1", "a,13,1"],
            r"'b\.csv' must continue every series of 'a\.csv' and no other;",
        ),
        (
            ["a,12,1", "b,12,1", "b,13,1"],
            r"'b\.csv' must add as many steps to every series, got 1 for 'a'",
        ),
    ],
    ids=["overlap", "series missing", "unequal"],
)
def test_test_file_that_does_not_continue_is_refused(tmp_path: Path, rows: list[str], sentence: str) -> None:
    header = "unique_id,ds,y"
    train = write(tmp_path / "a.csv", header, [f"{s},{i},{i}" for s in "ab" for i in range(12)])
    with pytest.raises(DataError, match=sentence):
        load(train, test=write(tmp_path / "b.csv", header, rows), horizon=1, context_length=3)


def test_fingerprint_is_of_series_not_of_what_is_forecast(tmp_path: Path) -> None:
    path = daily(tmp_path, 30)
    first = load(path, **SMALL).fingerprint
    assert load(path, **{**SMALL, "horizon": 1, "context_length": 5}).fingerprint == first
    assert load(daily(tmp_path, 31), **SMALL).fingerprint != first


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"target": ["y", "y"]}, ConfigError, "target must name each channel once, got y, y"),
        ({"horizon": 0}, ConfigError, "horizon must be 1 or more, got 0"),
        (
            {"horizon": 9, "test_steps": 8},
            ConfigError,
            r"test_steps must be at least the horizon \(9\), so that one window",
        ),
        (
            {"validation_fraction": 1.0},
            ConfigError,
            "validation_fraction must be between 0 and 1, got 1",
        ),
        (
            {"frequency": "2D"},
            DataError,
            r"'d\.csv': series 'd', which begins at 2024-01-01, is not in",
        ),
        (
            {"frequency": "s"},
            DataError,
            r"'d\.csv': frequency 's' would turn the 30 rows of series 'd'",
        ),
        (
            {"frequency": "1"},
            DataError,
            r"'d\.csv' has dates as timestamps, which frequency '1' cannot",
        ),
    ],
    ids=lambda value: None if isinstance(value, type | str) else "-".join(value),
)
def test_settings_that_cannot_be_used_are_refused(
    tmp_path: Path, options: dict[str, Any], kind: type[StableRNNError], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        load(daily(tmp_path, 30), **options)


def test_channel_without_any_training_value_is_refused(tmp_path: Path) -> None:
    rows = [f"{day},{i},{i if i > 15 else ''}" for i, day in enumerate(days(20))]
    with pytest.raises(
        DataError, match=r"'d\.csv' has no value at all in column 'late' of the training.*data\.channels"
    ):
        load(write(tmp_path / "d.csv", "ds,y,late", rows), **SMALL)


def unequal(folder: Path, *lengths: int) -> Path:
    rows = [f"s{n},{day},{i}" for n, length in enumerate(lengths) for i, day in enumerate(days(length))]
    return write(folder / "d.csv", "unique_id,ds,y", rows)


def test_short_series_use_what_they_have_and_none_sets_the_lengths_of_all(tmp_path: Path) -> None:
    """Of 2 + 2 held-out steps and a horizon of 2, a series of 9 has room for a training window with 3 of 4 steps."""
    data = load(unequal(tmp_path, 30, 9, 40, 4, 1, 30), **{**SMALL, "context_length": 4})
    windows = data.windows("train")
    short = [number for number, (series, _) in enumerate(windows.origins) if series == 1]
    assert [windows.origin(number)[1] for number in short] == [1, 2, 3]
    x = windows.gather(short).x[:, :, 0]
    np.testing.assert_array_equal(x, [[np.nan] * 3 + [0], [np.nan] * 2 + [0, 1], [np.nan, 0, 1, 2]])
    np.testing.assert_array_equal(windows.gather_longer(short, 4).x[:, :4, 0], x)
    # Long series have whole contexts only.
    assert min(end for series, end in windows.origins if series != 1) == 4
    assert data.notes["series_without_training"] == {"count": 2, "first": ["s3", "s4"]}
    assert [len(values) for values in data.training_values()] == [26, 5, 36, 0, 0, 26]
    assert data.has_missing_inputs()


def test_default_lengths_are_those_of_series_of_usual_length(tmp_path: Path) -> None:
    data = load(unequal(tmp_path, 100, 100, 12), horizon=2)
    same = load(unequal(tmp_path, 100, 100, 100), horizon=2)
    for name in ("context_length", "validation_steps", "test_steps"):
        assert getattr(data, name) == getattr(same, name)


@pytest.mark.parametrize(("steps", "horizon"), [(4, 1), (20, 5), (28, 7), (400, 7)])
def test_a_default_horizon_leaves_room_for_training(tmp_path: Path, steps: int, horizon: int) -> None:
    data = load(daily(tmp_path, steps))
    assert data.horizon == horizon
    assert len(data.windows("train"))


def test_series_of_which_none_is_long_enough_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"series 's1' has 8 steps, no other has more, 9.*context_length 3 \+"):
        load(unequal(tmp_path, 3, 8, 5), **SMALL)
