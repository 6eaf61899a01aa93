"""A stream: the state that a model carries from one sample to the next.

Many streams of one model have stacked states: a frame that steps some of them gathers once, not for each stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stablernn_registry import RefError, parse_ref
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.state_token import StreamSnapshot
from stablernn_runtime.stream_clock import Clock
from stablernn_runtime.stream_spec import stream_spec
from stablernn_server.batching.types import Array
from stablernn_server.errors import TooManyError, UnknownModelError
from stablernn_server.model_repository import ModelRepository

Rows = slice | list[int]


@dataclass(slots=True)
class Stream:
    """One stream, as it is after its last sample.

    Attributes:
        model: The model that it began with; a newer version does not take it over.
        step: Samples taken.
        states: By input name, ``(1, ...)``, with the samples of an unfinished patch and the states of the estimates
            that the stream updates; empty at the beginning, which stands for zeros.
        static: ``(1, names)``, where the model takes any.
        clock: The time of the last reading.
    """

    model: ServedModel
    step: int = 0
    states: dict[str, Array] = field(default_factory=dict)
    static: Array | None = None
    clock: Clock = Clock()

    def snapshot(self) -> StreamSnapshot:
        """Return the content of a state token of the stream."""
        shapes = stream_spec(self.model).state_shapes
        # A stream that has not begun has no states yet, a token of it has zeros.
        states = {
            name: self.states[name][0] if name in self.states else np.zeros(shape, dtype)
            for name, (shape, dtype) in shapes.items()
        }
        static = np.empty(0, np.float32) if self.static is None else self.static[0]
        return StreamSnapshot(self.model.ref, self.model.digest, self.step, self.clock, static, states)


def matches_reference(snapshot: StreamSnapshot, reference: str) -> bool:
    """Return whether a reference may stand for the version of a state token.

    A name alone or with an alias may stand for any version of the model, since the token itself says which one.

    Args:
        snapshot: From :meth:`StateTokens.read`.
        reference: ``NAME``, ``NAME@ALIAS`` or ``NAME:VERSION``.

    Raises:
        UnknownModelError: If the reference is none of these.
    """
    try:
        ref = parse_ref(reference)
    except RefError as error:
        raise UnknownModelError(str(error)) from error
    name, _, number = snapshot.model.rpartition(":")
    return ref.name == name and ref.version in (None, int(number))


async def restore_stream(snapshot: StreamSnapshot, models: ModelRepository, deadline: float | None = None) -> Stream:
    """Return the stream of a state token.

    Args:
        snapshot: From :meth:`StateTokens.read`.
        models: The models of this server.
        deadline: Until when to wait for the version to be opened, on the clock of the event loop.

    Raises:
        VersionGoneError: If the version of the token is not available any more.
        BadTokenError: If the states of the token do not fit the version.
    """
    name, _, number = snapshot.model.rpartition(":")
    model = await models.find_by_digest(snapshot.digest, name, int(number), deadline)
    return stream_from_snapshot(snapshot, model)


def stream_from_snapshot(snapshot: StreamSnapshot, model: ServedModel) -> Stream:
    """Return the stream of a state token whose model is open.

    Raises:
        BadTokenError: If the states of the token do not fit the model.
    """
    content = stream_spec(model).check_token(snapshot)
    # With an axis over streams: (1, ...).
    states = {name: value[None] for name, value in content.states.items()}
    static = content.static[None] if content.static.size else None
    return Stream(model, content.step, states, static, content.clock)


def copy_views(states: Mapping[str, Array]) -> dict[str, Array]:
    """Return states without views, which keep the array of a whole batch alive."""
    # `base` is None for arrays that own their memory.
    return {name: value if value.base is None else value.copy() for name, value in states.items()}


class StreamBatch:
    """The streams of one model on one socket; row ``i`` of each array belongs to the same stream.

    Attributes:
        spec: Samples and outputs of the streams.
        model: The model.
        max_streams: Streams that it may hold.
        steps: Samples that each stream has taken, by row.
    """

    def __init__(self, model: ServedModel, max_streams: int) -> None:
        self.spec = stream_spec(model)
        self.model = model
        self.max_streams = max_streams
        self._rows: dict[int, int] = {}
        self._numbers: list[int] = []
        self.steps: list[int] = []
        # Without an entry for streams that were never given a time: with binary frames, that is all of them.
        self._clocks: dict[int, Clock] = {}
        # Both have more rows than there are streams, since they grow by doubling.
        self._states = {name: np.zeros((1, *shape), dtype) for name, (shape, dtype) in self.spec.state_shapes.items()}
        self._static = np.full((1, self.spec.static_size), np.nan, np.float32)

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, number: int) -> bool:
        return number in self._rows

    @property
    def numbers(self) -> list[int]:
        """The numbers of the open streams, by row."""
        return list(self._numbers)

    @property
    def has_clocks(self) -> bool:
        """True if any stream was given a time."""
        return bool(self._clocks)

    def claim(self, numbers: Sequence[int]) -> Rows:
        """Return the rows of streams, and begin those that are new.

        Raises:
            TooManyError: If they would be more than a socket may carry.
        """
        rows = self._rows
        new_numbers = [number for number in numbers if number not in rows]
        if new_numbers:
            check_stream_count(len(rows) + len(new_numbers), self.max_streams)
            self._begin(new_numbers)
        if len(numbers) == 1:
            row = rows[numbers[0]]
            return slice(row, row + 1)
        indices = [rows[number] for number in numbers]
        # A client that steps all its streams in one order does so in every frame, and a slice needs no copy.
        first, stop = indices[0], indices[0] + len(indices)
        return slice(first, stop) if indices == list(range(first, stop)) else indices

    def states(self, rows: Rows) -> dict[str, Array]:
        """Return states by input name, ``(rows, ...)``; read-only, they may be views."""
        return {name: value[rows] for name, value in self._states.items()}

    def static(self, rows: Rows) -> Array:
        """Return static values, ``(rows, names)``; read-only, they may be a view."""
        return self._static[rows]

    def set_states(self, rows: Rows, states: dict[str, Array]) -> None:
        """Set the states from which streams go on."""
        for name, value in states.items():
            self._states[name][rows] = value

    def advance_clocks(self, numbers: Sequence[int], steps: Sequence[float]) -> dict[int, Clock]:
        """Return the clocks of those streams that have one, ``steps`` regular steps later, without setting them."""
        clocks = {}
        for number, count in zip(numbers, steps, strict=True):
            clock = self._clocks.get(number)
            if clock is not None:
                clocks[number] = Clock(clock.origin, clock.steps + count)
        return clocks

    def set_clocks(self, clocks: dict[int, Clock]) -> None:
        """Set the clocks of streams that have one."""
        self._clocks |= clocks

    def preview(
        self, rows: Rows, steps: Sequence[int], states: dict[str, Array], clocks: dict[int, Clock]
    ) -> list[Stream]:
        """Return streams as they will be once ``steps``, ``states`` and ``clocks`` are set."""
        indices = range(rows.start, rows.stop) if isinstance(rows, slice) else rows
        streams = []
        for index, (row, step) in enumerate(zip(indices, steps, strict=True)):
            stream_states = {name: value[index : index + 1] for name, value in states.items()}
            static = self._static[row : row + 1] if self.spec.static_size else None
            clock = clocks.get(self._numbers[row], Clock())
            streams.append(Stream(self.model, step, stream_states, static, clock))
        return streams

    def stream(self, number: int) -> Stream:
        """Return one stream, whose arrays are views; a new one begins."""
        rows = self.claim([number])
        assert isinstance(rows, slice)
        static = self._static[rows] if self.spec.static_size else None
        clock = self._clocks.get(number, Clock())
        return Stream(self.model, self.steps[rows.start], self.states(rows), static, clock)

    def put(self, number: int, stream: Stream) -> None:
        """Set all of one stream; a new one begins."""
        rows = self.claim([number])
        assert isinstance(rows, slice)
        self.set_states(rows, stream.states)
        self.steps[rows.start] = stream.step
        # NaN: not known.
        self._static[rows] = np.nan if stream.static is None else stream.static
        self._clocks.pop(number, None)
        if stream.clock.origin is not None:
            self._clocks[number] = stream.clock

    def copy(self, number: int) -> Stream:
        """Return one stream with arrays of its own."""
        stream = self.stream(number)
        stream.states = {name: value.copy() for name, value in stream.states.items()}
        stream.static = None if stream.static is None else stream.static.copy()
        return stream

    def truncate(self, count: int) -> None:
        """Drop all but the first ``count`` rows: the streams that began last, if none was dropped since."""
        for number in reversed(self._numbers[count:]):
            self.drop(number)

    def drop(self, number: int) -> int | None:
        """Drop a stream; return its samples so far, or None if there is no such stream."""
        row = self._rows.pop(number, None)
        if row is None:
            return None
        steps, last = self.steps[row], len(self._numbers) - 1
        # The last row fills the gap, so that the rows in use are always the first ones.
        if row != last:
            for value in (*self._states.values(), self._static):
                value[row] = value[last]
            self.steps[row], self._numbers[row] = self.steps[last], self._numbers[last]
            self._rows[self._numbers[row]] = row
        self.steps.pop()
        self._numbers.pop()
        self._clocks.pop(number, None)
        return steps

    def _begin(self, new_numbers: Sequence[int]) -> None:
        first, capacity = len(self._numbers), len(self._static)
        needed = first + len(new_numbers)
        if needed > capacity:
            capacity = min(self.max_streams, max(needed, 2 * capacity))
            self._states = {name: _grow(value, capacity, 0) for name, value in self._states.items()}
            self._static = _grow(self._static, capacity, np.nan)
        # Rows of streams that were dropped still hold their values.
        for value in self._states.values():
            value[first:needed] = 0
        self._static[first:needed] = np.nan
        for row, number in enumerate(new_numbers, first):
            self._rows[number] = row
            self._numbers.append(number)
            self.steps.append(0)


def check_stream_count(count: int, max_streams: int) -> None:
    """Raise if a socket may not carry ``count`` streams.

    Raises:
        TooManyError: With both numbers.
    """
    if count > max_streams:
        raise TooManyError(
            f"A socket carries at most {max_streams} streams, got {count}; close some of them, or open another socket."
        )


def _grow(value: Array, rows: int, fill: float) -> Array:
    """Return a copy of ``value`` with ``rows`` rows, the new ones filled with ``fill``."""
    larger = np.full((rows, *value.shape[1:]), fill, value.dtype)
    larger[: len(value)] = value
    return larger
