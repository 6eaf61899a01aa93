"""How CSV files of other programs are written: delimiters, decimal marks and encodings are recognized."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stablernn.data.messages import describe_reading
from stablernn.data.options import Repairs
from stablernn.data.table.chunks import detect_delimiter
from stablernn.data.table.series import Table, open_table
from stablernn.errors import ConfigError, DataError

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


# Cells of a column, the delimiter of their file, and what they mean.
COLUMNS = {
    "one cell has both marks": (["980", "1.017,50", "985,5", "1.008"], ";", [980, 1017.5, 985.5, 1008]),
    "thousands twice": (["1.234", "-12.345.678,25", "7"], ";", [1234, -12345678.25, 7]),
    "commas for thousands": (["980.25", "1,017.25", "1,008"], ",", [980.25, 1017.25, 1008]),
    "three fixed decimals": (["10.123", "293.150", "11.250"], ",", [10.123, 293.15, 11.25]),
    "fixed decimals and a code": (["10.123", "-999", "11.250"], ",", [10.123, -999, 11.25]),
    "fixed decimal commas": (["10,123", "293,150"], ";", [10.123, 293.15]),
    "a number below one": (["0.980", "1.017", "980"], ";", [0.98, 1.017, 980]),
    "exponents": (["1.017e3", "980", "1.008"], ";", [1017, 980, 1.008]),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("block", [8, 1 << 22])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_column_of_numbers_is_read_in_one_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, block: int, is_reversed: bool
) -> None:
    """Also where the cells that decide lie in another block of the file than the others."""
    monkeypatch.setattr("stablernn.data.files._BLOCK_BYTES", block)
    cells, delimiter, values = COLUMNS[name]
    step = -1 if is_reversed else 1
    rows = [f'{number}{delimiter}"{cell}"\n' for number, cell in enumerate(cells[::step])]
    table = read(tmp_path, f"ds{delimiter}y\n{''.join(rows)}")
    np.testing.assert_array_equal(table.series[0].values[:, 0], np.float32(values[::step]))


def test_what_a_column_leaves_open_the_others_decide(tmp_path: Path) -> None:
    table = read(tmp_path, "ds;y;z\n1;980;0,5\n2;1.017;12,25\n")
    np.testing.assert_array_equal(table.series[0].values, np.float32([[980, 0.5], [1017, 12.25]]))
    assert describe_reading(table.notes) == "semicolons, decimal commas, points between thousands"
    table = read(tmp_path, 'ds,y,z\n1,980,0.5\n2,"1,017",12.25\n')
    np.testing.assert_array_equal(table.series[0].values, np.float32([[980, 0.5], [1017, 12.25]]))


@pytest.mark.parametrize(
    ("text", "settings", "mark", "decimals", "thousands"),
    [
        ("ds;y\n1;980\n2;1.017\n", {"thousands_mark": "."}, ".", [980, 1.017], [980, 1017]),
        ("ds,y\n1,980\n2,1.017\n", {}, ".", [980, 1.017], [980, 1017]),
        ("ds\ty\n1\t1,234\n2\t5,678\n", {"decimal_mark": ","}, ",", [1.234, 5.678], [1234, 5678]),
        ('ds,y\n1,1.234\n2,"5,678"\n', {}, ".", [1.234, 5678], [1234, 5.678]),
    ],
    ids=["points", "usual points", "commas alone", "both"],
)
def test_numbers_that_stay_open_are_refused_with_both_readings(
    tmp_path: Path, text: str, settings: dict[str, str], mark: str, decimals: list[float], thousands: list[float]
) -> None:
    """No setting that is proposed makes 1.017 of a number beside 980."""
    with pytest.raises(
        DataError, match=rf"thousands, .* decimals\. .*thousands_mark='\{mark}', .*decimal_mark="
    ) as caught:
        read(tmp_path, text)
    assert caught.value.settings == settings
    values = read(tmp_path, text, decimal_mark=mark).series[0].values[:, 0]
    np.testing.assert_array_equal(values, np.float32(decimals))
    values = read(tmp_path, text, thousands_mark=mark).series[0].values[:, 0]
    np.testing.assert_array_equal(values, np.float32(thousands))


@pytest.mark.parametrize("block", [8, 1 << 22])
@pytest.mark.parametrize(
    ("text", "repairs", "sentence"),
    [
        ("ds;y\n1;985.25\n2;7\n3;1.017,5\n", {}, "'985.25', which has a decimal point, and '1.017,5'"),
        ("ds;y\n1;980\n2;1.017\n3;12.5\n", {"decimal_mark": ","}, "'12.5', which has a decimal point, beside '1.017'"),
        ("ds;y\n1;980\n2;12,5\n3;x\n", {}, "row 4, column 'y': 'x' is not a number"),
        ("ds;y\n1;980,5\n2;1.0170\n", {"decimal_mark": ","}, "'1.0170'"),
    ],
    ids=["two marks", "another mark than that of the option", "no number", "no thousands"],
)
def test_numbers_that_contradict_the_others_or_an_option_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, text: str, repairs: dict[str, str], sentence: str
) -> None:
    monkeypatch.setattr("stablernn.data.files._BLOCK_BYTES", block)
    with pytest.raises(DataError, match=sentence):
        read(tmp_path, text, **repairs)


@pytest.mark.parametrize(
    ("text", "mark", "setting", "values"),
    [
        ("ds;y\n1;980,5\n2;1 017,25\n3;1\u202f234\u202f567\n", " ", "=' '", [980.5, 1017.25, 1234567]),
        ("ds,y\n1,980.5\n2,1'017.25\n3,-1\u2019234\n", "'", '="\'"', [980.5, 1017.25, -1234]),
    ],
    ids=["blanks", "apostrophes"],
)
def test_other_thousands_marks_are_named_and_read(
    tmp_path: Path, text: str, mark: str, setting: str, values: list[float]
) -> None:
    with pytest.raises(DataError, match=f"row 3, .* data.thousands_mark{setting}") as caught:
        read(tmp_path, text)
    assert caught.value.settings == {"thousands_mark": mark}
    table = read(tmp_path, text, thousands_mark=mark)
    np.testing.assert_array_equal(table.series[0].values[:, 0], np.float32(values))
    with pytest.raises(ConfigError, match="decimal_mark and thousands_mark"):
        read(tmp_path, text, thousands_mark=",", decimal_mark=",")


@pytest.mark.parametrize(
    ("text", "delimiter"),
    [
        ("ds,load; kW\n2024-01-01,5\n2024-01-02,6\n", ","),
        ("Zeit;Leistung (kW, Mittel)\n2024-01-01 00:00;1,5\n2024-01-01 01:00;2,5\n", ";"),
        ('ds;"y;z";a\n1;2;3\n', ";"),
    ],
)
def test_a_mark_in_a_name_is_no_delimiter(text: str, delimiter: str) -> None:
    assert detect_delimiter(text) == delimiter


@pytest.mark.parametrize("block", [8, 1 << 22])
@pytest.mark.parametrize(
    "text",
    [
        ",ds,y\n0,1,5\n1,2,6\n",
        "Unnamed: 0,ds,y\n0,1,5\n1,2,6\n",
        '"","ds","y"\n"1",1,5\n"2",2,6\n',
        ",Unnamed: 0,ds,y,\n0,0,1,5,\n1,1,2,6,\n",
        "ds,y,\n1,5,\n2,6,\n",
        "ds,y\n1,5,\n2,6,\n",
        "ds;y;;\n1;5;;\n2;6\n",
        "sep=;\nds;y\n1;5\n2;6\n",
        '"sep=\t"\nds\ty\n1\t5\n2\t6\n',
        "#group,false,false,false\n#datatype,string,long,long\n#default,mean,,\n,result,ds,y\n,,1,5\n,,2,6\n",
    ],
    ids=[
        *("index", "index read again", "row names of R", "index twice", "delimiter at the end"),
        *("delimiter after values", "two delimiters at the end", "sep", "sep in quotes", "annotations"),
    ],
)
def test_what_other_programs_write_beside_the_columns_is_no_channel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, text: str
) -> None:
    monkeypatch.setattr("stablernn.data.files._BLOCK_BYTES", block)
    path = tmp_path / "d.csv"
    path.write_text(text)
    table = open_table(path).read(None if "result" not in text else ["y"])
    assert (table.channels, table.series[0].ds.tolist()) == (("y",), [1, 2])
    np.testing.assert_array_equal(table.series[0].values, [[5], [6]])
    assert "short_rows" not in table.notes
    # The index is named among the columns that are left out, and the rows are those that an editor shows.
    assert ("ignored_columns" in table.notes) == (text[0] in ',"UR#' and "sep" not in text)
    path.write_text(text.replace("6", "x"))
    with pytest.raises(DataError, match=rf"row {text[: text.index('6')].count(chr(10)) + 1}, column 'y': 'x'"):
        open_table(path).read(["y"])


def test_two_tables_of_influxdb_in_a_file_are_refused(tmp_path: Path) -> None:
    text = "#group,false,false\n,ds,y\n,1,5\n"
    with pytest.raises(DataError, match="row 5 begins another table of InfluxDB"):
        read(tmp_path, f"{text}\n{text}")


@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("utf-8", None),
        ("utf-8-sig", "UTF-8 with a byte order mark"),
        ("utf-16", "UTF-16"),
        ("cp1252", "Windows-1252"),
    ],
)
@pytest.mark.parametrize("block", [3, 1 << 22])
def test_the_text_does_not_depend_on_the_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str, name: str | None, block: int
) -> None:
    monkeypatch.setattr("stablernn.data.files._BLOCK_BYTES", block)
    text = "unique_id,ds,y\nZähler Süd,1,2\nStraße,1,3\nplain,1,4\n"
    table = read(tmp_path, text.encode(encoding))
    assert [each.unique_id for each in table.series] == ["Zähler Süd", "Straße", "plain"]
    assert table.notes.get("encoding") == name


@pytest.mark.parametrize("block", [8, 1 << 22])
@pytest.mark.parametrize("first", ["utf-8", "cp1252"])
def test_a_file_of_two_encodings_is_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, block: int
) -> None:
    monkeypatch.setattr("stablernn.data.files._BLOCK_BYTES", block)
    second = "cp1252" if first == "utf-8" else "utf-8"
    content = "unique_id,ds,y\nSüd,1,2\n".encode(first) + b"a,1,1\n" + "Süd,2,3\n".encode(second)
    with pytest.raises(DataError, match=r"^'d\.csv' has text of two encodings, UTF-8 and another one, such as files"):
        read(tmp_path, content)
