"""Comparison of a model with a trivial answer, by which a run is judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stablernn.data.types import ClassificationData
from stablernn.training.batches.losses import Objective
from stablernn.training.evaluation.metric_catalog import direction

_LEAST_PROBABILITY = 1.2e-7
"""As in the log loss of :func:`stablernn.training.evaluation.metrics.classification_metrics`."""

_TRIVIAL_ANSWERS = {
    "seasonal_naive": "the seasonal naive forecast",
    "frequencies": "the frequencies of the targets",
    "mean": "the mean of the targets",
}
"""Trivial answers among the baselines of forecasts and of answers at every step, in words."""


@dataclass(frozen=True)
class Comparison:
    """A validation metric of a model, of which less is better, and that of a trivial answer.

    Attributes:
        metric: Name of the metric.
        value: That of the model.
        trivial: The trivial answer, in words.
        trivial_value: Its metric.
    """

    metric: str
    value: float
    trivial: str
    trivial_value: float

    @property
    def is_useless(self) -> bool:
        # Not "greater or equal": a NaN is useless too.
        return not self.value < self.trivial_value

    def __str__(self) -> str:
        return f"validation {self.metric} {self.value:.4g}, {self.trivial} {self.trivial_value:.4g}"


def compare_with_baseline(scores: Mapping[str, Any], objective: Objective) -> Comparison | None:
    """Compare the headline of a model with that of the trivial answer among its baselines.

    Of several series the headline is MASE: errors in the unit of the data would be those of the largest series.

    Args:
        scores: Scores on the validation split, those of the baselines among them.
        objective: The objective that the model was trained for.

    Returns:
        The comparison; None where more of the headline is better, or no baseline has a finite value of it.
    """
    name = next((name for name in _TRIVIAL_ANSWERS if name in scores), None)
    metric = objective.headline
    if name is None or direction(metric) == "higher":
        return None
    value = scores[name].get(metric)
    if value is None or not math.isfinite(value):
        return None
    return Comparison(metric, scores[metric], _TRIVIAL_ANSWERS[name], value)


def compare_with_constant(scores: Mapping[str, Any], data: ClassificationData) -> Comparison:
    """Compare the log loss of a classifier with that of the best constant probabilities on the validation split.

    These are the frequencies of the training classes, or equal probabilities.
    """
    # A class that training never saw has a probability all the same, as in the log loss of a model.
    counts = np.bincount(data.train.y, minlength=len(data.labels))
    frequencies = np.maximum(counts / max(1, counts.sum()), _LEAST_PROBABILITY)
    constant = min(math.log(len(data.labels)), float(-np.log(frequencies[data.validation.y]).mean()))
    return Comparison("log_loss", scores["log_loss"], "one answer for all sequences", constant)
