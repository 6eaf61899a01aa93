"""Step graph and sequence graph from the same nodes, so that a stream and a whole sequence give the same numbers.

``step.onnx`` is input stage, recurrence, then emission. ``sequence.onnx`` is an ONNX ``Scan`` whose body is that
recurrence, then the emission of the last state. If every step has an output, the body contains the emission too; if the
model has no separate input stage, the body contains the scaling. Constants of the recurrence stay inside the body, so
that a runtime packs and fuses them in the same way in both graphs; this makes the results equal to the last bit.

Steps after the end of a sequence keep every state, which takes one node per state in the body. Batches without padding
run a second Scan without these nodes, for which the file contains a small recurrence twice. For a short batch the
products of the inputs are computed for all steps at once, in front of the Scan; for a long one the memory that the
result needs costs more than the nodes. The rows of a product do not depend on each other: the bits are those of a step.

A resampling is nodes in front of the graph, whose samples are then all valid and begin at zero. Its states are
neither inputs nor outputs: the rest of a sequence would be resampled as a sequence of its own, so that nothing can go
on from them. Positions are whole numbers and the scores of lengths a table, so that a sequence has the same bits in any
batch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
import torch
from onnx import TensorProto, compose, helper, numpy_helper, parser

from stablernn.export.input_stage import GraphFragment
from stablernn.export.residual_steps import is_plain_product, scale_states, set_nodes
from stablernn.export.step import ModelParts
from stablernn.nn.models import SequenceModel
from stablernn.nn.preprocessing import Resampling

MAX_ELEMENTS = 2**18
"""Numbers in the products of a batch that are computed in front of the Scan. With 128 units, a node less saves a tenth
of the time of one or two sequences of 784 steps; from eight of them on, writing and reading the products takes as
long."""
MAX_STEP_NODES = 6
"""Nodes of a step without its products up to which they are computed in front of the Scan. One of 18 nodes less, as of
``gru``, is not noticed, and the recurrence would stand in the file once more for it."""
MAX_ROWS_NAME = "unpadded.max_rows"
"""Name of the initializer that holds :attr:`InputProducts.max_rows`; only graphs that need it have it."""
MAX_DUPLICATED_BYTES = 2**20
"""Larger recurrences are stored once: their products take so long that the additional nodes do not matter."""

Prologue = tuple[list[onnx.NodeProto], list[onnx.TensorProto], list[str]]
"""Nodes in front of the Scan, their constants, and the names of the scanned inputs.

The nodes define ``time_scalar``, the number of steps of the longest sequence, and ``valid_steps``, the mask of steps
that are not padding.
"""
_PREFIX = "resampled."


@dataclass(frozen=True)
class InputProducts:
    """A recurrence that reads products of its inputs, and the nodes that compute them for whole sequences.

    Attributes:
        recurrence: One step: inputs ``[x, dt,] product_0, .., state_0, ..``, outputs ``state_0_out, ..``.
        reads_x: Whether the recurrence still reads ``x`` besides the products.
        names: Names of the products, each ``(time, batch, units)``.
        max_rows: Steps times sequences of the longest batch for which they are computed in front of the Scan.
        nodes: Nodes that compute them.
        constants: Initializers that these nodes read.
    """

    recurrence: onnx.ModelProto
    reads_x: bool
    names: list[str]
    max_rows: int
    nodes: list[onnx.NodeProto]
    constants: list[onnx.TensorProto]

    @classmethod
    def from_recurrence(cls, model: onnx.ModelProto, features: str) -> InputProducts | None:
        """Take the products of the first input out of a recurrence; None if it has none, or too many other nodes.

        Args:
            model: One step, whose first input is ``(batch, channels)``; it is not changed.
            features: Name of the channels of whole sequences, ``(batch, time, channels)``.
        """
        recurrence = copy.deepcopy(model)
        graph = recurrence.graph
        x, tensors = graph.input[0], {tensor.name: tensor for tensor in graph.initializer}
        products = [
            node
            for node in graph.node
            if is_plain_product(node) and node.input[0] == x.name and all(name in tensors for name in node.input[1:])
        ]
        if not products or len(graph.node) - len(products) > MAX_STEP_NODES:
            return None
        channels = x.type.tensor_type.shape.dim[1].dim_value
        steps = [node for node in graph.node if node not in products]
        reads_x = any(x.name in node.input for node in steps)
        widths = [tensors[node.input[1]].dims[0] for node in products]
        step_products = [
            helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, ["batch", width])
            for node, width in zip(products, widths, strict=True)
        ]
        inputs = [*graph.input]
        states = [value for value in inputs if f"{value.name}_out" in {output.name for output in graph.output}]
        others = [value for value in inputs if value not in states and (reads_x or value.name != x.name)]
        del graph.input[:]
        graph.input.extend([*others, *step_products, *states])
        set_nodes(graph, steps)
        nodes, constants = _product_nodes(products, tensors, widths, features, channels)
        names = [f"products.{index}" for index in range(len(products))]
        return cls(recurrence, reads_x, names, MAX_ELEMENTS // sum(widths), nodes, constants)


def _product_nodes(
    products: list[onnx.NodeProto],
    tensors: dict[str, onnx.TensorProto],
    widths: list[int],
    features: str,
    channels: int,
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Return the nodes for ``products.0, ..``, and their constants."""
    constants = [numpy_helper.from_array(np.array([-1, channels]), "products.rows_shape")]
    nodes = [
        # A Scan moves the axis over time to the front anyway; of the channels that is less than of the products.
        helper.make_node("Transpose", [features], ["products.time_first"], perm=[1, 0, 2]),
        helper.make_node("Reshape", ["products.time_first", "products.rows_shape"], ["products.rows"]),
        helper.make_node("Shape", ["products.time_first"], ["products.axes"], start=0, end=2),
    ]
    for index, (node, width) in enumerate(zip(products, widths, strict=True)):
        name = f"products.{index}"
        parameters = [f"{name}.{part}" for part, _ in zip(("weight", "bias"), node.input[1:], strict=False)]
        for parameter, original in zip(parameters, node.input[1:], strict=True):
            constants.append(numpy_helper.from_array(numpy_helper.to_array(tensors[original]), parameter))
        constants.append(numpy_helper.from_array(np.array([width]), f"{name}.width"))
        nodes += [
            helper.make_node("Gemm", ["products.rows", *parameters], [f"{name}.rows"], transB=1),
            helper.make_node("Concat", ["products.axes", f"{name}.width"], [f"{name}.shape"], axis=0),
            # (time, batch, units)
            helper.make_node("Reshape", [f"{name}.rows", f"{name}.shape"], [name]),
        ]
    return nodes, constants


def step_graph(parts: ModelParts) -> onnx.ModelProto:
    """Build ``step.onnx``: inputs ``x[, dt], state_0, ..[, static, future]``, outputs and ``state_0_out, ..``."""
    names = _layer_states(parts)
    input_names = [value.name for value in parts.step_inputs]
    body = _prefix_names(
        parts.recurrence, "transition.", keep=[*input_names, *names, *(f"{name}_out" for name in names)]
    )
    stage = GraphFragment() if parts.input_stage is None else parts.input_stage.for_step()
    # The recurrence reads the channels that the input stage computes, and no longer the raw samples.
    for node in body.node if stage.features else ():
        node.input[:] = [stage.features if name == input_names[0] else name for name in node.input]
    tail = _emission_graph(parts, {name: f"{name}_out" for name in parts.states})
    graph = helper.make_graph(
        [*stage.nodes, *body.node, *tail.node],
        "step",
        [*parts.step_inputs, *_state_inputs(parts), *_known_inputs(parts)],
        [*tail.output, *_state_outputs(parts)],
        [*stage.constants, *body.initializer, *tail.initializer],
    )
    return build_model(graph, parts)


def sequence_graph(parts: ModelParts, *, is_reduced: bool = True) -> onnx.ModelProto:
    """Build ``sequence.onnx``: inputs ``x[, dt], lengths, state_0, ..[, static, future]``; outputs as of a step.

    Outputs are those after the last valid step or, if every step has an output, those after each step, with a time
    axis. Steps from ``lengths`` on are padding, over which every state is kept. If a step takes a patch of samples, the
    samples of a patch after the end of a sequence are missing or, with ``end_aligned``, those before its beginning.
    Batches have at least one sequence, of at least one step.

    Args:
        parts: From :func:`~stablernn.export.step.export_parts`.
        is_reduced: Whether the Scan may have fewer nodes than a step: states divided by a step size that is a power of
            two, and products of the inputs in front of it. Both leave the bits of a step as they are, on every machine
            on which a row of a product does not depend on the number of rows.
    """
    # An output at every step reads the state inside the body, where multiplying it again would take the saved node.
    if is_reduced and not parts.every_step:
        recurrence, scales = scale_states(parts.recurrence)
        parts = replace(parts, recurrence=recurrence, state_scales=scales)
    stride = _patch_stride(parts.step_inputs[0])
    prologue, constants, sequences = _patch_prologue(parts, stride) if stride else _sample_prologue(parts)
    step_outputs = list(parts.emission.graph.output) if parts.every_step else []
    tail = onnx.GraphProto()
    if not parts.every_step:
        tail = _emission_graph(parts, {name: f"{name}_out" for name in parts.states})
    results = [
        *(f"{name}_out{_scaled_suffix(parts, name)}" for name in _layer_states(parts)),
        *(value.name for value in step_outputs),
    ]
    if parts.recurrence.ByteSize() > MAX_DUPLICATED_BYTES:
        scan_nodes = [_scan_node(parts, sequences, results, is_padded=True)]
    else:
        # The padded Scan only runs if the shortest sequence is shorter than the batch.
        scan_nodes = [
            helper.make_node("ReduceMin", ["groups" if stride else "lengths"], ["shortest"], keepdims=0),
            helper.make_node("Less", ["shortest", "time_scalar"], ["padded"]),
            helper.make_node(
                "If",
                ["padded"],
                results,
                then_branch=_scan_branch(parts, sequences, results, is_padded=True),
                else_branch=_unpadded_branch(parts, sequences, results, is_reduced=is_reduced),
            ),
        ]
    before, after, factors = _scaling_nodes(parts)
    inputs = [
        *(_with_time_axis(value, is_patched=stride > 0) for value in parts.step_inputs),
        helper.make_tensor_value_info("lengths", TensorProto.INT64, ["batch"]),
        *_state_inputs(parts),
        *_known_inputs(parts),
    ]
    outputs = [*map(_with_time_axis, step_outputs), *tail.output, *_state_outputs(parts)]
    nodes = [*prologue, *before, *scan_nodes, *after, *tail.node]
    graph = helper.make_graph(nodes, "sequence", inputs, outputs, [*constants, *factors, *tail.initializer])
    return build_model(graph, parts)


def _scaled_suffix(parts: ModelParts, state: str) -> str:
    """Return the end of the name of a state inside the Scan."""
    return ".scaled" if state in parts.state_scales else ""


def _scaling_nodes(parts: ModelParts) -> tuple[list[onnx.NodeProto], list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Build the nodes that scale states in front of the Scan and behind it, and their constants."""
    before, after, constants = [], [], []
    for name, scale in parts.state_scales.items():
        constants.append(helper.make_tensor(f"{name}.scale", TensorProto.FLOAT, [], [scale]))
        constants.append(helper.make_tensor(f"{name}.inverse_scale", TensorProto.FLOAT, [], [1 / scale]))
        before.append(helper.make_node("Mul", [name, f"{name}.inverse_scale"], [f"{name}.scaled"]))
        after.append(helper.make_node("Mul", [f"{name}_out.scaled", f"{name}.scale"], [f"{name}_out"]))
    return before, after, constants


def _scan_node(
    parts: ModelParts, sequences: Sequence[str], results: Sequence[str], *, is_padded: bool, time_first: int = 0
) -> onnx.NodeProto:
    """Build the Scan over all steps of a batch, with or without padding after the shorter sequences.

    Args:
        parts: The parts of the model.
        sequences: Names of the values to scan.
        results: Names of the results.
        is_padded: Whether a mask of the valid steps is scanned, too.
        time_first: How many of the values, the last ones, have the axis over time in front of that over the batch.
    """
    scan_inputs = [*sequences, *(["valid_steps"] if is_padded else [])]
    names = _layer_states(parts)
    scan = helper.make_node(
        "Scan",
        [*(f"{name}{_scaled_suffix(parts, name)}" for name in names), *scan_inputs],
        results,
        body=_scan_body(parts, is_padded=is_padded),
        num_scan_inputs=len(scan_inputs),
        scan_input_axes=[1] * (len(scan_inputs) - time_first) + [0] * time_first,
    )
    # The states come first; any other results are outputs at every step, which get their time axis after the batch
    # axis.
    if len(results) > len(names):
        scan.attribute.append(helper.make_attribute("scan_output_axes", [1] * (len(results) - len(names))))
    return scan


def _scan_branch(
    parts: ModelParts, sequences: Sequence[str], results: Sequence[str], *, is_padded: bool
) -> onnx.GraphProto:
    """Build the Scan as a branch of an ``If``, which reads its inputs from the surrounding graph."""
    name = "padded" if is_padded else "whole"
    scan = _scan_node(parts, sequences, [f"{name}.{result}" for result in results], is_padded=is_padded)
    return helper.make_graph([scan], name, [], _branch_outputs(parts, scan))


def _unpadded_branch(
    parts: ModelParts, sequences: Sequence[str], results: Sequence[str], *, is_reduced: bool
) -> onnx.GraphProto:
    """Build the branch for batches without padding, which are short or long if it is reduced."""
    whole = _scan_branch(parts, sequences, results, is_padded=False)
    # Without an input stage, the recurrence reads raw samples.
    products = None
    if is_reduced and parts.input_stage is not None:
        products = InputProducts.from_recurrence(parts.recurrence, sequences[0])
    if products is None:
        return whole
    scanned = [*(sequences if products.reads_x else sequences[1:]), *products.names]
    short_parts = replace(parts, recurrence=products.recurrence)
    scan = _scan_node(
        short_parts,
        scanned,
        [f"short.{result}" for result in results],
        is_padded=False,
        time_first=len(products.names),
    )
    short = helper.make_graph(
        [*products.nodes, scan], "short", [], _branch_outputs(short_parts, scan), products.constants
    )
    outputs = _branch_outputs(parts, scan)
    for output, result in zip(outputs, results, strict=True):
        output.name = f"unpadded.{result}"
    nodes = [
        helper.make_node("Shape", [sequences[0]], ["unpadded.axes"], start=0, end=2),
        helper.make_node("ReduceProd", ["unpadded.axes"], ["unpadded.rows"], keepdims=0),
        helper.make_node("LessOrEqual", ["unpadded.rows", MAX_ROWS_NAME], ["unpadded.is_short"]),
        helper.make_node(
            "If", ["unpadded.is_short"], [output.name for output in outputs], then_branch=short, else_branch=whole
        ),
    ]
    return helper.make_graph(nodes, "unpadded", [], outputs, [_int64(MAX_ROWS_NAME, products.max_rows)])


def _branch_outputs(parts: ModelParts, scan: onnx.NodeProto) -> list[onnx.ValueInfoProto]:
    """Return the results of a Scan as the outputs of a branch."""
    body = next(attribute.g for attribute in scan.attribute if attribute.name == "body")
    count = len(_layer_states(parts))
    outputs = [*body.output[:count], *map(_with_time_axis, body.output[count:])]
    return [_renamed(output, name) for output, name in zip(outputs, scan.output, strict=True)]


def _patch_stride(x: onnx.ValueInfoProto) -> int:
    """Return the number of samples per patch; 0 if a step takes one sample ``(batch, features)``."""
    axes = x.type.tensor_type.shape.dim
    return int(axes[1].dim_value) if len(axes) == 3 else 0


def _sample_prologue(parts: ModelParts) -> Prologue:
    """Build the nodes in front of the Scan for steps that take one sample."""
    names = [value.name for value in parts.step_inputs]
    nodes, constants = _valid_mask(names[0], "lengths")
    if parts.input_stage is None:
        return nodes, constants, names
    # A length greater than the number of samples must not index past the last sample.
    nodes.append(helper.make_node("Min", ["lengths", "time_scalar"], ["ends"]))
    stage = parts.input_stage.for_sequence("x", ends="ends", valid="valid_steps")
    return [*nodes, *stage.nodes], [*constants, *stage.constants], [stage.features, *names[1:]]


def _parse(text: str) -> list[onnx.NodeProto]:
    """Return the nodes of lines in the text format of ONNX, attributes in the order of their names."""
    nodes = [parser.parse_node(line) for line in text.strip().splitlines()]
    for node in nodes:
        # The default domain, which the parser sets.
        node.ClearField("domain")
    return nodes


def _int64(name: str, value: int | list[int]) -> onnx.TensorProto:
    """Return an initializer: a scalar, or a vector."""
    dims, values = ([], [value]) if isinstance(value, int) else ([len(value)], value)
    return helper.make_tensor(name, TensorProto.INT64, dims, values)


def _valid_mask(sequence: str, lengths: str) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Build the nodes for ``time_scalar`` and ``valid_steps``, and their constants."""
    # valid[b, t] = t < lengths[b], with a trailing axis so that a step reads (batch, 1).
    # Names of an input stage have dots, and are quoted.
    nodes = _parse(f"""
        time = Shape <end = 2, start = 1> ("{sequence}")
        time_scalar = Squeeze (time)
        times = Range (zero, time_scalar, one)
        lengths_column = Unsqueeze ("{lengths}", axis_one)
        valid = Less (times, lengths_column)
        valid_steps = Unsqueeze (valid, axis_two)
    """)
    return nodes, [_int64("zero", 0), _int64("one", 1), _int64("axis_one", [1]), _int64("axis_two", [2])]


def _patch_prologue(parts: ModelParts, stride: int) -> Prologue:
    """Build the nodes in front of the Scan for steps that take a patch; ``groups`` is the patches of each sequence."""
    step_inputs, end_aligned = parts.step_inputs, parts.end_aligned
    nodes = _parse("""
        samples = Shape <end = 2, start = 1> (x)
        samples_scalar = Squeeze (samples)
        sample_times = Range (zero, samples_scalar, one)
        sample_lengths = Unsqueeze (lengths, axis_one)
        valid_samples = Less (sample_times, sample_lengths)
        valid_values = Unsqueeze (valid_samples, axis_two)
        rounded_up = Add (lengths, stride_less_one)
        groups = Div (rounded_up, stride)
        samples_below = Neg (samples)
        rest = Mod (samples_below, stride_vector)
    """)
    if end_aligned:
        nodes += _parse(_END_ALIGNED_INDICES)
    constants = _patch_constants(step_inputs, stride)
    sequences = []
    for value in step_inputs:
        name, rank = value.name, len(value.type.tensor_type.shape.dim)
        valid = "valid_values" if rank == 3 else "valid_samples"
        # Pad takes all leading pads, then all trailing ones; only the end of the time axis is padded.
        pads = ", ".join(["pads_zero"] * (rank + 1) + ["rest"] + ["pads_zero"] * (rank - 2))
        nodes += _parse(f"""
            {name}_valid = Where ({valid}, {name}, {name}_absent)
            {name}_pads = Concat <axis = 0> ({pads})
            {name}_padded = Pad ({name}_valid, {name}_pads, {name}_absent)
        """)
        if end_aligned:
            nodes += _align_to_end(name, rank)
        whole_patches = f"{name}_moved" if end_aligned else f"{name}_padded"
        if name == "x" and parts.input_stage is not None:
            stage = parts.input_stage.for_sequence(whole_patches)
            nodes += stage.nodes
            constants += stage.constants
            sequences.append(stage.features)
        else:
            # (batch, patches, stride, ...)
            nodes.append(helper.make_node("Reshape", [whole_patches, f"{name}_shape"], [f"{name}_patches"]))
            sequences.append(f"{name}_patches")
    valid_nodes, valid_constants = _valid_mask(sequences[0], "groups")
    return [*nodes, *valid_nodes], [*constants, *valid_constants], sequences


_END_ALIGNED_INDICES = """
    lengths_below = Neg (lengths)
    shift = Mod (lengths_below, stride)
    shift_column = Unsqueeze (shift, axis_one)
    places = Add (samples, rest)
    places_scalar = Squeeze (places)
    place_times = Range (zero, places_scalar, one)
    place = Sub (place_times, shift_column)
    place_taken = GreaterOrEqual (place, zero)
    place_read = Max (place, zero)
    place_taken_values = Unsqueeze (place_taken, axis_two)
    place_read_values = Unsqueeze (place_read, axis_two)
"""
"""``place``, the index of the sample at each time once sequences end with a whole patch; negative if none."""


def _align_to_end(name: str, rank: int) -> list[onnx.NodeProto]:
    """Build ``{name}_moved``: the padded input with each sequence shifted so that its last patch is complete."""
    index, is_sample = ("place_read", "place_taken") if rank == 2 else (f"{name}_read", "place_taken_values")
    # GatherElements needs indices of the shape of its data.
    expansion = f"""
        {name}_padded_shape = Shape ({name}_padded)
        {index} = Expand (place_read_values, {name}_padded_shape)
    """
    gathering = f"""
        {name}_gathered = GatherElements <axis = 1> ({name}_padded, {index})
        {name}_moved = Where ({is_sample}, {name}_gathered, {name}_absent)
    """
    return [*(_parse(expansion) if rank == 3 else []), *_parse(gathering)]


def _patch_constants(step_inputs: Sequence[onnx.ValueInfoProto], stride: int) -> list[onnx.TensorProto]:
    constants = [
        _int64("stride", stride),
        _int64("stride_vector", [stride]),
        _int64("stride_less_one", stride - 1),
        _int64("pads_zero", [0]),
    ]
    for value in step_inputs:
        inner = [axis.dim_value for axis in value.type.tensor_type.shape.dim][2:]
        # A padding sample is a missing value; a padding time step has the regular length 1.
        absent = float("nan") if value.name == "x" else 1.0
        constants.append(helper.make_tensor(f"{value.name}_absent", TensorProto.FLOAT, [], [absent]))
        constants.append(_int64(f"{value.name}_shape", [0, -1, stride, *inner]))
    return constants


def _scan_body(parts: ModelParts, *, is_padded: bool) -> onnx.GraphProto:
    """Build the recurrence and, if every step has an output, the emission; padding steps keep the states."""
    names = _layer_states(parts)
    body = _prefix_names(parts.recurrence, "transition.", keep=[])
    count = len(body.input) - len(names)
    step_inputs, states = body.input[:count], body.input[count:]
    keep = helper.make_tensor_value_info("transition.keep", TensorProto.BOOL, ["batch", 1])
    masking_nodes, outputs = [], list(body.output)
    for index, (state, next_state) in enumerate(zip(states, body.output, strict=True) if is_padded else ()):
        output = _renamed(next_state, f"{next_state.name}_kept")
        masking_nodes.append(helper.make_node("Where", [keep.name, next_state.name, state.name], [output.name]))
        outputs[index] = output
    tail = onnx.GraphProto()
    if parts.every_step:
        # Reads the masked states, so that padding steps repeat the output of the last valid step.
        state_values = dict(zip(names, (output.name for output in outputs), strict=True))
        tail = _emission_graph(parts, state_values, is_inner=True)
    return helper.make_graph(
        [*body.node, *masking_nodes, *tail.node],
        "transition",
        [*states, *step_inputs, *([keep] if is_padded else [])],
        [*outputs, *tail.output],
        [*body.initializer, *tail.initializer],
    )


def _emission_graph(parts: ModelParts, state_values: Mapping[str, str], *, is_inner: bool = False) -> onnx.GraphProto:
    """Build the emission graph, which reads the known inputs and each state from the value named for it.

    Outputs have the names of the model except inside a body, because a name must be unique in all nested graphs.
    """
    unprefixed_names = [value.name for value in _known_inputs(parts)]
    if not is_inner:
        unprefixed_names += [value.name for value in parts.emission.graph.output]
    tail = _prefix_names(parts.emission, "emission.", keep=unprefixed_names)
    input_names = {f"emission.{state}": value for state, value in state_values.items()}
    for node in tail.node:
        node.input[:] = [input_names.get(name, name) for name in node.input]
    return tail


def _prefix_names(model: onnx.ModelProto, prefix: str, keep: Sequence[str]) -> onnx.GraphProto:
    """Copy the graph with a prefix on every name except those to keep; shapes of inner values are dropped."""
    graph = compose.add_prefix(model, prefix).graph
    original = {prefix + name: name for name in keep}
    for node in graph.node:
        node.input[:] = [original.get(name, name) for name in node.input]
        node.output[:] = [original.get(name, name) for name in node.output]
    for value in [*graph.input, *graph.output]:
        value.name = original.get(value.name, value.name)
    del graph.value_info[:]
    return graph


def _layer_states(parts: ModelParts) -> list[str]:
    """Return the names of the states of the recurrence: all except that of the input stage."""
    return [value.name.removesuffix("_out") for value in parts.recurrence.graph.output]


def _state_inputs(parts: ModelParts) -> list[onnx.ValueInfoProto]:
    return [value for value in parts.emission.graph.input if value.name in parts.states]


def _state_outputs(parts: ModelParts) -> list[onnx.ValueInfoProto]:
    return [_renamed(value, f"{value.name}_out") for value in _state_inputs(parts)]


def _known_inputs(parts: ModelParts) -> list[onnx.ValueInfoProto]:
    """Return the inputs of the emission apart from the states."""
    return [value for value in parts.emission.graph.input if value.name not in parts.states]


def _renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    """Return a copy of another name."""
    renamed = copy.deepcopy(value)
    renamed.name = name
    return renamed


def _with_time_axis(value: onnx.ValueInfoProto, *, is_patched: bool = False) -> onnx.ValueInfoProto:
    """Return the same value for whole sequences: a time axis after the batch axis, instead of the axis of a patch."""
    axes = value.type.tensor_type.shape.dim[2 if is_patched else 1 :]
    return helper.make_tensor_value_info(
        value.name, value.type.tensor_type.elem_type, ["batch", "time", *(axis.dim_value for axis in axes)]
    )


def build_model(graph: onnx.GraphProto, parts: ModelParts) -> onnx.ModelProto:
    """Return a checked model with a graph and the operator sets of the parts of a model.

    Its IR version is the lowest that these need: runtimes refuse versions that are newer than they are.
    """
    opsets = list(parts.recurrence.opset_import)
    model = helper.make_model_gen_version(graph, producer_name="stablernn", opset_imports=opsets)
    onnx.checker.check_model(model, full_check=True)
    return model


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
