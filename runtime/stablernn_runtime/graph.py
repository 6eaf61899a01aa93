"""One graph of a model: its inputs and outputs, the states that it carries, and the session that runs it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray

from stablernn_registry import GraphSignature, StateSignature
from stablernn_runtime.engines.session import RUNTIME_ERRORS, Session
from stablernn_runtime.errors import NotReadyError
from stablernn_runtime.state_guard import StateGuard
from stablernn_runtime.step_buffers import MAX_ROWS, StepBuffers, create_pool

Array = NDArray[Any]


class CancellationToken:
    """Ends an inference from another thread; each request needs its own.

    Attributes:
        options: Options for ``InferenceSession.run``, which reads them between two nodes of the graph.
        is_set: True once :meth:`set` was called.
    """

    def __init__(self) -> None:
        self.is_set = False
        self.options = _run_options()

    def set(self) -> None:
        """End the run that has :attr:`options`, and every later one."""
        self.options.terminate = True
        self.is_set = True


class Graph:
    """A graph over whole sequences, or over one step. Safe to run from several threads at once.

    Attributes:
        signature: Inputs and outputs as the manifest states them.
        inputs: The inputs by name.
        outputs: The outputs by name.
        session: The session that runs the graph.
        states: The states that the graph takes and gives.
        state_outputs: Names of the outputs that are states.
        guard: The balls in which the certificate says that the states stay.
        guarded: The outputs that are states with a ball, with the input that each feeds.
        ref: ``NAME:VERSION`` of the model.
        last_run: When the graph was last run, on the monotonic clock.
    """

    def __init__(
        self,
        signature: GraphSignature,
        session: Session,
        states: Sequence[StateSignature],
        guard: StateGuard,
        ref: str,
        device: str = "cpu",
    ) -> None:
        self.signature = signature
        self.inputs = {tensor.name: tensor for tensor in signature.inputs}
        self.outputs = {tensor.name: tensor for tensor in signature.outputs}
        self.session = session
        self.states = tuple(states)
        self.state_outputs = frozenset(state.output for state in states)
        self.guard = guard
        self.guarded = {state.output: state.input for state in states if state.input in guard.balls}
        self.ref = ref
        self.last_run = time.monotonic()
        self._buffers = create_pool(session, signature, states, device)
        self._run_options = _run_options()

    def run(
        self, feeds: Mapping[str, Array], names: Sequence[str], cancellation: CancellationToken | None
    ) -> dict[str, Array]:
        """Return the outputs ``names``, and the guarded ones, which are computed whether they are asked for or not.

        Args:
            feeds: All inputs, in the shapes and dtypes of the graph.
            names: Names of outputs.
            cancellation: Ends the run from another thread.

        Raises:
            NotReadyError: If the run was ended.
            RUNTIME_ERRORS: If it fails.
        """
        names = [*names, *(name for name in self.guarded if name not in names)]
        options = None if cancellation is None else cancellation.options
        # Before the run: a model that is running is in use.
        self.last_run = time.monotonic()
        try:
            values: Sequence[Any] = self.session.run(names, feeds, options)
        except RUNTIME_ERRORS as error:
            _raise_if_ended(error, cancellation)
            raise
        # Sessions return values only, in the order of the names.
        return dict(zip(names, values, strict=True))

    def take_buffers(self, rows: int) -> StepBuffers | None:
        """Return buffers for steps of ``rows`` streams, which nobody else uses until :meth:`put_back` is called.

        None where the graph takes whole sequences, the engine cannot bind buffers, or the streams are too many for them
        to save time.
        """
        return None if self._buffers is None or rows > MAX_ROWS else self._buffers.take(rows)

    def put_back(self, buffers: StepBuffers) -> None:
        """Let other runs use buffers; those of a run that failed are dropped instead."""
        assert self._buffers is not None
        self._buffers.put_back(buffers)

    def run_buffers(self, buffers: StepBuffers, cancellation: CancellationToken | None) -> None:
        """Run one step from the inputs and states in ``buffers``, and leave its results there.

        Raises:
            NotReadyError: If the run was ended.
            RUNTIME_ERRORS: If it fails.
        """
        self.last_run = time.monotonic()
        try:
            buffers.run(self._run_options if cancellation is None else cancellation.options)
        except RUNTIME_ERRORS as error:
            _raise_if_ended(error, cancellation)
            raise


def _run_options() -> ort.RunOptions:
    """Return options for a run that can be ended, and whose end is not logged as an error."""
    options = ort.RunOptions()
    # ONNX Runtime would log every run that is ended as an error.
    options.log_severity_level = 4
    # Captured graphs are a matter of GPUs. Python's binding looks this entry up in every run with bound buffers, and
    # without it raises and catches an exception, which takes longer than the run.
    options.add_run_config_entry("gpu_graph_id", "-1")
    return options


def _raise_if_ended(error: Exception, cancellation: CancellationToken | None) -> None:
    """Raise the error of a run that was ended, which ONNX Runtime reports as a failed one."""
    if cancellation is not None and cancellation.is_set:
        raise NotReadyError(
            "The inference was ended: the server is shutting down, or nobody waits for the answer any more."
        ) from error


def count_step_elements(step: GraphSignature) -> int:
    """Count the numbers in and out of one step of one stream."""
    return sum(prod(size for size in tensor.shape if isinstance(size, int)) for tensor in (*step.inputs, *step.outputs))


def count_row_elements(sequence: Graph, horizon: int) -> tuple[int, int]:
    """Count the numbers of one sequence in all inputs and outputs of a run.

    Args:
        sequence: The graph over whole sequences.
        horizon: Steps ahead of a recursive head, which repeats its answers and future values as often; 1 of any other.

    Returns:
        The numbers of a sequence of any length, and those of each of its time steps.
    """
    fixed = timed = 0
    for name, tensor in (*sequence.inputs.items(), *sequence.outputs.items()):
        is_answer = name in sequence.outputs and name not in sequence.state_outputs
        size = prod(extent for extent in tensor.shape if isinstance(extent, int))
        size *= horizon if is_answer or name == "future" else 1
        if "time" in tensor.shape:
            timed += size
        else:
            fixed += size
    return fixed, timed
