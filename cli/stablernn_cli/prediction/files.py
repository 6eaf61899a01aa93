"""Files of predictions: CSV, Parquet or JSON lines, by the suffix of the file name.

A table is its columns by name, lists, arrays or series of polars of one length; None is a missing cell.
"""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn_cli.errors import CommandError, UsageError
from stablernn_cli.output import plain

if TYPE_CHECKING:
    import polars as pl

Table = Mapping[str, Any]
FORMATS = (".csv", ".parquet", ".jsonl")


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


def csv_text(table: Table) -> str:
    """Return a table as CSV with a header."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(table)
    # str of a numpy float32 is the shortest text that reads back to the same number.
    rows = zip(*table.values(), strict=True)
    writer.writerows(["" if value is None else str(value) for value in row] for row in rows)
    return buffer.getvalue()


def write_predictions(path: Path, table: Table) -> None:
    """Write a table in the format of the suffix; a file that cannot be written whole is not replaced.

    Raises:
        CommandError: If the folder does not exist or cannot be written to.
    """
    encode = {".csv": _csv, ".parquet": _parquet, ".jsonl": _json_lines}[path.suffix.lower()]
    _write_bytes(path, encode(table))


def write_table(path: Path, table: Mapping[str, Any]) -> None:
    """Write columns, arrays of one length, in the format of the suffix; numbers that are missing are empty or null.

    Unlike :func:`write_predictions` it makes no object of each cell, for tables of millions of rows.

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
    _write_bytes(path, buffer.getvalue())


def _write_bytes(path: Path, content: bytes) -> None:
    temporary: str | None = None
    # In the same folder, so that os.replace is a rename within one file system.
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        # mkstemp makes files private; the result gets the mode of an ordinary new file. The mask can only be read by
        # setting it.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise CommandError(f"Cannot write '{path}': {error.strerror}. Choose another --output.") from error


def _csv(table: Table) -> bytes:
    return csv_text(table).encode()


def _json_lines(table: Table) -> bytes:
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in table_rows(table)).encode()


def _parquet(table: Table) -> bytes:
    import polars as pl

    buffer = io.BytesIO()
    pl.DataFrame([as_series(name, values) for name, values in table.items()]).write_parquet(buffer)
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
