"""Tables in chunks: CSV and Parquet as frames of some hundred thousand rows, so that no file must fit into memory."""

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

# Cells of a chunk: enough to be fast, few enough for a small machine.
_CHUNK_CELLS = 1 << 21
_MIN_CHUNK_ROWS = 1 << 12
# A panic of polars is no Exception; a few flipped bits cause one.
_DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
# The header of a CSV file is row 1 and numbering starts at 1, so this is what editors and spreadsheets show.
_FIRST_ROW = {".csv": 2, ".parquet": 1}
_OTHER_SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
_DECIMAL_COMMA = re.compile(r"\d,\d")


def first_row_number(path: Path) -> int:
    """Return the number of the first row of data."""
    return _FIRST_ROW[detect_format(path)]


def read_column_names(path: Path) -> list[str]:
    """Return the names of a table's columns.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is not a table.
    """
    if detect_format(path) == ".csv":
        return _read_header(path, next(read_text_blocks(path)))[0]
    return list(_scan_parquet(path).collect_schema())


def read_chunks(path: Path, columns: Sequence[str], counts: Counter[str] | None = None) -> Iterator[pl.DataFrame]:
    """Yield the rows of a table in their order, with at least these columns; cells of a CSV file are text.

    Args:
        path: The table.
        columns: The columns that are needed.
        counts: Gets ``short_rows``, rows of CSV with too few cells, whose missing cells are null.

    Raises:
        DataError: If the file is not a whole table, or has no rows.
    """
    return _read_csv_chunks(path, counts) if detect_format(path) == ".csv" else _read_parquet_chunks(path, columns)


def _read_csv_chunks(path: Path, counts: Counter[str] | None) -> Iterator[pl.DataFrame]:
    names: list[str] = []
    header = ""
    num_rows = 0
    for text in read_text_blocks(path):
        body = text
        if not names:
            names, header = _read_header(path, text)
            body = text[len(header) :]
        try:
            # With the header in front every block has all columns, and a row with more cells is refused.
            chunk = pl.read_csv(f"{header}{body}".encode(), infer_schema=False)
            chunk.columns = names
        except pl.exceptions.PolarsError as error:
            raise _bad_row_error(path, names, body, num_rows, error) from error
        # Rows are counted only if any may be short: then the last column has a null.
        if counts is not None and chunk[names[-1]].null_count():
            counts += Counter({"short_rows": _count_short_rows(body, len(names), len(chunk))})
        num_rows += len(chunk)
        yield chunk
    if not num_rows:
        raise errors.DataError(f"'{path.name}' has a header but no rows. Add a row for each series and time.")


def _count_short_rows(body: str, columns: int, rows: int) -> int:
    """Count the rows that are not blank and have fewer cells than there are columns."""
    if '"' in body:
        try:
            return sum(len(cells) < columns and any(map(str.strip, cells)) for cells in csv.reader(io.StringIO(body)))
        except csv.Error:
            # A cell longer than Python's reader takes: commas are counted instead, and those in quotes may hide a row.
            pass
    if body.count(",") == rows * (columns - 1):
        return 0
    return sum(line.count(",") < columns - 1 for line in body.split("\n") if line.strip(" \t,"))


def _read_header(path: Path, text: str) -> tuple[list[str], str]:
    """Return the names of the columns, and the text of the header."""
    lines = io.StringIO(text)
    reader = csv.reader(lines)
    try:
        names = [" ".join(name.split()) for name in next(reader)]
    except csv.Error as error:
        reason = str(error).removesuffix(".")
        raise errors.DataError(
            f"'{path.name}' is not a CSV file with one header row ({reason}). Write it again."
        ) from error
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if not any(names):
        raise errors.DataError(f"'{path.name}' begins with a blank row; the first row must name the columns.")
    if len(names) == 1:
        _refuse_other_separator(path, text)
    if duplicate is not None:
        raise errors.DataError(f"'{path.name}' has the column '{duplicate}' twice. Rename one of them.")
    return names, text[: lines.tell()]


def _refuse_other_separator(path: Path, text: str) -> None:
    header, *rows = text[: text.find("\n", text.find("\n") + 1)].split("\n")
    for mark, name in _OTHER_SEPARATORS.items():
        if mark in header:
            commas = " and write decimals by points" if any(map(_DECIMAL_COMMA.search, rows)) else ""
            raise errors.DataError(f"The header of '{path.name}' holds {name}; separate columns by commas{commas}.")


def _bad_row_error(path: Path, names: Sequence[str], body: str, num_rows: int, error: Exception) -> errors.DataError:
    """Return the error for rows that polars refuses, after ``num_rows`` others, with the first row that is wrong."""
    # The error of polars names no row, so they are read again here.
    reader = csv.reader(io.StringIO(body), strict=True)
    row, line = num_rows + _FIRST_ROW[".csv"], 0
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


def _scan_parquet(path: Path) -> pl.LazyFrame:
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
        raise _parquet_error(path, error) from error
    return scan


def _read_parquet_chunks(path: Path, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    scan = _scan_parquet(path).select(columns)
    try:
        rows = int(_scan_parquet(path).select(pl.len()).collect().item())
        if not rows:
            raise errors.DataError(
                f"'{path.name}' has no rows; its columns are {format_names(columns)}. Add a row for each series and "
                "time."
            )
        chunk_rows = max(_MIN_CHUNK_ROWS, _CHUNK_CELLS // len(columns))
        for first in range(0, rows, chunk_rows):
            # Row groups outside of the slice are not read.
            yield scan.slice(first, chunk_rows).collect()
    except _DAMAGE as error:
        raise _parquet_error(path, error) from error


def _parquet_error(path: Path, error: Exception) -> errors.DataError:
    reason = (str(error).splitlines() or ["no reason given"])[0]
    return errors.DataError(f"'{path.name}' is damaged or is not a Parquet file ({reason}). Write it again.")
