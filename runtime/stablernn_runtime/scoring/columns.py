"""Names and values of the columns of answers, the same wherever they are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def class_columns(labels: Sequence[str], probabilities: Array) -> dict[str, Any]:
    """Return the most likely class of each sequence, and the probability of each class.

    Args:
        labels: Names of the classes.
        probabilities: ``(sequences, classes)``.
    """
    best = probabilities.argmax(axis=1)
    columns: dict[str, Any] = {"label": np.array(labels, dtype=object)[best].tolist()}
    for number, label in enumerate(labels):
        columns[f"probability_{label}"] = probabilities[:, number]
    return columns


def forecast_columns(targets: Sequence[str], levels: Sequence[float], outputs: Mapping[str, Array]) -> dict[str, Any]:
    """Return the forecasts of all series, a row for each series, target and step, in this order.

    Args:
        targets: Names of the targets; a single one has no column.
        levels: Levels of the quantiles.
        outputs: ``mean``, ``(series, steps, targets)``, and ``quantiles``, ``(series, steps, targets, levels)``.
    """
    mean = outputs["mean"]
    series, steps = mean.shape[:2]
    columns: dict[str, Any] = {}
    if len(targets) > 1:
        columns["target"] = np.tile(np.repeat(np.array(targets, dtype=object), steps), series).tolist()
    columns["mean"] = mean.swapaxes(1, 2).reshape(-1)
    for number, level in enumerate(levels):
        columns[f"q{level:g}"] = outputs["quantiles"][..., number].swapaxes(1, 2).reshape(-1)
    return columns
