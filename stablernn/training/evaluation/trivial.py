"""Comparison of a model with a trivial answer, by which a run is judged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stablernn.training.batches.losses import Objective
from stablernn.training.evaluation.metric_catalog import direction

_TRIVIAL_ANSWERS = {
    "majority": "one answer for all sequences",
    "seasonal_naive": "the seasonal naive forecast",
    "frequencies": "the frequencies of the targets",
    "mean": "the mean of the targets",
}
"""Trivial answers among the baselines, in words."""


@dataclass(frozen=True)
class Comparison:
    """A metric of a model on data that it was not fitted on, of which less is better, and that of a trivial answer.

    Attributes:
        split: The data: ``validation``, or ``cross_validation``.
        metric: Name of the metric.
        value: That of the model.
        trivial: The trivial answer, in words.
        trivial_value: Its metric.
    """

    split: str
    metric: str
    value: float
    trivial: str
    trivial_value: float

    @property
    def is_useless(self) -> bool:
        # Not "greater or equal": a NaN is useless too.
        return not self.value < self.trivial_value

    def __str__(self) -> str:
        return f"{self.split.replace('_', '-')} {self.metric} {self.value:.4g}, {self.trivial} {self.trivial_value:.4g}"


def compare_with_trivial(split: str, scores: Mapping[str, Any], objective: Objective) -> Comparison | None:
    """Compare a model with the trivial answer among its baselines.

    A classification is compared by its log loss, anything else by its headline. Of several series that is MASE: errors
    in the unit of the data would be those of the largest series.

    Args:
        split: The data that the scores are of.
        scores: Scores of the model, those of the baselines among them.
        objective: The objective that the model was trained for.

    Returns:
        The comparison; None where more of the headline is better, or no baseline has a finite value of it.
    """
    name = next((name for name in _TRIVIAL_ANSWERS if name in scores), None)
    metric = "log_loss" if name == "majority" else objective.headline
    if name is None or direction(metric) == "higher":
        return None
    value = scores[name].get(metric)
    if value is None or not math.isfinite(value):
        return None
    return Comparison(split, metric, scores[metric], _TRIVIAL_ANSWERS[name], value)
