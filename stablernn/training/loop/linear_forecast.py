"""Linear forecasts: weights from cross-products that all candidates share, and the choice by rolling origins.

A forecast is the mean of the context plus a linear map of the values' distances from it. It has no intercept, so that
the scale of a window cancels in it: to divide a window by its scale before the regression only weights its row. After
training, the gate decides on validation windows between the skip and the trained layers.

Tashman, "Out-of-sample tests of forecasting accuracy", International Journal of Forecasting, 2000 (rolling origins).
Hastie, Tibshirani and Friedman, "The Elements of Statistical Learning", 2009, section 7.10 (the simplest model within a
standard error of the best).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import sliding_window_view
from threadpoolctl import threadpool_limits
from torch import Tensor

from stablernn.data.arrays import Samples
from stablernn.data.messages import format_names
from stablernn.data.table.frequency import parse_frequency
from stablernn.data.types import ForecastData, LinearForecast, Prior
from stablernn.data.windows import WindowSet, batch_evenly_spaced, evenly_spaced
from stablernn.nn.models import Forecaster
from stablernn.training.evaluation.metrics import seasonal_scale
from stablernn.training.loop.minibatches import model_inputs
from stablernn.training.settings.config import ModelConfig
from stablernn.training.settings.defaults import SKIP_SETTINGS

_LOG = logging.getLogger("stablernn.training")
Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]

LONGEST = 768
"""Longest context that is tried, in steps: the regression solves for as many coefficients a step ahead."""
MOST_ROWS = 60_000
"""Training windows of a regression at most, evenly spread over all of them."""
ROW_WORK = 2e10
"""Rows times squared coefficients of a regression at most: half a second of a core."""
SCORED_WINDOWS = 2_000
"""Windows that candidates are compared on at most, evenly spread over those of all folds."""
FOLDS = 4
"""Times at which the origin of the comparison rolls on, and all candidates are fitted again."""
SCORED_SHARE = 0.4
"""Share of the training windows, the latest of each series, that candidates are compared on."""
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Ridge penalties that are tried."""
SCORED_WORK = 1e10
"""Products of coefficients, steps, candidates and windows that a comparison takes at most, if the windows are no fewer
than :data:`LEAST_WINDOWS`: a second of a core."""
LEAST_WINDOWS = 300
ALLOWED_ERRORS = 0.5
"""Standard errors by which a shorter context may be worse than the best. A whole one takes contexts that are too short:
of eleven small sets it was worse in six, by up to a half, and better in two."""
FIXED = 1e6
"""Penalty from which on the weights are those that the penalty pulls to."""
_LEAST_SCALE = 0.05
"""Least scale of a row, as a share of its series', and of a series, as a share of its deviation."""
_DIGITS = 6
"""Digits of a score that count: the last ones depend on the machine."""


class Rows:
    """Training windows of all targets as rows of a regression.

    Args:
        data: The series, of which the training steps alone are read.
        log: Whether values are replaced by their logarithms.

    Attributes:
        horizon: Steps of the truths.
        positions: Place of the first step ahead of each row among the values of all series, one after another.
        columns: Number of the column, a target of a series, of each row.
        history: Steps of each row that can be its context: from the first observed value on.
        back: Origins of the column after each row.
        is_complete: Whether all truths of a row are observed.
    """

    def __init__(self, data: ForecastData, *, log: bool) -> None:
        self.horizon = data.horizon
        self.log = log
        targets = list(data.target_indices)
        training = [values[:, targets].astype(np.float64) for values in data.training_values()]
        units = np.concatenate([seasonal_scale(values, data.season) for values in training])
        columns = [column for values in training for column in values.T]
        filled = [_filled(column, log=log) for column in columns]
        ends = np.cumsum([len(column) for column in columns])
        first = np.array([int(np.isnan(column).sum()) for column in filled], dtype=np.int64)
        self._truth = np.concatenate(columns)
        self._non_negative = is_non_negative(data)
        self._values = np.concatenate(filled)
        self._scales = np.array([_scale(column, data.season) for column in filled])
        # MASE of a series without a unit says nothing, and one that repeats itself would count for all others.
        deviations = np.array([np.nanstd(column) if np.isfinite(column).any() else 0.0 for column in columns])
        self._units = np.where(units > 0, np.maximum(units, _LEAST_SCALE * deviations), np.nan)
        starts = ends - [len(column) for column in columns] + first
        count = int(np.maximum(ends - self.horizon - starts, 0).sum())
        stride = max(1, math.ceil(count / (4 * MOST_ROWS)))
        parts = [np.arange(end - self.horizon, start, -stride)[::-1] for start, end in zip(starts, ends, strict=True)]
        self.positions = np.concatenate(parts)
        self.columns = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
        self.history = self.positions - starts[self.columns]
        self.back = ends[self.columns] - self.horizon - self.positions
        observed = np.concatenate([[0], np.cumsum(~np.isnan(self._truth))])
        counts = observed[self.positions + self.horizon] - observed[self.positions]
        self.is_complete, self.is_scored = counts == self.horizon, counts > 0

    def origins(self, rows: Int64Array) -> Int64Array:
        """Return column and time of each row, (rows, 2), as :func:`standard_error` clusters them."""
        return np.stack([self.columns[rows], self.positions[rows]], axis=1)

    def scales(self, rows: Int64Array) -> Float64Array:
        """Return the mean absolute seasonal change of each row's series, (rows,), by which a regression divides it."""
        return np.asarray(self._scales[self.columns[rows]])

    def features(self, rows: Int64Array, context: int) -> Float64Array:
        """Return the last ``context`` values before each origin, as distances from the last one, (rows, context)."""
        # Rows with a shorter history read what lies before it, which their cross-products leave out.
        first = np.maximum(self.positions[rows] - context, 0)
        return np.asarray(sliding_window_view(self._values, context)[first] - self.last(rows)[:, None])

    def last(self, rows: Int64Array) -> Float64Array:
        """Return the last value before each origin, (rows,)."""
        return np.asarray(self._values[self.positions[rows] - 1])

    def changes(self, rows: Int64Array) -> Float64Array:
        """Return the values ahead of each origin as distances from the last one before it, (rows, horizon)."""
        ahead = sliding_window_view(self._values, self.horizon)[self.positions[rows]]
        return np.asarray(ahead - self.last(rows)[:, None])

    def errors(self, rows: Int64Array, changes: Float64Array) -> Float64Array:
        """Return the mean absolute error of each row's forecast in units of its series, (rows,); NaN without a unit."""
        forecast = self.last(rows)[:, None] + changes
        if self.log:
            # What overflows is an error of any size.
            forecast = np.exp(np.minimum(forecast, 300.0))
        if self._non_negative:
            forecast = np.maximum(forecast, 0.0)
        distance = np.abs(forecast - sliding_window_view(self._truth, self.horizon)[self.positions[rows]])
        return np.asarray(np.nanmean(distance, axis=1) / self._units[self.columns[rows]])


def _scale(column: Float64Array, season: int) -> float:
    """Return the mean absolute seasonal change of filled values; 1 if there is none."""
    lag = season if len(column) > 2 * season else 1
    change = np.nan_to_num(np.abs(column[lag:] - column[:-lag]))
    return max(float(change.mean()), _LEAST_SCALE * float(np.nanstd(column))) if change.any() else 1.0


def _filled(column: Float64Array, *, log: bool) -> Float64Array:
    """Return a column with its last observed value in place of a missing one; NaN before the first."""
    if np.isnan(column).any():
        latest = np.maximum.accumulate(np.where(np.isnan(column), -1, np.arange(len(column))))
        column = np.where(latest >= 0, column[latest], np.nan)
    return np.asarray(np.log(column)) if log else column


@dataclass(frozen=True)
class CrossProducts:
    """Sums over rows of the products of their values with each other and with the truths.

    All values are distances from the last one of a row, in any unit.

    Attributes:
        gram: ``(context, context)``.
        moments: ``(context, horizon)``.
    """

    gram: Float64Array
    moments: Float64Array

    @classmethod
    def of(cls, rows: Rows, numbers: Int64Array, context: int) -> CrossProducts:
        """Return those of rows with a context of so many steps."""
        gram, moments = np.zeros((context, context)), np.zeros((context, rows.horizon))
        for start in range(0, len(numbers), _BATCH):
            part = numbers[start : start + _BATCH]
            scales = rows.scales(part)[:, None]
            features = rows.features(part, context) / scales
            gram += features.T @ features
            moments += features.T @ (rows.changes(part) / scales)
        return cls(gram, moments)

    def __add__(self, other: CrossProducts) -> CrossProducts:
        return CrossProducts(self.gram + other.gram, self.moments + other.moments)

    def shortened(self, context: int) -> CrossProducts:
        """Return those of the last ``context`` values."""
        return CrossProducts(self.gram[-context:, -context:], self.moments[-context:])


class Regression:
    """Ridge regressions of the truths on the values of a window, as distances from the mean of the window.

    Args:
        products: Cross-products of distances from any value of the window.
    """

    def __init__(self, products: CrossProducts) -> None:
        self._context, self._horizon = products.moments.shape
        column = products.gram.mean(axis=1, keepdims=True)
        gram = products.gram - column
        self._gram = gram - gram.mean(axis=0)
        moments = products.moments - column
        self._moments = moments - moments.mean(axis=0)
        self._size = float(np.trace(self._gram)) / self._context
        self._rests: dict[Prior, tuple[Float64Array, Float64Array]] = {}

    def weights(self, strength: float, priors: Sequence[Prior], seasons: Sequence[int] = ()) -> list[Float64Array]:
        """Return the weights of the regression that is pulled to each prior, (horizon, context) each.

        Args:
            strength: Penalty on the squared distance from the prior, as a share of the mean square of a value's
                distance from the mean of its window.
            priors: Forecasts without parameters, see :func:`prior_weights`.
            seasons: Seasons around whose multiples values are read; all of the window are, if there are none.
        """
        weights, rests = zip(*map(self._prior, priors), strict=True)
        if strength >= FIXED or not self._size > 0:
            return list(weights)
        penalty, steps = strength * self._size, self._horizon
        # (context, priors * horizon)
        rest = np.concatenate(rests, axis=1)
        mask = seasonal_mask(seasons, self._context, steps)
        if mask is None:
            change = self._solve(np.arange(self._context), penalty, rest)
        else:
            change = np.zeros_like(rest)
            for step in range(steps):
                index = np.flatnonzero(mask[step])
                change[index, step::steps] = self._solve(index, penalty, rest[index, step::steps])
        return [prior + change[:, number * steps :][:, :steps].T for number, prior in enumerate(weights)]

    def _solve(self, index: Int64Array, penalty: float, right: Float64Array) -> Float64Array:
        block = self._gram[np.ix_(index, index)]
        block[np.diag_indices(len(index))] += penalty
        return np.asarray(np.linalg.solve(block, right))

    def _prior(self, prior: Prior) -> tuple[Float64Array, Float64Array]:
        """Return the weights of a prior, and the products of values with what it leaves of the truths."""
        if prior not in self._rests:
            weights = prior_weights(prior, self._context, self._horizon)
            used = np.flatnonzero(weights.any(axis=0))
            self._rests[prior] = weights, self._moments - self._gram[:, used] @ weights[:, used].T
        return self._rests[prior]


_BATCH = 4096


def prior_weights(prior: Prior, context: int, horizon: int) -> Float64Array:
    """Return the weights of a forecast without parameters, (horizon, context).

    Args:
        prior: ``mean``: that of the window. A number of steps: the value so many steps before, of the latest such
            season; 1 is the last value. ``drift``: the straight line through the first value and the last.
        context: Steps of the window.
        horizon: Steps ahead.
    """
    weights, steps = np.zeros((horizon, context)), np.arange(horizon)
    if prior == "drift":
        slope = (steps + 1) / (context - 1)
        weights[:, -1] = 1 + slope
        weights[:, 0] -= slope
    elif prior != "mean":
        weights[steps, context - int(prior) + steps % int(prior)] = 1.0
    return weights


def skip_weights(data: ForecastData, linear: LinearForecast, horizon: int) -> Float64Array:
    """Return the weights of a linear forecast by all training windows, (horizon, context).

    Args:
        data: The series; the context is its context length.
        linear: What the map reads, and how its weights are solved for.
        horizon: Steps ahead, the first ones of the data's.
    """
    context = linear.context_length
    rows = Rows(data, log=linear.log)
    complete = np.flatnonzero(rows.is_complete & (rows.history >= context))
    numbers = complete[evenly_spaced(len(complete), most_rows(context))]
    regression = Regression(CrossProducts.of(rows, numbers, context))
    return regression.weights(linear.strength, [linear.prior], linear.seasons)[0][:horizon]


def most_rows(context: int) -> int:
    """Return the number of rows that a regression on so many values takes at most."""
    return int(min(MOST_ROWS, ROW_WORK / context**2))


# Choice


def choose_linear_forecast(data: ForecastData, model: ModelConfig) -> ForecastData:
    """Return the data with the linear forecast, and so the context length, that forecasts its latest windows best.

    Candidates are all combinations of what is left open: the context, logarithms, and the penalty with what it pulls
    to, of which the strongest is a forecast without parameters. Each is fitted to the windows before each fold of the
    training steps and scored on that fold, by the mean absolute error in units of each series' mean absolute seasonal
    change (MASE). Of each context the candidate with the least error counts; of all contexts whose error exceeds the
    least by no more than half its standard error the shortest is taken. The comparison stands in
    ``notes["linear_forecast"]``.

    Seasons and the cut at zero are read once from all training steps, and not again before each fold: they say which
    candidates there are, and hold for all of them alike. A search, which compares this forecast with others, cuts its
    parts first.

    Args:
        data: The series; their validation and test steps are not read.
        model: Settings, before they are resolved; those that are set narrow the candidates.

    Returns:
        The data with :attr:`~stablernn.data.types.ForecastData.linear` and its context length; as they are where the
        settings leave nothing open, or the context is shorter than two steps.
    """
    # Logarithms of what has none are refused with the scaling.
    if not _is_open(data, model) or (model.log and signed_channels(data)):
        return data
    candidates = _Candidates(data, model)
    if not candidates.contexts:
        return data
    # The same sums on every machine; and processes of a search with as many threads as cores each wait for each other.
    with threadpool_limits(1, user_api="blas"):
        table, linear = _compare(data, candidates)
    note = {"chosen": asdict(linear), "tried": table, "signed_channels": signed_channels(data)}
    context = data.context_length if model.window is not None else linear.context_length
    data = replace(data, context_length=context, linear=linear, notes={**data.notes, "linear_forecast": note})
    data.notes["windows"] = data.window_counts()
    _LOG.info("%s", describe_choice(note))
    return data


def _compare(data: ForecastData, candidates: _Candidates) -> tuple[list[dict[str, Any]], LinearForecast]:
    """Return a table of contexts with the best candidate of each, and the chosen candidate."""
    rows = {log: Rows(data, log=log) for log in candidates.logs}
    groups = {context: {log: list(candidates.of(context, log=log)) for log in rows} for context in candidates.contexts}
    counts = [sum(map(len, group.values())) for group in groups.values()]
    folds = Folds(rows[candidates.logs[0]], candidates.contexts, counts)
    products = {log: folds.cross_products(rows[log]) for log in rows}
    best = []
    for context, group in groups.items():
        errors = [folds.errors(rows[log], names, products[log][context]) for log, names in group.items()]
        best += _best_of([name for names in group.values() for name in names], np.concatenate(errors))
    # Series may be too short for a comparison.
    return _shortest_of(best, folds.origins(rows[candidates.logs[0]]), data.horizon) or ([], candidates.simplest())


def describe_choice(note: Mapping[str, Any]) -> str:
    """Return a sentence on ``notes["linear_forecast"]``."""
    linear, signed = note["chosen"], note["signed_channels"]
    tried = ", ".join(
        f"{row['context_length']} ({row['mase']:.4g} to {row['best_mase']:.4g})"
        for row in note["tried"]
        if row["mase"] is not None
    )
    values = "logarithms of values" if linear["log"] else "values"
    return (
        f"The linear forecast reads {linear['context_length']} {values}, chosen by validation; MASE of each context to "
        f"that of the best on the same windows: {tried or 'not compared, too few windows'}."
        + (f" Logarithms are not tried, for values of 0 or less in: {format_names(signed)}." if signed else "")
    )


def _is_open(data: ForecastData, model: ModelConfig) -> bool:
    """Return True if settings, before they are resolved or after it, leave something of the linear forecast open."""
    if data.has_default_context and model.window is None:
        return True
    if model.scaling not in (None, "context"):
        return False
    keys = ["log"] if model.skip == "none" else ["log", *SKIP_SETTINGS]
    return any(getattr(model, key) is None for key in keys)


def _best_of(candidates: Sequence[LinearForecast], errors: Float64Array) -> list[tuple[LinearForecast, Float64Array]]:
    """Return the candidate with the least error on the windows that all are scored on; none without such windows.

    Args:
        candidates: The candidates of a context.
        errors: ``(candidates, windows)``, NaN where one was not scored.
    """
    is_scored = ~np.isnan(errors)
    # Where no regression has rows to be fitted to, forecasts without parameters are compared alone.
    numbers = np.flatnonzero(is_scored.any(axis=1))
    if not len(numbers):
        return []
    shared = is_scored[numbers].all(axis=0)
    number = min(numbers.tolist(), key=lambda number: round(float(errors[number, shared].mean()), _DIGITS))
    return [(candidates[number], np.where(shared, errors[number], np.nan))]


def _shortest_of(
    best: Sequence[tuple[LinearForecast, Float64Array]], origins: Int64Array, horizon: int
) -> tuple[list[dict[str, Any]], LinearForecast] | None:
    """Return a table of contexts, the shortest first, and of those as good as the best the shortest; None for none.

    A longer context is scored on fewer windows; two are compared on those that both are scored on. ``mase`` in the
    table is that of the context, and ``best_mase`` that of the best one, on such windows.
    """
    if not best:
        return None

    def means(first: Float64Array, second: Float64Array) -> tuple[float, float]:
        shared = ~np.isnan(first - second)
        return (float(first[shared].mean()), float(second[shared].mean())) if shared.any() else (math.nan, math.nan)

    least = best[0]
    for other in best[1:]:
        error, reference = means(other[1], least[1])
        least = other if error < reference * (1 - 10.0**-_DIGITS) else least
    table: list[dict[str, Any]] = []
    shortest: LinearForecast | None = None
    for candidate, errors in best:
        differences = errors - least[1]
        shared = ~np.isnan(differences)
        row: dict[str, Any] = asdict(candidate) | {"windows": int(shared.sum())}
        row |= {"mase": None, "best_mase": None, "standard_error": None}
        if shared.any():
            error, reference = means(errors, least[1])
            noise = standard_error(differences[shared], origins[shared], horizon)
            row |= {"mase": error, "best_mase": reference, "standard_error": noise}
            # Too few windows to know their noise are no reason for a shorter one.
            if shortest is None and error - reference <= ALLOWED_ERRORS * (noise or 0.0):
                shortest = candidate
        table.append(row)
    return table, shortest or least[0]


class Folds:
    """Folds of the latest training windows: each is scored by fits to the windows that end before it begins.

    Args:
        rows: The training windows.
        contexts: Lengths of the context, the shortest first.
        candidates: Number of candidates of each context.
    """

    def __init__(self, rows: Rows, contexts: Sequence[int], candidates: Sequence[int]) -> None:
        self._contexts = contexts
        usable = rows.history >= contexts[0]
        per_column = np.zeros(int(rows.columns.max(initial=0)) + 1)
        np.maximum.at(per_column, rows.columns[usable], rows.back[usable] + 1)
        counts = per_column[per_column > 0]
        self._zone = max(1, round(SCORED_SHARE * float(np.median(counts)))) if len(counts) else 1
        scored = np.flatnonzero(usable & rows.is_scored & (rows.back < self._zone))
        work = rows.horizon * sum(context * count for context, count in zip(contexts, candidates, strict=True))
        limit = int(min(SCORED_WINDOWS, max(LEAST_WINDOWS, SCORED_WORK / work)))
        self.scored = scored[evenly_spaced(len(scored), limit)]
        self._fold = rows.back[self.scored] * FOLDS // self._zone
        # Origins after those that the fit for a fold reads: the oldest fold first.
        last = [math.ceil((fold + 1) * self._zone / FOLDS) - 1 for fold in reversed(range(FOLDS))]
        self._limits = np.array(last) + rows.horizon
        fitted = np.flatnonzero(usable & rows.is_complete & (rows.back >= self._limits[-1]))
        self._fitted = fitted[evenly_spaced(len(fitted), most_rows(contexts[-1]))]

    def origins(self, rows: Rows) -> Int64Array:
        """Return column and time of the scored windows, (windows, 2)."""
        return rows.origins(self.scored)

    def cross_products(self, rows: Rows) -> dict[int, list[tuple[int, CrossProducts]]]:
        """Return number and cross-products of the rows that the fit for each fold reads, by context."""
        numbers, contexts = self._fitted, self._contexts
        # The first fold whose fit reads a row, and the longest context that it has.
        first = (rows.back[numbers, None] < self._limits).sum(axis=1)
        longest = np.searchsorted(contexts, rows.history[numbers], side="right") - 1
        totals: dict[int, list[tuple[int, CrossProducts]]] = {context: [] for context in contexts}
        for fold in range(FOLDS):
            count, total = 0, None
            for position, context in reversed(list(enumerate(contexts))):
                part = numbers[(first == fold) & (longest == position)]
                products = CrossProducts.of(rows, part, context)
                total = products if total is None else products + total.shortened(context)
                count += len(part)
                before = totals[context][-1:]
                totals[context].append((count + before[0][0], total + before[0][1]) if before else (count, total))
        return totals

    def errors(
        self, rows: Rows, candidates: Sequence[LinearForecast], products: Sequence[tuple[int, CrossProducts]]
    ) -> Float64Array:
        """Return the errors of candidates with the same context, (candidates, windows)."""
        errors = np.full((len(candidates), len(self.scored)), np.nan)
        context = candidates[0].context_length
        for position, (count, sums) in enumerate(products):
            inside = np.flatnonzero((self._fold == FOLDS - 1 - position) & (rows.history[self.scored] >= context))
            if not len(inside):
                continue
            numbers = self.scored[inside]
            features = rows.features(numbers, context)
            for number, weights in _fits(candidates, sums, is_fitted=count > 0):
                linear = weights + (1 - weights.sum(axis=1, keepdims=True)) / context
                errors[number, inside] = rows.errors(numbers, features @ linear.T)
        return errors


def _fits(
    candidates: Sequence[LinearForecast], products: CrossProducts, *, is_fitted: bool
) -> Iterator[tuple[int, Float64Array]]:
    """Yield number and weights, (horizon, context), of the candidates that can be fitted."""
    regression = Regression(products)
    groups: dict[tuple[float, tuple[int, ...]], list[int]] = {}
    for number, candidate in enumerate(candidates):
        groups.setdefault((candidate.strength, candidate.seasons), []).append(number)
    for (strength, seasons), numbers in groups.items():
        if is_fitted or strength >= FIXED:
            priors: list[Prior] = [candidates[number].prior for number in numbers]
            yield from zip(numbers, regression.weights(strength, priors, seasons), strict=True)


class _Candidates:
    """What the linear forecasts of some series are chosen from.

    Attributes:
        contexts: Lengths of the context, the shortest first.

    Args:
        data: The series.
        model: Settings, before they are resolved.
    """

    def __init__(self, data: ForecastData, model: ModelConfig) -> None:
        self.seasons = confirmed_seasons(data)
        if model.window is not None:
            self.contexts = [model.window]
        elif data.has_default_context:
            self.contexts = context_lengths(data, self.seasons)
        else:
            self.contexts = [data.context_length] if data.context_length > 1 else []
        # Seasons that the user names need a context that holds them.
        needed = max([*(model.skip_seasons or ()), model.skip_prior if isinstance(model.skip_prior, int) else 1])
        self.contexts = [context for context in self.contexts if context >= needed]
        self._is_given = len(self.contexts) == 1
        open_log = [False, True] if model.scaling in (None, "context") and not signed_channels(data) else [False]
        self.logs = open_log if model.log is None else [model.log]
        lags: list[Prior] = [*sorted({1, *self.seasons, *([data.season] if data.season > 1 else [])})]
        self.priors: list[Prior] = ["mean", *lags] if model.skip_prior is None else [model.skip_prior]
        self.fixed: list[Prior] = [*self.priors, "drift"] if model.skip_prior is None else self.priors
        self.strengths = STRENGTHS if model.skip_strength is None else (model.skip_strength,)
        self._is_fixed_open = model.skip_strength is None
        self._masks = model.skip_seasons

    def of(self, context: int, *, log: bool) -> Iterator[LinearForecast]:
        """Yield the candidates of a context that share their cross-products."""
        base = LinearForecast(context, log)
        if self._is_fixed_open:
            for prior in self._reached(self.fixed, context):
                yield replace(base, prior=prior, strength=FIXED)
        for seasons in self._seasonal_maps(context):
            for strength, prior in product(self.strengths, self._reached(self.priors, context)):
                yield replace(base, prior=prior, strength=strength, seasons=seasons)

    @staticmethod
    def _reached(priors: Sequence[Prior], context: int) -> list[Prior]:
        return [prior for prior in priors if not isinstance(prior, int) or prior <= context]

    def simplest(self) -> LinearForecast:
        """Return the candidate of series that are too short for a comparison."""
        context = self.contexts[0]
        priors = self._reached(self.fixed, context)
        without_drift: list[Prior] = [prior for prior in priors if prior != "drift"]
        prior = (without_drift or priors)[-1]
        strength = FIXED if self._is_fixed_open else self.strengths[0]
        return LinearForecast(context, self.logs[0], prior, strength)

    def _seasonal_maps(self, context: int) -> list[tuple[int, ...]]:
        if self._masks is not None:
            return [tuple(self._masks)]
        seasons = tuple(season for season in self.seasons if season <= context)
        # Of many contexts those of whole seasons are enough.
        is_tried = seasons and seasons[-1] >= SPARSE_SEASON and (self._is_given or context % seasons[-1] == 0)
        return [(), seasons] if is_tried else [()]


def context_lengths(data: ForecastData, seasons: Sequence[int]) -> list[int]:
    """Return the contexts to try, the shortest first: a season, with the horizon, twice; two of them and doublings."""
    lengths = np.array([len(values) for values in data.training_values()])
    # Series of usual length have whole contexts for all of their validation windows; shorter ones use what they have.
    usual = lengths[2 * lengths >= np.median(lengths)]
    longest = min(LONGEST, int(usual.min()), int(usual.max()) - data.horizon)
    horizon, found = data.horizon, set[int]()
    for season in {data.season, *seasons}:
        found |= {max(season, horizon), season + horizon, 2 * season}
    length = 2 * max(data.season, horizon)
    # A season that is too long counts for nothing.
    length = length if length <= longest else 2 * horizon
    while length <= longest:
        found.add(length)
        length *= 2
    return sorted(length for length in found if 2 <= length <= longest) or ([longest] if longest > 1 else [])


def signed_channels(data: ForecastData) -> list[str]:
    """Return the channels with a training value of 0 or less: one of them, and logarithms are taken of none."""
    lowest = np.min([np.nanmin(values, axis=0, initial=np.inf) for values in data.training_values()], axis=0)
    return [channel for channel, value in zip(data.channels, lowest, strict=True) if value <= 0]


def is_non_negative(data: ForecastData) -> bool:
    """Return True if no training value of a target is negative."""
    targets = list(data.target_indices)
    return all(float(np.nanmin(values[:, targets], initial=0.0)) >= 0 for values in data.training_values())


def confirmed_seasons(data: ForecastData) -> tuple[int, ...]:
    """Return the usual seasons of the data's frequency that the autocorrelation of its training values shows.

    A season counts where in more than a quarter of the series the autocorrelation at its lag, of values without their
    linear trend and shorter seasons, is significant at the level of 90 % (Bartlett's formula, as in the benchmarks of
    the M4 competition).
    """
    usual = parse_frequency(data.frequency).seasons if data.frequency is not None else ()
    training = data.training_values()
    numbers = evenly_spaced(len(training), _TESTED_SERIES)
    columns = [_detrended(training[number][:, index]) for number in numbers for index in data.target_indices]
    seasons: tuple[int, ...] = ()
    for season in sorted({*usual, data.season} - {1}):
        if _has_season(columns, season):
            seasons = (*seasons, season)
            # What repeats every day repeats every week.
            columns = [_deseasonalized(column, season) for column in columns]
    return seasons


def _detrended(column: npt.NDArray[np.floating]) -> Float64Array:
    """Return the latest values from the first observed one on, without their linear trend."""
    values = _filled(column.astype(np.float64), log=False)
    values = values[~np.isnan(values)][-_TESTED_STEPS:]
    if len(values) < _LEAST_TESTED:
        return np.zeros(0)
    time = np.linspace(-1, 1, len(values))
    values = values - values.mean()
    return np.asarray(values - time * (time @ values) / (time @ time))


def _deseasonalized(column: Float64Array, season: int) -> Float64Array:
    """Return the values without the mean of each step of the season."""
    phases = np.arange(len(column)) % season
    sums, counts = (np.bincount(phases, weights, minlength=season) for weights in (column, None))
    return np.asarray(column - (sums / np.maximum(counts, 1))[phases])


def _has_season(columns: Sequence[Float64Array], season: int) -> bool:
    ratios = []
    for column in columns:
        if len(column) < 2 * season + 2 or not np.ptp(column) > 0:
            continue
        spectrum = np.abs(np.fft.rfft(column, 2 * len(column))) ** 2
        autocorrelation = np.fft.irfft(spectrum)[: season + 1]
        autocorrelation /= autocorrelation[0]
        limit = 1.645 * math.sqrt((1 + 2 * float((autocorrelation[1:season] ** 2).sum())) / len(column))
        ratios.append(autocorrelation[season] / limit)
    return bool(ratios) and float(np.mean(np.array(ratios) > 1)) > _SEASONAL_SHARE


_SEASONAL_SHARE = 0.25
"""Share of the series that a season must be found in: five times what noise alone brings about."""
_LEAST_TESTED = 4
"""Values of which an autocorrelation says anything."""
_TESTED_SERIES, _TESTED_STEPS = 100, 20_000
SPARSE_SEASON = 50
"""Season from which on a map around its multiples is tried besides that of all values."""


def seasonal_mask(seasons: Sequence[int], context: int, horizon: int) -> npt.NDArray[np.bool_] | None:
    """Return the values that each step of a seasonal map reads, (horizon, context); None for all.

    These are the last ones, and those around whole seasons before the step.
    """
    if not seasons:
        return None
    mask = np.zeros((horizon, context), dtype=bool)
    recent = max(8, min(64, 2 * seasons[0])) if len(seasons) > 1 else 8
    mask[:, -recent:] = True
    steps = np.arange(horizon)
    for season in seasons:
        # The shortest of several seasons repeats too often to be read each time.
        count = 3 if len(seasons) > 1 and season == seasons[0] else context // season
        for multiple, shift in product(range(1, count + 1 + horizon // season), range(-_AROUND, _AROUND + 1)):
            index = context - multiple * season + steps + shift
            is_inside = (index >= 0) & (index < context)
            mask[steps[is_inside], index[is_inside]] = True
    return mask


_AROUND = 3
"""Steps before and after a whole season that a seasonal map reads."""


# Gate

GATE_WINDOWS = 3_000
"""Validation windows that the gate is chosen on at most."""
_GATE_BATCH = 2048
_SHARES = torch.linspace(0, 1, 21, dtype=torch.float64)


def fit_forecaster(model: Forecaster, data: ForecastData, linear: LinearForecast | None) -> None:
    """Fit the scaling of static covariates and the linear skip to the training split.

    Args:
        model: With its scaling fitted, on the CPU.
        data: What it is trained on.
        linear: What the skip reads, and how its weights are solved for; None for a model without one.
    """
    if data.static:
        model.fit_static(np.stack([series.static for series in data.series]))
    if model.skip is not None and linear is not None:
        with torch.no_grad():
            model.skip.weight.copy_(torch.from_numpy(skip_weights(data, linear, model.steps)))


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
    Candidates are shares of the way from the first skip to the trained model. That with the least absolute error over
    all validation windows is kept if it is better than the skip by more than one standard error, see
    :func:`standard_error`; else the skip alone.
    The share is put into the weights; quantiles keep their distance from the mean.

    Args:
        model: Trained, in evaluation mode, with a linear skip and a direct head; it is changed.
        skip: The skip's weights before training.
        windows: Those of the validation split.
    """
    assert model.skip is not None
    trained = model.skip.weight.detach().clone()
    batches = list(batch_evenly_spaced(windows, GATE_WINDOWS, _GATE_BATCH))
    # Sums over the observed values of each window, (windows, shares), and how many these are.
    with torch.no_grad():
        parts = [_blended_errors(model, windows.gather(part), skip, trained) for part in batches]
    errors, counts = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    means = errors.sum(axis=0) / counts.sum()
    best = int(means.argmin())
    # (windows, 2): series and first forecast step, by which errors are clustered.
    origins = np.array(windows.origins, dtype=np.int64)[np.concatenate(batches)]
    noise = standard_error((errors[:, 0] - errors[:, best]) / counts.mean(), origins, model.horizon)
    is_better = noise is not None and means[0] - means[best] > noise
    share = float(_SHARES[best]) if is_better else 0.0
    set_share(model, skip, trained, share)
    return Gate(share, float(means[0]), float(means[best]), noise, len(counts))


def _blended_errors(
    model: Forecaster, samples: Samples, skip: Tensor, trained: Tensor
) -> tuple[Float64Array, Float64Array]:
    """Return the summed errors at each share, ``(windows, shares)``, and the observed numbers."""
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
    # The mean is linear in the share, so that shares need no further run of the layers.
    errors = [
        torch.where(is_observed, (first + share * (full_change - first) - target).abs(), 0.0).sum(dim=(1, 2))
        for share in _SHARES
    ]
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


# Noise


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
