"""``categories``: columns of text as a channel for each category, 1 in its rows and 0 elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Float32Array
from stablernn.data.messages import format_names, quote
from stablernn.data.sequences import plain_label
from stablernn.data.types import Notes
from stablernn.terms import terms

if TYPE_CHECKING:
    import polars as pl

#: More categories than this are names or free text, from which nothing is learned.
MAX_CATEGORIES = 100
_UNKNOWN = -1.0
_MAX_LISTED = 12


def category_channels(column: str, categories: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a column's channels: ``region=north`` and so on."""
    return tuple(f"{column}={category}" for category in categories)


def expand_names(names: Sequence[str], categories: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return names of columns with those of categories replaced by the names of their channels."""
    return tuple(
        channel
        for name in names
        for channel in (category_channels(name, categories[name]) if name in categories else (name,))
    )


def collapse_names(names: Sequence[str], categories: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return names with the channels of known categories replaced by their column, each once."""
    columns = {channel: column for column, names in categories.items() for channel in category_channels(column, names)}
    return tuple(dict.fromkeys(columns.get(name, name) for name in names))


class CategoryCodes:
    """Numbers for the categories of columns, which come in chunks.

    Args:
        file: Name of the file, for messages.
        categories: The columns, each with its categories; none where they are those of the file.
        refuses_unknown: True to refuse a category that is not among the given ones.
    """

    def __init__(self, file: str, categories: Mapping[str, Sequence[str]], *, refuses_unknown: bool) -> None:
        self._file, self._refuses_unknown = file, refuses_unknown
        self._codes = {
            name: {each: code for code, each in enumerate(vocabulary)} for name, vocabulary in categories.items()
        }
        self._is_open = {name: not vocabulary for name, vocabulary in categories.items()}
        self._unknown: dict[str, Counter[str]] = {name: Counter() for name in categories}

    def __contains__(self, column: str) -> bool:
        return column in self._codes

    def encode(self, texts: pl.Series) -> Float32Array:
        """Return a number for the category of each cell, NaN where there is none, -1 where it is unknown.

        Raises:
            DataError: If there are too many categories.
        """
        codes = self._codes[texts.name]
        # Imported here: covariates, which need no tables, expand the names of columns.
        import polars as pl

        cells = texts.cast(pl.String)
        counts = cells.drop_nulls().value_counts()
        by_text: dict[str, float] = {}
        for text, count in counts.iter_rows():
            # Numbers of a column that a program made one of decimals.
            category = plain_label(text)
            if category not in codes and self._is_open[texts.name]:
                codes[category] = len(codes)
            elif category not in codes:
                self._unknown[texts.name][category] += count
            by_text[text] = float(codes.get(category, _UNKNOWN))
        if self._is_open[texts.name] and len(codes) > MAX_CATEGORIES:
            raise errors.DataError(
                f"{terms().column_of(self._file, texts.name)} has more than {MAX_CATEGORIES} categories. Leave it out "
                "of data.categories, or merge some of them."
            )
        if not by_text:
            return np.full(len(cells), np.nan, dtype=np.float32)
        mapped = cells.replace_strict(list(by_text), list(by_text.values()), default=None, return_dtype=pl.Float32)
        return mapped.fill_null(float("nan")).to_numpy()

    def finish(self) -> tuple[dict[str, tuple[str, ...]], Notes]:
        """Return the categories of each column, in the order of their channels, and the note on unknown ones.

        Raises:
            DataError: If a category is unknown and that is refused, or a column has no category at all.
        """
        for name, unknown in self._unknown.items():
            if unknown and self._refuses_unknown:
                raise errors.DataError(
                    f"{terms().column_of(self._file, name)} has {quote(next(iter(unknown)))}, which is none of the "
                    f"categories of training ({format_names(list(self._codes[name]))}). Correct it, or train with "
                    f"{terms().setting('data.unknown_category', 'zeros')}."
                )
            if not self._codes[name]:
                raise errors.DataError(
                    f"{terms().column_of(self._file, name)} has no category at all. Leave it out of data.categories."
                )
        unknown_notes = {
            name: {"count": sum(unknown.values()), "first": list(unknown)[:_MAX_LISTED]}
            for name, unknown in self._unknown.items()
            if unknown
        }
        count = sum(sum(unknown.values()) for unknown in self._unknown.values())
        notes: Notes = {"unknown_categories": {"count": count, "columns": unknown_notes}} if count else {}
        return {name: self._ordered(name) for name in self._codes}, notes

    def expand(self, values: Float32Array, columns: Sequence[str]) -> Float32Array:
        """Return numbers with those of categories as a channel for each of them, in the order of :func:`expand_names`.

        Args:
            values: float32 (..., columns), with the numbers of :meth:`encode` in columns of categories.
            columns: Names of the columns.
        """
        parts = []
        for index, name in enumerate(columns):
            part = values[..., [index]]
            if name in self._codes:
                codes = np.array([self._codes[name][category] for category in self._ordered(name)], dtype=np.float32)
                one_hot = (part == codes).astype(np.float32)
                part = np.where(np.isnan(part), np.float32(np.nan), one_hot)
            parts.append(part)
        return np.concatenate(parts, axis=-1) if parts else values

    def name_of(self, column: str, code: float) -> str:
        """Return the category that a number of :meth:`encode` stands for; of an unknown one its number."""
        names = {float(number): category for category, number in self._codes[column].items()}
        return names.get(float(code), f"{code:g}")

    def _ordered(self, name: str) -> tuple[str, ...]:
        # Categories of a file in alphabetical order, whatever the order of its rows.
        return tuple(sorted(self._codes[name])) if self._is_open[name] else tuple(self._codes[name])
