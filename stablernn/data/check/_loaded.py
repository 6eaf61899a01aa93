"""What is told of data that are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from stablernn.data.check._report import Column, Findings
from stablernn.data.check._sequences import look_at_sequences, parts_of
from stablernn.data.check._series import look_at_series
from stablernn.data.check._steps import look_at_steps
from stablernn.data.check._tables import kinds_at_the_start
from stablernn.data.messages import format_timestamp, pluralize
from stablernn.data.options import LoadOptions
from stablernn.data.readers.paths import TABLE_FORMATS, detect_format
from stablernn.data.readers.table_chunks import read_column_names
from stablernn.data.readers.tables import open_table
from stablernn.data.step_data import Data
from stablernn.data.time.numeric_timestamps import Stamps
from stablernn.data.types import ClassificationData, ForecastData, Notes


def look_at_data(data: Data, findings: Findings) -> tuple[tuple[Column, ...], Notes]:
    """Columns and content of what was loaded."""
    _warn_of_notes(data.notes, findings)
    if isinstance(data, ClassificationData):
        if data.test is None:
            findings.warn("no_test", "There is no test split; scores will be those of validation only.")
        return look_at_sequences(parts_of(data), data.features, findings)
    if isinstance(data, ForecastData):
        return look_at_series(data.series, data.channels, data.targets, data.notes, findings, data)
    return look_at_steps(data, findings)


def _warn_of_notes(notes: Notes, findings: Findings) -> None:
    """Warnings about what readers counted and nothing else shows."""
    if count := notes.get("short_rows", 0):
        findings.warn(
            "short_rows",
            f"{pluralize(count, 'row')} with fewer cells than the header has; those at the end are taken for missing.",
        )
    if count := notes.get("blank_rows_skipped", 0):
        findings.warn("blank_rows", f"{pluralize(count, 'row')} without anything in them, skipped.")
    if count := notes.get("steps_at_one_time", 0):
        findings.warn(
            "steps_at_one_time",
            f"{pluralize(count, 'step')} at the same time as the one before. Look whether they are there twice.",
        )
    if count := notes.get("irregular_steps", 0):
        findings.warn(
            "irregular_time",
            f"{pluralize(count, 'step')} not at the usual distance from the one before. A cell that takes dt is told, "
            "for others steps are alike.",
        )


def columns_of_file(path: Path, columns: tuple[Column, ...], data: Data, options: LoadOptions) -> tuple[Column, ...]:
    """The columns of a table in its order, those that are no channels among them; of other files the same columns.

    Args:
        path: The file that was loaded.
        columns: What is known of the channels and the label.
        data: What was loaded.
        options: The settings by which it was.
    """
    if not isinstance(data, ClassificationData | ForecastData) or detect_format(path) not in TABLE_FORMATS:
        return columns
    table = open_table(path, **table_options(options))
    known = {column.name: column for column in columns}
    names = read_column_names(path)
    low: str | None = None
    high: str | None = None
    if isinstance(data, ForecastData):
        first, last = min(one.ds[0] for one in data.series), max(one.ds[-1] for one in data.series)
        low, high = format_timestamp(first), format_timestamp(last)
        known |= {name: Column(name, "static", "numbers") for name in data.static}
    else:
        known[options.label_column] = columns[-1]
    kinds = kinds_at_the_start(path, [name for name in names if name not in known])
    known[table.time_name] = Column(table.time_name, "time", kinds[table.time_name], low=low, high=high)
    if table.id_name is not None:
        known[table.id_name] = Column(table.id_name, "id", kinds[table.id_name])
    # Channels of the calendar are in no column of the file.
    added = tuple(column for column in columns if column.role != "label" and column.name not in names)
    return (*(known[name] if name in known else Column(name, "ignored", kinds[name]) for name in names), *added)


class TableOptions(TypedDict):
    """The settings that say which columns a table has and what its times are."""

    id_column: str
    time_column: str
    stamps: Stamps | None


def table_options(options: LoadOptions) -> TableOptions:
    """The settings of a table among those of loading data."""
    return {"id_column": options.id_column, "time_column": options.time_column, "stamps": options.stamps}
