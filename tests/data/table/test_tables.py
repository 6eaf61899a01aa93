"""The CSV reader: long and wide, columns, time stamps, and the cells it refuses by row and column."""

from __future__ import annotations

import datetime
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from stablernn.data import ForecastData, load_data, read_inputs
from stablernn.data.table.series import Table, open_table
from stablernn.errors import DataError, UnknownNameError


def read(folder: Path, text: str, channels: list[str] | None = None, **columns: str) -> Table:
    path = folder / "d.csv"
    path.write_text(text)
    return open_table(path, **columns).read(channels)


@pytest.mark.parametrize("cell", ["", "NA", "NaN", "nan", "null", "NULL", "None", "N/A", "?", "  "])
def test_missing_values_are_nan_and_counted(tmp_path: Path, cell: str) -> None:
    table = read(tmp_path, f"ds,y,z\n1,{cell},1\n2,3,1\n")
    assert np.isnan(table.series[0].values).tolist() == [[True, False], [False, False]]
    assert table.notes["missing_values"] == 1


@pytest.mark.parametrize(
    ("cell", "value"), [("1.5", 1.5), (" 2 ", 2), ("1e3", 1000), ("+3", 3), ("-.5", -0.5), ('"4"', 4), ("1.", 1)]
)
def test_numbers_are_read(tmp_path: Path, cell: str, value: float) -> None:
    assert read(tmp_path, f"ds,y\n1,{cell}\n").series[0].values.tolist() == [[value]]


@pytest.mark.parametrize(
    ("cell", "stamp"),
    [
        ("2024-03-01", "2024-03-01T00:00:00"),
        ("2024/3/1", "2024-03-01T00:00:00"),
        ("2024-03", "2024-03-01T00:00:00"),
        ("2024-03-01 13:05", "2024-03-01T13:05:00"),
        ("2024/3/1 0:00", "2024-03-01T00:00:00"),
        ("2024-03-01 13:05:07", "2024-03-01T13:05:07"),
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


WORDING = "Times are dates from 1678 to 2261 as 2024-01-31 or 2024-01-31 13:00:00, or integers."


@pytest.mark.parametrize(
    ("text", "columns", "sentence"),
    [
        ("", {}, r"'d\.csv' is empty"),
        ("ds,y\n", {}, r"'d\.csv' has a header but no rows"),
        ("ds,y,y\n1,2,3\n", {}, r"'d\.csv' has the column 'y' twice"),
        ("ds\n1\n", {}, r"'d\.csv' has no column of numbers besides ds"),
        ("ds,,y\n0,1,2\n", {}, r"'d\.csv' has no name for column 2"),
        ("\nds,y\n1,2\n", {}, r"'d\.csv' begins with a blank row; the first row must name the"),
        (
            "ds,y\n1,2\n\n3,abc\n",
            {},
            r"'d\.csv' row 4, column 'y': 'abc' is not a number.*data\.channels",
        ),
        (
            "ds,y\n1,2\n2,inf\n",
            {},
            r"'d\.csv' row 3, column 'y' is inf",
        ),
        (
            "ds,y\n1,2\n2,1e39\n",
            {},
            r"'d\.csv' row 3, column 'y' is 1e\+39",
        ),
        (
            "ds,y\n2024-01-01,2\n31/01/2024,3\n",
            {},
            r"'d\.csv' row 3, column 'ds': '31/01/2024' is not a time.*data\.date_format",
        ),
        ("ds,y\n2024-02-30,2\n", {}, r"'d\.csv' row 2, column 'ds': '2024-02-30' is not a time"),
        ("ds,y\n3000-01-01,2\n", {}, r"'d\.csv' row 2, column 'ds': '3000-01-01' is not a time"),
        (
            "ds,y\n2024-01-01,2\n,3\n",
            {},
            r"'d\.csv' row 3, column 'ds' is empty; each row needs its time",
        ),
        ("unique_id,ds,y\na,1,2\n,2,3\n", {}, r"'d\.csv' row 3 has no 'unique_id'; each row must name its series"),
        (
            "a,b\n1,2\n",
            {},
            r"'d\.csv' has no column 'ds' and its first column 'a' does not",
        ),
        (
            "ds,y\n2024-01-01,1\n2024-01-02,2\n2024-01-02,3\n",
            {},
            r"'d\.csv' has the time 2024-01-02 twice, in rows 3 and 4.*id_column",
        ),
        (
            "unique_id,ds,y\na,2024-01-01 05:00,1\nb,2024-01-01 05:00,2\na,2024-01-01 05:00,3\n",
            {},
            r"'d\.csv' has the time 2024-01-01 05:00:00 of series 'a' twice,",
        ),
        (
            "unique_id,ds,y\na,1,1\na,3,2\na,2,3\n",
            {},
            r"'d\.csv' is not sorted by time: row 4 of series 'a' has 2 after.*data\.sort=true",
        ),
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
        "empty",
        "no rows",
        "column twice",
        "no numbers",
        "no name",
        "blank first row",
        "not a number",
        "infinite",
        "too large",
        "not a date",
        "no such day",
        "year too late",
        "no time",
        "no id",
        "no time column",
        "duplicate",
        "duplicate in series",
        "unsorted",
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
        ({"id_column": "shop"}, r"Unknown column 'shop'\. 'd\.csv' has date, sales"),
        ({"channels": ["sale"]}, "Unknown column 'sale'"),
    ],
)
def test_unknown_column_names_what_there_is(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnknownNameError, match=sentence):
        read(tmp_path, "date,sales\n2024-01-01,1\n", **options)


def test_of_many_columns_only_some_are_listed(tmp_path: Path) -> None:
    names = ",".join(f"c{i}" for i in range(50))
    with pytest.raises(UnknownNameError, match=r"Unknown column 'zz'\. 'd\.csv' has c0, c1, c2, c3, c4, c5, c6,"):
        read(tmp_path, f"ds,{names}\n1{',1' * 50}\n", ["zz"])


def test_a_series_may_be_called_na(tmp_path: Path) -> None:
    table = read(tmp_path, "unique_id,ds,y\nNA,1,1\nnull,1,NA\nNone,1,3\n")
    assert [one.unique_id for one in table.series] == ["NA", "null", "None"]
    assert table.notes["missing_values"] == 1


def test_months_without_a_dash_are_months(tmp_path: Path) -> None:
    ds = read(tmp_path, "ds,y\n202311,1\n202312,2\n202401,3\n").series[0].ds
    assert [str(stamp)[:10] for stamp in ds] == ["2023-11-01", "2023-12-01", "2024-01-01"]


def test_what_float32_cannot_tell_apart_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"{step},{step},{1_700_000_000 + 7 * step}\n" for step in range(300))
    with pytest.raises(DataError, match=r"'d\.csv' column 'counter' goes from 1700000000 to 1700002093,"):
        read(tmp_path, "ds,y,counter\n" + rows)
    beyond_float64 = "".join(f"{step},{step},{1_700_000_000_000_000_000 + step}\n" for step in range(40))
    with pytest.raises(DataError, match="from 1700000000000000000 to 1700000000000000039, which float32 rounds"):
        read(tmp_path, "ds,y,counter\n" + beyond_float64)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            'ds,y\n2024-01-01,2\n"2024-01-02,3\n2024-01-03,4\n',
            r"'d\.csv' row 3 has a quote that is not closed, or not at the end",
        ),
        (
            "ds,unique_id,y\n2024-01-01,a\0,2\n",
            r"'d\.csv' row 2, column 'unique_id' holds a NUL character \(byte 0\)",
        ),
        (
            "date,y\n01/31/2024,2\n",
            r"'d\.csv' has no column 'ds' and its first column 'date' does not.*data\.date_format",
        ),
    ],
    ids=["an open quote", "a NUL", "months first"],
)
def test_the_usual_mistakes_of_other_programs_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(DataError, match=sentence):
        read(tmp_path, text)


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


@pytest.mark.parametrize("name", ["d.csv", "d.parquet"])
def test_local_midnights_are_days_whatever_the_clocks_do(name: str, tmp_path: Path) -> None:
    first, last = datetime.datetime(2024, 3, 25), datetime.datetime(2024, 4, 5)
    days = pl.datetime_range(first, last, "1d", time_zone="Europe/Berlin", eager=True)
    frame = pl.DataFrame({"ds": days, "y": range(len(days))})
    if name == "d.csv":
        frame.with_columns(pl.col("ds").dt.to_string("%Y-%m-%d %H:%M:%S%:z")).write_csv(tmp_path / name)
        assert {"00:00+01:00", "00:00+02:00"} <= {line[14:25] for line in (tmp_path / name).read_text().splitlines()}
    else:
        frame.write_parquet(tmp_path / name)
    data = load_data(tmp_path / name, horizon=2, context_length=3)
    assert isinstance(data, ForecastData)
    assert (data.frequency, data.season, data.notes["irregular_intervals"]) == ("D", 7, 0)
    assert [str(data.series[0].ds[n])[:19] for n in (0, -1)] == ["2024-03-25T00:00:00", "2024-04-05T00:00:00"]
    assert "time_zone" not in data.notes


def test_hours_over_a_change_of_the_clocks_stay_instants(tmp_path: Path) -> None:
    stamps = ["2024-03-31 01:00+01:00", "2024-03-31 03:00+02:00", "2024-03-31 04:00+02:00", "2024-03-31 05:00+02:00"]
    (tmp_path / "d.csv").write_text("ds,y\n" + "".join(f"{ds},1\n" for ds in stamps))
    inputs = read_inputs(tmp_path / "d.csv", task="forecast", features=["y"])
    assert (inputs.frequency, inputs.notes["time_zone"]) == ("h", "UTC")
    assert [str(ds)[:16] for ds in inputs.ds[0]] == [f"2024-03-31T0{hour}:00" for hour in range(4)]


def test_different_zones_are_one_time(tmp_path: Path) -> None:
    table = read(tmp_path, "ds,y\n2024-03-31T00:00:00+01:00,1\n2024-03-31T05:00:00+02:00,2\n")
    assert np.diff(table.series[0].ds) == np.timedelta64(4, "h")


def test_blanks_inside_a_name_count(tmp_path: Path) -> None:
    table = read(tmp_path, "unique_id,ds,y\n a  b ,1,1\na b,1,2\na  b,2,3\n")
    assert [one.unique_id for one in table.series] == ["a  b", "a b"]


@pytest.mark.parametrize("size", [1 << 22, 8])
def test_rows_with_too_few_cells_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr("stablernn.data.files._BLOCK_BYTES", size)
    text = 'ds,y,z\n1,1,1\n2,2\n3,,\n\n4,4,\n5\n"6","6,0"\n'
    table = read(tmp_path, text.replace("6,0", "6"))
    assert (table.notes["short_rows"], table.notes["blank_rows_skipped"]) == (3, 1)
    assert table.notes["missing_values"] == 7
    assert "short_rows" not in read(tmp_path, "ds,y\n1,1\n2,\n").notes
