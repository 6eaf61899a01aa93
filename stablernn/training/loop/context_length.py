"""Choice of the context length where no season is known: a few lengths, compared on the validation windows."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from stablernn.data.arrays import Float32Array
from stablernn.data.types import ForecastData
from stablernn.data.windows import WindowSet, batch_evenly_spaced
from stablernn.nn.models import Forecaster
from stablernn.training.evaluation.metrics import seasonal_scale
from stablernn.training.loop.ridge_skip import skip_samples
from stablernn.training.loop.significance import Float64Array, standard_error
from stablernn.training.settings.defaults import takes_logarithms

_LOG = logging.getLogger("stablernn.training")

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
