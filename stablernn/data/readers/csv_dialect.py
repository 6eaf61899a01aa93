"""Recognition of how a CSV file is written: what separates its columns, and what its decimals."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from stablernn import errors
from stablernn.data.messages import quote

#: What may separate columns, with the name in messages; of equally good ones the first is taken.
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_SAMPLE_ROWS = 50
# Numbers with a decimal comma, perhaps with points between thousands; numbers and times as every table has them.
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)?,\d+([eE][+-]?\d+)?")
_THOUSANDS_COMMA = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|\d{4}[-/]\d\d?([-/]\d\d?([ T][\d:.+Zz-]*)?)?|")
# As a pattern of polars, which is that of Rust and has no look-around.
_DECIMAL_COMMA_CELL = r"^\s*[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+)?,\d+(?:[eE][+-]?\d+)?\s*$"


@dataclass(frozen=True)
class Dialect:
    """Delimiter and decimal mark of a CSV file.

    Attributes:
        delimiter: The character between columns.
        has_decimal_commas: Whether decimals may be separated by commas, as in ``1,5``.
    """

    delimiter: str = ","
    has_decimal_commas: bool = False


def detect_dialect(path: Path, text: str, decimal_mark: str | None = None) -> Dialect:
    """Return the dialect of a file that begins with this text, whole rows of it.

    Between semicolons a comma in a number is always a decimal mark. Between others it is one if the first rows have a
    number whose comma cannot separate thousands.

    Args:
        path: The file, for messages.
        text: Its first rows.
        decimal_mark: Mark of decimals; None to recognize it.

    Raises:
        DataError: If commas in numbers may as well separate thousands.
    """
    delimiter = detect_delimiter(text)
    if decimal_mark is not None:
        return Dialect(delimiter, decimal_mark == ",")
    return Dialect(delimiter, _has_decimal_commas(path, text, delimiter))


def detect_delimiter(text: str) -> str:
    """Return the character between the columns of a text.

    It is the one with which most rows have as many cells as the header and most cells are numbers or dates.
    """
    sample = _first_rows(text)
    header = next(iter(sample.splitlines()), "")
    candidates = [mark for mark in DELIMITERS if mark in header]
    # Most files have one candidate, which needs no comparison.
    if len(candidates) > 1:
        return max(candidates, key=lambda mark: _score(sample, mark))
    return candidates[0] if candidates else ","


def replace_decimal_commas(cells: pl.Series) -> pl.Series:
    """Return text with numbers such as ``1.234,5`` written as ``1234.5``; other text stays as it is."""
    is_number = cells.str.contains(_DECIMAL_COMMA_CELL)
    if not is_number.any():
        return cells
    numbers = cells.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
    return numbers.zip_with(is_number.fill_null(False), cells)


def _first_rows(text: str) -> str:
    end = -1
    for _ in range(_SAMPLE_ROWS + 1):
        end = text.find("\n", end + 1)
        if end < 0:
            return text.lstrip("\n")
    return text[:end].lstrip("\n")


def _rows(sample: str, delimiter: str) -> list[list[str]]:
    try:
        return [row for row in csv.reader(io.StringIO(sample), delimiter=delimiter) if row]
    except csv.Error:
        # A cell longer than Python's reader takes: not a table with this delimiter.
        return []


def _score(sample: str, delimiter: str) -> tuple[float, float]:
    header, *rows = _rows(sample, delimiter) or [[]]
    if not rows or len(header) < 2:
        return (0.0, 0.0)
    cells = [cell.strip() for row in rows for cell in row]
    typed = sum(bool(_PLAIN.fullmatch(cell) or _DECIMAL_COMMA.fullmatch(cell)) for cell in cells)
    return sum(len(row) == len(header) for row in rows) / len(rows), typed / len(cells)


def _has_decimal_commas(path: Path, text: str, delimiter: str) -> bool:
    # Programs write semicolons where a comma is the decimal mark.
    if delimiter == ";":
        return True
    # Between commas, decimal commas stand in quotes.
    if delimiter == "," and '"' not in text:
        return False
    _, *rows = _rows(text, delimiter) or [[]]
    commas = [cell for cell in _cells(rows) if _DECIMAL_COMMA.fullmatch(cell)]
    if not commas:
        return False
    if all(_THOUSANDS_COMMA.fullmatch(cell) for cell in commas):
        raise errors.DataError(
            f"'{path.name}' has numbers such as {quote(commas[0])}, whose comma may separate decimals or thousands. "
            "If it separates decimals, set data.decimal_mark=','; else write the numbers without commas.",
            settings={"decimal_mark": ","},
        )
    return True


def _cells(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    return (cell.strip() for row in rows for cell in row if "," in cell)
