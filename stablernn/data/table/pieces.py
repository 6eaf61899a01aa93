"""Tables in pieces of whole series, so that predictions for a large file need the memory of a piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from stablernn.data.table.cells import strip_cells
from stablernn.data.table.timestamps import zone_suffixes
from stablernn.data.types import Notes

_TAIL_ROWS = 1 << 10


class NotInPieces(Exception):
    """A table that can only be read whole. Its text says why, and is empty where the options alone decide it."""


@dataclass(frozen=True, eq=False)
class TablePiece:
    """Rows of a table that follow each other: all rows of some series.

    Attributes:
        frames: The rows in the order of the file.
        first_row: Number of rows of the table before them.
        is_whole: True if these are all rows of the table.
        notes: Notes about the text of the file, of the last piece alone.
    """

    frames: Sequence[pl.DataFrame]
    first_row: int
    is_whole: bool = False
    notes: Notes = field(default_factory=Notes)

    def has_other_series(self, names: Sequence[str], id_name: str) -> bool:
        """Return whether it has a series besides those with these names."""
        return any(
            not strip_cells(frame[id_name].unique(), ()).cast(pl.String).drop_nulls().is_in(list(names)).all()
            for frame in self.frames
        )


def split_rows(
    chunks: Iterator[pl.DataFrame],
    id_name: str,
    time_name: str,
    *,
    min_rows: int,
    notes: Notes,
    date_format: str | None = None,
) -> Iterator[TablePiece]:
    """Yield the rows of a table in pieces of whole series, if the rows of each series follow each other.

    Whether they do is for the caller to check, with :class:`NameSet`.

    Args:
        chunks: The rows in their order.
        id_name: The column of series names.
        time_name: The column of timestamps.
        min_rows: Rows of a piece but for the last one.
        notes: Notes about the file, which the last chunk completes.
        date_format: Format of the timestamps, if it is set.

    Raises:
        NotInPieces: If times have several offsets from UTC: only all of them together tell instants from local days.
    """
    frames: list[pl.DataFrame] = []
    rows = first_row = 0
    zones: set[str | None] = set()
    for chunk in chunks:
        zones.update(zone_suffixes(chunk[time_name], date_format))
        frames.append(chunk)
        rows += len(chunk)
        # Only the list holds the rows, so that the caller can free them.
        del chunk
        piece = _take_whole_series(frames, id_name) if rows >= min_rows else []
        if piece:
            _check_zones(zones)
            piece_rows = sum(map(len, piece))
            yield TablePiece(piece, first_row)
            del piece
            first_row, rows = first_row + piece_rows, rows - piece_rows
    if first_row:
        _check_zones(zones)
    yield TablePiece(frames, first_row, is_whole=not first_row, notes=notes)


def _check_zones(zones: Set[str | None]) -> None:
    if len(zones) > 1:
        raise NotInPieces("its times have several offsets from UTC")


def _take_whole_series(frames: list[pl.DataFrame], id_name: str) -> list[pl.DataFrame]:
    """Take rows out of a list of frames but for those of the series in its last row."""
    last = frames[-1]
    start = _start_of_last_series(last[id_name])
    if start:
        # A copy: a slice would keep all rows in memory.
        taken, frames[:] = [*frames[:-1], last[:start]], [last[np.arange(start, len(last))]]
        return taken
    if len(frames) > 1 and _start_of_last_series(pl.concat([each[id_name].tail(1) for each in frames[-2:]])):
        taken, frames[:] = frames[:-1], [last]
        return taken
    return []


def _start_of_last_series(names: pl.Series) -> int:
    """Return the first row of the series in the last row; blank rows have no name."""
    # Most series are short, and a look at all names would take as much memory again.
    rows = _TAIL_ROWS
    while True:
        tail = strip_cells(names.tail(rows), ())
        present = tail.drop_nulls()
        others = (tail != present[-1]).arg_true() if len(present) else tail.head(0)
        if len(others) or rows >= len(names):
            return max(0, len(names) - rows) + int(others[-1]) + 1 if len(others) else 0
        rows *= 8


class NameSet:
    """Names, of which it holds 8 bytes each: hashes in sorted arrays, whose sizes double from one to the next."""

    def __init__(self) -> None:
        self._hashes: list[npt.NDArray[np.uint64]] = []

    def add(self, names: Sequence[str]) -> str | None:
        """Add names. Return one that was there before or may have been: its hash was; None if there is none."""
        hashes = pl.Series(names, dtype=pl.String).hash().to_numpy()
        for level in self._hashes:
            is_repeated = level[np.minimum(np.searchsorted(level, hashes), len(level) - 1)] == hashes
            if is_repeated.any():
                return names[int(np.argmax(is_repeated))]
        merged = np.sort(hashes)
        while self._hashes and len(self._hashes[-1]) <= len(merged):
            merged = np.sort(np.concatenate([self._hashes.pop(), merged]), kind="stable")
        if len(merged):
            self._hashes.append(merged)
        return None
