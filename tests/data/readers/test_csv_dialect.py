"""How CSV files of other programs are written: delimiters, decimal marks and encodings are recognized."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stablernn.data.notes import describe_reading
from stablernn.data.options import Repairs
from stablernn.data.readers.csv_dialect import detect_delimiter
from stablernn.data.readers.tables import Table, open_table
from stablernn.errors import DataError

PLAIN = "ds,y,z\n2024-01-01,1.5,-20\n2024-01-02,2.25,1e3\n"


def read(folder: Path, content: str | bytes, **repairs: object) -> Table:
    path = folder / "d.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return open_table(path, repairs=Repairs(**repairs)).read()  # type: ignore[arg-type]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("mark", [".", ","])
def test_the_values_do_not_depend_on_delimiter_and_decimal_mark(tmp_path: Path, delimiter: str, mark: str) -> None:
    rows = [row.split(",") for row in PLAIN.splitlines()]
    cells = [[cell.replace(".", mark) for cell in row] for row in rows]
    quoted = [[f'"{cell}"' if delimiter in cell else cell for cell in row] for row in cells]
    table = read(tmp_path, "".join(delimiter.join(row) + "\n" for row in quoted))
    np.testing.assert_array_equal(table.series[0].values, np.float32([[1.5, -20], [2.25, 1000]]))
    assert ("delimiter" in table.notes) == (delimiter != ",")
    assert ("decimal_mark" in table.notes) == (mark == ",")


def test_points_between_thousands_are_left_out_of_numbers_with_decimal_commas(tmp_path: Path) -> None:
    table = read(tmp_path, "ds;y\n1;1.234,5\n2;-12.345.678,25\n3;7\n4;0,5\n")
    np.testing.assert_array_equal(table.series[0].values[:, 0], np.float32([1234.5, -12345678.25, 7, 0.5]))


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("ds,load; kW\n2024-01-01,5\n2024-01-02,6\n", ","),
        ("Zeit;Leistung (kW, Mittel)\n2024-01-01 00:00;1,5\n2024-01-01 01:00;2,5\n", ";"),
        ('ds;"y;z";a\n1;2;3\n', ";"),
        ("ds\n1\n2\n", ","),
        ("ds,a|b,y\n1,2,3\n", ","),
    ],
)
def test_a_mark_in_a_name_is_no_delimiter(text: str, delimiter: str) -> None:
    assert detect_delimiter(text) == delimiter


def test_commas_that_may_separate_thousands_are_refused_until_the_mark_is_set(tmp_path: Path) -> None:
    text = "ds\ty\n1\t1,234\n2\t5,678\n"
    with pytest.raises(DataError) as caught:
        read(tmp_path, text)
    assert str(caught.value) == (
        "'d.csv' has numbers such as '1,234', whose comma may separate decimals or thousands. If it separates "
        "decimals, set data.decimal_mark=','; else write the numbers without commas."
    )
    assert caught.value.settings == {"decimal_mark": ","}
    np.testing.assert_array_equal(
        read(tmp_path, text, decimal_mark=",").series[0].values[:, 0], np.float32([1.234, 5.678])
    )
    with pytest.raises(DataError, match=r"row 2, column 'y': '1,234' is not a number"):
        read(tmp_path, text, decimal_mark=".")


def test_names_of_series_keep_their_commas(tmp_path: Path) -> None:
    table = read(tmp_path, "unique_id;ds;y\n1,5;1;2,5\n")
    assert (table.series[0].unique_id, table.series[0].values.item()) == ("1,5", 2.5)


def test_wrong_rows_are_named_in_any_dialect(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, "ds;y\n1;2\n2;3;4\n")
    assert str(caught.value) == (
        "'d.csv' row 3 has 3 cells, the header has 2 columns (ds, y). Name all columns in the first row, put cells "
        "that hold semicolons in quotes."
    )
    assert read(tmp_path, "ds;y;z\n1;2,5\n2;3;4\n").notes["short_rows"] == 1


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("utf-8", None),
        ("utf-8-sig", "UTF-8 with a byte order mark"),
        ("utf-16", "UTF-16"),
        ("cp1252", "Windows-1252"),
        ("latin-1", "Windows-1252"),
    ],
)
@pytest.mark.parametrize("block", [3, 1 << 22])
def test_the_text_does_not_depend_on_the_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, name: str | None, block: int
) -> None:
    monkeypatch.setattr("stablernn.data.readers.paths._BLOCK_BYTES", block)
    text = "unique_id,ds,y\nZähler Süd,1,2\nStraße,1,3\nplain,1,4\n"
    table = read(tmp_path, text.encode(encoding))
    assert [each.unique_id for each in table.series] == ["Zähler Süd", "Straße", "plain"]
    assert table.notes.get("encoding") == name


@pytest.mark.parametrize("block", [8, 1 << 22])
@pytest.mark.parametrize("first", ["utf-8", "cp1252"])
def test_a_file_of_two_encodings_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, block: int
) -> None:
    monkeypatch.setattr("stablernn.data.readers.paths._BLOCK_BYTES", block)
    second = "cp1252" if first == "utf-8" else "utf-8"
    content = "unique_id,ds,y\nSüd,1,2\n".encode(first) + b"a,1,1\n" + "Süd,2,3\n".encode(second)
    with pytest.raises(DataError, match=r"^'d\.csv' has text of two encodings, UTF-8 and another one, such as files"):
        read(tmp_path, content)


def test_damaged_utf16_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^'d\.csv' begins as UTF-16 text and does not go on as such"):
        read(tmp_path, "ds,y\n1,2\n".encode("utf-16")[:-1])


def test_days_come_first_between_points(tmp_path: Path) -> None:
    table = read(tmp_path, "ds;y\n01.02.2024 13:30;1\n02.02.2024 13:30;2\n")
    assert table.series[0].ds[0] == np.datetime64("2024-02-01T13:30")


def test_what_was_recognized_is_described() -> None:
    notes = {"encoding": "UTF-16", "delimiter": "tabs", "decimal_mark": "comma", "rows": 3}
    assert describe_reading(notes) == "UTF-16, tabs, decimal commas"
    assert describe_reading({}) == ""
