"""Tables in chunks: CSV and Parquet as frames of some hundred thousand rows, so that no file must fit into memory.

A sheet of a workbook, which has a million rows at most, is one chunk.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from stablernn import errors
from stablernn.data.messages import format_names, pluralize, quote
from stablernn.data.options import Repairs
from stablernn.data.readers.cells import NumberMarks
from stablernn.data.readers.csv_dialect import DELIMITERS, Header, check_names, read_header
from stablernn.data.readers.paths import (
    SIGNATURE_BYTES,
    check_regular,
    check_signature,
    detect_format,
    empty_file_error,
    read_text_blocks,
)
from stablernn.data.readers.workbooks import read_sheet, read_sheet_names
from stablernn.data.types import Notes

CHUNK_CELLS = 1 << 21
"""Cells of a chunk: enough to be fast, few enough for a small machine."""
_MIN_CHUNK_ROWS = 1 << 12
_HEADER_BYTES = 1 << 18
"""Beginning of a CSV file by which its header is recognized; more where a row is longer."""
# A second table with annotations of its own.
_ANNOTATION = re.compile(r"^#(?:group|datatype|default)\b", re.MULTILINE)
# A panic of polars is no Exception; a few flipped bits cause one.
_DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
# The header of a sheet is row 1 and numbering starts at 1, so this is what spreadsheets show.
_FIRST_ROW = {".parquet": 1, ".xlsx": 2}


def first_row_number(path: Path) -> int:
    """Return the number of the first row of data."""
    file_format = detect_format(path)
    return _read_header(path).first_row if file_format == ".csv" else _FIRST_ROW[file_format]


def read_column_names(path: Path, repairs: Repairs | None = None, *, may_lack_names: bool = False) -> list[str]:
    """Return the names of a table's columns.

    Args:
        path: The table.
        repairs: Used is the sheet of a workbook.
        may_lack_names: As of :func:`read_header`.

    Raises:
        UnknownNameError: If there is no such file or sheet.
        DataError: If it is not a table.
    """
    file_format = detect_format(path)
    if file_format == ".csv":
        first, *others = _read_header(path, may_lack_names=may_lack_names).names
        return [first, *filter(None, others)]
    if file_format == ".xlsx":
        names = read_sheet_names(path, repairs.sheet if repairs is not None else None)
        check_names(path, names)
        if "" in names[1:]:
            raise _unnamed_column_error(path, names.index("", 1))
        return names
    return list(_scan_parquet(path).collect_schema())


def read_chunks(
    path: Path,
    columns: Sequence[str],
    notes: Notes | None = None,
    repairs: Repairs | None = None,
    *,
    verbatim: Sequence[str | None] = (),
    cells: int = CHUNK_CELLS,
    is_lenient: bool = False,
    may_lack_names: bool = False,
) -> Iterator[pl.DataFrame]:
    """Yield the rows of a table in their order, with at least these columns; cells of a CSV file are text.

    Args:
        path: The table.
        columns: The columns that are needed.
        notes: Gets, of CSV, ``short_rows``, rows with too few cells, whose missing cells are null; ``encoding`` and
            ``delimiter`` where they are not UTF-8 and commas; and what :class:`NumberMarks` adds. Complete after the
            last row.
        repairs: Used are the sheet of a workbook and the marks of numbers.
        verbatim: Columns whose text is not read as numbers, such as times and names of series. Numbers in the others
            are written as ``1017.5``.
        cells: Cells of a chunk of Parquet.
        is_lenient: Whether numbers stay as they are in a column that :class:`NumberMarks` would refuse.
        may_lack_names: As of :func:`read_header`.

    Raises:
        DataError: If the file is not a whole table, or has no rows, or the marks of a column's numbers are open.
    """
    notes, repairs = Notes() if notes is None else notes, repairs or Repairs()
    file_format = detect_format(path)
    header = _read_header(path, may_lack_names=may_lack_names) if file_format == ".csv" else None

    def read(notes: Notes) -> Iterator[pl.DataFrame]:
        if header is not None:
            return _read_csv_chunks(path, header, notes)
        return (
            iter([read_sheet(path, repairs.sheet)])
            if file_format == ".xlsx"
            else _read_parquet_chunks(path, columns, cells)
        )

    # Programs write semicolons where a comma is the decimal mark.
    usual = "," if header is not None and header.delimiter == ";" else "."
    marks = NumberMarks(
        path.name,
        repairs,
        usual,
        lambda: read(Notes()),
        notes,
        is_certain=header is not None and header.delimiter in (",", ";"),
        is_lenient=is_lenient,
    )
    numeric = [name for name in dict.fromkeys(columns) if name not in verbatim]
    return (marks.replace(chunk, numeric) for chunk in read(notes))


def _read_csv_chunks(path: Path, header: Header, notes: Notes) -> Iterator[pl.DataFrame]:
    if header.delimiter != ",":
        notes["delimiter"] = DELIMITERS[header.delimiter]
    num_rows, end = 0, header.end
    for text in read_text_blocks(path, notes):
        body, end = text[end:], max(0, end - len(text))
        if header.is_annotated and (table := _ANNOTATION.search(body)):
            row = num_rows + header.first_row + body.count("\n", 0, table.start())
            raise errors.DataError(
                f"'{path.name}' row {row} begins another table of InfluxDB's annotated CSV. Write each table to a file."
            )
        try:
            # With the header in front every block has all columns, and a row with more cells is refused.
            chunk = pl.read_csv(f"{header.line}{body}".encode(), infer_schema=False, separator=header.delimiter)
        except pl.exceptions.PolarsError as error:
            raise _bad_row_error(path, header, body, num_rows, error) from error
        chunk = _with_names(path, header, chunk)
        # Rows are counted only if any may be short: then the last column has a null.
        if chunk[:, -1].null_count():
            columns = max(index for index, name in enumerate(header.names, start=1) if name or index == 1)
            short_rows = _count_short_rows(body, columns, len(chunk), header.delimiter)
            if short_rows:
                notes["short_rows"] = notes.get("short_rows", 0) + short_rows
        num_rows += len(chunk)
        yield chunk
    if not num_rows:
        raise errors.DataError(f"'{path.name}' has a header but no rows. Add a row for each series and time.")


def _read_header(path: Path, *, may_lack_names: bool = False) -> Header:
    text = next(read_text_blocks(path, block_bytes=_HEADER_BYTES))
    return read_header(path, text, may_lack_names=may_lack_names)


def _with_names(path: Path, header: Header, chunk: pl.DataFrame) -> pl.DataFrame:
    """Return a chunk with the names of its columns, without empty ones that have none, as of a delimiter at the end."""
    for index, name in enumerate(header.names):
        if index and not name and chunk[:, index].str.strip_chars().replace("", None).null_count() < len(chunk):
            raise _unnamed_column_error(path, index)
    columns = [index for index, name in enumerate(header.names) if name or not index]
    chunk = chunk[:, columns] if len(columns) < len(header.names) else chunk
    chunk.columns = [header.names[index] for index in columns]
    return chunk


def _unnamed_column_error(path: Path, index: int) -> errors.DataError:
    return errors.DataError(f"'{path.name}' has no name for column {index + 1}. Name it or remove it.")


def _count_short_rows(body: str, columns: int, rows: int, delimiter: str) -> int:
    """Count the rows that are not blank and have fewer cells than there are columns."""
    if '"' in body:
        try:
            reader = csv.reader(io.StringIO(body), delimiter=delimiter)
            return sum(len(cells) < columns and any(map(str.strip, cells)) for cells in reader)
        except csv.Error:
            # A cell longer than Python's reader takes: delimiters are counted instead, and quoted ones may hide a row.
            pass
    if body.count(delimiter) == rows * (columns - 1):
        return 0
    lines = (line for line in body.split("\n") if line.strip(f" \t{delimiter}"))
    return sum(line.count(delimiter) < columns - 1 for line in lines)


def _bad_row_error(path: Path, header: Header, body: str, num_rows: int, error: Exception) -> errors.DataError:
    """Return the error for rows that polars refuses, after ``num_rows`` others, with the first row that is wrong."""
    # The error of polars names no row, so they are read again here.
    reader = csv.reader(io.StringIO(body), strict=True, delimiter=header.delimiter)
    separators, names = DELIMITERS[header.delimiter], [name for name in header.names if name]
    decimals = ", and write decimals by points" if header.delimiter == "," else ""
    row, line = num_rows + header.first_row, 0
    try:
        for cells in reader:
            if len(cells) > len(header.names):
                return errors.DataError(
                    f"'{path.name}' row {row} has {pluralize(len(cells), 'cell')}, the header has "
                    f"{pluralize(len(names), 'column')} ({format_names(names)}). Name all columns in the first row, "
                    f"put cells that hold {separators} in quotes{decimals}."
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
    check_regular(path)
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


def _read_parquet_chunks(path: Path, columns: Sequence[str], cells: int) -> Iterator[pl.DataFrame]:
    scan = _scan_parquet(path)
    try:
        rows = int(scan.select(pl.len()).collect().item())
        if not rows:
            raise errors.DataError(
                f"'{path.name}' has no rows; its columns are {format_names(columns)}. Add a row for each series and "
                "time."
            )
        chunk_rows = max(_MIN_CHUNK_ROWS, cells // len(columns))
        for first in range(0, rows, chunk_rows):
            # Row groups outside of the slice are not read.
            yield scan.select(columns).slice(first, chunk_rows).collect()
    except _DAMAGE as error:
        raise _parquet_error(path, error) from error


def _parquet_error(path: Path, error: Exception) -> errors.DataError:
    reason = (str(error).splitlines() or ["no reason given"])[0]
    return errors.DataError(f"'{path.name}' is damaged or is not a Parquet file ({reason}). Write it again.")
