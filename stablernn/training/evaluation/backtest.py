"""Rolling origin: a forecast is made again and again as time goes on, as it is in use.

Between two origins the state is carried: the model sees the new steps only and not its context once more, which is how
a served stream runs. Beside it stands the forecast that reads the whole context afresh at each origin, which is how
models are trained and how ``eval`` scores them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn.data import ForecastData, WindowSet
from stablernn.errors import ConfigError, DataError
from stablernn.training.evaluation.predictors import BATCH_SIZE, Array, Continuing, Outputs, further_inputs
from stablernn.training.evaluation.scorers import ForecastScorer

Int64Array = npt.NDArray[np.int64]

WORDS = ("windows", "step")


def backtest(
    predictor: Continuing,
    data: ForecastData,
    split: str = "test",
    *,
    windows: int,
    step: int,
    quantiles: Sequence[float] | None = None,
    batch_size: int = BATCH_SIZE,
) -> dict[str, Any]:
    """Scores over several origins of each series, the last of which ends with the split.

    Where a window between two origins was dropped because nothing in it or in its context was observed, the state is
    not carried over it: the next origin reads its context.

    Args:
        predictor: What is scored.
        data: What it is scored on.
        split: train, validation or test.
        windows: Origins of each series, 1 or more. A series too short for all of them has fewer, which is counted.
        step: Steps from one origin to the next, 1 or more.
        quantiles: As in :func:`stablernn.training.evaluation.predictors.evaluate`.
        batch_size: Series that are run at once.

    Returns:
        ``windows`` and ``step`` as asked; ``origins``, scored ones over all series; ``missing_origins``, which a series
        did not have; ``carried`` and ``fresh``, each with ``metrics``, ``seconds`` and ``steps_read``;
        ``by_window``, rows of ``window`` (from 1, the earliest), ``series``, ``mae_carried``, ``mae_fresh`` and
        ``mae_seasonal_naive``.

    Raises:
        ConfigError: If windows or step is below 1, step is no whole number of the model's patches, or no series holds
            as many origins.
        DataError: If the split is empty.
    """
    for word, value in (("windows", windows), ("step", step)):
        if value < 1:
            raise ConfigError(f"{word} of a backtest must be 1 or more, got {value}.")
    if step % predictor.patch_stride:
        raise ConfigError(
            f"step of a backtest must be a multiple of {predictor.patch_stride}, the samples of a patch after which "
            f"the model's state moves on, got {step}."
        )
    found = data.windows(split)
    if not len(found):
        raise DataError(f"The split '{split}' of '{data.name}' is empty. Choose another split.")
    numbers, rounds = _choose(found, windows, step)
    held = int(rounds.max()) + 1
    if held < windows:
        raise ConfigError(
            f"The split '{split}' of '{data.name}' holds at most {held} origins of a series at a distance of {step} "
            f"steps, got windows={windows}. Ask for fewer windows or a smaller step, or hold out more by "
            f"data.{split}_steps."
        )
    # Rounds count back from the last origin; windows are numbered forward.
    order = windows - 1 - rounds
    scorer = ForecastScorer(data, split, quantiles=quantiles, windows=numbers)
    chosen = np.array(found.origins, dtype=np.int64)[numbers]
    answers: dict[str, Outputs] = {}
    reports: dict[str, Any] = {}
    for kind in ("carried", "fresh"):
        rolled = _Rolling(predictor, data, found, step if kind == "carried" else None, batch_size)
        began = time.perf_counter()
        answers[kind] = rolled.run(numbers, chosen, order)
        seconds = time.perf_counter() - began
        reports[kind] = {
            "metrics": scorer.score(answers[kind]),
            "seconds": round(seconds, 4),
            "steps_read": rolled.steps_read,
        }
    answers["seasonal_naive"] = {"mean": scorer.naive_forecast("seasonal_naive")}
    by_window = []
    for number in range(windows):
        mine = order == number
        errors = {f"mae_{kind}": _mae(answer["mean"][mine], scorer.truth[mine]) for kind, answer in answers.items()}
        by_window.append({"window": number + 1, "series": int(mine.sum()), **errors})
    return {
        "windows": windows,
        "step": step,
        "origins": len(numbers),
        "missing_origins": windows * len(np.unique(chosen[:, 0])) - len(numbers),
        **reports,
        "by_window": by_window,
    }


def parse(text: str) -> dict[str, int]:
    """What ``windows=8,step=24`` says.

    Raises:
        ConfigError: If it says anything else.
    """
    wanted = "A backtest is written windows=8,step=24"
    found: dict[str, int] = {}
    for part in text.replace(" ", ",").split(","):
        word, separator, value = part.partition("=")
        if not separator or word not in WORDS or not value.isdecimal() or word in found:
            raise ConfigError(f"{wanted}, got '{text}'.")
        found[word] = int(value)
    if set(found) != set(WORDS):
        raise ConfigError(f"{wanted}, got '{text}'.")
    return found


def _choose(found: WindowSet, windows: int, step: int) -> tuple[Int64Array, Int64Array]:
    """Numbers of the windows at the last origin of each series and ``step`` steps apart before it; how many before."""
    origins = np.array(found.origins, dtype=np.int64)
    last = np.full(int(origins[:, 0].max()) + 1, -1, dtype=np.int64)
    np.maximum.at(last, origins[:, 0], origins[:, 1])
    back = last[origins[:, 0]] - origins[:, 1]
    kept = (back % step == 0) & (back < windows * step)
    return np.flatnonzero(kept), back[kept] // step


def _mae(mean: Array, truth: Array) -> float:
    seen = ~np.isnan(truth)
    return float(np.abs(mean.astype(np.float64) - truth)[seen].mean()) if seen.any() else float("nan")


class _Rolling:
    """Runs through the origins of all series, earliest first.

    Args:
        predictor: What is run.
        data: On what.
        found: The windows of a part of it.
        step: Steps between origins, over which the state is carried; None: every origin reads its context.
        batch_size: Series that are run at once.
    """

    def __init__(
        self,
        predictor: Continuing,
        data: ForecastData,
        found: WindowSet,
        step: int | None,
        batch_size: int,
    ) -> None:
        self._predictor = predictor
        self._data = data
        self._found = found
        self._size = batch_size
        self.steps_read = 0
        self._states: dict[str, Array] = {}
        # The place in time to which each series' state belongs.
        self._reached = np.full(len(data.series), -1, dtype=np.int64)
        # Windows whose context is nothing but the new steps bring all that the data has for these.
        self._between = None if step is None else found.with_context(step)

    def run(self, numbers: Int64Array, origins: Int64Array, order: Int64Array) -> Outputs:
        """Outputs for the windows with these numbers, origins and places in time."""
        parts: list[tuple[Int64Array, Outputs]] = []
        for place in range(int(order.max()) + 1):
            at = np.flatnonzero(order == place)
            known = (self._reached[origins[at, 0]] == place - 1) & (place > 0)
            for mine, carried in ((at[~known], False), (at[known], True)):
                for start in range(0, len(mine), self._size):
                    rows = mine[start : start + self._size]
                    parts.append((rows, self._advance(numbers[rows], origins[rows], carried)))
                    if self._between is not None:
                        self._reached[origins[rows, 0]] = place
        rows = np.concatenate([part for part, _ in parts])
        turned = np.argsort(rows)
        return {name: np.concatenate([answer[name] for _, answer in parts])[turned] for name in parts[0][1]}

    def _advance(self, numbers: Int64Array, origins: Int64Array, carried: bool) -> Outputs:
        state = None
        if not carried:
            batch = self._found.gather(numbers)
        else:
            assert self._between is not None
            batch = self._between.gather(numbers)
            state = {name: values[origins[:, 0]] for name, values in self._states.items()}
            if batch.dt is not None:
                # A window counts its first step as one; here it is known how long the way to it was.
                batch.dt[:, 0] = [
                    dt[end - batch.x.shape[1]]
                    for series, end in origins
                    if (dt := self._data.series[series].dt) is not None
                ]
        self.steps_read += int(batch.lengths.sum())
        outputs = self._predictor.run_sequence(batch.x, batch.lengths, state, **further_inputs(batch))
        if self._between is not None:
            self._keep(origins[:, 0], self._predictor.next_state(outputs))
        kept = {name.output for name in self._predictor.states}
        return {name: value for name, value in outputs.items() if name not in kept}

    def _keep(self, series: Int64Array, state: Mapping[str, Array]) -> None:
        for name, values in state.items():
            if name not in self._states:
                self._states[name] = np.zeros((len(self._data.series), *values.shape[1:]), dtype=values.dtype)
            self._states[name][series] = values
