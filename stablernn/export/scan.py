"""Step graph and sequence graph from the same nodes, so that a stream and a whole sequence give the same numbers.

``step.onnx`` is transition, then emission. ``sequence.onnx`` is an ONNX ``Scan`` whose body is that transition, then
the emission of the last state. Constants of the transition stay inside the body: a runtime then packs and fuses them
in both graphs alike, which is what makes the results equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, compose, helper

IR_VERSION = 10


def step_graph(transition: onnx.ModelProto, emission: onnx.ModelProto) -> onnx.ModelProto:
    """One step: inputs ``x[, dt], state_0, ..``, outputs the model's outputs and ``state_0_out, ..``."""
    names = _states(transition)
    read = [value.name for value in _read(transition)]
    body = _prefixed(transition, "transition.", keep=[*read, *names, *(f"{name}_out" for name in names)])
    tail = _tail(emission, names)
    graph = helper.make_graph(
        [*body.node, *tail.node],
        "step",
        [*body.input],
        [*tail.output, *body.output],
        [*body.initializer, *tail.initializer],
    )
    return _model(graph, transition)


def sequence_graph(transition: onnx.ModelProto, emission: onnx.ModelProto) -> onnx.ModelProto:
    """A whole sequence: inputs ``x[, dt], lengths, state_0, ..``; outputs as those of a step.

    They are those after the last valid step. Steps from ``lengths`` on are padding, over which every state is held.
    """
    names = _states(transition)
    read = _read(transition)
    body = _scan_body(transition, names)
    tail = _tail(emission, names)
    nodes = [
        # valid[b, t] = t < lengths[b], with a trailing axis so that a step sees (batch, 1).
        helper.make_node("Shape", ["x"], ["time"], start=1, end=2),
        helper.make_node("Squeeze", ["time"], ["time_scalar"]),
        helper.make_node("Range", ["zero", "time_scalar", "one"], ["times"]),
        helper.make_node("Unsqueeze", ["lengths", "axis_one"], ["lengths_column"]),
        helper.make_node("Less", ["times", "lengths_column"], ["valid"]),
        helper.make_node("Unsqueeze", ["valid", "axis_two"], ["valid_steps"]),
        helper.make_node(
            "Scan",
            [*names, *(value.name for value in read), "valid_steps"],
            [f"{name}_out" for name in names],
            body=body,
            num_scan_inputs=len(read) + 1,
            scan_input_axes=[1] * (len(read) + 1),
        ),
        *tail.node,
    ]
    constants = [
        helper.make_tensor("zero", TensorProto.INT64, [], [0]),
        helper.make_tensor("one", TensorProto.INT64, [], [1]),
        helper.make_tensor("axis_one", TensorProto.INT64, [1], [1]),
        helper.make_tensor("axis_two", TensorProto.INT64, [1], [2]),
    ]
    inputs = [
        *map(_over_time, read),
        helper.make_tensor_value_info("lengths", TensorProto.INT64, ["batch"]),
        *(value for value in transition.graph.input if value.name in names),
    ]
    outputs = [*tail.output, *transition.graph.output]
    return _model(helper.make_graph(nodes, "sequence", inputs, outputs, [*constants, *tail.initializer]), transition)


def _scan_body(transition: onnx.ModelProto, names: Sequence[str]) -> onnx.GraphProto:
    body = _prefixed(transition, "transition.", keep=[])
    count = len(body.input) - len(names)
    read, states = body.input[:count], body.input[count:]
    keep = helper.make_tensor_value_info("transition.keep", TensorProto.BOOL, ["batch", 1])
    held, outputs = [], []
    for name, before, after in zip(names, states, body.output, strict=True):
        output = onnx.ValueInfoProto()
        output.CopyFrom(after)
        output.name = f"transition.{name}_kept"
        held.append(helper.make_node("Where", [keep.name, after.name, before.name], [output.name]))
        outputs.append(output)
    return helper.make_graph([*body.node, *held], "transition", [*states, *read, keep], outputs, [*body.initializer])


def _tail(emission: onnx.ModelProto, names: Sequence[str]) -> onnx.GraphProto:
    """The emission graph, reading the states that the transition wrote."""
    kept = [output.name for output in emission.graph.output]
    tail = _prefixed(emission, "emission.", keep=kept)
    read = {f"emission.{name}": f"{name}_out" for name in names}
    for node in tail.node:
        node.input[:] = [read.get(name, name) for name in node.input]
    return tail


def _prefixed(model: onnx.ModelProto, prefix: str, keep: Sequence[str]) -> onnx.GraphProto:
    """A copy of the graph with every name prefixed but those to keep; shapes of inner values are dropped."""
    graph = compose.add_prefix(model, prefix).graph
    original = {prefix + name: name for name in keep}
    for node in graph.node:
        node.input[:] = [original.get(name, name) for name in node.input]
        node.output[:] = [original.get(name, name) for name in node.output]
    for value in [*graph.input, *graph.output]:
        value.name = original.get(value.name, value.name)
    del graph.value_info[:]
    return graph


def _states(transition: onnx.ModelProto) -> list[str]:
    return [value.name.removesuffix("_out") for value in transition.graph.output]


def _read(transition: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """What a step reads beside the states: ``x``, and ``dt`` where the model takes it."""
    return list(transition.graph.input)[: -len(transition.graph.output)]


def _over_time(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """The same input of a whole sequence, with a time axis after the batch."""
    axes = value.type.tensor_type.shape.dim
    return helper.make_tensor_value_info(
        value.name, value.type.tensor_type.elem_type, ["batch", "time", *(axis.dim_value for axis in axes[1:])]
    )


def _model(graph: onnx.GraphProto, source: onnx.ModelProto) -> onnx.ModelProto:
    model = helper.make_model(
        graph, producer_name="stablernn", ir_version=IR_VERSION, opset_imports=list(source.opset_import)
    )
    onnx.checker.check_model(model, full_check=True)
    return model
