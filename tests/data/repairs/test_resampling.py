"""Series of several frequencies, aggregated to one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stablernn.data.options import Repairs
from stablernn.data.table.series import Table, open_table
from stablernn.errors import ConfigError, DataError, UnknownNameError

QUARTERS = [f"2024-01-01 {n // 4:02}:{n % 4 * 15:02}" for n in range(8)]


def read(folder: Path, rows: list[str], header: str = "ds,y", **repairs: Any) -> Table:
    (folder / "d.csv").write_text("\n".join([header, *rows]) + "\n")
    return open_table(folder / "d.csv", repairs=Repairs(**repairs)).read()


@pytest.mark.parametrize(("aggregate", "expected"), [("mean", [1, 5.5]), ("sum", [np.nan, 22]), ("last", [2, 7])])
def test_rows_are_aggregated_and_missing_values_left_out(tmp_path: Path, aggregate: str, expected: list[float]) -> None:
    rows = [f"{time},{'' if n == 3 else n}" for n, time in enumerate(QUARTERS)]
    table = read(tmp_path, rows, resample="h", aggregate=aggregate)
    np.testing.assert_array_equal(table.series[0].values[:, 0], np.float32(expected))
    np.testing.assert_array_equal(table.series[0].ds, np.array(["2024-01-01T00", "2024-01-01T01"], "datetime64[ns]"))
    assert table.notes["resampled"] == {
        "count": 6,
        "step": "h",
        "aggregate": aggregate,
        "rows": {"before": 8, "after": 2},
    }
    assert table.notes.get("incomplete_sums") == (1 if aggregate == "sum" else None)


def test_a_sum_of_a_step_with_a_missing_row_is_missing(tmp_path: Path) -> None:
    rows = [f"{time},1" for n, time in enumerate([*QUARTERS, "2024-01-01 02:00"]) if n != 5]
    table = read(tmp_path, rows, resample="h", aggregate="sum")
    np.testing.assert_array_equal(table.series[0].values[:, 0], [4, np.nan, np.nan])


def test_days_are_those_of_the_zone_and_whole_when_clocks_change(tmp_path: Path) -> None:
    hours = np.arange(np.datetime64("2024-03-29T23"), np.datetime64("2024-04-01T22"))
    offset = np.where(hours < np.datetime64("2024-03-31T01"), 1, 2)
    rows = [f"{str(hour + delta).replace('T', ' ')}:00,1" for hour, delta in zip(hours, offset, strict=True)]
    table = read(tmp_path, rows, timezone="Europe/Berlin", resample="D", aggregate="sum")
    days = np.arange(np.datetime64("2024-03-30"), np.datetime64("2024-04-02"))
    np.testing.assert_array_equal(table.series[0].ds, days.astype("datetime64[ns]"))
    np.testing.assert_array_equal(table.series[0].values[:, 0], [24, 23, 24])
    assert ("time_zone" in table.notes, table.notes["calendar_days"]) == (False, "Europe/Berlin")


def test_categories_become_their_share_of_the_step(tmp_path: Path) -> None:
    rows = [f"{time},1,{'on' if n % 4 == 0 else 'off'}" for n, time in enumerate(QUARTERS)]
    table = read(tmp_path, rows, "ds,y,pump", resample="h", aggregate="sum", categories=["pump"])
    assert table.channels == ("y", "pump=off", "pump=on")
    np.testing.assert_array_equal(table.series[0].values, [[4, 0.75, 0.25]] * 2)


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        (
            {"resample": "5min"},
            DataError,
            "'d.csv': series 'd' is in steps of '15min', and data.resample=5min is finer. Rows can only be aggregated: "
            "set it to the longest step of the series, or leave this series out.",
        ),
        (
            {"resample": "20min"},
            DataError,
            "'d.csv': series 'd' is in steps of '15min', of which data.resample=20min is no multiple. Set it to one.",
        ),
        ({"resample": "MS"}, ConfigError, "resample takes a multiple of s, min, h or D, such as 15min, got 'MS'."),
        (
            {"aggregate": "sum"},
            ConfigError,
            "aggregate=sum needs resample, the step to aggregate to. Set it, or leave aggregate out.",
        ),
    ],
)
def test_what_cannot_be_aggregated_is_refused(
    tmp_path: Path, options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind) as caught:
        read(tmp_path, [f"{time},1" for time in QUARTERS], **options)
    assert str(caught.value) == sentence


def test_unknown_steps_and_numbered_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"^Unknown frequency 'hourly'\."):
        read(tmp_path, ["2024-01-01,1"], resample="hourly")
    with pytest.raises(DataError, match=r"has integers as timestamps, and data\.resample needs dates"):
        read(tmp_path, ["1,1", "2,1"], resample="h")
