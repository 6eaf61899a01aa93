"""Splits that are stored compactly and converted to arrays when a batch is requested."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stablernn.data.arrays import Float32Array, Int64Array, Samples
from stablernn.data.step_data import MAX_NUMBERS
from stablernn.data.types import SequenceSplit


class LazySplit(SequenceSplit):
    """Labeled sequences of one split that are computed on demand and reproducible.

    Args:
        make: Function from indices to sequences, float32 (n, time, features), padded with 0 after their lengths.
        held_bytes: Memory of the data from which the sequences are computed.
        lengths: Sequence lengths, int64 (samples,).
        y: Classes, int64 (samples,).
        ids: Name of each sequence.
    """

    def __init__(
        self,
        make: Callable[[Int64Array], Float32Array],
        held_bytes: int,
        lengths: Int64Array,
        y: Int64Array,
        ids: Sequence[str],
    ) -> None:
        values = {"_make": make, "_num_bytes": held_bytes, "lengths": lengths, "y": y, "ids": tuple(ids), "dt": None}
        for name, value in values.items():
            # The base is a frozen dataclass, and x is a property here instead of a field.
            object.__setattr__(self, name, value)

    _make: Callable[[Int64Array], Float32Array]
    _num_bytes: int

    @property
    def x(self) -> Float32Array:  # pyright: ignore[reportIncompatibleVariableOverride]
        """All sequences at once, which may not fit into memory; :meth:`gather` computes only some."""
        return self._make(np.arange(len(self)))

    @property
    def held_bytes(self) -> int:
        """Memory of the data from which the sequences are computed."""
        return self._num_bytes

    def gather(self, indices: Sequence[int] | Int64Array) -> Samples:
        """Compute the sequences with these indices."""
        rows = np.asarray(indices, dtype=np.int64)
        # An empty batch takes its number of features from the first sequence.
        x = self._make(rows) if len(rows) else self._make(np.arange(1))[:0]
        return Samples(x, self.lengths[rows], self.y[rows])

    def merged(self, other: SequenceSplit) -> SequenceSplit:
        """Return both splits as one, this one first; computed on demand if both are."""
        if not isinstance(other, LazySplit):
            return super().merged(other)
        features = self._make(np.arange(1)).shape[2]
        lengths = np.concatenate([self.lengths, other.lengths])

        def make(indices: Int64Array) -> Float32Array:
            x = np.zeros((len(indices), int(lengths[indices].max()), features), np.float32)
            is_first = indices < len(self)
            for rows, split, numbers in ((is_first, self, indices), (~is_first, other, indices - len(self))):
                if rows.any():
                    # The two splits may pad to different lengths.
                    values = split.gather(numbers[rows]).x
                    x[rows, : values.shape[1]] = values
            return x

        num_bytes = self.held_bytes + other.held_bytes
        return LazySplit(make, num_bytes, lengths, np.concatenate([self.y, other.y]), (*self.ids, *other.ids))

    def sequences(self) -> list[Float32Array]:
        """Return all sequences without padding."""
        return self._unpadded(np.arange(len(self)))

    def for_scaling(self) -> list[Float32Array]:
        """Return all sequences or, above :data:`MAX_NUMBERS` values, a random sample of about that size."""
        numbers = self._make(np.arange(1)).shape[2] * int(self.lengths.sum())
        count = min(len(self), max(1, len(self) * MAX_NUMBERS // numbers))
        # Drawn at random: the images of MNIST alternate between two sources whose brightness differs by 6 %.
        return self._unpadded(np.sort(np.random.RandomState(0).permutation(len(self))[:count]))

    def _unpadded(self, indices: Int64Array) -> list[Float32Array]:
        return [self._make(indices[i : i + 1])[0, : self.lengths[indices[i]]] for i in range(len(indices))]
