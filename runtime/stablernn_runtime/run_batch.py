"""Several requests in one run of a graph: their inputs padded and stacked, the outputs cut apart again.

Rows do not see each other: on one CPU thread each gets the bits that it would have got alone, which
``tests/server/test_batching.py`` holds against every kind of model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import TensorSignature
from stablernn_runtime.engines.session import CancellationToken
from stablernn_runtime.errors import InputError
from stablernn_runtime.graph import Graph
from stablernn_runtime.validation import KNOWN

Array = NDArray[Any]


@dataclass(slots=True)
class BatchItem:
    """One request's share of a run: what it gives, checked, in the dtypes of the graph.

    Attributes:
        feeds: Inputs by name; those that were left out are not in it.
        rows: Sequences, or streams.
        time: Time steps of the longest.
        names: The outputs that it wants.
        every: Of steps: whether each has an answer, or the last alone.
    """

    feeds: dict[str, Array]
    rows: int
    time: int
    names: Sequence[str]
    every: bool = True


@dataclass(slots=True)
class BatchResult:
    """What a run gave to one of its parts.

    Attributes:
        outputs: By name.
        states: Of steps: the states after them, by the names of the inputs that they feed.
        outside: States that came to lie outside their balls, as the inputs are called.
    """

    outputs: dict[str, Array]
    states: dict[str, Array] = field(default_factory=dict)
    outside: set[str] = field(default_factory=set)


def run_parts(
    graph: Graph, parts: Sequence[BatchItem], stop: CancellationToken | None
) -> list[BatchResult | InputError]:
    """One run of a graph for all parts together.

    Args:
        graph: A graph over whole sequences or over one step.
        parts: From ``ServedModel.prepare``, of one length where the graph takes no ``lengths``.
        stop: Ends the run from another thread.

    Returns:
        For each part what it gets, or why it gets nothing: an output of one part that is not finite leaves the
        answers of the others alone.

    Raises:
        NotReadyError: If the run was ended.
    """
    rows = sum(part.rows for part in parts)
    time = max(part.time for part in parts)
    feeds = {name: _stacked(name, spec, parts, rows, time) for name, spec in graph.inputs.items()}
    wanted = dict.fromkeys(name for part in parts for name in part.names)
    answers = graph.run(feeds, list(wanted), stop)
    exits = graph.guard.exited(
        {graph.guarded[name]: value for name, value in answers.items() if name in graph.guarded}, graph.ref
    )
    broken = {name: ~fine for name, value in answers.items() if (fine := _finite_rows(value)) is not None}
    shares: list[BatchResult | InputError] = []
    at = 0
    for part in parts:
        place = slice(at, at + part.rows)
        at += part.rows
        # A class or a forecast made of NaN would look like any other.
        if bad := next((name for name, where in broken.items() if where[place].any()), None):
            shares.append(_not_finite(graph, bad, int(np.argmax(broken[bad][place]))))
            continue
        outputs = {}
        for name in part.names:
            value = answers[name][place]
            outputs[name] = value[:, : part.time] if "time" in graph.outputs[name].shape else value
        shares.append(BatchResult(outputs, outside={state for state, left in exits.items() if left[place].any()}))
    return shares


def run_steps(
    graph: Graph, parts: Sequence[BatchItem], stop: CancellationToken | None
) -> list[BatchResult | InputError]:
    """Steps of several streams through the graph of one step, all streams at once.

    Args:
        graph: The graph over one step.
        parts: From ``ServedModel.prepare_steps``; they may have different numbers of steps.
        stop: Ends the run from another thread.

    Returns:
        As :func:`run_parts`, with outputs of the shape ``(rows, steps, ...)``, or ``(rows, 1, ...)`` of the last step.

    Raises:
        NotReadyError: If the run was ended.
    """
    # The longest first, so that the streams with a step left are always the first rows.
    order = sorted(range(len(parts)), key=lambda index: -parts[index].time)
    chosen = [parts[index] for index in order]
    rows, steps = sum(part.rows for part in parts), chosen[0].time
    states = {
        state.input: _stacked(state.input, graph.inputs[state.input], chosen, rows, steps) for state in graph.states
    }
    others = [
        (name, _stacked_steps(name, spec, chosen, rows, steps))
        for name, spec in graph.inputs.items()
        if name not in states
    ]
    names = list(dict.fromkeys(name for part in chosen for name in part.names))
    fetched = [*names, *(name for name in graph.state_outputs if name not in names)]
    kept: dict[int, dict[str, Array]] = {}
    # Of a long stream whose last step alone is wanted, the others would only fill the memory.
    wanted = range(steps) if any(part.every for part in chosen) else {part.time - 1 for part in chosen}
    outside: dict[str, Array] = {}
    broken: dict[int, str] = {}
    for step in range(steps):
        active = rows if step == 0 else sum(part.rows for part in chosen if part.time > step)
        feeds = {name: value[:active, step] for name, value in others}
        feeds |= {name: value[:active] for name, value in states.items()}
        answers = graph.run({name: np.ascontiguousarray(v) for name, v in feeds.items()}, fetched, stop)
        after = {state.input: answers[state.output] for state in graph.states}
        if graph.guarded:
            for name, left in graph.guard.exited(after, graph.ref).items():
                outside.setdefault(name, np.zeros(rows, bool))[:active] |= left
        for name, value in answers.items():
            fine = _finite_rows(value)
            if fine is not None:
                for row in np.flatnonzero(~fine):
                    broken.setdefault(int(row), name)
        if active == rows:
            states = after
        else:
            for name, value in after.items():
                states[name] = np.concatenate([value, states[name][active:]])
        if step in wanted:
            kept[step] = {name: answers[name] for name in names}
    shares: list[BatchResult | InputError] = [BatchResult({})] * len(parts)
    at = 0
    for index, part in zip(order, chosen, strict=True):
        place = slice(at, at + part.rows)
        at += part.rows
        bad = next((row for row in sorted(broken) if place.start <= row < place.stop), None)
        if bad is not None:
            shares[index] = _not_finite(graph, broken[bad], bad - place.start)
            continue
        over = range(part.time) if part.every else range(part.time - 1, part.time)
        if len(over) == 1:
            outputs = {name: kept[over[0]][name][place][:, None] for name in part.names}
        else:
            outputs = {name: np.stack([kept[step][name][place] for step in over], axis=1) for name in part.names}
        shares[index] = BatchResult(
            outputs,
            {name: value[place] for name, value in states.items()},
            {name for name, left in outside.items() if left[place].any()},
        )
    return shares


def _not_finite(graph: Graph, name: str, row: int) -> InputError:
    """Return the error for a sequence whose output left the range of float32."""
    return InputError(
        f"The output '{name}' of model '{graph.ref}' is not finite for sequence {row}: its values lead beyond "
        "the range of float32."
    )


def _finite_rows(value: Array) -> Array | None:
    """Which rows hold finite numbers only; None where all do, which is found out sooner."""
    if value.dtype.kind != "f":
        return None
    fine: Array = np.asarray(np.isfinite(value))
    if fine.all():
        return None
    whole: Array = np.asarray(fine.reshape(len(value), -1).all(axis=1))
    return whole


def _stacked(name: str, spec: TensorSignature, parts: Sequence[BatchItem], rows: int, time: int) -> Array:
    """The input ``name`` of all parts, with what stands for it where it was left out."""
    given = [part.feeds.get(name) for part in parts]
    values = [value for value in given if value is not None]
    timed = "time" in spec.shape
    if len(values) == len(parts) and not (timed and any(part.time != time for part in parts)):
        return values[0] if len(parts) == 1 else np.concatenate(values)
    if name == "lengths":
        made = np.full(rows, time, np.int64)
    else:
        shape = [{"batch": rows, "time": time}.get(size, 0) if isinstance(size, str) else size for size in spec.shape]
        made = np.zeros(shape, spec.dtype)
        if name == "dt" or name in KNOWN:
            made.fill(1 if name == "dt" else np.nan)
        if not values:
            return made
    at = 0
    for part, value in zip(parts, given, strict=True):
        place = slice(at, at + part.rows)
        at += part.rows
        if value is not None:
            if timed:
                made[place, : part.time] = value
            else:
                made[place] = value
        elif name == "lengths":
            made[place] = part.time
    return made


def _stacked_steps(name: str, spec: TensorSignature, parts: Sequence[BatchItem], rows: int, steps: int) -> Array:
    """As :func:`_stacked`, with an axis over the steps after that over the streams."""
    given = [part.feeds.get(name) for part in parts]
    if len(parts) == 1 and given[0] is not None:
        return given[0]
    shape = (rows, steps, *(size for size in spec.shape[1:] if isinstance(size, int)))
    made = np.full(shape, 1 if name == "dt" else np.nan if name in KNOWN else 0, np.dtype(spec.dtype))
    at = 0
    for part, value in zip(parts, given, strict=True):
        if value is not None:
            made[at : at + part.rows, : part.time] = value
        at += part.rows
    return made
