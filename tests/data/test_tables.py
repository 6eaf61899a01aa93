"""The CSV reader: long and wide, columns, time stamps, and the cells it refuses by row and column."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stablernn.data.tables import Table, open_table
from stablernn.errors import DataError, UnknownNameError


def read(folder: Path, text: str, channels: list[str] | None = None, **columns: str) -> Table:
    path = folder / "d.csv"
    path.write_text(text)
    return open_table(path, **columns).read(channels)


def test_long_table_gives_a_series_for_each_id_in_order_of_appearance(tmp_path: Path) -> None:
    text = "unique_id,ds,y\nb,2024-01-01,1\na,2024-01-01,2\nb,2024-01-02,3\na,2024-01-02,4\n"
    table = read(tmp_path, text)
    assert [(one.unique_id, one.values.tolist()) for one in table.series] == [("b", [[1], [3]]), ("a", [[2], [4]])]
    assert table.channels == ("y",)
    assert table.notes == {"rows": 4, "series": 2, "missing_values": 0, "blank_rows_skipped": 0}


def test_without_ids_the_series_is_named_after_the_file(tmp_path: Path) -> None:
    assert [one.unique_id for one in read(tmp_path, "ds,y\n1,2\n").series] == ["d"]


def test_further_columns_are_further_channels_in_the_order_of_the_file(tmp_path: Path) -> None:
    table = read(tmp_path, "ds,temperature,y\n1,2,3\n2,4,5\n")
    assert table.channels == ("temperature", "y")
    np.testing.assert_array_equal(table.series[0].values, [[2, 3], [4, 5]])


def test_columns_can_be_renamed_and_chosen(tmp_path: Path) -> None:
    text = "shop,day,sold,note\nx,2024-01-01,5,rain\nx,2024-01-02,6,sun\n"
    table = read(tmp_path, text, ["sold"], id_column="shop", time_column="day")
    assert (table.series[0].unique_id, table.channels) == ("x", ("sold",))
    assert table.notes["ignored_columns"] == ["note"]


def test_wide_table_takes_its_first_column_of_dates(tmp_path: Path) -> None:
    table = read(tmp_path, "date,a,b\n2024-01-01,1,2\n2024-01-02,3,4\n")
    assert table.channels == ("a", "b")
    assert str(table.series[0].ds[0]) == "2024-01-01T00:00:00.000000000"


def test_a_column_of_dates_needs_no_name(tmp_path: Path) -> None:
    assert read(tmp_path, ",a\n2024-01-01,1\n").channels == ("a",)


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
        ("20240301", "2024-03-01T00:00:00"),
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


def test_midnight_may_be_written_as_a_date(tmp_path: Path) -> None:
    ds = read(tmp_path, "ds,y\n2024-03-01,1\n2024-03-01 01:00:00,1\n").series[0].ds
    assert ds.tolist() == [1709251200000000000, 1709254800000000000]


def test_integer_times_stay_integers(tmp_path: Path) -> None:
    ds = read(tmp_path, "ds,y\n-1,1\n0,1\n5,1\n").series[0].ds
    assert (ds.dtype, ds.tolist()) == (np.int64, [-1, 0, 5])


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
        ("", {}, "'d.csv' is empty."),
        ("ds,y\n", {}, "'d.csv' has a header but no rows."),
        ("ds,y,y\n1,2,3\n", {}, "'d.csv' has the column 'y' twice. Rename one of them."),
        ("ds\n1\n", {}, "'d.csv' has no column of numbers besides ds."),
        (",ds,y\n0,1,2\n", {}, "'d.csv' has no name for column 1. Name it or remove it."),
        ("\nds,y\n1,2\n", {}, "'d.csv' begins with a blank row; the first row must name the columns."),
        (
            "ds,y\n1,2\n\n3,abc\n",
            {},
            "'d.csv' row 4, column 'y': 'abc' is not a number. Correct it, leave it empty if the value is missing, "
            "or name the columns to read by 'channels'.",
        ),
        (
            "ds,y\n1,2\n2,inf\n",
            {},
            "'d.csv' row 3, column 'y' is inf. Values must be finite float32 numbers; write a missing one as NaN.",
        ),
        (
            "ds,y\n1,2\n2,1e39\n",
            {},
            "'d.csv' row 3, column 'y' is 1e+39. Values must be finite float32 numbers; write a missing one as NaN.",
        ),
        (
            "ds,y\n2024-01-01,2\n31.01.2024,3\n",
            {},
            f"'d.csv' row 3, column 'ds': '31.01.2024' is not a time. {WORDING}",
        ),
        ("ds,y\n2024-02-30,2\n", {}, f"'d.csv' row 2, column 'ds': '2024-02-30' is not a time. {WORDING}"),
        ("ds,y\n3000-01-01,2\n", {}, f"'d.csv' row 2, column 'ds': '3000-01-01' is not a time. {WORDING}"),
        ("ds,y\n2024-01-01,2\n,3\n", {}, f"'d.csv' row 3, column 'ds': '' is not a time. {WORDING}"),
        ("unique_id,ds,y\na,1,2\n,2,3\n", {}, "'d.csv' row 3 has no 'unique_id'; each row must name its series."),
        (
            "a,b\n1,2\n",
            {},
            "'d.csv' has no column 'ds' and its first column 'a' does not hold dates. "
            "Name the time column; there are a, b.",
        ),
        (
            "ds,y\n2024-01-01,1\n2024-01-02,2\n2024-01-02,3\n",
            {},
            "'d.csv' has the time 2024-01-02 twice, in rows 3 and 4. "
            "Remove one of them, or name the column that tells series apart.",
        ),
        (
            "unique_id,ds,y\na,2024-01-01 05:00,1\nb,2024-01-01 05:00,2\na,2024-01-01 05:00,3\n",
            {},
            "'d.csv' has the time 2024-01-01 05:00:00 of series 'a' twice, in rows 2 and 4. "
            "Remove one of them, or name the column that tells series apart.",
        ),
        (
            "unique_id,ds,y\na,1,1\na,3,2\na,2,3\n",
            {},
            "'d.csv' is not sorted by time: row 4 of series 'a' has 2 after 3 in row 3. Sort the rows.",
        ),
        (
            f'ds,y\n1,"lorem\nipsum {"x" * 90}"\n',
            {},
            f"'d.csv' row 2, column 'y': 'lorem ipsum {'x' * 28}...' is not a number. Correct it, leave it empty if "
            "the value is missing, or name the columns to read by 'channels'.",
        ),
        (
            "ds,y\n1,2,3\n",
            {},
            "'d.csv' is not a CSV file with one header row (found more fields than defined in 'Schema').",
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
    with pytest.raises(DataError) as caught:
        read(tmp_path, text, **columns)
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"time_column": "dat"}, "Unknown column 'dat'. Did you mean 'date'? 'd.csv' has date, sales."),
        ({"id_column": "shop"}, "Unknown column 'shop'. 'd.csv' has date, sales."),
        ({"channels": ["sale"]}, "Unknown column 'sale'. Did you mean 'sales'? 'd.csv' has sales."),
    ],
)
def test_unknown_column_names_what_there_is(tmp_path: Path, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        read(tmp_path, "date,sales\n2024-01-01,1\n", **options)
    assert str(caught.value) == sentence


def test_of_many_columns_only_some_are_listed(tmp_path: Path) -> None:
    names = ",".join(f"c{i}" for i in range(50))
    with pytest.raises(UnknownNameError) as caught:
        read(tmp_path, f"ds,{names}\n1{',1' * 50}\n", ["zz"])
    assert str(caught.value) == (
        "Unknown column 'zz'. 'd.csv' has c0, c1, c2, c3, c4, c5, c6, c7, c8, c9, c10, c11 and 38 more."
    )


def test_a_series_may_be_called_na(tmp_path: Path) -> None:
    table = read(tmp_path, "unique_id,ds,y\nNA,1,1\nnull,1,NA\nNone,1,3\n")
    assert [one.unique_id for one in table.series] == ["NA", "null", "None"]
    assert table.notes["missing_values"] == 1


def test_months_without_a_dash_are_months(tmp_path: Path) -> None:
    ds = read(tmp_path, "ds,y\n202311,1\n202312,2\n202401,3\n").series[0].ds
    assert [str(stamp)[:10] for stamp in ds] == ["2023-11-01", "2023-12-01", "2024-01-01"]


@pytest.mark.parametrize("last", [202313, 202400], ids=["month 13", "month 0"])
def test_six_digits_that_are_no_months_are_integers(tmp_path: Path, last: int) -> None:
    ds = read(tmp_path, f"ds,y\n202311,1\n202312,2\n{last},3\n").series[0].ds
    assert (ds.dtype, ds.tolist()) == (np.int64, [202311, 202312, last])


def test_what_float32_cannot_tell_apart_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"{step},{step},{1_700_000_000 + 7 * step}\n" for step in range(300))
    with pytest.raises(DataError) as caught:
        read(tmp_path, "ds,y,counter\n" + rows)
    assert str(caught.value) == (
        "'d.csv' column 'counter' goes from 1700000000 to 1700002093, which float32 rounds by up to 64. "
        "Subtract an offset, such as 1700000000, from all of its values."
    )
