"""Windows over series: the steps that a forecast sees and those that it must hit, gathered on demand, not stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from stablernn.data.arrays import Float32Array, Int64Array, Samples, SplitName


class SampleSource(Protocol):
    """Numbered samples, such as a split of sequences or of windows."""

    def __len__(self) -> int: ...

    def gather(self, indices: Int64Array) -> Samples: ...


class WindowSet:
    """All windows of one split over all series.

    A window is identified by its origin ``(series, end)``: its context is steps ``end - context_length .. end - 1`` of
    that series, its targets are steps ``end .. end + horizon - 1``. Steps before the start of a series are missing.

    Args:
        values: One float32 array (time, channels) per series.
        origins: int64 (windows, 2) of series index and end index, in the order in which the windows are numbered:
            series by series.
        context_length: Steps that the model sees.
        horizon: Steps that the model forecasts.
        target_indices: Channels that are forecast, in the order of the targets.
        dropped: Windows left out because no target in them has a value.
        skipped: Windows left out by the stride.
        without_context: Windows left out because no target has a value in their context.
        future_indices: Channels that are known in advance, in their order.
        static: float32 (series, s), values that are constant for each series.
        dt: One float32 array (time,) per series: the time since the previous step, in regular steps.
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
        # One array over all series, so that a batch of windows is cut out by one indexing operation.
        self._flat = concatenate_series(values)
        self._static = static
        self._dt = None if dt is None else concatenate_series(dt)
        lengths = np.array([len(series) for series in values], dtype=np.int64)
        self._starts = np.concatenate(([0], np.cumsum(lengths)[:-1]))
        self._origins = origins

    def __len__(self) -> int:
        return len(self._origins)

    @property
    def origins(self) -> list[tuple[int, int]]:
        """``(series index, end index)`` of every window; ``end`` is its first forecast step."""
        return [(int(series), int(end)) for series, end in self._origins]

    def origin(self, index: int) -> tuple[int, int]:
        """Return ``(series index, end index)`` of one window, without a list of all."""
        series, end = self._origins[index]
        return int(series), int(end)

    def with_context(self, context_length: int) -> WindowSet:
        """Return the same windows under the same numbers with contexts of another length."""
        windows = copy(self)
        windows.context_length = context_length
        return windows

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        """Return these windows: x (n, context_length, channels), lengths (n,), y (n, horizon, targets).

        Where the data has them also ``dt`` (n, context_length), 1 at the first step, ``static`` (n, s) and ``future``
        (n, horizon, f).
        """
        series, end = self._select(indices)
        x, dt = self._contexts(self._starts[series] + end, end, self.context_length)
        lengths = np.full(len(x), self.context_length, dtype=np.int64)
        return Samples(x, lengths, self.truth(indices), dt, *self._covariates(indices))

    def gather_longer(self, indices: Sequence[int] | Int64Array, extra: int, multiple: int = 1) -> Samples:
        """Return :meth:`gather` with contexts that begin up to ``extra`` steps earlier, where the series reaches back.

        Args:
            indices: Numbers of windows.
            extra: Steps, a multiple of ``multiple``.
            multiple: Contexts grow by whole multiples of so many steps.

        Returns:
            Samples of ``context_length + extra`` steps, of which the first ``lengths`` are real.
        """
        series, end = self._select(indices)
        more = np.clip((end - self.context_length) // multiple * multiple, 0, extra)
        lengths = self.context_length + more
        first = self._starts[series] + end
        x = np.zeros((len(series), self.context_length + extra, self._flat.shape[1]), dtype=np.float32)
        dt = None if self._dt is None else np.ones(x.shape[:2], dtype=np.float32)
        # Contexts of one length are sliced together; there are at most extra / multiple + 1 lengths.
        for steps in np.unique(lengths):
            rows = np.flatnonzero(lengths == steps)
            x[rows, :steps], times = self._contexts(first[rows], end[rows], int(steps))
            if dt is not None and times is not None:
                dt[rows, :steps] = times
        return Samples(x, lengths, self.truth(indices), dt, *self._covariates(indices))

    def truth(self, indices: Sequence[int] | Int64Array) -> Float32Array:
        """Return only the y of :meth:`gather`, without the contexts, which are by far the larger part."""
        series, end = self._select(indices)
        return _slice_windows(self._flat, self._starts[series] + end, self.horizon, self.target_indices)

    def _covariates(self, indices: Sequence[int] | Int64Array) -> tuple[Float32Array | None, Float32Array | None]:
        """Return ``static`` and ``future`` of :meth:`gather`."""
        series, end = self._select(indices)
        static = None if self._static is None else self._static[series]
        if not self.future_indices:
            return static, None
        return static, _slice_windows(self._flat, self._starts[series] + end, self.horizon, self.future_indices)

    def _contexts(self, first: Int64Array, end: Int64Array, steps: int) -> tuple[Float32Array, Float32Array | None]:
        """Return the steps before targets, (n, steps, channels), and the time since the step before, (n, steps).

        Args:
            first: Positions of the first targets in the concatenated series.
            end: The same in their series.
            steps: Length of the contexts.
        """
        if (end >= steps).all():
            return self._whole_contexts(first - steps, steps)
        x = np.full((len(first), steps, self._flat.shape[1]), np.nan, dtype=np.float32)
        dt = None if self._dt is None else np.ones(x.shape[:2], dtype=np.float32)
        inside = np.minimum(end, steps)
        for count in np.unique(inside).tolist():
            rows = np.flatnonzero(inside == count)
            x[rows, steps - count :], times = self._whole_contexts(first[rows] - count, count)
            if dt is not None and times is not None:
                dt[rows, steps - count :] = times
        return x, dt

    def _whole_contexts(self, begin: Int64Array, steps: int) -> tuple[Float32Array, Float32Array | None]:
        """Return the steps from positions on in the concatenated series, and the time since the step before."""
        x = _slice_windows(self._flat, begin, steps)
        if self._dt is None:
            return x, None
        dt = _slice_windows(self._dt[:, None], begin, steps)[:, :, 0]
        # The step before the context is not seen, so the time since it is unknown: it counts as one step.
        dt[:, 0] = 1
        return x, dt

    def history(self, indices: Sequence[int] | Int64Array, steps: int) -> Float32Array:
        """Return the last ``steps`` steps before each window's targets, also where that is more than the context.

        A season can be longer than the context, and naive forecasts need all of it. Steps before the start of a series
        are NaN.

        Returns:
            float32 (windows, steps, channels).
        """
        series, end = self._select(indices)
        step = end[:, None] + np.arange(-steps, 0)
        values: Float32Array = self._flat[self._starts[series][:, None] + np.maximum(step, 0)]
        values[step < 0] = np.nan
        return values

    def _select(self, indices: Sequence[int] | Int64Array) -> tuple[Int64Array, Int64Array]:
        origins = self._origins[np.asarray(indices, dtype=np.int64)]
        return origins[:, 0], origins[:, 1]


def _slice_windows(
    values: Float32Array, first: Int64Array, steps: int, channels: Sequence[int] | None = None
) -> Float32Array:
    """Return ``values[i : i + steps]`` for each i of ``first``: (windows, steps, channels).

    It indexes a view of all windows, so no table of windows * steps indices is made.
    """
    if not len(first):
        return np.empty((0, steps, values.shape[1] if channels is None else len(channels)), dtype=np.float32)
    if channels is None:
        windows: Float32Array = sliding_window_view(values, (steps, values.shape[1]))[:, 0][first]
        return windows
    # (time - steps + 1, channels, steps): the window is the last axis.
    views = sliding_window_view(values, steps, axis=0)
    return np.ascontiguousarray(views[first[:, None], np.array(channels)].transpose(0, 2, 1))


def batch_evenly_spaced(windows: WindowSet, max_windows: int, batch_size: int) -> Iterator[Int64Array]:
    """Yield numbers of at most ``max_windows`` windows, evenly spaced over all of them, in batches."""
    numbers = evenly_spaced(len(windows), max_windows)
    for start in range(0, len(numbers), batch_size):
        yield numbers[start : start + batch_size]


def evenly_spaced(count: int, limit: int) -> Int64Array:
    """Return at most ``limit`` of the numbers below ``count``, evenly spaced: of sorted data, all of its kinds."""
    return np.unique(np.linspace(0, count - 1, min(count, limit)).round().astype(np.int64))


def concatenate_series(series: Sequence[Float32Array]) -> Float32Array:
    """Return the series one after another in one array.

    Nothing is copied where they are consecutive slices of one array already, as in a table larger than the memory.
    """
    if len(series) == 1:
        return series[0]
    base = series[0].base
    if isinstance(base, np.ndarray) and base.dtype == np.float32 and base.ndim == series[0].ndim:
        start = _address(series[0])
        row_bytes = base.strides[0]
        ends = np.cumsum([len(values) for values in series])
        if base.shape[1:] == series[0].shape[1:] and all(
            values.base is base
            and values.strides == base.strides
            and _address(values) == start + row_bytes * int(end - len(values))
            for values, end in zip(series, ends, strict=True)
        ):
            offset = (start - _address(base)) // row_bytes
            return base[offset : offset + int(ends[-1])]
    return np.concatenate(series)


def _address(array: Float32Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


def target_range(length: int, validation_steps: int, test_steps: int, split: SplitName) -> tuple[int, int]:
    """Return the steps ``start .. stop - 1`` of a series that targets of a split may use.

    The test is at the end, validation directly before it, training before that: within one series no target of a split
    is later than any target of the next. Series that end at different times are split at different times, so a training
    target of one may be later than a test target of another.
    """
    # A short series may have room for the last splits only.
    test_start = max(0, length - test_steps)
    validation_start = max(0, test_start - validation_steps)
    ranges: dict[SplitName, tuple[int, int]] = {
        "train": (0, validation_start),
        "validation": (validation_start, test_start),
        "test": (test_start, length),
    }
    return ranges[split]


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
    least_contexts: Sequence[int] | None = None,
) -> WindowSet:
    """Return the windows whose whole target lies in each series' range, with at least some steps of context.

    Windows without any target value are dropped and counted: there is nothing to score. So are those without any target
    value in their context: there is nothing to forecast from, and prediction refuses such a context.

    Args:
        values: One float32 array (time, channels) per series.
        ranges: ``(start, stop)`` per series: the steps that targets may use.
        context_length: Steps before the target that the model sees; they may reach back before ``start``.
        horizon: Steps of the target.
        target_indices: Channels that are forecast.
        stride: Steps from a window to the next, counted back from the last window of each series.
        future_indices: Channels that are known in advance.
        static: float32 (series, s).
        dt: One float32 array (time,) per series.
        least_contexts: Steps of each series that there must be before a target, 1 or more; a whole context if omitted.
    """
    least = [context_length] * len(values) if least_contexts is None else least_contexts
    origins: list[Int64Array] = []
    dropped = skipped = without_context = 0
    for number, (series, (start, stop)) in enumerate(zip(values, ranges, strict=True)):
        candidates = np.arange(max(start, least[number]), stop - horizon + 1, dtype=np.int64)
        # Counted back from the last one, so that the latest window is in the set at any stride.
        ends = candidates[(len(candidates) - 1) % stride :: stride] if len(candidates) else candidates
        skipped += len(candidates) - len(ends)
        # Cumulative counts of steps with a target value: any slice has one if the counts at its ends differ.
        present = np.concatenate(([0], np.cumsum(np.isfinite(series[:, list(target_indices)]).any(axis=1))))
        scored = ends[present[ends + horizon] > present[ends]]
        usable = scored[present[scored] > present[np.maximum(scored - context_length, 0)]]
        dropped += len(ends) - len(scored)
        without_context += len(scored) - len(usable)
        origins.append(np.stack([np.full_like(usable, number), usable], axis=1))
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
