"""``check_data``: load data as training does, and report on it even if loading rejects it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from stablernn import errors
from stablernn.data.catalog import dataset_info, is_dataset
from stablernn.data.check.loaded_data import inspect_data, list_file_columns
from stablernn.data.check.rejected_data import Inspection, inspect_rejected_data, warn_about_separators
from stablernn.data.check.report import DataReport, Finding, Findings
from stablernn.data.check.table_cells import warn_about_header
from stablernn.data.load_source import load_source
from stablernn.data.options import LoadOptions
from stablernn.data.readers.cells import CellError
from stablernn.data.readers.paths import find_test_file
from stablernn.data.step_data import Data, StepData
from stablernn.data.types import ForecastData
from stablernn.terms import terms

# Settings without which no cell of a file is known.
_READING_OPTIONS = ("sheet", "decimal_mark", "thousands_mark")


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
        test_path = find_test_file(path)
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
        problems=tuple(findings.problems),
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
        problems=(Finding("refused", str(refusal), dict(refusal.settings)), *problems),
        assumed={**refusal.settings, **report.assumed},
        refusal=refusal,
    )


def _inspect_loaded(path: Path | None, data: Data, options: LoadOptions, findings: Findings) -> Inspection:
    columns, content = inspect_data(data, options, findings)
    if path is not None:
        columns = list_file_columns(path, columns, data, options)
        if isinstance(data, ForecastData):
            warn_about_header([column.name for column in columns], findings)
        if isinstance(data, StepData):
            warn_about_separators(path, findings)
    return Inspection(data.task, columns, content, data=data)
