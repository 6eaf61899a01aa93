"""Objects of resolved settings: the model of a run, fitted to the scale of its training data, and its trainer.

Also here are the description of the data, as ``data.json`` holds it, and the speed of a training, measured on its first
steps.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from stablernn.certificates.input_range import InputRange, training_range
from stablernn.data.step_data import Data
from stablernn.engines import select_engine
from stablernn.errors import ConfigError, TrainingError, UnknownNameError
from stablernn.nn.models import SequenceModel
from stablernn.training.loop.base_trainer import BaseTrainer, NoRecorder, Progress, RunRecorder
from stablernn.training.loop.closed_form import ClosedFormTrainer
from stablernn.training.loop.device import pick_device, torch_settings
from stablernn.training.loop.process_group import ProcessGroup
from stablernn.training.loop.trainer import Trainer
from stablernn.training.resolve import enough_memory, resolve
from stablernn.training.run_data import load_run_data, with_time
from stablernn.training.settings.config import Config
from stablernn.training.settings.defaults import is_solved
from stablernn.training.tasks import Task, task_for

_LOG = logging.getLogger("stablernn.training")


def create_model(config: Config, data: Data) -> SequenceModel:
    """Return the model that resolved settings describe, its scaling fitted to the training split.

    Raises:
        ConfigError: If the cell or the model has no such option, or the model does not fit into memory.
        UnknownNameError: If the cell is not in the catalog.
    """
    task = task_for(data)
    with enough_memory(config.model):
        model = task.build_model(config)
    # Outside of the check: that reading the data takes too much memory is no fault of the model's size.
    task.fit_inputs(model, config)
    return model


def with_engine(config: Config, model: SequenceModel, device: torch.device, *, may_change: bool = False) -> Config:
    """Return the settings with the engine that runs the model on a device, and let the model use it.

    Args:
        config: Resolved settings.
        model: The model.
        device: Where it is to run.
        may_change: Whether ``auto`` takes the place of an engine that cannot run here, which is logged. A resumed run
            may have begun on another device.

    Raises:
        ConfigError: If the engine of the settings cannot run the cell there.
        UnknownNameError: If there is no such engine.
    """
    # Engines look at device and dtype.
    drive = next(model.parameters()).new_empty(0, device=device)
    wanted, is_timed = config.model.engine or "auto", model.max_dt is not None
    try:
        names = {select_engine(wanted, cell, drive, timed=is_timed).name for cell in model.rnn.cells}
    except (ConfigError, UnknownNameError):
        if not may_change:
            raise
        names = {select_engine("auto", cell, drive, timed=is_timed).name for cell in model.rnn.cells}
        _LOG.info(
            f"The run began with the engine '{wanted}', which cannot run on {device.type} here; it goes on with "
            f"'{', '.join(sorted(names))}', and its last digits may differ from those of an uninterrupted run."
        )
    name = names.pop() if len(names) == 1 else "auto"
    model.rnn.use_engine(name)
    return config.updated("model", engine=name)


def create_trainer(
    recorder: RunRecorder,
    config: Config,
    task: Task,
    model: SequenceModel,
    *,
    certify_epochs: bool = True,
    processes: ProcessGroup | None = None,
) -> BaseTrainer:
    """Return the trainer of a model.

    Args:
        recorder: Receives epochs and checkpoints.
        config: The resolved settings.
        task: The task, with the data.
        model: With its scaling fitted, on the device on which it is to be trained.
        certify_epochs: Whether the figures of an epoch say what is proved of the model.
        processes: The processes that train the model together; only this one when omitted.
    """
    training = config.training
    inputs = certified_range(task.data, model) if training.certified else None
    if is_solved(training):
        return ClosedFormTrainer(
            model,
            task.objective(training),
            task.scorer("validation", config),
            training,
            recorder,
            lambda: task.solve(model, training),
            inputs=inputs,
            certify_epochs=certify_epochs,
        )
    minibatches = task.minibatches(model, training)
    return Trainer(
        model,
        minibatches,
        task.objective(training),
        task.scorer("validation", config),
        training,
        recorder,
        inputs=inputs,
        certify_epochs=certify_epochs,
        processes=processes,
    )


def describe_data(data: Data, model: SequenceModel) -> dict[str, Any]:
    """Return the content of ``data.json``: all that is needed to read more data of the same kind, and the notes."""
    scaling = model.scaling
    mean, scale = model.feature_scaling()
    return {
        "name": data.name,
        "task": data.task,
        "fingerprint": data.fingerprint,
        **task_for(data).describe(),
        "scaling": {
            "kind": scaling.kind,
            "mean": mean.tolist(),
            "scale": scale.tolist(),
            "window": model.window,
            "mask_channel": scaling.mask_channel,
        },
        **_resampling_facts(model),
        # Tokens have none.
        "input_range": _input_range(data.training_values()) if scaling.has_channel_range else None,
        "notes": data.notes,
    }


def _resampling_facts(model: SequenceModel) -> dict[str, Any]:
    """Return the resampling of whole sequences as an entry of ``data.json``; none if there is none."""
    if model.resampling is None:
        return {}
    shortest, longest = model.resampling.length_range.tolist()
    return {"resampling": {"steps": model.resampling.steps, "shortest": shortest, "longest": longest}}


def certified_range(data: Data, model: SequenceModel) -> InputRange | None:
    """Return the range of raw inputs for which a run is certified: that of training, half as wide again.

    Args:
        data: The training data.
        model: The model, whose scaling decides whether inputs within a range have channels within one.
    """
    if not model.scaling.has_channel_range:
        return None
    return training_range({"input_range": _input_range(data.training_values())})


def _input_range(sequences: Iterable[np.ndarray]) -> dict[str, list[float]]:
    """Return the smallest and the largest observed value of each feature, in raw units."""
    lower, upper = np.inf, -np.inf
    for values in sequences:
        lower = np.fmin(lower, np.fmin.reduce(values, axis=0, initial=np.inf))
        upper = np.fmax(upper, np.fmax.reduce(values, axis=0, initial=-np.inf))
    return {"lower": np.asarray(lower).tolist(), "upper": np.asarray(upper).tolist()}


WARM_UP_STEPS = 5
"""First steps of a training, which are slower than those after them."""


@dataclass(frozen=True)
class Speed:
    """The speed of a training.

    Attributes:
        step_seconds: Processor time of an optimizer step; of short epochs with their validation.
        steps: Optimizer steps of the whole training.
    """

    step_seconds: float
    steps: int

    @property
    def seconds(self) -> float:
        """Processor time of the whole training."""
        return self.step_seconds * self.steps


def training_steps(settings: Config, task: Task) -> int:
    """Return the optimizer steps of a training by resolved settings."""
    training = settings.training
    return training.max_steps or (training.epochs or 0) * task.steps_per_epoch(
        training.batch_size or 1, training.bptt_steps or 0
    )


class _Measured(Exception):
    pass


def measure_speed(config: Config, *, steps: int = 25) -> Speed:
    """Train for a few steps, and return the speed.

    Args:
        config: Settings with a cell, not resolved.
        steps: Steps to train; fewer if the whole training has fewer.

    Raises:
        ConfigError: If a setting is wrong, or the fit takes no steps.
        DataError: If the data cannot be used.
        TrainingError: If the loss is not finite.
    """
    data = load_run_data(config)
    settings = resolve(config, task_for(data))
    if is_solved(settings.training):
        raise ConfigError(
            f"The cell '{settings.model.cell}' with training.method={settings.training.method} takes no optimizer "
            "steps, so that it has no speed to give a time by; leave one of them out, or train it by itself."
        )
    data = with_time(data, settings)
    task = task_for(data)
    device = pick_device(settings.training.device)
    times: dict[int, float] = {}

    def record_time(progress: Progress) -> None:
        times[progress.step] = time.process_time()
        if progress.step >= steps:
            raise _Measured

    with torch_settings(device, seed=settings.training.seed, threads=settings.training.threads):
        model = create_model(settings, data)
        settings = with_engine(settings, model, device)
        trainer = create_trainer(NoRecorder(), settings, task, model.to(device), certify_epochs=False)
        began = time.process_time()
        with suppress(_Measured):
            trainer.fit(record_time)
    if not times:
        raise TrainingError("The training has no step, so that its speed cannot be measured. Raise training.epochs.")
    last = max(times)
    first = WARM_UP_STEPS if last > WARM_UP_STEPS else 0
    return Speed((times[last] - times.get(first, began)) / (last - first), training_steps(settings, task))
