"""The streams of a shard: arrays with a row for each key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_runtime.scoring.stream_answers import Key
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.stream_clock import Clock
from stablernn_runtime.stream_spec import stream_spec

Array = NDArray[Any]

_COPIED_ROWS = 1 << 16


class StreamTable:
    """States and last answers of many streams. Its arrays grow by doubling, so the last rows may be unused.

    Attributes:
        keys: Keys by row.
        stride: Samples after which a stream has an answer.
        last_numbers: Number of the last event of each stream, -1 before the first, ``(capacity,)``.
        steps: Samples that each stream has taken, ``(capacity,)``.
        states: By the name of the input, ``(capacity, ...)``, with the samples of unfinished patches.
        gaps: Numbers that were skipped since the last answer, ``(capacity,)``.
        answers: Outputs for the last event by name, ``(capacity, ...)``.
        static: Values that never change within a stream, NaN where not known, ``(capacity, names)``.
        elapsed: Sum of ``dt`` since the time of :attr:`clocks`, ``(capacity,)``; without rows for models without.
        errors: Why the last event has no answer, by row.
        has_error: True for these rows, ``(capacity,)``.
        clocks: Times of streams that came from elsewhere with one, by row.
    """

    def __init__(self, model: ServedModel) -> None:
        spec = stream_spec(model)
        self.keys: list[Key] = []
        self._rows: dict[Key, int] = {}
        self.stride = spec.format.patch_stride
        self.last_numbers: Array = np.full(1, -1, np.int64)
        self.steps: Array = np.zeros(1, np.int64)
        self.states: dict[str, Array] = {
            state.input: np.zeros((1, *(int(size) for size in state.shape[1:])), np.dtype(state.dtype))
            for state in model.states
        }
        if spec.patches is not None:
            self.states |= {
                name: np.zeros((1, *shape), dtype) for name, (shape, dtype) in spec.patches.state_shapes.items()
            }
        self.gaps: Array = np.zeros(1, np.int64)
        outputs = {output.name: np.dtype(output.dtype) for output in model.step.signature.outputs}
        self.answers: dict[str, Array] = {
            name: np.zeros((1, *shape), outputs[name]) for name, shape in spec.format.outputs.items() if name in outputs
        }
        self.static: Array = np.full((1, spec.static_size), np.nan, np.float32)
        self.elapsed: Array | None = np.zeros(1, np.float64) if spec.takes_dt else None
        self.errors: dict[int, str] = {}
        self.has_error: Array = np.zeros(1, bool)
        self.clocks: dict[int, Clock] = {}

    def __len__(self) -> int:
        return len(self.keys)

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield the arrays of a checkpoint by name, without unused rows."""
        count = len(self)
        yield "last_numbers", self.last_numbers[:count]
        yield "steps", self.steps[:count]
        yield "static", self.static[:count]
        if self.elapsed is not None:
            yield "elapsed", self.elapsed[:count]
        if self.stride > 1:
            yield "gaps", self.gaps[:count]
        for name, value in self.states.items():
            yield f"state {name}", value[:count]
        for name, value in self.answers.items():
            yield f"answer {name}", value[:count]

    def restore(self, keys: Sequence[Key], arrays: Mapping[str, Array], copied: Callable[[], None]) -> None:
        """Fill an empty table with the arrays of a checkpoint, whose shapes fit.

        Args:
            keys: Keys by row.
            arrays: The arrays by name.
            copied: Called each time that some rows of an array were copied.
        """
        self.claim(keys)
        for name, value in self.arrays():
            for start in range(0, len(value), _COPIED_ROWS):
                rows = slice(start, start + _COPIED_ROWS)
                value[rows] = arrays[name][rows]
                copied()

    def find(self, key: Key) -> int | None:
        """Return the row of a key; None if it has none."""
        return self._rows.get(key)

    def claim(self, keys: Sequence[Key], static: Array | None = None) -> Array:
        """Return the rows of keys, ``(keys,)``, and begin the streams that are new.

        Args:
            keys: The keys, which may repeat.
            static: Static values for streams that begin, ``(keys, names)``.
        """
        rows, first_new = self._rows, len(self)
        indices: list[Any] = list(map(rows.get, keys))
        if None in indices:
            positions = []
            for position, row in enumerate(indices):
                if row is not None:
                    continue
                key = keys[position]
                if key not in rows:
                    rows[key] = len(self.keys)
                    self.keys.append(key)
                    positions.append(position)
                indices[position] = rows[key]
            self._reserve(len(self.keys))
            if static is not None:
                self.static[first_new : len(self)] = static[positions]
        return np.array(indices, np.int64)

    def set_results(self, rows: Array, outputs: Mapping[str, Array], states: Mapping[str, Array]) -> None:
        """Store the answers and states of streams after one more sample; rows are unique.

        Without outputs, the sample has filled no patch.
        """
        for name, value in states.items():
            self.states[name][rows] = value
        for name, value in outputs.items():
            self.answers[name][rows] = value
        self.steps[rows] += 1
        for row in rows[self.has_error[rows]].tolist():
            self.has_error[row] = False
            del self.errors[row]

    def set_error(self, row: int, text: str) -> None:
        """Store that the last event of a stream has no answer."""
        self.errors[row] = text
        self.has_error[row] = True
        for value in self.answers.values():
            value[row] = np.nan if value.dtype.kind == "f" else 0

    def is_answered(self, rows: Array) -> Array:
        """Return True for streams whose last event has an answer or an error; others have begun a patch with it."""
        is_answered: Array = self.has_error[rows] | (self.steps[rows] % self.stride == 0)
        return is_answered

    def clock(self, row: int) -> Clock:
        """Return the time of the last reading of a stream."""
        clock = self.clocks.get(row)
        return Clock() if clock is None else Clock(clock.origin, clock.steps + self._elapsed_steps(row))

    def set_clock(self, row: int, clock: Clock) -> None:
        """Set the time of the last reading of a stream."""
        self.clocks.pop(row, None)
        if self.elapsed is not None:
            self.elapsed[row] = 0
        if clock.origin is not None:
            self.clocks[row] = Clock(clock.origin, clock.steps - self._elapsed_steps(row))

    def drop(self, row: int) -> int | None:
        """Remove a stream, whose row the last one takes. Return the last row; None if it was that of the stream."""
        last = len(self) - 1
        del self._rows[self.keys[row]]
        self.errors.pop(row, None)
        self.clocks.pop(row, None)
        arrays = list(self._row_arrays())
        if row != last:
            for value, _ in arrays:
                value[row] = value[last]
            self.keys[row] = self.keys[last]
            self._rows[self.keys[row]] = row
            if last in self.errors:
                self.errors[row] = self.errors.pop(last)
            if last in self.clocks:
                self.clocks[row] = self.clocks.pop(last)
        self.keys.pop()
        # A stream that begins later finds the row as a new one.
        for value, fill in arrays:
            value[last] = fill
        return None if row == last else last

    def _elapsed_steps(self, row: int) -> float:
        """Return regular steps that count from the clock of a stream on."""
        return float(self.steps[row]) if self.elapsed is None else float(self.elapsed[row])

    def _row_arrays(self) -> Iterator[tuple[Array, float]]:
        """Yield all arrays, each with the value of its unused rows."""
        yield self.last_numbers, -1
        yield self.static, np.nan
        for value in (self.steps, self.gaps, self.has_error, *self.states.values(), *self.answers.values()):
            yield value, 0
        if self.elapsed is not None:
            yield self.elapsed, 0

    def _reserve(self, rows: int) -> None:
        capacity = len(self.steps)
        if rows <= capacity:
            return
        capacity = max(rows, 2 * capacity)
        self.last_numbers = _grow(self.last_numbers, capacity, -1)
        self.steps = _grow(self.steps, capacity)
        self.gaps = _grow(self.gaps, capacity)
        self.static = _grow(self.static, capacity, np.nan)
        self.has_error = _grow(self.has_error, capacity)
        for arrays in (self.states, self.answers):
            # One after the other, so that no two arrays are in memory twice.
            for name in arrays:
                arrays[name] = _grow(arrays[name], capacity)
        if self.elapsed is not None:
            self.elapsed = _grow(self.elapsed, capacity)


def _grow(value: Array, rows: int, fill: float = 0) -> Array:
    """Return a copy with more rows, the new ones filled."""
    shape = (rows, *value.shape[1:])
    # Unlike a fill, zeros take no memory until they are written.
    larger = np.zeros(shape, value.dtype) if fill == 0 else np.full(shape, fill, value.dtype)
    larger[: len(value)] = value
    return larger
