"""Backtests by rolling origin: forecasts at several origins of each series, as time goes on.

Between two origins the state is carried: the model reads the new steps only, not its context again, as a served stream
does. The result is compared with forecasts that read the whole context at each origin, as in training and in ``eval``.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from stablernn.data import ForecastData, WindowSet
from stablernn.errors import ConfigError, DataError
from stablernn.terms import terms
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
    batch_size: int = BATCH_SIZE,
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
        batch_size: Series per run.

    Returns:
        ``windows`` and ``step`` as requested; ``origins``, the number of scored ones over all series;
        ``missing_origins``, the number of those that series were too short for; ``carried`` and ``fresh``, each with
        ``metrics``, ``seconds`` and ``steps_read``;
        ``by_window``, rows of ``window`` (from 1, the earliest), ``series``, ``mae_carried``, ``mae_fresh`` and
        ``mae_seasonal_naive``.

    Raises:
        ConfigError: If windows or step is below 1, step is no whole number of the model's patches, or no series has
            as many origins.
        DataError: If the split is empty.
    """
    _check_settings(predictor, windows, step)
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
    reports: dict[str, Any] = {}
    for kind in ("carried", "fresh"):
        rollout = RollingForecast(predictor, data, window_set, step if kind == "carried" else None, batch_size)
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


def _check_settings(predictor: StatefulPredictor, windows: int, step: int) -> None:
    """Refuse settings that no data would fit.

    Raises:
        ConfigError: If windows or step is below 1, or step is no whole number of the model's patches.
    """
    for name, value in (("windows", windows), ("step", step)):
        if value < 1:
            raise ConfigError(f"{name} of a backtest must be 1 or more, got {value}.")
    if step % predictor.patch_stride:
        raise ConfigError(
            f"step of a backtest must be a multiple of {predictor.patch_stride}, the samples of a patch after which "
            f"the model's state moves on, got {step}."
        )


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
        batch_size: Series per run.

    Attributes:
        steps_read: Steps that the predictor has read so far, over all series.
    """

    def __init__(
        self,
        predictor: StatefulPredictor,
        data: ForecastData,
        windows: WindowSet,
        step: int | None,
        batch_size: int,
    ) -> None:
        self._predictor = predictor
        self._data = data
        self._windows = windows
        self._batch_size = batch_size
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
                for start in range(0, len(group), self._batch_size):
                    rows = group[start : start + self._batch_size]
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
