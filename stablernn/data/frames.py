"""Tables in pieces: CSV and Parquet as frames of some hundred thousand rows, so that no file must fit into memory."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from pathlib import Path

import polars as pl

from stablernn import errors
from stablernn.data.files import ending, text_blocks
from stablernn.data.wording import listing

# Cells of a piece: enough to be fast, few enough for a small machine.
_CELLS = 1 << 21
_FEWEST_ROWS = 1 << 12
# A panic is no Exception; a few flipped bits cause one.
_DAMAGE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
# The header of a CSV file is row 1 and numbering starts at 1, so this is what editors and spreadsheets show.
_FIRST_ROW = {".csv": 2, ".parquet": 1}


def first_row(path: Path) -> int:
    """Number of the first row of data."""
    return _FIRST_ROW[ending(path)]


def column_names(path: Path) -> list[str]:
    """The names of a table's columns.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is not a table.
    """
    if ending(path) == ".csv":
        return _header(path, next(text_blocks(path)))[0]
    return list(_parquet(path).collect_schema())


def frames(path: Path, columns: Sequence[str]) -> Iterator[pl.DataFrame]:
    """The rows of a table in their order, at least these columns of them; cells of a CSV file are text.

    Raises:
        DataError: If the file is not a whole table, or has no rows.
    """
    return _csv_frames(path) if ending(path) == ".csv" else _parquet_frames(path, columns)


def _csv_frames(path: Path) -> Iterator[pl.DataFrame]:
    names: list[str] = []
    head = ""
    rows = 0
    for text in text_blocks(path):
        body = text
        if not names:
            names, head = _header(path, text)
            body = text[len(head) :]
        try:
            frame = pl.read_csv(f"{head}{body}".encode(), infer_schema=False)
            frame.columns = names
        except pl.exceptions.PolarsError as error:
            raise _no_table(path, error) from error
        rows += len(frame)
        yield frame
    if not rows:
        raise errors.DataError(f"'{path.name}' has a header but no rows.")


def _header(path: Path, text: str) -> tuple[list[str], str]:
    """The names of the columns, and the text that they take up."""
    lines = io.StringIO(text)
    reader = csv.reader(lines)
    try:
        names = [" ".join(name.split()) for name in next(reader)]
    except csv.Error as error:
        raise _no_table(path, error) from error
    twice = next((name for name in names if names.count(name) > 1), None)
    if not any(names):
        raise errors.DataError(f"'{path.name}' begins with a blank row; the first row must name the columns.")
    if twice is not None:
        raise errors.DataError(f"'{path.name}' has the column '{twice}' twice. Rename one of them.")
    return names, text[: lines.tell()]


def _no_table(path: Path, error: Exception) -> errors.DataError:
    reason = (str(error).splitlines() or ["no reason given"])[0]
    return errors.DataError(f"'{path.name}' is not a CSV file with one header row ({reason}).")


def _parquet(path: Path) -> pl.LazyFrame:
    if path.is_dir():
        raise errors.DataError(f"'{path}' is a folder. Give one of the files in it.")
    if not path.is_file():
        raise errors.UnknownNameError(f"No file '{path}'. Check the path.")
    if not path.stat().st_size:
        raise errors.DataError(f"'{path.name}' is empty.")
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
            raise errors.DataError(f"'{path.name}' has no rows; its columns are {listing(columns)}.")
        piece = max(_FEWEST_ROWS, _CELLS // len(columns))
        for first in range(0, rows, piece):
            # Row groups outside of the slice are not read.
            yield scan.slice(first, piece).collect()
    except _DAMAGE as error:
        raise _no_parquet(path, error) from error


def _no_parquet(path: Path, error: Exception) -> errors.DataError:
    reason = (str(error).splitlines() or ["no reason given"])[0]
    return errors.DataError(f"'{path.name}' is damaged or is not a Parquet file ({reason}). Write it again.")
