"""Adaptive conformal intervals: forecasts of a stream, widened or narrowed by how often earlier ones missed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

States = dict[str, Array]

STEP_SIZE = 0.1
"""Step of the logarithm of a factor at each scored forecast; ``benchmarks/online.py`` compares others."""
MAX_FACTOR = 1000.0
"""Factor from which on an interval is unbounded, and whose inverse is the smallest factor. It makes the bound on the
coverage hold for every sequence of values."""
MAX_PENDING = 8
"""Forecasts of a stream that wait for their true values. Waiting forecasts of every origin would take memory with the
square of the horizon."""

PREFIX = "adaptive."
_FACTORS, _AGES = PREFIX + "factors", PREFIX + "ages"
_LOWER, _UPPER = PREFIX + "lower", PREFIX + "upper"
_COUNTS = PREFIX + "counts"


@dataclass(frozen=True)
class IntervalUpdate:
    """The result of some samples of some streams.

    Attributes:
        states: By name, ``(streams, ...)``, after the samples.
        quantiles: float32, ``(streams, samples, horizon, targets, levels)``; infinite where an interval is unbounded.
        counts: Forecasts that these samples scored, and those of them that missed, ``(streams, pairs, 2)``.
    """

    states: States
    quantiles: Array
    counts: Array


class AdaptiveIntervals:
    r"""Adaptive conformal inference for the pairs of quantiles whose levels add up to 1.

    Each step ahead, target and pair of levels :math:`a/2, 1 - a/2` has a factor :math:`f` by which the distances of
    both quantiles from the median are multiplied (from their mean, without a median). A scored forecast changes it by

    .. math:: \log f \leftarrow \log f + \eta\,(m - a)

    where :math:`m` is 1 if the true value lies outside the interval that was answered, else 0. This is the update of
    Gibbs and Candes, "Adaptive conformal inference under distribution shift" (NeurIPS 2021), on the logarithm of a
    width in place of a level, as the quantile tracker of Angelopoulos, Candes and Tibshirani, "Conformal PID control
    for time series prediction" (NeurIPS 2023), has it for an additive width. A logarithm adapts as fast to residuals
    of any unit.

    Guarantee:
        For every sequence of values and forecasts, the share of misses among the first T scored forecasts of a factor
        is at most :meth:`excess_bound` above :math:`a`,

        .. math:: \frac{1}{T} \sum_{i \le T} m_i \le a + \frac{\log F / \eta + D (1 - a)}{T},

        F being :data:`MAX_FACTOR` and D :data:`MAX_PENDING`. Proof: a forecast can only miss if its factor was below
        F, since from F on the interval is unbounded. At most D - 1 other forecasts are scored between the choice of
        that factor and the update with its miss, so :math:`\log f` never exceeds
        :math:`\log F + D \eta (1 - a)`. It starts at 0 and is the sum of the updates, or more, since the lower limit
        only raises it. The same holds from below, :math:`a - \log F / (\eta T)`, as long as no factor is at its lower
        limit 1/F, where intervals that still cover everything are not narrowed further, and as long as pairs nest.
        Factors are float32, which changes the shares by less than 1e-6.

    Of several pairs, an outer interval always contains the inner ones. Other levels are answered as they are.

    Only some forecasts are scored: those of every :attr:`spacing`-th reading, so that at most :data:`MAX_PENDING`
    wait at a time. Which ones is decided by the clock, not by the values. A missing value scores nothing.

    Attributes:
        levels: Levels of the quantiles, ascending.
        pairs: Indices of two levels that add up to 1, the inner pair first.
        spacing: Readings between two scored forecasts.
        state_shapes: Shape and type of each state of a stream; zeros at its beginning.
    """

    def __init__(self, horizon: int, targets: int, levels: Sequence[float], stride: int = 1) -> None:
        """Define the intervals of one model.

        Args:
            horizon: Steps of a forecast, in readings.
            targets: Number of forecast variables.
            levels: Levels of the quantiles, ascending.
            stride: Readings in a sample.

        Raises:
            ValueError: If no two levels add up to 1.
        """
        self.levels = tuple(levels)
        self.pairs = symmetric_pairs(levels)
        if not self.pairs:
            raise ValueError(f"no two of the levels add up to 1, got {list(levels)}.")
        self.horizon, self.targets, self.stride = horizon, targets, stride
        self.spacing = stride * math.ceil(horizon / (MAX_PENDING * stride))
        slots, pairs = math.ceil(horizon / self.spacing), len(self.pairs)
        self.state_shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            _FACTORS: ((horizon, targets, pairs), np.dtype(np.float32)),
            # 1 more than the readings since the forecast; 0 for none.
            _AGES: ((slots,), np.dtype(np.int64)),
            _LOWER: ((slots, horizon, targets, pairs), np.dtype(np.float32)),
            _UPPER: ((slots, horizon, targets, pairs), np.dtype(np.float32)),
            # Scored forecasts of each pair, and the misses among them.
            _COUNTS: ((pairs, 2), np.dtype(np.int64)),
        }
        # Products of float32 are the same on every machine, which exponentials of arrays are not.
        nominal = [self.nominal(pair) for pair in range(pairs)]
        self._widen = np.array([math.exp(STEP_SIZE * share) for share in nominal], np.float32)
        self._narrow = np.array([math.exp(STEP_SIZE * (share - 1)) for share in nominal], np.float32)
        middle = [index for index, level in enumerate(levels) if math.isclose(level, 0.5)]
        self._median = middle[0] if middle else None

    def nominal(self, pair: int) -> float:
        """Return the nominal coverage of a pair of levels."""
        lower, upper = self.pairs[pair]
        return round(self.levels[upper] - self.levels[lower], 9)

    def excess_bound(self, pair: int, scored: int) -> float:
        """Return by how much the share of misses among ``scored`` forecasts of a factor can exceed the nominal one."""
        return (math.log(MAX_FACTOR) / STEP_SIZE + MAX_PENDING * self.nominal(pair)) / scored

    def coverage(self, states: Mapping[str, Array]) -> list[dict[str, Any]]:
        """Return ``nominal``, ``scored`` and ``covered`` of each pair, from the states of one stream without an axis
        over streams."""
        counts = states[_COUNTS].tolist() if _COUNTS in states else [[0, 0]] * len(self.pairs)
        return [
            {"nominal": self.nominal(pair), "scored": scored, "covered": scored - missed}
            for pair, (scored, missed) in enumerate(counts)
        ]

    def advance(self, states: Mapping[str, Array], values: Array, quantiles: Array) -> IntervalUpdate:
        """Score earlier forecasts by the samples, and adapt the forecasts after each of them.

        Args:
            states: By name, ``(streams, ...)``; zeros where absent. They are not changed.
            values: True values of the targets, ``(streams, samples, stride, targets)``, raw units, NaN if missing.
            quantiles: The model's forecasts after each sample, ``(streams, samples, horizon, targets, levels)``.
        """
        streams, samples = values.shape[:2]
        copies = {
            name: states[name].copy() if name in states else np.zeros((streams, *shape), dtype)
            for name, (shape, dtype) in self.state_shapes.items()
        }
        factors = copies[_FACTORS]
        # Zero stands for the start, where intervals are the model's own.
        factors[factors == 0] = 1
        counts_before = copies[_COUNTS].copy()
        adapted = quantiles.astype(np.float32)
        for sample in range(samples):
            for reading in range(self.stride):
                self._score(copies, values[:, sample, reading])
            lower, upper = self._intervals(factors, quantiles[:, sample])
            for pair, (low, high) in enumerate(self.pairs):
                adapted[:, sample, ..., low], adapted[:, sample, ..., high] = lower[..., pair], upper[..., pair]
            self._store(copies, lower, upper)
        return IntervalUpdate(copies, adapted, copies[_COUNTS] - counts_before)

    def _score(self, states: States, values: Array) -> None:
        """Score the waiting forecasts of one reading.

        Args:
            states: Changed in place.
            values: ``(streams, targets)``.
        """
        ages, factors = states[_AGES], states[_FACTORS]
        ages[ages > 0] += 1
        # A slot whose horizon is over; the sample before scored its last step.
        ages[ages > self.horizon + 1] = 0
        # Slots of a stream have different ages, so that no factor is updated twice.
        rows, slots = np.nonzero(ages > 1)
        if not len(rows):
            return
        steps = ages[rows, slots] - 2
        # (waiting forecasts, targets, pairs)
        y = values[rows][..., None]
        is_missed = (y < states[_LOWER][rows, slots, steps]) | (y > states[_UPPER][rows, slots, steps])
        is_scored = np.broadcast_to(~np.isnan(y), is_missed.shape)
        current = factors[rows, steps]
        updated = np.maximum(current * np.where(is_missed, self._widen, self._narrow), np.float32(1 / MAX_FACTOR))
        factors[rows, steps] = np.where(is_scored, updated, current)
        # Several slots of a stream add to the same counts.
        np.add.at(states[_COUNTS], rows, np.stack([is_scored, is_missed & is_scored], axis=-1).sum(axis=1))

    def _intervals(self, factors: Array, quantiles: Array) -> tuple[Array, Array]:
        """Return the ends of the intervals, float32 ``(streams, horizon, targets, pairs)`` each.

        Args:
            factors: ``(streams, horizon, targets, pairs)``.
            quantiles: ``(streams, horizon, targets, levels)``.
        """
        # float64, in which a factor of 1 gives the model's own quantiles back.
        q = quantiles.astype(np.float64)
        lower, upper = np.empty(factors.shape), np.empty(factors.shape)
        for pair, (low, high) in enumerate(self.pairs):
            middle = (q[..., low] + q[..., high]) / 2 if self._median is None else q[..., self._median]
            factor = factors[..., pair].astype(np.float64)
            is_unbounded = factor >= MAX_FACTOR
            lower[..., pair] = np.where(is_unbounded, -np.inf, middle - factor * (middle - q[..., low]))
            upper[..., pair] = np.where(is_unbounded, np.inf, middle + factor * (q[..., high] - middle))
        # Widening never causes a miss, so that nesting the pairs keeps the guarantee.
        lower, upper = np.minimum.accumulate(lower, axis=-1), np.maximum.accumulate(upper, axis=-1)
        # An end beyond float32 becomes infinite, which is what it stands for.
        with np.errstate(over="ignore"):
            return lower.astype(np.float32), upper.astype(np.float32)

    def _store(self, states: States, lower: Array, upper: Array) -> None:
        """Let the forecast of a sample wait for its true values where one is due; states are changed in place."""
        ages = states[_AGES]
        # The newest waiting forecast, of which there is none where all ages are 0.
        newest = np.where(ages > 0, ages, np.iinfo(np.int64).max).min(axis=1)
        rows = np.flatnonzero(newest > self.spacing)
        # The oldest forecast of the horizon has been scored by now; its slot is as free as an empty one.
        is_free = (ages[rows] == 0) | (ages[rows] > self.horizon)
        slots = is_free.argmax(axis=1)
        states[_LOWER][rows, slots], states[_UPPER][rows, slots] = lower[rows], upper[rows]
        ages[rows, slots] = 1


def symmetric_pairs(levels: Sequence[float]) -> list[tuple[int, int]]:
    """Return the indices of two levels that add up to 1, the inner pair first."""
    pairs = [
        (low, high)
        for low, level in enumerate(levels)
        for high in range(low + 1, len(levels))
        if math.isclose(level + levels[high], 1, abs_tol=1e-9)
    ]
    return sorted(pairs, reverse=True)
