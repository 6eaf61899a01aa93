"""Tables in pieces: CSV and Parquet as frames of some hundred thousand rows, so that no file must fit into memory."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from stablernn import errors
from stablernn.data.messages import format_names, pluralize, quote
from stablernn.data.readers.paths import (
    SIGNATURE_BYTES,
    check_signature,
    detect_format,
    empty_file_error,
    read_text_blocks,
)

# Cells of a piece: enough to be fast, few enough for a small machine.
_CELLS = 1 << 21
_FEWEST_ROWS = 1 << 12
# A panic is no Exception; a few flipped bits cause one.
_DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
# The header of a CSV file is row 1 and numbering starts at 1, so this is what editors and spreadsheets show.
_FIRST_ROW = {".csv": 2, ".parquet": 1}
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_DECIMAL_COMMA = re.compile(r"\d,\d")


def first_row_number(path: Path) -> int:
    """Number of the first row of data."""
    return _FIRST_ROW[detect_format(path)]


def read_column_names(path: Path) -> list[str]:
    """The names of a table's columns.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is not a table.
    """
    if detect_format(path) == ".csv":
        return _header(path, next(read_text_blocks(path)))[0]
    return list(_parquet(path).collect_schema())


def read_chunks(path: Path, columns: Sequence[str], counts: Counter[str] | None = None) -> Iterator[pl.DataFrame]:
    """The rows of a table in their order, at least these columns of them; cells of a CSV file are text.

    Args:
        path: The table.
        columns: What is needed of it.
        counts: Gets ``short_rows``, rows of CSV that have too few cells, of which the others are null.

    Raises:
        DataError: If the file is not a whole table, or has no rows.
    """
    return _csv_frames(path, counts) if detect_format(path) == ".csv" else _parquet_frames(path, columns)


def _csv_frames(path: Path, counts: Counter[str] | None) -> Iterator[pl.DataFrame]:
    names: list[str] = []
    head = ""
    rows = 0
    for text in read_text_blocks(path):
        body = text
        if not names:
            names, head = _header(path, text)
            body = text[len(head) :]
        try:
            frame = pl.read_csv(f"{head}{body}".encode(), infer_schema=False)
            frame.columns = names
        except pl.exceptions.PolarsError as error:
            raise _no_rows(path, names, body, rows, error) from error
        if counts is not None and frame[names[-1]].null_count():
            counts += Counter({"short_rows": _short_rows(body, len(names), len(frame))})
        rows += len(frame)
        yield frame
    if not rows:
        raise errors.DataError(f"'{path.name}' has a header but no rows. Add a row for each series and time.")


def _short_rows(body: str, columns: int, rows: int) -> int:
    """Rows that hold something, and fewer cells than there are columns."""
    if '"' in body:
        try:
            return sum(len(cells) < columns and any(map(str.strip, cells)) for cells in csv.reader(io.StringIO(body)))
        except csv.Error:
            # A cell longer than Python's reader takes; commas inside of quotes may hide a short row below.
            pass
    if body.count(",") == rows * (columns - 1):
        return 0
    return sum(line.count(",") < columns - 1 for line in body.split("\n") if line.strip(" \t,"))


def _header(path: Path, text: str) -> tuple[list[str], str]:
    """The names of the columns, and the text that they take up."""
    lines = io.StringIO(text)
    reader = csv.reader(lines)
    try:
        names = [" ".join(name.split()) for name in next(reader)]
    except csv.Error as error:
        reason = str(error).removesuffix(".")
        raise errors.DataError(
            f"'{path.name}' is not a CSV file with one header row ({reason}). Write it again."
        ) from error
    twice = next((name for name in names if names.count(name) > 1), None)
    if not any(names):
        raise errors.DataError(f"'{path.name}' begins with a blank row; the first row must name the columns.")
    if len(names) == 1:
        _refuse_other_separator(path, text)
    if twice is not None:
        raise errors.DataError(f"'{path.name}' has the column '{twice}' twice. Rename one of them.")
    return names, text[: lines.tell()]


def _refuse_other_separator(path: Path, text: str) -> None:
    header, *rows = text[: text.find("\n", text.find("\n") + 1)].split("\n")
    for mark, name in _OTHER_SEPARATORS.items():
        if mark in header:
            commas = " and write decimals by points" if any(map(_DECIMAL_COMMA.search, rows)) else ""
            raise errors.DataError(f"The header of '{path.name}' holds {name}; separate columns by commas{commas}.")


def _no_rows(path: Path, names: Sequence[str], body: str, before: int, error: Exception) -> errors.DataError:
    """What is wrong with rows that polars refuses, of which so many were read ``before``."""
    reader = csv.reader(io.StringIO(body), strict=True)
    row, line = before + _FIRST_ROW[".csv"], 0
    try:
        for cells in reader:
            if len(cells) > len(names):
                return errors.DataError(
                    f"'{path.name}' row {row} has {pluralize(len(cells), 'cell')}, the header has "
                    f"{pluralize(len(names), 'column')} ({format_names(names)}). Name all columns in the first row, "
                    "put cells that hold commas in quotes, and write decimals by points."
                )
            row, line = row + 1, reader.line_num
    except csv.Error:
        return errors.DataError(
            f"'{path.name}' row {row} has a quote that is not closed, or not at the end of its cell: "
            f"{quote(body.split(chr(10))[line])}. Close it, or remove it."
        )
    reason = (str(error).splitlines() or ["no reason given"])[0]
    return errors.DataError(f"'{path.name}' is not a CSV file with one header row ({reason}). Write it again.")


def _parquet(path: Path) -> pl.LazyFrame:
    if path.is_dir():
        raise errors.DataError(f"'{path}' is a folder. Give one of the files in it.")
    if not path.is_file():
        raise errors.UnknownNameError(f"No file '{path}'. Check the path.")
    if not path.stat().st_size:
        raise empty_file_error(path)
    with path.open("rb") as file:
        check_signature(path, file.read(SIGNATURE_BYTES))
    try:
        scan = pl.scan_parquet(path, glob=False)
        scan.collect_schema()
    except _DAMAGE as error:
        raise _no_parquet(path, error) from error
    return scan


def _parquet_frames(path: Path, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    scan = _parquet(path).select(columns)
    try:
        rows = int(_parquet(path).select(pl.len()).collect().item())
        if not rows:
            raise errors.DataError(
                f"'{path.name}' has no rows; its columns are {format_names(columns)}. Add a row for each series and "
                "time."
            )
        piece = max(_FEWEST_ROWS, _CELLS // len(columns))
        for first in range(0, rows, piece):
            # Row groups outside of the slice are not read.
            yield scan.slice(first, piece).collect()
    except _DAMAGE as error:
        raise _no_parquet(path, error) from error


def _no_parquet(path: Path, error: Exception) -> errors.DataError:
    reason = (str(error).splitlines() or ["no reason given"])[0]
    return errors.DataError(f"'{path.name}' is damaged or is not a Parquet file ({reason}). Write it again.")
