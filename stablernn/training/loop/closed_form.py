"""Fit of a model in closed form: recurrent weights stay as they were drawn, and the head is solved for."""

from __future__ import annotations

import time
from collections.abc import Callable

from stablernn.certificates.input_range import InputRange
from stablernn.certificates.projection import project_model
from stablernn.errors import TrainingError
from stablernn.nn.models import SequenceModel
from stablernn.training.batches.losses import Objective
from stablernn.training.evaluation.scorers import Scorer
from stablernn.training.loop.base_trainer import BaseTrainer, Progress, RunRecorder
from stablernn.training.loop.checkpoint import Checkpoint
from stablernn.training.loop.ridge_head import Solution
from stablernn.training.settings.config import TrainingConfig


class ClosedFormTrainer(BaseTrainer):
    """Fits the head of a model with random recurrent weights, an echo state network (Jaeger, GMD report 148, 2001).

    There is one pass over the training data, which counts as an epoch, and no optimizer step. It is not stored before
    it is done: a run that was stopped in it begins again, and a finished one that is resumed repeats it with the same
    numbers.

    Args:
        model: With its scaling fitted, on the device on which it is to run.
        objective: Names the metric in which the model is scored.
        scorer: Scorer of the validation split.
        settings: Resolved settings.
        recorder: Receives the epoch and the weights.
        solve: Function that sets the head.
        inputs: Range of the raw inputs, on which the certified region of some cells depends; None if there is none.
        certify_epochs: Whether the figures of the epoch say what is proved of the model.
    """

    total_steps = 0

    def __init__(
        self,
        model: SequenceModel,
        objective: Objective,
        scorer: Scorer,
        settings: TrainingConfig,
        recorder: RunRecorder,
        solve: Callable[[], Solution],
        *,
        inputs: InputRange | None = None,
        certify_epochs: bool = True,
    ) -> None:
        super().__init__(model, objective, scorer, settings, recorder, certify_epochs=certify_epochs)
        self._solve = solve
        if settings.certified:
            # Nothing moves the layers later, so that once is enough.
            project_model(model, settings.certified_margin or 0.0, inputs)

    @property
    def is_diverged(self) -> bool:
        # Nothing was iterated.
        return False

    def fit(self, progress: Callable[[Progress], None] | None = None) -> bool:
        report, position = progress or (lambda _: None), self.position
        # Both reports are of step 0: a line is printed for the second, which has the metric.
        started = time.monotonic()
        report(self._progress())
        # Dropout would make the features of a regression noisy.
        self.model.eval()
        position.last_loss, self.left_out = self._solve()
        position.epoch = 1
        position.seconds = time.monotonic() - started
        self._score()
        if not self._best:
            raise TrainingError(
                f"No head of finite weights solves the regression: {self._unusable_reason()}. Set "
                f"{self.stabilizing_advice()}."
            )
        report(self._progress())
        return True

    def restore(self, checkpoint: Checkpoint) -> None:
        raise TrainingError(
            "The run has a checkpoint 'last', which training.method=closed-form never writes: its files are of two "
            "runs. Start a new run."
        )

    def stabilizing_advice(self) -> str:
        return "training.method=gradient, or another training.seed"

    def _progress(self) -> Progress:
        position = self.position
        return Progress(
            epoch=1,
            epochs=1,
            step=0,
            total_steps=0,
            loss=position.last_loss or 0.0,
            metric_name=self.objective.headline,
            metric=position.metric,
            best=position.best,
        )
