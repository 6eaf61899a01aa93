"""The speed of a training, measured on its first steps."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

from stablernn.errors import ConfigError, TrainingError
from stablernn.training.build_model import create_model, with_engine
from stablernn.training.build_trainer import create_trainer
from stablernn.training.loop.base_trainer import NoRecorder, Progress
from stablernn.training.loop.device import pick_device, torch_settings
from stablernn.training.run_data import load_run_data, with_time
from stablernn.training.settings.closed_form import CLOSED_FORM
from stablernn.training.settings.config import Config
from stablernn.training.settings.resolve import resolve
from stablernn.training.tasks import Task, task_for

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
    if config.training.method == CLOSED_FORM:
        raise ConfigError(
            f"training.method={CLOSED_FORM} takes no optimizer steps, so that it has no speed to give a time by; leave "
            "it out, or train it by itself."
        )
    data = load_run_data(config)
    settings = resolve(config, task_for(data))
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
