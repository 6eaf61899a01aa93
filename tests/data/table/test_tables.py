"""The CSV reader: long and wide, columns, time stamps, and the cells it refuses by row and column."""

from __future__ import annotations

import datetime
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from stablernn.data import ForecastData, load_data
from stablernn.data.table.series import Table, open_table
from stablernn.errors import DataError, UnknownNameError


def read(folder: Path, text: str, channels: list[str] | None = None, **columns: str) -> Table:
    path = folder / "d.csv"
    path.write_text(text)
    return open_table(path, **columns).read(channels)


@pytest.mark.parametrize("cell", ["", "NA", "?", "  "])
def test_missing_values_are_nan_and_counted(tmp_path: Path, cell: str) -> None:
    table = read(tmp_path, f"ds,y,z\n1,{cell},1\n2,3,1\n")
    assert np.isnan(table.series[0].values).tolist() == [[True, False], [False, False]]
    assert table.notes["missing_values"] == 1


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        (" 2 ", 2),
        ("1e3", 1000),
        ("-.5", -0.5),
        ('"4"', 4),
    ],
)
def test_numbers_are_read(tmp_path: Path, cell: str, value: float) -> None:
    assert read(tmp_path, f"ds,y\n1,{cell}\n").series[0].values.tolist() == [[value]]


@pytest.mark.parametrize(
    ("cell", "stamp"),
    [
        ("2024/3/1", "2024-03-01T00:00:00"),
        ("2024-03", "2024-03-01T00:00:00"),
        ("2024-03-01T13:05:07.25", "2024-03-01T13:05:07.250"),
        ("2024-03-01T13:05:07Z", "2024-03-01T13:05:07"),
        ("2024-03-01T13:05:07+02:00", "2024-03-01T11:05:07"),
        ("2024-03-01 13:05+0200", "2024-03-01T11:05:00"),
    ],
)
def test_times_are_read(tmp_path: Path, cell: str, stamp: str) -> None:
    (found,) = read(tmp_path, f"ds,y\n{cell},1\n").series[0].ds
    assert found == np.datetime64(stamp, "ns")


def test_gzip_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "d.csv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfds,y\r\n1,2\r\n2,3\r\n"))
    assert open_table(path).read().series[0].values.tolist() == [[2], [3]]


def test_blank_rows_are_skipped_and_counted(tmp_path: Path) -> None:
    table = read(tmp_path, "ds,y\n1,2\n\n,\n2,3\n")
    assert table.notes["blank_rows_skipped"] == 2
    assert table.series[0].ds.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "columns", "sentence"),
    [
        ("ds,y,y\n1,2,3\n", {}, r"'d\.csv' has the column 'y' twice"),
        (
            "ds,y\n1,2\n2,1e39\n",
            {},
            r"'d\.csv' row 3, column 'y' is 1e\+39",
        ),
        ("ds,y\n2024-02-30,2\n", {}, r"'d\.csv' row 2, column 'ds': '2024-02-30' is not a time"),
        ("ds,y\n3000-01-01,2\n", {}, r"'d\.csv' row 2, column 'ds': '3000-01-01' is not a time"),
        ("unique_id,ds,y\na,1,2\n,2,3\n", {}, r"'d\.csv' row 3 has no 'unique_id'; each row must name its series"),
        (
            f'ds,y\n1,"lorem\nipsum {"x" * 90}"\n',
            {},
            r"'d\.csv' row 2, column 'y': 'lorem ipsum",
        ),
        (
            "ds,y\n1,2,3\n",
            {},
            r"'d\.csv' row 2 has 3 cells, the header has 2 columns \(ds, y\)",
        ),
    ],
    ids=[
        "column twice",
        "too large",
        "no such day",
        "year too late",
        "no id",
        "long cell",
        "ragged",
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, text: str, columns: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        read(tmp_path, text, **columns)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"time_column": "dat"}, "Unknown column 'dat'"),
        ({"channels": ["sale"]}, "Unknown column 'sale'"),
    ],
)
def test_unknown_column_names_what_there_is(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnknownNameError, match=sentence):
        read(tmp_path, "date,sales\n2024-01-01,1\n", **options)


def test_a_series_may_be_called_na(tmp_path: Path) -> None:
    table = read(tmp_path, "unique_id,ds,y\nNA,1,1\nnull,1,NA\nNone,1,3\n")
    assert [one.unique_id for one in table.series] == ["NA", "null", "None"]
    assert table.notes["missing_values"] == 1


def test_what_float32_cannot_tell_apart_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"{step},{step},{1_700_000_000 + 7 * step}\n" for step in range(300))
    with pytest.raises(DataError, match=r"'d\.csv' column 'counter' goes from 1700000000 to 1700002093,"):
        read(tmp_path, "ds,y,counter\n" + rows)
    beyond_float64 = "".join(f"{step},{step},{1_700_000_000_000_000_000 + step}\n" for step in range(40))
    with pytest.raises(DataError, match="from 1700000000000000000 to 1700000000000000039, which float32 rounds"):
        read(tmp_path, "ds,y,counter\n" + beyond_float64)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("2024-01-01 00:00:00", "2024-01-02 00:00:00+02:00"),
        ("2024-01-01T00:00:00Z", "2024-01-02T00:00:00"),
        ("2024-01-01 00:00+01:00", "2024-01-02"),
    ],
)
@pytest.mark.parametrize("size", [1 << 22, 1])
def test_times_with_and_without_a_zone_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, second: str, size: int
) -> None:
    monkeypatch.setattr("stablernn.data.files._BLOCK_BYTES", size)
    with pytest.raises(DataError) as caught:
        read(tmp_path, f"ds,y\n{first},1\n{second},2\n")
    assert str(caught.value) == (
        f"'d.csv' row 3, column 'ds': some times have a zone and some have none, '{second}' unlike those before it. "
        "Write all of them with a zone, or all without."
    )


def test_local_midnights_are_days_whatever_the_clocks_do(tmp_path: Path) -> None:
    first, last = datetime.datetime(2024, 3, 25), datetime.datetime(2024, 4, 5)
    days = pl.datetime_range(first, last, "1d", time_zone="Europe/Berlin", eager=True)
    frame = pl.DataFrame({"ds": days, "y": range(len(days))})
    frame.with_columns(pl.col("ds").dt.to_string("%Y-%m-%d %H:%M:%S%:z")).write_csv(tmp_path / "d.csv")
    data = load_data(tmp_path / "d.csv", horizon=2, context_length=3)
    assert isinstance(data, ForecastData)
    assert (data.frequency, data.season, data.notes["irregular_intervals"]) == ("D", 7, 0)
    assert [str(data.series[0].ds[n])[:19] for n in (0, -1)] == ["2024-03-25T00:00:00", "2024-04-05T00:00:00"]
    assert "time_zone" not in data.notes


@pytest.mark.parametrize("size", [1 << 22, 8])
def test_rows_with_too_few_cells_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("stablernn.data.files._BLOCK_BYTES", size)
    text = 'ds,y,z\n1,1,1\n2,2\n3,,\n\n4,4,\n5\n"6","6,0"\n'
    table = read(tmp_path, text.replace("6,0", "6"))
    assert (table.notes["short_rows"], table.notes["blank_rows_skipped"]) == (3, 1)
    assert table.notes["missing_values"] == 7
    assert "short_rows" not in read(tmp_path, "ds,y\n1,1\n2,\n").notes
