"""Splits that are stored small and turned into numbers when a batch is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stablernn.data.arrays import Float32Array, Int64Array, Samples
from stablernn.data.step_data import MAX_NUMBERS
from stablernn.data.types import SequenceSplit


class LazySplit(SequenceSplit):
    """Labelled sequences of one split that are made on demand, always the same ones.

    Args:
        make: The sequences with these numbers, float32 (n, time, features), padded with 0 after their lengths.
        held_bytes: Memory that what they are made from takes.
        lengths: int64 (samples,).
        y: int64 (samples,).
        ids: What each sequence is called.
    """

    def __init__(
        self,
        make: Callable[[Int64Array], Float32Array],
        held_bytes: int,
        lengths: Int64Array,
        y: Int64Array,
        ids: Sequence[str],
    ) -> None:
        values = {"_make": make, "_held": held_bytes, "lengths": lengths, "y": y, "ids": tuple(ids), "dt": None}
        for name, value in values.items():
            # The fields are frozen, and x is none here.
            object.__setattr__(self, name, value)

    _make: Callable[[Int64Array], Float32Array]
    _held: int

    @property
    def x(self) -> Float32Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All sequences at once, which may need more memory than there is; :meth:`gather` does not."""
        return self._make(np.arange(len(self)))

    @property
    def held_bytes(self) -> int:
        return self._held

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        chosen = np.asarray(indices, dtype=np.int64)
        x = self._make(chosen) if len(chosen) else self._make(np.arange(1))[:0]
        return Samples(x, self.lengths[chosen], self.y[chosen])

    def merged(self, other: SequenceSplit) -> SequenceSplit:
        """Return both splits as one, this one first; made on demand if both are."""
        if not isinstance(other, LazySplit):
            return super().merged(other)
        features = self._make(np.arange(1)).shape[2]
        lengths = np.concatenate([self.lengths, other.lengths])

        def make(indices: Int64Array) -> Float32Array:
            x = np.zeros((len(indices), int(lengths[indices].max()), features), np.float32)
            own = indices < len(self)
            for rows, part, numbers in ((own, self, indices), (~own, other, indices - len(self))):
                if rows.any():
                    found = part.gather(numbers[rows]).x
                    x[rows, : found.shape[1]] = found
            return x

        held = self.held_bytes + other.held_bytes
        return LazySplit(make, held, lengths, np.concatenate([self.y, other.y]), (*self.ids, *other.ids))

    def sequences(self) -> list[Float32Array]:
        return self._each(np.arange(len(self)))

    def for_scaling(self) -> list[Float32Array]:
        """All sequences or, where they are more than :data:`MAX_NUMBERS` numbers, as many as that drawn from them."""
        numbers = self._make(np.arange(1)).shape[2] * int(self.lengths.sum())
        count = min(len(self), max(1, len(self) * MAX_NUMBERS // numbers))
        # Drawn, not counted off: the images of MNIST alternate between two sources, of 6 % different brightness.
        return self._each(np.sort(np.random.RandomState(0).permutation(len(self))[:count]))

    def _each(self, indices: Int64Array) -> list[Float32Array]:
        return [self._make(indices[i : i + 1])[0, : self.lengths[indices[i]]] for i in range(len(indices))]
