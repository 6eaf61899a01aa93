"""Long free runs of a forecaster (``--soak``): closed-loop forecasts far beyond the trained horizon."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn.data import ForecastData, Samples
from stablernn.data.arrays import Timestamps
from stablernn.data.forecasting.covariates import calendar_channels, calendar_values
from stablernn.data.time.frequency import Frequency, parse_frequency
from stablernn.data.types import lengths_of_time
from stablernn.errors import ConfigError, DataError
from stablernn.training.evaluation.metrics import ratio
from stablernn.training.evaluation.predictors import BATCH_SIZE, Array, StatefulPredictor, optional_inputs

HORIZONS = 10
"""Length of a free run in horizons."""
MOST_SERIES = 256
"""Most series of a free run; of more, this number of evenly spaced ones."""
DIVERGED = 100.0
"""Distance from the training mean, in training deviations, beyond which a value has diverged."""
GROWN = 2.0
"""Largest ratio of the last tenth's envelope to the first one's at which a run still counts as bounded."""


def soak(
    predictor: StatefulPredictor, data: ForecastData, split: str = "test", certificate: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run a forecaster freely for ten horizons, its mean forecast fed back as if it had been observed.

    The run starts from the last window of each series in the split. At each horizon the model reads that window's
    context and all values fed back since, from the zero state: the state is that of an uninterrupted stream, and
    patches end with the last step, whatever the horizon. Calendar channels are computed for the steps ahead; other
    channels that are not forecast keep their last observed value.

    Distances are measured from the mean of the series' training part in its standard deviations. A target that never
    changes in training has no such unit: it runs, but is left out of the figures and counted.

    Args:
        predictor: Forecaster to run.
        data: Data with the windows to start from.
        split: Split of these windows.
        certificate: Certificate of the model, as in :meth:`Certificate.document`; None if it has none.

    Returns:
        ``series`` and ``steps`` of the run; ``without_spread``, targets left out; ``largest``, the largest distance of
        a value, and ``largest_in_training``, that of the training part; ``envelope``, the largest distance in each
        tenth of the run; ``growth``, the last of these over the first, NaN for x/0, 1 for 0/0; ``still_growing``, True
        if each of the last three exceeds the one before it by more than 1 %; ``diverged_at``, the first step (from 1)
        at which a value is not finite or farther than :data:`DIVERGED`, else None; ``bounded``, True if there is no
        such step and the last envelope is at most :data:`GROWN` times the first, or within the range of training;
        ``state_norms``, by the state's role the largest Euclidean norm over the series, at the start and after each
        horizon; ``bound``, by the same roles the certified bounds on these norms for any input and any length, None if
        no state has one; ``bound_reason``, the reason why it is None.

    Raises:
        ConfigError: If the model needs columns that are known in advance.
        DataError: If the split is empty.
    """
    windows = data.windows(split)
    if not len(windows):
        raise DataError(f"The split '{split}' of '{data.name}' is empty. Choose another split.")
    origins = np.array(windows.origins, dtype=np.int64)
    # Windows are numbered series by series, so the last one of a series stands before the first one of the next.
    last = np.flatnonzero(np.append(origins[1:, 0] != origins[:-1, 0], True))
    if len(last) > MOST_SERIES:
        last = last[np.linspace(0, len(last) - 1, MOST_SERIES).round().astype(np.int64)]
    columns = [name for name in data.future if name not in calendar_channels(data.calendar)]
    if columns:
        raise ConfigError(
            f"A soak goes beyond the data, where the columns of '{data.name}' that are known in advance "
            f"({', '.join(columns)}) have no values. Train without them to soak."
        )
    batches = [last[i : i + BATCH_SIZE] for i in range(0, len(last), BATCH_SIZE)]
    parts = [_run(predictor, data, windows.gather(numbers), origins[numbers]) for numbers in batches]
    values = np.concatenate([part[0] for part in parts])  # (series, steps, targets)
    norms = {name: np.max([part[1][name] for part in parts], axis=0).tolist() for name in parts[0][1]}
    statistics = _training_statistics(data, origins[last, 0])
    bound, reason = _certified_norms(certificate, predictor, parts[0][2])
    return _report(values, *statistics) | {"state_norms": norms, "bound": bound, "bound_reason": reason}


def _certified_norms(
    certificate: Mapping[str, Any] | None, predictor: StatefulPredictor, sizes: Mapping[str, int]
) -> tuple[dict[str, float] | None, str | None]:
    """Return certified bounds on the Euclidean norms of the states by role, or None and the reason.

    Args:
        certificate: Certificate with invariant balls of the states.
        predictor: Predictor with these states.
        sizes: Length of each state, by the name of its input.
    """
    if certificate is None:
        return None, "no certificate was given"
    roles = {state.input: state.role for state in predictor.states}
    bounds = {}
    for ball in certificate["state_balls"]:
        size = sizes[ball["state"]]
        # In a ball of the infinity norm the farthest point from the center is a corner.
        radius = ball["radius"] * (math.sqrt(size) if ball["norm"] == "linf" else 1.0)
        # The center has the same value in every coordinate.
        bounds[roles[ball["state"]]] = radius + abs(ball["centre"]) * math.sqrt(size)
    if bounds:
        return bounds, None
    return None, f"the certificate, of kind '{certificate['kind']}', has no ball in which a state stays"


def _run(
    predictor: StatefulPredictor, data: ForecastData, batch: Samples, origins: Array
) -> tuple[Array, dict[str, list[float]], dict[str, int]]:
    """Run some series freely.

    Returns:
        Forecasts (series, steps, targets), NaN from the step on at which the model rejects its own values; the state
        norms after each horizon by role; and the length of each state by the name of its input.
    """
    steps = HORIZONS * data.horizon
    values = np.full((len(batch.x), steps, len(data.targets)), math.nan)
    roles = {name.input: name.role for name in predictor.states}
    norms: dict[str, list[float]] = {role: [] for role in roles.values()}
    sizes: dict[str, int] = {}
    # (series, steps, channels): the values to feed back, of which the forecasts replace the targets.
    ahead = np.repeat(_last_observed(batch.x)[:, None], steps, axis=1)
    if data.calendar:
        calendar_indices = [data.channels.index(name) for name in calendar_channels(data.calendar)]
        ahead[:, :, calendar_indices] = _calendar(data, origins, steps)
    x, optional = batch.x, optional_inputs(batch)
    for number in range(HORIZONS):
        horizon = slice(number * data.horizon, (number + 1) * data.horizon)
        if data.future:
            optional["future"] = ahead[:, horizon][:, :, list(data.future_indices)]
        try:
            outputs = predictor.run_sequence(x, np.full(len(x), x.shape[1], dtype=np.int64), None, **optional)
        except ValueError:
            # The first run reads data only, so its error is a real one; later ones can only reject the values fed back.
            if number == 0:
                raise
            break
        mean = outputs["mean"]
        for name, value in predictor.next_state(outputs).items():
            norms[roles[name]].append(float(np.linalg.norm(value.astype(np.float64), axis=1).max()))
            sizes[name] = value.shape[1]
        values[:, horizon] = mean
        if not np.isfinite(mean).all():
            break
        ahead[:, horizon, list(data.target_indices)] = mean
        x = np.concatenate([x, ahead[:, horizon]], axis=1)
        # The steps of a free run are regular.
        if "dt" in optional:
            optional["dt"] = np.concatenate([optional["dt"], np.ones_like(mean[:, :, 0])], axis=1)
    return values, norms, sizes


def _calendar(data: ForecastData, origins: Array, steps: int) -> npt.NDArray[np.float32]:
    """Return the calendar channels (series, steps, channels) of the steps from each origin on."""
    positions = np.arange(1, steps + 1, dtype=np.int64)
    channels = []
    for series, end in origins:
        ds = data.series[series].ds
        channels.append(calendar_values(_time_grid(data, ds).at(ds[end - 1], positions), data.calendar))
    return np.stack(channels)


def _time_grid(data: ForecastData, ds: Timestamps) -> Frequency:
    """Return the regular time grid on which a series of timestamps continues."""
    if data.frequency is not None:
        return parse_frequency(data.frequency)
    step = float(np.median(lengths_of_time(np.diff(ds)))) if data.time_step is None else data.time_step
    # Frequencies count in nanoseconds.
    return Frequency("", "fixed", round(step * 1e9))


def _last_observed(x: Array) -> npt.NDArray[np.float32]:
    """Return the last observed value of each channel (series, channels); NaN for a channel without any."""
    step = np.where(np.isnan(x), -1, np.arange(x.shape[1])[:, None]).max(axis=1)
    values = np.take_along_axis(x, np.maximum(step, 0)[:, None], axis=1)[:, 0]
    return np.where(step >= 0, values, np.nan).astype(np.float32)


def _training_statistics(data: ForecastData, series: Array) -> tuple[Array, Array, Array]:
    """Return mean, standard deviation and largest distance from the mean of the training parts, (series, targets) each.

    All are NaN for a target that never changes, and for one without observations.
    """
    targets = list(data.target_indices)
    parts = data.training_values()
    statistics = np.full((3, len(series), len(targets)), math.nan)
    for row, number in enumerate(series):
        for column, target in enumerate(targets):
            values = parts[number][:, target].astype(np.float64)
            values = values[~np.isnan(values)]
            # A constant that is no binary fraction has a tiny deviation by rounding; it is no unit.
            if len(values) and values.std() > 1e-12 * np.abs(values).max():
                statistics[:, row, column] = values.mean(), values.std(), np.abs(values - values.mean()).max()
    return statistics[0], statistics[1], statistics[2]


def _report(values: Array, mean: Array, deviation: Array, largest: Array) -> dict[str, Any]:
    """Return the figures of a free run, see :func:`soak`.

    Args:
        values: (series, steps, targets), the forecasts.
        mean: (series, targets), mean of the training part; NaN without a unit.
        deviation: (series, targets), its standard deviation.
        largest: (series, targets), its largest distance from the mean.
    """
    has_unit = ~np.isnan(deviation)
    result: dict[str, Any] = {
        "series": len(values),
        "steps": values.shape[1],
        "without_spread": int((~has_unit).sum()),
    }
    if not has_unit.any():
        # Without any unit, finite or not is all that can be measured.
        finite = bool(np.isfinite(values).all())
        return (
            result
            | dict.fromkeys(("largest", "largest_in_training", "growth"), math.nan)
            | {
                "envelope": [],
                "still_growing": False,
                "diverged_at": None if finite else int(np.argwhere(~np.isfinite(values).all(axis=(0, 2)))[0, 0]) + 1,
                "bounded": finite,
            }
        )
    # (series, steps, targets) to (steps, series and targets with a unit)
    distances = (np.abs(values - mean[:, None]) / deviation[:, None]).transpose(1, 0, 2)[:, has_unit]
    largest_in_training = float((largest / deviation)[has_unit].max())
    # A value that is not finite, or missing because the run ended, counts as infinitely far away.
    step_distances = np.where(np.isfinite(distances), distances, math.inf).max(axis=1)
    diverged_steps = np.flatnonzero(step_distances > DIVERGED)
    envelope = [float(part.max()) for part in np.split(step_distances, HORIZONS)]
    first, final = envelope[0], envelope[-1]
    growth = ratio(final, first, zero=1.0)
    rises = [later > 1.01 * earlier for earlier, later in zip(envelope[-4:-1], envelope[-3:], strict=True)]
    return result | {
        "largest": max(envelope),
        "largest_in_training": largest_in_training,
        "envelope": envelope,
        "growth": growth,
        "still_growing": all(rises),
        "diverged_at": int(diverged_steps[0]) + 1 if len(diverged_steps) else None,
        "bounded": not len(diverged_steps) and (final <= GROWN * first or final <= largest_in_training),
    }
