"""Several requests in one run of a graph: their inputs padded and stacked, the outputs split again.

Rows do not influence each other: on one CPU thread each gets the bits that it would have got alone, which
``tests/server/batching/test_batch_parity.py`` checks for every kind of model.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import TensorSignature
from stablernn_runtime.errors import InputError, OutOfMemoryError
from stablernn_runtime.graph import CancellationToken, Graph
from stablernn_runtime.step_buffers import StepBuffers
from stablernn_runtime.validation import COVARIATES

Array = NDArray[Any]


@dataclass(slots=True)
class BatchItem:
    """The checked inputs of one request, in the dtypes of the graph.

    Attributes:
        feeds: Inputs by name, without those that were left out.
        rows: Sequences, or streams.
        time: Time steps of the longest.
        names: The outputs that the request wants.
        every: For steps: whether each has an answer, or the last alone.
    """

    feeds: dict[str, Array]
    rows: int
    time: int
    names: Sequence[str]
    every: bool = True


@dataclass(slots=True)
class BatchResult:
    """The results of one item of a run.

    Attributes:
        outputs: By name.
        states: For steps: the states after them, by the names of the inputs that they feed.
        violations: States that left their balls, as the inputs are called.
    """

    outputs: dict[str, Array]
    states: dict[str, Array] = field(default_factory=dict)
    violations: set[str] = field(default_factory=set)


def run_items(
    graph: Graph, items: Sequence[BatchItem], cancellation: CancellationToken | None
) -> list[BatchResult | InputError]:
    """Run a graph once for all items together.

    Args:
        graph: A graph over whole sequences or over one step.
        items: From :meth:`ServedModel.prepare`, of one length where the graph takes no ``lengths``.
        cancellation: Ends the run from another thread.

    Returns:
        For each item its results, or the reason why there are none: an output of one item that is not finite leaves
        the results of the others alone.

    Raises:
        NotReadyError: If the run was ended.
        OutOfMemoryError: If there is too little memory for it; that of a single item says how many of its sequences
            fit.
        RUNTIME_ERRORS: If it fails.
    """
    rows = sum(batch_item.rows for batch_item in items)
    time = max(batch_item.time for batch_item in items)
    feeds = {name: _stack(name, spec, items, rows, time) for name, spec in graph.inputs.items()}
    names = dict.fromkeys(name for batch_item in items for name in batch_item.names)
    try:
        values = graph.run(feeds, list(names), cancellation)
    except OutOfMemoryError as error:
        # Requests that share a run are run one by one after it.
        if len(items) > 1:
            raise
        raise graph.explain_out_of_memory(error, feeds, list(names), cancellation) from error
    violations = graph.guard.find_violations(
        {graph.guarded[name]: value for name, value in values.items() if name in graph.guarded}, graph.ref
    )
    # By name, the rows with a number that is not finite.
    broken = {name: ~finite for name, value in values.items() if (finite := _finite_rows(value)) is not None}
    results: list[BatchResult | InputError] = []
    offset = 0
    for batch_item in items:
        span = slice(offset, offset + batch_item.rows)
        offset += batch_item.rows
        # A class or a forecast made of NaN would look like any other.
        if bad := next((name for name, is_broken in broken.items() if is_broken[span].any()), None):
            results.append(_not_finite(graph, bad, int(np.argmax(broken[bad][span]))))
            continue
        outputs = {}
        for name in batch_item.names:
            value = values[name][span]
            # The padding of shorter items is cut off.
            outputs[name] = value[:, : batch_item.time] if "time" in graph.outputs[name].shape else value
        results.append(
            BatchResult(
                outputs,
                violations={state for state, is_violated in violations.items() if is_violated[span].any()},
            )
        )
    return results


def run_steps(
    graph: Graph, items: Sequence[BatchItem], cancellation: CancellationToken | None
) -> list[BatchResult | InputError]:
    """Run several steps of several streams, each step for all streams at once.

    Args:
        graph: The graph over one step.
        items: From :meth:`ServedModel.prepare_steps`; they may have different numbers of steps.
        cancellation: Ends the run from another thread.

    Returns:
        As :func:`run_items`, with outputs of the shape ``(rows, steps, ...)``, or ``(rows, 1, ...)`` of the last step.

    Raises:
        NotReadyError: If the run was ended.
        RUNTIME_ERRORS: If it fails.
    """
    # The longest first, so that the streams with a step left are always the first rows.
    order = sorted(range(len(items)), key=lambda index: -items[index].time)
    sorted_items = [items[index] for index in order]
    rows, steps = sum(batch_item.rows for batch_item in items), sorted_items[0].time
    states = {
        state.input: _stack(state.input, graph.inputs[state.input], sorted_items, rows, steps) for state in graph.states
    }
    inputs = [
        (name, _stack_steps(name, spec, sorted_items, rows, steps))
        for name, spec in graph.inputs.items()
        if name not in states
    ]
    names = list(dict.fromkeys(name for batch_item in sorted_items for name in batch_item.names))
    # Of a long stream whose last step alone is wanted, the others would only fill the memory.
    wanted_steps = (
        range(steps)
        if any(batch_item.every for batch_item in sorted_items)
        else {batch_item.time - 1 for batch_item in sorted_items}
    )
    record = _StepRecord(graph, rows, names, wanted_steps)
    # Buffers have a fixed number of rows, so they are for streams that all end with the last step.
    buffers = graph.take_buffers(rows) if sorted_items[-1].time == steps else None
    if buffers is not None:
        states = _advance_in_buffers(graph, buffers, record, inputs, states, steps, cancellation)
        # Not after an error: ONNX Runtime does not say what a run that failed leaves behind.
        graph.put_back(buffers)
    else:
        active_rows = [
            sum(batch_item.rows for batch_item in sorted_items if batch_item.time > step) for step in range(steps)
        ]
        states = _advance(graph, record, inputs, states, active_rows, cancellation)
    results: list[BatchResult | InputError] = [BatchResult({})] * len(items)
    offset = 0
    for index, batch_item in zip(order, sorted_items, strict=True):
        span = slice(offset, offset + batch_item.rows)
        offset += batch_item.rows
        bad = next((row for row in sorted(record.broken) if span.start <= row < span.stop), None)
        if bad is not None:
            results[index] = _not_finite(graph, record.broken[bad], bad - span.start)
            continue
        results[index] = BatchResult(
            _collect_outputs(record.history, batch_item, span),
            {name: value[span] for name, value in states.items()},
            {name for name, is_violated in record.violations.items() if is_violated[span].any()},
        )
    return results


class _StepRecord:
    """The results of several steps of streams, as they are computed.

    Attributes:
        history: By step, the wanted outputs of the rows that have it.
        violations: By the name of a state, the rows of which it left its ball.
        broken: By row, the first output of its that was not finite.
    """

    def __init__(self, graph: Graph, rows: int, names: Sequence[str], wanted_steps: Container[int]) -> None:
        self.names = names
        self.history: dict[int, dict[str, Array]] = {}
        self.violations: dict[str, Array] = {}
        self.broken: dict[int, str] = {}
        self._graph = graph
        self._rows = rows
        self._wanted_steps = wanted_steps

    def add(self, step: int, values: Mapping[str, Array], next_states: Mapping[str, Array], *, copy: bool) -> None:
        """Check and keep the results of a step.

        Args:
            step: Number of the step.
            values: Outputs by name, of the streams that have this step, states included.
            next_states: The states among them, by the names of the inputs that they feed.
            copy: Whether the arrays will be overwritten.
        """
        if self._graph.guarded:
            for name, is_violated in self._graph.guard.find_violations(next_states, self._graph.ref).items():
                self.violations.setdefault(name, np.zeros(self._rows, bool))[: len(is_violated)] |= is_violated
        for name, value in values.items():
            finite = _finite_rows(value)
            if finite is not None:
                for row in np.flatnonzero(~finite):
                    self.broken.setdefault(int(row), name)
        if step in self._wanted_steps:
            self.history[step] = {name: values[name].copy() if copy else values[name] for name in self.names}


def _advance(
    graph: Graph,
    record: _StepRecord,
    inputs: Sequence[tuple[str, Array]],
    states: Mapping[str, Array],
    active_rows: Sequence[int],
    cancellation: CancellationToken | None,
) -> dict[str, Array]:
    """Run the steps of streams and return their last states.

    Args:
        graph: The graph over one step.
        record: Takes the results.
        inputs: ``(rows, steps, ...)``, by name.
        states: By the names of the inputs.
        active_rows: For each step, how many streams have it; they are the first rows.
        cancellation: Ends a run from another thread.
    """
    fetched = [*record.names, *(name for name in graph.state_outputs if name not in record.names)]
    last_states = dict(states)
    rows = active_rows[0]
    for step, active in enumerate(active_rows):
        feeds = {name: value[:active, step] for name, value in inputs}
        feeds |= {name: value[:active] for name, value in last_states.items()}
        # A slice over steps is not contiguous, as the runtime needs its inputs to be.
        values = graph.run({name: np.ascontiguousarray(v) for name, v in feeds.items()}, fetched, cancellation)
        next_states = {state.input: values[state.output] for state in graph.states}
        record.add(step, values, next_states, copy=False)
        if active == rows:
            last_states = next_states
        else:
            # The streams that have ended keep their last state.
            for name, value in next_states.items():
                last_states[name] = np.concatenate([value, last_states[name][active:]])
    return last_states


def _advance_in_buffers(
    graph: Graph,
    buffers: StepBuffers,
    record: _StepRecord,
    inputs: Sequence[tuple[str, Array]],
    states: Mapping[str, Array],
    steps: int,
    cancellation: CancellationToken | None,
) -> dict[str, Array]:
    """Run the steps of streams in buffers, as :func:`_advance`; all streams have every step.

    States on a GPU are looked at where they have a ball or are asked for, and all of them after the last step.
    """
    buffers.set_states(states)
    sources = [(buffers.inputs[name], value) for name, value in inputs]
    outputs = graph.output_by_state
    observed = [name for name, output in outputs.items() if output in graph.guarded or output in record.names]
    next_states: Mapping[str, Array] = {}
    for step in range(steps):
        for buffer, value in sources:
            buffer[...] = value[:, step]
        graph.run_buffers(buffers, cancellation)
        next_states = buffers.read_states(observed if step < steps - 1 else outputs)
        values = {**buffers.outputs, **{outputs[name]: value for name, value in next_states.items()}}
        record.add(step, values, next_states, copy=True)
    return {name: value.copy() for name, value in next_states.items()}


def _collect_outputs(history: dict[int, dict[str, Array]], batch_item: BatchItem, span: slice) -> dict[str, Array]:
    """Return the outputs of an item's rows, ``(rows, steps, ...)`` or ``(rows, 1, ...)``."""
    steps = range(batch_item.time) if batch_item.every else range(batch_item.time - 1, batch_item.time)
    if len(steps) == 1:
        return {name: history[steps[0]][name][span][:, None] for name in batch_item.names}
    return {name: np.stack([history[step][name][span] for step in steps], axis=1) for name in batch_item.names}


def _not_finite(graph: Graph, name: str, row: int) -> InputError:
    """Return the error for a sequence whose output left the range of float32."""
    return InputError(
        f"The output '{name}' of model '{graph.ref}' is not finite for sequence {row}: its values lead beyond "
        "the range of float32."
    )


def _finite_rows(value: Array) -> Array | None:
    """Return which rows hold finite numbers only; None where all do, which is the usual case and cheaper to see."""
    if value.dtype.kind != "f":
        return None
    # A sum of squares is finite only if all numbers are, and several times faster to compute than to look at each.
    if math.isfinite(np.vdot(value, value)):
        return None
    is_finite: Array = np.asarray(np.isfinite(value))
    if is_finite.all():
        return None
    # (batch, ...) -> (batch,)
    rows: Array = np.asarray(is_finite.reshape(len(value), -1).all(axis=1))
    return rows


def _stack(name: str, spec: TensorSignature, items: Sequence[BatchItem], rows: int, time: int) -> Array:
    """Return the input ``name`` of all items, padded to ``time`` steps, with defaults where it was left out."""
    feeds = [batch_item.feeds.get(name) for batch_item in items]
    values = [value for value in feeds if value is not None]
    is_timed = "time" in spec.shape
    if len(values) == len(items) and not (is_timed and any(batch_item.time != time for batch_item in items)):
        # Nothing to pad; one item alone is not copied.
        return values[0] if len(items) == 1 else np.concatenate(values)
    if name == "lengths":
        stacked = np.full(rows, time, np.int64)
    else:
        shape = [{"batch": rows, "time": time}.get(size, 0) if isinstance(size, str) else size for size in spec.shape]
        stacked = np.zeros(shape, spec.dtype)
        if name == "dt" or name in COVARIATES:
            stacked.fill(1 if name == "dt" else np.nan)
        if not values:
            return stacked
    offset = 0
    for batch_item, feed in zip(items, feeds, strict=True):
        span = slice(offset, offset + batch_item.rows)
        offset += batch_item.rows
        if feed is not None:
            if is_timed:
                stacked[span, : batch_item.time] = feed
            else:
                stacked[span] = feed
        elif name == "lengths":
            # Its padding does not count.
            stacked[span] = batch_item.time
    return stacked


def _stack_steps(name: str, spec: TensorSignature, items: Sequence[BatchItem], rows: int, steps: int) -> Array:
    """Return the input ``name`` of all items as :func:`_stack`, with an axis over the steps after that over streams."""
    feeds = [batch_item.feeds.get(name) for batch_item in items]
    if len(items) == 1 and feeds[0] is not None:
        return feeds[0]
    shape = (rows, steps, *(size for size in spec.shape[1:] if isinstance(size, int)))
    stacked = np.full(shape, 1 if name == "dt" else np.nan if name in COVARIATES else 0, np.dtype(spec.dtype))
    offset = 0
    for batch_item, feed in zip(items, feeds, strict=True):
        if feed is not None:
            stacked[offset : offset + batch_item.rows, : batch_item.time] = feed
        offset += batch_item.rows
    return stacked
