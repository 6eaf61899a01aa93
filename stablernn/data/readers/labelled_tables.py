"""Reads sequences from tables: a row a step, a series a sequence, a column with the class of each series."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stablernn.data.options import ID_COLUMN, LABEL_COLUMN, TIME_COLUMN
from stablernn.data.readers.tables import open_table
from stablernn.data.sequences import Sequences, plain_labels
from stablernn.data.time.regular_grid import align_to_grid
from stablernn.data.types import Notes, lengths_of_time

#: Counts of a table that those of its sequences do not say.
_KEPT = (
    *("rows", "blank_rows_skipped", "short_rows", "ignored_columns", "gap_steps_filled", "irregular_intervals"),
    "stamps",
)


def read_labelled(
    path: Path,
    *,
    channels: Sequence[str] | None = None,
    id_column: str = ID_COLUMN,
    time_column: str = TIME_COLUMN,
    label_column: str = LABEL_COLUMN,
    timed: bool | None = None,
    stamps: str | None = None,
) -> Sequences:
    """Reads a long table as sequences with names and, where it has a column of them, labels.

    Rows that are missing on a regular time grid become steps without values, as for forecasting. Where timestamps lie
    on no grid, rows are steps and the result says when they were.

    Args:
        path: The table.
        channels: Columns of numbers, in their order; all that have no other part when omitted.
        id_column: Names the sequence of a row.
        time_column: When it was.
        label_column: The class of the sequence, the same in all of its rows. Without it there are no labels.
        timed: Whether the result says when its steps were, with rows as steps; where they are on no grid when omitted.
        stamps: As for :func:`stablernn.data.readers.tables.open_table`.

    Raises:
        UnknownNameError: If the file, or a column that was named, does not exist.
        DataError: If the content cannot be read, or a sequence has two labels.
    """
    opened = open_table(path, id_column=id_column, time_column=time_column, stamps=stamps)
    has_labels = label_column in opened.columns
    table = opened.read(channels, label=label_column if has_labels else None)
    series, counts = table.series, Notes()
    if not timed:
        series, grid, counts = align_to_grid(path.name, table.series, None)
        timed = timed is None and grid is None and any(len(one.ds) > 1 for one in series)
    return Sequences(
        name=path.name,
        values=[one.values for one in series],
        labels=plain_labels(path.name, table.labels) if table.labels is not None else None,
        features=table.channels,
        notes={word: found for word, found in {**table.notes, **counts}.items() if word in _KEPT and found},
        times=[np.cumsum([0.0, *lengths_of_time(np.diff(one.ds))]) for one in series] if timed else None,
        names=tuple(one.unique_id for one in series),
        locations=tuple(f"series '{one.unique_id}'" for one in series),
    )
