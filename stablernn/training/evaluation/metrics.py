"""Computation of metrics, and the naive forecasts that every forecast is compared with.

All functions take numpy arrays and return plain floats. A missing true value (NaN) is skipped. A missing prediction
makes the score NaN: a model that predicts NaN is not better for it.

Ratios without a value:

- ``smape``: a point whose forecast and true value are both 0 counts as 0.
- ``wape`` and ``relative_mae``: 0/0 is 0 and 1, the score of a perfect forecast and of no difference; x/0 is NaN.
- ``mase``: a series whose training part never changes has scale 0; it counts as 0 if the forecast is exact and is
  left out of the mean otherwise. A series whose training part has no scale at all is left out, too.
- ``roc_auc``: mean over the classes that have both members and others; NaN if there is no such class.

:mod:`stablernn.training.evaluation.metric_catalog` lists every metric with its formula, unit, direction and source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]
Metrics = dict[str, float]

ECE_BINS = 15
"""Bins of the calibration error: Guo, Pleiss, Sun, Weinberger (ICML 2017)."""


def classification_metrics(probabilities: Array, y: Array) -> Metrics:
    """Return accuracy, macro F1, log loss, calibration error and ROC AUC (one class against the rest, macro mean).

    Args:
        probabilities: (samples, classes), rows that sum to 1.
        y: int (samples,), the true class.

    Returns:
        ``accuracy``, ``macro_f1``, ``roc_auc`` and ``ece`` between 0 and 1, ``log_loss`` in nats. F1 is averaged over
        the classes that occur in truth or prediction.
    """
    if not np.isfinite(probabilities).all():
        return dict.fromkeys(_CLASSIFICATION_METRICS, math.nan)
    # Rounding can lift a probability above 1, which would have no bin of the calibration error.
    p = torch.from_numpy(np.clip(probabilities, 0.0, 1.0, dtype=np.float64))
    target = torch.from_numpy(np.asarray(y, dtype=np.int64))
    return {name: float(compute(p, target)) for name, compute in _CLASSIFICATION_METRICS.items()}


def logit_metrics(logits: Array, y: Array, temperature: float = 1.0) -> Metrics:
    """Return :func:`classification_metrics` of the probabilities of logits, (samples, classes), at a temperature."""
    scaled = torch.from_numpy(np.asarray(logits, dtype=np.float64)) / temperature
    return classification_metrics(scaled.softmax(dim=1).numpy(), y)


def _accuracy(p: Tensor, target: Tensor) -> Tensor:
    # In float64: .425 in float32 would not be printed as .425.
    return (p.argmax(dim=1) == target).double().mean()


def _macro_f1(p: Tensor, target: Tensor) -> Tensor:
    return _macro_f1_of_labels(p.argmax(dim=1), target, p.shape[1])


def _macro_f1_of_labels(predicted: Tensor, target: Tensor, classes: int) -> Tensor:
    right = torch.bincount(target[predicted == target], minlength=classes)
    # Twice the true positives, plus false positives and false negatives.
    sizes = torch.bincount(predicted, minlength=classes) + torch.bincount(target, minlength=classes)
    # In float32: published scores have these digits. A class that does not occur adds nothing.
    scores = 2 * right.float() / sizes.clamp_min(1).float()
    return (scores / (sizes > 0).sum()).sum()


def _log_loss(p: Tensor, target: Tensor) -> Tensor:
    # A certain and wrong prediction has a finite loss: p is at least 1.2e-7, the resolution of float32.
    probability = p[torch.arange(len(target)), target].clamp_min(torch.finfo(torch.float32).eps)
    return -probability.log().mean()


def _calibration_error(p: Tensor, target: Tensor) -> Tensor:
    confidence, predicted = p.max(dim=1)
    confidence, is_correct = confidence.float(), (predicted == target).float()
    # A bin includes its lower bound; a confidence of 1 has a bin of its own.
    bins = torch.bucketize(confidence, torch.linspace(0, 1, ECE_BINS + 1), right=True) - 1
    zeros = torch.zeros(ECE_BINS + 1)
    samples = zeros.index_add(0, bins, torch.ones_like(confidence))
    filled = samples.clamp_min(1)
    accuracy = zeros.index_add(0, bins, is_correct) / filled
    mean_confidence = zeros.index_add(0, bins, confidence) / filled
    return ((accuracy - mean_confidence).abs() * (samples / samples.sum())).sum()


def _roc_auc(p: Tensor, target: Tensor) -> float:
    areas = []
    for label in range(p.shape[1]):
        members = target == label
        # A class without members, or without others, has no ROC curve.
        if 0 < int(members.sum()) < len(target):
            areas.append(float(_area_under_roc(p[:, label], members)))
    return sum(areas) / len(areas) if areas else math.nan


def _area_under_roc(scores: Tensor, is_member: Tensor) -> Tensor:
    """Return the area under the ROC curve of scores, (samples,), for samples of which some are members."""
    ordered, order = scores.sort(descending=True)
    # Samples of the same score are above a threshold together: one point of the curve, at the last of them.
    last = torch.nonzero(ordered.diff(append=ordered.new_full((1,), -1)))[:, 0]
    true_positives = is_member[order].cumsum(0)[last]
    false_positives = 1 + last - true_positives
    rates = [torch.cat([counts.new_zeros(1), counts]) / counts[-1] for counts in (true_positives, false_positives)]
    return torch.trapezoid(*rates)


_CLASSIFICATION_METRICS: Mapping[str, Callable[[Tensor, Tensor], Tensor | float]] = {
    "accuracy": _accuracy,
    "macro_f1": _macro_f1,
    "log_loss": _log_loss,
    "ece": _calibration_error,
    "roc_auc": _roc_auc,
}
"""Metrics of probabilities, float64 (samples, classes), and true classes, int64 (samples,), by name."""


def label_metrics(predicted: Array, y: Array, classes: int) -> Metrics:
    """Return accuracy and macro F1 of predicted labels, computed as in :func:`classification_metrics`."""
    f1 = _macro_f1_of_labels(torch.from_numpy(predicted), torch.from_numpy(y), classes)
    return {"accuracy": float((predicted == y).mean()), "macro_f1": float(f1)}


def reliability(probabilities: Array, y: Array, bins: int = ECE_BINS) -> dict[str, Array]:
    """Return the reliability table behind the calibration error: samples binned by their highest probability.

    Args:
        probabilities: (samples, classes).
        y: int (samples,), the true class.
        bins: Equal bins from 0 to 1, each with its upper bound.

    Returns:
        ``samples``, and their mean ``confidence`` and ``accuracy``, (bins,) each; NaN for an empty bin.
    """
    confidence, is_correct = probabilities.max(axis=1).astype(np.float64), probabilities.argmax(axis=1) == y
    # A bin includes its upper bound; the clip puts a confidence of 0 into the first bin.
    bin_numbers = np.clip(np.ceil(confidence * bins) - 1, 0, bins - 1).astype(np.int64)
    samples = np.bincount(bin_numbers, minlength=bins)
    sums = np.stack([np.bincount(bin_numbers, weights=values, minlength=bins) for values in (confidence, is_correct)])
    means = np.divide(sums, samples, out=np.full(sums.shape, math.nan), where=samples > 0)
    return {"samples": samples, "confidence": means[0], "accuracy": means[1]}


def confusion_matrix(predicted: Array, y: Array, classes: int) -> npt.NDArray[np.int64]:
    """Return counts (classes, classes): the row is the true class, the column the predicted one."""
    counts = np.bincount(np.asarray(y, dtype=np.int64) * classes + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes)


def forecast_metrics(mean: Array, truth: Array, *, scale: Array, series: Array) -> Metrics:
    """Return the errors of point forecasts over all observed points of all windows.

    Args:
        mean: (windows, horizon, targets), raw units.
        truth: The same shape; NaN = missing.
        scale: (all series, targets), :func:`seasonal_scale` of each series.
        series: int (windows,), the series of each window.

    Returns:
        ``mse``, ``mae``, ``rmse`` in (squared) units of the data; ``mase``, the mean over series and targets of MAE
        over scale (Hyndman and Koehler, 2006); ``smape`` as a fraction from 0 to 2 (100 times this is the percentage of
        the M competitions); ``wape``, the sum of errors over the sum of absolute true values. All are NaN if no point
        is observed.
    """
    is_observed = ~np.isnan(truth)
    y, f = truth[is_observed].astype(np.float64), mean[is_observed].astype(np.float64)
    if not len(y):
        # One missing point makes every metric below NaN, without a list of their names.
        y, f = np.full(1, math.nan), np.full(1, math.nan)
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
    is_observed = ~np.isnan(truth)
    error = np.where(is_observed, np.abs(mean.astype(np.float64) - truth), 0.0)
    total, count = np.zeros(scale.shape), np.zeros(scale.shape)  # (all series, targets)
    # Several windows belong to one series: add.at adds up repeated indices, += would keep the last one.
    np.add.at(total, series, error.sum(axis=1))
    np.add.at(count, series, is_observed.sum(axis=1))
    mae = np.divide(total, count, out=np.zeros(scale.shape), where=count > 0)
    scores = np.divide(mae, scale, out=np.zeros(scale.shape), where=scale > 0)
    # A constant series has no unit; only an exact forecast of it has a score, which is 0.
    has_score = (count > 0) & ((scale > 0) | ((scale == 0) & (mae == 0)))
    return float(scores[has_score].mean()) if has_score.any() else math.nan


def quantile_metrics(quantiles: Array, truth: Array, levels: Sequence[float]) -> Metrics:
    """Return the pinball loss of each level and over all levels, and coverage and width of each central interval.

    Args:
        quantiles: (windows, horizon, targets, levels), raw units.
        truth: (windows, horizon, targets); NaN = missing.
        levels: Between 0 and 1, in the order of the last axis.

    Returns:
        ``pinball_0.1`` and so on, in units of the data; ``crps``, twice their mean over the levels, an approximation
        of the continuous ranked probability score (Gneiting and Raftery, 2007) at these levels; ``coverage_0.8``, the
        share of true values between the levels .1 and .9, bounds included; ``width_0.8``, the mean distance of these
        two, in units of the data.
    """
    is_observed = ~np.isnan(truth)
    y = truth[is_observed].astype(np.float64)
    q = quantiles[is_observed].astype(np.float64)
    if not len(y):
        # As in forecast_metrics: one missing point makes every metric NaN.
        q, y = np.full((1, len(levels)), math.nan), np.full(1, math.nan)
    scores = {}
    for number, level in enumerate(levels):
        error = y - q[:, number]
        scores[f"pinball_{level:g}"] = float(np.mean(np.maximum(level * error, (level - 1) * error)))
    if scores:
        scores["crps"] = 2 * sum(scores.values()) / len(scores)
    for lower, upper in symmetric_levels(levels):
        inside = (q[:, lower] <= y) & (y <= q[:, upper])
        # A comparison with NaN is False: a missing quantile would count as a value outside of the interval.
        is_missing = np.isnan(q[:, lower]) | np.isnan(q[:, upper])
        # Rounded, because .9 - .1 is not quite .8.
        nominal = f"{round(levels[upper] - levels[lower], 6):g}"
        scores[f"coverage_{nominal}"] = math.nan if is_missing.any() else float(inside.mean())
        scores[f"width_{nominal}"] = float(np.mean(q[:, upper] - q[:, lower]))
    return scores


def symmetric_levels(levels: Sequence[float]) -> list[tuple[int, int]]:
    """Return the positions of the levels a and 1 - a, for each a below one half whose mirror image is a level too."""
    return [
        (lower, upper)
        for lower, level in enumerate(levels)
        for upper, other in enumerate(levels)
        if level < 0.5 and math.isclose(other, 1 - level, abs_tol=1e-9)
    ]


def ratio(numerator: float, denominator: float, *, zero: float) -> float:
    """Return ``numerator / denominator``, with ``zero`` for 0/0 and NaN for x/0."""
    if denominator == 0:
        return zero if numerator == 0 else math.nan
    return numerator / denominator


def seasonal_naive(values: Array, ends: Array, *, season: int, horizon: int) -> npt.NDArray[np.float64]:
    """Return forecasts that repeat the value of one season before.

    A missing value is taken from one more season back, and so on; if that phase of the season was never observed, the
    last observed value is taken. With ``season=1`` the forecast is the last observed value throughout.

    Args:
        values: (time, targets), one series; NaN = missing.
        ends: int (windows,), the first step that each window forecasts; only earlier steps are used.
        season: Steps of a season, 1 or more.
        horizon: Steps to forecast.

    Returns:
        (windows, horizon, targets); NaN where nothing was observed before.
    """
    same_phase = _fill_forward(values, season)
    latest = _fill_forward(values, 1)
    # The modulo repeats the last season where the horizon is longer than one.
    steps = np.asarray(ends)[:, None] - season + np.arange(horizon) % season  # (windows, horizon)
    # A negative index would wrap around to the future, so it is clipped and masked.
    seasonal = np.where((steps >= 0)[:, :, None], same_phase[np.maximum(steps, 0)], math.nan)
    last = np.where((np.asarray(ends) > 0)[:, None], latest[np.maximum(np.asarray(ends) - 1, 0)], math.nan)
    return np.asarray(np.where(np.isnan(seasonal), last[:, None, :], seasonal))


def drift(values: Array, ends: Array, *, horizon: int) -> npt.NDArray[np.float64]:
    """Return forecasts on the straight line through the first and the last observed value; constant if they coincide.

    Args:
        values: As in :func:`seasonal_naive`.
        ends: As in :func:`seasonal_naive`.
        horizon: As in :func:`seasonal_naive`.

    Returns:
        (windows, horizon, targets); NaN where nothing was observed before.
    """
    values = values.astype(np.float64)
    time, targets = values.shape
    is_observed = ~np.isnan(values)
    first = np.where(is_observed.any(axis=0), is_observed.argmax(axis=0), time)  # (targets,)
    # (time, targets): the step of the last observation up to each step, -1 before the first one.
    latest = np.maximum.accumulate(np.where(is_observed, np.arange(time)[:, None], -1), axis=0)
    previous = np.asarray(ends) - 1
    last = np.where((previous >= 0)[:, None], latest[np.maximum(previous, 0)], -1)  # (windows, targets)
    columns = np.arange(targets)
    last_value = np.where(last >= 0, values[last, columns], math.nan)
    first_value = np.where(last >= 0, values[np.minimum(first, time - 1), columns], math.nan)
    # At a single observation the values are equal, and the slope is 0 over any distance.
    slope = (last_value - first_value) / np.maximum(last - first, 1)
    ahead = np.asarray(ends)[:, None, None] + np.arange(horizon)[:, None] - last[:, None]  # (windows, horizon, targets)
    return np.asarray(last_value[:, None] + slope[:, None] * ahead, dtype=np.float64)


def _fill_forward(values: Array, season: int) -> npt.NDArray[np.float64]:
    """Return (time, targets) with each missing value replaced by the last observed one of its phase of the season."""
    time, targets = values.shape
    cycles = -(-time // season)
    # Folded to (cycles, season, targets): seasons below each other, so that a phase is a column.
    padded = np.full((cycles * season, targets), math.nan)
    padded[:time] = values
    folded = padded.reshape(cycles, season, targets)
    row = np.where(np.isnan(folded), -1, np.arange(cycles)[:, None, None])
    row = np.maximum.accumulate(row, axis=0)
    filled = np.where(row < 0, math.nan, np.take_along_axis(folded, np.maximum(row, 0), axis=0))
    return np.asarray(filled.reshape(cycles * season, targets)[:time])


def seasonal_scale(values: Array, season: int) -> npt.NDArray[np.float64]:
    """Return the mean absolute error of the seasonal naive forecast within the training part, the unit of MASE.

    Args:
        values: (time, targets), the training part of one series; NaN = missing, pairs with it are skipped.
        season: Steps of a season; for a part that is no longer than that, 1 is used instead.

    Returns:
        (targets,), in units of the data; NaN where no pair was observed.
    """
    lag = season if len(values) > season else 1
    steps = np.abs(values[lag:].astype(np.float64) - values[:-lag])
    is_observed = ~np.isnan(steps)
    count = is_observed.sum(axis=0)
    total = np.where(is_observed, steps, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(total.shape, math.nan), where=count > 0))
