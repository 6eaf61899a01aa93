"""Recognition of how a CSV file is written: lines before its header, and what separates its columns."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from stablernn import errors
from stablernn.data.readers.cells import MISSING_CELLS
from stablernn.data.sequences import default_channel_names

#: What may separate columns, with the name in messages; of equally good ones the first is taken.
DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_SAMPLE_ROWS = 50
# Numbers with a decimal comma, perhaps with points between thousands; numbers and times as every table has them.
_DECIMAL_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)?,\d+([eE][+-]?\d+)?")
_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|\d{4}[-/]\d\d?([-/]\d\d?([ T][\d:.+Zz-]*)?)?|")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+|inf(inity)?)([eE][+-]?\d+)?", re.IGNORECASE)
_INTEGER = re.compile(r"\s*[+-]?\d+\s*")
# Excel takes the delimiter from a first line; InfluxDB writes annotations of the columns before their names.
_EXCEL_LINE = re.compile(r'"?sep=([,;\t|])"?[ ,;\t|]*\n', re.IGNORECASE)
_ANNOTATIONS = re.compile(r"(?:#(?:group|datatype|default)\b.*\n)+")


@dataclass(frozen=True)
class Header:
    """The beginning of a CSV file.

    Attributes:
        delimiter: The character between columns.
        names: Names of the columns, without repeated blanks; empty for columns without one.
        line: The text of the row of names; one that was made where the file has none.
        end: Number of characters up to the first row of data.
        first_row: Number of the first row of data; rows are counted from 1, also those before the header.
        is_annotated: Whether InfluxDB's annotations stand before the names.
    """

    delimiter: str
    names: list[str]
    line: str
    end: int
    first_row: int
    is_annotated: bool


def read_header(path: Path, text: str, *, may_lack_names: bool = False) -> Header:
    """Read the names of the columns of a file that begins with this text, whole rows of it.

    If the first row of data ends with a delimiter more than the names do, the columns have one without a name more.

    Args:
        path: The file, for messages.
        text: Its first rows.
        may_lack_names: Whether a first row of numbers belongs to the data, whose columns get default names.

    Raises:
        DataError: If the file has no row of names, names a column twice, or begins with a row that may be either.
    """
    excel, annotations = _EXCEL_LINE.match(text), _ANNOTATIONS.match(text)
    preamble = excel or annotations
    start = preamble.end() if preamble else 0
    delimiter = excel[1] if excel else detect_delimiter(text[start:] if start else text)
    reader = csv.reader(_lines(text, start), delimiter=delimiter)
    try:
        names = [" ".join(name.split()) for name in next(reader, [])]
    except csv.Error as error:
        reason = str(error).removesuffix(".")
        raise errors.DataError(
            f"'{path.name}' is not a CSV file with one header row ({reason}). Write it again."
        ) from error
    end = start + sum(map(len, islice(_lines(text, start), reader.line_num)))
    try:
        first_cells = next(reader, [])
    except csv.Error:
        # The reader of the rows names the row at fault.
        first_cells = []
    if may_lack_names and not _has_names(path, names, _rows(_first_rows(text[start:]), delimiter)[1:]):
        names = list(default_channel_names(len(names)))
        line = delimiter.join(names) + "\n"
        return Header(delimiter, names, line, start, text.count("\n", 0, start) + 1, is_annotated=False)
    check_names(path, names)
    line = text[start:end]
    if len(first_cells) == len(names) + 1 and not first_cells[-1].strip():
        names, line = [*names, ""], line.rstrip("\n") + delimiter + "\n"
    first_row = text.count("\n", 0, start) + 2
    return Header(delimiter, names, line, end, first_row, annotations is not None)


def check_names(path: Path, names: list[str]) -> None:
    """Refuse a table without names of columns, or with the same name for two of them."""
    duplicate = next((name for name in names if name and names.count(name) > 1), None)
    if not any(names):
        raise errors.DataError(f"'{path.name}' begins with a blank row; the first row must name the columns.")
    if duplicate is not None:
        raise errors.DataError(f"'{path.name}' has the column '{duplicate}' twice. Rename one of them.")


def _has_names(path: Path, first: list[str], rows: list[list[str]]) -> bool:
    """Return True if the first row of a file, before these, names the columns, False if all of it are numbers.

    Raises:
        DataError: If it holds 0, 1, 2, ..., as pandas names columns, and the numbers may be written like that.
    """
    cells = [cell for cell in first if cell]
    if not cells or not all(
        cell in MISSING_CELLS or _NUMBER.fullmatch(cell) or _DECIMAL_COMMA.fullmatch(cell) for cell in cells
    ):
        return True
    if cells != [str(index) for index in range(len(cells))]:
        return False
    columns = [index for index, cell in enumerate(first) if cell]
    # Programs write a number such as 0.5 next to 1.0, and not to 1.
    if not any(_INTEGER.fullmatch(row[index]) for row in rows for index in columns if index < len(row)):
        return True
    raise errors.DataError(
        f"'{path.name}' begins with {', '.join(cells)}, which may be the names of its columns or its first sample. "
        f"Name the columns in the first row, such as {', '.join(default_channel_names(len(cells)))}."
    )


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


def _lines(text: str, start: int) -> Iterator[str]:
    # Without a copy of the text, which has some megabytes.
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end


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
