"""Step graph and sequence graph from the same nodes, so that a stream and a whole sequence give the same numbers.

``step.onnx`` is transition, then emission. ``sequence.onnx`` is an ONNX ``Scan`` whose body is that transition, then
the emission of the last state; where every step has an output, the emission stands in the body too. Constants of the
transition stay inside the body: a runtime then packs and fuses them in both graphs alike, which is what makes the
results equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto, compose, helper

IR_VERSION = 10


def step_graph(transition: onnx.ModelProto, emission: onnx.ModelProto) -> onnx.ModelProto:
    """One step: inputs ``x[, dt], state_0, ..[, static, future]``, outputs the model's and ``state_0_out, ..``."""
    names = _states(transition)
    read = [value.name for value in _read(transition)]
    body = _prefixed(transition, "transition.", keep=[*read, *names, *(f"{name}_out" for name in names)])
    tail = _tail(emission, {name: f"{name}_out" for name in names})
    graph = helper.make_graph(
        [*body.node, *tail.node],
        "step",
        [*body.input, *_known(emission, names)],
        [*tail.output, *body.output],
        [*body.initializer, *tail.initializer],
    )
    return _model(graph, transition)


def sequence_graph(
    transition: onnx.ModelProto, emission: onnx.ModelProto, *, every_step: bool = False, end_aligned: bool = False
) -> onnx.ModelProto:
    """A whole sequence: inputs ``x[, dt], lengths, state_0, ..[, static, future]``; outputs as those of a step.

    They are those after the last valid step, or with ``every_step`` those after each, with a time axis. Steps from
    ``lengths`` on are padding, over which every state is held.
    Where a step takes a patch of samples, the samples of a patch that lie behind the end are missing or, with
    ``end_aligned``, those before the beginning.
    """
    names = _states(transition)
    read = _read(transition)
    emitted = list(emission.graph.output) if every_step else []
    body = _scan_body(transition, names, emission if every_step else None)
    tail = onnx.GraphProto() if every_step else _tail(emission, {name: f"{name}_out" for name in names})
    stride = _stride(read[0])
    before, sequences = _patched(read, end_aligned) if stride else ([], [value.name for value in read])
    scan = helper.make_node(
        "Scan",
        [*names, *sequences, "valid_steps"],
        [*(f"{name}_out" for name in names), *(value.name for value in emitted)],
        body=body,
        num_scan_inputs=len(read) + 1,
        scan_input_axes=[1] * (len(read) + 1),
    )
    if emitted:
        scan.attribute.append(helper.make_attribute("scan_output_axes", [1] * len(emitted)))
    nodes = [
        *before,
        # valid[b, t] = t < lengths[b], with a trailing axis so that a step sees (batch, 1).
        helper.make_node("Shape", [sequences[0]], ["time"], start=1, end=2),
        helper.make_node("Squeeze", ["time"], ["time_scalar"]),
        helper.make_node("Range", ["zero", "time_scalar", "one"], ["times"]),
        helper.make_node("Unsqueeze", ["groups" if stride else "lengths", "axis_one"], ["lengths_column"]),
        helper.make_node("Less", ["times", "lengths_column"], ["valid"]),
        helper.make_node("Unsqueeze", ["valid", "axis_two"], ["valid_steps"]),
        scan,
        *tail.node,
    ]
    constants = [
        helper.make_tensor("zero", TensorProto.INT64, [], [0]),
        helper.make_tensor("one", TensorProto.INT64, [], [1]),
        helper.make_tensor("axis_one", TensorProto.INT64, [1], [1]),
        helper.make_tensor("axis_two", TensorProto.INT64, [1], [2]),
        *(_patch_constants(read, stride) if stride else []),
    ]
    inputs = [
        *(_over_time(value, patched=stride > 0) for value in read),
        helper.make_tensor_value_info("lengths", TensorProto.INT64, ["batch"]),
        *(value for value in transition.graph.input if value.name in names),
        *_known(emission, names),
    ]
    outputs = [*map(_over_time, emitted), *tail.output, *transition.graph.output]
    return _model(helper.make_graph(nodes, "sequence", inputs, outputs, [*constants, *tail.initializer]), transition)


def _stride(x: onnx.ValueInfoProto) -> int:
    """Samples of a patch; 0 where a step takes one sample ``(batch, features)``."""
    axes = x.type.tensor_type.shape.dim
    return int(axes[1].dim_value) if len(axes) == 3 else 0


def _patched(read: Sequence[onnx.ValueInfoProto], end_aligned: bool) -> tuple[list[onnx.NodeProto], list[str]]:
    """Nodes that group the inputs of a sequence into patches, and the names of the groups.

    ``groups`` becomes the number of patches of each sequence.
    """
    nodes = [
        helper.make_node("Shape", ["x"], ["samples"], start=1, end=2),
        helper.make_node("Squeeze", ["samples"], ["samples_scalar"]),
        helper.make_node("Range", ["zero", "samples_scalar", "one"], ["sample_times"]),
        helper.make_node("Unsqueeze", ["lengths", "axis_one"], ["sample_lengths"]),
        helper.make_node("Less", ["sample_times", "sample_lengths"], ["valid_samples"]),
        helper.make_node("Unsqueeze", ["valid_samples", "axis_two"], ["valid_values"]),
        helper.make_node("Add", ["lengths", "stride_less_one"], ["rounded_up"]),
        helper.make_node("Div", ["rounded_up", "stride"], ["groups"]),
        helper.make_node("Neg", ["samples"], ["samples_below"]),
        helper.make_node("Mod", ["samples_below", "stride_vector"], ["rest"]),
        *(_places() if end_aligned else []),
    ]
    names = []
    for value in read:
        name, rank = value.name, len(value.type.tensor_type.shape.dim)
        valid = "valid_values" if rank == 3 else "valid_samples"
        names.append(f"{name}_patches")
        unpadded = ["pads_zero"] * rank
        pads = [*unpadded, "pads_zero", "rest", *unpadded[2:]]
        nodes += [
            helper.make_node("Where", [valid, name, f"{name}_absent"], [f"{name}_valid"]),
            helper.make_node("Concat", pads, [f"{name}_pads"], axis=0),
            helper.make_node("Pad", [f"{name}_valid", f"{name}_pads", f"{name}_absent"], [f"{name}_padded"]),
            *(_moved_to_the_end(name, rank) if end_aligned else []),
            helper.make_node(
                "Reshape", [f"{name}_moved" if end_aligned else f"{name}_padded", f"{name}_shape"], [names[-1]]
            ),
        ]
    return nodes, names


def _places() -> list[onnx.NodeProto]:
    """Which sample stands in each place once sequences end with a whole patch: ``place``, below 0 where none does."""
    return [
        helper.make_node("Neg", ["lengths"], ["lengths_below"]),
        helper.make_node("Mod", ["lengths_below", "stride"], ["shift"]),
        helper.make_node("Unsqueeze", ["shift", "axis_one"], ["shift_column"]),
        helper.make_node("Add", ["samples", "rest"], ["places"]),
        helper.make_node("Squeeze", ["places"], ["places_scalar"]),
        helper.make_node("Range", ["zero", "places_scalar", "one"], ["place_times"]),
        helper.make_node("Sub", ["place_times", "shift_column"], ["place"]),
        helper.make_node("GreaterOrEqual", ["place", "zero"], ["place_taken"]),
        helper.make_node("Max", ["place", "zero"], ["place_read"]),
        helper.make_node("Unsqueeze", ["place_taken", "axis_two"], ["place_taken_values"]),
        helper.make_node("Unsqueeze", ["place_read", "axis_two"], ["place_read_values"]),
    ]


def _moved_to_the_end(name: str, rank: int) -> list[onnx.NodeProto]:
    """``{name}_moved``: the padded input with each sequence moved so that its last patch is whole."""
    index, taken = ("place_read", "place_taken") if rank == 2 else (f"{name}_read", "place_taken_values")
    spread = [
        helper.make_node("Shape", [f"{name}_padded"], [f"{name}_padded_shape"]),
        helper.make_node("Expand", ["place_read_values", f"{name}_padded_shape"], [index]),
    ]
    return [
        *(spread if rank == 3 else []),
        helper.make_node("GatherElements", [f"{name}_padded", index], [f"{name}_gathered"], axis=1),
        helper.make_node("Where", [taken, f"{name}_gathered", f"{name}_absent"], [f"{name}_moved"]),
    ]


def _patch_constants(read: Sequence[onnx.ValueInfoProto], stride: int) -> list[onnx.TensorProto]:
    constants = [
        helper.make_tensor("stride", TensorProto.INT64, [], [stride]),
        helper.make_tensor("stride_vector", TensorProto.INT64, [1], [stride]),
        helper.make_tensor("stride_less_one", TensorProto.INT64, [], [stride - 1]),
        helper.make_tensor("pads_zero", TensorProto.INT64, [1], [0]),
    ]
    for value in read:
        inner = [axis.dim_value for axis in value.type.tensor_type.shape.dim][2:]
        # A value that is not there is missing; a step that is not there takes the regular time.
        absent = float("nan") if value.name == "x" else 1.0
        constants.append(helper.make_tensor(f"{value.name}_absent", TensorProto.FLOAT, [], [absent]))
        shape = [0, -1, stride, *inner]
        constants.append(helper.make_tensor(f"{value.name}_shape", TensorProto.INT64, [len(shape)], shape))
    return constants


def _scan_body(transition: onnx.ModelProto, names: Sequence[str], emission: onnx.ModelProto | None) -> onnx.GraphProto:
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
    tail = onnx.GraphProto()
    if emission is not None:
        # Over padding this is the output of the last valid step again, whatever stands there.
        tail = _tail(emission, {name: f"transition.{name}_kept" for name in names})
    return helper.make_graph(
        [*body.node, *held, *tail.node],
        "transition",
        [*states, *read, keep],
        [*outputs, *tail.output],
        [*body.initializer, *tail.initializer],
    )


def _tail(emission: onnx.ModelProto, states: Mapping[str, str]) -> onnx.GraphProto:
    """The emission graph, reading each state under the name that is given for it, and what is known."""
    kept = [value.name for value in (*emission.graph.output, *_known(emission, list(states)))]
    tail = _prefixed(emission, "emission.", keep=kept)
    read = {f"emission.{name}": written for name, written in states.items()}
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


def _known(emission: onnx.ModelProto, names: Sequence[str]) -> list[onnx.ValueInfoProto]:
    """What the outputs are made from beside the states."""
    return [value for value in emission.graph.input if value.name not in names]


def _over_time(value: onnx.ValueInfoProto, *, patched: bool = False) -> onnx.ValueInfoProto:
    """The same input of a whole sequence, with a time axis after the batch, in place of that of a patch if there is."""
    axes = value.type.tensor_type.shape.dim[2 if patched else 1 :]
    return helper.make_tensor_value_info(
        value.name, value.type.tensor_type.elem_type, ["batch", "time", *(axis.dim_value for axis in axes)]
    )


def _model(graph: onnx.GraphProto, source: onnx.ModelProto) -> onnx.ModelProto:
    model = helper.make_model(
        graph, producer_name="stablernn", ir_version=IR_VERSION, opset_imports=list(source.opset_import)
    )
    onnx.checker.check_model(model, full_check=True)
    return model
