"""Windows over series: which steps a forecast sees and which it must hit, gathered on demand instead of stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]
SplitName = Literal["train", "validation", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")


class Samples(NamedTuple):
    """Some samples of a split, as numpy.

    Attributes:
        x: float32 (samples, time, features), raw units, NaN = missing, padded with 0 after ``lengths``.
        lengths: int64 (samples,), steps of each sample that are real.
        y: int64 (samples,) class indices, or float32 (samples, horizon, targets) with NaN = missing.
        dt: float32 (samples, time), the time from the step before in units of the regular step; None when the time of
            the steps is not known or not used.
    """

    x: Float32Array
    lengths: Int64Array
    y: Int64Array | Float32Array
    dt: Float32Array | None = None


class WindowSet:
    """All windows of one split over all series.

    A window is named by its origin ``(series, end)``: the context is steps ``end - context_length .. end - 1`` of that
    series, the targets are steps ``end .. end + horizon - 1``.

    Args:
        values: One float32 array (time, channels) a series.
        origins: int64 (windows, 2) of series index and end index, in the order in which the windows are numbered:
            series by series.
        context_length: Steps that the model sees.
        horizon: Steps that the model forecasts.
        target_indices: Channels that are forecast, in the order of the targets.
        dropped: Windows left out because no target in them has a value.
    """

    def __init__(
        self,
        values: Sequence[Float32Array],
        origins: Int64Array,
        context_length: int,
        horizon: int,
        target_indices: Sequence[int],
        dropped: int = 0,
    ) -> None:
        self.context_length = context_length
        self.horizon = horizon
        self.target_indices = tuple(target_indices)
        self.dropped = dropped
        self._flat = np.concatenate(values)
        self._targets = self._flat[:, list(self.target_indices)]
        lengths = np.array([len(series) for series in values], dtype=np.int64)
        self._starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        self._origins = origins

    def __len__(self) -> int:
        return len(self._origins)

    @property
    def origins(self) -> list[tuple[int, int]]:
        """``(series index, end index)`` of every window; ``end`` is the first step that is forecast."""
        return [(int(series), int(end)) for series, end in self._origins]

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        """The windows with these numbers: x (n, context_length, channels), lengths (n,), y (n, horizon, targets)."""
        series, end = self._select(indices)
        x = _cut(self._flat, self._starts[series] + end - self.context_length, self.context_length)
        return Samples(x, np.full(len(x), self.context_length, dtype=np.int64), self.truth(indices))

    def truth(self, indices: Sequence[int] | Int64Array) -> Float32Array:
        """What :meth:`gather` gives as y, without the contexts, which are by far the larger part."""
        series, end = self._select(indices)
        return _cut(self._targets, self._starts[series] + end, self.horizon)

    def history(self, indices: Sequence[int] | Int64Array, steps: int) -> Float32Array:
        """The last ``steps`` steps before each window's targets, also where that is more than the context.

        A season can be longer than the context; naive forecasts need it whole. Steps before a series began are NaN.

        Returns:
            float32 (windows, steps, channels).
        """
        series, end = self._select(indices)
        step = end[:, None] + np.arange(-steps, 0)
        found: Float32Array = self._flat[self._starts[series][:, None] + np.maximum(step, 0)]
        found[step < 0] = np.nan
        return found

    def _select(self, indices: Sequence[int] | Int64Array) -> tuple[Int64Array, Int64Array]:
        chosen = self._origins[np.asarray(indices, dtype=np.int64)]
        return chosen[:, 0], chosen[:, 1]


def _cut(values: Float32Array, first: Int64Array, steps: int) -> Float32Array:
    """``values[i : i + steps]`` for each i of ``first``: (windows, steps, channels), without a table of all indices."""
    if not len(first):
        return np.empty((0, steps, values.shape[1]), dtype=np.float32)
    found: Float32Array = sliding_window_view(values, (steps, values.shape[1]))[:, 0][first]
    return found


def build_windows(
    values: Sequence[Float32Array],
    ranges: Sequence[tuple[int, int]],
    *,
    context_length: int,
    horizon: int,
    target_indices: Sequence[int],
) -> WindowSet:
    """The windows whose whole target lies in each series' range and whose context lies in the series.

    Args:
        values: One float32 array (time, channels) a series.
        ranges: ``(start, stop)`` a series: the steps that targets may use.
        context_length: Steps before the target that the model sees; they may reach back before ``start``.
        horizon: Steps of the target.
        target_indices: Channels that are forecast. A window in which all of them are missing is dropped and counted.
    """
    origins: list[Int64Array] = []
    dropped = 0
    for number, (series, (start, stop)) in enumerate(zip(values, ranges, strict=True)):
        ends = np.arange(max(start, context_length), stop - horizon + 1, dtype=np.int64)
        present = np.concatenate(([0], np.cumsum(np.isfinite(series[:, list(target_indices)]).any(axis=1))))
        kept = ends[present[ends + horizon] > present[ends]]
        dropped += len(ends) - len(kept)
        origins.append(np.stack([np.full_like(kept, number), kept], axis=1))
    return WindowSet(values, np.concatenate(origins), context_length, horizon, target_indices, dropped)
