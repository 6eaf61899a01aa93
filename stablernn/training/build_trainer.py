"""The trainer of a run, built from resolved settings."""

from __future__ import annotations

from stablernn.nn.models import SequenceModel
from stablernn.training.describe import certified_range
from stablernn.training.loop.base_trainer import BaseTrainer, RunRecorder
from stablernn.training.loop.closed_form import ClosedFormTrainer
from stablernn.training.loop.process_group import ProcessGroup
from stablernn.training.loop.trainer import Trainer
from stablernn.training.settings.closed_form import CLOSED_FORM
from stablernn.training.settings.config import Config
from stablernn.training.tasks import Task


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
    if training.method == CLOSED_FORM:
        return ClosedFormTrainer(
            model,
            task.objective(training),
            task.scorer("validation", config),
            training,
            recorder,
            lambda: task.solve(model),
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
