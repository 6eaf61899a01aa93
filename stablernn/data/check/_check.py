"""``check_data``: loads as training does, and where that is refused tells what can be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stablernn import errors
from stablernn.data.catalog import dataset_info, is_dataset
from stablernn.data.check._loaded import columns_of_file, look_at_data
from stablernn.data.check._refused import Told, hint_at_table, look_at_refused
from stablernn.data.check._report import DataReport, Findings
from stablernn.data.check._tables import warn_of_names
from stablernn.data.load import load_source
from stablernn.data.options import LoadOptions
from stablernn.data.readers.paths import find_test_file
from stablernn.data.step_data import Data, StepData
from stablernn.data.types import ForecastData


def check_data(source: str | Path, *, test: str | Path | None = None, **options: Any) -> DataReport:
    """Looks at a named dataset or a file as ``load_data(source, test=test, **options)`` would take it.

    Nothing about the content raises: the sentence with which loading refuses becomes the first problem, and the rest of
    the report is about the parts that can be read. Where a setting can be guessed that would help (the time column, the
    columns of numbers, the target), the data are loaded with it, and ``assumed`` names it.

    Args:
        source: As for :func:`load_data`.
        test: As for :func:`load_data`.
        options: All other settings of :func:`load_data`.

    Raises:
        UnknownNameError: If the source is neither a dataset nor a file.
        DataError: If it is a folder.
    """
    return check_source(LoadOptions.unchecked(source, test=test, **options))


def check_source(options: LoadOptions) -> DataReport:
    """Report on the source of these options, see :func:`check_data`."""
    source, findings = options.source, Findings()
    path = None if isinstance(source, str) and is_dataset(source) else Path(source)
    test_path = None if path is None else _test_path(path, options.test)
    data: Data | None = None
    refusal: errors.StableRNNError | None = None
    try:
        data = load_source(options)
    except errors.StableRNNError as error:
        if path is not None and not path.is_file():
            raise
        refusal = error
        findings.problem("refused", str(error))
    if data is not None:
        told = _told(path, data, options, findings)
    elif path is not None:
        told = look_at_refused(path, test_path, options, findings)
    else:
        told = Told(dataset_info(str(source)).task)
    return DataReport(
        source=str(source),
        task=told.task,
        files={word: str(file) for word, file in (("train", path), ("test", test_path)) if file is not None},
        columns=told.columns,
        content=told.content,
        problems=tuple(findings.problems),
        warnings=tuple(findings.warnings),
        assumed=told.assumed,
        preview=told.preview,
        data=told.data,
        refusal=refusal,
    )


def _told(path: Path | None, data: Data, options: LoadOptions, findings: Findings) -> Told:
    columns, content = look_at_data(data, findings)
    if path is not None:
        columns = columns_of_file(path, columns, data, options)
        if isinstance(data, ForecastData):
            warn_of_names([column.name for column in columns], findings)
        if isinstance(data, StepData):
            hint_at_table(path, findings)
    return Told(data.task, columns, content, data=data)


def _test_path(path: Path, test: str | Path | None) -> Path | None:
    if test is not None:
        return Path(test)
    try:
        return find_test_file(path)
    except errors.DataError:
        return None
