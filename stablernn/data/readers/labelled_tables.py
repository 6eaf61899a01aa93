"""Sequences from tables: each row is a step, each series a sequence, a column has the class of each series."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stablernn.data.options import LABEL_COLUMN
from stablernn.data.sequences import Sequences, plain_labels
from stablernn.data.table.frequency import align_to_grid
from stablernn.data.table.series import OpenTable
from stablernn.data.types import Notes, lengths_of_time, names_of, values_of

#: Notes of a table that its sequences do not have.
_UNUSED_NOTES = ("series", "missing_values", "time_zone")


def read_labelled(
    source: OpenTable,
    *,
    channels: Sequence[str] | None = None,
    label_column: str = LABEL_COLUMN,
    group_column: str | None = None,
    timed: bool | None = None,
) -> Sequences:
    """Read a long table as sequences with names and, where it has a column of them, labels.

    Rows that are missing on a regular time grid become steps without values, as for forecasting. Where timestamps are
    on no grid, rows are steps and the result has their times.

    Args:
        source: The table; its series are the sequences.
        channels: Columns of numbers, in their order; all that have no other role when omitted.
        label_column: Column with the class of the sequence, the same in all its rows. Without it there are no labels.
        group_column: Column with the group of the sequence, the same in all its rows.
        timed: Whether the result has the times of its steps, with rows as steps; if they are on no grid when omitted.

    Raises:
        UnknownNameError: If a column that was named does not exist.
        DataError: If the content cannot be read, or a sequence has two labels, or groups.
    """
    texts = [label_column] if label_column in source.columns else []
    table = source.read(channels, texts=texts if group_column is None else [*texts, group_column])
    labels = table.texts.get(label_column)
    series, counts, grid = table.series, Notes(), None
    if not timed:
        series, grid, counts = align_to_grid(table.name, table.series, source.repairs.resample)
        timed = timed is None and grid is None and any(len(each.ds) > 1 for each in series)
    names = names_of(series)
    return Sequences(
        name=table.name,
        values=values_of(series),
        labels=plain_labels(table.name, labels) if labels is not None else None,
        features=table.channels,
        notes={key: value for key, value in {**table.notes, **counts}.items() if key not in _UNUSED_NOTES and value},
        # From 0, since only their differences are used.
        times=[np.cumsum([0.0, *lengths_of_time(np.diff(each.ds))]) for each in series] if timed else None,
        names=names,
        locations=tuple(map("series '{}'".format, names)),
        groups=None if group_column is None else table.texts[group_column],
        categories=table.categories,
        frequency=None if grid is None else grid.alias,
    )
