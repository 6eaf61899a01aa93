"""Many streams of one model with their states stacked: a frame that steps some of them gathers once, not for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.stream_clock import Clock
from stablernn_runtime.stream_spec import stream_spec
from stablernn_server.errors import TooManyError
from stablernn_server.streams.stream import Stream

Array = NDArray[Any]
Rows = slice | list[int]


class StreamBatch:
    """The streams of one socket by their numbers; row ``i`` of each array belongs to the same one."""

    def __init__(self, model: ServedModel, most: int) -> None:
        self.plan = stream_spec(model)
        self.model = model
        self.most = most
        self._rows: dict[int, int] = {}
        self._numbers: list[int] = []
        self.steps: list[int] = []
        # None where a stream was never told a time, which is the rule for binary frames.
        self._clocks: dict[int, Clock] = {}
        self._states = {name: np.zeros((1, *shape), dtype) for name, (shape, dtype) in self.plan.state_shapes.items()}
        self._static = np.full((1, self.plan.static_size), np.nan, np.float32)

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, number: int) -> bool:
        return number in self._rows

    @property
    def numbers(self) -> list[int]:
        """Of the open streams."""
        return list(self._numbers)

    def check_room(self, count: int) -> None:
        """Raise if a socket may not carry ``count`` streams.

        Raises:
            TooManyError: With the numbers.
        """
        if count > self.most:
            raise TooManyError(
                f"A socket carries at most {self.most} streams, got {count}; close some of them, or open another "
                "socket."
            )

    def claim(self, numbers: Sequence[int]) -> Rows:
        """The rows of streams; one that is new begins.

        Raises:
            TooManyError: If they would be more than a socket may carry.
        """
        rows = self._rows
        new = [number for number in numbers if number not in rows]
        if new:
            self.check_room(len(rows) + len(new))
            self._begin(new)
        if len(numbers) == 1:
            row = rows[numbers[0]]
            return slice(row, row + 1)
        found = [rows[number] for number in numbers]
        # A client that steps all its streams in one order does so in every frame, and a slice needs no copy.
        first = found[0]
        return slice(first, first + len(found)) if found == list(range(first, first + len(found))) else found

    def states(self, rows: Rows) -> dict[str, Array]:
        """By input name, ``(rows, ...)``; to be read only."""
        return {name: value[rows] for name, value in self._states.items()}

    def static(self, rows: Rows) -> Array:
        """``(rows, names)``; to be read only."""
        return self._static[rows]

    def keep(self, rows: Rows, states: dict[str, Array]) -> None:
        """Go on from ``states``."""
        for name, value in states.items():
            self._states[name][rows] = value

    def ticked(self, numbers: Sequence[int], readings: Sequence[float]) -> dict[int, Clock]:
        """The clocks of those streams that have one, so many regular steps later."""
        found = {}
        for number, more in zip(numbers, readings, strict=True):
            clock = self._clocks.get(number)
            if clock is not None:
                found[number] = Clock(clock.origin, clock.steps + more)
        return found

    def set_clocks(self, clocks: dict[int, Clock]) -> None:
        """Go on from ``clocks``, of streams that have one."""
        self._clocks |= clocks

    def after(
        self, rows: Rows, steps: Sequence[int], states: dict[str, Array], clocks: dict[int, Clock]
    ) -> list[Stream]:
        """Streams as they will be once ``steps``, ``states`` and ``clocks`` are taken over."""
        indices = range(rows.start, rows.stop) if isinstance(rows, slice) else rows
        found = []
        for place, (row, step) in enumerate(zip(indices, steps, strict=True)):
            own = {name: value[place : place + 1] for name, value in states.items()}
            static = self._static[row : row + 1] if self.plan.static_size else None
            clock = clocks.get(self._numbers[row], Clock())
            found.append(Stream(self.model, step, own, static, clock))
        return found

    @property
    def has_clocks(self) -> bool:
        """Whether any stream was told a time."""
        return bool(self._clocks)

    def stream(self, number: int) -> Stream:
        """A stream by itself; one that is new begins."""
        rows = self.claim([number])
        assert isinstance(rows, slice)
        static = self._static[rows] if self.plan.static_size else None
        clock = self._clocks.get(number, Clock())
        return Stream(self.model, self.steps[rows.start], self.states(rows), static, clock)

    def put(self, number: int, stream: Stream) -> None:
        """Take over where a stream has come to."""
        rows = self.claim([number])
        assert isinstance(rows, slice)
        self.keep(rows, stream.states)
        self.steps[rows.start] = stream.step
        self._static[rows] = np.nan if stream.static is None else stream.static
        self._clocks.pop(number, None)
        if stream.clock.origin is not None:
            self._clocks[number] = stream.clock

    def copy(self, number: int) -> Stream:
        """As :meth:`stream`, with arrays of its own."""
        stream = self.stream(number)
        stream.states = {name: value.copy() for name, value in stream.states.items()}
        stream.static = None if stream.static is None else stream.static.copy()
        return stream

    def shrink(self, count: int) -> None:
        """Forget all but the ``count`` streams that were begun first, if none was dropped since."""
        for number in reversed(self._numbers[count:]):
            self.drop(number)

    def drop(self, number: int) -> int | None:
        """Forget a stream; its samples so far, or None if there is no such stream."""
        row = self._rows.pop(number, None)
        if row is None:
            return None
        steps, last = self.steps[row], len(self._numbers) - 1
        if row != last:
            for value in (*self._states.values(), self._static):
                value[row] = value[last]
            self.steps[row], self._numbers[row] = self.steps[last], self._numbers[last]
            self._rows[self._numbers[row]] = row
        self.steps.pop()
        self._numbers.pop()
        self._clocks.pop(number, None)
        return steps

    def _begin(self, new: Sequence[int]) -> None:
        first, size = len(self._numbers), len(self._static)
        needed = first + len(new)
        if needed > size:
            size = min(self.most, max(needed, 2 * size))
            self._states = {name: _grown(value, size, 0) for name, value in self._states.items()}
            self._static = _grown(self._static, size, np.nan)
        for value in self._states.values():
            value[first:needed] = 0
        self._static[first:needed] = np.nan
        for row, number in enumerate(new, first):
            self._rows[number] = row
            self._numbers.append(number)
            self.steps.append(0)


def _grown(value: Array, size: int, fill: float) -> Array:
    grown = np.full((size, *value.shape[1:]), fill, value.dtype)
    grown[: len(value)] = value
    return grown
