"""``check_data``: load data as training does, and report on it even if loading rejects it.

Of data that loading rejects, each file is inspected on its own, and all of it if settings can be guessed.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stablernn import errors
from stablernn.data.catalog import dataset_info, is_dataset
from stablernn.data.check.content import (
    SplitSequences,
    check_test_labels,
    inspect_sequences,
    inspect_series,
    inspect_steps,
    labeled_splits,
)
from stablernn.data.check.report import Column, DataReport, Finding, Findings, Role, distinct_problems, merge_settings
from stablernn.data.check.table import TableInspection, infer_column_kinds, inspect_cells, warn_about_header
from stablernn.data.files import TABLE_FORMATS, detect_format, find_test_file, open_file
from stablernn.data.load import detect_task, load_source, read_sequences
from stablernn.data.messages import describe_shared_groups, format_timestamp, pluralize
from stablernn.data.options import TARGET_COLUMN, LoadOptions
from stablernn.data.sequences import Sequences, reorder_features
from stablernn.data.step_data import Data, StepData
from stablernn.data.table.cells import CellError
from stablernn.data.table.chunks import read_column_names
from stablernn.data.table.frequency import align_to_grid, infer_frequency
from stablernn.data.table.series import Table, open_table
from stablernn.data.types import ClassificationData, ForecastData, Notes
from stablernn.terms import terms

# Settings without which no cell of a file is known.
_READING_OPTIONS = ("sheet", "decimal_mark", "thousands_mark")

# Counts of readers that become warnings: their note, the code of the warning, what is counted, and what it means.
_WARNED_NOTES = (
    (
        "short_rows",
        "short_rows",
        "row",
        "with fewer cells than the header has; those at the end are taken for missing.",
    ),
    ("blank_rows_skipped", "blank_rows", "row", "without anything in them, skipped."),
    (
        "steps_at_one_time",
        "steps_at_one_time",
        "step",
        "at the same time as the one before. Look whether they are there twice.",
    ),
    (
        "irregular_steps",
        "irregular_time",
        "step",
        "not at the usual distance from the one before. A cell that takes dt is told, for others steps are alike.",
    ),
)
_LEAST_NUMBERED = 3
_DIGITS = re.compile(r"\d+")
_PREVIEW_LINES, _PREVIEW_WIDTH, _PREVIEW_BYTES = 5, 100, 1 << 14


def check_data(source: str | Path, *, test: str | Path | None = None, **options: Any) -> DataReport:
    """Check a named dataset or a file as ``load_data(source, test=test, **options)`` would read it.

    Nothing about the content raises: if loading rejects the data, its message becomes the first problem, and the rest
    of the report covers the parts that can be read. If a setting that would help can be guessed (the time column, the
    numeric columns, the target), the data are loaded with it, and ``assumed`` lists it.

    Args:
        source: As for :func:`load_data`.
        test: As for :func:`load_data`.
        options: All other settings of :func:`load_data`.

    Raises:
        UnknownNameError: If the source is neither a dataset nor a file.
        DataError: If it is a folder.
        TypeError: If a name is not an option.
    """
    return check_source(LoadOptions.unchecked(source, caller="check_data", test=test, **options))


def check_source(options: LoadOptions) -> DataReport:
    """Report on the source of these options, see :func:`check_data`."""
    source, findings = options.source, Findings()
    path = None if isinstance(source, str) and is_dataset(source) else Path(source)
    test_path = None if options.test is None else Path(options.test)
    if path is not None and test_path is None:
        test_path = find_test_file(path, options.task)
    data: Data | None = None
    refusal: errors.StableRNNError | None = None
    try:
        data = load_source(options)
    except errors.StableRNNError as error:
        if path is not None and not path.exists():
            raise
        if set(error.settings) & set(_READING_OPTIONS):
            return _check_with(options, error)
        refusal = error
        findings.problem("refused", str(error), error.settings)
    if data is not None:
        inspection = _inspect_loaded(path, data, options, findings)
    elif path is not None and refusal is not None:
        inspection = inspect_rejected_data(path, test_path, options, refusal, findings)
    else:
        inspection = Inspection(dataset_info(str(source)).task)
    report = DataReport(
        source=str(source),
        task=inspection.task,
        files={split: str(file) for split, file in (("train", path), ("test", test_path)) if file is not None},
        columns=inspection.columns,
        content=inspection.content,
        problems=distinct_problems(findings.problems),
        warnings=tuple(findings.warnings),
        assumed=inspection.assumed,
        preview=inspection.preview,
        data=inspection.data,
        refusal=refusal,
    )
    return _with_series_column(report) if isinstance(refusal, CellError) else report


def _with_series_column(report: DataReport) -> DataReport:
    """Return a report on a bad cell, whose first problem names the column that seems to tell series apart."""
    name = report.fixes.get("id_column")
    if name is None:
        return report
    first, *others = report.problems
    advice = f"{terms().set('data.id_column', name)}{terms().flag(f'--id-column {name}')}"
    text = f"{first.text} Column '{name}' seems to tell series apart: {advice}."
    return replace(report, problems=(replace(first, text=text), *others))


def _check_with(options: LoadOptions, refusal: errors.StableRNNError) -> DataReport:
    """Report on a file that cannot be read at all without the settings that an error proposes."""
    report = check_source(options.with_options(**refusal.settings))
    problems = tuple(
        replace(finding, code="refused_next") if finding.code == "refused" else finding for finding in report.problems
    )
    return replace(
        report,
        problems=distinct_problems((Finding("refused", str(refusal), dict(refusal.settings)), *problems)),
        assumed={**refusal.settings, **report.assumed},
        refusal=refusal,
    )


def _inspect_loaded(path: Path | None, data: Data, options: LoadOptions, findings: Findings) -> Inspection:
    columns, content = inspect_data(data, options, findings)
    if path is not None:
        columns = list_file_columns(path, columns, data, options)
        if isinstance(data, ForecastData):
            warn_about_header([column.name for column in columns], findings)
        if isinstance(data, StepData) and data.task == "predict-next":
            warn_about_separators(path, findings)
    return Inspection(data.task, columns, content, data=data)


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
    for key, code, noun, text in _WARNED_NOTES:
        if count := notes.get(key, 0):
            findings.warn(code, f"{pluralize(count, noun)} {text}")
    for sentence in describe_shared_groups(notes):
        findings.warn("group_leakage", sentence)
    if options.timezone is not None and not {"local_zone", "calendar_days"} & notes.keys():
        findings.warn(
            "timezone_unused",
            f"data.timezone={options.timezone} changes nothing: the times state their zone and are no days of it, or "
            "are whole numbers.",
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
    table = open_table(path, **options.of_table)
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


@dataclass(frozen=True, eq=False)
class Inspection:
    """The parts of a report that come from the data; those that cannot be determined keep their defaults."""

    task: str | None = None
    columns: tuple[Column, ...] = ()
    content: Notes = field(default_factory=dict)
    assumed: Notes = field(default_factory=dict)
    preview: tuple[str, ...] = ()
    data: Data | None = None


def inspect_rejected_data(
    path: Path,
    test_path: Path | None,
    options: LoadOptions,
    refusal: errors.StableRNNError,
    findings: Findings,
) -> Inspection:
    """Inspect the parts of data that cannot be loaded.

    Args:
        path: The file.
        test_path: The file of its test split; None without one.
        options: All other settings of :func:`load_data`.
        refusal: The error of loading.
        findings: Gets problems and warnings.
    """
    task = options.task
    is_table = any(kind in path.suffixes for kind in TABLE_FORMATS)
    try:
        if task is None:
            task = detect_task(path, None, options.label_column, options.repairs)
    except errors.StableRNNError:
        if not is_table:
            warn_about_separators(path, findings)
        return Inspection(task, preview=read_preview(path))
    inspection = Inspection()
    # Columns of experiments have the roles that the settings name; nothing is guessed.
    if is_table and task != "simulate":
        inspection = _inspect_table(path, test_path, options, task, refusal, findings)
    elif task == "classify":
        inspection = _inspect_sequence_files(path, test_path, {}, findings)
    return replace(inspection, task=task, preview=() if inspection.columns else read_preview(path))


def warn_about_separators(path: Path, findings: Findings) -> None:
    """Warn about text with the same number of separators in each of its first lines: it may be a table."""
    lines = read_preview(path)
    for separator, name in ((",", "commas"), (";", "semicolons"), ("\t", "tabs")):
        counts = {line.count(separator) for line in lines}
        if len(lines) > 1 and len(counts) == 1 and counts != {0}:
            findings.warn(
                "looks_like_a_table",
                f"The text looks like {counts.pop() + 1} columns separated by {name}. Tables are read from .csv, with "
                "commas, names in the first row and a column of times.",
            )
            return


def read_preview(path: Path) -> tuple[str, ...]:
    """Return the first lines of a text file, also of a truncated one; none of other files."""
    try:
        with open_file(path) as file:
            # read1, because read would run into the end of a truncated compressed file and raise.
            head = file.read1(_PREVIEW_BYTES) if isinstance(file, io.BufferedIOBase) else b""
    except errors.StableRNNError:
        return ()
    lines = head.decode(errors="replace").splitlines()[:_PREVIEW_LINES]
    is_text = all(line.replace("\t", "").isprintable() and "\ufffd" not in line for line in lines)
    return tuple(line[:_PREVIEW_WIDTH] for line in lines) if is_text else ()


def _inspect_table(
    path: Path,
    test_path: Path | None,
    options: LoadOptions,
    task: str,
    refusal: errors.StableRNNError,
    findings: Findings,
) -> Inspection:
    inspection = inspect_cells(path, options, task, findings)
    if test_path is not None:
        inspect_cells(test_path, options, task, findings)
    if inspection is None:
        return Inspection()
    options = options.with_options(source=path, test=test_path)
    data, assumed = _load_mended(options, _guesses(inspection, options, task), refusal, findings)
    findings.attach(assumed)
    settings = _with_settings(options, assumed)
    if data is not None:
        columns, content = inspect_data(data, settings, findings)
        columns = _merge_columns(inspection.columns, list_file_columns(path, columns, data, settings))
        return Inspection(columns=columns, content=content, assumed=assumed, data=data)
    if task == "classify":
        reader_options = {
            **options.of_table,
            "label_column": options.label_column,
            "channels": options.channels,
        }
        # A test file needs no groups.
        if test_path is None and any(column.role == "group" for column in inspection.columns):
            reader_options["group_column"] = options.group_column
        content = {}
        if inspection.has_times:
            content = _inspect_sequence_files(path, test_path, reader_options, findings).content
        return Inspection(columns=inspection.columns, content=content)
    return replace(_inspect_series_of_file(path, settings, inspection, findings), assumed=assumed)


def _guesses(inspection: TableInspection, options: LoadOptions, task: str) -> Notes:
    """Return guessed settings that apply to the task; none if the times of a table are not known."""
    if not inspection.has_times:
        return {}
    if task == "classify":
        # Sequences have no values besides their steps.
        return {name: value for name, value in inspection.guessed_settings.items() if name != "static"}
    return {**inspection.guessed_settings, **_guess_target(inspection, options)}


def _inspect_series_of_file(
    path: Path, settings: LoadOptions, inspection: TableInspection, findings: Findings
) -> Inspection:
    """Inspect the series as they are in the file, without a common time grid; else only the columns."""
    try:
        table = open_table(path, **settings.of_table).read(settings.channels)
    except errors.StableRNNError:
        return Inspection(columns=inspection.columns)
    targets = settings.target or ((TARGET_COLUMN,) if len(table.channels) > 1 else table.channels)
    known_targets = tuple(name for name in targets if name in table.channels)
    notes = {**table.notes, **_grid_notes(table, settings.frequency)}
    columns, content = inspect_series(table.series, table.channels, known_targets, notes, findings)
    return Inspection(columns=_merge_columns(inspection.columns, columns), content=content)


def _with_settings(options: LoadOptions, settings: Notes) -> LoadOptions:
    return LoadOptions.unchecked(**{**dict(options), **settings})


def _load_mended(
    options: LoadOptions, guesses: Notes, refusal: errors.StableRNNError, findings: Findings
) -> tuple[Data | None, Notes]:
    """Load rejected data with guessed settings and those that each error proposes, until nothing new is proposed.

    Args:
        options: The options with which loading fails.
        guesses: Settings that are tried first.
        refusal: Its error.
        findings: Gets the errors that remain.

    Returns:
        The data, None if no settings lead to any, and the settings.
    """
    assumed: Notes = guesses or dict(refusal.settings)
    if not assumed:
        return None, {}
    # Each error proposes at least one setting that was not set before.
    for _ in range(len(LoadOptions.model_fields)):
        try:
            return load_source(_with_settings(options, assumed)), assumed
        except errors.StableRNNError as error:
            proposed = merge_settings(assumed, error.settings)
            if str(error) != str(refusal):
                findings.problem("refused_next", f"With the settings so far: {error}", error.settings)
            if proposed == assumed:
                return None, assumed
            assumed = proposed
    return None, assumed


def _guess_target(inspection: TableInspection, options: LoadOptions) -> Notes:
    channels = inspection.guessed_settings.get("channels") or options.channels or inspection.readable
    other_roles = (*inspection.guessed_settings.values(), *options.future)
    candidates = [name for name in channels if name not in other_roles]
    may_be_target = [column.name for column in inspection.columns if column.varies and column.name in candidates]
    if options.target is not None or options.channels_as_series or TARGET_COLUMN in candidates:
        return {}
    has_names = any(column.role == "id" for column in inspection.columns)
    if not has_names and _are_numbered(candidates):
        return {"channels_as_series": True}
    # A single column is the target unasked, unless columns of words become channels beside it.
    has_categories = "categories" in inspection.guessed_settings or bool(options.repairs.categories)
    needs_target = len(candidates) > 1 or has_categories
    # A flag, such as that of a holiday, is seldom what is forecast.
    flags = {column.name for column in inspection.columns if (column.low, column.high) == (0, 1)}
    may_be_target.sort(key=lambda name: name not in flags)
    return {"target": may_be_target[-1]} if needs_target and may_be_target else {}


def _are_numbered(names: Sequence[str]) -> bool:
    """Return True for three names or more that differ by a number only, as those of meters in a wide table do."""
    return len(names) >= _LEAST_NUMBERED and len({_DIGITS.sub("#", name) for name in names}) == 1


def _grid_notes(table: Table, frequency: str | None) -> Notes:
    """Return the notes of the time grid, or the number of series of each frequency if they have none in common."""
    try:
        _, grid, notes = align_to_grid(table.name, table.series, frequency)
    except errors.StableRNNError:
        grids = [infer_frequency(series.ds) for series in table.series]
        return {"frequencies": dict(Counter("irregular" if grid is None else grid.alias for grid in grids))}
    return {**notes, "frequency": grid.alias if grid else None, "season": grid.season if grid else 1}


def _inspect_sequence_files(
    path: Path, test_path: Path | None, reader_options: Mapping[str, Any], findings: Findings
) -> Inspection:
    """Inspect files of labeled sequences that loading rejects, either on its own and both together."""
    by_split: dict[str, Sequences] = {}
    for split, file in (("train", path), ("test", test_path)):
        if file is None:
            continue
        try:
            by_split[split] = read_sequences(file, **reader_options)
        except errors.StableRNNError as error:
            findings.problem("unreadable", str(error))
    if "train" not in by_split:
        return Inspection()
    train = by_split["train"]
    if "test" in by_split:
        check_test_labels(train, by_split["test"], findings)
        test = reorder_features(by_split.pop("test"), train.features)
        if test is not None:
            by_split["test"] = test
    splits = {split: SplitSequences(sequences.values, sequences.labels) for split, sequences in by_split.items()}
    columns, content = inspect_sequences(splits, train.features, findings)
    return Inspection(columns=columns, content=content)


def _merge_columns(file_columns: tuple[Column, ...], channels: tuple[Column, ...]) -> tuple[Column, ...]:
    """Return the columns of the file; those that became channels with the statistics of their values."""
    by_name = {column.name: column for column in channels}
    return tuple(
        replace(by_name[column.name], unreadable=column.unreadable) if column.name in by_name else column
        for column in file_columns
    )
