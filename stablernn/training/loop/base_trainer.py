"""The part of a fit that does not depend on how weights are found: its position, scores, and the best weights."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.nn.models import SequenceModel
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.evaluation.scorers import Scorer
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loop.certificate_log import StabilityLog
from stablernn.training.loop.checkpoint import Checkpoint
from stablernn.training.loop.losses import Objective
from stablernn.training.loop.process_group import ProcessGroup
from stablernn.training.settings.config import TrainingConfig


class Progress(NamedTuple):
    """Progress of a run, after each optimizer step and each validation."""

    epoch: int
    """The epoch that is being trained, from 1."""
    epochs: int
    step: int
    """Optimizer steps done."""
    total_steps: int
    loss: float
    """Mean training loss of the epoch so far."""
    metric_name: str
    """The validation metric that the best weights are chosen by."""
    metric: float | None
    """Its latest value; None before the first validation."""
    best: float | None
    """Its best value."""


class RunRecorder(Protocol):
    """Storage of a run's epochs and checkpoints."""

    def record(self, line: dict[str, Any]) -> None:
        """Store the figures of an epoch."""

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        """Store a checkpoint called ``last`` or ``best``, or ``epoch-1`` and so on."""


class NoRecorder:
    """A recorder that keeps nothing: the trainer itself has the best weights."""

    def record(self, line: dict[str, Any]) -> None:
        pass

    def save(self, name: str, checkpoint: Checkpoint) -> None:
        pass


@dataclass
class Position:
    """Progress and sums of a run, in numbers that JSON can hold; checkpoints store them under these names."""

    epoch: int = 0
    """Whole epochs done."""
    batch: int = 0
    """Steps done in the epoch after them."""
    step: int = 0
    lr: float = 0.0
    """Of the last step."""
    loss_sum: float = 0.0
    """Sum over the samples of the unfinished epoch, or over the numbers that were predicted."""
    seen: int = 0
    """Number of samples, or of predicted numbers, in that sum."""
    metric: float | None = None
    best: float | None = None
    best_epoch: int = 0
    best_step: int = 0
    stale: int = 0
    """Epochs since the best value was last exceeded."""
    progress_step: int = 0
    """Step at which it was."""
    seconds: float = 0.0
    first_loss: float | None = None
    """Of the first step, before the parameters were changed."""
    last_loss: float | None = None
    """Mean of the last epoch, as far as it went."""


class BaseTrainer(ABC):
    """Base class of what fits a model and keeps the weights that score best on the validation split.

    Args:
        model: With its scaling fitted, on the device on which it is to be trained.
        objective: The loss to train on and the metric to choose by.
        scorer: Scorer of the validation split.
        settings: Resolved settings.
        recorder: Receives epochs and checkpoints.
        certify_epochs: Whether the figures of an epoch say what is proved of the model.
        processes: The processes that train the model together; only this one when omitted.
    """

    total_steps: int
    """Optimizer steps of the whole fit."""

    def __init__(
        self,
        model: SequenceModel,
        objective: Objective,
        scorer: Scorer,
        settings: TrainingConfig,
        recorder: RunRecorder,
        *,
        certify_epochs: bool = True,
        processes: ProcessGroup | None = None,
    ) -> None:
        self.model = model
        self.settings = settings
        self.position = Position()
        self.objective = objective
        self._recorder = recorder
        self._scorer = scorer
        self._best: dict[str, Tensor] = {}
        self._processes = processes or ProcessGroup()
        self.left_out: tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]] | None = None
        """Logits of training sequences, of each by a fit without it, and their classes; None where no fit has them."""
        self.stability = StabilityLog(model, certify_epochs=certify_epochs)

    @abstractmethod
    def fit(self, progress: Callable[[Progress], None] | None = None) -> bool:
        """Fit the model, and return False if the user stopped it.

        Args:
            progress: Called after each step and each validation.

        Raises:
            TrainingError: If no weights give finite answers.
        """

    @property
    @abstractmethod
    def is_diverged(self) -> bool:
        """True if the training loss ended far above where it began, and above its unit."""

    @abstractmethod
    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to the state that a checkpoint called ``last`` holds."""

    @abstractmethod
    def stabilizing_advice(self) -> str:
        """Return the settings that keep the loss from growing, as the object of "Set ..."."""

    @property
    def epochs_begun(self) -> int:
        return self.position.epoch + (self.position.batch > 0)

    def _score(self) -> None:
        """Score the weights on the validation split, keep them if they are the best, and record the epoch."""
        position, name = self.position, self.objective.headline
        scores: dict[str, Any] = {}
        if self._scorer.samples:
            scores = self._processes.run_on_rank_zero(lambda: self._scorer.score_of(TorchPredictor(self.model)))
        position.metric = scores.get(name)
        if self._is_best(position.metric):
            position.best = position.metric
            position.best_epoch, position.best_step = self.epochs_begun, position.step
            self._best = {key: value.detach().clone() for key, value in self.model.state_dict().items()}
            self._recorder.save("best", self.best())
        self._recorder.record(
            {
                "epoch": self.epochs_begun,
                "step": position.step,
                "lr": position.lr,
                "train_loss": position.last_loss,
                # The naive scores are the same in every epoch.
                "validation": {key: value for key, value in scores.items() if key not in self._scorer.naive},
                "seconds": round(position.seconds, 3),
                **self.stability.entry(self.epochs_begun),
            }
        )

    def _unusable_reason(self) -> str:
        if not self._scorer.samples:
            return "its weights are not finite"
        return f"the validation metric '{self.objective.headline}' was never finite, last {self.position.metric}"

    def _is_best(self, metric: float | None) -> bool:
        """Return True if these weights are to be kept. A tie goes to the later epoch, but counts as no progress."""
        position = self.position
        if not self._scorer.samples:
            # Limits of outputs, which are no parameters, are infinite where there are none.
            return all(bool(torch.isfinite(weights).all()) for weights in self.model.parameters())
        if metric is None or not math.isfinite(metric):
            position.stale += 1
            return False
        sign = 1 if direction(self.objective.headline) == "higher" else -1
        is_exceeded = position.best is None or sign * metric > sign * position.best
        position.stale = 0 if is_exceeded else position.stale + 1
        if is_exceeded:
            position.progress_step = position.step
        return is_exceeded or metric == position.best

    def best(self, weights: Mapping[str, Tensor] | None = None) -> Checkpoint:
        """Return the weights with the best validation metric; without a validation split the latest ones.

        Args:
            weights: The same weights after calibration, to put in their place.
        """
        position = self.position
        return self._weights_checkpoint(weights or self._best, position.best_epoch, position.best_step, position.best)

    def _current(self) -> Checkpoint:
        """Return the weights as they are, just validated."""
        position = self.position
        return self._weights_checkpoint(self.model.state_dict(), self.epochs_begun, position.step, position.metric)

    def _weights_checkpoint(
        self, weights: Mapping[str, Tensor], epoch: int, step: int, value: float | None
    ) -> Checkpoint:
        state = {
            "model": self.model.config(),
            "epoch": epoch,
            "step": step,
            "metric": self.objective.headline,
            "value": value,
        }
        return Checkpoint({f"model.{name}": weight for name, weight in weights.items()}, state)

    def load_best(self) -> None:
        """Put the best weights into the model."""
        self.model.load_state_dict(self._best)
