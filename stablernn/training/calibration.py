"""Calibration of trained models: the temperature of a classifier, the conformal offsets of a forecaster."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from stablernn.cells import cached_weights
from stablernn.data.arrays import Samples
from stablernn.data.types import SequenceSplit
from stablernn.data.windows import WindowSet, batch_evenly_spaced
from stablernn.errors import DataError
from stablernn.nn.models import Classifier, Forecaster
from stablernn.training.evaluation.metrics import symmetric_levels
from stablernn.training.loop.minibatches import model_inputs

_BATCH = 256
MOST_NUMBERS = 50_000_000
"""Most quantiles, over all validation windows, from which offsets are computed."""
_LEAST_WINDOWS = 1_000
"""Fewest windows from which offsets are computed, however many quantiles each has."""
_MAX_TEMPERATURE = 20.0
"""Upper end of the search for a temperature; the lower end is 1 over it."""


def fit_temperature(model: Classifier, split: SequenceSplit) -> dict[str, Any]:
    """Fit the temperature to the validation split and set it (Guo, Pleiss, Sun, Weinberger, ICML 2017).

    It is the most probable one under a standard normal prior of its logarithm: the minimizer of the summed log loss
    plus half the squared logarithm. A model that is right about all of a small split is thus not taken for one that is
    never wrong, and with many sequences the prior has no weight.

    Args:
        model: Trained model in evaluation mode; its ``temperature`` is set.
        split: Labeled sequences; without any, or with one class only, the temperature stays 1.

    Returns:
        ``temperature``, ``samples``, and the log loss ``before`` and ``after``, as JSON types.
    """
    if not len(split) or len(np.unique(split.y)) < 2:
        return {"temperature": 1.0, "samples": len(split), "before": None, "after": None}
    logits, truth = uncalibrated_logits(model, split)
    temperature, after = best_temperature(logits, truth)
    model.temperature.fill_(temperature)
    return {
        "temperature": temperature,
        "samples": len(split),
        "before": _log_loss(logits, truth, 1.0),
        "after": after,
    }


def set_temperature(model: Classifier, temperature: float) -> dict[str, Any]:
    """Set the temperature of a model, and return the report of :func:`fit_temperature`, which saw no sequences."""
    model.temperature.fill_(temperature)
    return {"temperature": temperature, "samples": 0, "before": None, "after": None}


def uncalibrated_logits(model: Classifier, split: SequenceSplit) -> tuple[np.ndarray, np.ndarray]:
    """Set the temperature of a model to 1, and return its logits, float64 (samples, classes), and the true classes."""
    model.temperature.fill_(1.0)
    parts = []
    with torch.no_grad(), cached_weights(model):
        for start in range(0, len(split), _BATCH):
            samples = split.gather(np.arange(start, min(start + _BATCH, len(split))))
            x, lengths, dt, _ = model_inputs(samples, model)
            parts.append(model(x, lengths, dt).double().cpu())
    return torch.cat(parts).numpy(), np.asarray(split.y, dtype=np.int64)


def best_temperature(logits: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Return the most probable temperature of logits under the prior of :func:`fit_temperature`, and its log loss.

    Args:
        logits: float64 (samples, classes).
        truth: int64 (samples,), the classes.
    """
    # Imported here, since it takes a fifth of a second.
    from scipy.optimize import minimize_scalar

    def negative_log_posterior(log_temperature: float) -> float:
        return len(truth) * _log_loss(logits, truth, float(np.exp(log_temperature))) + 0.5 * log_temperature**2

    bounds = (-np.log(_MAX_TEMPERATURE), np.log(_MAX_TEMPERATURE))
    result: Any = minimize_scalar(negative_log_posterior, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    temperature = float(np.exp(result.x))
    return temperature, _log_loss(logits, truth, temperature)


def _log_loss(logits: np.ndarray, truth: np.ndarray, temperature: float) -> float:
    return float(torch.nn.functional.cross_entropy(torch.from_numpy(logits / temperature), torch.from_numpy(truth)))


def fit_offsets(model: Forecaster, windows: WindowSet) -> dict[str, Any]:
    """Compute the conformal offsets of the quantiles from the validation windows and set them.

    Args:
        model: Trained model with quantiles, in evaluation mode; its ``offsets`` are set.
        windows: Windows of the validation split; if their quantiles exceed :data:`MOST_NUMBERS`, evenly spaced ones.

    Returns:
        The report of :func:`conformal_offsets`, with the ``unit`` and the ``offsets`` themselves, as JSON types.
    """
    # Scores are those of the uncalibrated quantiles, whatever an earlier calibration left behind.
    model.offsets.zero_()
    max_windows = max(_LEAST_WINDOWS, MOST_NUMBERS // model.offsets.numel())
    truths, quantiles, scales = [], [], []
    with torch.no_grad(), cached_weights(model):
        for numbers in batch_evenly_spaced(windows, max_windows, _BATCH):
            truth, window_quantiles, scale = _in_offset_units(model, windows.gather(numbers))
            truths.append(truth)
            quantiles.append(window_quantiles)
            scales.append(scale)
    conformal = conformal_offsets(
        np.concatenate(truths), np.concatenate(quantiles), np.concatenate(scales), model.quantiles
    )
    model.offsets.copy_(torch.from_numpy(conformal.offsets))
    unit = "the data's" if model.head_kind == "recursive" else "the scaling of each window"
    return {**conformal.report, "levels": list(model.quantiles), "unit": unit, "offsets": conformal.offsets.tolist()}


def _in_offset_units(model: Forecaster, samples: Samples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return true values, quantiles and scale of windows, in units in which all windows share an offset.

    Returns:
        (windows, horizon, targets), (windows, horizon, targets, levels) and (windows, 1, targets).
    """
    x, lengths, dt, covariates = model_inputs(samples, model)
    if model.head_kind == "recursive":
        # A recursive head applies offsets to its final quantiles, in units of the data.
        outputs, _ = model.run(x, lengths, None, dt, **covariates)
        return samples.y, outputs["quantiles"].cpu().numpy(), np.ones_like(samples.y[:, :1])
    change, location, scale = model.changes(model.final_state(x, lengths, dt=dt), **covariates)
    truth = model.scaling.transform(torch.from_numpy(samples.y).to(x.device), model.target_indices)
    # The mean over the members, (windows, horizon, targets, levels); the first level is the point forecast.
    quantiles = location[..., None] + scale[..., None] * change.mean(dim=1)[..., 1:].sort(dim=-1).values
    return truth.cpu().numpy(), quantiles.cpu().numpy(), scale.cpu().numpy()


Array = npt.NDArray[Any]


class Conformal(NamedTuple):
    """Result of a conformal calibration.

    Attributes:
        offsets: float32 (horizon, targets, levels), to be added to each quantile in units of the anchor's scale.
        report: As JSON types: ``samples``; ``short``, the number of intervals, by step and target, with too few
            samples; ``levels_left``, levels without a mirror image, which are not shifted; ``coverage``, by the nominal
            coverage that on the calibration set ``before`` and ``after``.
    """

    offsets: npt.NDArray[np.float32]
    report: dict[str, Any]


def conformal_offsets(truth: Array, quantiles: Array, scale: Array, levels: Sequence[float]) -> Conformal:
    r"""Return offsets of conformalized quantile regression (Romano, Patterson, Candes, NeurIPS 2019).

    Offsets are computed for each step and target. For two symmetric levels, :math:`a/2` and :math:`1 - a/2`, the score
    of a sample is the distance of the true value from the interval,
    :math:`E_i = \max(q_{a/2} - y_i,\ y_i - q_{1-a/2}) / s_i`, negative inside. The offset is the
    :math:`\lceil (n + 1)(1 - a) \rceil`-th smallest score, subtracted from the lower quantile and added to the upper
    one. If the n samples and a new one are exchangeable, the interval covers the new value with a probability of at
    least :math:`1 - a`, for any model; without ties at most :math:`1 - a + 1/(n + 1)`.

    Windows of a series that overlap or follow each other are not exchangeable: neighbors have nearly the same error, so
    that n of them are worth far fewer, and later values may differ from all of them. The guarantee is then an
    approximation, and the coverage on the test split has to be measured. It holds as stated for many similar series
    with one window each.

    If n is too small for that rank (:math:`(n + 1)(1 - a) > n`), the largest score is used, which covers a new value
    with a probability of n/(n + 1) only; such steps are counted. A step without any true value is not shifted.

    The median is not shifted, nor is a level without a mirror image. A large negative offset can shift a lower quantile
    beyond its neighbor: sort quantiles after applying offsets.

    Args:
        truth: (n, horizon, targets), raw units, NaN = missing.
        quantiles: (n, horizon, targets, levels), raw units, rising along the levels.
        scale: (n, 1, targets), the unit of each sample, above 0.
        levels: Between 0 and 1, increasing.

    Raises:
        DataError: If there is no sample, or a quantile is not finite.
    """
    if not len(truth):
        raise DataError("Conformal intervals need a calibration split, and it is empty. Hold out more for validation.")
    if not np.isfinite(quantiles).all():
        raise DataError("A quantile forecast of the calibration split is not finite, so that nothing can be measured.")
    y, q = truth.astype(np.float64), quantiles.astype(np.float64)
    s = scale.astype(np.float64)
    is_observed = ~np.isnan(y)
    count = is_observed.sum(axis=0)  # (horizon, targets)
    offsets = np.zeros(q.shape[1:])
    pairs = symmetric_levels(levels)
    short = 0
    for lower, upper in pairs:
        nominal = levels[upper] - levels[lower]
        scores = np.maximum(q[..., lower] - y, y - q[..., upper]) / s
        # Missing values sort behind all scores, beyond the ranks up to count.
        ordered = np.sort(np.where(is_observed, scores, math.inf), axis=0)
        # Rounding must not lift (n + 1)(1 - a) above the whole number that it is.
        rank = np.ceil((count + 1) * nominal - 1e-9).astype(np.int64)
        short += int((rank > count).sum())
        index = np.clip(np.minimum(rank, count) - 1, 0, None)
        # (horizon, targets)
        shift = np.take_along_axis(ordered, index[None], axis=0)[0]
        shift = np.where(count > 0, shift, 0.0)
        offsets[..., lower], offsets[..., upper] = -shift, shift
    # The model stores float32; coverage is measured with the offsets as stored.
    rounded = offsets.astype(np.float32)
    shifted = np.sort(q + s[..., None] * rounded, axis=-1)
    coverage = {
        f"{round(levels[upper] - levels[lower], 6):g}": {
            "before": _coverage(q[..., lower], y, q[..., upper], is_observed),
            "after": _coverage(shifted[..., lower], y, shifted[..., upper], is_observed),
        }
        for lower, upper in pairs
    }
    paired = {number for pair in pairs for number in pair}
    unpaired = [level for number, level in enumerate(levels) if number not in paired and not math.isclose(level, 0.5)]
    report = {"samples": len(truth), "short": short, "levels_left": unpaired, "coverage": coverage}
    return Conformal(rounded, report)


def _coverage(lower: Array, y: Array, upper: Array, is_observed: Array) -> float | None:
    """Return the share of observed values within the interval; None without any."""
    is_inside = (lower <= y) & (y <= upper)
    return float(is_inside[is_observed].mean()) if is_observed.any() else None
