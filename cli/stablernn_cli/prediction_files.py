"""Files of predictions: CSV, Parquet or JSON lines, by the suffix of the file name."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stablernn_cli.errors import CommandError, UsageError
from stablernn_cli.output import plain

Rows = Sequence[Sequence[Any]]
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


def csv_text(columns: Sequence[str], rows: Rows) -> str:
    """Return the rows as CSV with a header."""
    # str of a numpy float32 is the shortest text that reads back to the same number.
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([str(value) for value in row] for row in rows)
    return buffer.getvalue()


def write_predictions(path: Path, columns: Sequence[str], rows: Rows) -> None:
    """Write the rows in the format of the suffix; a file that cannot be written whole is not replaced.

    Raises:
        CommandError: If the folder does not exist or cannot be written to.
    """
    encode = {".csv": _csv, ".parquet": _parquet, ".jsonl": _json_lines}[path.suffix.lower()]
    _write_bytes(path, encode(columns, rows))


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


def _csv(columns: Sequence[str], rows: Rows) -> bytes:
    return csv_text(columns, rows).encode()


def _json_lines(columns: Sequence[str], rows: Rows) -> bytes:
    lines = (json.dumps(dict(zip(columns, map(plain, row), strict=True)), ensure_ascii=False) for row in rows)
    return "".join(f"{line}\n" for line in lines).encode()


def _parquet(columns: Sequence[str], rows: Rows) -> bytes:
    import numpy as np
    import polars as pl

    def column(index: int) -> pl.Series:
        values = [row[index] for row in rows]
        if values and all(isinstance(value, np.generic) for value in values):
            return pl.Series(columns[index], np.array(values))
        # Rows have an empty text in place of a missing number, as CSV needs it; in Parquet it is null.
        return pl.Series(columns[index], [None if value == "" else plain(value) for value in values])

    buffer = io.BytesIO()
    pl.DataFrame([column(index) for index in range(len(columns))]).write_parquet(buffer)
    return buffer.getvalue()
