"""The look at a table that was refused: every problem, and guesses at settings that would read it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bad_files import BAD_FILES, DAYS, ROWS, BadFile
from data.check.reports import check, warnings
from stablernn.data import ForecastData, load_data
from stablernn.data.check import DataReport, check_data
from stablernn.data.check.table import count_unordered
from stablernn.errors import ConfigError, DataError, StableRNNError


def problems(report: DataReport) -> list[tuple[str, str]]:
    return [(finding.code, finding.text) for finding in report.problems]


@pytest.mark.parametrize("bad", BAD_FILES, ids=lambda bad: bad.fault)
def test_a_bad_file_is_refused_in_the_words_of_the_reader_and_every_fault_is_listed(
    tmp_path: Path, bad: BadFile
) -> None:
    bad.write(tmp_path)
    with pytest.raises(StableRNNError) as refused:
        load_data(tmp_path / bad.name, **bad.options)
    assert str(refused.value) == bad.sentence
    report = check_data(tmp_path / bad.name, **bad.options)
    assert problems(report) == [("refused", bad.sentence), *bad.more]
    assert not report.ok
    assert (report.data is None) == (not report.assumed)
    json.dumps(report.as_json(), allow_nan=False)


@pytest.mark.parametrize("bad_cell", ["inf", "1e60"])
def test_a_number_that_float32_does_not_hold_is_found_beside_other_faults(tmp_path: Path, bad_cell: str) -> None:
    rows = [f"{row},{bad_cell if n == 4 else n}" for n, row in enumerate(ROWS)]
    rows[9] = f"{DAYS[9]},word,3"
    sentences = [text for _, text in problems(check(tmp_path, rows, "ds,y,z"))]
    assert any("row 11, column 'y': 'word' is not a number" in text for text in sentences)
    assert any(text.startswith("'d.csv' row 6, column 'z' is ") for text in sentences)


def test_a_target_is_guessed_and_said_to_be(tmp_path: Path) -> None:
    report = check(tmp_path, [f"{row},{n % 4}" for n, row in enumerate(ROWS)], "ds,a,b")
    assert report.assumed == {"target": "b"}
    assert [column.role for column in report.columns] == ["time", "channel", "target"]
    assert [code for code, _ in problems(report)] == ["refused"]


def test_a_flag_is_not_guessed_as_the_target(tmp_path: Path) -> None:
    report = check(tmp_path, [f"{row},{n % 2}" for n, row in enumerate(ROWS)], "ds,load,holiday")
    assert report.assumed == {"target": "load"}


def test_columns_that_differ_by_a_number_are_guessed_to_be_series(tmp_path: Path) -> None:
    meters = [f"{row},{n % 4},{n % 5}" for n, row in enumerate(ROWS)]
    report = check(tmp_path, meters, "ds,meter 1,meter 2,meter 10")
    assert report.assumed == {"channels_as_series": True}
    assert problems(report)[0][1].endswith("Where each is a series to forecast, set data.channels_as_series=true.")
    assert report.content["series"] == 3
    weather = check(tmp_path, meters, "ds,wind,load 1,load 2")
    assert weather.assumed == {"target": "load 2"}
    # Names of series say that the columns are channels of each.
    named = check(tmp_path, [f"x,{row}" for row in meters], "unique_id,ds,meter 1,meter 2,meter 10")
    assert named.assumed == {"target": "meter 10"}


def test_a_column_that_tells_series_apart_is_guessed(tmp_path: Path) -> None:
    rows = [f"{shop},{row}" for row in ROWS for shop in ("x", "z")]
    report = check(tmp_path, rows, "shop,ds,y")
    assert report.assumed == {"id_column": "shop"}
    assert warnings(report)["unnamed_series"] == "Column 'shop' seems to tell series apart: name it by id_column."
    assert report.content["series"] == 2
    assert warnings(report)["duplicate_series"].startswith("1 of 2 series have the values of another one.")


HOURS = [datetime(2024, 1, 31) + timedelta(hours=hour) for hour in range(1, 73)]
DATES = [datetime(2024, 1, 20) + timedelta(days=day) for day in range(60)]
MONTHS = [datetime(2020 + month // 12, 1 + month % 12, 1) for month in range(60)]


def end_of_day(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M}" if time.hour else f"{time - timedelta(days=1):%Y-%m-%d} 24:00"


@pytest.mark.parametrize(
    ("times", "cells", "form", "frequency"),
    [
        (DATES, [f"{time:%d/%m/%Y}" for time in DATES], "%d/%m/%Y", "D"),
        (DATES, [f"{time.month}/{time.day}/{time:%y}" for time in DATES], "%m/%d/%y", "D"),
        (DATES, [f"{time:%d-%b-%Y}" for time in DATES], "%d-%b-%Y", "D"),
        (HOURS, [f"{time:%m/%d/%Y %I:%M %p}" for time in HOURS], "%m/%d/%Y %I:%M %p", "h"),
        (HOURS, [end_of_day(time) for time in HOURS], "%Y-%m-%d %H:%M", "h"),
        (HOURS, [end_of_day(time).replace(" ", "T") for time in HOURS], "%Y-%m-%dT%H:%M", "h"),
        # A spreadsheet leaves out midnight.
        (HOURS, [f"{time:%d/%m/%Y %H:%M}".removesuffix(" 00:00") for time in HOURS], "%d/%m/%Y %H:%M", "h"),
        # By the other reading the first twelve days of each January.
        (MONTHS, [f"{time:%d/%m/%Y}" for time in MONTHS], "%d/%m/%Y", "MS"),
    ],
    ids=["day first", "month first, two digits", "names", "AM and PM", "24:00", "T24:00", "no midnight", "only days 1"],
)
def test_the_format_that_a_column_of_dates_proves_is_proposed(
    tmp_path: Path, times: list[datetime], cells: list[str], form: str, frequency: str
) -> None:
    path = tmp_path / "d.csv"
    path.write_text("when,y\n" + "".join(f"{cell},{number % 9}\n" for number, cell in enumerate(cells)))
    # Whatever the first cell is by itself: day and month may be alike.
    with pytest.raises(DataError, match=rf"data\.date_format .*'{form}'"):
        load_data(path)
    assert check_data(path).fixes == {"date_format": form}
    data = load_data(path, date_format=form, horizon=2)
    assert isinstance(data, ForecastData)
    assert (data.frequency, data.notes["gap_steps_filled"]) == (frequency, 0)
    np.testing.assert_array_equal(data.series[0].ds, np.array(times, "datetime64[ns]"))


def test_a_format_that_a_column_leaves_open_is_not_guessed(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("ds,y\n" + "".join(f"{day:02}/03/2024,{day}\n" for day in range(1, 13)))
    report = check_data(path)
    assert report.fixes == {}
    assert any("(%d/%m/%Y, %m/%d/%Y)" in problem.text for problem in report.problems)


@pytest.mark.parametrize(
    "form",
    [
        "%d/%m",
        "dd/mm/yyyy",
        "%Y-%m-%d %Q",
    ],
)
def test_formats_without_a_date_are_refused(tmp_path: Path, form: str) -> None:
    (tmp_path / "d.csv").write_text("ds,y\n31/01/2024,1\n")
    with pytest.raises(ConfigError, match=f"date_format .* got '{form}'"):
        load_data(tmp_path / "d.csv", date_format=form)


def test_a_time_in_several_columns_is_recognized(tmp_path: Path) -> None:
    rows = [f"{n + 1},2024,{1 + n // 30},{1 + n % 30},{n % 7}" for n in range(60)]
    report = check(tmp_path, rows, "No,year,month,day,y")
    assert warnings(report)["time_in_parts"] == (
        "The time seems to be in several columns (year, month, day). Join them into one column 'ds', such as "
        "2024-01-31 13:00."
    )
    assert report.assumed["time_column"] == "No"


def test_series_in_rows_are_recognized(tmp_path: Path) -> None:
    header = ",".join(f"V{n}" for n in range(1, 32))
    report = check(tmp_path, [f"H{n}," + ",".join(map(str, range(n, n + 30))) for n in range(4)], header)
    assert warnings(report) == {
        "series_in_rows": "Each row seems to be a series of up to 30 values behind its name. Tables are read with a "
        "row for each series and time: unique_id, ds, y."
    }


@pytest.mark.parametrize("first", ["2024-01-{:02}", "{:02}/01/2024"], ids=["dates", "days first"])
def test_a_wide_table_is_not_taken_for_series_in_rows(tmp_path: Path, first: str) -> None:
    header = ",".join(["date", *(f"c{channel}" for channel in range(25))])
    rows = [
        f"{first.format(day)}," + ",".join(str((day * channel) % 7) for channel in range(25)) for day in range(1, 31)
    ]
    report = check(tmp_path, rows, header)
    assert "series_in_rows" not in warnings(report)
    assert not report.ok
    if first.startswith("2024"):
        assert report.assumed == {"channels_as_series": True}
        assert (report.content["series"], len(report.columns)) == (25, 26)


def test_single_faults_are_all_listed(tmp_path: Path) -> None:
    """Loading stops at the first; the check tells of each, though it stands in one cell only."""
    rows = [f"2024-01-{day:02},{day % 5},{day % 3}" for day in range(1, 31)]
    rows[3], rows[7] = "2024-01-04,many,1", "2024-01-08,3,few"
    rows[12], rows[13] = rows[13], rows[12]
    rows[20] = rows[20].replace("01-21", "01-20")
    report = check(tmp_path, rows, "ds,y,z")
    assert [code for code, _ in problems(report)] == ["refused", "time_twice", "not_sorted", "not_a_number"]
    assert [text for _, text in problems(report)[1:]] == [
        "'d.csv' has 1 row with a time that its series already has.",
        "'d.csv' has 1 row that is earlier than the row of their series before.",
        "'d.csv' column 'z': 1 of 30 cells is no number; the first is 'few' in row 9.",
    ]


def test_a_file_of_no_known_ending_is_shown(tmp_path: Path) -> None:
    (tmp_path / "d.dat").write_text("0.5;1\n0.6;2\n")
    report = check_data(tmp_path / "d.dat")
    assert report.preview == ("0.5;1", "0.6;2")
    assert "looks_like_a_table" in warnings(report)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9)), min_size=1, max_size=40))
def test_rows_out_of_order_are_counted_in_their_series(rows: list[tuple[str, int]]) -> None:
    twice = len(rows) - len(set(rows))
    back = sum(
        later < earlier
        for name in "ab"
        for times in [[time for series, time in rows if series == name]]
        for earlier, later in zip(times, times[1:], strict=False)
    )
    stamps = np.array([time for _, time in rows], dtype=np.int64)
    assert count_unordered(stamps, pl.Series([name for name, _ in rows])) == (twice, back)


@pytest.mark.parametrize("kind", ["numbers", "whole numbers", "words"])
def test_a_channel_does_not_tell_series_apart_where_a_row_stands_twice(tmp_path: Path, kind: str) -> None:
    cells = {"numbers": [n / 4 for n in range(4)], "whole numbers": [3, 1, 4, 2], "words": ["N", "E", "S", "W"]}[kind]
    rows = [f"{row},{cells[n % 4]}" for n, row in enumerate(ROWS)]
    report = check(tmp_path, [*rows[:5], f"{DAYS[4]},3,{cells[1]}", *rows[5:]], "ds,y,wind")
    assert "id_column" not in report.assumed
    assert "unnamed_series" not in warnings(report)
