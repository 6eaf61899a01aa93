"""``load_data``: a name or a file in, a dataset ready for training out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stablernn import errors
from stablernn.data.catalog import DatasetInfo, dataset_info, is_dataset
from stablernn.data.classification import classification_data, fixed_splits
from stablernn.data.files import ENDINGS, Task, companion_test, ending, require_task
from stablernn.data.forecasting import forecast_data
from stablernn.data.npz import read_npz
from stablernn.data.sequences import Sequences, for_model
from stablernn.data.tables import ID_COLUMN, TIME_COLUMN, open_table
from stablernn.data.types import ClassificationData, ForecastData
from stablernn.data.ucr import read_ts, read_tsv

TASKS: tuple[Task, ...] = ("classify", "forecast")
VALIDATION_FRACTION = 0.2
#: Numpy's generator, which draws the validation sequences, takes 32 bits.
LARGEST_SEED = 2**32 - 1

_SEQUENCE_READERS: dict[str, Callable[[Path], Sequences]] = {".npz": read_npz, ".ts": read_ts, ".tsv": read_tsv}


def load_data(
    source: str | Path,
    *,
    task: str | None = None,
    test: str | Path | None = None,
    target: str | Sequence[str] | None = None,
    id_column: str = ID_COLUMN,
    time_column: str = TIME_COLUMN,
    channels: Sequence[str] | None = None,
    horizon: int | None = None,
    context_length: int | None = None,
    season: int | None = None,
    frequency: str | None = None,
    validation_steps: int | None = None,
    test_steps: int | None = None,
    validation_fraction: float = VALIDATION_FRACTION,
    seed: int = 0,
) -> ClassificationData | ForecastData:
    """Reads a named dataset or a file and splits it into training, validation and test.

    Classification comes from ``.npz``, ``.ts`` and ``.tsv``, forecasting from ``.csv``; text files may be ``.gz``.
    A file ``NAME_TRAIN`` brings the ``NAME_TEST`` beside it as its test split.

    Args:
        source: Name of a dataset (see :func:`list_datasets`) or path of a file.
        task: ``classify`` or ``forecast``; what the source is for when omitted.
        test: File of the test split: sequences, or later rows of the same series.
        target: Forecast: channels to forecast. Default: ``y``, or the only channel.
        id_column: Forecast: column that tells series apart.
        time_column: Forecast: column of time stamps.
        channels: What the model sees, in its order. Forecast: columns; all columns of numbers when omitted. Sequences:
            all features, found by name; a file that does not name its features takes these names.
        horizon: Forecast: steps to forecast. Default: the season, at most 96.
        context_length: Forecast: steps before them. Default: twice the season or the horizon, as far as it fits.
        season: Forecast: steps of a season. Default: what the frequency suggests.
        frequency: Forecast: word of the time grid. Default: inferred.
        validation_steps: Forecast: steps before the test. Default: by ``validation_fraction``.
        test_steps: Forecast: steps at the end. Default: by ``validation_fraction``.
        validation_fraction: Share of the training sequences that are drawn for validation; for forecasting the share of
            the shortest series that validation and test get each.
        seed: Draws the validation sequences; 0 to 2**32 - 1.

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
    natural = info.task if info else _task_of(path)
    _check_task(name, natural, task)
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
    }
    given = {word: value for word, value in settings.items() if value is not None}
    if natural == "classify":
        return _load_classification(name, path, info, test, given, validation_fraction, seed)
    return _load_forecast(name, path, info, test, given, validation_fraction)


def read_sequences(path: Path) -> Sequences:
    """Reads a file of sequences by its ending.

    Raises:
        UnknownNameError: If there is no such file.
        DataError: If it is not one of sequences, or its content cannot be read.
    """
    return _SEQUENCE_READERS[require_task(path, "classify")](path)


def _locate(source: str | Path) -> tuple[str, Path, DatasetInfo | None]:
    if isinstance(source, str) and is_dataset(source):
        info = dataset_info(source)
        return info.key, info.file, info
    path = Path(source)
    if not path.exists():
        dataset_info(str(source))
    return path.name, path, None


def _task_of(path: Path) -> Task:
    if path.is_dir():
        raise errors.DataError(f"'{path}' is a folder. Give one of the files in it.")
    return ENDINGS[ending(path)]


def _check_task(name: str, natural: Task, task: str | None) -> None:
    if task is None or task == natural:
        return
    if task not in TASKS:
        raise errors.unknown("task", task, TASKS, "Tasks are classify and forecast.")
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
    channels = given.pop("channels", None)
    if given:
        raise errors.ConfigError(f"{next(iter(given))} is for forecasting; '{name}' is read for task 'classify'.")
    pool = read_sequences(path)
    if channels is not None:
        pool = for_model(pool, channels)
    if info is not None and info.members is not None:
        if test is not None or validation_fraction != VALIDATION_FRACTION:
            setting = "test" if test is not None else "validation_fraction"
            raise errors.ConfigError(f"{setting} is for files; '{name}' has fixed splits ({info.splits}).")
        return fixed_splits(name, pool, info.members(len(pool.values)), how=info.splits)
    test_path = Path(test) if test is not None else companion_test(path)
    test_pool = read_sequences(test_path) if test_path is not None else None
    return classification_data(name, pool, test_pool, validation_fraction=validation_fraction, seed=seed)


def _load_forecast(
    name: str,
    path: Path,
    info: DatasetInfo | None,
    test: str | Path | None,
    given: dict[str, Any],
    validation_fraction: float,
) -> ForecastData:
    columns = {word: given.pop(word) for word in ("id_column", "time_column") if word in given}
    table = open_table(path, **columns).read(given.pop("channels", None))
    test_path = Path(test) if test is not None else (companion_test(path) if info is None else None)
    later = open_table(test_path, **columns).read(table.channels) if test_path is not None else None
    # "test_steps" of a named dataset gives way to a test file, as every default gives way to what is asked for.
    defaults = dict(info.settings) if info else {}
    if later is not None:
        defaults.pop("test_steps", None)
    return forecast_data(name, table, test=later, validation_fraction=validation_fraction, **{**defaults, **given})
