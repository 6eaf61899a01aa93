"""Training by settings: data, model, trainer and run directory are put together, and the run is fitted and finished."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import yaml

from stablernn.atomic_files import read_json, write_bytes, write_json
from stablernn.data import ForecastData
from stablernn.data.split_merging import class_weights
from stablernn.data.step_data import StepData
from stablernn.errors import ConfigError, DataError, InterruptedRun
from stablernn.nn.models import Forecaster, SequenceModel
from stablernn.training.batches.augmentation import Augmentation
from stablernn.training.batches.losses import ClassifyTask, ForecastTask, Task
from stablernn.training.batches.minibatches import Feed, StepFeed
from stablernn.training.batches.sample_minibatches import SampleFeed
from stablernn.training.build_model import create_model
from stablernn.training.describe import describe_data
from stablernn.training.evaluation.evaluate import Scorer
from stablernn.training.evaluation.evaluate_predict_next import StepScorer
from stablernn.training.finish import finish
from stablernn.training.loaded_run import Summary, stored_settings
from stablernn.training.loop.checkpoint import load_checkpoint
from stablernn.training.loop.device import pick_device, torch_settings
from stablernn.training.loop.environment import environment
from stablernn.training.loop.trainer import Progress, Trainer
from stablernn.training.resume import check_resumable, directory_to_resume
from stablernn.training.run_data import Data, data_files, load_run_data, locate_files, relative_path, with_time
from stablernn.training.run_directory import RunDirectory, new_directory
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import merge_settings
from stablernn.training.settings.resolve import resolve


def train(
    config: Config | None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Train as the settings say, and leave a run directory.

    Args:
        config: The settings; None with ``resume``: those of the run, which also stand for all that it leaves out.
        run_dir: Where the run goes; None: ``runs/<dataset>-<cell>-<number>`` below the working directory.
        resume: Whether to go on with the run in ``run_dir``, from where it was stopped. The numbers are those of a run
            that was never stopped.
        progress: Called after each step and each validation, for a progress bar.

    Returns:
        What ``summary.json`` holds: ``run``, ``task``, ``cell``, ``parameters``, ``epochs``, ``steps``, ``seconds``,
        ``best_epoch``, ``metrics`` of the best weights on ``validation`` and, where there is one, ``test``,
        ``baselines``, how those beside a classification's scores were fitted, ``data_notes``, which files of the
        data were missing (``partial``) or had no published checksum (``unchecked``), ``diverged`` and ``warnings``,
        sentences; of a forecast with a linear skip also ``gate``, and ``context_length`` where it was chosen.

    Raises:
        ConfigError: If a setting is wrong, the model does not fit into memory, there is a run in ``run_dir`` already,
            or none to resume.
        UnknownNameError: If the dataset or the cell is not there.
        DataError: If the data cannot be used, or is not that with which the run began.
        DeviceError: If the device is not there.
        TrainingError: If the loss is not finite, no epoch left weights that give finite answers, the loss diverged and
            the best weights are of no use, or less is proved of them than ``training.certified`` asks for.
        InterruptedRun: If the user stopped it; it can be resumed.
    """
    directory = directory_to_resume(run_dir) if resume else None
    stored = stored_settings(directory) if directory is not None else None
    if stored is not None:
        config = stored if config is None else merge_settings(stored, config)
    if config is None:
        raise ConfigError("train needs settings: give a config, or resume a run.")
    if not resume and run_dir is not None and RunDirectory(Path(run_dir)).has_run:
        raise ConfigError(f"There is a run in '{run_dir}' already. Resume it with --resume, or name another directory.")
    device = pick_device(config.training.device)
    data = load_run_data(
        config if directory is None else locate_files(config, directory.path, read_json(directory.data))
    )
    settings = resolve(config, data)
    data = with_time(data, settings)
    if stored is not None:
        check_resumable(stored, settings)
    with torch_settings(device, seed=settings.training.seed, threads=settings.training.threads):
        model = create_model(settings, data)
        opened = _open(run_dir, settings, data, model, device, resume=resume)
        return _fit(opened, settings, data, model.to(device), progress)


def _open(
    run_dir: str | Path | None, config: Config, data: Data, model: SequenceModel, device: torch.device, *, resume: bool
) -> RunDirectory:
    """The directory with settings, environment and data written, or checked where a run is resumed."""
    try:
        path = Path(run_dir) if run_dir is not None else new_directory(data.name, config.model.cell)
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"Cannot make the run directory '{error.filename}': {error.strerror}.") from error
    directory = RunDirectory(path)
    here = environment(device)
    if resume:
        began_with = read_json(directory.data)["fingerprint"]
        if began_with != data.fingerprint:
            raise DataError(
                f"'{data.name}' has changed since the run in '{run_dir}' began: its fingerprint was {began_with}, "
                f"now it is {data.fingerprint}. Give the old data, or start a new run."
            )
        first = read_json(directory.environment)
        here = {**first, "resumed": [*first.get("resumed", []), here]}
    write_json(directory.environment, here)
    described = describe_data(data, model)
    if resume:
        before = read_json(directory.data)
        described["files"] = before.get("files", {})
        # The length itself is among the settings of the run, so that it was not chosen again.
        tried = before.get("notes", {}).get("context_length")
        if tried is not None:
            data.notes["context_length"] = tried
    else:
        described["files"] = {key: relative_path(file, path) for key, file in data_files(config).items()}
    write_json(directory.data, described)
    # The settings make the directory a run, so they come last: what has a config.yaml has the rest.
    write_bytes(directory.config, yaml.safe_dump(config.tree(), sort_keys=False, allow_unicode=True).encode())
    return directory


def _fit(
    directory: RunDirectory,
    config: Config,
    data: Data,
    model: SequenceModel,
    progress: Callable[[Progress], None] | None,
) -> Summary:
    skip = model.skip if isinstance(model, Forecaster) else None
    start = None if skip is None else skip.weight.detach().clone()
    trainer = _trainer(directory, config, data, model)
    if directory.checkpoint("last").is_file():
        trainer.restore(load_checkpoint(directory.checkpoint("last")))
    directory.drop_records_after(trainer.position.epoch)
    try:
        if not trainer.fit(progress):
            raise _interrupted(directory, trainer)
        return finish(directory, config, data, trainer, start)
    except KeyboardInterrupt:
        raise _interrupted(directory, trainer) from None


def _trainer(directory: RunDirectory, config: Config, data: Data, model: SequenceModel) -> Trainer:
    settings = config.training
    if isinstance(data, StepData):
        assert settings.batch_size is not None
        assert settings.bptt_steps is not None
        device = next(model.parameters()).device
        feed: Feed = StepFeed(
            data.train, settings.batch_size, settings.bptt_steps, continuous=data.continuous, device=device
        )
        return Trainer(model, feed, StepScorer(data, "validation"), settings, directory)
    validation = Scorer(data, "validation", quantiles=config.task.quantiles)
    if isinstance(data, ForecastData):
        # Errors of series that differ in size are only comparable in units of each series.
        task: Task = ForecastTask("mase" if len(data.series) > 1 else "mae")
        assert settings.batch_size is not None
        feed = SampleFeed(
            data.windows("train"),
            settings.batch_size,
            next(model.parameters()).device,
            warm_up=settings.warm_up or 0,
            multiple=model.patches.stride,
        )
        return Trainer(model, feed, validation, settings, directory, task)
    weights = class_weights(data) if settings.class_weights == "balanced" else None
    changed = Augmentation(settings.time_warp or 0.0, settings.jitter or 0.0, settings.rescale or 0.0)
    task = ClassifyTask(weights, settings.label_smoothing or 0.0, changed)
    return Trainer(model, data.train, validation, settings, directory, task)


def _interrupted(directory: RunDirectory, trainer: Trainer) -> InterruptedRun:
    return InterruptedRun(
        f"Stopped at step {trainer.position.step} of {trainer.total_steps}. "
        f"Go on with it by --resume --run-dir {directory.path}."
    )
