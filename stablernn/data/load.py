"""``load_data``: a name or a file in, a dataset ready for training out."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from stablernn import errors
from stablernn.data.catalog import check_options, dataset_info, is_dataset, load_named
from stablernn.data.classification import classification_data, fixed_splits
from stablernn.data.forecasting.build import TARGET_COLUMN, forecast_data, read_series
from stablernn.data.forecasting.channels_as_series import channels_to_series
from stablernn.data.messages import listing
from stablernn.data.named.entry import DatasetInfo
from stablernn.data.notes import data_counts, in_words
from stablernn.data.readers.arff import read_arff
from stablernn.data.readers.labelled_tables import LABEL_COLUMN, read_labelled
from stablernn.data.readers.npz import read_npz
from stablernn.data.readers.paths import ENDINGS, TABLES, Task, companion_test, ending, require_task
from stablernn.data.readers.stepwise import TEXT, is_text, load_steps, refuse_table, require_steps
from stablernn.data.readers.table_chunks import column_names
from stablernn.data.readers.tables import ID_COLUMN, TIME_COLUMN, open_table
from stablernn.data.readers.ts import read_ts
from stablernn.data.readers.ucr_tsv import read_tsv
from stablernn.data.sequences import Sequences, are_names, for_model
from stablernn.data.step_data import StepData
from stablernn.data.types import ClassificationData, ForecastData

TASKS: tuple[Task, ...] = ("classify", "forecast")
VALIDATION_FRACTION = 0.2
#: Numpy's generator, which draws the validation sequences, takes 32 bits.
LARGEST_SEED = 2**32 - 1

_TABLE_COLUMNS = ("id_column", "time_column", "label_column", "stamps")
_SEQUENCE_READERS: dict[str, Callable[[Path], Sequences]] = {
    ".npz": read_npz,
    ".ts": read_ts,
    ".tsv": read_tsv,
    ".arff": read_arff,
}

_LOG = logging.getLogger("stablernn.data")
_Arguments = ParamSpec("_Arguments")
_Loaded = TypeVar("_Loaded", bound=ClassificationData | ForecastData | StepData)


def _with_counts_logged(load: Callable[_Arguments, _Loaded]) -> Callable[_Arguments, _Loaded]:
    """The same function, which logs what was filled, cut or skipped of what it loads."""

    @functools.wraps(load)
    def logged(*arguments: _Arguments.args, **options: _Arguments.kwargs) -> _Loaded:
        data = load(*arguments, **options)
        counts = data_counts(data.notes)
        if counts:
            _LOG.info("Data: %s.", in_words(counts))
        return data

    return logged


@_with_counts_logged
def load_data(
    source: str | Path,
    *,
    task: str | None = None,
    test: str | Path | None = None,
    target: str | Sequence[str] | None = None,
    id_column: str = ID_COLUMN,
    time_column: str = TIME_COLUMN,
    label_column: str = LABEL_COLUMN,
    stamps: str | None = None,
    channels: Sequence[str] | None = None,
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
) -> ClassificationData | ForecastData | StepData:
    """Reads a named dataset or a file and splits it into training, validation and test.

    Classification comes from ``.npz``, ``.ts``, ``.tsv`` and ``.arff``, forecasting from ``.csv`` and ``.parquet``,
    which serve classification, too, where they have a column of labels and no column ``y``, or the task says so. Text
    may be ``.gz`` or ``.xz``. A file ``NAME_TRAIN`` brings the ``NAME_TEST`` beside it as its test split.

    Args:
        source: Name of a dataset (see :func:`list_datasets`) or path of a file.
        task: ``classify``, ``forecast`` or ``predict-next``; what the source is for when omitted.
        test: File of the test split: sequences, or later rows of the same series.
        target: Forecast: channels to forecast. Default: ``y``, or the only channel.
        id_column: Tables: column that tells series apart.
        time_column: Tables: column of time stamps.
        label_column: Tables: column with the class of each series.
        stamps: Tables: what whole numbers in the column of time stamps are: ``unix-s``, ``unix-ms``, ``yyyymmdd`` or
            ``step``. Default: numbers of steps, refused where they look like one of the others.
        channels: What the model sees, in its order. Tables: columns; all columns of numbers when omitted. Sequences:
            all features, found by name; a file that does not name its features takes these names.
        future: Forecast: columns that are known in advance; their past is seen, too.
        static: Forecast: columns of numbers with one value for each series.
        calendar: Forecast: periods of which the model is told where each step lies: ``day``, ``week``, ``year``.
        horizon: Forecast: steps to forecast. Default: the season, at most 96.
        context_length: Forecast: steps before them. Default: twice the season or the horizon, as far as it fits.
        season: Forecast: steps of a season. Default: what the frequency suggests.
        frequency: Forecast: word of the time grid. Default: inferred.
        validation_steps: Forecast: steps before the test. Default: by ``validation_fraction``.
        test_steps: Forecast: steps at the end. Default: by ``validation_fraction``.
        validation_fraction: Share of the training sequences that are drawn for validation; for forecasting the share of
            the shortest series that validation and test get each.
        window_stride: Forecast: steps from a training window to the next.
        seed: Draws the validation sequences, and what a named dataset generates; 0 to 2**32 - 1.
        variant: Named datasets: one of the forms in which the papers use it, see ``docs/datasets.md``.
        partial: Named datasets: whether one that is here only in part will do.
        permutation: Named datasets: order of the pixels.
        length: Named datasets: steps of a sequence.
        channels_as_series: Forecast: whether each of the targets, by default each channel, is a series of its own.

    Raises:
        UnknownNameError: If the source is neither a dataset nor a file, or a task or column is not there.
        ConfigError: If a setting is out of its range or is not for this task.
        DataError: If the content cannot be used.
    """
    if not 0 < validation_fraction < 1:
        raise errors.ConfigError(f"validation_fraction must be between 0 and 1, got {validation_fraction:g}.")
    if not 0 <= seed <= LARGEST_SEED:
        raise errors.ConfigError(f"seed must be from 0 to {LARGEST_SEED}, got {seed}.")
    name, path, info = _locate(source)
    of_steps = info is None and (is_text(path) or task == "predict-next")
    natural = info.task if info else "predict-next" if of_steps else task_of(path, task, label_column)
    _check_task(name, natural, task)
    options = {"variant": variant, "partial": partial or None, "permutation": permutation, "length": length}
    asked = {word: value for word, value in options.items() if value is not None}
    check_options(name, info, asked)
    settings: dict[str, Any] = {
        "target": target,
        "channels": channels,
        "horizon": horizon,
        "context_length": context_length,
        "season": season,
        "frequency": frequency,
        "validation_steps": validation_steps,
        "test_steps": test_steps,
        "id_column": None if id_column == ID_COLUMN else id_column,
        "time_column": None if time_column == TIME_COLUMN else time_column,
        "label_column": None if label_column == LABEL_COLUMN else label_column,
        "stamps": stamps,
        "future": future or None,
        "static": static or None,
        "calendar": calendar or None,
        "window_stride": None if window_stride == 1 else window_stride,
    }
    given = {word: value for word, value in settings.items() if value is not None}
    if info is not None and info.load is not None:
        _check_no_files(info, test, validation_fraction)
        named = load_named(info, asked, given, seed=seed)
        return _melted(named, given) if channels_as_series else named
    if of_steps:
        if task is None:
            refuse_table(path)
        features = given.pop("channels", None)
        if given:
            raise errors.ConfigError(f"{next(iter(given))} is for forecasting; '{name}' is read for task '{natural}'.")
        return load_steps(
            require_steps(path),
            test=None if test is None else require_steps(Path(test)),
            features=features,
            validation_fraction=validation_fraction,
            seed=seed,
        )
    if channels_as_series and natural != "forecast":
        raise errors.ConfigError(f"channels_as_series is for forecasting; '{name}' is read for task '{natural}'.")
    if natural == "classify":
        return _load_classification(name, path, info, test, given, validation_fraction, seed)
    wide = _load_forecast(name, path, info, test, dict(given), validation_fraction, every=channels_as_series)
    return _melted(wide, given) if channels_as_series else wide


def _melted(data: ClassificationData | ForecastData | StepData, given: dict[str, Any]) -> ForecastData:
    if not isinstance(data, ForecastData):
        raise errors.ConfigError(
            f"channels_as_series is for forecasting; '{data.name}' is read for task '{data.task}'."
        )
    return channels_to_series(data, data.targets if given.get("target") else None)


def read_sequences(path: Path, *, channels: Sequence[str] | None = None, **columns: Any) -> Sequences:
    """Reads a file of sequences by its ending.

    Args:
        path: The file.
        channels: Features, in their order; all when omitted.
        columns: Of tables, see :func:`stablernn.data.readers.labelled_tables.read_labelled`.

    Raises:
        UnknownNameError: If there is no such file, or a table lacks a column that is named.
        DataError: If it is not one of sequences, or its content cannot be read.
    """
    kind = require_task(path, "classify")
    if kind in TABLES:
        return read_labelled(path, channels=channels, **columns)
    found = _SEQUENCE_READERS[kind](path)
    return found if channels is None else for_model(found, channels)


def _locate(source: str | Path) -> tuple[str, Path, DatasetInfo | None]:
    if isinstance(source, str) and is_dataset(source):
        info = dataset_info(source)
        return info.key, info.file or Path(info.key), info
    path = Path(source)
    if not path.exists():
        if isinstance(source, str) and not _is_path(source):
            dataset_info(source)
        raise errors.UnknownNameError(f"No file '{path}'. Check the path.{_near_file(path)}")
    return path.name, path, None


def _is_path(source: str) -> bool:
    """Whether a word that is no dataset was meant as a file."""
    known = (*ENDINGS, TEXT)
    return any(mark in source for mark in "/\\") or any(kind in known for kind in Path(source.lower()).suffixes)


def _near_file(path: Path) -> str:
    try:
        return errors.near(path.name, [file.name for file in path.parent.iterdir()])
    except OSError:
        return ""


def task_of(path: Path, task: str | None, label_column: str) -> Task:
    if path.is_dir():
        raise errors.DataError(f"'{path}' is a folder. Give one of the files in it.")
    tasks = ENDINGS[ending(path)]
    if len(tasks) == 1:
        return tasks[0]
    if task in tasks:
        return task
    names = column_names(path)
    return "classify" if label_column in names and TARGET_COLUMN not in names else "forecast"


def _check_no_files(info: DatasetInfo, test: str | Path | None, validation_fraction: float) -> None:
    if test is not None or validation_fraction != VALIDATION_FRACTION:
        setting = "test" if test is not None else "validation_fraction"
        raise errors.ConfigError(f"{setting} is for files; '{info.key}' has fixed splits ({info.splits}).")


def _check_task(name: str, natural: str, task: str | None) -> None:
    if task is None or task == natural:
        return
    if task not in (*TASKS, "predict-next"):
        tasks = "Tasks are classify, forecast and predict-next."
        raise errors.unknown("task", task, (*TASKS, "predict-next"), tasks)
    raise errors.ConfigError(f"'{name}' is read for task '{natural}', got task '{task}'.")


def _load_classification(
    name: str,
    path: Path,
    info: DatasetInfo | None,
    test: str | Path | None,
    given: dict[str, Any],
    validation_fraction: float,
    seed: int,
) -> ClassificationData:
    columns = {word: given.pop(word) for word in _TABLE_COLUMNS if word in given}
    channels = given.pop("channels", None)
    if given:
        raise errors.ConfigError(f"{next(iter(given))} is for forecasting; '{name}' is read for task 'classify'.")
    if columns and ending(path) not in TABLES:
        raise errors.ConfigError(f"{next(iter(columns))} is for tables; '{name}' is none.")
    if info is None and ending(path) in TABLES:
        _check_labelled(path, **columns)
    pool = read_sequences(path, channels=channels, **columns)
    if info is not None and info.members is not None:
        _check_no_files(info, test, validation_fraction)
        return fixed_splits(name, pool, info.members(len(pool.values)), how=info.splits)
    test_path = Path(test) if test is not None else companion_test(path)
    test_pool = read_sequences(test_path, **_as_training(pool, test_path), **columns) if test_path else None
    return classification_data(name, pool, test_pool, validation_fraction=validation_fraction, seed=seed)


def _as_training(train: Sequences, test_path: Path) -> dict[str, Any]:
    """How a table is read to go with a training file; files of other kinds are put in order afterwards."""
    if ending(test_path) not in TABLES:
        return {}
    return {"channels": train.features if are_names(train.features) else None, "timed": train.times is not None}


def _check_labelled(path: Path, id_column: str = ID_COLUMN, **columns: str) -> None:
    label, names = columns.get("label_column", LABEL_COLUMN), column_names(path)
    if label not in names:
        raise errors.DataError(
            f"'{path.name}' has no column '{label}' with the class of each series. Name it by label_column; there are "
            f"{listing(names)}."
        )
    if id_column not in names:
        raise errors.DataError(
            f"'{path.name}' has no column '{id_column}', so all of its rows are one sequence. Name the column that "
            f"tells sequences apart by id_column; there are {listing(names)}."
        )


def _load_forecast(
    name: str,
    path: Path,
    info: DatasetInfo | None,
    test: str | Path | None,
    given: dict[str, Any],
    validation_fraction: float,
    *,
    every: bool,
) -> ForecastData:
    """The series of a table; ``every``: all channels are forecast where no target is named."""
    if "label_column" in given:
        raise errors.ConfigError(f"label_column is for classification; '{name}' is read for task 'forecast'.")
    columns = {word: given.pop(word) for word in _TABLE_COLUMNS if word in given}
    table = read_series(open_table(path, **columns), given)
    if every and "target" not in given:
        given["target"] = tuple(word for word in table.channels if word not in given.get("future", ()))
    test_path = Path(test) if test is not None else (companion_test(path) if info is None else None)
    later = None
    if test_path is not None:
        later = read_series(open_table(test_path, **columns), {**given, "channels": table.channels})
    # "test_steps" of a named dataset gives way to a test file, as every default gives way to what is asked for.
    defaults = dict(info.settings) if info else {}
    if later is not None:
        defaults.pop("test_steps", None)
    return forecast_data(name, table, test=later, validation_fraction=validation_fraction, **{**defaults, **given})
