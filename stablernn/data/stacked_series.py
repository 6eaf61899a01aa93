"""The series of a table as the slices of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import numpy as np

from stablernn.data.arrays import Float32Array, Int64Array, Timestamps
from stablernn.data.types import Series


class StackedSeries(Sequence[Series]):
    """Series whose rows follow each other in one array; each is made when it is asked for.

    Tables of many short series are read several times as fast as with an object for each.

    Args:
        names: Names of the series.
        ds: Timestamps of all rows.
        values: float32 (rows, channels).
        ends: End of each series.
        static: float32 (series, s), values that are constant for each; None without them.
    """

    def __init__(
        self, names: Sequence[str], ds: Timestamps, values: Float32Array, ends: Int64Array, static: Float32Array | None
    ) -> None:
        self._names, self._ds, self._values, self._static = tuple(names), ds, values, static
        self._ends: list[int] = ends.tolist()
        self._starts = [0, *self._ends[:-1]]

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> Series: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Series, ...]: ...
    def __getitem__(self, index: int | slice) -> Series | tuple[Series, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        start, end = self._starts[index], self._ends[index]
        series = (self._names[index], self._ds[start:end], self._values[start:end])
        return Series(*series) if self._static is None else Series(*series, self._static[index])

    def __iter__(self) -> Iterator[Series]:
        return map(self.__getitem__, range(len(self)))

    @property
    def lengths(self) -> Int64Array:
        """Rows of each series."""
        return np.array(self._ends, dtype=np.int64) - np.array(self._starts, dtype=np.int64)

    @property
    def common_length(self) -> int | None:
        """The number of rows of every series; None if they differ."""
        steps, remainder = divmod(len(self._ds), len(self))
        return None if remainder or self._ends != list(range(steps, len(self._ds) + 1, steps)) else steps

    @property
    def have_equal_stamps(self) -> bool:
        """True if all series have the same timestamps."""
        steps = self.common_length
        return steps is not None and bool((self._ds.reshape(len(self), steps) == self._ds[:steps]).all())


def names_of(series: Sequence[Series]) -> tuple[str, ...]:
    """Return the name of each series."""
    return series._names if isinstance(series, StackedSeries) else tuple(each.unique_id for each in series)


def values_of(series: Sequence[Series]) -> Sequence[Float32Array]:
    """Return the values of each series, (time, channels)."""
    return StackedValues(series) if isinstance(series, StackedSeries) else [each.values for each in series]


class StackedValues(Sequence[Float32Array]):
    """The values of stacked series, without the series.

    Args:
        series: The series.
    """

    def __init__(self, series: StackedSeries) -> None:
        self._series = series

    def __len__(self) -> int:
        return len(self._series)

    @overload
    def __getitem__(self, index: int) -> Float32Array: ...
    @overload
    def __getitem__(self, index: slice) -> list[Float32Array]: ...
    def __getitem__(self, index: int | slice) -> Float32Array | list[Float32Array]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._series._values[self._series._starts[index] : self._series._ends[index]]

    @property
    def lengths(self) -> Int64Array:
        """Rows of each series."""
        return self._series.lengths

    def as_array(self) -> Float32Array | None:
        """Return the values as one array (series, time, channels); None if lengths differ."""
        steps = self._series.common_length
        values = self._series._values
        return None if steps is None else values.reshape(len(self), steps, values.shape[1])


def lengths_of(values: Sequence[Float32Array]) -> Int64Array:
    """Return the steps of each sequence."""
    if isinstance(values, StackedValues):
        return values.lengths
    return np.fromiter(map(len, values), dtype=np.int64, count=len(values))
