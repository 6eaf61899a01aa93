"""Sheets of workbooks, as Excel saves them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import xlsxwriter

from stablernn.data import load_data
from stablernn.data.options import Repairs
from stablernn.data.table.series import Table, open_table
from stablernn.errors import DataError, StableRNNError, UnknownNameError

HEADER = ["unique_id", "ds", "y", "note"]


def write(path: Path, fill: Callable[[xlsxwriter.Workbook], None]) -> Path:
    with xlsxwriter.Workbook(path) as book:
        fill(book)
    return path


def rows(book: xlsxwriter.Workbook, name: str = "data") -> xlsxwriter.worksheet.Worksheet:
    """A sheet of two series with dates, numbers and text."""
    sheet = book.add_worksheet(name)
    day = book.add_format({"num_format": "dd/mm/yyyy"})
    sheet.write_row(0, 0, HEADER)
    for number in range(6):
        sheet.write_string(number + 1, 0, "ab"[number // 3])
        sheet.write_datetime(number + 1, 1, datetime(2024, 1, 1 + number % 3), day)
        if number != 4:
            sheet.write_number(number + 1, 2, number + 0.25)
        sheet.write_string(number + 1, 3, ["n/a", "x"][number % 2])
    return sheet


def read(path: Path, sheet: str | None = None, channels: list[str] | None = None) -> Table:
    return open_table(path, repairs=Repairs(sheet=sheet)).read(channels)


def test_dates_numbers_and_missing_cells(tmp_path: Path) -> None:
    table = read(write(tmp_path / "d.xlsx", lambda book: rows(book) and None), channels=["y"])
    assert [each.unique_id for each in table.series] == ["a", "b"]
    np.testing.assert_array_equal(table.series[1].values[:, 0], np.float32([3.25, np.nan, 5.25]))
    np.testing.assert_array_equal(
        table.series[0].ds, np.arange("2024-01-01", "2024-01-04", dtype="datetime64[D]").astype("datetime64[ns]")
    )
    assert table.notes["ignored_columns"] == ["note"]


def _formula(book: xlsxwriter.Workbook) -> None:
    rows(book).write_formula("C3", "=C2*2")


def _merged(book: xlsxwriter.Workbook) -> None:
    rows(book).merge_range("D4:D5", "x")


def _two(book: xlsxwriter.Workbook) -> None:
    rows(book), rows(book, "old")


@pytest.mark.parametrize(
    ("fill", "sheet", "kind", "sentence"),
    [
        (
            _formula,
            None,
            DataError,
            r"'d\.xlsx' sheet 'data' has a formula in cell C3",
        ),
        (
            _merged,
            None,
            DataError,
            r"'d\.xlsx' sheet 'data' has merged cells, D4:D5",
        ),
        (_two, None, DataError, r"'d\.xlsx' has 2 sheets \(data, old\).*data\.sheet"),
        (
            _two,
            "dat",
            UnknownNameError,
            "Unknown sheet 'dat'",
        ),
    ],
    ids=[
        "formula",
        "merged",
        "sheets",
        "unknown sheet",
    ],
)
def test_what_is_no_table_of_values_is_refused(
    tmp_path: Path,
    fill: Callable[[xlsxwriter.Workbook], None],
    sheet: str | None,
    kind: type[StableRNNError],
    sentence: str,
) -> None:
    with pytest.raises(kind, match=sentence):
        read(write(tmp_path / "d.xlsx", fill), sheet, ["y"])


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x03\x04 and no archive",
    ],
)
def test_a_damaged_workbook_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "d.xlsx").write_bytes(content)
    with pytest.raises(DataError, match=r"^'d\.xlsx' is "):
        load_data(tmp_path / "d.xlsx")


@pytest.mark.slow
def test_a_workbook_with_random_damage_is_read_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "d.xlsx", lambda book: rows(book) and None)
    content = path.read_bytes()
    random = np.random.default_rng(0)
    refusals = []
    for number in range(150):
        damaged = bytearray(content)
        if number % 3:
            for position in random.integers(len(damaged), size=1 + number % 5):
                damaged[position] = random.integers(256)
        else:
            del damaged[random.integers(len(damaged)) :]
        path.write_bytes(damaged)
        try:
            table = read(path, channels=["y"])
        except StableRNNError as error:
            refusals.append(str(error))
        else:
            assert table.channels[0] == "y"
    # An archive has checksums, so that nearly all damage is seen.
    assert len(refusals) > 100
    assert all(text.endswith(".") and "\n" not in text for text in refusals), refusals
