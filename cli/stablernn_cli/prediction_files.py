"""Files of predictions: CSV, Parquet or JSON lines, by the ending of their name."""

from __future__ import annotations

import csv
import io
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stablernn_cli.errors import CommandError, UsageError
from stablernn_cli.output import plain

Rows = Sequence[Sequence[Any]]
FORMATS = (".csv", ".parquet", ".jsonl")


def check_format(path: Path) -> None:
    """Raise unless the name of a file says what to write into it.

    Raises:
        UsageError: Naming the endings there are.
    """
    if path.suffix.lower() not in FORMATS:
        raise UsageError(
            f"--output must end in .csv, .parquet or .jsonl, which says what is written, got '{path}'. Choose another "
            "name."
        )


def csv_text(columns: Sequence[str], rows: Rows) -> str:
    """The rows as CSV with a header."""
    # str of a numpy float32 is the shortest text that reads back to the same number.
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([str(value) for value in row] for row in rows)
    return buffer.getvalue()


def write_predictions(path: Path, columns: Sequence[str], rows: Rows) -> None:
    """Write the rows as the ending of the name says, the whole file or nothing.

    Raises:
        CommandError: If the folder is not there or cannot be written to.
    """
    encode = {".csv": _csv, ".parquet": _parquet, ".jsonl": _json_lines}[path.suffix.lower()]
    content = encode(columns, rows)
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
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
        # An empty text stands where there is no number, as CSV has it.
        return pl.Series(columns[index], [None if value == "" else plain(value) for value in values])

    buffer = io.BytesIO()
    pl.DataFrame([column(index) for index in range(len(columns))]).write_parquet(buffer)
    return buffer.getvalue()
