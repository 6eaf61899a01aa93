"""One graph of a model: its inputs and outputs, the states that it carries, the session that runs it, and its failed
allocations."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import GraphSignature, StateSignature
from stablernn_runtime.engines.session import RUN_ERRORS, Session, create_run_options
from stablernn_runtime.errors import NotReadyError, OutOfMemoryError
from stablernn_runtime.state_guard import StateGuard
from stablernn_runtime.step_buffers import StepBuffers, create_pool

Array = NDArray[Any]

# Messages of its arena with and without a limit, of its CPU allocator, and of the CUDA runtime and cuBLAS.
_MARKS = (
    "bad_alloc",
    "Failed to allocate memory",
    "is smaller than requested bytes",
    "out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
)
_LIMITED = re.compile(r"Available memory of (\d+) is smaller than requested bytes of (\d+)")
_REQUESTED = re.compile(r"requested buffer of size (\d+)")


@dataclass(frozen=True)
class RunSize:
    """Size of a run.

    Attributes:
        rows: Sequences or streams.
        steps: Time steps of the longest sequence; None for one step of streams.
    """

    rows: int
    steps: int | None

    def halve(self) -> RunSize | None:
        """Return the size of half as many sequences, or of one of half as many steps; None below one of one step."""
        if self.rows > 1:
            return RunSize(self.rows // 2, self.steps)
        return RunSize(1, self.steps // 2) if (self.steps or 1) > 1 and self.steps is not None else None

    def __str__(self) -> str:
        if self.steps is None:
            return f"one step of {self.rows} stream{'s' if self.rows > 1 else ''}"
        steps = f"{self.steps} time step{'s' if self.steps > 1 else ''}"
        return f"one sequence of {steps}" if self.rows == 1 else f"{self.rows} sequences of {steps}"


class CancellationToken:
    """Ends an inference from another thread; each request needs its own.

    Attributes:
        options: Options for ``InferenceSession.run``, which reads them between two nodes of the graph.
        is_set: True once :meth:`set` was called.
    """

    def __init__(self) -> None:
        self.is_set = False
        self.options = create_run_options()

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
        output_by_state: Names of the outputs that are states, by the name of the input that each feeds.
        state_outputs: Names of the outputs that are states.
        guard: The balls in which the certificate says that the states stay.
        guarded: The outputs that are states with a ball, with the input that each feeds.
        ref: ``NAME:VERSION`` of the model.
        last_run: When the graph was last run, on the monotonic clock.
        memory_limit: Bytes that its runs may take on a GPU; None without a limit.
    """

    def __init__(
        self,
        signature: GraphSignature,
        session: Session,
        states: Sequence[StateSignature],
        guard: StateGuard,
        ref: str,
        memory_limit: int | None = None,
    ) -> None:
        self.signature = signature
        self.inputs = {tensor.name: tensor for tensor in signature.inputs}
        self.outputs = {tensor.name: tensor for tensor in signature.outputs}
        self.session = session
        self.states = tuple(states)
        self.output_by_state = {state.input: state.output for state in states}
        self.state_outputs = frozenset(state.output for state in states)
        self.guard = guard
        self.guarded = {state.output: state.input for state in states if state.input in guard.balls}
        self.ref = ref
        self.last_run = time.monotonic()
        self.memory_limit = memory_limit
        # An input that has both axes of a run's size, such as x (batch, time, features); of a step, any input.
        self._sized_input = next(
            (tensor.name for tensor in signature.inputs if tensor.shape[1:2] == ["time"]), signature.inputs[0].name
        )
        self._is_timed = self.inputs[self._sized_input].shape[1:2] == ["time"]
        # A size that was too large, and the one that was found to fit in its place.
        self._fit: tuple[RunSize, RunSize] | None = None
        self._buffers = create_pool(session, signature, states)
        self._run_options = create_run_options()

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
            OutOfMemoryError: If there is too little memory for it.
            RUNTIME_ERRORS: If it fails.
        """
        names = [*names, *(name for name in self.guarded if name not in names)]
        options = None if cancellation is None else cancellation.options
        # Before the run: a model that is running is in use.
        self.last_run = time.monotonic()
        try:
            values: Sequence[Any] = self.session.run(names, feeds, options)
        except RUN_ERRORS as error:
            _raise_if_ended(error, cancellation)
            self._raise_if_out_of_memory(error, self._size_of(feeds))
            raise
        # Sessions return values only, in the order of the names.
        return dict(zip(names, values, strict=True))

    def explain_out_of_memory(
        self,
        error: OutOfMemoryError,
        feeds: Mapping[str, Array],
        names: Sequence[str],
        cancellation: CancellationToken | None,
    ) -> OutOfMemoryError:
        """Find a size that fits by runs of half of it and less, and return the error with that size.

        A run fails as soon as it asks for too much, so all of them together take about as long as one that fits.

        Args:
            error: The error of :meth:`run`.
            feeds: The inputs of that run.
            names: Its outputs.
            cancellation: Ends the search from another thread.

        Raises:
            NotReadyError: If the search was ended.
            RUNTIME_ERRORS: If a run fails for another reason.
        """
        size = self._size_of(feeds)
        # A client that repeats its request does not repeat the search.
        fit = self._fit[1] if self._fit is not None and self._fit[0] == size else None
        candidate = size.halve()
        while fit is None and candidate is not None:
            try:
                self.run(self._cut(feeds, candidate), names, cancellation)
            except OutOfMemoryError:
                candidate = candidate.halve()
            else:
                fit = candidate
                self._fit = size, fit
        return OutOfMemoryError(describe_shortage(error.__cause__ or error, self.ref, size, self.memory_limit, fit))

    def _cut(self, feeds: Mapping[str, Array], size: RunSize) -> dict[str, Array]:
        """Return the first sequences of inputs, cut to a number of time steps."""
        cut = {}
        for name, value in feeds.items():
            rows = value[: size.rows]
            if size.steps is not None:
                rows = np.minimum(rows, size.steps) if name == "lengths" else rows
                rows = rows[:, : size.steps] if self.inputs[name].shape[1:2] == ["time"] else rows
            cut[name] = np.ascontiguousarray(rows)
        return cut

    def take_buffers(self, rows: int) -> StepBuffers | None:
        """Return buffers for steps of ``rows`` streams, which nobody else uses until :meth:`put_back` is called.

        None where the graph takes whole sequences, the engine cannot bind buffers, or the streams are too many for them
        to save time.

        Raises:
            OutOfMemoryError: If there is too little memory for them.
            RUNTIME_ERRORS: If they cannot be created.
        """
        if self._buffers is None or rows > self._buffers.max_rows:
            return None
        try:
            return self._buffers.take(rows)
        except RUN_ERRORS as error:
            self._raise_if_out_of_memory(error, RunSize(rows, None))
            raise

    def put_back(self, buffers: StepBuffers) -> None:
        """Let other runs use buffers; those of a run that failed are dropped instead."""
        assert self._buffers is not None
        self._buffers.put_back(buffers)

    def run_buffers(self, buffers: StepBuffers, cancellation: CancellationToken | None) -> None:
        """Run one step from the inputs and states in ``buffers``, and leave its results there.

        Raises:
            NotReadyError: If the run was ended.
            OutOfMemoryError: If there is too little memory for it.
            RUNTIME_ERRORS: If it fails.
        """
        self.last_run = time.monotonic()
        try:
            buffers.run(self._run_options if cancellation is None else cancellation.options)
        except RUN_ERRORS as error:
            _raise_if_ended(error, cancellation)
            self._raise_if_out_of_memory(error, RunSize(buffers.rows, None))
            raise

    def _size_of(self, feeds: Mapping[str, Array]) -> RunSize:
        shape = feeds[self._sized_input].shape
        return RunSize(shape[0], shape[1] if self._is_timed else None)

    def _raise_if_out_of_memory(self, error: Exception, size: RunSize) -> None:
        """Raise a failed allocation as an error with the size of a run that should fit."""
        if is_out_of_memory(error):
            raise OutOfMemoryError(describe_shortage(error, self.ref, size, self.memory_limit)) from error


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


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is a failed allocation, or was caused by one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError) or any(mark in str(cause) for mark in _MARKS):
            return True
        cause = cause.__cause__
    return False


def describe_shortage(
    error: BaseException, ref: str, size: RunSize, memory_limit: int | None = None, fit: RunSize | None = None
) -> str:
    """Return the sentence of an :class:`~stablernn_runtime.errors.OutOfMemoryError`.

    Args:
        error: The failed allocation.
        ref: ``NAME:VERSION`` of the model.
        size: Size of the run.
        memory_limit: Limit of the memory on a GPU in bytes; None without one.
        fit: A size that fits; None where none is known.
    """
    figures = ""
    if (match := _LIMITED.search(str(error))) is not None:
        figures = f" ({match[2]} bytes were asked for, {match[1]} are left)"
    elif (match := _REQUESTED.search(str(error))) is not None:
        figures = f" ({match[1]} bytes were asked for)"
    advice = "send fewer streams at a time" if size.steps is None else "send fewer or shorter series at a time"
    if fit is not None:
        advice = f"{fit} fit{'s' if fit.rows == 1 else ''}: {advice}"
    or_raise = "" if memory_limit is None else f", or raise the limit of {memory_limit} bytes (--gpu-mem-limit)"
    return f"Model '{ref}' has too little memory for {size}{figures}; {advice}{or_raise}."
