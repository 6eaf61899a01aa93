"""The layers of a model as data in the metadata of ``step.onnx``, for engines that run its recurrence by other means.

What kind of step the nodes of a graph compute cannot be told from them alone. The description says it, and names the
initializers that are its matrices, so that it holds no weights that could differ from those of the graph.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor, nn

from stablernn.cells import StableCell
from stablernn.nn.ensemble import Heads
from stablernn.nn.models import Classifier, SequenceModel, SequencePredictor
from stablernn.nn.preprocessing import ContextScaling

KEY = "stablernn.layers"
"""Key of the description, which is JSON, in ``metadata_props``."""
FORMAT = 2
_TOLERANCE = 1e-6
"""Relative difference up to which a matrix counts as a multiple of an initializer."""

Document = dict[str, Any]


class _NotDescribedError(Exception):
    """A model whose layers the format cannot describe; the message completes "cannot be run because"."""


def add_description(step: onnx.ModelProto, model: SequenceModel) -> None:
    """Write the description of a model into the metadata of its step graph, or the reason why there is none.

    Args:
        step: The graph of ``step.onnx``.
        model: The model from which it was exported.
    """
    try:
        document = {"format": FORMAT, **_describe(step.graph, model)}
    except _NotDescribedError as error:
        document = {"format": FORMAT, "reason": str(error)}
    step.metadata_props.append(onnx.StringStringEntryProto(key=KEY, value=json.dumps(document, sort_keys=True)))


def _describe(graph: onnx.GraphProto, model: SequenceModel) -> Document:
    rnn = model.rnn
    if model.max_dt is not None:
        raise _NotDescribedError("its steps have a length, dt")
    if model.input_name != "x":
        raise _NotDescribedError("it reads tokens")
    if model.conv_layers:
        raise _NotDescribedError("its patches pass through convolutions")
    scaling, patches = model.scaling, model.patches
    if scaling.kind not in ("standard", "none", "context"):
        raise _NotDescribedError(f"its scaling is '{scaling.kind}'")
    if model.predict_change:
        raise _NotDescribedError("it predicts changes")
    if scaling.keep_missing:
        raise _NotDescribedError(f"the cell '{rnn.first.cell}' reads missing values")
    initializers = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    cells = list(zip(rnn.cells, model.materialize(), strict=True))
    depth = rnn.first.num_layers
    return {
        "features": model.input_size,
        "hidden": rnn.first.hidden_size,
        "patch": patches.stride,
        "overlap": patches.size - patches.stride,
        "end_aligned": patches.end_aligned,
        "mask_channel": scaling.mask_channel,
        "mean": _reference(initializers, scaling.mean.numpy(), "the mean of the features"),
        "scale": _reference(initializers, scaling.scale.numpy(), "the scale of the features"),
        "context": _context(initializers, scaling) if isinstance(scaling, ContextScaling) else None,
        "members": len(rnn),
        "embeddings": [_linear(initializers, linear, "the embedding of patches") for linear in rnn.embeddings] or None,
        # Of each member, from input to output.
        "stacks": [
            [_layer(initializers, cell, weights) for cell, weights in cells[first : first + depth]]
            for first in range(0, len(cells), depth)
        ],
        "readout": model.readout,
        "every_step": model.every_step,
        "head": _head(initializers, model),
    }


def _context(initializers: dict[str, np.ndarray], scaling: ContextScaling) -> Document:
    floor = (
        _reference(initializers, scaling.floor.numpy(), "the smallest value of a logarithm") if scaling.log else None
    )
    return {
        "window": scaling.window,
        "season": scaling.season,
        "floor": floor,
        "scale_floor": scaling.scale_floor,
        "clip": scaling.clip,
    }


def _layer(initializers: dict[str, np.ndarray], cell: StableCell, weights: tuple[Tensor, ...]) -> Document:
    form = cell.step_form(weights)
    if form is None:
        raise _NotDescribedError(f"the step of the cell '{cell.key}' is of none of the four families")
    weight, bias = _input_product(cell)

    def reference(name: str, tensor: Tensor | None) -> Document | None:
        return None if tensor is None else _reference(initializers, tensor.detach().numpy(), f"{name} of '{cell.key}'")

    return {
        "family": form.family,
        "nonlinearity": form.nonlinearity,
        "step_size": form.step_size,
        "recurrent": reference("the recurrent matrix", form.recurrent),
        "linear": reference("the linear matrix", form.linear),
        "bias": reference("the bias", form.bias),
        "input": reference("the input matrix", weight),
        "input_bias": reference("the bias of the inputs", bias),
    }


def _input_product(cell: StableCell) -> tuple[Tensor, Tensor | None]:
    """Return matrix and bias of the drive of a cell."""
    weight, bias = getattr(cell, "weight_ih", None), getattr(cell, "bias_ih", None)
    x = torch.linspace(-1, 1, 3 * cell.input_size).reshape(3, cell.input_size)
    # Of the cells with a step form all do; a new one may not.
    if not isinstance(weight, Tensor) or not torch.allclose(
        cell.drive(x), nn.functional.linear(x, weight, bias), atol=1e-6
    ):
        raise _NotDescribedError(f"the inputs of the cell '{cell.key}' enter by more than one matrix and one bias")
    return weight, bias


def _head(initializers: dict[str, np.ndarray], model: SequenceModel) -> Document | None:
    """Describe a linear head; None for a head that an engine takes from the graph."""
    if len(model.rnn) > 1 or len(model.head_layers):
        return None
    if isinstance(model, Classifier):
        assert isinstance(model.head, Heads)
        linear, temperature, scaling = model.head.maps[0], float(model.temperature), None
    elif isinstance(model, SequencePredictor):
        assert isinstance(model.head, nn.Linear)
        if model.saturation:
            return None
        linear, temperature = model.head, 1.0
        scaling = model.targets if model.output == "real" else None
    else:
        return None
    return {
        **_linear(initializers, linear, "the head"),
        "temperature": temperature,
        # Short lists, which the exporter may have folded into other constants.
        "mean": None if scaling is None else scaling.mean.tolist(),
        "scale": None if scaling is None else scaling.scale.tolist(),
    }


def _linear(initializers: dict[str, np.ndarray], linear: nn.Module, label: str) -> Document:
    assert isinstance(linear, nn.Linear)
    return {
        "weight": _reference(initializers, linear.weight.detach().numpy(), f"the matrix of {label}"),
        "bias": _reference(initializers, linear.bias.detach().numpy(), f"the bias of {label}"),
    }


def _reference(initializers: dict[str, np.ndarray], value: np.ndarray, label: str) -> Document:
    """Return where an array stands: the name of an initializer, its rows, and the factor between both.

    Of a vector of equal numbers, such as a bias of zeros, which the exporter leaves out, it is that number. A step that
    was rewritten to fewer nodes holds its matrices multiplied by the step size, or on top of each other.
    """
    if value.ndim == 1 and (value == value[0]).all():
        return {"fill": float(value[0])}
    closest: Document | None = None
    for name, rows, part in _parts(initializers, value.shape):
        if np.array_equal(part, value):
            return {"initializer": name, "rows": rows, "factor": 1.0}
        factor = _factor(part, value)
        if factor is not None and closest is None:
            closest = {"initializer": name, "rows": rows, "factor": factor}
    if closest is None:
        raise _NotDescribedError(f"{label} is not among the initializers of its graphs")
    return closest


def _parts(
    initializers: dict[str, np.ndarray], shape: tuple[int, ...]
) -> Iterator[tuple[str, tuple[int, int], np.ndarray]]:
    """Yield the runs of rows of initializers that have a shape: name, first row and the one after the last, values."""
    for name, array in initializers.items():
        if array.dtype != np.float32 or array.ndim != len(shape) or array.shape[1:] != shape[1:]:
            continue
        for start in range(0, len(array) - len(array) % shape[0], shape[0]):
            yield name, (start, start + shape[0]), array[start : start + shape[0]]


def _factor(part: np.ndarray, value: np.ndarray) -> float | None:
    """Return the number by which an array is to be multiplied to give another one; None if there is none."""
    part, value = part.astype(np.float64), value.astype(np.float64)
    norm = float(np.vdot(part, part))
    # A vector of one number is a multiple of every other.
    if norm == 0 or part.size < 4:
        return None
    factor = float(np.vdot(part, value)) / norm
    difference = np.abs(factor * part - value).max()
    return factor if factor > 0 and difference <= _TOLERANCE * np.abs(value).max() else None
