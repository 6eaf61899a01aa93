"""Types of the cells of a column: numbers, times, categories, codes of missing values."""

from __future__ import annotations

import numpy as np
import polars as pl

from stablernn.data.check.report import Kind
from stablernn.data.readers.timestamps import normalize_times, parse_dates

_MAX_CATEGORIES = 20
"""A column of text has categories if it has at most so many different ones, and each comes twice on average."""
_MAX_MISSING_TEXTS = 5
"""A column of numbers has texts for missing values if it has at most so many different ones, and no word only once."""
_MISSING_WORDS = frozenset(
    ("unavailable", "unknown", "missing", "nodata", "no data", "n.a.", "n/a", "nil", "none", "null")
)
"""Words that stand for a missing value even if they come once."""


def as_numbers(column: pl.Series) -> pl.Series:
    """Return the cells as float64, null where a cell is no number; times are none."""
    if column.dtype.is_temporal():
        return pl.Series(column.name, [None] * len(column), dtype=pl.Float64)
    return column.cast(pl.Float64, strict=False)


def are_numbers(column: pl.Series) -> bool:
    """Return True if every cell is a number or missing."""
    return as_numbers(column).null_count() == column.null_count()


def is_row_counter(column: pl.Series) -> bool:
    """Return True if a column contains integers that rise by the same step from row to row."""
    if column.dtype.is_temporal() or column.dtype.is_float():
        return False
    integers = column.cast(pl.Int64, strict=False)
    if integers.null_count() or len(integers) < 3:
        return False
    steps = np.diff(integers.to_numpy())
    return bool(steps[0] > 0 and (steps == steps[0]).all())


def column_kind(column: pl.Series, numbers: pl.Series) -> Kind:
    """Return the type that all cells have, or "mixed".

    Args:
        column: The cells, null if missing.
        numbers: Those that are numbers, as of :func:`as_numbers`.
    """
    num_filled, num_numbers = column.count(), numbers.count()
    if not num_filled:
        return "empty"
    if num_numbers == num_filled:
        return "numbers"
    num_dates = parse_dates(normalize_times(column)).count()
    if num_dates == num_filled:
        return "dates"
    return "mixed" if num_numbers or num_dates else "words"


def has_categories(column: pl.Series) -> bool:
    """Return True if a column of words has few different ones."""
    words = column.drop_nulls()
    if column.dtype != pl.String or as_numbers(words).count() or parse_dates(normalize_times(words)).count():
        return False
    return 2 <= words.n_unique() <= min(_MAX_CATEGORIES, len(words) // 2)


def missing_texts(column: pl.Series) -> list[str]:
    """Return the texts in a column of numbers, if all of them may stand for missing values."""
    invalid = column.filter(as_numbers(column).is_null() & column.is_not_null())
    if invalid.dtype != pl.String or 2 * len(invalid) > column.count():
        return []
    counts = invalid.value_counts()
    is_code = [
        count > 1 or text.lower() in _MISSING_WORDS or not any(map(str.isalnum, text))
        for text, count in counts.iter_rows()
    ]
    # Numbers with other marks than those of the file are none, nor are 5%, <5 and (5), which is -5 to accountants.
    is_code.append(not invalid.str.contains(r"^[^\w\s]*\d[\d.,'\s]*[^\w\s#]*$").any())
    return sorted(invalid.unique()) if all(is_code) and len(counts) <= _MAX_MISSING_TEXTS else []


def is_constant(ids: pl.Series, column: pl.Series) -> bool:
    """Return True if a column has one value for each of several series, and values for all of them."""
    pairs = pl.DataFrame({"id": ids, "value": column})
    counts = pairs.group_by("id").agg(pl.col("value").n_unique(), has_missing=pl.col("value").is_null().any())
    return len(counts) > 1 and bool((counts["value"] == 1).all()) and not bool(counts["has_missing"].any())
