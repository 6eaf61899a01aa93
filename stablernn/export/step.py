"""The parts of both exported graphs: one step of the state, and the outputs computed from a state.

Fewer nodes give the same numbers: a matrix product takes sums along, and nodes that change nothing are dropped.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import onnx
import torch
from onnx import helper, numpy_helper
from safetensors.torch import save
from torch import Tensor, nn

from stablernn.errors import ExportError
from stablernn.export.input_stage import InputStage
from stablernn.export.residual_steps import has_control_flow, set_nodes, split_linear_terms
from stablernn.nn.models import SequenceModel

OPSET = 20


def fuse_sums(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace ``Add(Gemm(a, b), c)`` by ``Gemm(a, b, c)`` if c has the shape of the product; returns the same model.

    The exporter makes the recurrent product, the input product and their sum three nodes. A graph with control flow is
    not changed.
    """
    graph = model.graph
    # Nested graphs may read outer values by name, which the use counts below would miss.
    if has_control_flow(graph):
        return model
    shapes = {value.name: _shape(value) for value in [*graph.value_info, *graph.input, *graph.output]}
    uses = Counter(name for node in graph.node for name in node.input)
    uses.update(value.name for value in graph.output)
    # A product that something else reads too must stay a node of its own.
    products = {
        node.output[0]: node
        for node in graph.node
        if node.op_type == "Gemm" and len(node.input) == 2 and uses[node.output[0]] == 1
    }
    fused_names = set()
    for node in graph.node:
        if node.op_type != "Add":
            continue
        for name, addend in (node.input, reversed(node.input)):
            shape = shapes.get(name)
            # Gemm would broadcast its third input, so a sum that broadcasts the product itself cannot be fused.
            if name in products and shape is not None and shape == shapes.get(addend):
                product = products.pop(name)
                fused_names.add(name)
                # The sum becomes the product, so that the nodes stay in topological order.
                node.op_type = product.op_type
                node.input[:] = [*product.input, addend]
                node.attribute.extend(attribute for attribute in product.attribute if attribute.name != "beta")
                break
    remaining_nodes = [node for node in graph.node if node.output[0] not in fused_names]
    del graph.node[:]
    graph.node.extend(remaining_nodes)
    return model


def drop_identities(model: onnx.ModelProto) -> onnx.ModelProto:
    """Remove nodes whose output is their input: a split into one part, and an axis that is added and taken away.

    The exporter leaves them where a model has one member. Returns the same model; a graph with control flow is not
    changed.
    """
    graph = model.graph
    if has_control_flow(graph):
        return model
    # Values that are the same as others, by name. Inputs of the graph keep their names, and so do outputs.
    names: dict[str, str] = {}
    outputs = {value.name for value in graph.output}
    fixed_names = outputs | {value.name for value in [*graph.input, *graph.initializer]}
    producers = {name: node for node in graph.node for name in node.output}
    uses = Counter(name for node in graph.node for name in node.input)
    dropped: list[onnx.NodeProto] = []
    for node in graph.node:
        source, nodes = _identity_source(node, producers, {tensor.name: tensor for tensor in graph.initializer})
        if source is None or any(uses[name] > 1 for inner in nodes[1:] for name in inner.output):
            continue
        if node.output[0] in outputs:
            if source in fixed_names or uses[source] > 1:
                continue
            names[source] = node.output[0]
        else:
            names[node.output[0]] = source
        dropped += nodes
    remaining_nodes = [node for node in graph.node if node not in dropped]
    for node in remaining_nodes:
        node.input[:] = [_resolve(names, name) for name in node.input]
        node.output[:] = [_resolve(names, name) for name in node.output]
    set_nodes(graph, remaining_nodes)
    return model


def _identity_source(
    node: onnx.NodeProto, producers: dict[str, onnx.NodeProto], constants: dict[str, onnx.TensorProto]
) -> tuple[str | None, list[onnx.NodeProto]]:
    """Return the value that a node passes on, and the nodes that do nothing else; no value if it computes something."""
    if node.op_type == "Split" and len(node.output) == 1:
        return node.input[0], [node]
    inner = producers.get(node.input[0]) if node.op_type == "Gather" else None
    if inner is None or inner.op_type != "Unsqueeze" or not {inner.input[1], node.input[1]} <= constants.keys():
        return None, []
    axes = numpy_helper.to_array(constants[inner.input[1]]).tolist()
    index = numpy_helper.to_array(constants[node.input[1]])
    axis = next((helper.get_attribute_value(part) for part in node.attribute if part.name == "axis"), 0)
    is_identity = axes == [axis] and index.shape == () and int(index) == 0
    return (inner.input[0], [node, inner]) if is_identity else (None, [])


def _resolve(names: dict[str, str], name: str) -> str:
    while name in names:
        name = names[name]
    return name


def _shape(value: onnx.ValueInfoProto) -> list[int | str] | None:
    """Return the lengths or names of the axes; None if an axis has neither."""
    axes = [axis.dim_value or axis.dim_param for axis in value.type.tensor_type.shape.dim]
    return axes if all(axes) else None


@dataclass(frozen=True)
class ModelParts:
    """The parts from which the step graph and the sequence graph of a model are assembled.

    Attributes:
        step_inputs: Inputs of a step apart from the states: ``x`` or ``tokens``, and ``dt`` if the model takes it.
        states: Names of all states; that of the input stage comes first.
        input_stage: Scaling and imputation in front of the recurrence; None if the recurrence contains them.
        recurrence: One step: inputs ``x[, dt], state_0, ..``, outputs ``state_0_out, ..``. After an input stage, ``x``
            holds the channels of the first layer, and the states start at ``state_1``.
        emission: Inputs ``state_0, ..[, static, future]``, outputs the model's ``output_names``.
        every_step: Whether a sequence has outputs at every step.
        end_aligned: Whether patches are aligned to the end of a sequence, so that its last patch is complete.
        state_scales: The factor between a state and the value that the recurrence carries for it, by name; states that
            it carries as they are have none.
    """

    step_inputs: list[onnx.ValueInfoProto]
    states: list[str]
    input_stage: InputStage | None
    recurrence: onnx.ModelProto
    emission: onnx.ModelProto
    every_step: bool
    end_aligned: bool
    state_scales: Mapping[str, float] = field(default_factory=dict)


def frozen_copy(model: SequenceModel) -> SequenceModel:
    """Return a copy of a model on the CPU, in float32 and evaluation mode, as tracing needs it."""
    return copy.deepcopy(model).cpu().float().eval().requires_grad_(False)


class Transition(nn.Module):
    """A step ``(x, *state) -> state`` or ``(x, dt, *state) -> state``; every matrix it uses is a constant.

    Args:
        model: In evaluation mode.
        from_channels: Whether ``x`` holds the channels of the first layer, so that the states of scaling are left out.
    """

    def __init__(self, model: SequenceModel, *, from_channels: bool = False) -> None:
        super().__init__()
        self.model = model
        self.from_channels = from_channels
        # The matrices are computed once, so that the graph does not repeat the parametrization at every step.
        self.counts = []
        for depth, weights in enumerate(model.materialize()):
            self.counts.append(len(weights))
            for part, weight in enumerate(weights):
                self.register_buffer(f"weight_{depth}_{part}", weight.detach().clone())

    def forward(self, x: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        dt, state = (None, state) if self.model.max_dt is None else (state[0], state[1:])
        weights = [
            tuple(getattr(self, f"weight_{depth}_{part}") for part in range(count))
            for depth, count in enumerate(self.counts)
        ]
        step = self.model.advance if self.from_channels else self.model.transition
        return step(weights, x, state, dt)


class Emission(nn.Module):
    """``(*state, *known) -> outputs``, with the model's ``known_inputs``."""

    def __init__(self, model: SequenceModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        names = list(self.model.known_inputs)
        count = len(inputs) - len(names)
        return self.model.emit(inputs[:count], **dict(zip(names, inputs[count:], strict=True)))


class TransitionAndEmission(nn.Module):
    """A transition and an emission with separate inputs; one export of both takes half the time of two exports.

    Most of that time goes into the exporter's table of operators, which it rebuilds in every call.

    Args:
        transition: Module that takes the first ``transition_inputs`` arguments.
        emission: Module that takes the other arguments.
        transition_inputs: Number of arguments of the transition.
    """

    def __init__(self, transition: Transition, emission: Emission, transition_inputs: int) -> None:
        super().__init__()
        self.transition = transition
        self.emission = emission
        self.transition_inputs = transition_inputs

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        next_state = self.transition(*inputs[: self.transition_inputs])
        return (*next_state, *self.emission(*inputs[self.transition_inputs :]))


def state_names(model: SequenceModel) -> list[str]:
    """Return the names of the state inputs; each state output has the same name with ``_out`` appended."""
    return [f"state_{index}" for index in range(len(model.state_roles()))]


def sample_inputs(model: SequenceModel) -> dict[str, Tensor]:
    """Return example inputs of a step by name, without states, for a batch of two: ``x``, and ``dt`` if it is taken.

    Inputs of whole sequences have a time axis after the batch axis in addition.
    """
    x = model.scaling.mean.new_zeros(2, *model.sample_shape)
    if model.input_name == "tokens":
        x = torch.zeros(2, dtype=torch.int64)
    inputs = {model.input_name: x}
    ones = model.scaling.mean.new_ones(2, *model.sample_shape[:-1])
    return inputs if model.max_dt is None else {**inputs, "dt": ones}


def sample_known_inputs(model: SequenceModel) -> dict[str, Tensor]:
    """Return example values of the model's ``known_inputs`` for a batch of two."""
    return {name: model.scaling.mean.new_zeros(2, *shape) for name, shape in model.known_inputs.items()}


def export_parts(model: SequenceModel) -> ModelParts:
    """Export the parts of the graphs of a model, which must be on the CPU, in float32 and in evaluation mode."""
    input_stage = InputStage.from_model(model)
    names, samples, state = state_names(model), sample_inputs(model), model.initial_state(2)
    step_inputs = [_value_info(name, sample) for name, sample in samples.items()]
    layer_names, layer_samples = names, samples
    if input_stage is not None:
        # The first state is that of the scaling, and the recurrence starts from channels (batch, channels).
        layer_names, state = names[1:], state[1:]
        layer_samples = {**samples, "x": model.scaling.mean.new_zeros(2, model.patches.output_size)}
    transition_samples = {**layer_samples, **dict(zip(layer_names, state, strict=True))}
    emission_samples = {**dict(zip(names, model.initial_state(2), strict=True)), **sample_known_inputs(model)}
    module = TransitionAndEmission(
        Transition(model, from_channels=input_stage is not None), Emission(model), len(transition_samples)
    )
    next_names = [f"{name}_out" for name in layer_names]
    # Prefixed, because both parts read the states, and a value of the transition may have the name of an output.
    emission_names = {f"emission.{name}": name for name in (*emission_samples, *model.output_names)}
    outputs = [f"emission.{name}" for name in model.output_names]
    graph = _export_module(
        module,
        (*transition_samples.values(), *emission_samples.values()),
        [*transition_samples, *(f"emission.{name}" for name in emission_samples)],
        [*next_names, *outputs],
    )
    recurrence = _extract_subgraph(graph, [*transition_samples], next_names)
    emission = _extract_subgraph(graph, [*emission_names], outputs)
    _rename(emission.graph, emission_names)
    return ModelParts(
        step_inputs,
        names,
        input_stage,
        fuse_sums(split_linear_terms(recurrence)),
        drop_identities(emission),
        model.every_step,
        model.patches.end_aligned,
    )


def _extract_subgraph(model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    """Return the part of a graph that computes ``outputs`` from ``inputs``."""
    # Nodes are in topological order, so one backward pass finds everything that the outputs depend on.
    needed, nodes = set(outputs), []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(node.input)
    subgraph = copy.deepcopy(model)
    graph = subgraph.graph
    del graph.node[:], graph.initializer[:], graph.input[:], graph.output[:], graph.value_info[:]
    graph.node.extend(reversed(nodes))
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    graph.input.extend(value for value in model.graph.input if value.name in inputs)
    graph.output.extend(value for value in model.graph.output if value.name in outputs)
    graph.value_info.extend(value for value in model.graph.value_info if value.name in needed)
    return subgraph


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for value in (*graph.input, *graph.output):
        value.name = names[value.name]
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]


def _value_info(name: str, sample: Tensor) -> onnx.ValueInfoProto:
    dtype = onnx.TensorProto.INT64 if sample.dtype == torch.int64 else onnx.TensorProto.FLOAT
    return onnx.helper.make_tensor_value_info(name, dtype, ["batch", *sample.shape[1:]])


def _export_module(
    module: TransitionAndEmission, arguments: tuple[Tensor, ...], inputs: list[str], outputs: list[str]
) -> onnx.ModelProto:
    # Two symbolic batch axes: with a single one, the emission would read its size from an input of the transition.
    axes = [torch.export.Dim("batch")] * module.transition_inputs
    axes += [torch.export.Dim("emission_batch")] * (len(arguments) - module.transition_inputs)
    with _silence_exporter():
        program = torch.onnx.export(
            module.eval(),
            arguments,
            dynamo=True,
            opset_version=OPSET,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes={"inputs": tuple({0: axis} for axis in axes)},
            verbose=False,
        )
    assert program is not None
    graph: onnx.ModelProto = program.model_proto
    # The exporter may silently fix an axis that was declared as dynamic.
    for value in [*graph.graph.input, *graph.graph.output]:
        axis = value.type.tensor_type.shape.dim[0]
        if not axis.dim_param:
            raise ExportError(
                f"The exporter fixed the batch axis of '{value.name}' to {axis.dim_value}; "
                f"the cell '{module.transition.model.rnn.first.cell}' has an operation that depends on the batch size."
            )
        axis.dim_param = "batch"
    # The exporter's notes hold stack traces with paths of this machine.
    for item in (graph.graph, *graph.graph.node, *graph.graph.value_info, *graph.functions):
        del item.metadata_props[:]
    return graph


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Silence the exporter's messages about its internals and about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def serialize_weights(model: SequenceModel) -> bytes:
    """Return the content of ``weights.safetensors`` in an export of this model; floats are float32."""
    # An export is float32 whatever the dtype of training, and safetensors requires contiguous tensors.
    tensors = {
        name: (tensor.float() if tensor.is_floating_point() else tensor).detach().cpu().contiguous()
        for name, tensor in model.state_dict().items()
    }
    return save(tensors)


def weights_digest(model: SequenceModel) -> str:
    """Return ``sha256:`` and the hash of that file; it is the same before the export and in a registry version."""
    return f"sha256:{hashlib.sha256(serialize_weights(model)).hexdigest()}"
