"""Calibration of trained models: the temperature of a classifier, the conformal offsets of a forecaster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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

MOST_SMOOTHED_VALUES = 150_000
"""Values of all windows together that exponential smoothing reads at most: a few seconds of a core."""
_BATCH = 256
MOST_NUMBERS = 2_000_000
"""Most quantiles, over all windows of a split, from which offsets are computed."""
_LEAST_WINDOWS = 200
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


Array = npt.NDArray[Any]


class ConformityScores(NamedTuple):
    """Distances of truths from the intervals of forecasts by a model that was not trained on them.

    Distances are in units in which all windows share an offset, and negative inside.

    Attributes:
        below: float32 (windows, horizon, targets, intervals), of truths from the lower ends; NaN where they are
            missing.
        above: The same from the upper ends; minus infinity for a zero that a cut at zero always holds.
        half_widths: float64 (horizon, targets, intervals), half the mean width of the intervals.
        origins: Number of forecasts whose truths do not overlap, at most that of windows.
        levels: Levels of the quantiles, of which :func:`symmetric_levels` are intervals.
    """

    below: npt.NDArray[np.float32]
    above: npt.NDArray[np.float32]
    half_widths: npt.NDArray[np.float64]
    origins: int
    levels: tuple[float, ...]


def conformity_scores(model: Forecaster, windows: WindowSet) -> ConformityScores:
    """Return the scores of a model's uncalibrated quantiles on windows that it was not trained on.

    Args:
        model: Trained model with quantiles, in evaluation mode; its ``offsets`` are set to 0.
        windows: The windows; if their quantiles exceed :data:`MOST_NUMBERS`, evenly spaced ones.
    """
    # Scores are those of the uncalibrated quantiles, whatever an earlier calibration left behind.
    model.offsets.zero_()
    max_windows = max(_LEAST_WINDOWS, MOST_NUMBERS // model.offsets.numel())
    if model.rnn.cells[0].is_forecast:
        max_windows = max(1, min(max_windows, MOST_SMOOTHED_VALUES // windows.context_length))
    batches = list(batch_evenly_spaced(windows, max_windows, _BATCH))
    parts = []
    with torch.no_grad(), cached_weights(model):
        for numbers in batches:
            samples = windows.gather(numbers)
            is_zero = (samples.y <= 0) if model.non_negative else np.zeros(samples.y.shape, dtype=np.bool_)
            parts.append((*_in_offset_units(model, samples), is_zero))
    truth, quantiles, scale, zeros = (np.concatenate(each) for each in zip(*parts, strict=True))
    origins = np.array(windows.origins, dtype=np.int64)[np.concatenate(batches)]
    return scores_of(truth, quantiles, scale, zeros, model.quantiles, _independent(origins, model.horizon))


def _independent(origins: npt.NDArray[np.int64], horizon: int) -> int:
    """Return the number of forecasts whose truths do not overlap, of (series, first step) of windows."""
    series, first = origins.T
    back = first.max() - first
    return len({(int(one), int(step)) for one, step in zip(series, back // horizon, strict=True)})


def _in_offset_units(model: Forecaster, samples: Samples) -> tuple[Array, Array, Array]:
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


def scores_of(
    truth: Array, quantiles: Array, scale: Array, is_zero: Array, levels: Sequence[float], origins: int
) -> ConformityScores:
    """Return the scores of forecasts.

    Args:
        truth: (n, horizon, targets), NaN = missing.
        quantiles: (n, horizon, targets, levels), rising along the levels.
        scale: (n, 1, targets), the unit of each sample, above 0.
        is_zero: (n, horizon, targets), truths that are zero where quantiles are cut off at zero.
        levels: Between 0 and 1, increasing.
        origins: Number of forecasts whose truths do not overlap.

    Raises:
        DataError: If there is no sample, or a quantile is not finite.
    """
    if not len(truth):
        raise DataError("Conformal intervals need a calibration split, and it is empty. Hold out more for validation.")
    if not np.isfinite(quantiles).all():
        raise DataError("A quantile forecast of the calibration split is not finite, so that nothing can be measured.")
    y, q = truth.astype(np.float64)[..., None], quantiles.astype(np.float64)
    s = scale.astype(np.float64)[..., None]
    pairs = symmetric_levels(levels)
    lower, upper = (q[..., [pair[side] for pair in pairs]] for side in (0, 1))
    above = np.where(is_zero[..., None], -math.inf, (y - upper) / s)
    half_widths = ((upper - lower) / (2 * s)).mean(axis=0)
    below = ((lower - y) / s).astype(np.float32)
    return ConformityScores(below, above.astype(np.float32), half_widths, origins, tuple(levels))


class Conformal(NamedTuple):
    """Result of a conformal calibration.

    Attributes:
        offsets: float32 (horizon, targets, levels), to be added to each quantile in units of the anchor's scale.
        report: As JSON types: ``by``, :data:`HELD_OUT` or the validation split; ``samples``; ``origins``, those whose
            truths do not overlap; ``short``, the number of intervals, by step and target, with too few
            samples; ``levels_left``, levels without a mirror image, which are not shifted; ``coverage``, by the nominal
            coverage that of these samples ``before`` and ``after``.
    """

    offsets: npt.NDArray[np.float32]
    report: dict[str, Any]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Conformal:
        """Return that of a :meth:`document`."""
        report = {key: value for key, value in document.items() if key != "offsets"}
        return cls(np.array(document["offsets"], dtype=np.float32), report)

    def document(self) -> dict[str, Any]:
        """Return the report with the ``offsets``, as JSON types."""
        return {**self.report, "offsets": self.offsets.tolist()}


HELD_OUT = "fits to earlier steps, on the steps after these"
"""What calibrated the intervals of a model that was chosen by parts of the data, or fitted to them in closed form."""


def conformal_offsets(blocks: Sequence[ConformityScores], by: str = HELD_OUT) -> Conformal:
    r"""Return offsets of conformalized quantile regression (Romano, Patterson, Candes, NeurIPS 2019).

    For two symmetric levels, :math:`a/2` and :math:`1 - a/2`, the score of a sample is the distance of the true value
    from the interval, :math:`E_i = \max(q_{a/2} - y_i,\ y_i - q_{1-a/2}) / s_i`, negative inside. The offset is the
    :math:`\lceil (n + 1)(1 - a) \rceil`-th smallest score, subtracted from the lower quantile and added to the upper
    one. If the n samples and a new one are exchangeable, the interval covers the new value with a probability of at
    least :math:`1 - a`, for any model; without ties at most :math:`1 - a + 1/(n + 1)`.

    Each step and target has its own offset. Where origins are few, those of neighboring steps are pooled, so that
    origins times steps come to :data:`ENOUGH_ORIGINS`.

    Windows of a series that overlap or follow each other are not exchangeable: neighbors have nearly the same error,
    and later values may differ from all of them. The rank is therefore that share of the scores which it would be of n
    independent ones, where n are the origins whose truths do not overlap, times the square root of the steps that are
    pooled, between none and all of what these would add if they were independent. The guarantee is an approximation,
    and the coverage on the test split has to be measured. It holds as stated for many similar series with one window
    each.

    If n is too small for that rank (:math:`(n + 1)(1 - a) > n`), the largest score is used, which covers a new value
    with a probability of n/(n + 1) only; such steps are counted. A step without any true value is not shifted.

    Where most truths are zero, the lower quantile is shifted below all of these, and the upper one by the rank of its
    own distances. Where more of them are zero than the interval is to hold, it holds more than it says whatever its
    upper quantile is, which then has its own level, :math:`1 - a/2`.

    The median is not shifted, nor is a level without a mirror image. A large negative offset can shift a lower quantile
    beyond its neighbor: sort quantiles after applying offsets.

    Args:
        blocks: Scores of one or more splits; further ones may be by other fits of the same model.
        by: What the scores are of, for the report.
    """
    levels = blocks[0].levels
    below, above = (np.concatenate([block[side] for block in blocks]).astype(np.float64) for side in (0, 1))
    half_widths = np.mean([block.half_widths for block in blocks], axis=0)
    origins = sum(block.origins for block in blocks)
    horizon, targets = below.shape[1:3]
    offsets = np.zeros((horizon, targets, len(levels)), dtype=np.float64)
    short, coverage = 0, {}
    pairs = symmetric_levels(levels)
    for number, (lower, upper) in enumerate(pairs):
        nominal = levels[upper] - levels[lower]
        down, up = below[..., number], above[..., number]
        for step, target in np.ndindex(horizon, targets):
            steps = _neighbors(step, horizon, origins)
            pool = down[:, steps, target].ravel(), up[:, steps, target].ravel()
            shifts, is_short = _shifts(*pool, nominal, origins * math.sqrt(steps.stop - steps.start))
            short += is_short
            # A shift of minus half the width leaves nothing of the interval.
            down_shift, up_shift = (max(-half_widths[step, target, number], shift) for shift in shifts)
            offsets[step, target, lower], offsets[step, target, upper] = -down_shift, up_shift
        is_observed = ~np.isnan(down)
        coverage[f"{round(nominal, 6):g}"] = {
            "before": _coverage(down, up, is_observed),
            "after": _coverage(down + offsets[..., lower], up - offsets[..., upper], is_observed),
        }
    paired = {number for pair in pairs for number in pair}
    unpaired = [level for number, level in enumerate(levels) if number not in paired and not math.isclose(level, 0.5)]
    report = {"by": by, "samples": len(below), "origins": origins, "short": short}
    return Conformal(offsets.astype(np.float32), {**report, "levels_left": unpaired, "coverage": coverage})


ENOUGH_ORIGINS = 30
"""Origins whose truths do not overlap from which on a step's own scores say how wide its interval is; fewer ones are
pooled with those of neighboring steps. Of 55 small sets, pooled offsets have an interval score that is 4 % lower."""


def _neighbors(step: int, horizon: int, origins: int) -> slice:
    """Return the steps whose scores are pooled for one: as many as few origins need, around it."""
    count = min(horizon, math.ceil(ENOUGH_ORIGINS / origins))
    first = min(max(0, step - count // 2), horizon - count)
    return slice(first, first + count)


def _shifts(below: Array, above: Array, nominal: float, worth: float) -> tuple[tuple[float, float], bool]:
    """Return how far the ends of an interval are to be moved outwards, and whether samples are too few for the rank.

    The samples are worth so many independent ones, if none is missing.
    """
    is_observed = ~np.isnan(below)
    worth *= float(is_observed.mean())
    below, above = below[is_observed], above[is_observed]
    if not len(below):
        return (0.0, 0.0), True
    shift, is_short = _ranked(np.maximum(below, above), nominal, worth)
    is_zero = np.isneginf(above)
    if is_zero.mean() > _MOSTLY:
        level = nominal if is_zero.mean() < nominal else (1 + nominal) / 2
        return (float(below[is_zero].max()), _ranked(above, level, worth)[0]), is_short
    return (shift, shift), is_short


_MOSTLY = 0.5
"""Share of zeros above which an interval holds zero: by a common shift of its ends it would miss many as soon as
the mean moves a little."""


def _ranked(scores: Array, level: float, worth: float) -> tuple[float, bool]:
    """Return the score whose rank is the share (1 + 1 / worth) level, or the largest, and whether that is beyond it."""
    # Rounding must not lift the rank above the whole number that it is.
    rank = math.ceil(len(scores) * level * (1 + 1 / worth) - 1e-9)
    place = min(rank, len(scores)) - 1
    return float(np.partition(scores, place)[place]), rank > len(scores)


def _coverage(below: Array, above: Array, is_observed: npt.NDArray[np.bool_]) -> float | None:
    """Return the share of observed values within the interval; None without any."""
    is_inside = np.maximum(below, above) <= 0
    return float(is_inside[is_observed].mean()) if is_observed.any() else None


def fit_offsets(model: Forecaster, conformal: Conformal) -> dict[str, Any]:
    """Set the offsets of a model, and return the report with the ``unit`` and the ``offsets``, as JSON types."""
    model.offsets.copy_(torch.from_numpy(conformal.offsets))
    unit = "the data's" if model.head_kind == "recursive" else "the scaling of each window"
    return {**conformal.document(), "levels": list(model.quantiles), "unit": unit}
