"""The data of a run: loaded as its settings say, with its files located from the run directory."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stablernn.data.catalog import is_dataset
from stablernn.data.files import is_table
from stablernn.data.load import load_source
from stablernn.data.options import FOLDER_OPTIONS, NAMED_OPTIONS, TABLE_OPTIONS, LoadOptions
from stablernn.data.step_data import Data
from stablernn.data.table.cells import CellError
from stablernn.errors import DataError
from stablernn.training.settings.config import Config, data_options
from stablernn.training.tasks import Task, task_for, task_type

_PROGRESS = logging.getLogger("stablernn.progress")


def load_run_data(
    config: Config,
    source: str | None = None,
    *,
    features: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    choose: bool = True,
) -> Data:
    """Load the data that settings name, or another source in the same way.

    Args:
        config: The settings.
        source: Source to load in place of theirs.
        features: Features of a trained model, in its order. Columns are found by these names, wherever they stand in
            the file; so are the features of sequences, where both have names.
        targets: Targets that it forecasts, in its order.
        choose: Whether inputs that the settings leave open are chosen by the training split.

    Raises:
        UnknownNameError: If the source is neither a dataset nor a file, or a column is missing.
        DataError: If the content cannot be used.
    """
    options = data_options(config)
    if source is not None and source != config.data.source:
        # Options of one named dataset mean nothing to another, and what is only scored is drawn from by no group.
        options = options.with_options(source=source).reset(("test", "group_column", *NAMED_OPTIONS))
        if not is_table(source):
            # Roles of a table's columns mean nothing to a file without columns.
            of_folders = FOLDER_OPTIONS if Path(source).is_dir() else ()
            options = options.reset([name for name in TABLE_OPTIONS if name not in of_folders])
    # Where columns were made into series, the model's one channel is no column of the file.
    if not config.data.channels_as_series:
        # Before a run has begun, its settings may leave the task to the data.
        task = Task if config.task.name is None else task_type(config.task.name)
        options = task.select_columns(options, features, targets)
    _PROGRESS.info("Reading %s ...", options.source, extra={"source": str(options.source)})
    data = prepare_data(_load(options), config, choose=choose)
    model = config.model
    # Before a run has begun, its settings do not say yet whether the times are used.
    is_time_resolved = model.time == "ignore" or (model.time == "dt" and bool(model.max_dt))
    return with_time(data, config) if is_time_resolved else data


def _load(options: LoadOptions) -> Data:
    """Load a source; the error of a cell names the column of series that a check of the data proposes."""
    try:
        return load_source(options)
    except CellError as error:
        from stablernn.data.check import check_source

        raise DataError(check_source(options).problems[0].text) from error


def prepare_data(data: Data, config: Config, *, choose: bool = True) -> Data:
    """Return loaded data as it is trained on: without validation where ``refit`` is set, and with chosen inputs."""
    data = data.without_validation() if config.training.refit else data
    return task_for(data).choose_inputs(config) if choose else data


def with_time(data: Data, config: Config) -> Data:
    """Return the data with times in the model's regular step, or without them where the model takes none.

    Raises:
        DataError: If the model takes the time of each step, and the data does not have it.
    """
    return data.with_time_step(config.model.time_step if config.model.time == "dt" else None)


def data_files(config: Config) -> dict[str, str]:
    """Return the files that the data settings name, by setting; named datasets are no files."""
    paths = {"source": config.data.source, "test": config.data.test}
    return {key: path for key, path in paths.items() if path is not None and not (key == "source" and is_dataset(path))}


def relative_path(path: str, run_dir: Path) -> str:
    """Return the path of a file relative to a run directory.

    It is the same in every working directory, and stays right when both are moved together.
    """
    file = Path(path)
    # Only the folder is resolved: a file that is a link keeps its own name.
    return os.path.relpath(file.parent.resolve() / file.name, run_dir.resolve())


def locate_files(config: Config, run_dir: Path, description: Mapping[str, Any]) -> Config:
    """Return settings that name the data's files by where they lay at training, wherever the working directory is.

    A path that still means the same file stays as it is. Where the file is gone, the path that was typed at training is
    taken if it names a file here; otherwise the location at training stays, so that the error for a missing file says
    where it was.

    Args:
        config: The settings as stored.
        run_dir: The run directory.
        description: Content of its ``data.json``.
    """
    located = {}
    for key, path in data_files(config).items():
        relative = description.get("files", {}).get(key)
        if relative is None or relative == relative_path(path, run_dir):
            continue
        location = Path(os.path.normpath(run_dir.resolve() / relative))
        if location.exists() or not Path(path).exists():
            located[key] = str(location)
    return config.updated("data", **located)
