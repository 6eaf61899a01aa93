"""Files of predictions: CSV, Parquet or JSON lines, by the suffix of the file name.

A table is its columns by name, lists, arrays or series of polars of one length; None is a missing cell.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from stablernn_cli.errors import CommandError, UsageError
from stablernn_cli.output import plain
from stablernn_registry.atomic_io import publish, replacing

if TYPE_CHECKING:
    import polars as pl

Table = Mapping[str, Any]
FORMATS = (".csv", ".parquet", ".jsonl")
_PART_ROWS = 1 << 14
"""Rows of a file of predictions that are held in memory."""


def check_format(path: Path) -> None:
    """Check that the suffix of a file is one of :data:`FORMATS`.

    Raises:
        UsageError: If it is not.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(
            f"--output must end in .csv, .parquet or .jsonl, which selects the format, got '{path}'. Choose another "
            "name."
        )


def table_rows(table: Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as JSON types."""
    for row in zip(*table.values(), strict=True):
        yield dict(zip(table, map(plain, row), strict=True))


def csv_text(table: Table, *, has_header: bool = True) -> str:
    """Return a table as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    if has_header:
        writer.writerow(table)
    # str of a numpy float32 is the shortest text that reads back to the same number.
    rows = zip(*table.values(), strict=True)
    writer.writerows(["" if value is None else str(value) for value in row] for row in rows)
    return buffer.getvalue()


class PredictionWriter:
    """Writes tables of the same columns one after the other to a file, which is there as a whole after :meth:`commit`.

    It holds some ten thousand rows. Those before them are in hidden files of the same folder, which are gone after the
    ``with`` block.

    Args:
        path: The file, in the format of its suffix; None for CSV on stdout.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._suffix = ".csv" if path is None else path.suffix.lower()
        self._pending: list[Table] = []
        self._parts: list[Path] = []
        self._pending_rows = self._stored_rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.clear()

    def __len__(self) -> int:
        """Return the rows of all tables."""
        return self._stored_rows + self._pending_rows

    def clear(self) -> None:
        """Drop all tables."""
        for part in self._parts:
            part.unlink(missing_ok=True)
        self._pending, self._parts = [], []
        self._pending_rows = self._stored_rows = 0

    def add(self, table: Table) -> None:
        """Add a table.

        Raises:
            CommandError: If the folder does not exist or cannot be written to.
        """
        rows = len(next(iter(table.values())))
        # Each part of a Parquet file is written twice, so that there should be few.
        if rows + self._pending_rows > _PART_ROWS:
            with self._named_errors():
                self._store_pending()
        self._pending.append(table)
        self._pending_rows += rows

    def commit(self) -> None:
        """Write the file, and replace one that is there.

        Raises:
            CommandError: As :meth:`add`.
        """
        if self._path is None and not self._parts:
            sys.stdout.write(_encode(".csv", self._pending, has_header=True).decode())
            return
        with self._named_errors():
            self._store_pending()
            if len(self._parts) > 1:
                self._concatenate_parquet()
        if self._path is None:
            with self._parts[0].open(encoding="utf-8", newline="") as file:
                shutil.copyfileobj(file, sys.stdout)
            return
        with self._named_errors():
            publish(self._parts[-1], self._path)

    def _store_pending(self) -> None:
        """Move the rows in memory to the disk."""
        if not self._pending:
            return
        content = _encode(self._suffix, self._pending, has_header=not self._parts)
        self._pending = []
        self._stored_rows, self._pending_rows = len(self), 0
        # Parquet has its index at the end, so that nothing can be appended to a file.
        if self._parts and self._suffix != ".parquet":
            with self._parts[0].open("ab") as file:
                file.write(content)
        else:
            self._new_part().write_bytes(content)

    def _concatenate_parquet(self) -> None:
        """Make one file of all parts, of which a few are in memory at a time."""
        import polars as pl

        rows = pl.scan_parquet(self._parts, glob=False)
        rows.sink_parquet(self._new_part())

    def _new_part(self) -> Path:
        # In the same folder, so that os.replace is a rename within one file system.
        folder, name = (None, "stablernn") if self._path is None else (self._path.parent, self._path.name)
        handle, part = tempfile.mkstemp(dir=folder, prefix=f".{name}.")
        os.close(handle)
        self._parts.append(Path(part))
        return self._parts[-1]

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise _write_error("the answers" if self._path is None else f"'{self._path}'", error) from error


def write_table(path: Path, table: Mapping[str, Any]) -> None:
    """Write columns, arrays of one length, in the format of the suffix; numbers that are missing are empty or null.

    Unlike :class:`PredictionWriter` it makes no object of each cell, for tables of millions of rows.

    Raises:
        CommandError: If the folder does not exist or cannot be written to.
    """
    import polars as pl

    frame = pl.DataFrame(dict(table)).with_columns(pl.selectors.float().fill_nan(None))
    buffer = io.BytesIO()
    if path.suffix.lower() == ".csv":
        frame.write_csv(buffer)
    elif path.suffix.lower() == ".parquet":
        frame.write_parquet(buffer)
    else:
        frame.write_ndjson(buffer)
    try:
        with replacing(path) as file:
            file.write(buffer.getvalue())
    except OSError as error:
        raise _write_error(f"'{path}'", error) from error


def _write_error(subject: str, error: OSError) -> CommandError:
    return CommandError(f"Cannot write {subject}: {error.strerror or error}. Choose another --output.")


def _encode(suffix: str, tables: Sequence[Table], *, has_header: bool) -> bytes:
    """Return the rows of tables as a file, or as a part of one that goes on."""
    if suffix == ".parquet":
        return _parquet(tables)
    if suffix == ".csv":
        parts = [csv_text(table, has_header=has_header and not number) for number, table in enumerate(tables)]
        return "".join(parts).encode()
    rows = (row for table in tables for row in table_rows(table))
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode()


def _parquet(tables: Sequence[Table]) -> bytes:
    import polars as pl

    frames = [pl.DataFrame([as_series(name, values) for name, values in table.items()]) for table in tables]
    buffer = io.BytesIO()
    pl.concat(frames, rechunk=True).write_parquet(buffer)
    return buffer.getvalue()


def as_series(name: str, values: Any) -> pl.Series:
    """Return a column of a table as polars has it."""
    import numpy as np
    import polars as pl

    if isinstance(values, np.ndarray | pl.Series):
        return pl.Series(name, values)
    if set(map(type, values)) == {str}:
        return pl.Series(name, values)
    if values and all(isinstance(value, np.generic) for value in values):
        return pl.Series(name, np.array(values))
    return pl.Series(name, [plain(value) for value in values])
