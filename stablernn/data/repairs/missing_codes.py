"""``missing``: values that stand for a missing one, such as -9999. Counted are the cells, by column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import polars as pl

from stablernn import errors
from stablernn.data.messages import format_names, quote
from stablernn.data.types import Notes
from stablernn.terms import terms


class MissingCodes:
    """Replaces codes in the columns of a table, and counts them.

    Args:
        file: Name of the file, for messages.
        codes: Numbers, which match cells that are equal to them however they are written, and texts.
    """

    def __init__(self, file: str, codes: Sequence[int | float | str]) -> None:
        self._file, self._codes = file, codes
        numbers = [number for code in codes if (number := _as_number(code)) is not None]
        self._numbers = pl.Series(numbers, dtype=pl.Float64)
        # As the values of a column of float32 are, when they are compared.
        self._rounded = self._numbers.cast(pl.Float32)
        self.texts = tuple(code for code in codes if isinstance(code, str) and _as_number(code) is None)
        self._filled: Counter[str] = Counter()
        self._replaced: Counter[str] = Counter()

    def replace(self, numbers: pl.Series) -> pl.Series:
        """Return a column of numbers, null where one is a code."""
        if not self._codes:
            return numbers
        is_code = numbers.is_in(self._rounded if numbers.dtype == pl.Float32 else self._numbers).fill_null(False)
        self.count(numbers.name, numbers.count() - int(is_code.sum()), int(is_code.sum()))
        return numbers.set(is_code, None) if is_code.any() else numbers

    def count_texts(self, cells: pl.Series) -> None:
        """Count the cells of a column of text that are codes, before they are replaced."""
        if self.texts and cells.dtype == pl.String:
            self.count(cells.name, 0, int(cells.str.strip_chars().is_in(list(self.texts)).fill_null(False).sum()))

    def count(self, column: str, values: int, codes: int) -> None:
        self._filled[column] += values
        self._replaced[column] += codes

    def finish(self, series_of_column: Callable[[str], Sequence[str]] = lambda name: ()) -> Notes:
        """Return the counts as notes, after all rows.

        Args:
            series_of_column: Returns the names of the series that a column is all of.

        Raises:
            DataError: If every value of a column is a code.
        """
        for column, replaced in self._replaced.items():
            if replaced and not self._filled[column]:
                codes = format_names([quote(str(code)) for code in self._codes])
                raise errors.DataError(
                    f"{terms().column_of(self._file, column)} holds nothing but {codes}, which data.missing takes for "
                    f"missing values. Leave the code out of data.missing, or the column out by {terms().channels}.",
                    series=series_of_column(column),
                )
        columns = {column: count for column, count in self._replaced.items() if count}
        return {"missing_codes": {"count": sum(columns.values()), "columns": columns}} if self._codes else {}


def _as_number(code: int | float | str) -> float | None:
    try:
        return float(code)
    except ValueError:
        return None
