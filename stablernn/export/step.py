"""What both graphs are made of: one step of the state, and the outputs that a state stands for."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import onnx
import torch
from torch import Tensor, nn

from stablernn.errors import ExportError
from stablernn.export.fuse_gemm import with_sums
from stablernn.export.input_stage import Intake
from stablernn.nn.models import SequenceModel

OPSET = 20


@dataclass(frozen=True)
class Parts:
    """What the step graph and the sequence graph of a model are made of.

    Attributes:
        read: What a step reads beside the states: ``x`` or ``tokens``, and ``dt`` where the model takes it.
        states: Names of all states, the intake's first.
        intake: What stands in front of the recurrence and takes no step by step, where there is such a part.
        recurrence: One step: inputs ``x[, dt], state_0, ..``, outputs ``state_0_out, ..``. Behind an intake ``x`` are
            the first layer's channels, and states are those from ``state_1`` on.
        emission: Inputs ``state_0, ..[, static, future]``, outputs the model's ``output_names``.
        every_step: Whether a sequence has outputs at every step.
        end_aligned: Whether the last patch of a sequence is the whole one.
    """

    read: list[onnx.ValueInfoProto]
    states: list[str]
    intake: Intake | None
    recurrence: onnx.ModelProto
    emission: onnx.ModelProto
    every_step: bool
    end_aligned: bool


class Transition(nn.Module):
    """``(x, *state) -> state``, or ``(x, dt, *state) -> state``, with every used matrix frozen as a constant.

    Args:
        model: In evaluation mode.
        from_channels: Whether ``x`` are the first layer's channels, and the states of scaling are none of these.
    """

    def __init__(self, model: SequenceModel, *, from_channels: bool = False) -> None:
        super().__init__()
        self.model = model
        self.from_channels = from_channels
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
    """A transition and an emission with inputs of their own: one export of both costs half as much as one of each.

    Most of an export's time goes into the exporter's table of operators, which it builds anew in every call.

    Args:
        transition: Takes the first ``transition_inputs`` arguments.
        emission: Takes all others.
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
    """Names of the state inputs; each output is the same name with ``_out``."""
    return [f"state_{index}" for index in range(len(model.state_roles()))]


def sample_inputs(model: SequenceModel) -> dict[str, Tensor]:
    """What each step reads beside the states, by name, for a batch of two: ``x``, and ``dt`` where the model takes it.

    Over whole sequences each of them has a time axis after the batch.
    """
    x = model.scaling.mean.new_zeros(2, *model.sample_shape)
    if model.input_name == "tokens":
        x = torch.zeros(2, dtype=torch.int64)
    read = {model.input_name: x}
    ones = model.scaling.mean.new_ones(2, *model.sample_shape[:-1])
    return read if model.max_dt is None else {**read, "dt": ones}


def known_samples(model: SequenceModel) -> dict[str, Tensor]:
    """The model's ``known_inputs`` for a batch of two."""
    return {name: model.scaling.mean.new_zeros(2, *shape) for name, shape in model.known_inputs.items()}


def parts(model: SequenceModel) -> Parts:
    """Export what the graphs of a model are made of; it is on the CPU, in float32 and evaluation mode."""
    intake = Intake.of(model)
    names, samples, state = state_names(model), sample_inputs(model), model.initial_state(2)
    read = [_value(name, sample) for name, sample in samples.items()]
    rest, first = names, samples
    if intake is not None:
        rest, state = names[1:], state[1:]
        first = {**samples, "x": model.scaling.mean.new_zeros(2, model.patches.output_size)}
    known = known_samples(model)
    transition_samples = {**first, **dict(zip(rest, state, strict=True))}
    emission_samples = {**dict(zip(names, model.initial_state(2), strict=True)), **known}
    module = TransitionAndEmission(
        Transition(model, from_channels=intake is not None), Emission(model), len(transition_samples)
    )
    next_names = [f"{name}_out" for name in rest]
    # Both parts read the states, and a value of the transition may be called "mean" as an output is.
    emission_names = {f"emission.{name}": name for name in (*emission_samples, *model.output_names)}
    outputs = [f"emission.{name}" for name in model.output_names]
    graph = _exported(
        module,
        (*transition_samples.values(), *emission_samples.values()),
        [*transition_samples, *(f"emission.{name}" for name in emission_samples)],
        [*next_names, *outputs],
    )
    recurrence = _part(graph, [*transition_samples], next_names)
    emission = _part(graph, [*emission_names], outputs)
    _rename(emission.graph, emission_names)
    return Parts(read, names, intake, with_sums(recurrence), emission, model.every_step, model.patches.end_aligned)


def _part(model: onnx.ModelProto, inputs: Sequence[str], outputs: Sequence[str]) -> onnx.ModelProto:
    """Return the part of a graph that computes ``outputs`` from ``inputs``."""
    needed, nodes = set(outputs), []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(node.input)
    part = onnx.ModelProto()
    part.CopyFrom(model)
    graph = part.graph
    del graph.node[:], graph.initializer[:], graph.input[:], graph.output[:], graph.value_info[:]
    graph.node.extend(reversed(nodes))
    graph.initializer.extend(tensor for tensor in model.graph.initializer if tensor.name in needed)
    graph.input.extend(value for value in model.graph.input if value.name in inputs)
    graph.output.extend(value for value in model.graph.output if value.name in outputs)
    graph.value_info.extend(value for value in model.graph.value_info if value.name in needed)
    return part


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    for value in (*graph.input, *graph.output):
        value.name = names[value.name]
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]


def _value(name: str, sample: Tensor) -> onnx.ValueInfoProto:
    kind = onnx.TensorProto.INT64 if sample.dtype == torch.int64 else onnx.TensorProto.FLOAT
    return onnx.helper.make_tensor_value_info(name, kind, ["batch", *sample.shape[1:]])


def _exported(
    module: TransitionAndEmission, arguments: tuple[Tensor, ...], inputs: list[str], outputs: list[str]
) -> onnx.ModelProto:
    # Two axes, though both are batches: with one, the emission would take its size from an input of the transition.
    axes = [torch.export.Dim("batch")] * module.transition_inputs
    axes += [torch.export.Dim("emission_batch")] * (len(arguments) - module.transition_inputs)
    with _quiet():
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
    # The exporter may fix an axis that it was asked to leave open, without a word.
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
def _quiet() -> Iterator[None]:
    """Silence the exporter's remarks about its own internals and about packages that are not needed."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
