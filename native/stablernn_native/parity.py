"""Compares the functions of the engine with the graphs that they replace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stablernn_native.description import Description

Array = NDArray[Any]

TOLERANCE = 1e-4
"""Largest difference, as a share of the largest number of an output: a hundred times what rounding made of the widest
model tried."""
_BATCH, _STREAM_STEPS = 3, 3
_LEAST_TIME, _LONGEST_TIME = 11, 500
"""Samples of a sequence: enough to fill the window of a scaling, up to what takes a few milliseconds."""


class Function(Protocol):
    """A function or a session that computes a graph."""

    def run(self, names: Sequence[str], feeds: Mapping[str, Array], /) -> Any:
        """Return outputs by name."""
        ...


def check_parity(
    sequence: tuple[Function, Function],
    step: tuple[Function, Function],
    signature: Mapping[str, Any],
    description: Description,
) -> None:
    """Run sequences of several lengths and steps from several states by both.

    Args:
        sequence: The engine's function over sequences, and the graph.
        step: Those over a step.
        signature: Inputs, outputs and states of the version.
        description: The model.

    Raises:
        ValueError: If an output differs by more than rounding.
    """
    random = np.random.default_rng(0)
    states = {state["input"]: state["output"] for state in signature["states"]}
    feeds = _feeds(signature["sequence"], description, random)
    values = _compare("sequences", sequence, signature["sequence"], feeds)
    # From the states of the sequences on.
    for _ in range(_STREAM_STEPS):
        feeds = {
            **_feeds(signature["step"], description, random),
            **{name: values[output] for name, output in states.items()},
        }
        values = _compare("a step", step, signature["step"], feeds)


def _feeds(graph: Mapping[str, Any], description: Description, random: np.random.Generator) -> dict[str, Array]:
    """Return random inputs with gaps, padding and states of zeros, the samples in the units of the data."""
    window = 0 if description.context is None else description.context.window
    time = min(max(_LEAST_TIME, window + 2 * description.patch), _LONGEST_TIME)
    sizes = {"batch": _BATCH, "time": time}
    feeds: dict[str, Array] = {}
    for tensor in graph["inputs"]:
        shape = [sizes[size] if isinstance(size, str) else size for size in tensor["shape"]]
        if tensor["name"] == "lengths":
            feeds["lengths"] = np.array([time, 1, time // 2], np.int64)
        elif tensor["name"].startswith("state_"):
            feeds[tensor["name"]] = np.zeros(shape, np.float32)
        else:
            values = random.normal(size=shape).astype(np.float32)
            if tensor["name"] == "x":
                values = description.raw_values(values)
            feeds[tensor["name"]] = np.where(random.uniform(size=shape) < 0.1, np.float32(np.nan), values)
    return feeds


def _compare(
    label: str, pair: tuple[Function, Function], graph: Mapping[str, Any], feeds: Mapping[str, Array]
) -> dict[str, Array]:
    """Return the outputs of the graph, from which those of the engine do not differ."""
    names = [tensor["name"] for tensor in graph["outputs"]]
    actual, expected = (function.run(names, feeds) for function in pair)
    for name, value, reference in zip(names, actual, expected, strict=True):
        scale = max(float(np.abs(reference).max(initial=0)), float(np.finfo(np.float32).tiny))
        difference = float(np.abs(value - reference).max(initial=0)) if value.shape == reference.shape else np.inf
        # NaN is no agreement.
        if not difference <= TOLERANCE * scale:
            raise ValueError(
                f"the output '{name}' over {label} differs from its graph by {difference / scale:.3g} of the largest "
                f"number; {TOLERANCE:g} is allowed. Use --engine onnx, and report it"
            )
    return dict(zip(names, expected, strict=True))
