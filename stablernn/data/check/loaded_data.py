"""Columns and content of data that were loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from stablernn.data.check.report import Column, Findings, Role
from stablernn.data.check.sequences import inspect_sequences, labeled_splits
from stablernn.data.check.series import inspect_series
from stablernn.data.check.steps import inspect_steps
from stablernn.data.check.table_cells import infer_column_kinds
from stablernn.data.messages import format_timestamp, pluralize
from stablernn.data.options import LoadOptions, Repairs
from stablernn.data.readers.paths import TABLE_FORMATS, detect_format
from stablernn.data.readers.table_chunks import read_column_names
from stablernn.data.readers.tables import open_table
from stablernn.data.step_data import Data
from stablernn.data.time.numeric_timestamps import Stamps
from stablernn.data.types import ClassificationData, ForecastData, Notes


def inspect_data(data: Data, options: LoadOptions, findings: Findings) -> tuple[tuple[Column, ...], Notes]:
    """Return the columns and the content of data loaded with options, and warn about what looks unintended."""
    _warn_about_notes(data.notes, options, findings)
    if isinstance(data, ClassificationData):
        if data.test is None:
            findings.warn("no_test", "There is no test split; scores will be those of validation only.")
        return inspect_sequences(labeled_splits(data), data.features, findings)
    if isinstance(data, ForecastData):
        return inspect_series(data.series, data.channels, data.targets, data.notes, findings, data)
    return inspect_steps(data, findings)


def _warn_about_notes(notes: Notes, options: LoadOptions, findings: Findings) -> None:
    """Warn about the counts of readers that no other part of the report contains."""
    if count := notes.get("short_rows", 0):
        findings.warn(
            "short_rows",
            f"{pluralize(count, 'row')} with fewer cells than the header has; those at the end are taken for missing.",
        )
    if count := notes.get("blank_rows_skipped", 0):
        findings.warn("blank_rows", f"{pluralize(count, 'row')} without anything in them, skipped.")
    if options.timezone is not None and not {"local_zone", "calendar_days"} & notes.keys():
        findings.warn(
            "timezone_unused",
            f"data.timezone={options.timezone} changes nothing: the times state their zone and are no days of it, or "
            "are whole numbers.",
        )
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


def list_file_columns(path: Path, columns: tuple[Column, ...], data: Data, options: LoadOptions) -> tuple[Column, ...]:
    """Return all columns of a table in the order of the file, channels or not; of other files the same columns.

    Args:
        path: The file that was loaded.
        columns: The channels and the label, as :func:`inspect_data` returns them.
        data: The loaded data.
        options: The settings of :func:`load_data`.
    """
    if not isinstance(data, ClassificationData | ForecastData) or path.is_dir():
        return columns
    if detect_format(path) not in TABLE_FORMATS:
        return columns
    table = open_table(path, **table_options(options))
    columns_by_name = {column.name: column for column in columns}
    names = read_column_names(path, options.repairs)
    low: str | None = None
    high: str | None = None
    if isinstance(data, ForecastData):
        first, last = min(series.ds[0] for series in data.series), max(series.ds[-1] for series in data.series)
        low, high = format_timestamp(first), format_timestamp(last)
        columns_by_name |= {name: Column(name, "static", "numbers") for name in data.static if name in names}
    else:
        columns_by_name[options.label_column] = columns[-1]
    if options.group_column is not None:
        columns_by_name[options.group_column] = Column(options.group_column, "group", "words")
    for name in options.categories:
        role: Role = "static" if name in options.static else "future" if name in options.future else "channel"
        columns_by_name[name] = Column(name, role, "words")
    others = [name for name in names if name not in columns_by_name]
    kinds = infer_column_kinds(path, others, options.repairs)
    columns_by_name[table.time_name] = Column(table.time_name, "time", kinds[table.time_name], low=low, high=high)
    if table.id_name is not None:
        columns_by_name[table.id_name] = Column(table.id_name, "id", kinds[table.id_name])
    # Channels computed from the calendar or from categories are in no column of the file.
    calendar = tuple(column for column in columns if column.role != "label" and column.name not in names)
    return (*(columns_by_name.get(name) or Column(name, "ignored", kinds[name]) for name in names), *calendar)


class TableOptions(TypedDict):
    """The settings for the columns of a table and the format of its timestamps."""

    id_column: str
    time_column: str
    stamps: Stamps | None
    repairs: Repairs


def table_options(options: LoadOptions) -> TableOptions:
    """Return the settings of a table among those of loading data."""
    return {
        "id_column": options.id_column,
        "time_column": options.time_column,
        "stamps": options.stamps,
        "repairs": options.repairs,
    }
