"""Compares the functions of the engine with the graphs that they replace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stablernn_native.description import Context, Description

Array = NDArray[Any]

TOLERANCE = 1e-4
"""Largest difference, as a share of the largest number of an output: a hundred times what rounding made of the widest
model tried."""
_BATCH, _STREAM_STEPS = 3, 3
_LEAST_TIME, _LONGEST_TIME = 11, 500
"""Samples of a sequence: enough to fill the window of a scaling, up to what takes a few milliseconds."""
_SPIKE = 30.0
"""Standard score of a spike; larger ones lose digits in the running sums of the sequence graph."""
_DISTANT_MEAN = 100.0
"""Mean of a window, in standard scores, from which the next one is further away than any scaling clips at."""


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
    cases = [feeds]
    if description.context is not None:
        cases.append({**feeds, "x": _unusual_samples(feeds["x"], description)})
    for feeds in cases:
        values = _compare("sequences", sequence, signature["sequence"], feeds)
        # From the states of the sequences on.
        for _ in range(_STREAM_STEPS):
            feeds = {
                **_feeds(signature["step"], description, random),
                **{name: values[output] for name, output in states.items()},
            }
            values = _compare("a step", step, signature["step"], feeds)
    if description.context is not None:
        feeds = _window_feeds(signature, description, description.context, random)
        _compare("a step from a window", step, signature["step"], feeds)


def _unusual_samples(x: Array, description: Description) -> Array:
    """Return sequences with a flat stretch, then a spike, and with values that have no logarithm if those are taken."""
    x = x.copy()
    time = x.shape[1]
    flat, spike = (description.raw_values(np.full(x.shape[2], score)) for score in (0.5, _SPIKE))
    # Within the length of the last sequence, which is half of the first one's.
    x[1:, : time // 4] = flat
    x[::2, time // 3] = spike
    if description.context is not None and description.context.floor is not None:
        x[::2, time // 3 + 1] = 0
        x[0, time // 2] = -1
        x[0, -1] = description.context.floor / 2
    return x


def _window_feeds(
    signature: Mapping[str, Any], description: Description, context: Context, random: np.random.Generator
) -> dict[str, Array]:
    """Return inputs of a step from random and flat windows, in which different numbers of samples count.

    Sequences do not fill a long window; a state can do so at once.
    """
    window, season, patch = context.window, context.season, description.patch
    # After the step exactly a season counts in the first row, if that is possible.
    counts = [max(season - patch, 0), 0, season, season + 1, window, window]
    feeds = _feeds(signature["step"], description, random, batch=len(counts))
    values, count, mean = (feeds[state["input"]] for state in signature["states"][:3])
    values[...] = random.normal(size=values.shape)
    values[-1] = 0.5
    count[...] = np.array(counts)[:, None]
    mean[...] = random.normal(size=mean.shape)
    mean[-2:] = [[-_DISTANT_MEAN], [_DISTANT_MEAN]]
    if context.floor is not None:
        samples = feeds["x"].reshape(len(counts), patch, description.features)
        samples[1::2, -1] = context.floor / 2
    return feeds


def _feeds(
    graph: Mapping[str, Any], description: Description, random: np.random.Generator, *, batch: int = _BATCH
) -> dict[str, Array]:
    """Return random inputs with gaps, padding and states of zeros, the samples in the units of the data."""
    window = 0 if description.context is None else description.context.window
    time = min(max(_LEAST_TIME, window + 2 * description.patch), _LONGEST_TIME)
    sizes = {"batch": batch, "time": time}
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
        sizes = np.abs(reference[np.isfinite(reference)])
        scale = max(float(sizes.max(initial=0)), float(np.finfo(np.float32).tiny))
        difference = _largest_difference(value, reference) if value.shape == reference.shape else np.inf
        # NaN is no agreement.
        if not difference <= TOLERANCE * scale:
            raise ValueError(
                f"the output '{name}' over {label} differs from its graph by {difference / scale:.3g} of the largest "
                f"number; {TOLERANCE:g} is allowed. Use --engine onnx, and report it"
            )
    return dict(zip(names, expected, strict=True))


def _largest_difference(value: Array, reference: Array) -> float:
    # The exponential of a random forecast may be infinite, in both alike.
    differs = value != reference
    with np.errstate(invalid="ignore"):
        return float(np.abs(value[differs] - reference[differs]).max(initial=0))
