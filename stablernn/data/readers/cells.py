"""Cells of tables: text without blanks, missing ones, text as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from stablernn import errors

#: Cells that mean "no value", besides the empty one; in the column of names they are names.
MISSING_CELLS = ("NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?")
#: Number of a cell without text, as :func:`encode_text` gives it.
NO_TEXT = -1


class CellError(errors.DataError):
    """The error of a cell that holds no number of float32, with its row in the file and its column."""


def strip_cells(cells: pl.Series, missing: Sequence[str]) -> pl.Series:
    """Return text without outer blanks, null where it is one of the missing values; numbers as they are."""
    if cells.dtype in (pl.Categorical, pl.Enum):
        cells = cells.cast(pl.String)
    if cells.dtype != pl.String:
        return cells
    stripped = cells.str.strip_chars()
    is_missing = stripped.is_in(["", *missing])
    return stripped.set(is_missing, None) if is_missing.any() else stripped


def restore_integers(cells: pl.Series, numbers: pl.Series) -> pl.Series:
    """Return the Float64 numbers of cells as Int64 where float64 has rounded integers; others stay as they are."""
    if numbers.dtype != pl.Float64 or cells.dtype.is_float() or not (numbers.abs() > 2**53).any():
        return numbers
    integers = cells.cast(pl.Int64, strict=False)
    return integers if integers.null_count() == numbers.null_count() else numbers


def encode_text(cells: pl.Series, codes_of: dict[str, int]) -> Any:
    """Return a number for each text, new ones being added to ``codes_of``; -1 where a cell is empty."""
    # Rows of one series mostly follow each other, so that there is much less text in runs of equal cells.
    runs = cells.rle()
    texts = strip_cells(runs.struct.field("value"), ()).cast(pl.String)
    distinct = texts.drop_nulls().unique(maintain_order=True)
    if not codes_of:
        codes_of.update(zip(distinct.to_list(), range(len(distinct)), strict=True))
        numbers = pl.arange(len(distinct), dtype=pl.Int32, eager=True)
    else:
        numbers = pl.Series([codes_of.setdefault(text, len(codes_of)) for text in distinct.to_list()], dtype=pl.Int32)
    if not len(distinct):
        return np.full(len(cells), NO_TEXT, dtype=np.int32)
    if len(distinct) == len(texts):
        codes = numbers
    else:
        codes = texts.replace_strict(distinct, numbers, default=NO_TEXT, return_dtype=pl.Int32).fill_null(NO_TEXT)
    return np.repeat(codes.to_numpy(), runs.struct.field("len").to_numpy())
