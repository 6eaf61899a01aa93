"""Fixed buffers for the steps of streams, bound to a session once.

A run by ``InferenceSession.run`` creates a value for every input and an array for every output. A step of one stream
takes so little time that this is a third of it. Buffers that are bound once are read and written in place, and the
states that a step writes are those that the next one reads.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from stablernn_registry import GraphSignature, StateSignature, TensorSignature
from stablernn_runtime.engines.plugins import EngineSession
from stablernn_runtime.engines.session import EngineFailure

Array = NDArray[Any]

MAX_ROWS = 8
"""Streams in a step up to which buffers are bound. They save some microseconds, whatever the number of streams, and a
step of eight streams takes several times as long."""
ALIGNMENT = 64
"""Bytes to which ONNX Runtime aligns values of its own; some kernels are slower on others."""


class StepBuffers(Protocol):
    """The inputs and outputs of one step of a fixed number of streams; for one thread at a time."""

    rows: int
    """Number of streams."""

    @property
    def inputs(self) -> Mapping[str, Array]:
        """Buffers of the inputs apart from the states, by name, to be filled before a run."""
        ...

    @property
    def outputs(self) -> Mapping[str, Array]:
        """Buffers of the outputs apart from the states, by name; the next run overwrites them."""
        ...

    @property
    def states(self) -> Mapping[str, Array]:
        """The buffers of the states, by the name of their input: those that the last run wrote."""
        ...

    def set_states(self, states: Mapping[str, Array]) -> None:
        """Copy the states from which the next run goes on, ``(rows, ...)`` by the name of their input."""
        ...

    def run(self, options: ort.RunOptions) -> None:
        """Run one step.

        Args:
            options: Options of the run, which may end it from another thread.

        Raises:
            EngineFailure: If the run fails, or ``options`` end it; the buffers then hold nothing of use.
        """
        ...


class BoundBuffers:
    """The inputs and outputs of one step of a fixed number of streams; for one thread at a time.

    Attributes:
        rows: Number of streams.
        inputs: Buffers of the inputs apart from the states, by name, to be filled before a run.
        outputs: Buffers of the outputs apart from the states, by name; the next run overwrites them.
    """

    def __init__(
        self, session: ort.InferenceSession, signature: GraphSignature, states: Sequence[StateSignature], rows: int
    ) -> None:
        self.rows = rows
        self._session = session
        state_inputs = {state.input for state in states}
        state_outputs = {state.output for state in states}
        self.inputs = {spec.name: _buffer(spec, rows) for spec in signature.inputs if spec.name not in state_inputs}
        self.outputs = {spec.name: _buffer(spec, rows) for spec in signature.outputs if spec.name not in state_outputs}
        specs = {spec.name: spec for spec in signature.inputs}
        # A run reads the states of one set and writes those of the other.
        first, second = ({state.input: _buffer(specs[state.input], rows) for state in states} for _ in range(2))
        self._states, self._next_states = first, second
        self._output_names = {state.input: state.output for state in states}
        self._binding, self._next_binding = self._bind(first, second), self._bind(second, first)

    @property
    def states(self) -> dict[str, Array]:
        """The buffers of the states, by the name of their input: those that the last run wrote."""
        return self._states

    def set_states(self, states: Mapping[str, Array]) -> None:
        """Copy the states from which the next run goes on, ``(rows, ...)`` by the name of their input."""
        for name, buffer in self._states.items():
            np.copyto(buffer, states[name])

    def run(self, options: ort.RunOptions) -> None:
        """Run one step.

        Args:
            options: Options of the run, which may end it from another thread.

        Raises:
            EngineFailure: If the run fails, or ``options`` end it; the buffers then hold nothing of use.
        """
        try:
            self._session.run_with_iobinding(self._binding, options)
        except RuntimeError as error:
            # Of runs with bound buffers, ONNX Runtime does not translate its status into an exception of its own.
            raise EngineFailure(str(error)) from error
        self._states, self._next_states = self._next_states, self._states
        self._binding, self._next_binding = self._next_binding, self._binding

    def _bind(self, states: Mapping[str, Array], next_states: Mapping[str, Array]) -> ort.IOBinding:
        binding = self._session.io_binding()
        for name, buffer in (*self.inputs.items(), *states.items()):
            binding.bind_input(name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)
        next_outputs = {self._output_names[name]: buffer for name, buffer in next_states.items()}
        for name, buffer in (*self.outputs.items(), *next_outputs.items()):
            binding.bind_output(name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)
        return binding


class StepBufferPool:
    """Buffers of one step graph that no run is using, by the number of streams. Safe to use from several threads.

    A run takes buffers out and puts them back when it is done, so there are as many as runs at a time.

    Args:
        create: Creates buffers for a number of streams.
    """

    def __init__(self, create: Callable[[int], StepBuffers]) -> None:
        self._create = create
        # Appending to a deque and taking from it are atomic.
        self._free: defaultdict[int, deque[StepBuffers]] = defaultdict(deque)

    def take(self, rows: int) -> StepBuffers:
        """Return buffers for a number of streams, which nobody else uses until they are put back."""
        try:
            return self._free[rows].pop()
        except IndexError:
            return self._create(rows)

    def put_back(self, buffers: StepBuffers) -> None:
        """Let other runs use buffers; those of a run that failed are dropped instead."""
        self._free[buffers.rows].append(buffers)


def create_pool(
    session: object, signature: GraphSignature, states: Sequence[StateSignature], device: str
) -> StepBufferPool | None:
    """Return a pool for a step graph; None if its session cannot bind buffers, or a shape has another free axis."""
    if isinstance(session, EngineSession) and (create := session.buffers_factory()) is not None:
        return StepBufferPool(create)
    tensors = (*signature.inputs, *signature.outputs)
    has_fixed_shapes = all(spec.shape[:1] == ["batch"] and _is_fixed(spec.shape[1:]) for spec in tensors)
    if device != "cpu" or not isinstance(session, ort.InferenceSession) or not has_fixed_shapes:
        return None
    return StepBufferPool(lambda rows: BoundBuffers(session, signature, states, rows))


def _is_fixed(shape: Sequence[int | str]) -> bool:
    return all(isinstance(size, int) for size in shape)


def _buffer(spec: TensorSignature, rows: int) -> Array:
    """Return an aligned array of zeros for ``rows`` streams."""
    shape = (rows, *(size for size in spec.shape[1:] if isinstance(size, int)))
    dtype = np.dtype(spec.dtype)
    memory = np.zeros(int(np.prod(shape)) * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + memory.nbytes - ALIGNMENT].view(dtype).reshape(shape)
