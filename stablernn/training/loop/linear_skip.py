"""The linear skip of a forecaster, solved for by ridge regression on the training windows.

The gate decides on validation windows between it and the trained layers. Where no season is known, a few context
lengths are compared by their skips.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.data.arrays import Float32Array, Samples
from stablernn.data.types import ForecastData
from stablernn.data.windows import WindowSet, batch_evenly_spaced
from stablernn.nn.models import Forecaster
from stablernn.training.evaluation.metrics import seasonal_scale
from stablernn.training.loop.minibatches import model_inputs
from stablernn.training.settings.defaults import takes_logarithms

_LOG = logging.getLogger("stablernn.training")

MOST_WINDOWS = 60_000
"""Training windows that the linear skip is fitted to at most, evenly spread over all of them."""
GATE_WINDOWS = 3_000
"""Validation windows that the gate is chosen on at most."""
_GATE_BATCH = 2048
_SHARES = torch.linspace(0, 1, 21, dtype=torch.float64)


def fit_forecaster(model: Forecaster, data: ForecastData, strength: float) -> None:
    """Fit the scaling of static covariates and the linear skip to the training split.

    Args:
        model: With its scaling fitted, on the CPU.
        data: What it is trained on.
        strength: Ridge penalty of the skip, as a share of the mean square of a scaled value.
    """
    if data.static:
        model.fit_static(np.stack([series.static for series in data.series]))
    if model.skip is not None:
        model.fit_skip(skip_samples(data.windows("train"), MOST_WINDOWS), strength)


@dataclass(frozen=True)
class Gate:
    """Comparison of the trained layers with the linear skip alone on the validation windows.

    Errors are mean absolute ones in units of the scaling.

    Attributes:
        share: Share of the way from the skip to the trained model that is kept: 0 is the skip alone.
        skip_error: Error of the skip alone.
        layers_error: Error at the share with the least error, whether it is kept or not.
        standard_error: Standard error of the difference between the two; None where the windows say nothing of it.
        windows: Number of windows.
    """

    share: float
    skip_error: float
    layers_error: float
    standard_error: float | None
    windows: int


def gate(model: Forecaster, skip: Tensor, windows: WindowSet) -> Gate:
    """Leave the layers out of the mean forecast unless they are better than the linear skip by more than noise.

    Layers that have learned what does not carry over to later windows add nothing to a good linear map, and do harm.
    Candidates are shares of the way from the first skip to the trained model, of a recursive head the two ends
    alone. That with the least absolute error over all validation windows is kept if it is better than the skip by more
    than one standard error, see :func:`stablernn.training.loop.linear_skip.standard_error`; else the skip alone. The
    share is put into the weights; quantiles keep their distance from the mean.

    Args:
        model: Trained, in evaluation mode, with a linear skip; it is changed.
        skip: The skip's weights before training.
        windows: Those of the validation split.
    """
    assert model.skip is not None
    trained = model.skip.weight.detach().clone()
    batches = list(batch_evenly_spaced(windows, GATE_WINDOWS, _GATE_BATCH))
    shares = _SHARES if model.head_kind == "direct" else _SHARES[[0, -1]]
    # Sums over the observed values of each window, (windows, shares), and how many these are.
    with torch.no_grad():
        # Rolled-out forecasts are not linear in the share: each share would be a forecast of its own.
        if model.head_kind == "direct":
            parts = [_blended_errors(model, windows.gather(part), skip, trained, shares) for part in batches]
        else:
            alone = copy.deepcopy(model)
            set_share(alone, skip, trained, 0.0)
            parts = [_rolled_out_errors((alone, model), windows.gather(part)) for part in batches]
    errors, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    means = errors.sum(axis=0) / counts.sum()
    best = int(means.argmin())
    # (windows, 2): series and first forecast step, by which errors are clustered.
    origins = np.array(windows.origins, dtype=np.int64)[np.concatenate(batches)]
    noise = standard_error((errors[:, 0] - errors[:, best]) / counts.mean(), origins, model.horizon)
    is_better = noise is not None and means[0] - means[best] > noise
    share = float(shares[best]) if is_better else 0.0
    set_share(model, skip, trained, share)
    return Gate(share, float(means[0]), float(means[best]), noise, len(counts))


def _blended_errors(
    model: Forecaster, samples: Samples, skip: Tensor, trained: Tensor, shares: Tensor
) -> tuple[Float64Array, Float64Array]:
    """Return the summed errors of a direct head at each share, ``(windows, shares)``, and the observed numbers."""
    assert model.skip is not None
    x, _, dt, covariates = model_inputs(samples, model)
    state = model.final_state(x, dt=dt)
    change, location, scale = model.changes(state, **covariates)
    # Mean of the members, and of it the point forecast, (windows, horizon, targets).
    full_change = change.mean(dim=1)[..., 0].double()
    model.skip.weight.copy_(skip)
    first = model.skip_change(state).double()
    model.skip.weight.copy_(trained)
    truth = model.scaling.transform(torch.from_numpy(samples.y).to(x.device), model.target_indices)
    target = ((truth - location) / scale).double()
    is_observed = ~torch.isnan(target)
    target = torch.where(is_observed, target, 0.0)
    # The mean of a direct head is linear in the share, so that shares need no further run of the layers.
    errors = [
        torch.where(is_observed, (first + share * (full_change - first) - target).abs(), 0.0).sum(dim=(1, 2))
        for share in shares
    ]
    return torch.stack(errors, dim=1).cpu().numpy(), is_observed.sum(dim=(1, 2)).double().cpu().numpy()


def _rolled_out_errors(models: Sequence[Forecaster], samples: Samples) -> tuple[Float64Array, Float64Array]:
    """Return the summed errors of recursive heads, ``(windows, models)``, and the observed numbers."""
    errors = []
    is_observed = torch.empty(0)
    for model in models:
        x, _, dt, covariates = model_inputs(samples, model)
        outputs, state = model.run(x, None, None, dt, **covariates)
        # A recursive head reads the known values of one step at a time; the unit is the same for all steps.
        first = {name: value[:, :1] if name == "future" else value for name, value in covariates.items()}
        _, _, scale = model.changes(state, **first)
        raw = torch.from_numpy(samples.y).to(x.device)
        truth, mean = (model.scaling.transform(value, model.target_indices) for value in (raw, outputs["mean"]))
        distance = ((mean - truth) / scale).abs().double()
        is_observed = ~torch.isnan(distance)
        errors.append(torch.where(is_observed, distance, 0.0).sum(dim=(1, 2)))
    return torch.stack(errors, dim=1).cpu().numpy(), is_observed.sum(dim=(1, 2)).double().cpu().numpy()


def set_share(model: Forecaster, skip: Tensor, trained: Tensor, share: float) -> None:
    """Put a blend of the linear skip alone and the trained model into the weights of the mean forecast.

    Args:
        model: The trained model.
        skip: The skip's weights before training.
        trained: Those after it.
        share: 0 is the skip alone, 1 the trained model.
    """
    assert model.skip is not None
    with torch.no_grad():
        model.skip.weight.copy_(skip + share * (trained - skip))
    model.shrink_mean(share)


def skip_samples(windows: WindowSet, limit: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield contexts and truths of at most so many windows, in batches, as :meth:`Forecaster.fit_skip` takes them."""
    for numbers in batch_evenly_spaced(windows, limit, _GATE_BATCH):
        samples = windows.gather(numbers)
        yield samples.x, samples.y


LONGEST = 512
"""Longest context that is tried, in steps: the ridge regression solves for as many coefficients a step ahead."""
LEAST_SHARE = 0.5
"""Share of the training windows of the shortest context that a longer one must leave."""
TRAINING_WINDOWS = 10_000
VALIDATION_WINDOWS = 3_000
"""Windows of each split that contexts are compared on at most, evenly spread."""
_BATCH = 1024


def choose_context(data: ForecastData, strength: float) -> ForecastData:
    """Return the data with the context length that forecasts the validation windows best.

    Candidates are the default length and its doubles. Each is judged by the linear forecast that ridge regression
    solves for, which takes no training: mean absolute error in units of each series' mean absolute change (MASE). Of
    all candidates whose error exceeds the least by no more than its standard error the shortest is taken. The
    comparison stands in ``notes["context_length"]``.

    Args:
        data: With a default context length; data with a season, or with a given length, is returned as it is.
        strength: Ridge penalty, as ``model.skip_strength``.
    """
    if not data.has_default_context or data.season != 1:
        return data
    candidates = list(_candidates(data))
    if len(candidates) < 2:
        return data
    windows = data.windows("validation")
    sample = np.concatenate(list(batch_evenly_spaced(windows, VALIDATION_WINDOWS, _BATCH)))
    origins = np.array(windows.origins, dtype=np.int64)[sample]
    errors = [_errors(replace(data, context_length=steps), windows, sample, strength) for steps in candidates]
    # A window without any value in the unit of its series says nothing of any candidate.
    usable = np.isfinite(errors).all(axis=0)
    if not usable.any():
        return data
    scores = [float(error[usable].mean()) for error in errors]
    best = int(np.argmin(scores))
    rows: list[dict[str, Any]] = []
    accepted: list[int] = []
    for steps, score, error in zip(candidates, scores, errors, strict=True):
        noise = standard_error((error - errors[best])[usable], origins[usable], data.horizon)
        rows.append({"context_length": steps, "mase": score, "standard_error": noise})
        if noise is None or score - scores[best] <= noise:
            accepted.append(steps)
    length = accepted[0]
    comparison = {"chosen": length, "by": "linear forecasts of the validation windows", "tried": rows}
    summary = ", ".join(f"{row['context_length']} ({row['mase']:.4g})" for row in rows)
    _LOG.info(
        "No season is known, so the context was chosen by validation: %d steps. MASE of each: %s.", length, summary
    )
    data = replace(data, context_length=length, notes={**data.notes, "context_length": comparison})
    data.notes["windows"] = data.window_counts()
    return data


def _candidates(data: ForecastData) -> Iterator[int]:
    """Yield the lengths that leave every series all of its validation windows, and enough training windows."""
    held_out = data.validation_steps + data.test_steps
    longest = min(len(series.values) for series in data.series) - held_out
    length = data.context_length
    least = LEAST_SHARE * len(data.windows("train"))
    while 2 <= length <= min(longest, LONGEST):
        if len(replace(data, context_length=length).windows("train")) < max(1, least):
            return
        yield length
        length *= 2


def _errors(data: ForecastData, windows: WindowSet, sample: np.ndarray, strength: float) -> Float64Array:
    """Return the mean absolute error of the linear forecast in some validation windows, in units of their series.

    Args:
        data: With the context length to try.
        windows: The validation windows of the shortest context.
        sample: Numbers of the windows to forecast.
        strength: Ridge penalty.
    """
    targets = list(data.target_indices)
    # Drawing first weights must not change the random state of the run that follows.
    with torch.random.fork_rng(devices=[]):
        model = Forecaster(
            "rnn",
            len(data.channels),
            data.horizon,
            1,
            target_indices=targets,
            quantiles=(),
            scaling="context",
            window=data.context_length,
            log=takes_logarithms(data),
            skip="linear",
        ).eval()
    model.fit_scaling(data.training_values())
    model.fit_skip(skip_samples(data.windows("train"), TRAINING_WINDOWS), strength)
    units = np.stack([seasonal_scale(values[:, targets], data.season) for values in data.training_values()])
    # A series that never changed has no unit.
    units = np.where(units > 0, units, np.nan)
    # The same windows for each candidate: those of the shortest context, under the numbers that they have there.
    longer = windows.with_context(data.context_length)
    series = np.array(windows.origins, dtype=np.int64)[:, 0]
    parts = []
    for start in range(0, len(sample), _BATCH):
        numbers = sample[start : start + _BATCH]
        samples = longer.gather(numbers)
        distances = np.abs(_forecast(model, samples.x) - samples.y.astype(np.float64)) / units[series[numbers], None]
        # (windows, horizon, targets)
        is_observed = ~np.isnan(distances)
        counts = is_observed.sum(axis=(1, 2))
        total = np.where(is_observed, distances, 0.0).sum(axis=(1, 2))
        parts.append(np.divide(total, counts, out=np.full(len(numbers), np.nan), where=counts > 0))
    return np.concatenate(parts)


def _forecast(model: Forecaster, x: Float32Array) -> Float64Array:
    with torch.no_grad():
        mean = model.run(torch.from_numpy(np.ascontiguousarray(x)))[0]["mean"]
    return mean.double().numpy()


Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


def standard_error(differences: Float64Array, origins: Int64Array, horizon: int) -> float | None:
    """Return the standard error of the mean of differences between the errors of two forecasts, window by window.

    Windows are not independent: those of one series have much in common, and so have those of one time, whose targets
    overlap or are disturbed by the same events. Windows are therefore clustered by time, into as many stretches of
    origins as have targets that do not overlap, and by series; the larger of the two cluster-robust errors is returned
    (Cameron, Miller, "A practitioner's guide to cluster-robust inference", 2015).

    Args:
        differences: ``(windows,)``.
        origins: ``(windows, 2)``, series and first forecast step of each window.
        horizon: Steps that are forecast.

    Returns:
        The standard error; None where all windows are of one time and one series, which says nothing of the noise.
    """
    clusters = stretches_of_time(origins, horizon), origins[:, 0]
    errors = [_clustered(differences, each) for each in clusters]
    return max((error for error in errors if error is not None), default=None)


def stretches_of_time(origins: Int64Array, horizon: int) -> Int64Array:
    """Return the stretch of origins of each window, (windows,): as many as have targets that do not overlap.

    Args:
        origins: ``(windows, 2)``, series and first forecast step of each window.
        horizon: Steps that are forecast.
    """
    series, ends = origins[:, 0], origins[:, 1]
    last = np.full(int(series.max(initial=0)) + 1, -1, dtype=np.int64)
    np.maximum.at(last, series, ends)
    # Series may have different lengths; they are taken to end at the same time.
    back = last[series] - ends
    span = int(back.max(initial=0)) + 1
    stretches = 1 + (span - 1) // horizon
    return np.asarray(back * stretches // span)


def _clustered(differences: Float64Array, clusters: Int64Array) -> float | None:
    """Return the cluster-robust standard error of the mean; None for less than two clusters."""
    names, members = np.unique(clusters, return_inverse=True)
    count = len(names)
    if count < 2:
        return None
    sums = np.bincount(members, weights=differences - differences.mean(), minlength=count)
    return math.sqrt(count / (count - 1) * float((sums**2).sum())) / len(differences)
