"""Scores of predictions, and the naive forecasts that every forecast score stands beside.

All functions take numpy arrays and give plain floats. A missing truth (NaN) is left out. A missing prediction makes
the score NaN: a model that answers NaN is not better for it.

Where a ratio has no value:

- ``smape``: a point whose forecast and truth are both 0 counts 0.
- ``wape`` and ``relative_mae``: 0/0 is 0 and 1, the score of a perfect forecast and of no difference; x/0 is NaN.
- ``mase``: a series whose training part never changes has scale 0; it counts 0 where the forecast is exact and is
  left out of the mean where it is not. So is a series whose training part gives no scale at all.
- ``roc_auc``: mean over the classes that have both members and others; NaN where none has.

``docs/evaluation.md`` has every formula with its unit and source.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchmetrics.functional.classification import (
    binary_auroc,
    multiclass_calibration_error,
    multiclass_f1_score,
)

Array = npt.NDArray[Any]
Metrics = dict[str, float]

ECE_BINS = 15
"""Bins of the calibration error: Guo, Pleiss, Sun, Weinberger (ICML 2017)."""


def classification_metrics(probabilities: Array, y: Array) -> Metrics:
    """Accuracy, macro F1, log-loss, expected calibration error and ROC-AUC (one class against the rest, macro mean).

    Args:
        probabilities: (samples, classes), rows that sum to 1.
        y: int (samples,), the true class.

    Returns:
        ``accuracy``, ``macro_f1``, ``roc_auc`` and ``ece`` between 0 and 1, ``log_loss`` in nats. F1 is averaged over
        the classes that occur in truth or prediction.
    """
    if not np.isfinite(probabilities).all():
        return dict.fromkeys(("accuracy", "macro_f1", "log_loss", "ece", "roc_auc"), math.nan)
    # Rounding can lift a probability above 1, which torchmetrics would take for a logit.
    p = torch.from_numpy(np.clip(probabilities, 0.0, 1.0, dtype=np.float64))
    target = torch.from_numpy(np.asarray(y, dtype=np.int64))
    classes = p.shape[1]
    chosen = p[torch.arange(len(target)), target].clamp_min(torch.finfo(torch.float32).eps)
    return {
        # Counted here: torchmetrics counts in float32, in which .425 is not .425.
        "accuracy": float((p.argmax(dim=1) == target).double().mean()),
        "macro_f1": float(multiclass_f1_score(p, target, classes, average="macro")),
        "log_loss": float(-chosen.log().mean()),
        "ece": float(multiclass_calibration_error(p, target, classes, n_bins=ECE_BINS, norm="l1")),
        "roc_auc": _roc_auc(p, target),
    }


def label_metrics(predicted: Array, y: Array, classes: int) -> Metrics:
    """Accuracy and macro F1 of answers that are labels alone, as :func:`classification_metrics` counts them."""
    f1 = multiclass_f1_score(torch.from_numpy(predicted), torch.from_numpy(y), classes, average="macro")
    return {"accuracy": float((predicted == y).mean()), "macro_f1": float(f1)}


def reliability(probabilities: Array, y: Array, bins: int = ECE_BINS) -> dict[str, Array]:
    """What the calibration error is made of: samples by the probability of the predicted class.

    Args:
        probabilities: (samples, classes).
        y: int (samples,), the true class.
        bins: Equal bins from 0 to 1, each with its upper bound.

    Returns:
        ``samples``, and their mean ``confidence`` and ``accuracy``, (bins,) each; NaN where a bin is empty.
    """
    confidence, right = probabilities.max(axis=1).astype(np.float64), probabilities.argmax(axis=1) == y
    number = np.clip(np.ceil(confidence * bins) - 1, 0, bins - 1).astype(np.int64)
    samples = np.bincount(number, minlength=bins)
    sums = np.stack([np.bincount(number, weights=of, minlength=bins) for of in (confidence, right)])
    means = np.divide(sums, samples, out=np.full(sums.shape, math.nan), where=samples > 0)
    return {"samples": samples, "confidence": means[0], "accuracy": means[1]}


def _roc_auc(p: torch.Tensor, target: torch.Tensor) -> float:
    areas = []
    for label in range(p.shape[1]):
        members = (target == label).long()
        if 0 < int(members.sum()) < len(target):
            areas.append(float(binary_auroc(p[:, label].contiguous(), members)))
    return sum(areas) / len(areas) if areas else math.nan


def confusion_matrix(predicted: Array, y: Array, classes: int) -> npt.NDArray[np.int64]:
    """Counts (classes, classes): row is the true class, column the predicted one."""
    counts = np.bincount(np.asarray(y, dtype=np.int64) * classes + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes)


def forecast_metrics(mean: Array, truth: Array, *, scale: Array, series: Array) -> Metrics:
    """Errors of point forecasts, over all observed points of all windows.

    Args:
        mean: (windows, horizon, targets), raw units.
        truth: The same shape; NaN = missing.
        scale: (all series, targets), what :func:`seasonal_scale` gave for each series.
        series: int (windows,), the series that each window is of.

    Returns:
        ``mse``, ``mae``, ``rmse`` in (squared) units of the data; ``mase``, the mean over series and targets of MAE
        over scale (Hyndman and Koehler, 2006); ``smape`` as a fraction from 0 to 2 (100 times this is the percentage of
        the M competitions); ``wape``, the sum of errors over the sum of absolute truths.
    """
    seen = ~np.isnan(truth)
    y, f = truth[seen].astype(np.float64), mean[seen].astype(np.float64)
    if not len(y):
        return dict.fromkeys(("mse", "mae", "rmse", "mase", "smape", "wape"), math.nan)
    error = np.abs(f - y)
    size = np.abs(f) + np.abs(y)
    mse = float(np.mean(error**2))
    return {
        "mse": mse,
        "mae": float(np.mean(error)),
        "rmse": math.sqrt(mse),
        "mase": _mase(mean, truth, scale, series),
        "smape": float(np.mean(2 * np.divide(error, size, out=np.zeros_like(error), where=size != 0))),
        "wape": ratio(float(error.sum()), float(np.abs(y).sum()), zero=0.0),
    }


def _mase(mean: Array, truth: Array, scale: Array, series: Array) -> float:
    seen = ~np.isnan(truth)
    error = np.where(seen, np.abs(mean.astype(np.float64) - truth), 0.0)
    total, count = np.zeros(scale.shape), np.zeros(scale.shape)  # (all series, targets)
    np.add.at(total, series, error.sum(axis=1))
    np.add.at(count, series, seen.sum(axis=1))
    mae = np.divide(total, count, out=np.zeros(scale.shape), where=count > 0)
    scores = np.divide(mae, scale, out=np.zeros(scale.shape), where=scale > 0)
    chosen = (count > 0) & ((scale > 0) | ((scale == 0) & (mae == 0)))
    return float(scores[chosen].mean()) if chosen.any() else math.nan


def quantile_metrics(quantiles: Array, truth: Array, levels: Sequence[float]) -> Metrics:
    """Pinball loss of each level and over all levels, and what each central interval that two levels bound holds.

    Args:
        quantiles: (windows, horizon, targets, levels), raw units.
        truth: (windows, horizon, targets); NaN = missing.
        levels: Between 0 and 1, in the order of the last axis.

    Returns:
        ``pinball_0.1`` and so on, in units of the data; ``crps``, twice their mean over the levels, which is what is
        known of the continuous ranked probability score (Gneiting and Raftery, 2007) at these levels;
        ``coverage_0.8``, the share of truths between the levels .1 and .9, bounds included; ``width_0.8``, the mean
        distance of these two, in units of the data.
    """
    seen = ~np.isnan(truth)
    y = truth[seen].astype(np.float64)
    q = quantiles[seen].astype(np.float64)
    if not len(y):
        q, y = np.full((1, len(levels)), math.nan), np.full(1, math.nan)
    scores = {}
    for number, level in enumerate(levels):
        error = y - q[:, number]
        scores[f"pinball_{level:g}"] = float(np.mean(np.maximum(level * error, (level - 1) * error)))
    if scores:
        scores["crps"] = 2 * sum(scores.values()) / len(scores)
    for lower, upper in mirrored(levels):
        inside = (q[:, lower] <= y) & (y <= q[:, upper])
        unknown = np.isnan(q[:, lower]) | np.isnan(q[:, upper])
        held = f"{round(levels[upper] - levels[lower], 6):g}"
        scores[f"coverage_{held}"] = math.nan if unknown.any() else float(inside.mean())
        scores[f"width_{held}"] = float(np.mean(q[:, upper] - q[:, lower]))
    return scores


def mirrored(levels: Sequence[float]) -> list[tuple[int, int]]:
    """Positions of the levels a and 1 - a, for each a below one half that has its mirror image."""
    return [
        (lower, upper)
        for lower, level in enumerate(levels)
        for upper, other in enumerate(levels)
        if level < 0.5 and math.isclose(other, 1 - level, abs_tol=1e-9)
    ]


def ratio(above: float, below: float, *, zero: float) -> float:
    """``above / below``, with ``zero`` for 0/0 and NaN for x/0."""
    if below == 0:
        return zero if above == 0 else math.nan
    return above / below


def seasonal_naive(values: Array, ends: Array, *, season: int, horizon: int) -> npt.NDArray[np.float64]:
    """Forecasts that repeat the value of one season before.

    A value that is missing there is taken from one more season back, and so on; where that phase of the season was
    never seen, the last observed value stands in. With ``season=1`` it is the last observed value throughout.

    Args:
        values: (time, targets), one series; NaN = missing.
        ends: int (windows,), the first step that each window forecasts; only earlier steps are looked at.
        season: Steps of a season, 1 or more.
        horizon: Steps to forecast.

    Returns:
        (windows, horizon, targets); NaN where nothing was observed before.
    """
    same_phase = _carried(values, season)
    latest = _carried(values, 1)
    steps = np.asarray(ends)[:, None] - season + np.arange(horizon) % season  # (windows, horizon)
    found = np.where((steps >= 0)[:, :, None], same_phase[np.maximum(steps, 0)], math.nan)
    last = np.where((np.asarray(ends) > 0)[:, None], latest[np.maximum(np.asarray(ends) - 1, 0)], math.nan)
    return np.asarray(np.where(np.isnan(found), last[:, None, :], found))


def drift(values: Array, ends: Array, *, horizon: int) -> npt.NDArray[np.float64]:
    """Forecasts on the straight line through the first and the last observed value; where they are one, that value.

    Args:
        values: As in :func:`seasonal_naive`.
        ends: Likewise.
        horizon: Likewise.

    Returns:
        (windows, horizon, targets); NaN where nothing was observed before.
    """
    values = values.astype(np.float64)
    time, targets = values.shape
    observed = ~np.isnan(values)
    first = np.where(observed.any(axis=0), observed.argmax(axis=0), time)  # (targets,)
    latest = np.maximum.accumulate(np.where(observed, np.arange(time)[:, None], -1), axis=0)
    before = np.asarray(ends) - 1
    last = np.where((before >= 0)[:, None], latest[np.maximum(before, 0)], -1)  # (windows, targets)
    columns = np.arange(targets)
    known = np.where(last >= 0, values[last, columns], math.nan)
    start = np.where(last >= 0, values[np.minimum(first, time - 1), columns], math.nan)
    slope = (known - start) / np.maximum(last - first, 1)
    ahead = np.asarray(ends)[:, None, None] + np.arange(horizon)[:, None] - last[:, None]  # (windows, horizon, targets)
    return np.asarray(known[:, None] + slope[:, None] * ahead, dtype=np.float64)


def _carried(values: Array, season: int) -> npt.NDArray[np.float64]:
    """(time, targets) in which a missing value is replaced by the one a season before, again and again."""
    time, targets = values.shape
    cycles = -(-time // season)
    padded = np.full((cycles * season, targets), math.nan)
    padded[:time] = values
    folded = padded.reshape(cycles, season, targets)
    row = np.where(np.isnan(folded), -1, np.arange(cycles)[:, None, None])
    row = np.maximum.accumulate(row, axis=0)
    filled = np.where(row < 0, math.nan, np.take_along_axis(folded, np.maximum(row, 0), axis=0))
    return np.asarray(filled.reshape(cycles * season, targets)[:time])


def seasonal_scale(values: Array, season: int) -> npt.NDArray[np.float64]:
    """Mean absolute error of the seasonal naive forecast within the training part: the unit of MASE.

    Args:
        values: (time, targets), the training part of one series; NaN = missing, pairs with it are left out.
        season: Steps of a season; a part no longer than that takes 1 instead.

    Returns:
        (targets,), in units of the data; NaN where no pair was observed.
    """
    lag = season if len(values) > season else 1
    steps = np.abs(values[lag:].astype(np.float64) - values[:-lag])
    seen = ~np.isnan(steps)
    count = seen.sum(axis=0)
    total = np.where(seen, steps, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(total.shape, math.nan), where=count > 0))
