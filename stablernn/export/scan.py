"""Step graph and sequence graph from the same nodes, so that a stream and a whole sequence give the same numbers.

``step.onnx`` is intake, recurrence, then emission. ``sequence.onnx`` is an ONNX ``Scan`` whose body is that recurrence,
then the emission of the last state; where every step has an output, the emission stands in the body too, and where the
model has no intake of its own, scaling does. Constants of the recurrence stay inside the body: a runtime then packs and
fuses them in both graphs alike, which is what makes the results equal bit for bit.

Steps behind a sequence's end hold every state, which is a node for each state in the body. Batches without padding take
a second Scan without these nodes, for which the file holds a small recurrence twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnx import TensorProto, compose, helper

from stablernn.export.input_stage import Part
from stablernn.export.step import Parts

IR_VERSION = 10
TWICE_BYTES = 2**20
"""A recurrence of more bytes stands in the file once: its products take so long that one node more is not felt."""

Before = tuple[list[onnx.NodeProto], list[onnx.TensorProto], list[str]]
"""Nodes in front of the Scan, their constants, and the names of what is scanned.

They leave ``time_scalar``, the steps of the longest sequence, and ``valid_steps``, which steps are no padding.
"""


def step_graph(parts: Parts) -> onnx.ModelProto:
    """One step: inputs ``x[, dt], state_0, ..[, static, future]``, outputs the model's and ``state_0_out, ..``."""
    names = _layer_states(parts)
    read = [value.name for value in parts.read]
    body = _prefixed(parts.recurrence, "transition.", keep=[*read, *names, *(f"{name}_out" for name in names)])
    intake = Part() if parts.intake is None else parts.intake.of_step()
    for node in body.node if intake.features else ():
        node.input[:] = [intake.features if name == read[0] else name for name in node.input]
    tail = _tail(parts, {name: f"{name}_out" for name in parts.states})
    graph = helper.make_graph(
        [*intake.nodes, *body.node, *tail.node],
        "step",
        [*parts.read, *_state_inputs(parts), *_known(parts)],
        [*tail.output, *_state_outputs(parts)],
        [*intake.constants, *body.initializer, *tail.initializer],
    )
    return _model(graph, parts)


def sequence_graph(parts: Parts) -> onnx.ModelProto:
    """A whole sequence: inputs ``x[, dt], lengths, state_0, ..[, static, future]``; outputs as those of a step.

    They are those after the last valid step or, where every step has an output, those after each, with a time axis.
    Steps from ``lengths`` on are padding, over which every state is held.
    Where a step takes a patch of samples, the samples of a patch that lie behind the end are missing or, with
    ``end_aligned``, those before the beginning. There is at least one sequence, of at least one step.
    """
    stride = _stride(parts.read[0])
    before, constants, sequences = _patched(parts, stride) if stride else _sampled(parts)
    emitted = list(parts.emission.graph.output) if parts.every_step else []
    tail = onnx.GraphProto()
    if not parts.every_step:
        tail = _tail(parts, {name: f"{name}_out" for name in parts.states})
    results = [*(f"{name}_out" for name in _layer_states(parts)), *(value.name for value in emitted)]
    if parts.recurrence.ByteSize() > TWICE_BYTES:
        scanned = [_scan(parts, sequences, results, padded=True)]
    else:
        scanned = [
            helper.make_node("ReduceMin", ["groups" if stride else "lengths"], ["shortest"], keepdims=0),
            helper.make_node("Less", ["shortest", "time_scalar"], ["padded"]),
            helper.make_node(
                "If",
                ["padded"],
                results,
                then_branch=_branch(parts, sequences, results, padded=True),
                else_branch=_branch(parts, sequences, results, padded=False),
            ),
        ]
    inputs = [
        *(_over_time(value, patched=stride > 0) for value in parts.read),
        helper.make_tensor_value_info("lengths", TensorProto.INT64, ["batch"]),
        *_state_inputs(parts),
        *_known(parts),
    ]
    outputs = [*map(_over_time, emitted), *tail.output, *_state_outputs(parts)]
    nodes = [*before, *scanned, *tail.node]
    graph = helper.make_graph(nodes, "sequence", inputs, outputs, [*constants, *tail.initializer])
    return _model(graph, parts)


def _scan(parts: Parts, sequences: Sequence[str], results: Sequence[str], *, padded: bool) -> onnx.NodeProto:
    """The Scan over all steps of a batch, with or without padding behind the shorter sequences."""
    scanned = [*sequences, *(["valid_steps"] if padded else [])]
    names = _layer_states(parts)
    scan = helper.make_node(
        "Scan",
        [*names, *scanned],
        results,
        body=_scan_body(parts, padded=padded),
        num_scan_inputs=len(scanned),
        scan_input_axes=[1] * len(scanned),
    )
    if len(results) > len(names):
        scan.attribute.append(helper.make_attribute("scan_output_axes", [1] * (len(results) - len(names))))
    return scan


def _branch(parts: Parts, sequences: Sequence[str], results: Sequence[str], *, padded: bool) -> onnx.GraphProto:
    """That Scan as a graph of its own, which takes its inputs from the graph around it."""
    name = "padded" if padded else "whole"
    scan = _scan(parts, sequences, [f"{name}.{result}" for result in results], padded=padded)
    body = next(attribute.g for attribute in scan.attribute if attribute.name == "body")
    count = len(_layer_states(parts))
    outputs = [*map(_copy, body.output[:count]), *map(_over_time, body.output[count:])]
    for output, written in zip(outputs, scan.output, strict=True):
        output.name = written
    return helper.make_graph([scan], name, [], outputs)


def _stride(x: onnx.ValueInfoProto) -> int:
    """Samples of a patch; 0 where a step takes one sample ``(batch, features)``."""
    axes = x.type.tensor_type.shape.dim
    return int(axes[1].dim_value) if len(axes) == 3 else 0


def _sampled(parts: Parts) -> Before:
    """What stands in front where a step takes one sample."""
    names = [value.name for value in parts.read]
    nodes, constants = _valid(names[0], "lengths")
    if parts.intake is None:
        return nodes, constants, names
    # A sequence ends with its last sample, whatever length it is told.
    nodes.append(helper.make_node("Min", ["lengths", "time_scalar"], ["ends"]))
    intake = parts.intake.of_sequence("x", ends="ends", valid="valid_steps")
    return [*nodes, *intake.nodes], [*constants, *intake.constants], [intake.features, *names[1:]]


def _valid(sequence: str, lengths: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    nodes = [
        # valid[b, t] = t < lengths[b], with a trailing axis so that a step sees (batch, 1).
        helper.make_node("Shape", [sequence], ["time"], start=1, end=2),
        helper.make_node("Squeeze", ["time"], ["time_scalar"]),
        helper.make_node("Range", ["zero", "time_scalar", "one"], ["times"]),
        helper.make_node("Unsqueeze", [lengths, "axis_one"], ["lengths_column"]),
        helper.make_node("Less", ["times", "lengths_column"], ["valid"]),
        helper.make_node("Unsqueeze", ["valid", "axis_two"], ["valid_steps"]),
    ]
    constants = [
        helper.make_tensor("zero", TensorProto.INT64, [], [0]),
        helper.make_tensor("one", TensorProto.INT64, [], [1]),
        helper.make_tensor("axis_one", TensorProto.INT64, [1], [1]),
        helper.make_tensor("axis_two", TensorProto.INT64, [1], [2]),
    ]
    return nodes, constants


def _patched(parts: Parts, stride: int) -> Before:
    """What stands in front where a step takes a patch; ``groups`` becomes the number of patches of each sequence."""
    read, end_aligned = parts.read, parts.end_aligned
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
    constants = _patch_constants(read, stride)
    sequences = []
    for value in read:
        name, rank = value.name, len(value.type.tensor_type.shape.dim)
        valid = "valid_values" if rank == 3 else "valid_samples"
        unpadded = ["pads_zero"] * rank
        pads = [*unpadded, "pads_zero", "rest", *unpadded[2:]]
        nodes += [
            helper.make_node("Where", [valid, name, f"{name}_absent"], [f"{name}_valid"]),
            helper.make_node("Concat", pads, [f"{name}_pads"], axis=0),
            helper.make_node("Pad", [f"{name}_valid", f"{name}_pads", f"{name}_absent"], [f"{name}_padded"]),
            *(_moved_to_the_end(name, rank) if end_aligned else []),
        ]
        whole = f"{name}_moved" if end_aligned else f"{name}_padded"
        if name == "x" and parts.intake is not None:
            intake = parts.intake.of_sequence(whole)
            nodes += intake.nodes
            constants += intake.constants
            sequences.append(intake.features)
        else:
            nodes.append(helper.make_node("Reshape", [whole, f"{name}_shape"], [f"{name}_patches"]))
            sequences.append(f"{name}_patches")
    valid_nodes, valid_constants = _valid(sequences[0], "groups")
    return [*nodes, *valid_nodes], [*constants, *valid_constants], sequences


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


def _scan_body(parts: Parts, *, padded: bool) -> onnx.GraphProto:
    """The recurrence and, where every step has an output, the emission; states are held where a step is padding."""
    names = _layer_states(parts)
    body = _prefixed(parts.recurrence, "transition.", keep=[])
    count = len(body.input) - len(names)
    read, states = body.input[:count], body.input[count:]
    keep = helper.make_tensor_value_info("transition.keep", TensorProto.BOOL, ["batch", 1])
    held, outputs = [], list(body.output)
    for place, (before, after) in enumerate(zip(states, body.output, strict=True) if padded else ()):
        output = _copy(after)
        output.name = f"{after.name}_kept"
        held.append(helper.make_node("Where", [keep.name, after.name, before.name], [output.name]))
        outputs[place] = output
    tail = onnx.GraphProto()
    if parts.every_step:
        # Over padding this is the output of the last valid step again, whatever stands there.
        written = dict(zip(names, (output.name for output in outputs), strict=True))
        tail = _tail(parts, written, is_inner=True)
    return helper.make_graph(
        [*body.node, *held, *tail.node],
        "transition",
        [*states, *read, *([keep] if padded else [])],
        [*outputs, *tail.output],
        [*body.initializer, *tail.initializer],
    )


def _tail(parts: Parts, written: Mapping[str, str], *, is_inner: bool = False) -> onnx.GraphProto:
    """The emission graph, reading each state under the name that is given for it, and what is known.

    Outputs have the model's names, but for those inside a body: a name stands for one value in all nested graphs.
    """
    kept = [value.name for value in _known(parts)]
    if not is_inner:
        kept += [value.name for value in parts.emission.graph.output]
    tail = _prefixed(parts.emission, "emission.", keep=kept)
    read = {f"emission.{name}": given for name, given in written.items()}
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


def _layer_states(parts: Parts) -> list[str]:
    """The states that the recurrence has: all but that of the intake."""
    return [value.name.removesuffix("_out") for value in parts.recurrence.graph.output]


def _state_inputs(parts: Parts) -> list[onnx.ValueInfoProto]:
    return [value for value in parts.emission.graph.input if value.name in parts.states]


def _state_outputs(parts: Parts) -> list[onnx.ValueInfoProto]:
    outputs = []
    for value in _state_inputs(parts):
        output = _copy(value)
        output.name = f"{value.name}_out"
        outputs.append(output)
    return outputs


def _known(parts: Parts) -> list[onnx.ValueInfoProto]:
    """What the outputs are made from beside the states."""
    return [value for value in parts.emission.graph.input if value.name not in parts.states]


def _copy(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    copied = onnx.ValueInfoProto()
    copied.CopyFrom(value)
    return copied


def _over_time(value: onnx.ValueInfoProto, *, patched: bool = False) -> onnx.ValueInfoProto:
    """The same input of a whole sequence, with a time axis after the batch, in place of that of a patch if there is."""
    axes = value.type.tensor_type.shape.dim[2 if patched else 1 :]
    return helper.make_tensor_value_info(
        value.name, value.type.tensor_type.elem_type, ["batch", "time", *(axis.dim_value for axis in axes)]
    )


def _model(graph: onnx.GraphProto, parts: Parts) -> onnx.ModelProto:
    opsets = list(parts.recurrence.opset_import)
    model = helper.make_model(graph, producer_name="stablernn", ir_version=IR_VERSION, opset_imports=opsets)
    onnx.checker.check_model(model, full_check=True)
    return model
