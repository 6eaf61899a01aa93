"""Resampling as ONNX nodes in front of ``sequence.onnx``, for models of complete sequences.

The graph behind them is that of the resampled samples, all of them valid, from the zero state. Its states are neither
inputs nor outputs: the rest of a sequence would be resampled as a sequence of its own, so that nothing can go on from
them. Positions are whole numbers and the scores of lengths a table, so that a sequence has the same bits in any batch.
"""

from __future__ import annotations

import numpy as np
import onnx
import torch
from onnx import TensorProto, compose, helper

from stablernn.export.input_stage import GraphFragment
from stablernn.export.scan import build_model, sequence_graph
from stablernn.export.step import ModelParts
from stablernn.nn.models import SequenceModel
from stablernn.nn.preprocessing import Resampling

_PREFIX = "resampled."


def resampled_sequence_graph(model: SequenceModel, parts: ModelParts, *, is_reduced: bool) -> onnx.ModelProto:
    """Build ``sequence.onnx`` of a model with a resampling: inputs ``x`` and ``lengths``, outputs without states.

    Args:
        model: The model, on the CPU and in evaluation mode.
        parts: Its parts, from :func:`~stablernn.export.step.export_parts`.
        is_reduced: As :func:`~stablernn.export.scan.sequence_graph` takes it.
    """
    assert model.resampling is not None
    inner = compose.add_prefix(sequence_graph(parts, is_reduced=is_reduced), _PREFIX).graph
    fragment = _resample(model.resampling)
    for name, (_, size) in zip(parts.states, model.state_roles(), strict=True):
        axes = ["resample.batch", _constant(fragment, f"{name}.size", [size])]
        shape = fragment.add("Concat", axes, f"{name}.shape", axis=0)
        fragment.add("ConstantOfShape", [shape], f"{_PREFIX}{name}")
    outputs = [value for value in inner.output if value.name.removeprefix(_PREFIX) in model.output_names]
    renamed = [helper.make_node("Identity", [value.name], [value.name.removeprefix(_PREFIX)]) for value in outputs]
    for value in outputs:
        value.name = value.name.removeprefix(_PREFIX)
    graph = helper.make_graph(
        [*fragment.nodes, *inner.node, *renamed],
        "sequence",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "time", model.input_size]),
            helper.make_tensor_value_info("lengths", TensorProto.INT64, ["batch"]),
        ],
        outputs,
        [*fragment.constants, *inner.initializer],
    )
    return build_model(graph, parts)


def _resample(resampling: Resampling) -> GraphFragment:
    """Return the nodes that compute what :class:`Resampling` does, and the inputs of the graph behind them."""
    fragment, steps = GraphFragment(), resampling.steps
    unit, axis = _constant(fragment, "resample.one", 1), _constant(fragment, "resample.axis", [1])
    time = fragment.add("Shape", ["x"], "resample.time", start=1, end=2)
    fragment.add("Shape", ["x"], "resample.batch", start=0, end=1)
    counts = fragment.add("Min", ["lengths", time], "resample.most")
    counts = fragment.add("Max", [counts, unit], "resample.lengths")
    last = fragment.add("Sub", [counts, unit], "resample.last")
    last_column = fragment.add("Unsqueeze", [last, axis], "resample.last_column")
    # Positions in units of 1 / (steps - 1) samples, (batch, steps).
    numbers = _constant(fragment, "resample.numbers", np.arange(steps))
    position = fragment.add("Mul", [numbers, last_column], "resample.position")
    parts = _constant(fragment, "resample.parts", steps - 1)
    before = fragment.add("Div", [position, parts], "resample.before")
    remainder = fragment.add("Mod", [position, parts], "resample.remainder")
    is_between = fragment.add("Greater", [remainder, _constant(fragment, "resample.zero", 0)], "resample.between")
    step = fragment.add("Cast", [is_between], "resample.step", to=TensorProto.INT64)
    after = fragment.add("Add", [before, step], "resample.after")
    trailing = _constant(fragment, "resample.trailing", [2])
    samples = []
    for name, index in (("first", before), ("second", after)):
        places = fragment.add("Unsqueeze", [index, trailing], f"resample.{name}_places")
        samples.append(fragment.add("GatherND", ["x", places], f"resample.{name}", batch_dims=1))
    first, second = (
        fragment.add(
            "Where", [fragment.add("IsNaN", [value], f"{value}_missing"), neighbor, value], f"{value}_observed"
        )
        for value, neighbor in (samples, samples[::-1])
    )
    share = fragment.add("Cast", [remainder], "resample.remainder_number", to=TensorProto.FLOAT)
    share = fragment.add(
        "Div", [share, fragment.constant("resample.parts_number", np.array(steps - 1, np.float32))], "resample.share"
    )
    share = fragment.add("Unsqueeze", [share, trailing], "resample.share_values")
    difference = fragment.add("Sub", [second, first], "resample.difference")
    change = fragment.add("Mul", [share, difference], "resample.change")
    values = fragment.add("Add", [first, change], "resample.values")
    channel = _length_channel(fragment, resampling, counts)
    fragment.features = fragment.add("Concat", [values, channel], f"{_PREFIX}x", axis=2)
    # Every sample of the resampled sequences is valid.
    nothing = fragment.add("Mul", [counts, "resample.zero"], "resample.nothing")
    fragment.add("Add", [nothing, _constant(fragment, "resample.steps", steps)], f"{_PREFIX}lengths")
    return fragment


def _length_channel(fragment: GraphFragment, resampling: Resampling, counts: str) -> str:
    """Return the channel of the length, ``(batch, steps, 1)``.

    A logarithm may have other bits in a vector of another length; a table of all lengths of the training split has not.
    """
    low, high = resampling.length_range.tolist()
    table = resampling.length_scores(torch.arange(low, high + 1)).numpy()
    shortest, longest = _constant(fragment, "length.shortest", low), _constant(fragment, "length.longest", high)
    clipped = fragment.add("Max", [fragment.add("Min", [counts, longest], "length.most"), shortest], "length.clipped")
    index = fragment.add("Sub", [clipped, shortest], "length.index")
    score = fragment.add("Gather", [fragment.constant("length.scores", table), index], "length.score")
    column = fragment.add("Unsqueeze", [score, _constant(fragment, "length.axes", [1, 2])], "length.column")
    return fragment.add(
        "Expand", [column, _constant(fragment, "length.shape", [1, resampling.steps, 1])], "length.channel"
    )


def _constant(fragment: GraphFragment, name: str, value: int | list[int] | np.ndarray) -> str:
    return fragment.constant(name, np.asarray(value, dtype=np.int64))
