"""The self-test of a version that was just opened: a warm-up run, and its two graphs against each other.

The warm-up leaves nothing to be set up by the first request, and no version is served whose graphs do not run, do not
give what the manifest promises, or do not belong together.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stablernn_registry import Manifest
from stablernn_runtime.engines.device_choice import SessionByRows
from stablernn_runtime.engines.session import RUNTIME_ERRORS
from stablernn_runtime.errors import InputError, OutOfMemoryError
from stablernn_runtime.rollout import Model
from stablernn_runtime.validation import format_tensors

Array = NDArray[Any]
_STEPS = 3
_TOLERANCE = 1e-3
"""Relative and absolute; what rounding can make of a difference lies below."""
_RUN_ERRORS: tuple[type[Exception], ...] = (InputError, OutOfMemoryError, *RUNTIME_ERRORS)


class SelfTestError(Exception):
    """A graph that does not pass; the message is half a sentence, without the name of the version."""


class TestableModel(Model, Protocol):
    """The part of :class:`~stablernn_runtime.served_model.ServedModel` that the self-test needs."""

    resample_steps: int | None

    def run_sequence(self, x: Array) -> dict[str, Array]:
        """Return all outputs for whole sequences."""
        ...

    def run_step(self, x: Array, state: Mapping[str, Array] | None = None) -> dict[str, Array]:
        """Return all outputs after one time step."""
        ...

    def record_step_ns(self, rows: int, nanoseconds: float) -> None:
        """Record how long a step took."""
        ...


def check_model(model: TestableModel) -> None:
    """Run both graphs, and compare what they give with the manifest and with each other.

    Raises:
        SelfTestError: If a run fails, an output is not finite or not of the shape that the manifest promises, or the
            two graphs, or two devices of the same graph, differ by more than rounding.
    """
    try:
        _warm_up(model)
        if model.resample_steps is None:
            _compare_graphs(model)
        if isinstance(model.sequence.session, SessionByRows):
            _compare_devices(model, model.sequence.session.min_rows)
    except _RUN_ERRORS as error:
        raise SelfTestError(str(error)) from error


def _warm_up(model: TestableModel) -> None:
    """Run each graph once on zeros, and check the shapes of the outputs."""
    manifest = model.manifest
    # (batch, time, features), or (batch, time) of tokens.
    x: Array = np.zeros((1, 2, len(manifest.features)), np.float32)
    if model.input_name == "tokens":
        x = np.zeros((1, 2), np.int64)
    outputs = model.run_sequence(x)
    if model.resample_steps is None:
        axes = model.step.inputs[model.input_name].shape
        model.run_step(np.zeros([size if isinstance(size, int) else 1 for size in axes], x.dtype))
    for name, shape in _promised_shapes(manifest).items():
        actual = outputs[name].shape if name in outputs else None
        if actual != shape:
            raise SelfTestError(
                f"its manifest promises the output '{name}' in the shape {shape}, the graph gives {actual}."
            )


def _promised_shapes(manifest: Manifest) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the outputs for one sequence of two steps, by name."""
    targets, horizon = len(manifest.targets or ()), manifest.horizon or 0
    if manifest.task == "classify":
        return {"probabilities": (1, len(manifest.labels or ()))}
    if manifest.task == "forecast":
        shapes: dict[str, tuple[int, ...]] = {"mean": (1, horizon, targets)}
        if manifest.quantiles:
            shapes["quantiles"] = (1, horizon, targets, len(manifest.quantiles))
        return shapes
    if manifest.output == "real":
        return {"mean": (1, 2, targets)}
    return {} if manifest.output is None else {"logits": (1, 2, len(manifest.labels or ()))}


def _compare_graphs(model: TestableModel) -> None:
    """Run a short series as a whole and step by step, and compare all outputs of the step graph, states included.

    The steps are timed, so that the model has an estimate before its first request.
    """
    sequence, step = model.sequence, model.step
    for name in step.outputs:
        if name not in sequence.outputs:
            raise SelfTestError(
                f"its step graph has the output '{name}', which its sequence graph lacks (it has "
                f"{format_tensors(sequence.outputs)}); export it again."
            )
    axes = step.inputs[model.input_name].shape[1:]
    shape = (_STEPS, *(size for size in axes if isinstance(size, int)))
    noise = np.random.default_rng(0)
    samples: Array = noise.normal(size=shape).astype(np.float32)
    if model.input_name == "tokens":
        samples = noise.integers(len(model.manifest.features), size=shape)
    # (1, time, ...): a step of a model of patches, (stride, features), becomes as many time steps.
    series = samples.reshape(1, -1, *shape[2:]) if len(shape) == 3 else samples[None]
    # The sequence graph itself: a recursive head is not rolled out here.
    expected = model.run(sequence, {model.input_name: series})
    outputs: dict[str, Array] = {}
    state: dict[str, Array] = {}
    for sample in samples:
        started = time.perf_counter_ns()
        outputs = model.run_step(sample[None], state)
        model.record_step_ns(1, time.perf_counter_ns() - started)
        state = model.next_state(outputs)
    for name, value in outputs.items():
        # Outputs of every step: the step graph gives the last one.
        last = expected[name][:, -1] if "time" in sequence.outputs[name].shape else expected[name]
        if value.shape != last.shape:
            raise SelfTestError(
                f"the output '{name}' of its step graph has the shape {value.shape}, that of its sequence graph "
                f"{last.shape}; export it again."
            )
        if not np.allclose(value, last, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise SelfTestError(
                f"the output '{name}' of its step graph is not that of its sequence graph after {_STEPS} "
                f"steps (they differ by {float(np.abs(value - last).max()):.3g}); export it again."
            )


def _compare_devices(model: TestableModel, min_rows: int) -> None:
    """Run a sequence alone and as part of a batch, which run on different devices, and compare the outputs."""
    graph, noise = model.sequence, np.random.default_rng(0)
    sizes = {"batch": min_rows, "time": _STEPS}
    shape = [sizes[size] if isinstance(size, str) else size for size in graph.inputs[model.input_name].shape]
    x: Array = noise.normal(size=shape).astype(np.float32)
    if model.input_name == "tokens":
        x = noise.integers(len(model.manifest.features), size=shape)
    together = model.run(graph, {model.input_name: x})
    for name, value in model.run(graph, {model.input_name: x[:1]}).items():
        if not np.allclose(together[name][:1], value, rtol=_TOLERANCE, atol=_TOLERANCE):
            raise SelfTestError(
                f"the output '{name}' of a sequence on the GPU is not that on the CPU (they differ by "
                f"{float(np.abs(together[name][:1] - value).max()):.3g}); name one by --device."
            )
