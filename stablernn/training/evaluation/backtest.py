"""Forecasts beyond the windows of a split: rolling origins, long free runs (``--soak``), and streams.

A free run is a closed-loop forecast far beyond the trained horizon; a stream forecasts after each sample, with the
state carried on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from stablernn.data import ForecastData, Samples, WindowSet
from stablernn.data.arrays import Timestamps
from stablernn.data.forecasting import calendar_channels, calendar_values
from stablernn.data.table.frequency import Frequency, parse_frequency
from stablernn.data.types import lengths_of_time
from stablernn.errors import ConfigError, DataError
from stablernn.terms import terms
from stablernn.training.evaluation.metrics import ratio, symmetric_levels
from stablernn.training.evaluation.predictors import BATCH_SIZE, Array, Outputs, StatefulPredictor, optional_inputs
from stablernn.training.evaluation.scorers import ForecastScorer

Int64Array = npt.NDArray[np.int64]

KEYS = ("windows", "step")
"""Settings of a backtest on the command line."""


class BacktestSettings(TypedDict):
    """Settings of a backtest, as :func:`backtest` takes them."""

    windows: int
    step: int


def backtest(
    predictor: StatefulPredictor,
    data: ForecastData,
    split: str = "test",
    *,
    windows: int,
    step: int,
    quantiles: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return the scores over several origins of each series, the last of which ends with the split.

    The state is not carried over a window that was dropped because nothing in it or in its context was observed: the
    next origin reads its context.

    Args:
        predictor: Predictor to score.
        data: Data to score on.
        split: train, validation or test.
        windows: Origins of each series, 1 or more. A series too short for all of them has fewer, which is counted.
        step: Steps from one origin to the next, 1 or more.
        quantiles: As in :func:`stablernn.training.evaluation.predictors.evaluate`.

    Returns:
        ``windows`` and ``step`` as requested; ``origins``, the number of scored ones over all series;
        ``missing_origins``, the number of those that series were too short for; ``carried`` and ``fresh``, each with
        ``metrics``, ``seconds`` and ``steps_read``, of which ``carried`` is None where ``step`` is no whole number of
        the model's patches, after which its state moves on; ``by_window``, rows of ``window`` (from 1, the earliest),
        ``series``, ``mae_carried`` unless that is None, ``mae_fresh`` and
        ``mae_seasonal_naive``.

    Raises:
        ConfigError: If windows or step is below 1, or no series has as many origins.
        DataError: If the split is empty.
    """
    for name, value in (("windows", windows), ("step", step)):
        if value < 1:
            raise ConfigError(f"{name} of a backtest must be 1 or more, got {value}.")
    window_set = data.windows(split)
    if not len(window_set):
        raise DataError(f"The split '{split}' of {terms().file(data.name)} is empty. Choose another split.")
    numbers, distances = select_origins(window_set, windows, step)
    available = int(distances.max()) + 1
    if available < windows:
        raise ConfigError(
            f"The split '{split}' of {terms().file(data.name)} holds at most {available} origins of a series at a "
            f"distance of {step} steps, got windows={windows}. Ask for fewer windows or a smaller step, or hold out "
            f"more by data.{split}_steps."
        )
    # Distances count back from the last origin; windows are numbered forward in time.
    order = windows - 1 - distances
    scorer = ForecastScorer(data, split, quantiles=quantiles, windows=numbers)
    origins = np.array(window_set.origins, dtype=np.int64)[numbers]
    outputs: dict[str, Outputs] = {}
    reports: dict[str, Any] = {"carried": None}
    for kind in ("fresh",) if step % predictor.patch_stride else ("carried", "fresh"):
        rollout = RollingForecast(predictor, data, window_set, step if kind == "carried" else None)
        started = time.perf_counter()
        outputs[kind] = rollout.run(numbers, origins, order)
        seconds = time.perf_counter() - started
        reports[kind] = {
            "metrics": scorer.score(outputs[kind]),
            "seconds": round(seconds, 4),
            "steps_read": rollout.steps_read,
        }
    outputs["seasonal_naive"] = {"mean": scorer.naive_forecast("seasonal_naive")}
    by_window = []
    for number in range(windows):
        rows = order == number
        errors = {f"mae_{kind}": _mae(forecast["mean"][rows], scorer.truth[rows]) for kind, forecast in outputs.items()}
        by_window.append({"window": number + 1, "series": int(rows.sum()), **errors})
    return {
        "windows": windows,
        "step": step,
        "origins": len(numbers),
        "missing_origins": windows * len(np.unique(origins[:, 0])) - len(numbers),
        **reports,
        "by_window": by_window,
    }


def parse(text: str) -> BacktestSettings:
    """Return the settings in a text such as ``windows=8,step=24``.

    Raises:
        ConfigError: If the text has another form.
    """
    expected = "A backtest is written windows=8,step=24"
    settings: dict[str, int] = {}
    for part in text.replace(" ", ",").split(","):
        name, separator, value = part.partition("=")
        if not separator or name not in KEYS or not value.isdecimal() or name in settings:
            raise ConfigError(f"{expected}, got '{text}'.")
        settings[name] = int(value)
    if set(settings) != set(KEYS):
        raise ConfigError(f"{expected}, got '{text}'.")
    return {"windows": settings["windows"], "step": settings["step"]}


def select_origins(window_set: WindowSet, windows: int, step: int) -> tuple[Int64Array, Int64Array]:
    """Return the windows at the last origin of each series and at those ``step`` steps apart before it.

    Returns:
        Numbers of the windows, and for each its distance from the last origin in multiples of ``step``.
    """
    origins = np.array(window_set.origins, dtype=np.int64)
    last = np.full(int(origins[:, 0].max()) + 1, -1, dtype=np.int64)
    # A series has several windows: maximum.at applies every one of the repeated indices.
    np.maximum.at(last, origins[:, 0], origins[:, 1])
    distances = last[origins[:, 0]] - origins[:, 1]
    is_selected = (distances % step == 0) & (distances < windows * step)
    return np.flatnonzero(is_selected), distances[is_selected] // step


def _mae(mean: Array, truth: Array) -> float:
    is_observed = ~np.isnan(truth)
    return float(np.abs(mean.astype(np.float64) - truth)[is_observed].mean()) if is_observed.any() else float("nan")


class RollingForecast:
    """Forecasts at the origins of all series, earliest first.

    Args:
        predictor: Predictor to run.
        data: Data of the windows.
        windows: The windows of a split of it.
        step: Steps between origins, over which the state is carried; None: every origin reads its context.

    Attributes:
        steps_read: Steps that the predictor has read so far, over all series.
    """

    def __init__(
        self,
        predictor: StatefulPredictor,
        data: ForecastData,
        windows: WindowSet,
        step: int | None,
    ) -> None:
        self._predictor = predictor
        self._data = data
        self._windows = windows
        self.steps_read = 0
        self._states: dict[str, Array] = {}
        # Position, in the order of origins, of the state of each series; -1 without a state.
        self._state_positions = np.full(len(data.series), -1, dtype=np.int64)
        # A context of exactly the new steps gathers their inputs, and the covariates that belong to them.
        self._new_steps = None if step is None else windows.with_context(step)

    def run(self, numbers: Int64Array, origins: Int64Array, order: Int64Array) -> Outputs:
        """Return the outputs for windows, in their order.

        Args:
            numbers: (windows,), numbers of the windows.
            origins: (windows, 2), their series and first forecast step.
            order: (windows,), their positions in time, from 0.
        """
        parts: list[tuple[Int64Array, Outputs]] = []
        for position in range(int(order.max()) + 1):
            current = np.flatnonzero(order == position)
            # A series that has no window at the position before starts again from its context.
            has_state = (self._state_positions[origins[current, 0]] == position - 1) & (position > 0)
            for group, is_carried in ((current[~has_state], False), (current[has_state], True)):
                for start in range(0, len(group), BATCH_SIZE):
                    rows = group[start : start + BATCH_SIZE]
                    parts.append((rows, self._advance(numbers[rows], origins[rows], is_carried)))
                    if self._new_steps is not None:
                        self._state_positions[origins[rows, 0]] = position
        rows = np.concatenate([part for part, _ in parts])
        # Parts are in the order of time; the inverse permutation restores that of the windows.
        inverse = np.argsort(rows)
        return {name: np.concatenate([outputs[name] for _, outputs in parts])[inverse] for name in parts[0][1]}

    def _advance(self, numbers: Int64Array, origins: Int64Array, is_carried: bool) -> Outputs:
        """Return the outputs for some windows of one position in time, and store the states after them."""
        state = None
        if not is_carried:
            batch = self._windows.gather(numbers)
        else:
            assert self._new_steps is not None
            batch = self._new_steps.gather(numbers)
            state = {name: values[origins[:, 0]] for name, values in self._states.items()}
            if batch.dt is not None:
                # A window sets its first interval to 1; with a carried state the true interval counts.
                batch.dt[:, 0] = [
                    dt[end - batch.x.shape[1]]
                    for series, end in origins
                    if (dt := self._data.series[series].dt) is not None
                ]
        self.steps_read += int(batch.lengths.sum())
        outputs = self._predictor.run_sequence(batch.x, batch.lengths, state, **optional_inputs(batch))
        if self._new_steps is not None:
            self._store_states(origins[:, 0], self._predictor.next_state(outputs))
        state_names = {state.output for state in self._predictor.states}
        return {name: value for name, value in outputs.items() if name not in state_names}

    def _store_states(self, series: Int64Array, state: Mapping[str, Array]) -> None:
        for name, values in state.items():
            if name not in self._states:
                self._states[name] = np.zeros((len(self._data.series), *values.shape[1:]), dtype=values.dtype)
            self._states[name][series] = values


HORIZONS = 10
"""Length of a free run in horizons."""
MOST_SERIES = 256
"""Most series of a free run; of more, this number of evenly spaced ones."""
DIVERGED = 100.0
"""Distance from the training mean, in training deviations, beyond which a value has diverged."""
GROWN = 2.0
"""Largest ratio of the last tenth's envelope to the first one's at which a run still counts as bounded."""


def check_soak(data: ForecastData) -> None:
    """Refuse a free run of a model that needs columns that are known in advance.

    Raises:
        ConfigError: If there are any.
    """
    columns = [name for name in data.future if name not in calendar_channels(data.calendar)]
    if columns:
        raise ConfigError(
            f"A soak goes beyond the data, where the columns of '{data.name}' that are known in advance "
            f"({', '.join(columns)}) have no values. Train without them to soak."
        )


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


MOST_SAMPLES = 2000
"""Most samples of a series, the last ones of the split."""
MOST_NUMBERS = 2**24
"""Most numbers in the quantiles of all forecasts together; more series have fewer samples each."""


class StreamMonitor(Protocol):
    """Estimates that a server updates with each sample of a stream.

    Attributes:
        false_alarm_rate: Stated bound on the mean number of false alarms a reading; None without a test for drift.
        block: Readings in a block of that test; None without.
        reason: Why there is no test; None if there is one.
    """

    false_alarm_rate: float | None
    block: int | None
    reason: str | None

    def run(self, x: Array, quantiles: Array) -> tuple[Array, int]:
        """Return the adaptive quantiles after each sample of a new stream, and the number of alarms.

        Args:
            x: (samples, stride, channels), raw units.
            quantiles: (samples, horizon, targets, levels), the forecasts after each sample.
        """
        ...


def stream_report(
    predictor: StatefulPredictor, data: ForecastData, split: str, levels: Sequence[float], monitor: StreamMonitor
) -> dict[str, Any]:
    """Stream the series of a split through a forecaster, as a server does, and measure its intervals.

    The model reads the context of the first origin of a series, and after that sample by sample. Estimates begin at
    that origin. A window that is missing from the split ends the stream, and the next one begins another.

    Args:
        predictor: Forecaster with quantiles.
        data: Data of the split.
        split: Split to stream; must have windows.
        levels: Levels of the quantiles, of which two must add up to 1.
        monitor: Estimates of the streams.

    Returns:
        ``series``, ``samples`` and ``readings`` that were streamed; ``coverage``, for each pair of levels ``nominal``,
        ``fixed`` (the model's own intervals) and ``adaptive``, shares of all forecast values that lie inside, and
        ``width``, the mean width of the adaptive intervals over that of the fixed ones; ``alarms``, ``block``,
        ``false_alarm_rate`` (None without a test for drift) and ``drift_reason``.
    """
    windows, stride = data.windows(split), predictor.patch_stride
    all_origins = np.array(windows.origins, dtype=np.int64)
    series_count = len(np.unique(all_origins[:, 0]))
    forecast_size = data.horizon * len(data.targets) * len(levels)
    # All forecasts are held at once, since the monitor gets whole streams.
    limit = max(1, min(MOST_SAMPLES, MOST_NUMBERS // (series_count * forecast_size)))
    numbers, distances = select_origins(windows, limit, stride)
    origins = all_origins[numbers]
    rolling = RollingForecast(predictor, data, windows, stride)
    quantiles = rolling.run(numbers, origins, int(distances.max()) - distances)["quantiles"]
    pairs = symmetric_levels(levels)
    # Of the fixed and of the adaptive intervals.
    inside, widths = np.zeros((len(pairs), 2)), np.zeros((len(pairs), 2))
    observed = 0
    alarms = 0
    for rows in _streams(origins, stride):
        series, ends = data.series[int(origins[rows[0], 0])], origins[rows, 1]
        x = np.stack([series.values[end - stride : end] for end in ends])
        adaptive, new_alarms = monitor.run(x, quantiles[rows])
        alarms += new_alarms
        truth = np.stack([series.values[end : end + data.horizon][:, list(data.target_indices)] for end in ends])
        is_observed = ~np.isnan(truth)
        observed += int(is_observed.sum())
        for position, pair in enumerate(pairs):
            for column, forecast in enumerate((quantiles[rows], adaptive)):
                lower, upper = (forecast[..., level][is_observed] for level in pair)
                values = truth[is_observed]
                inside[position, column] += ((lower <= values) & (values <= upper)).sum()
                # An unbounded interval has no width that could be averaged.
                width = (upper - lower).astype(np.float64)
                widths[position, column] += width[np.isfinite(width)].sum()
    return {
        "series": series_count,
        "samples": len(numbers),
        "readings": len(numbers) * stride,
        "coverage": [
            {
                "nominal": round(levels[upper] - levels[lower], 6),
                "fixed": fixed / observed if observed else None,
                "adaptive": adapted / observed if observed else None,
                "width": adapted_width / width if width else None,
            }
            for (lower, upper), (fixed, adapted), (width, adapted_width) in zip(
                pairs, inside.tolist(), widths.tolist(), strict=True
            )
        ],
        "alarms": None if monitor.false_alarm_rate is None else alarms,
        "block": monitor.block,
        "false_alarm_rate": monitor.false_alarm_rate,
        "drift_reason": monitor.reason,
    }


def _streams(origins: npt.NDArray[np.int64], stride: int) -> list[npt.NDArray[np.int64]]:
    """Return the rows of origins that follow each other in one series, a sample apart, in the order of time."""
    order = np.lexsort((origins[:, 1], origins[:, 0]))
    series, ends = origins[order].T
    is_next = (series[1:] == series[:-1]) & (ends[1:] - ends[:-1] == stride)
    return np.split(order, np.flatnonzero(~is_next) + 1)
