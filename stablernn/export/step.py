"""The parts of both exported graphs: one step of the state, and the outputs computed from a state."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import onnx
import torch
from torch import Tensor, nn

from stablernn.errors import ExportError
from stablernn.export.fuse_gemm import drop_identities, fuse_sums
from stablernn.export.input_stage import InputStage
from stablernn.export.residual_steps import split_linear_terms
from stablernn.nn.models import SequenceModel

OPSET = 20


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
    subgraph = onnx.ModelProto()
    subgraph.CopyFrom(model)
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
