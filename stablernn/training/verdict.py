"""The verdict on a run that is done: divergence of its training, and whether its model is of any use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stablernn.data import ClassificationData, ForecastData
from stablernn.data.step_data import StepData
from stablernn.training.loop.trainer import Trainer

_LEAST_PROBABILITY = 1.2e-7
"""As in the log loss of :func:`stablernn.training.evaluation.metrics.classification_metrics`."""


@dataclass(frozen=True)
class Verdict:
    """The end of a run.

    Attributes:
        diverged: Whether the training loss ended far above where it began.
        warnings: Sentences for whoever started the run, but for the failure.
        failure: Why the run counts as failed; None where it does not.
    """

    diverged: bool
    warnings: tuple[str, ...] = ()
    failure: str | None = None


@dataclass(frozen=True)
class _Comparison:
    """A figure of the model, of which less is better, beside that of a trivial answer."""

    metric: str
    value: float
    trivial: str
    trivial_value: float

    @property
    def is_useless(self) -> bool:
        return not self.value < self.trivial_value

    def __str__(self) -> str:
        return f"validation {self.metric} {self.value:.4g}, {self.trivial} {self.trivial_value:.4g}"


def judge(
    trainer: Trainer,
    data: ClassificationData | ForecastData | StepData,
    scores: Mapping[str, Any] | None,
    gate: Mapping[str, Any] | None,
) -> Verdict:
    """Judge a run by its training loss and by the validation scores of the weights that it keeps.

    A run whose loss diverged fails if its weights are of no use: no better than the trivial answer (the same one for
    all sequences, the seasonal naive forecast), of a forecast also where nothing of the layers was kept beside the
    linear skip, or without a validation split. Weights of an epoch before the loss diverged can be good ones: then it
    is a warning. So is a model that is no better than the trivial answer without having diverged.

    Args:
        trainer: After its last step.
        data: What it was trained on.
        scores: Those of the best weights on the validation split; None where there is none.
        gate: How layers and linear skip compare; None where there is no such comparison.
    """
    comparison = None if scores is None else _compare(trainer, data, scores)
    if not trainer.is_diverged:
        if comparison is None or not comparison.is_useless:
            return Verdict(diverged=False)
        sentence = f"The model is no better than {comparison.trivial} ({comparison})."
        return Verdict(diverged=False, warnings=(f"{sentence} Train it longer, or see docs/accuracy.md.",))
    position = trainer.position
    course = f"the training loss ended at {position.last_loss:.4g}, from {position.first_loss:.4g} at the first step"
    advice = f"Set {trainer.stabilizing_advice()}."
    if scores is None:
        return Verdict(diverged=True, failure=f"Training diverged: {course}. {advice}")
    if comparison is not None and comparison.is_useless:
        useless = f"the best weights are no better than {comparison.trivial} ({comparison})"
        return Verdict(diverged=True, failure=f"Training diverged: {course}, and {useless}. {advice}")
    if gate is not None and gate["share"] == 0:
        useless = "nothing but the linear skip is left of the model"
        return Verdict(diverged=True, failure=f"Training diverged: {course}, and {useless}. {advice}")
    kept = f"The weights of epoch {position.best_epoch} are kept, the best ones."
    return Verdict(diverged=True, warnings=(f"Training diverged: {course}. {kept} {advice}",))


def _compare(
    trainer: Trainer, data: ClassificationData | ForecastData | StepData, scores: Mapping[str, Any]
) -> _Comparison | None:
    if isinstance(data, ClassificationData):
        return _Comparison("log_loss", scores["log_loss"], "one answer for all sequences", _constant_loss(data))
    # Of several series it is MASE: errors in the unit of the data would be those of the largest series.
    metric = trainer.task.headline
    trivial = next((name for name in ("seasonal_naive", "frequencies", "mean") if name in scores), "")
    beside = scores.get(trivial, {}).get(metric)
    if trainer.task.mode == "max" or beside is None or not math.isfinite(beside):
        return None
    names = {"seasonal_naive": "the seasonal naive forecast", "frequencies": "the frequencies of the targets"}
    return _Comparison(metric, scores[metric], names.get(trivial, "the mean of the targets"), beside)


def _constant_loss(data: ClassificationData) -> float:
    """Least log loss on the validation split of the frequencies of the training classes and of equal probabilities."""
    counts = np.bincount(data.train.y, minlength=len(data.labels))
    frequencies = np.maximum(counts / max(1, counts.sum()), _LEAST_PROBABILITY)
    return min(math.log(len(data.labels)), float(-np.log(frequencies[data.validation.y]).mean()))
