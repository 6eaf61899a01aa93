"""Cells of tables: text without blanks, missing ones, text as numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from stablernn import errors
from stablernn.data.messages import quote
from stablernn.data.options import Repairs
from stablernn.data.types import Notes
from stablernn.terms import terms

#: Cells that mean "no value", besides the empty one; in the column of names they are names.
MISSING_CELLS = ("NA", "N/A", "NaN", "nan", "NULL", "null", "None", "?")
#: Number of a cell without text, as :func:`encode_text` gives it.
NO_TEXT = -1

_OTHER_MARK = {".": ",", ",": "."}
_MARK_NAMES = {".": "point", ",": "comma"}
# How a thousands mark that is no decimal mark may be written; no-break spaces and a typographic apostrophe, too.
_GROUP_MARKS = {" ": "[ \u00a0\u202f]", "'": "['\u2019]"}

# Patterns of polars, which has no look-around; the keys are decimal marks.
_EXPONENT = r"(?:[eE][+-]?\d+)?"
_DECIMAL_COMMAS = rf"^\s*[+-]?\d*,\d+{_EXPONENT}\s*$"
_INTEGER, _CODE = r"^\s*[+-]?\d+\s*$", r"^\s*[+-]?9{2,}\s*$"
_FIRST_CELLS = 100
# Some languages group digits from five on only.
_LEAST_GROUPED = 10_000


def _grouped(mark: str, groups: str) -> str:
    return rf"[1-9]\d{{0,2}}(?:{mark}\d{{3}}){groups}"


def _grouped_by(group: str) -> str:
    return rf"^\s*[+-]?{_grouped(group, '+')}(?:[.,]\d*)?{_EXPONENT}\s*$"


_PROOFS = {
    mark: rf"^\s*[+-]?(?:(?:\d+|{_grouped(f'[{other}]', '+')})[{mark}]\d*{_EXPONENT}|[{mark}]\d+{_EXPONENT}"
    rf"|{_grouped(f'[{other}]', '{2,}')})\s*$"
    for mark, other in _OTHER_MARK.items()
}
# 1.017 is 1.017 or 1017; 0.017, 1.01 and 1017.500 can be read in one way only.
_OPEN = {mark: rf"^\s*[+-]?{_grouped(f'[{mark}]', '{1}')}\s*$" for mark in _OTHER_MARK}
_GROUPED = {
    mark: rf"^\s*[+-]?{_grouped(f'[{other}]', '+')}(?:[{mark}]\d*)?{_EXPONENT}\s*$"
    for mark, other in _OTHER_MARK.items()
}


class CellError(errors.DataError):
    """The error of a cell that holds no number of float32, with its row in the file and its column."""


def suggest_thousands_mark(cell: str) -> str | None:
    """Return which blank or apostrophe separates the thousands of a number that is text; None for other text."""
    return next((mark for mark, group in _GROUP_MARKS.items() if re.match(_grouped_by(group), cell)), None)


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


@dataclass
class _Marks:
    """The evidence of a column about the marks in its numbers, with an example of each kind of cell.

    Attributes:
        proofs: Cells that can be read in one way only, by decimal mark.
        open: Cells in which a mark may separate decimals or thousands, the largest by mark.
        integer: The largest cell without any mark, but for codes such as -999.
    """

    proofs: dict[str, str] = field(default_factory=dict)
    open: dict[str, str] = field(default_factory=dict)
    integer: str | None = None

    def add(self, cells: pl.Series) -> None:
        """Take in cells with marks."""
        cells = cells.drop_nulls()
        for mark in _OTHER_MARK:
            is_open = cells.str.contains(_OPEN[mark])
            if is_open.any():
                largest = _largest(cells.filter(is_open), mark)
                # All have three decimals, so that they compare by their digits.
                previous = self.open.get(mark, largest)
                self.open[mark] = max(previous, largest, key=lambda cell: _size(cell.replace(mark, "")))
                cells = cells.filter(~is_open)
        for mark in _OTHER_MARK:
            proofs = cells.filter(cells.str.contains(_PROOFS[mark]))
            if len(proofs):
                self.proofs.setdefault(mark, proofs[0])

    def add_integers(self, cells: pl.Series) -> None:
        """Take in cells without marks."""
        integers = cells.filter(cells.str.contains(_INTEGER) & ~cells.str.contains(_CODE))
        if len(integers):
            largest = _largest(integers)
            self.integer = max(self.integer or largest, largest, key=_size)

    def has_integers_beyond(self, mark: str) -> bool:
        """Return True if integers are larger than all numbers in which the mark would separate decimals."""
        return self.integer is not None and _size(self.integer) > _size(self.open[mark].replace(mark, "."))

    def has_integers_from(self, size: int) -> bool:
        """Return True if integers of such a size are written without any mark."""
        return self.integer is not None and _size(self.integer) >= size


class NumberMarks:
    """The marks of decimals and thousands in the columns of text of a table.

    A column is read in one way, by all of its cells. What they leave open, such as ``1.017``, the options decide, else
    the other columns of the file. Without these the usual mark separates decimals, unless the column has integers that
    would be larger than all of them, such as 980, and anything else is refused.

    Args:
        file: Name of the file, for messages.
        repairs: Used are the marks of decimals and of thousands.
        usual: Mark of decimals that programs use which write such files.
        is_certain: Whether ``decimal_mark``, which may be that of other data, makes no thousands of usual decimals.
        reread: Returns all chunks of the file, to look ahead where those so far leave a column open.
        notes: Gets ``decimal_mark`` and ``thousands_mark`` where they are not points and none.
        is_lenient: Whether the cells of a column stay as they are where it cannot be read in one way.
    """

    def __init__(
        self,
        file: str,
        repairs: Repairs,
        usual: str,
        reread: Callable[[], Iterable[pl.DataFrame]],
        notes: Notes,
        *,
        is_certain: bool = False,
        is_lenient: bool = False,
    ) -> None:
        self._file, self._repairs, self._usual, self._reread, self._notes = file, repairs, usual, reread, notes
        self._is_certain, self._is_lenient = is_certain, is_lenient
        self._groups = _GROUP_MARKS.get(repairs.thousands_mark or "")
        self._option = repairs.decimal_mark or _OTHER_MARK.get(repairs.thousands_mark or "")
        self._columns: dict[str, _Marks] = {}
        self._used: set[str] = set()
        self._is_complete = False

    def replace(self, chunk: pl.DataFrame, columns: Collection[str]) -> pl.DataFrame:
        """Return the chunk with the numbers of these columns as ``1017.5``; other text stays as it is.

        Raises:
            DataError: If a column has numbers with both marks of decimals, or is left open.
        """
        names = [name for name in columns if chunk.schema[name] == pl.String]
        self._observe(chunk, names)
        if not self._is_complete and any(self._is_open(name) for name in names):
            for each in self._reread():
                self._observe(each, names, is_rereading=True)
            self._is_complete = True
        marks = {name: self._decimal_mark(name) for name in names}
        return chunk.with_columns(
            self._as_plain(self._ungrouped(chunk[name]), mark) for name, mark in marks.items() if mark or self._groups
        )

    def _observe(self, chunk: pl.DataFrame, names: Sequence[str], *, is_rereading: bool = False) -> None:
        for name in names:
            marks, cells = self._columns.setdefault(name, _Marks()), self._ungrouped(chunk[name])
            # Most columns are told by their first cells, and whatever else is between their decimals is no number.
            if not marks.proofs:
                marks.add(cells.head(_FIRST_CELLS))
            is_told = len(marks.proofs) == 1 and self._option in (None, *marks.proofs)
            others = [_OTHER_MARK[mark] for mark in marks.proofs] if is_told else _OTHER_MARK
            if any(cells.str.contains(mark, literal=True).any() for mark in others):
                marks.add(cells)
            elif is_told:
                continue
            if is_rereading:
                marks.add_integers(cells)

    def _is_open(self, name: str) -> bool:
        marks = self._columns[name]
        return bool(marks.open) and not marks.proofs and self._settled_mark(marks) is None

    def _settled_mark(self, marks: _Marks) -> str | None:
        """Return the mark of decimals by the options; None where they leave a column open."""
        is_unlikely = self._is_certain and self._usual in marks.open and self._option != self._usual
        return None if is_unlikely and self._repairs.thousands_mark is None else self._option

    def _decimal_mark(self, name: str) -> str | None:
        """Return the mark of decimals of a column; None where it has no marks, or is refused and may stay as it is."""
        marks, option = self._columns[name], self._option
        if len(marks.proofs) > 1 or (marks.proofs and option not in (None, *marks.proofs) and marks.open):
            self._refuse(self._contradiction_error(name, marks))
            return None
        if marks.proofs or not marks.open:
            return next(iter(marks.proofs), None)
        if (settled := self._settled_mark(marks)) is not None:
            return settled
        others = {mark for each in self._columns.values() if len(each.proofs) == 1 for mark in each.proofs}
        if len(marks.open) == 1 and option is None:
            ((mark, _),) = marks.open.items()
            if marks.has_integers_from(_LEAST_GROUPED):
                return mark
            is_usual = mark == self._usual and not others
            if is_usual and (marks.has_integers_from(1000) or not marks.has_integers_beyond(mark)):
                return mark
        if len(others) == 1:
            return others.pop()
        self._refuse(self._open_error(name, marks))
        return None

    def _refuse(self, error: errors.DataError) -> None:
        if not self._is_lenient:
            raise error

    def _contradiction_error(self, name: str, marks: _Marks) -> errors.DataError:
        column = terms().column_of(self._file, name)
        if len(marks.proofs) > 1:
            return errors.DataError(
                f"{column} has {quote(marks.proofs['.'])}, which has a decimal point, and {quote(marks.proofs[','])}, "
                "which has a decimal comma. Write all of its numbers with the same mark."
            )
        ((mark, proof),) = marks.proofs.items()
        option = "decimal_mark" if self._repairs.decimal_mark else "thousands_mark"
        setting = terms().setting(f"data.{option}", getattr(self._repairs, option))
        return errors.DataError(
            f"{column} has {quote(proof)}, which has a decimal {_MARK_NAMES[mark]}, beside "
            f"{quote(next(iter(marks.open.values())))}, and {setting} says otherwise. Correct it, or "
            f"{terms().set('data.decimal_mark', mark)}."
        )

    def _open_error(self, name: str, marks: _Marks) -> errors.DataError:
        mark, cell = next(iter(marks.open.items()))
        neighbor = marks.integer or next((other for key, other in marks.open.items() if key != mark), None)
        settings: Notes = {}
        # Marks of both kinds say nothing about either, and files seldom have the usual one for thousands.
        if len(marks.open) == 1 and mark != self._usual:
            settings = {"thousands_mark" if marks.has_integers_beyond(mark) else "decimal_mark": mark}
        others = "" if neighbor is None else f" beside {quote(neighbor)}"
        return errors.DataError(
            f"{terms().column_of(self._file, name)} has {quote(cell)}{others}: {cell.strip().replace(mark, '')} if the "
            f"{_MARK_NAMES[mark]} separates thousands, {cell.strip().replace(mark, '.')} if it separates decimals. "
            f"For the first {terms().set('data.thousands_mark', mark)}, for the second "
            f"{terms().set('data.decimal_mark', mark)}.",
            settings=settings,
        )

    def _ungrouped(self, cells: pl.Series) -> pl.Series:
        """Return text without the thousands marks that are neither points nor commas."""
        if self._groups is None:
            return cells
        is_number = cells.str.contains(_grouped_by(self._groups))
        return cells.str.replace_all(self._groups, "").zip_with(is_number.fill_null(False), cells)

    def _as_plain(self, cells: pl.Series, decimal_mark: str | None) -> pl.Series:
        if decimal_mark is None:
            return cells
        other, plain = _OTHER_MARK[decimal_mark], cells
        may_be_grouped = cells.str.contains(other, literal=True).any()
        if may_be_grouped and (is_grouped := cells.str.contains(_GROUPED[decimal_mark])).any():
            self._notes["thousands_mark"] = _MARK_NAMES[other]
            plain = plain.str.replace_all(other, "", literal=True).zip_with(is_grouped.fill_null(False), plain)
        self._used.add(decimal_mark)
        if "," in self._used:
            self._notes["decimal_mark"] = "comma" if len(self._used) == 1 else "mixed"
        if decimal_mark == ".":
            return plain
        is_decimal = plain.str.contains(_DECIMAL_COMMAS)
        return plain.str.replace(",", ".", literal=True).zip_with(is_decimal.fill_null(False), plain)


def _size(cell: str) -> float:
    return abs(float(cell))


def _largest(cells: pl.Series, decimal_mark: str = ".") -> str:
    plain = cells if decimal_mark == "." else cells.str.replace(decimal_mark, ".", literal=True)
    sizes = plain.str.strip_chars().cast(pl.Float64).abs()
    return str(cells[sizes.arg_max() or 0])
