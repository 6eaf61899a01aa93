"""Windows over series: which steps a forecast sees and which it must hit, gathered on demand instead of stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Literal, NamedTuple, Protocol

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
        static: float32 (samples, s), what is constant for a whole series, raw units; None where there is none.
        future: float32 (samples, horizon, f), what is known in advance of the steps to forecast, raw units, NaN =
            missing; None where nothing is.
    """

    x: Float32Array
    lengths: Int64Array
    y: Int64Array | Float32Array
    dt: Float32Array | None = None
    static: Float32Array | None = None
    future: Float32Array | None = None


class SampleSource(Protocol):
    """Numbered samples, such as a split of sequences or of windows."""

    def __len__(self) -> int: ...

    def gather(self, indices: Int64Array) -> Samples: ...


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
        skipped: Windows left out by the stride.
        without_context: Windows left out because no target has a value in their context.
        future_indices: Channels that are known in advance, in their order.
        static: float32 (series, s), what is constant for each series.
        dt: One float32 array (time,) a series: the time from the step before, in regular steps.
    """

    def __init__(
        self,
        values: Sequence[Float32Array],
        origins: Int64Array,
        context_length: int,
        horizon: int,
        target_indices: Sequence[int],
        dropped: int = 0,
        *,
        skipped: int = 0,
        without_context: int = 0,
        future_indices: Sequence[int] = (),
        static: Float32Array | None = None,
        dt: Sequence[Float32Array] | None = None,
    ) -> None:
        self.context_length = context_length
        self.horizon = horizon
        self.target_indices = tuple(target_indices)
        self.future_indices = tuple(future_indices)
        self.dropped = dropped
        self.skipped = skipped
        self.without_context = without_context
        self._flat = joined(values)
        self._static = static
        self._dt = None if dt is None else joined(dt)
        lengths = np.array([len(series) for series in values], dtype=np.int64)
        self._starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        self._origins = origins

    def __len__(self) -> int:
        return len(self._origins)

    @property
    def origins(self) -> list[tuple[int, int]]:
        """``(series index, end index)`` of every window; ``end`` is the first step that is forecast."""
        return [(int(series), int(end)) for series, end in self._origins]

    def with_context(self, context_length: int) -> WindowSet:
        """The same windows under the same numbers with contexts of another length.

        A window that does not have as many steps before its targets must not be gathered from it.
        """
        found = copy(self)
        found.context_length = context_length
        return found

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        """The windows with these numbers: x (n, context_length, channels), lengths (n,), y (n, horizon, targets).

        Where the data has them also ``dt`` (n, context_length), 1 at the first step, ``static`` (n, s) and ``future``
        (n, horizon, f).
        """
        series, end = self._select(indices)
        first = self._starts[series] + end
        x = _cut(self._flat, first - self.context_length, self.context_length)
        return Samples(
            x,
            np.full(len(x), self.context_length, dtype=np.int64),
            self.truth(indices),
            None if self._dt is None else self._steps(first - self.context_length),
            None if self._static is None else self._static[series],
            _cut(self._flat, first, self.horizon, self.future_indices) if self.future_indices else None,
        )

    def gather_longer(self, indices: Sequence[int] | Int64Array, extra: int, multiple: int = 1) -> Samples:
        """:meth:`gather` with contexts that begin up to ``extra`` steps earlier, as far as each series reaches back.

        Args:
            indices: Numbers of windows.
            extra: Steps, a multiple of ``multiple``.
            multiple: Of what a context is made longer by whole numbers.

        Returns:
            Samples of ``context_length + extra`` steps, of which the first ``lengths`` are real.
        """
        series, end = self._select(indices)
        more = np.minimum(extra, (end - self.context_length) // multiple * multiple)
        lengths = self.context_length + more
        begin = self._starts[series] + end - lengths
        found = self.gather(indices)
        x = np.zeros((len(series), self.context_length + extra, self._flat.shape[1]), dtype=np.float32)
        dt = None if self._dt is None else np.ones(x.shape[:2], dtype=np.float32)
        for steps in np.unique(lengths):
            rows = np.flatnonzero(lengths == steps)
            x[rows, :steps] = _cut(self._flat, begin[rows], int(steps))
            if dt is not None and self._dt is not None:
                dt[rows, 1:steps] = _cut(self._dt[:, None], begin[rows] + 1, int(steps) - 1)[..., 0]
        return found._replace(x=x, lengths=lengths, dt=dt)

    def truth(self, indices: Sequence[int] | Int64Array) -> Float32Array:
        """What :meth:`gather` gives as y, without the contexts, which are by far the larger part."""
        series, end = self._select(indices)
        return _cut(self._flat, self._starts[series] + end, self.horizon, self.target_indices)

    def _steps(self, first: Int64Array) -> Float32Array:
        assert self._dt is not None
        dt = _cut(self._dt[:, None], first, self.context_length)[:, :, 0]
        # What was before the context is not seen, so the way from there is not either.
        dt[:, 0] = 1
        return dt

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


def _cut(values: Float32Array, first: Int64Array, steps: int, channels: Sequence[int] | None = None) -> Float32Array:
    """``values[i : i + steps]`` for each i of ``first``: (windows, steps, channels), without a table of all indices."""
    if not len(first):
        return np.empty((0, steps, values.shape[1] if channels is None else len(channels)), dtype=np.float32)
    if channels is None:
        found: Float32Array = sliding_window_view(values, (steps, values.shape[1]))[:, 0][first]
        return found
    rows = sliding_window_view(values, steps, axis=0)
    return np.ascontiguousarray(rows[first[:, None], np.array(channels)].transpose(0, 2, 1))


def evenly(windows: WindowSet, most: int, batch_size: int) -> Iterator[Int64Array]:
    """Numbers of at most so many windows, evenly spread over all of them, in batches."""
    chosen = np.unique(np.linspace(0, len(windows) - 1, min(most, len(windows))).round().astype(np.int64))
    for start in range(0, len(chosen), batch_size):
        yield chosen[start : start + batch_size]


def joined(parts: Sequence[Float32Array]) -> Float32Array:
    """The parts one behind the other; not copied where they lie so already, as in a table larger than the memory."""
    if len(parts) == 1:
        return parts[0]
    whole = parts[0].base
    if isinstance(whole, np.ndarray) and whole.dtype == np.float32 and whole.ndim == parts[0].ndim:
        address = whole.__array_interface__["data"][0]
        start = parts[0].__array_interface__["data"][0]
        row = whole.strides[0]
        ends = np.cumsum([len(part) for part in parts])
        places = [part.__array_interface__["data"][0] for part in parts]
        if whole.shape[1:] == parts[0].shape[1:] and all(
            part.base is whole and part.strides == whole.strides and place == start + row * int(end - len(part))
            for part, place, end in zip(parts, places, ends, strict=True)
        ):
            offset = (start - address) // row
            return whole[offset : offset + int(ends[-1])]
    return np.concatenate(parts)


def build_windows(
    values: Sequence[Float32Array],
    ranges: Sequence[tuple[int, int]],
    *,
    context_length: int,
    horizon: int,
    target_indices: Sequence[int],
    stride: int = 1,
    future_indices: Sequence[int] = (),
    static: Float32Array | None = None,
    dt: Sequence[Float32Array] | None = None,
) -> WindowSet:
    """The windows whose whole target lies in each series' range and whose context lies in the series.

    One in which no target has a value is dropped and counted: there is nothing to score. So is one in whose context
    none has: there is nothing to forecast from, and whoever asked for such a forecast would be refused.

    Args:
        values: One float32 array (time, channels) a series.
        ranges: ``(start, stop)`` a series: the steps that targets may use.
        context_length: Steps before the target that the model sees; they may reach back before ``start``.
        horizon: Steps of the target.
        target_indices: Channels that are forecast.
        stride: Steps from a window to the next, counted back from the last window of each series.
        future_indices: Channels that are known in advance.
        static: float32 (series, s).
        dt: One float32 array (time,) a series.
    """
    origins: list[Int64Array] = []
    dropped = skipped = without_context = 0
    for number, (series, (start, stop)) in enumerate(zip(values, ranges, strict=True)):
        every = np.arange(max(start, context_length), stop - horizon + 1, dtype=np.int64)
        ends = every[(len(every) - 1) % stride :: stride] if len(every) else every
        skipped += len(every) - len(ends)
        present = np.concatenate(([0], np.cumsum(np.isfinite(series[:, list(target_indices)]).any(axis=1))))
        scored = ends[present[ends + horizon] > present[ends]]
        kept = scored[present[scored] > present[scored - context_length]]
        dropped += len(ends) - len(scored)
        without_context += len(scored) - len(kept)
        origins.append(np.stack([np.full_like(kept, number), kept], axis=1))
    return WindowSet(
        values,
        np.concatenate(origins),
        context_length,
        horizon,
        target_indices,
        dropped,
        skipped=skipped,
        without_context=without_context,
        future_indices=future_indices,
        static=static,
        dt=dt,
    )
