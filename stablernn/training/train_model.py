"""Training by settings: data, model, trainer and run directory are put together, and the run is fitted and finished."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import yaml

from stablernn.atomic_files import read_json, write_bytes, write_json
from stablernn.data.step_data import Data
from stablernn.errors import ConfigError, DataError, InterruptedRun
from stablernn.nn.models import SequenceModel
from stablernn.training.build_model import create_model, with_engine
from stablernn.training.build_trainer import create_trainer
from stablernn.training.callbacks import Callback, CallbackRecorder
from stablernn.training.describe import describe_data
from stablernn.training.finish import finish
from stablernn.training.loaded_run import Summary
from stablernn.training.loop.base_trainer import BaseTrainer, NoRecorder, Progress
from stablernn.training.loop.checkpoint import decode_checkpoint, read_checkpoint
from stablernn.training.loop.device import pick_device, torch_settings
from stablernn.training.loop.environment import environment
from stablernn.training.loop.launch import read_launch
from stablernn.training.loop.process_group import ProcessGroup, open_group
from stablernn.training.resume import check_resumable, directory_to_resume
from stablernn.training.run_data import data_files, load_run_data, locate_files, relative_path, with_time
from stablernn.training.run_directory import RunDirectory, new_directory
from stablernn.training.settings.config import AUTO, Config
from stablernn.training.settings.load import merge_settings
from stablernn.training.settings.resolve import resolve
from stablernn.training.several_processes import check_processes, refuse_settings_of_one_process
from stablernn.training.stored_runs.run_lock import mark_running
from stablernn.training.stored_runs.stored_settings import stored_settings
from stablernn.training.tasks import Task, task_for

if TYPE_CHECKING:
    from stablernn.training.search import Budget, Choice

_PROGRESS = logging.getLogger("stablernn.progress")


def train(
    config: Config | None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    *,
    budget: Budget | None = None,
    callbacks: Sequence[Callback] = (),
) -> Summary:
    """Train by settings, and write a run directory.

    With the cell ``auto``, cell and other settings are chosen first, by cross-validation on the training data.

    Processes that torchrun has started train one model together: each takes its share of every minibatch, and the first
    one writes the run directory and calls ``progress`` and ``callbacks``. All of them return the summary.

    Args:
        config: The settings; None with ``resume``: those of the run, which also stand for all that it leaves out.
        run_dir: Directory of the run; None: ``runs/<dataset>-<cell>-<number>`` below the working directory.
        resume: True to go on with the run in ``run_dir``, from where it was stopped. The numbers are those of a run
            that was never stopped.
        progress: Called after each step and each validation, for a progress bar.
        budget: What choosing the settings and the training may take together; None: two minutes. Only for the cell
            ``auto``.
        callbacks: Are told of the start, each epoch and the end, see :mod:`stablernn.training.callbacks`.

    Returns:
        The content of ``summary.json``: ``run``, ``task``, ``cell``, ``engine``, ``parameters``, ``epochs``, ``steps``,
        ``seconds``, ``best_epoch``, ``metrics`` of the best weights on ``validation`` and, where there is one,
        ``test``, ``baselines``, notes on how those of a classification were fitted, ``data_notes``, which files of the
        data were missing (``partial``) or had no published checksum (``unchecked``), ``still_improving``, the gain of
        the last quarter of the epochs where it was large, ``diverged`` and ``warnings``, sentences; of a forecast with
        a linear skip also ``gate``, and ``context_length`` where it was chosen, and ``choice`` of settings that were.

    Raises:
        ConfigError: If a setting is wrong, the model does not fit into memory, there is a run in ``run_dir`` already,
            or none to resume, or the settings do not go with several processes.
        UnknownNameError: If the dataset or the cell does not exist.
        DataError: If the data cannot be used, or is not that with which the run began.
        DeviceError: If the device is missing.
        TrainingError: If another process ended, the loss is not finite, no epoch left weights that give finite
            answers, the loss diverged and the best weights are of no use, or less is proved of them than
            ``training.certified`` asks for.
        InterruptedRun: If the user stopped it; it can be resumed.
    """
    origin = _find_origin(config, run_dir, resume=resume)
    config = origin.config
    launch = read_launch()
    refuse_settings_of_one_process(config)
    device = pick_device(config.training.device, launch)
    choice = _choose(config, budget)
    if choice is not None:
        config = choice.config
    # Before the data is read, which may take some processes longer than others.
    with open_group(launch, device) as processes:
        data = load_run_data(origin.locate_files(config))
        settings = resolve(config, task_for(data))
        data = with_time(data, settings)
        if origin.stored is not None:
            check_resumable(origin.stored, settings)
        with torch_settings(device, seed=settings.training.seed, threads=settings.training.threads):
            # The model is created on the CPU, so that a seed gives the same first weights on every device.
            model = create_model(settings, data)
            settings = with_engine(settings, model, device, may_change=origin.engine_may_change)
            check_processes(processes, settings, data, device)
            model.rnn.recompute_every(settings.training.recompute_every)
            # All processes have read a run that is resumed before its files are replaced.
            path = processes.run_on_rank_zero(
                lambda: str(_open_directory(run_dir, settings, data, model, device, resume=resume).path)
            )
            directory = RunDirectory(Path(path))
            if choice is not None:
                write_json(directory.choice, choice.document)
            if not processes.is_main:
                progress, callbacks = None, ()
            with mark_running(directory.path) if processes.is_main else nullcontext():
                return _fit(directory, settings, task_for(data), model.to(device), progress, callbacks, processes)


class _Origin(NamedTuple):
    """The settings that a training begins with, and the run that they come from.

    Attributes:
        config: The settings, not resolved.
        resumed: Directory of the run that is resumed; None for a new run.
        stored: Settings of that run.
        engine_may_change: Whether ``auto`` takes the place of an engine that cannot run here.
    """

    config: Config
    resumed: RunDirectory | None = None
    stored: Config | None = None
    engine_may_change: bool = False

    def locate_files(self, config: Config) -> Config:
        """Return settings in which the files of a resumed run are found from any working directory."""
        if self.resumed is None:
            return config
        return locate_files(config, self.resumed.path, read_json(self.resumed.data))


def _find_origin(config: Config | None, run_dir: str | Path | None, *, resume: bool) -> _Origin:
    """Return the settings given, merged over those of a run that is resumed.

    Raises:
        ConfigError: If there is no run to resume, a run in the directory of a new one, or no settings.
    """
    if resume:
        resumed = directory_to_resume(run_dir)
        stored = stored_settings(resumed)
        if config is None:
            return _Origin(stored, resumed, stored, engine_may_change=True)
        # The command line gives the stored settings with those that were typed: the stored engine was not asked for.
        is_engine_asked_for = config.model.engine not in (None, stored.model.engine)
        merged = merge_settings(stored, config)
        return _Origin(merged, resumed, stored, engine_may_change=not is_engine_asked_for)
    if config is None:
        raise ConfigError("train needs settings: give a config, or resume a run.")
    if run_dir is not None and RunDirectory(Path(run_dir)).has_run:
        raise ConfigError(f"There is a run in '{run_dir}' already. Resume it with --resume, or name another directory.")
    return _Origin(config)


def _choose(config: Config, budget: Budget | None) -> Choice | None:
    """Choose cell and settings where the cell is ``auto``; None where there is nothing to choose."""
    if config.model.cell == AUTO:
        # Imported here: a search trains models itself.
        from stablernn.training.search import choose_settings

        return choose_settings(config, budget)
    if budget is not None:
        raise ConfigError(
            f"A budget is for choosing a cell, and '{config.model.cell}' is given. Leave one of them out."
        )
    return None


def _open_directory(
    run_dir: str | Path | None, config: Config, data: Data, model: SequenceModel, device: torch.device, *, resume: bool
) -> RunDirectory:
    """Return the run directory with settings, environment and data written, or checked where a run is resumed."""
    try:
        path = Path(run_dir) if run_dir is not None else new_directory(data.name, config.model.cell)
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"Cannot make the run directory '{error.filename}': {error.strerror}.") from error
    directory = RunDirectory(path)
    machine = environment(device)
    description = describe_data(data, model)
    if resume:
        before = directory.read_data()
        if before["fingerprint"] != data.fingerprint:
            raise DataError(
                f"'{data.name}' has changed since the run in '{run_dir}' began: its fingerprint was "
                f"{before['fingerprint']}, now it is {data.fingerprint}. Give the old data, or start a new run."
            )
        first = read_json(directory.environment)
        machine = {**first, "resumed": [*first.get("resumed", []), machine]}
        description["files"] = before.get("files", {})
        # The chosen length is among the settings of the run, so that it was not chosen again.
        candidates = before.get("notes", {}).get("context_length")
        if candidates is not None:
            data.notes["context_length"] = candidates
    else:
        description["files"] = {key: relative_path(file, path) for key, file in data_files(config).items()}
    write_json(directory.environment, machine)
    write_json(directory.data, description)
    # The settings make the directory a run, so they come last: a directory with a config.yaml has the other files.
    write_bytes(directory.config, yaml.safe_dump(config.tree(), sort_keys=False, allow_unicode=True).encode())
    return directory


def _fit(
    directory: RunDirectory,
    config: Config,
    task: Task,
    model: SequenceModel,
    progress: Callable[[Progress], None] | None,
    callbacks: Sequence[Callback],
    processes: ProcessGroup,
) -> Summary:
    for callback in callbacks:
        callback.on_start(config.by_key(), directory.path)
    try:
        summary = _fit_and_finish(directory, config, task, model, progress, callbacks, processes)
    except BaseException as error:
        processes.stop_monitor()
        for callback in callbacks:
            callback.on_failure(error)
        raise
    processes.stop_monitor()
    for callback in callbacks:
        callback.on_end(summary)
    return summary


def _fit_and_finish(
    directory: RunDirectory,
    config: Config,
    task: Task,
    model: SequenceModel,
    progress: Callable[[Progress], None] | None,
    callbacks: Sequence[Callback],
    processes: ProcessGroup,
) -> Summary:
    # Taken before the last checkpoint is restored: a resumed run compares with the same first weights.
    reference = task.calibration_reference(model)
    recorder = CallbackRecorder(directory, callbacks) if processes.is_main else NoRecorder()
    trainer = create_trainer(recorder, config, task, model, certify_epochs=processes.is_main, processes=processes)
    # The first process reads for all: on a machine that does not share the directory, this path may be another run's.
    last = directory.checkpoint("last")
    content = processes.run_for_bytes_on_rank_zero(lambda: read_checkpoint(last) if last.is_file() else b"")
    if content:
        trainer.restore(decode_checkpoint(content, last))
    if processes.is_main:
        directory.drop_records_after(trainer.position.epoch)
    _PROGRESS.info("Training %s ...", config.model.cell)
    try:
        if not trainer.fit(progress):
            raise _interrupted(directory, trainer)
        return processes.run_on_rank_zero(lambda: finish(directory, config, task, trainer, reference))
    except KeyboardInterrupt:
        # A second signal during training, or one while the run is scored; the last checkpoint is from before.
        raise _interrupted(directory, trainer) from None


def _interrupted(directory: RunDirectory, trainer: BaseTrainer) -> InterruptedRun:
    return InterruptedRun(
        f"Stopped at step {trainer.position.step} of {trainer.total_steps}. "
        f"Go on with it by --resume --run-dir {directory.path}."
    )
