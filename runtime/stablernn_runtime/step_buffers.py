"""Fixed buffers for the steps of streams, bound to a session once.

A run by ``InferenceSession.run`` creates a value for every input and an array for every output. A step of one stream
takes so little time that this is a third of it. Buffers that are bound once are read and written in place, and the
states that a step writes are those that the next one reads. On a GPU the states stay there from step to step, and the
inputs are bound again for each run, which copies them there.
"""

from __future__ import annotations

import sys
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from stablernn_registry import GraphSignature, StateSignature, TensorSignature
from stablernn_runtime.engines.plugins import EngineSession
from stablernn_runtime.engines.session import BoundSession, EngineFailure

Array = NDArray[Any]

MAX_ROWS = 8
"""Streams in a step up to which buffers are bound on the CPU. They save some microseconds, whatever the number of
streams, and a step of eight streams takes several times as long."""
MAX_FREE_ON_GPU = 16
"""Sets of buffers on a GPU that no run is using. There, steps of any number of streams are bound, and every number has
buffers of its own: the set that was used least recently makes room."""
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

    def read_states(self, names: Collection[str]) -> Mapping[str, Array]:
        """Return at least some of :attr:`states`; the others stay where a copy of them would take time."""
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
    """Buffers in host memory, for sessions on the CPU.

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

    def read_states(self, names: Collection[str]) -> Mapping[str, Array]:
        """Return all states, which need no copy."""
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


class DeviceBuffers:
    """Buffers whose states are on the device of a session, and whose inputs and outputs are in host memory.

    A run copies the inputs to the device and the outputs from it.

    Attributes:
        rows: Number of streams.
        inputs: Buffers of the inputs apart from the states, by name, to be filled before a run.
        outputs: Buffers of the outputs apart from the states, by name; the next run overwrites them.
    """

    def __init__(
        self, session: BoundSession, signature: GraphSignature, states: Sequence[StateSignature], rows: int
    ) -> None:
        self.rows = rows
        self._session = session.ort_session
        self._output_names = {state.input: state.output for state in states}
        specs = {spec.name: spec for spec in signature.inputs}
        self.inputs = {name: _buffer(spec, rows) for name, spec in specs.items() if name not in self._output_names}
        self.outputs = {
            spec.name: _buffer(spec, rows) for spec in signature.outputs if spec.name not in self._output_names.values()
        }
        device, device_id = session.placement.device, session.placement.device_id
        try:
            # A run reads the states of one set and writes those of the other.
            self._states, self._next_states = (
                {
                    name: ort.OrtValue.ortvalue_from_shape_and_type(
                        list(_shape(specs[name], rows)), np.dtype(specs[name].dtype).type, device, device_id
                    )
                    for name in self._output_names
                }
                for _ in range(2)
            )
            self._binding = self._session.io_binding()
            for name, buffer in self.outputs.items():
                self._binding.bind_output(name, "cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)
        except RuntimeError as error:
            raise EngineFailure(str(error)) from error

    @property
    def states(self) -> Mapping[str, Array]:
        """Copies of the states that the last run wrote, by the name of their input."""
        return self.read_states(self._states)

    def read_states(self, names: Collection[str]) -> Mapping[str, Array]:
        """Return copies of some states."""
        return {name: self._states[name].numpy() for name in names}

    def set_states(self, states: Mapping[str, Array]) -> None:
        """Copy the states from which the next run goes on, ``(rows, ...)`` by the name of their input."""
        for name, value in self._states.items():
            value.update_inplace(np.ascontiguousarray(states[name]))

    def run(self, options: ort.RunOptions) -> None:
        """Run one step.

        Args:
            options: Options of the run, which may end it from another thread.

        Raises:
            EngineFailure: If the run fails, or ``options`` end it; the buffers then hold nothing of use.
        """
        try:
            # ONNX Runtime copies an input to the device when it is bound, and not when the session runs.
            for name, buffer in self.inputs.items():
                self._binding.bind_cpu_input(name, buffer)
            for name, value in self._states.items():
                self._binding.bind_ortvalue_input(name, value)
                self._binding.bind_ortvalue_output(self._output_names[name], self._next_states[name])
            self._session.run_with_iobinding(self._binding, options)
        except RuntimeError as error:
            raise EngineFailure(str(error)) from error
        self._states, self._next_states = self._next_states, self._states


class StepBufferPool:
    """Buffers of one step graph that no run is using, by the number of streams. Safe to use from several threads.

    A run takes buffers out and puts them back when it is done, so there are as many as runs at a time.

    Attributes:
        max_rows: The largest number of streams that there are buffers for.

    Args:
        create: Creates buffers for a number of streams.
    """

    max_rows = MAX_ROWS

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


class LimitedBufferPool(StepBufferPool):
    """A pool for steps of any number of streams that keeps the :data:`MAX_FREE_ON_GPU` sets that were used last."""

    max_rows = sys.maxsize

    def __init__(self, create: Callable[[int], StepBuffers]) -> None:
        super().__init__(create)
        # Guards the list, which holds the set that was put back last at its end.
        self._lock = threading.Lock()
        self._recent: list[StepBuffers] = []

    def take(self, rows: int) -> StepBuffers:
        """Return buffers as :meth:`StepBufferPool.take`."""
        with self._lock:
            for index in range(len(self._recent) - 1, -1, -1):
                if self._recent[index].rows == rows:
                    return self._recent.pop(index)
        return self._create(rows)

    def put_back(self, buffers: StepBuffers) -> None:
        """Let other runs use buffers, and drop those that were not used for longest."""
        with self._lock:
            self._recent.append(buffers)
            del self._recent[:-MAX_FREE_ON_GPU]


def create_pool(session: object, signature: GraphSignature, states: Sequence[StateSignature]) -> StepBufferPool | None:
    """Return a pool for a step graph; None if its session cannot bind buffers, or a shape has another free axis."""
    if isinstance(session, EngineSession) and (create := session.buffers_factory()) is not None:
        return StepBufferPool(create)
    tensors = (*signature.inputs, *signature.outputs)
    if not all(spec.shape[:1] == ["batch"] and _is_fixed(spec.shape[1:]) for spec in tensors):
        return None
    if isinstance(session, BoundSession):
        return LimitedBufferPool(lambda rows: DeviceBuffers(session, signature, states, rows))
    if isinstance(session, ort.InferenceSession):
        return StepBufferPool(lambda rows: BoundBuffers(session, signature, states, rows))
    return None


def _is_fixed(shape: Sequence[int | str]) -> bool:
    return all(isinstance(size, int) for size in shape)


def _shape(spec: TensorSignature, rows: int) -> tuple[int, ...]:
    return (rows, *(size for size in spec.shape[1:] if isinstance(size, int)))


def _buffer(spec: TensorSignature, rows: int) -> Array:
    """Return an aligned array of zeros for ``rows`` streams."""
    shape = _shape(spec, rows)
    dtype = np.dtype(spec.dtype)
    memory = np.zeros(int(np.prod(shape)) * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + memory.nbytes - ALIGNMENT].view(dtype).reshape(shape)
