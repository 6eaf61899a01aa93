"""Checks that the signature of a version follows the convention: names, types and shapes of its inputs.

The messages of the errors are half a sentence; the caller puts the name of the version in front of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stablernn_registry import GraphSignature, Manifest, StateSignature
from stablernn_runtime.errors import cut
from stablernn_runtime.validation import COVARIATES

Shape = list[int | str]
"""Sizes; a free axis is a symbol."""


def find_main_input(sequence: GraphSignature) -> str:
    """Return ``"x"``, numbers, or ``"tokens"``, whole numbers below the number of features."""
    names = [tensor.name for tensor in sequence.inputs]
    return "tokens" if "tokens" in names and "x" not in names else "x"


def check_signature(
    sequence: GraphSignature,
    step: GraphSignature | None,
    states: Sequence[StateSignature],
    manifest: Manifest,
    main: str,
) -> None:
    """Raise unless the inputs of both graphs are the main one, the states and those of the convention.

    Args:
        sequence: The graph over whole sequences.
        step: The graph of one time step; None for a version of complete sequences.
        states: The states that both graphs take and give.
        manifest: The manifest of the version.
        main: From :func:`find_main_input`.

    Raises:
        ValueError: If an input has another name, type or shape.
    """
    covariates = _covariate_shapes(manifest)
    free_axes: Shape = ["batch", "time"]
    optional: dict[str, Shape] = {"lengths": ["batch"], "dt": ["batch", "time"], **covariates}
    _check_graph("sequence", sequence, free_axes, optional, states, manifest, main)
    if step is None:
        return
    free_axes = ["batch", *_patch_axis(step, main)]
    _check_graph("step", step, free_axes, {"dt": free_axes, **covariates}, states, manifest, main)


def _covariate_shapes(manifest: Manifest) -> dict[str, Shape]:
    """Return the shapes of the inputs for the static and future values that the manifest names."""
    static, future = manifest.static or (), manifest.future or ()
    # The graphs of a recursive head look one step ahead, whatever its horizon.
    steps = 1 if manifest.head == "recursive" else manifest.horizon or 1
    shapes: dict[str, Shape] = {"static": ["batch", len(static)], "future": ["batch", steps, len(future)]}
    return {name: shape for name, shape in shapes.items() if shape[-1]}


def find_patch_stride(step: GraphSignature, main: str) -> int:
    """Return the samples of a step of a model of patches, ``(batch, stride, features)``; 1 for any other."""
    axis = _patch_axis(step, main) if main == "x" else []
    return int(axis[0]) if axis else 1


def _patch_axis(step: GraphSignature, main: str) -> Shape:
    """Return the axis over the samples of one stride, which models of patches have between batch and features."""
    shape = next((tensor.shape for tensor in step.inputs if tensor.name == main), [])
    return shape[1:2] if len(shape) == 3 and isinstance(shape[1], int) else []


def _check_graph(
    kind: str,
    graph: GraphSignature,
    free_axes: Shape,
    optional: Mapping[str, Shape],
    states: Sequence[StateSignature],
    manifest: Manifest,
    main: str,
) -> None:
    """Check one graph.

    Args:
        kind: ``"sequence"`` or ``"step"``.
        graph: Its signature.
        free_axes: The axes of the main input before the features.
        optional: Shapes of the inputs that a graph may lack, except those that the manifest has values for.
        states: As of :func:`check_signature`.
        manifest: Likewise.
        main: Likewise.

    Raises:
        ValueError: As :func:`check_signature`.
    """
    shapes = {tensor.name: tensor.shape for tensor in graph.inputs}
    features: Shape = [len(manifest.features)] if main == "x" else []
    expected = {main: [*free_axes, *features], **optional}
    if main not in shapes:
        raise ValueError(f"the {kind} in its signature has no input '{main}'.")
    dtype = next(tensor.dtype for tensor in graph.inputs if tensor.name == main)
    if dtype != ("float32" if main == "x" else "int64"):
        raise ValueError(f"its signature gives the input '{main}' of {kind} the type {dtype}.")
    # The model was trained on these values, and requests send them.
    for name in COVARIATES:
        if name in optional and name not in shapes:
            raise ValueError(f"its manifest has {name} values, the {kind} in its signature has no input for them.")
    state_inputs = {state.input for state in states}
    for name, shape in shapes.items():
        if name not in expected and name not in state_inputs:
            raise ValueError(
                f"the {kind} in its signature has an input '{cut(name)}' that is neither a state nor one of "
                f"{', '.join(expected)}."
            )
        if shape != expected.get(name, shape):
            raise ValueError(
                f"its signature gives the input '{name}' of {kind} the shape {shape}, {expected[name]} is served."
            )
    # A run binds only the free axes of the main input, so no other tensor can have one of its own.
    for tensor in (*graph.inputs, *graph.outputs):
        if unknown := [size for size in tensor.shape if isinstance(size, str) and size not in free_axes]:
            raise ValueError(
                f"the axis '{cut(unknown[0])}' of '{cut(tensor.name)}' in its signature of {kind} is not one of "
                f"{', '.join(axis for axis in free_axes if isinstance(axis, str))}."
            )
