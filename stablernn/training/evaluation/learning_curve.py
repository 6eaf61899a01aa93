"""Learning curves: whether the validation metric was still improving when training ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from stablernn.training.evaluation.metric_catalog import direction

LEAST_EPOCHS = 4
"""Epochs below which nothing is said of a curve."""
LEAST_GAIN = 0.05
"""Share of the error by which the last quarter of the epochs must have lowered it."""


def improvement_at_end(records: Sequence[Mapping[str, Any]], metric: str, samples: int) -> dict[str, Any] | None:
    """Return by how much the last quarter of the epochs improved a metric; None if it did not.

    The best value of the last quarter is compared with the best before it. An error that is a share, such as 1 minus
    the accuracy, must also have become smaller by more than its standard error, since the best of several epochs is
    better by chance alone.

    Args:
        records: Lines of ``metrics.jsonl``.
        metric: Metric that selects the best weights.
        samples: Number of validation sequences or windows.

    Returns:
        ``metric``, ``before`` and ``after``, its best values, and ``epochs``, the number of epochs of each.
    """
    values = [record["validation"].get(metric) for record in records]
    if len(values) < LEAST_EPOCHS:
        return None
    is_share = direction(metric) == "higher"
    errors = [math.inf if value is None else (1.0 - value if is_share else value) for value in values]
    count = 3 * len(errors) // 4
    before, after = min(errors[:count]), min(errors[count:])
    if not (math.isfinite(before) and before > 0):
        return None
    noise = math.sqrt(max(0.0, before * (1.0 - before)) / max(1, samples)) if is_share else 0.0
    if before - after < max(LEAST_GAIN * before, noise):
        return None
    first, last = (1.0 - before, 1.0 - after) if is_share else (before, after)
    return {"metric": metric, "before": first, "after": last, "epochs": [count, len(errors)]}


def describe_improvement(improvement: Mapping[str, Any]) -> str:
    """Return a sentence for the user."""
    first, last = improvement["epochs"]
    return (
        f"The validation {improvement['metric']} was still improving when training stopped: "
        f"{improvement['before']:.4g} after {first} epochs, {improvement['after']:.4g} after {last}. "
        f"Train longer, such as --epochs {2 * last}."
    )
