"""``load_data``: a named dataset, a file or a folder in, a dataset ready for training out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from stablernn import errors
from stablernn.data.catalog import dataset_info, is_dataset, load_named
from stablernn.data.classification import classification_data, fixed_splits
from stablernn.data.experiments import SimulationData, load_experiments
from stablernn.data.files import (
    FORMAT_TASKS,
    TABLE_FORMATS,
    Task,
    detect_format,
    find_test_file,
    is_text_file,
    require_task,
)
from stablernn.data.forecasting import channels_to_series, forecast_data, read_series
from stablernn.data.messages import data_counts, describe_reading, format_counts, format_names
from stablernn.data.named.entry import DatasetInfo
from stablernn.data.options import (
    EXPERIMENT_OPTIONS,
    FOLDER_OPTIONS,
    ID_COLUMN,
    LABEL_COLUMN,
    LARGEST_SEED,
    NAMED_OPTIONS,
    SIMULATION_OPTIONS,
    TABLE_OPTIONS,
    TARGET_COLUMN,
    TASK_OPTIONS,
    TIME_COLUMN,
    VALIDATION_FRACTION,
    LoadOptions,
    Repairs,
    TaskName,
)
from stablernn.data.readers.arff import read_arff
from stablernn.data.readers.labelled_tables import read_labelled
from stablernn.data.readers.npz import read_npz
from stablernn.data.readers.recordings import read_recordings
from stablernn.data.readers.stepwise import check_not_table, load_steps, require_step_file
from stablernn.data.readers.ts import read_ts
from stablernn.data.readers.ucr_tsv import is_ucr_text, read_ucr
from stablernn.data.sequences import Sequences, has_feature_names, match_features
from stablernn.data.step_data import Data, StepData
from stablernn.data.table.chunks import read_column_names
from stablernn.data.table.series import open_table
from stablernn.data.types import ClassificationData, ForecastData
from stablernn.terms import terms

TASKS: tuple[Task, ...] = ("classify", "forecast")
_SEQUENCE_READERS: dict[str, Callable[[Path], Sequences]] = {
    ".npz": read_npz,
    ".ts": read_ts,
    ".tsv": read_ucr,
    ".txt": read_ucr,
    ".arff": read_arff,
}
_LOG = logging.getLogger("stablernn.data")


def load_data(
    source: str | Path,
    *,
    task: str | None = None,
    test: str | Path | None = None,
    target: str | Sequence[str] | None = None,
    id_column: str = ID_COLUMN,
    time_column: str = TIME_COLUMN,
    label_column: str = LABEL_COLUMN,
    group_column: str | None = None,
    stamps: str | None = None,
    channels: Sequence[str] | None = None,
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    sample_time: float | None = None,
    washout: int = 5,
    future: Sequence[str] | None = None,
    static: Sequence[str] | None = None,
    calendar: Sequence[str] | None = None,
    horizon: int | None = None,
    context_length: int | None = None,
    season: int | None = None,
    frequency: str | None = None,
    validation_steps: int | None = None,
    test_steps: int | None = None,
    validation_fraction: float = VALIDATION_FRACTION,
    window_stride: int = 1,
    seed: int = 0,
    variant: str | None = None,
    partial: bool = False,
    permutation: str | None = None,
    length: int | None = None,
    channels_as_series: bool = False,
    sheet: str | None = None,
    decimal_mark: str | None = None,
    thousands_mark: str | None = None,
    date_format: str | None = None,
    missing: float | str | Sequence[float | str] = (),
    timezone: str | None = None,
    sort: bool = False,
    on_duplicate: str = "error",
    categories: Sequence[str] | Mapping[str, Sequence[str]] = (),
    unknown_category: str = "zeros",
    resample: str | None = None,
    aggregate: str = "mean",
    min_length: int | None = None,
) -> Data:
    """Read a named dataset or a file and split it into training, validation and test.

    Classification comes from ``.npz``, ``.ts``, ``.tsv`` and ``.arff``, forecasting from ``.csv``, ``.parquet`` and
    ``.xlsx``, which serve classification, too, where they have a column of labels and no column ``y``, or the task says
    so. Text may be ``.gz`` or ``.xz``. A file ``NAME_TRAIN`` brings the ``NAME_TEST`` of its folder as its test split.

    Args:
        source: Name of a dataset (see :func:`list_datasets`) or path of a file.
        task: ``classify``, ``forecast``, ``predict-next`` or ``simulate``; what the source is for when omitted.
        test: File of the test split: sequences, or later rows of the same series.
        target: Forecast: channels to forecast. Default: ``y``, or the only channel.
        id_column: Tables: column that tells series apart.
        time_column: Tables: column of timestamps.
        label_column: Tables: column with the class of each series.
        group_column: Classification: column of a table, or array of an ``.npz`` file, with the group of each sequence.
            Sequences of one group are all trained on or all held out.
        stamps: Tables: what whole numbers in the column of timestamps are: ``unix-s``, ``unix-ms``, ``yyyymmdd``,
            ``yyyyww``, ``yyyyddd``, ``yyyyq``, ``excel`` or ``step``. Default: numbers of steps, refused where they
            look like one of the others.
        channels: Inputs of the model, in its order. Tables: columns; all columns of numbers when omitted. Sequences:
            all features, matched by name; a file that does not name its features takes these names.
        inputs: Simulate: columns of the inputs of a machine.
        outputs: Simulate: columns of its measured outputs.
        sample_time: Simulate: sampling time in seconds. Default: by the column of times, if there is one.
        washout: Simulate: samples at the beginning of an experiment that are not scored.
        future: Forecast: columns that are known in advance; their past is seen, too.
        static: Forecast: columns of numbers with one value for each series.
        calendar: Forecast: periods for which the model gets the position of each step: ``day``, ``week``, ``year``.
        horizon: Forecast: steps to forecast. Default: the season, at most 96 or a quarter of the series.
        context_length: Forecast: steps before them. Default: twice the season or the horizon, as far as it fits.
        season: Forecast: steps of a season. Default: what the frequency suggests.
        frequency: Forecast: frequency alias of the time grid. Default: inferred.
        validation_steps: Forecast: steps before the test. Default: by ``validation_fraction``.
        test_steps: Forecast: steps at the end, 0 for no test split. Default: by ``validation_fraction``.
        validation_fraction: Share of the training sequences that are drawn for validation; for forecasting the share of
            the shortest series that validation and test get each.
        window_stride: Forecast: steps from a training window to the next.
        seed: Draws the validation sequences, and what a named dataset generates; 0 to 2**32 - 1.
        variant: Named datasets: one of the forms in which the papers use it.
        partial: Named datasets: whether one that is here only in part will do.
        permutation: Named datasets: order of the pixels.
        length: Named datasets: steps of a sequence.
        channels_as_series: Forecast: whether each of the targets, by default each channel, is a series of its own.
        sheet: Workbooks: the sheet. Default: the only one.
        decimal_mark: Tables: mark of decimals in numbers that are text, ``,`` or ``.``. Default: recognized.
        thousands_mark: Tables: mark between thousands in them, ``,``, ``.``, a blank or ``'``. Default: recognized, if
            it is one of the first two.
        date_format: Tables: format of dates, as for strftime. Default: the year first, or the day with points.
        missing: Tables: values that stand for a missing one, such as -9999.
        timezone: Tables: zone of times that state none, such as ``Europe/Berlin``. They are converted to UTC.
        sort: Tables: whether to sort the rows of each series by time.
        on_duplicate: Tables: what becomes of rows that repeat a time of their series: ``error``, ``mean`` or ``last``.
        categories: Tables: columns of text that become a channel for each category, or a value of each series where
            they are also in ``static``; as a mapping with the categories of each column, in their order.
        unknown_category: Tables: what becomes of a category that is not in such a mapping: ``zeros`` or ``error``.
        resample: Tables: step to which rows are aggregated, a multiple of ``s``, ``min``, ``h`` or ``D``.
        aggregate: Tables: how: ``mean``, ``sum`` or ``last``.
        min_length: Tables: rows that a series must have; shorter ones are set aside.

    Raises:
        UnknownNameError: If the source is neither a dataset nor a file, or a task or column is not there.
        ConfigError: If a setting is out of its range or is not for this task.
        DataError: If the content cannot be used.
    """
    # The parameters are the options, under their names.
    return load_source(LoadOptions.unchecked(**locals()))


class _Source(NamedTuple):
    """A located source.

    Attributes:
        name: Its name in messages.
        path: The file; of no meaning for a named dataset with a loader of its own.
        info: The named dataset; None for a file of the user.
    """

    name: str
    path: Path
    info: DatasetInfo | None


def load_source(options: LoadOptions) -> Data:
    """Read the source of these options and split it, see :func:`stablernn.data.load_data`."""
    data = _load(options)
    reading, counts = describe_reading(data.notes), data_counts(data.notes)
    if reading:
        _LOG.info("Data: read as %s.", reading)
    if counts:
        _LOG.info("Data: %s.", format_counts(counts))
    short = data.notes.get("short_series")
    if short:
        _LOG.info("Data: set aside by min_length: %s.", format_names(short["names"]))
    return data


def _load(options: LoadOptions) -> Data:
    # These hold for any source, so they are checked before a file is opened.
    if not 0 < options.validation_fraction < 1:
        raise errors.ConfigError(f"validation_fraction must be between 0 and 1, got {options.validation_fraction:g}.")
    if not 0 <= options.seed <= LARGEST_SEED:
        raise errors.ConfigError(f"seed must be from 0 to {LARGEST_SEED}, got {options.seed}.")
    source = _locate(options.source)
    task = _detect_source_task(source, options)
    _check_task(source.name, task, options.task)
    _check_named_options(source, options)
    _check_simulation_options(source.name, task, options)
    if source.info is not None and source.info.load is not None:
        _check_fixed_splits(source.info, options)
        data = load_named(source.info, options)
        return _split_channels(data, options) if options.channels_as_series else data
    if task == "predict-next":
        return _load_steps(source, options)
    if task == "simulate":
        return _load_experiments(source, options)
    if options.channels_as_series and task != "forecast":
        raise errors.ConfigError(
            f"channels_as_series is for forecasting; {terms().file(source.name)} is read for task '{task}'."
        )
    if task == "classify":
        return _load_classification(source, options)
    series = _load_forecast(source, options)
    return _split_channels(series, options) if options.channels_as_series else series


def _split_channels(data: Data, options: LoadOptions) -> ForecastData:
    """Return series of their own for the targets that are named, else for all channels."""
    if not isinstance(data, ForecastData):
        raise errors.ConfigError(
            f"channels_as_series is for forecasting; {terms().file(data.name)} is read for task '{data.task}'."
        )
    return channels_to_series(data, data.targets if options.target else None)


def read_sequences(
    path: Path,
    *,
    channels: Sequence[str] | None = None,
    timed: bool | None = None,
    group_column: str | None = None,
    **columns: Any,
) -> Sequences:
    """Read a file of sequences by its ending, or a folder of recordings.

    Args:
        path: The file or folder.
        channels: Features, in their order; all when omitted.
        timed: Of tables, see :func:`stablernn.data.readers.labelled_tables.read_labelled`.
        group_column: Column of a table or of a manifest, or array of an ``.npz`` file, with the group of each sequence.
        columns: Of tables: the column of labels, and the options of :func:`stablernn.data.table.series.open_table`.

    Raises:
        UnknownNameError: If there is no such file, or a table lacks a column that is named.
        ConfigError: If groups are asked for and the format has no place for them.
        DataError: If it is no file of sequences, or its content cannot be read.
    """
    if path.is_dir():
        recordings = read_recordings(
            path,
            label_column=columns.get("label_column", LABEL_COLUMN),
            group_column=group_column,
            repairs=columns.get("repairs"),
        )
        return recordings if channels is None else match_features(recordings, channels)
    file_format = require_task(path, "classify")
    if file_format in TABLE_FORMATS:
        label_column = columns.pop("label_column", LABEL_COLUMN)
        return read_labelled(
            open_table(path, **columns),
            channels=channels,
            label_column=label_column,
            group_column=group_column,
            timed=timed,
        )
    if group_column is None:
        sequences = _SEQUENCE_READERS[file_format](path)
    elif file_format == ".npz":
        sequences = read_npz(path, group=group_column)
    else:
        raise errors.ConfigError(
            f"group_column is for tables and .npz files, which have a place for groups; {terms().file(path.name)} has "
            "none. Write the sequences as one of these."
        )
    return sequences if channels is None else match_features(sequences, channels)


def detect_task(path: Path, task: str | None, label_column: str, repairs: Repairs | None = None) -> Task:
    """Return the task that a file is read for: the one asked for, where its format serves several.

    A folder is one of recordings, which are classified.

    Raises:
        DataError: If no reader takes it.
    """
    if path.is_dir():
        return "classify"
    tasks = FORMAT_TASKS[detect_format(path)]
    if is_text_file(path) and task is None and not is_ucr_text(path):
        raise errors.DataError(f"'{path.name}' is read by characters, for task 'predict-next'. Set the task.")
    if len(tasks) == 1:
        return tasks[0]
    if task in tasks:
        return task
    # A table serves both tasks; its columns tell which one is meant.
    names = read_column_names(path, repairs)
    return "classify" if label_column in names and TARGET_COLUMN not in names else "forecast"


def _locate(source: str | Path) -> _Source:
    # A Path is a file even if a dataset has its name.
    if isinstance(source, str) and is_dataset(source):
        info = dataset_info(source)
        return _Source(info.key, info.file or Path(info.key), info)
    path = Path(source)
    if not path.exists():
        if isinstance(source, str) and not _is_path(source):
            # Raises, with the datasets of similar names.
            dataset_info(source)
        raise errors.UnknownNameError(f"No file '{path}'. Check the path.{_suggest_file(path)}")
    return _Source(path.name, path, None)


def _is_path(source: str) -> bool:
    """Return True if a name that is no dataset was meant as a file."""
    return any(mark in source for mark in "/\\") or any(kind in FORMAT_TASKS for kind in Path(source.lower()).suffixes)


def _suggest_file(path: Path) -> str:
    try:
        return errors.did_you_mean(path.name, [file.name for file in path.parent.iterdir()])
    except OSError:
        # The folder does not exist or may not be listed.
        return ""


def _detect_source_task(source: _Source, options: LoadOptions) -> TaskName:
    if source.info is not None:
        return source.info.task
    if options.task == "simulate":
        return "simulate"
    is_text = is_text_file(source.path) and options.task != "classify"
    if options.task == "predict-next" or (is_text and not is_ucr_text(source.path)):
        return "predict-next"
    return detect_task(source.path, options.task, options.label_column, options.repairs)


def _check_task(name: str, task: str, requested: str | None) -> None:
    if requested is None or requested == task:
        return
    if requested not in get_args(TaskName):
        tasks = "Tasks are classify, forecast, predict-next and simulate."
        raise errors.unknown("task", requested, get_args(TaskName), tasks)
    raise errors.ConfigError(f"{terms().file(name)} is read for task '{task}', got task '{requested}'.")


def _check_named_options(source: _Source, options: LoadOptions) -> None:
    """Refuse options of named datasets that this source does not take."""
    for name in options.changed(NAMED_OPTIONS):
        if source.info is None:
            raise errors.ConfigError(f"{name} is for named datasets; {terms().file(source.name)} is a file.")
        if name not in source.info.takes:
            takes = f"; of {', '.join(NAMED_OPTIONS)} it takes {', '.join(source.info.takes) or 'none'}"
            raise errors.ConfigError(f"{name} is not for {terms().file(source.name)}{takes}.")


def _check_fixed_splits(info: DatasetInfo, options: LoadOptions) -> None:
    if options.test is not None or options.validation_fraction != VALIDATION_FRACTION:
        name = "test" if options.test is not None else "validation_fraction"
        raise errors.ConfigError(f"{name} is for files; '{info.key}' has fixed splits ({info.splits}).")


def _check_simulation_options(name: str, task: str, options: LoadOptions) -> None:
    """Refuse options of experiments for other tasks."""
    unused = options.changed(SIMULATION_OPTIONS)
    if unused and task != "simulate":
        raise errors.ConfigError(
            f"{unused[0]} is for task 'simulate'; {terms().file(name)} is read for task '{task}'. Leave it out, or set "
            "the task."
        )


def _check_no_forecast_options(source: _Source, options: LoadOptions, task: str, allowed: Sequence[str]) -> None:
    unused = next((name for name in options.changed(TASK_OPTIONS) if name not in allowed), None)
    if unused is not None:
        raise errors.ConfigError(f"{unused} is for forecasting; {terms().file(source.name)} is read for task '{task}'.")


def _load_steps(source: _Source, options: LoadOptions) -> StepData:
    if options.task is None:
        # Only a task that is asked for makes a text of numbers in columns a text.
        check_not_table(source.path)
    _check_no_forecast_options(source, options, "predict-next", ("channels",))
    path = require_step_file(source.path)
    test = find_test_file(path) if options.test is None else require_step_file(Path(options.test))
    return load_steps(
        path,
        test=test,
        features=options.channels,
        validation_fraction=options.validation_fraction,
        seed=options.seed,
    )


def _load_experiments(source: _Source, options: LoadOptions) -> SimulationData:
    _check_no_forecast_options(source, options, "simulate", EXPERIMENT_OPTIONS)
    test = None if options.test is None else Path(options.test)
    if test is None and not source.path.is_dir():
        test = find_test_file(source.path, "simulate")
    return load_experiments(source.path, test, options)


def _load_classification(source: _Source, options: LoadOptions) -> ClassificationData:
    _check_no_forecast_options(source, options, "classify", (*TABLE_OPTIONS, "channels", "group_column"))
    path, info = source.path, source.info
    is_table = not path.is_dir() and detect_format(path) in TABLE_FORMATS
    of_folders = FOLDER_OPTIONS if path.is_dir() else ()
    table_options = [name for name in options.changed(TABLE_OPTIONS) if name not in of_folders]
    if table_options and not is_table:
        raise errors.ConfigError(f"{table_options[0]} is for tables; {terms().file(source.name)} is none.")
    # The columns of a bundled dataset are known to be there.
    if info is None and is_table:
        _check_labelled(path, options)
    columns = {**options.of_table, "label_column": options.label_column}
    pool = read_sequences(path, channels=options.channels, group_column=options.group_column, **columns)
    if info is not None and info.members is not None:
        _check_fixed_splits(info, options)
        return fixed_splits(source.name, pool, info.members(len(pool.values)), how=info.splits)
    test_path = Path(options.test) if options.test is not None else None
    if test_path is None and not path.is_dir():
        test_path = find_test_file(path)
    if pool.categories:
        columns["repairs"] = options.repairs.model_copy(update={"categories": pool.categories})
    test = None
    if test_path is not None:
        try:
            test = _read_test_sequences(test_path, pool, {**columns, "group_column": options.group_column})
        except (errors.UnknownNameError, errors.ConfigError):
            # A test file needs no groups; they only tell whether one is on both sides.
            test = _read_test_sequences(test_path, pool, columns)
    return classification_data(
        source.name, pool, test, validation_fraction=options.validation_fraction, seed=options.seed
    )


def _read_test_sequences(path: Path, train: Sequences, columns: dict[str, Any]) -> Sequences:
    if path.is_dir():
        return read_sequences(path, **columns)
    if detect_format(path) not in TABLE_FORMATS:
        # All features are read; they are put into the order of the training file later.
        return read_sequences(path, group_column=columns.get("group_column"))
    # A feature without a name is the column that has no other role; one of groups would be taken for another feature.
    is_named = has_feature_names(train.features) or train.groups is not None
    channels = train.features if is_named else None
    return read_sequences(path, channels=channels, timed=train.times is not None, **columns)


def _check_labelled(path: Path, options: LoadOptions) -> None:
    names = read_column_names(path, options.repairs)
    if options.label_column not in names:
        raise errors.DataError(
            f"{terms().file(path.name)} has no column '{options.label_column}' with the class of each series. Name it "
            f"by label_column; there are {format_names(names)}."
        )
    if options.id_column not in names:
        raise errors.DataError(
            f"{terms().file(path.name)} has no column '{options.id_column}', so all of its rows are one sequence. Name "
            f"the column that tells sequences apart by id_column; there are {format_names(names)}."
        )


def _load_forecast(source: _Source, options: LoadOptions) -> ForecastData:
    for name in options.changed(("label_column", "group_column")):
        raise errors.ConfigError(
            f"{name} is for classification; {terms().file(source.name)} is read for task 'forecast'."
        )
    varying = [name for name in options.categories if name not in (*options.static, *options.future)]
    if options.channels_as_series and varying:
        raise errors.ConfigError(
            f"data.channels_as_series makes channels series of numbers, and data.categories makes channels of "
            f"'{varying[0]}'. Put it in data.static or data.future, or leave it out."
        )
    table = read_series(open_table(source.path, **options.of_table), options)
    if options.channels_as_series and options.target is None:
        # Each channel becomes a series, so all are forecast but those that are known in advance.
        options = options.with_options(target=tuple(name for name in table.channels if name not in options.future))
    test_path = None
    if options.test is not None:
        test_path = Path(options.test)
    elif source.info is None:
        # A bundled dataset has a single file.
        test_path = find_test_file(source.path)
    test = None
    if test_path is not None:
        # The channels, categories and series of the training file, whatever else the test file has.
        same = options.with_options(channels=table.channels, categories=dict(table.categories), min_length=None)
        test = read_series(open_table(test_path, **same.of_table), same)
        short = set(table.notes.get("short_series", {}).get("names", ()))
        test = replace(test, series=tuple(each for each in test.series if each.unique_id not in short))
    defaults = dict(source.info.settings) if source.info else {}
    if test is not None:
        # "test_steps" of a named dataset gives way to a test file, as every default gives way to an option.
        defaults.pop("test_steps", None)
    return forecast_data(source.name, table, options.with_defaults(defaults), test=test)
