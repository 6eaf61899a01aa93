"""A test for drift of a stream: residuals in blocks as long as the model's memory, compared with the first blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

States = dict[str, Array]

REFERENCE_BLOCKS = 19
"""Blocks that later ones are compared with: a multiple of 20 ranks, of which the outermost is 5 %."""
STATISTICS = 2
"""Figures of a block: the mean of its residuals, which level and trend change, and the mean of their absolute values,
which the variance changes."""
BET = 0.5
"""Share of the evidence that each bet stakes on its ranks."""

PREFIX = "drift."
_FORECAST, _SUMS, _COUNTS = PREFIX + "forecast", PREFIX + "sums", PREFIX + "counts"
_REFERENCE, _HITS, _EVIDENCE = PREFIX + "reference", PREFIX + "hits", PREFIX + "evidence"
# Positions in _COUNTS; there is one of blocks for each statistic.
_SCORED, _READINGS, _BLOCKS = range(3)

_RANKS = np.arange(REFERENCE_BLOCKS + 1)
# (bets, ranks): a shift beyond all reference blocks and beyond four fifths of them, at either end.
_BETS = np.stack([_RANKS >= REFERENCE_BLOCKS, _RANKS >= REFERENCE_BLOCKS - 3, _RANKS < 1, _RANKS < 4])
_BET_SIZES = _BETS.sum(axis=1)
# The golden ratio in 64 bits: multiples of it fill the range evenly (Weyl), in the order of pseudo-random numbers.
_WEYL = np.uint64(0x9E3779B97F4A7C15)


class DriftDetector:
    r"""A conformal test of whether the residuals of a stream are still those of its beginning.

    A residual is the distance of a true value from the median of the forecast before it, in units of half the width of
    that forecast's interval. Residuals of :attr:`block` readings form a block, with two figures: their mean, and the
    mean of their absolute values. The first :data:`REFERENCE_BLOCKS` blocks are the reference. The rank of a later
    block among them has a known probability given all earlier ranks: of r reference blocks and n blocks after them, of
    which k had ranks in a set S, the next has one in S with the probability

    .. math:: p = \frac{|S| + k}{r + 1 + n}

    Each bet on a set multiplies its evidence by :math:`1 - b + b\,[\text{rank} \in S] / p`, whose mean is 1. The
    evidence of a figure is the mean over the bets of Shiryaev-Roberts sums :math:`M \leftarrow \Lambda (M + 1)` (Shin,
    Ramdas, Rinaldo, "E-detectors", 2023; ranks as in Vovk, Gammerman, Shafer, "Algorithmic Learning in a Random World",
    2005). At :attr:`threshold` there is an alarm, and the figure starts over with a new reference.

    Guarantee:
        If the blocks of a stream are exchangeable and no two figures equal, the mean number of alarms in n readings
        is at most n times the stated rate: the evidence of a figure less the number of blocks is a supermartingale
        given its ranks, each alarm takes 2 / (rate * block) of it or more, and there are two figures. Each starts over
        by itself, at a time that its own ranks determine.

        Blocks of a stationary series are nearly exchangeable if they are longer than its memory. The certificate bounds
        that of the model: over a block, the influence of an earlier state on the forecasts falls to the certified
        share. It does not bound the memory of the data; blocks are whole seasons for that reason. Measure the rate.

    Equal figures, such as those of a constant series, are ordered by a fixed sequence that fills all ranks evenly.

    Attributes:
        block: Readings in a block.
        rate: Upper bound on the mean number of false alarms a reading.
        threshold: Evidence at which there is an alarm.
        state_shapes: Shape and type of each state of a stream; zeros at its beginning.
    """

    def __init__(self, rate: float, block: int, horizon: int, targets: int, stride: int = 1) -> None:
        """Define the test of one model's streams.

        Args:
            rate: Upper bound on the mean number of false alarms a reading, above 0.
            block: Readings in a block, 1 or more.
            horizon: Steps of a forecast, in readings.
            targets: Number of forecast variables.
            stride: Readings in a sample.

        Raises:
            ValueError: If the rate is not above 0, or means more than one alarm a block.
        """
        if not 0 < rate * block < 1:
            raise ValueError(
                f"{rate:g} false alarms a reading are {rate * block:.3g} a block of {block} readings, and the rate of "
                f"a block must lie between 0 and 1; give a rate below {1 / block:.3g}."
            )
        self.rate, self.block, self.stride = rate, block, stride
        self.threshold = STATISTICS / (rate * block)
        # The forecast of the sample before is the latest one for the readings of a sample.
        self._steps = min(stride, horizon)
        float32, int64 = np.dtype(np.float32), np.dtype(np.int64)
        self.state_shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
            # Center and half width.
            _FORECAST: ((self._steps, targets, 2), float32),
            _SUMS: ((STATISTICS,), float32),
            _COUNTS: ((2 + STATISTICS,), int64),
            _REFERENCE: ((STATISTICS, REFERENCE_BLOCKS), float32),
            _HITS: ((STATISTICS, len(_BETS)), int64),
            _EVIDENCE: ((STATISTICS, len(_BETS)), float32),
        }

    def advance(self, states: Mapping[str, Array], values: Array, center: Array, width: Array) -> tuple[States, Array]:
        """Take the samples of some streams.

        Args:
            states: By name, ``(streams, ...)``; zeros where absent. They are not changed.
            values: True values of the targets, ``(streams, samples, stride, targets)``, raw units, NaN if missing.
            center: Median of the forecast after each sample, ``(streams, samples, horizon, targets)``.
            width: Distance between the ends of its interval, in the same shape.

        Returns:
            The states after the samples; and the evidence after each sample as a share of the threshold, float32
            ``(streams, samples)``: 1 or more is an alarm, after which the stream starts over.
        """
        streams, samples = values.shape[:2]
        copies = {
            name: states[name].copy() if name in states else np.zeros((streams, *shape), dtype)
            for name, (shape, dtype) in self.state_shapes.items()
        }
        evidence = np.zeros((streams, samples), np.float32)
        for sample in range(samples):
            for reading in range(self.stride):
                alarm = self._take(copies, values[:, sample, reading], reading)
                evidence[:, sample] = np.maximum(evidence[:, sample], alarm)
            is_calm = evidence[:, sample] < 1
            evidence[is_calm, sample] = self._shares(copies[_EVIDENCE][is_calm]).max(axis=-1)
            copies[_FORECAST][..., 0] = center[:, sample, : self._steps]
            copies[_FORECAST][..., 1] = width[:, sample, : self._steps] / 2
        return copies, evidence

    def _shares(self, evidence: Array) -> Array:
        """Return the evidence of figures, ``(streams, statistics, bets)``, as shares of the threshold."""
        shares: Array = (evidence.mean(axis=-1) / self.threshold).astype(np.float32)
        return shares

    def _take(self, states: States, values: Array, reading: int) -> Array:
        """Add the residuals of one reading, ``(streams, targets)``.

        Returns:
            ``(streams,)``, the evidence of the streams that raise an alarm as a share of the threshold, 0 of others.
        """
        if reading < self._steps:
            forecast = states[_FORECAST][:, reading]
            for target in range(values.shape[1]):
                # One target after the other: a sum over an axis may round in another order for other batch sizes.
                half_width = forecast[:, target, 1]
                is_scored = (half_width > 0) & ~np.isnan(values[:, target])
                residual = np.zeros(len(values), np.float32)
                np.divide(values[:, target] - forecast[:, target, 0], half_width, residual, where=is_scored)
                states[_SUMS][:, 0] += residual
                states[_SUMS][:, 1] += np.abs(residual)
                states[_COUNTS][:, _SCORED] += is_scored
        states[_COUNTS][:, _READINGS] += 1
        alarms = np.zeros(len(values), np.float32)
        rows = np.flatnonzero(states[_COUNTS][:, _READINGS] >= self.block)
        if len(rows):
            alarms[rows] = self._end_block(states, rows)
        return alarms

    def _end_block(self, states: States, rows: Array) -> Array:
        """Compare the blocks that some streams have completed, and return their alarms as :meth:`_take` does."""
        counts, sums = states[_COUNTS], states[_SUMS]
        # A block without any true value is left out.
        scored = rows[counts[rows, _SCORED] > 0]
        # (streams, statistics)
        figures = sums[scored] / counts[scored, _SCORED, None].astype(np.float32)
        blocks = counts[scored, _BLOCKS:]
        is_reference = blocks < REFERENCE_BLOCKS
        streams, statistics = np.nonzero(is_reference)
        states[_REFERENCE][scored[streams], statistics, blocks[is_reference]] = figures[is_reference]
        streams, statistics = np.nonzero(~is_reference)
        self._bet(states, scored[streams], statistics, figures[~is_reference])
        counts[scored, _BLOCKS:] += 1
        counts[rows, _SCORED] = counts[rows, _READINGS] = 0
        sums[rows] = 0
        shares = self._shares(states[_EVIDENCE][rows])
        # Only the figure that raises an alarm starts over: the time would else depend on the ranks of the other one.
        streams, statistics = np.nonzero(shares >= 1)
        counts[rows[streams], _BLOCKS + statistics] = 0
        states[_HITS][rows[streams], statistics] = 0
        states[_EVIDENCE][rows[streams], statistics] = 0
        alarms: Array = np.where(shares >= 1, shares, np.float32(0)).max(axis=-1)
        return alarms

    def _bet(self, states: States, rows: Array, statistics: Array, figures: Array) -> None:
        """Update the evidence of some figures of some streams with a block each, ``(figures,)``."""
        reference, hits = states[_REFERENCE][rows, statistics], states[_HITS][rows, statistics]
        blocks = states[_COUNTS][rows, _BLOCKS + statistics].astype(np.uint64)
        # (figures, reference blocks)
        is_later = (blocks * _WEYL)[:, None] > np.arange(REFERENCE_BLOCKS, dtype=np.uint64) * _WEYL
        value = figures[:, None]
        is_above = (value > reference) | ((value == reference) & is_later)
        # (figures, bets)
        is_hit = _BETS.T[is_above.sum(axis=-1)]
        probability = (_BET_SIZES + hits) / (blocks.astype(np.float64) + 1)[:, None]
        factor = 1 - BET + BET * is_hit / probability
        evidence = states[_EVIDENCE][rows, statistics]
        states[_EVIDENCE][rows, statistics] = (factor * (evidence + 1.0)).astype(np.float32)
        states[_HITS][rows, statistics] = hits + is_hit
