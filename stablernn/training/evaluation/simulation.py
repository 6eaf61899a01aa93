"""Scores of simulations in the units of the data, tests of their residuals, and the linear baseline ARX."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn.data.experiments import SimulationData
from stablernn.errors import TrainingError
from stablernn.training.evaluation.predictors import StepPredictor, predict_steps

Array = npt.NDArray[np.float64]

LAGS = 25
"""Lags of the tests of residuals, as in Ljung 1999."""
BAND = 2.576
"""Quantile of the normal distribution of a band of 99 %."""
LONG_WASHOUT = 50
"""Samples after which many papers score, printed besides the washout of the settings."""
ORDERS = (1, 2, 3, 4, 6, 8, 12)
"""Orders of ARX models that are compared."""
LARGEST_POLE = 0.9999
"""Absolute value to which poles on or outside of the unit circle are moved at most."""


class Residuals:
    """Measured and simulated outputs of a split, of which the first samples of each experiment do not count.

    Args:
        measured: (time, outputs) of each experiment, NaN where not measured.
        simulated: The same.
        inputs: (time, inputs) of each experiment.
    """

    def __init__(self, measured: Sequence[Array], simulated: Sequence[Array], inputs: Sequence[Array]) -> None:
        self.measured = [np.asarray(y, dtype=np.float64) for y in measured]
        self.simulated = [np.asarray(y, dtype=np.float64) for y in simulated]
        self.inputs = inputs

    def rmse(self, output: int, washout: int) -> float:
        """Return the root mean squared error of an output in its unit; NaN without a measured sample."""
        errors = [y[washout:, output] - f[washout:, output] for y, f in zip(self.measured, self.simulated, strict=True)]
        error = np.concatenate(errors)
        error = error[~np.isnan(error)]
        return math.sqrt(float(np.mean(error**2))) if len(error) else math.nan

    def spread(self, output: int, washout: int) -> float:
        """Return the standard deviation of the scored samples of an output."""
        y = np.concatenate([each[washout:, output] for each in self.measured])
        return float(np.nanstd(y)) if not np.isnan(y).all() else math.nan

    def starts_measured(self, washout: int) -> bool:
        """Return True if a sample before the end of a washout was measured."""
        return any(not np.isnan(y[:washout]).all() for y in self.measured)

    def scores(self, outputs: Sequence[str], washout: int) -> dict[str, float]:
        """Return ``rmse``, ``nrmse`` and ``fit`` of each output, and of all the means of the latter two."""
        scores: dict[str, float] = {}
        ratios = []
        for index, name in enumerate(outputs):
            ending = f"_{name}" if len(outputs) > 1 else ""
            rmse, spread = self.rmse(index, washout), self.spread(index, washout)
            ratios.append(rmse / spread if spread else math.nan)
            scores[f"rmse{ending}"] = rmse
            if len(outputs) > 1:
                scores |= {f"nrmse{ending}": ratios[-1], f"fit{ending}": 100 * (1 - ratios[-1])}
        nrmse = float(np.mean(ratios))
        scores |= {"nrmse": nrmse, "fit": 100 * (1 - nrmse)}
        if len(outputs) == 1 and self.starts_measured(LONG_WASHOUT):
            scores |= {"rmse_0": self.rmse(0, 0), f"rmse_{LONG_WASHOUT}": self.rmse(0, LONG_WASHOUT)}
        return scores

    def correlations(self, output: int, washout: int) -> list[Correlation]:
        """Return the autocorrelation of the residuals of an output, and their correlation with each input.

        Ljung, "System Identification", 2nd edition, 1999, section 16.6. Samples that are not scored count as 0.
        """
        errors, count = [], 0
        for y, f in zip(self.measured, self.simulated, strict=True):
            error = y[:, output] - f[:, output]
            error[:washout] = np.nan
            count += int((~np.isnan(error)).sum())
            errors.append(error)
        if count <= LAGS:
            return []
        mean = float(np.nanmean(np.concatenate(errors)))
        centered = [np.nan_to_num(error - mean) for error in errors]
        whiteness = _correlate(centered, centered)
        found = [Correlation("residual", whiteness[LAGS + 1 :], BAND / math.sqrt(count))]
        for index in range(self.inputs[0].shape[1]):
            u = [np.asarray(each[:, index], dtype=np.float64) for each in self.inputs]
            average = float(np.mean(np.concatenate(u)))
            # Only inputs at scored samples count, so that both factors have the same ones.
            scored = [np.where(np.isnan(error), 0, each - average) for error, each in zip(errors, u, strict=True)]
            own = _correlate(scored, scored)
            # Variance of the estimate for a residual that is not white.
            variance = max(0.0, 1 + 2 * float(whiteness[LAGS + 1 :] @ own[LAGS + 1 :])) / count
            found.append(Correlation(str(index), _correlate(centered, scored)[LAGS:], BAND * math.sqrt(variance)))
        return found


@dataclass(frozen=True)
class Correlation:
    """A correlation of residuals.

    Attributes:
        name: ``residual``, or the number of an input.
        values: By lag, from 1 on with itself, from 0 on with an input.
        band: Half width of the band that holds 99 % of the values if there is none.
    """

    name: str
    values: Array
    band: float

    @property
    def share_outside(self) -> float:
        """Share of the lags outside of the band."""
        return float(np.mean(np.abs(self.values) > self.band))


def _correlate(first: Sequence[Array], second: Sequence[Array]) -> Array:
    """Return the sum over experiments of first(t + k) second(t) for lags k from -LAGS to LAGS, normalized."""
    total = np.zeros(2 * LAGS + 1)
    for a, b in zip(first, second, strict=True):
        for lag in range(-LAGS, LAGS + 1):
            shift = abs(lag)
            left, right = (a, b) if lag >= 0 else (b, a)
            total[lag + LAGS] += left[shift:] @ right[: len(right) - shift] if shift < len(a) else 0.0
    scale = math.sqrt(sum(float(a @ a) for a in first) * sum(float(b @ b) for b in second))
    return total / scale if scale else total


class SimulationScorer:
    """One split of experiments, to score any number of predictors on.

    Args:
        data: Data to score on.
        split: train, validation or test.
        fit_linear: Fits the baseline ``state_space`` to the training split: returns its function from inputs
            (time, inputs) to outputs (time, outputs).

    Attributes:
        source: The split.
        headline: The metric that selects the best weights.
        naive: Scores of the baselines, by their name; empty before the first predictor has been scored.
    """

    def __init__(
        self, data: SimulationData, split: str, fit_linear: Callable[[SimulationData], Callable[[Array], Array]]
    ) -> None:
        self._data = data
        self._fit_linear = fit_linear
        self.source = data.split(split)
        self.headline = data.headline
        self.naive: dict[str, dict[str, float]] = {}

    @property
    def samples(self) -> int:
        """Experiments of the split."""
        return len(self.source)

    def residuals(self, predictor: StepPredictor) -> Residuals:
        """Return measured outputs and those that a predictor simulates."""
        return self._residuals(predict_steps(predictor, self.source, len(self._data.outputs)))

    def score_of(self, predictor: StepPredictor) -> dict[str, Any]:
        """Return the scores of a predictor, and below their names those of baselines.

        ``whiteness`` and ``input_correlation`` are the shares of lags at which the residuals correlate with
        themselves and with the inputs by more than a band of 99 %, the largest over the outputs.
        """
        data, residuals = self._data, self.residuals(predictor)
        scores: dict[str, Any] = residuals.scores(data.outputs, data.washout)
        found = [each for k in range(len(data.outputs)) for each in residuals.correlations(k, data.washout)]
        white = [each.share_outside for each in found if each.name == "residual"]
        crossed = [each.share_outside for each in found if each.name != "residual"]
        if found:
            scores |= {"whiteness": max(white), "input_correlation": max(crossed)}
        # Baselines are the same for every predictor.
        self.naive = self.naive or self._score_baselines()
        return {**scores, **self.naive}

    def _residuals(self, simulated: Sequence[Array]) -> Residuals:
        samples = [self.source.gather([number]) for number in range(len(self.source))]
        return Residuals([each.y[0] for each in samples], simulated, [each.x[0] for each in samples])

    def _score_baselines(self) -> dict[str, dict[str, float]]:
        data = self._data
        u = [self.source.gather([number]).x[0].astype(np.float64) for number in range(len(self.source))]
        records = [(np.asarray(x, np.float64), np.asarray(y, np.float64)) for x, y in data.training_sequences()]
        mean = np.nanmean(np.concatenate([y for _, y in records]), axis=0)
        simulations = {"mean": [np.broadcast_to(mean, (len(x), len(mean))) for x in u]}
        models = [fit_arx([(x, y[:, k]) for x, y in records]) for k in range(len(data.outputs))]
        if all(model is not None for model in models):
            simulations["arx"] = [np.stack([model.simulate(x) for model in models if model], axis=1) for x in u]
        # Records that are too short for it are too short for a comparison with it.
        with suppress(TrainingError):
            simulations["state_space"] = list(map(self._fit_linear(data), u))
        return {
            name: self._residuals(simulated).scores(data.outputs, data.washout)
            for name, simulated in simulations.items()
        }


@dataclass(frozen=True)
class Arx:
    """A linear model of an output from its past and the inputs, standardized by mean and deviation.

    ``y_t = a_1 y_(t-1) + ... + a_n y_(t-n) + sum over inputs of b_0 u_t + ... + b_n u_(t-n) + c``

    Attributes:
        a: (order,).
        b: (inputs, order + 1).
        c: The constant.
        first: First output, from which a simulation starts at rest.
        center: Mean of inputs (inputs,) and of the output.
        scale: Their deviations.
    """

    a: Array
    b: Array
    c: float
    first: float
    center: tuple[Array, float]
    scale: tuple[Array, float]

    def simulate(self, inputs: Array) -> Array:
        """Return the output (time,) from inputs (time, inputs) alone; what was before the first is like the first."""
        u = (inputs - self.center[0]) / self.scale[0]
        order = len(self.a)
        padded = np.concatenate([np.repeat(u[:1], order, axis=0), u])
        drive = self.c + sum(np.convolve(padded[:, i], self.b[i])[order : len(padded)] for i in range(u.shape[1]))
        return _respond(self.a, np.asarray(drive), self.first) * self.scale[1] + self.center[1]


def fit_arx(records: Sequence[tuple[Array, Array]]) -> Arx | None:
    """Fit by least squares a model whose order has the least error of simulation at the end of the records.

    The last fifth of each record is simulated, from its beginning, by models that were fitted to the rest; the best
    order is fitted to all. Poles outside of the unit circle are reflected, and the inputs fitted again.

    Args:
        records: Inputs (time, inputs) and an output (time,), NaN where not measured.

    Returns:
        The model; None if the records are too short for any.
    """
    early = [(u, np.where(np.arange(len(y)) < 0.8 * len(y), y, np.nan)) for u, y in records]
    best, least = None, math.inf
    # Errors below this share of the variance are rounding.
    rounding = 1e-9 * float(np.nanvar(np.concatenate([y for _, y in records])))
    for order in ORDERS:
        model = _fit_order(early, order)
        if model is None:
            break
        errors = [(y - model.simulate(u))[int(0.8 * len(y)) :] for u, y in records]
        error = float(np.nanmean(np.concatenate(errors) ** 2))
        # Of equals the lowest order.
        if error + rounding < 0.999 * least:
            best, least = order, error
    return None if best is None else _fit_order(records, best)


def _fit_order(records: Sequence[tuple[Array, Array]], order: int) -> Arx | None:
    inputs = np.concatenate([u for u, _ in records])
    measured = np.concatenate([y for _, y in records])
    center = inputs.mean(axis=0), float(np.nanmean(measured))
    # A channel that never changes has no deviation.
    deviations = inputs.std(axis=0)
    scale = np.where(deviations > 0, deviations, 1.0), float(np.nanstd(measured)) or 1.0
    parts = [((u - center[0]) / scale[0], (y - center[1]) / scale[1]) for u, y in records]
    rows = [_regressors(u, y, order) for u, y in parts if len(y) > order]
    if not rows:
        return None
    design = np.concatenate([x for x, _ in rows])
    target = np.concatenate([y for _, y in rows])
    complete = ~np.isnan(target) & ~np.isnan(design).any(axis=1)
    if complete.sum() < 2 * design.shape[1]:
        return None
    weights: Array = np.asarray(np.linalg.lstsq(design[complete], target[complete], rcond=None)[0], dtype=np.float64)
    a, b, c = weights[:order], weights[order:-1].reshape(inputs.shape[1], order + 1), float(weights[-1])
    starts = [y[np.flatnonzero(~np.isnan(y))[0]] for _, y in parts if not np.isnan(y).all()]
    model = Arx(a, b, c, float(np.mean(starts)), center, scale)
    stable = _stabilize(a)
    return model if stable is a else _refit_inputs(model, stable, parts)


def _regressors(u: Array, y: Array, order: int) -> tuple[Array, Array]:
    """Return past outputs, inputs and 1, (time - order, columns), and the output."""
    steps = len(y) - order
    past = [y[order - lag : order - lag + steps] for lag in range(1, order + 1)]
    driven = [u[order - lag : order - lag + steps, i] for i in range(u.shape[1]) for lag in range(order + 1)]
    return np.stack([*past, *driven, np.ones(steps)], axis=1), y[order:]


def _stabilize(a: Array) -> Array:
    """Return coefficients whose poles lie inside of the unit circle; the same object if they do already."""
    poles = np.roots(np.concatenate([[1.0], -a]))
    sizes = np.abs(poles)
    if not (sizes > LARGEST_POLE).any():
        return a
    inside = np.where(sizes > 1, 1 / np.maximum(sizes, 1), sizes)
    stable = np.poly(poles / np.maximum(sizes, 1e-300) * np.minimum(inside, LARGEST_POLE))
    return np.asarray(-np.real(stable)[1:], dtype=np.float64)


def _refit_inputs(model: Arx, a: Array, parts: Sequence[tuple[Array, Array]]) -> Arx:
    """Return the model with other poles, and the weights of the inputs that fit the simulated output best."""
    order = len(a)
    columns, targets = [], []
    for u, y in parts:
        padded = np.concatenate([np.repeat(u[:1], order, axis=0), u])
        lagged = [padded[order - lag : len(padded) - lag, i] for i in range(u.shape[1]) for lag in range(order + 1)]
        columns.append(np.stack([_respond(a, drive, 0.0) for drive in (*lagged, np.ones(len(u)))], axis=1))
        targets.append(y - _respond(a, np.zeros(len(u)), model.first))
    design, target = np.concatenate(columns), np.concatenate(targets)
    known = ~np.isnan(target)
    weights = np.linalg.lstsq(design[known], target[known], rcond=None)[0]
    b = np.asarray(weights[:-1]).reshape(model.b.shape)
    return Arx(a, b, float(weights[-1]), model.first, model.center, model.scale)


def _respond(a: Array, drive: Array, first: float) -> Array:
    """Return ``y_t = a_1 y_(t-1) + ... + a_n y_(t-n) + drive_t`` (time,), the outputs before the first one constant."""
    # Takes a tenth of a second, which other tasks need not wait for.
    from scipy.signal import lfilter, lfiltic

    denominator = np.concatenate([[1.0], -a])
    y, _ = lfilter([1.0], denominator, drive, zi=lfiltic([1.0], denominator, np.full(len(a), first)))
    return np.asarray(y)
