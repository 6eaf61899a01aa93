"""Covariates, the calendar, irregular time stamps and the stride of windows, for training and for prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stablernn.data import ForecastData, InputSet, load_data, read_inputs
from stablernn.data.forecasting import calendar_values
from stablernn.errors import ConfigError, DataError, StableRNNError

SMALL: dict[str, Any] = {"horizon": 2, "context_length": 3, "validation_steps": 2, "test_steps": 2}
HEADER = "unique_id,ds,y,promo,wind,size"


def days(count: int, start: str = "2024-01-01") -> list[str]:
    return [str(day) for day in np.datetime64(start) + np.arange(count)]


def lines(count: int = 14, first: int = 0) -> list[str]:
    """Two series: y counts, promo is what is known in advance, wind is not, size never changes."""
    return [
        f"{name},{day},{i},{100 + i},{1000 + i},{7 + n}"
        for n, name in enumerate("ab")
        for i, day in enumerate(days(count + first)[first:], start=first)
    ]


def write(path: Path, rows: Sequence[str], header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def load(path: Path, **options: Any) -> ForecastData:
    data = load_data(path, **{**SMALL, **options})
    assert isinstance(data, ForecastData)
    return data


ALL: dict[str, Any] = {"future": ["promo"], "static": ["size"]}


def test_values_that_are_missing_in_advance_are_counted(tmp_path: Path) -> None:
    rows = lines()
    rows[3] = "a,2024-01-04,3,,1003,7"
    del rows[5]
    data = load(write(tmp_path / "d.csv", rows), future=["promo"])
    assert data.notes["future_values_missing"] == 2
    found = data.windows("train").gather([0]).future
    assert found is not None
    assert np.isnan(found[0, :, 0]).tolist() == [True, False]


def test_static_values_of_a_test_file_must_be_the_same(tmp_path: Path) -> None:
    path = write(tmp_path / "A_TRAIN.csv", lines(12))
    test = write(tmp_path / "A_TEST.csv", lines(2, first=12))
    assert load(path, **{**ALL, "test_steps": None}).series[1].static.tolist() == [8]
    test.write_text(test.read_text().replace(",8\n", ",9\n"))
    with pytest.raises(DataError, match=r"'A_TEST\.csv': column 'size' must have one value for each"):
        load(path, **{**ALL, "test_steps": None})


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        
        
        (
            {"static": ["wind"]},
            DataError,
            r"'d\.csv': column 'wind' must have one value for each series, got",
        ),
        (
            {"future": ["y"]},
            ConfigError,
            "'y' is a target and is in future; what is to be forecast is not",
        ),
        (
            {"future": ["size"], "static": ["size"]},
            ConfigError,
            "'size' is in future and in static; a column that never changes",
        ),
        
        (
            {"channels": ["y", "size"], "static": ["size"]},
            ConfigError,
            "'size' is in channels and in static; leave it out of channels",
        ),
        
        
        ({"window_stride": 0}, ConfigError, "window_stride must be 1 or more, got 0"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used_are_refused(
    tmp_path: Path, options: dict[str, Any], kind: type[StableRNNError], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        load(write(tmp_path / "d.csv", lines()), **options)


def test_a_static_value_that_is_missing_throughout_is_refused(tmp_path: Path) -> None:
    rows = [row.removesuffix("8") if row[0] == "b" else row for row in lines()]
    with pytest.raises(DataError, match=r"'d\.csv' has no value in the static column 'size' for series 'b'"):
        load(write(tmp_path / "d.csv", rows), **ALL)
    rows[20] += "8"
    assert load(write(tmp_path / "d.csv", rows), **ALL).series[1].static.tolist() == [8]


# The calendar


@pytest.mark.parametrize(
    ("stamp", "period", "angle"),
    [
        ("2024-02-29T06:00", "day", 0.25),
        ("2024-03-07T12:00", "week", 0.5),
        ("1969-12-29T00:00", "week", 0),
        ("1970-07-02T14:54:36", "year", 0.5),
    ],
)
def test_the_calendar_is_a_wave_of_each_period(stamp: str, period: str, angle: float) -> None:
    found = calendar_values(np.array([stamp], "datetime64[ns]"), [period])
    expected = [math.sin(2 * math.pi * angle), math.cos(2 * math.pi * angle)]
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


def test_the_calendar_is_known_in_advance_and_has_no_gaps(tmp_path: Path) -> None:
    rows = [row for row in lines() if "2024-01-06" not in row]
    data = load(write(tmp_path / "d.csv", rows), calendar=["week", "day"], future=["promo"])
    made = ("calendar_week_sin", "calendar_week_cos", "calendar_day_sin", "calendar_day_cos")
    assert data.channels == ("y", "promo", "wind", "size", *made)
    assert data.future == ("promo", *made)
    assert data.notes["gap_steps_filled"] == 2
    assert not np.isnan(data.series[0].values[:, 4:]).any()
    found = data.windows("test").gather([0])
    assert found.future is not None
    # 2024-01-13 is a Saturday.
    expected = calendar_values(np.array(["2024-01-13", "2024-01-14"], "datetime64[ns]"), ["week", "day"])
    np.testing.assert_array_equal(found.future[0, :, 1:], expected)
    np.testing.assert_allclose(found.future[0, 0, 1], math.sin(2 * math.pi * 5 / 7), atol=1e-6)


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (None, r"calendar needs dates, and 'd\.csv' has integers as timestamps"),
        (
            "unique_id,ds,y,calendar_day_sin,wind,size",
            r"'d\.csv' has a column 'calendar_day_sin', as calendar would make",
        ),
    ],
)
def test_a_calendar_that_cannot_be_is_refused(tmp_path: Path, header: str | None, sentence: str) -> None:
    rows = lines() if header else [f"a,{i},{i},0,0,0" for i in range(14)]
    with pytest.raises(ConfigError, match=sentence):
        load(write(tmp_path / "d.csv", rows, header or HEADER), calendar=["day"])


# Irregular time stamps


def hours(*values: int) -> list[str]:
    return [str(stamp) for stamp in np.datetime64("2024-01-01T00") + np.array(values)]


IRREGULAR = hours(0, 1, 4, 6, 7, 15, 17, 19, 22, 24, 26, 31, 34, 36)


def test_irregular_rows_say_how_much_time_lies_between_them(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", [f"{stamp}:00,{i}" for i, stamp in enumerate(IRREGULAR)], "ds,y")
    data = load(path)
    # The ten rows of training: 1 3 2 1 8 2 2 3 2.
    assert (data.frequency, data.time_step) == (None, 7200.0)
    dt = data.series[0].dt
    assert dt is not None
    assert dt.tolist() == [1, 0.5, 1.5, 1, 0.5, 4, 1, 1, 1.5, 1, 1, 2.5, 1.5, 1]
    assert data.longest_step() == 4
    found = data.windows("train").gather([0, 1])
    assert found.dt is not None
    assert found.dt.tolist() == [[1, 0.5, 1.5], [1, 1.5, 1]]
    assert data.with_time_step(3600).windows("train").gather([0]).dt.tolist() == [[1, 1, 3]]  # type: ignore[union-attr]
    without = data.with_time_step(None)
    assert (without.time_step, without.windows("train").gather([0]).dt, without.longest_step()) == (None, None, 1)


# The stride


@pytest.mark.parametrize("stride", [1, 2, 3, 50])
def test_the_stride_thins_training_out_from_its_end(tmp_path: Path, stride: int) -> None:
    path = write(tmp_path / "d.csv", lines(20))
    every, some = load(path), load(path, window_stride=stride)
    ends = [end for series, end in every.windows("train").origins if series == 0]
    assert [end for series, end in some.windows("train").origins if series == 0] == ends[::-1][::stride][::-1]
    for split in ("validation", "test"):
        assert some.windows(split).origins == every.windows(split).origins
    kept = len(some.windows("train"))
    skipped = 2 * len(ends) - kept
    assert some.notes["windows"]["train"].get("skipped_by_stride", 0) == skipped
    assert some.notes["windows"]["train"]["kept"] == kept


# Prediction


def ahead(count: int, first: int = 14) -> list[str]:
    """Rows of which the future columns alone are known."""
    return [
        f"{name},{day},,{100 + i},," for name in "ab" for i, day in enumerate(days(count + first)[first:], start=first)
    ]


def both(count: int) -> list[str]:
    return sorted([*lines(), *ahead(count)], key=lambda row: row.split(",")[0])


def inputs_of(path: Path, **options: Any) -> InputSet:
    known: dict[str, Any] = {"features": ["y", "promo", "wind"], "context_length": 3, "horizon": 2, **ALL}
    return read_inputs(path, task="forecast", **{**known, **options})


def test_rows_behind_the_last_observation_are_the_future(tmp_path: Path) -> None:
    inputs = inputs_of(write(tmp_path / "d.csv", both(3)))
    assert inputs.x[:, :, 0].tolist() == [[11, 12, 13]] * 2
    assert inputs.future is not None
    assert inputs.future.tolist() == [[[114], [115]]] * 2
    assert inputs.static is not None
    assert inputs.static.tolist() == [[7], [8]]
    assert [str(stamp)[:10] for stamp in inputs.future_ds(1, 2)] == ["2024-01-15", "2024-01-16"]
    assert inputs.notes["future_rows_unused"] == 2
    assert inputs.notes["future_values_missing"] == 0


def test_the_future_for_prediction_is_that_of_a_window(tmp_path: Path) -> None:
    options = {**ALL, "calendar": ["week", "year"]}
    data = load(write(tmp_path / "whole.csv", lines(14)), **options)
    window = data.windows("test").gather([0])
    rows = [
        row if row < "a,2024-01-13" else ",".join([*row.split(",")[:2], "", row.split(",")[3], "", ""])
        for row in lines()
        if row[0] == "a"
    ]
    inputs = inputs_of(
        write(tmp_path / "d.csv", rows), features=data.channels, future=data.future, calendar=data.calendar
    )
    np.testing.assert_array_equal(inputs.x, window.x)
    np.testing.assert_array_equal(inputs.future, window.future)  # type: ignore[arg-type]
    np.testing.assert_array_equal(inputs.static, window.static)  # type: ignore[arg-type]


def test_the_calendar_needs_no_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "d.csv", lines())
    features = ["y", "calendar_day_sin", "calendar_day_cos", "calendar_week_sin", "calendar_week_cos"]
    inputs = inputs_of(path, features=features, future=features[1:], static=(), calendar=["day", "week"], horizon=3)
    assert inputs.x.shape == (2, 3, 5)
    expected = calendar_values(np.array(days(17)[14:], "datetime64[ns]"), ["day", "week"])
    np.testing.assert_array_equal(inputs.future[1], expected)  # type: ignore[index]
    assert inputs.static is None


def test_irregular_rows_of_the_future_keep_their_stamps(tmp_path: Path) -> None:
    rows = [f"{stamp}:00,{'' if i > 11 else i},{i}" for i, stamp in enumerate(IRREGULAR)]
    path = write(tmp_path / "d.csv", rows, "ds,y,promo")
    inputs = inputs_of(path, features=["y", "promo"], future=["promo"], static=(), time_step=7200.0)
    assert inputs.dt is not None
    assert inputs.dt.tolist() == [[1, 1, 2.5]]
    assert [str(stamp)[:13] for stamp in inputs.future_ds(0, 2)] == ["2024-01-02T10", "2024-01-02T12"]


@pytest.mark.parametrize(
    ("rows", "options", "kind", "sentence"),
    [
        (
            both(1),
            {},
            DataError,
            "'d.csv': series 'a' has 1 row behind its last observation, 2 are needed, one for each step to forecast, "
            "with promo.",
        ),
        (
            [*lines(4)[:4], "b,2024-01-01,,1,,8"],
            {"horizon": 1},
            DataError,
            "'d.csv': series 'b' has no row with a value of y, wind, so there is no past to forecast from.",
        ),
    ],
    ids=[
        "one row",
        "no past",
    ],
)
def test_what_a_forecast_cannot_be_made_from_is_refused(
    tmp_path: Path, rows: list[str], options: dict[str, Any], kind: type[StableRNNError], sentence: str
) -> None:
    if "no past" in sentence:
        rows = [row for row in both(1) if row[0] == "a"] + rows[4:]
    with pytest.raises(kind) as caught:
        inputs_of(write(tmp_path / "d.csv", rows), **options)
    assert str(caught.value) == sentence
