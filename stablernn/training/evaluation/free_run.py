"""Soak: a forecast that feeds on itself for much longer than it was trained for. Does it stay within bounds?"""

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
from stablernn.training.evaluation.predictors import BATCH_SIZE, Array, Continuing, further_inputs

HORIZONS = 10
"""How many horizons a soak lasts."""
MOST_SERIES = 256
"""Series that a soak runs; of more, these many evenly spread ones."""
DIVERGED = 100.0
"""Training spreads from the training mean beyond which a value has diverged."""
GROWN = 2.0
"""Ratio of the last tenth's envelope to the first one's from which on a run counts as growing."""


def soak(
    predictor: Continuing, data: ForecastData, split: str = "test", certificate: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Run a forecaster freely for ten horizons, its mean forecast fed back as if it had been observed.

    It starts from the last window of each series in the split. At each horizon the model reads that window's context
    and all that was fed back since, from the zero state: the state is that of a stream that was never interrupted, and
    patches end with the last step whatever the horizon is. Channels of the calendar are computed for the steps to come,
    other channels that are not forecast hold the last value that was observed.

    Values are measured from the mean of their series' training part in units of its standard deviation. A target whose
    training part never changes has no such unit: it is run, left out of the figures and counted.

    Args:
        predictor: What is run.
        data: From where it starts.
        split: Likewise.
        certificate: What is proved of the model, as :meth:`Certificate.document` says it.

    Returns:
        ``series`` and ``steps`` that were run; ``without_spread``, targets left out; ``largest``, the greatest distance
        of a value, and ``largest_in_training``, of the training part; ``envelope``, the greatest distance in each tenth
        of the run; ``growth``, the last of these over the first, NaN for x/0, 1 for 0/0; ``still_growing``, whether
        each of the last three is larger than the one before it by more than 1 %; ``diverged_at``, the first step (from
        1) at which a value is not finite or farther than :data:`DIVERGED`, else None; ``bounded``, whether there is no
        such step and the last envelope is at most :data:`GROWN` times the first, or within what training showed;
        ``state_norms``, by the state's name the greatest Euclidean norm over the series, at the start and after
        each horizon; ``bound``, by the same names what the certificate proves of these norms for any input and any
        length, without those of which nothing is proved, None where that is all; ``bound_reason``, why it is None.

    Raises:
        ConfigError: If the model needs columns that are known in advance.
        DataError: If the split is empty.
    """
    windows = data.windows(split)
    if not len(windows):
        raise DataError(f"The split '{split}' of '{data.name}' is empty. Choose another split.")
    origins = np.array(windows.origins, dtype=np.int64)
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
    mean, spread, reach = _training(data, origins[last, 0])
    bound, reason = _bound(certificate, predictor, parts[0][2])
    return _report(values, mean, spread, reach) | {"state_norms": norms, "bound": bound, "bound_reason": reason}


def _bound(
    certificate: Mapping[str, Any] | None, predictor: Continuing, sizes: Mapping[str, int]
) -> tuple[dict[str, float] | None, str | None]:
    """What is proved of the Euclidean norm of each state, by its role; else why nothing is.

    Args:
        certificate: Where states stay.
        predictor: Whose states they are.
        sizes: Numbers in each, by the name of the input.
    """
    if certificate is None:
        return None, "no certificate was given"
    roles = {state.input: state.role for state in predictor.states}
    found = {}
    for ball in certificate["state_balls"]:
        size = sizes[ball["state"]]
        # In the ball of the largest coordinate the farthest point is a corner.
        radius = ball["radius"] * (math.sqrt(size) if ball["norm"] == "linf" else 1.0)
        found[roles[ball["state"]]] = radius + abs(ball["centre"]) * math.sqrt(size)
    if found:
        return found, None
    return None, f"the certificate, of kind '{certificate['kind']}', knows no ball in which a state stays"


def _run(
    predictor: Continuing, data: ForecastData, batch: Samples, origins: Array
) -> tuple[Array, dict[str, list[float]], dict[str, int]]:
    """Forecasts (series, steps, targets) of a free run, NaN once the model does not answer any more; state norms by
    role, and how many numbers each state has, by the name of its input."""
    steps = HORIZONS * data.horizon
    values = np.full((len(batch.x), steps, len(data.targets)), math.nan)
    roles = {name.input: name.role for name in predictor.states}
    norms: dict[str, list[float]] = {role: [] for role in roles.values()}
    sizes: dict[str, int] = {}
    ahead = np.repeat(_latest(batch.x)[:, None], steps, axis=1)
    if data.calendar:
        made = [data.channels.index(name) for name in calendar_channels(data.calendar)]
        ahead[:, :, made] = _calendar(data, origins, steps)
    x, further = batch.x, further_inputs(batch)
    for number in range(HORIZONS):
        now = slice(number * data.horizon, (number + 1) * data.horizon)
        if data.future:
            further["future"] = ahead[:, now][:, :, list(data.future_indices)]
        try:
            outputs = predictor.run_sequence(x, np.full(len(x), x.shape[1], dtype=np.int64), None, **further)
        except ValueError:
            # The first run has seen data only; after it nothing but the values can be what is refused.
            if number == 0:
                raise
            break
        mean = outputs["mean"]
        for name, value in predictor.next_state(outputs).items():
            norms[roles[name]].append(float(np.linalg.norm(value.astype(np.float64), axis=1).max()))
            sizes[name] = value.shape[1]
        values[:, now] = mean
        if not np.isfinite(mean).all():
            break
        ahead[:, now, list(data.target_indices)] = mean
        x = np.concatenate([x, ahead[:, now]], axis=1)
        # The steps of a free run are regular ones.
        if "dt" in further:
            further["dt"] = np.concatenate([further["dt"], np.ones_like(mean[:, :, 0])], axis=1)
    return values, norms, sizes


def _calendar(data: ForecastData, origins: Array, steps: int) -> npt.NDArray[np.float32]:
    """The calendar's channels (series, steps, channels) of the steps from each origin on."""
    positions = np.arange(1, steps + 1, dtype=np.int64)
    found = []
    for series, end in origins:
        ds = data.series[series].ds
        found.append(calendar_values(_grid(data, ds).at(ds[end - 1], positions), data.calendar))
    return np.stack(found)


def _grid(data: ForecastData, ds: Timestamps) -> Frequency:
    """The time grid on which a series of dates goes on."""
    if data.frequency is not None:
        return parse_frequency(data.frequency)
    step = float(np.median(lengths_of_time(np.diff(ds)))) if data.time_step is None else data.time_step
    return Frequency("", "fixed", round(step * 1e9))


def _latest(x: Array) -> npt.NDArray[np.float32]:
    """The last observed value of each channel (series, channels); NaN where none is."""
    step = np.where(np.isnan(x), -1, np.arange(x.shape[1])[:, None]).max(axis=1)
    found = np.take_along_axis(x, np.maximum(step, 0)[:, None], axis=1)[:, 0]
    return np.where(step >= 0, found, np.nan).astype(np.float32)


def _training(data: ForecastData, series: Array) -> tuple[Array, Array, Array]:
    """Mean, standard deviation and greatest distance from the mean, of each series' training part and target."""
    targets = list(data.target_indices)
    parts = data.training_values()
    found = np.full((3, len(series), len(targets)), math.nan)
    for row, number in enumerate(series):
        for column, target in enumerate(targets):
            values = parts[number][:, target].astype(np.float64)
            values = values[~np.isnan(values)]
            if len(values) and values.std() > 1e-12 * np.abs(values).max():
                found[:, row, column] = values.mean(), values.std(), np.abs(values - values.mean()).max()
    return found[0], found[1], found[2]


def _report(values: Array, mean: Array, spread: Array, reach: Array) -> dict[str, Any]:
    known = ~np.isnan(spread)
    result: dict[str, Any] = {
        "series": len(values),
        "steps": values.shape[1],
        "without_spread": int((~known).sum()),
    }
    if not known.any():
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
    away = (np.abs(values - mean[:, None]) / spread[:, None]).transpose(1, 0, 2)[:, known]  # (steps, targets with unit)
    reached = float((reach / spread)[known].max())
    at_step = np.where(np.isfinite(away), away, math.inf).max(axis=1)
    lost = np.flatnonzero(at_step > DIVERGED)
    envelope = [float(part.max()) for part in np.split(at_step, HORIZONS)]
    first, final = envelope[0], envelope[-1]
    growth = ratio(final, first, zero=1.0)
    rises = [later > 1.01 * earlier for earlier, later in zip(envelope[-4:-1], envelope[-3:], strict=True)]
    return result | {
        "largest": max(envelope),
        "largest_in_training": reached,
        "envelope": envelope,
        "growth": growth,
        "still_growing": all(rises),
        "diverged_at": int(lost[0]) + 1 if len(lost) else None,
        "bounded": not len(lost) and (final <= GROWN * first or final <= reached),
    }
