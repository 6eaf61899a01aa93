"""Wide tables for predictions: a column of numbers for each series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stablernn.data.forecasting.channels_as_series import split_series
from stablernn.data.forecasting.covariates import Covariates
from stablernn.data.readers.row_checks import no_series_error
from stablernn.data.readers.tables import OpenTable, Table


def read_wide_table(table: OpenTable, channels: Sequence[str], covariates: Covariates) -> Table:
    """Read a wide table, each of whose channels is a series.

    Args:
        table: The table; its ``exclude`` names series that are left out.
        channels: Columns that are series, together with the ids of the table where it has any.
        covariates: What the columns and static columns of all series are.

    Raises:
        DataError: If the table cannot be read, or all series are left out.
    """
    exclude = table.exclude or {}
    # Without names of series a channel is one series, which can be left out unread.
    left_out = exclude if table.id_name is None else ()
    read_channels = [name for name in channels if name not in left_out]
    if not read_channels:
        raise no_series_error(table.path.name, exclude)
    wide = table.read(
        [*read_channels, *covariates.columns],
        static=covariates.static,
        series_columns=read_channels if table.id_name is None else (),
    )
    # Names do not change with the series that are left out.
    is_single = len(wide.series) == 1 and exclude.keys() <= set(channels)
    melted = split_series(wide.series, wide.channels, read_channels, covariates.columns, is_single=is_single)
    series = tuple(each for each in melted if each.unique_id not in exclude)
    if not series:
        raise no_series_error(table.path.name, exclude)
    ignored = [name for name in wide.notes.get("ignored_columns", []) if name not in left_out]
    notes = {name: value for name, value in wide.notes.items() if name != "ignored_columns"}
    if ignored:
        notes["ignored_columns"] = ignored
    return replace(wide, series=series, notes=notes)
