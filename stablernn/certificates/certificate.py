"""``certify``: the properties of a trained model that are proved from its weights.

Each layer bounds one of its steps (:meth:`stablernn.cells.StableCell.step_bound`); here these bounds are combined over
depth and over the members of an ensemble. Everything is computed in float64 on the numbers that the float32 weights
hold, and rounded to the safe side. A certificate is of the recurrent layers: scaling, patches and a linear skip are
functions of the input alone.
"""

from __future__ import annotations

import base64
import itertools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from stablernn.bounds.intervals import FLOAT32_EPSILON, Box
from stablernn.bounds.lure import GivenNorm, given_norms
from stablernn.bounds.step_bound import Ball, Hypothesis, StepBound
from stablernn.cells import StableCell
from stablernn.cells._base import float64
from stablernn.certificates.cascade import Cascade, cascade, longest
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.quantization import FORMATS, Format, QuantizationErrorBound, quantization_error_bound
from stablernn.errors import CertificateError, ConfigError
from stablernn.nn.convolutions import DilatedConvolutions
from stablernn.nn.ensemble import Ensemble
from stablernn.nn.layers import StableRNN
from stablernn.nn.models import SequenceModel, warn_of_missing_calls

_PROGRESS = logging.getLogger("stablernn.progress")

KINDS = ("contracting", "non-expansive", "bounded", "none")
"""From the strongest to the weakest: the order in which ``--require`` and gates compare."""
SCHEMA = 2
"""Version of the document. Schema 1 has neither ``inputs`` nor ``bounded_inputs``: it is for all inputs."""
CONTRACTING = 1 - 2 * FLOAT32_EPSILON
"""The limit that a rate must be below: an orthogonal matrix that float32 rounds inwards contracts nothing."""
GAP_LENGTHS = (1, 10, 100, 1000)
"""Lengths of the gaps in the data of which a certificate states the error."""
SETTLED_SHARE = 1e-3
"""The share of the effect of two starts at which the memory of them has faded."""


def first_layer_boxes(module: nn.Module, inputs: InputRange) -> list[Box]:
    """Return the ranges of the inputs of each member's first layer.

    Args:
        module: A cell, a :class:`stablernn.StableRNN`, an ensemble or a model.
        inputs: Of every feature.

    Raises:
        ConfigError: If the model's scaling leaves no range.
    """
    # Widened by the rounding of the ends to float32.
    box = Box(np.array(inputs.lower), np.array(inputs.upper)).scaled(1.0)
    if isinstance(module, SequenceModel):
        box = _patch_range(module, box)
        module = module.rnn
    if not isinstance(module, Ensemble):
        return [box]
    if not module.embedding:
        return [box] * len(module)
    convolutions, embeddings = embedding_stages(module)
    inputs_of_embeddings = [_convolved(box, stage) for stage in convolutions] or [box] * len(embeddings)
    return [
        embedded.affine(float64(embedding.weight), float64(embedding.bias)).gelu()
        for embedding, embedded in zip(embeddings, inputs_of_embeddings, strict=True)
    ]


def _convolved(patch: Box, convolutions: DilatedConvolutions) -> Box:
    """Return the range of what convolutions make of a patch, extras included."""
    shape = convolutions.shape
    size = shape.samples * shape.channels
    box = Box(patch.lower[:size], patch.upper[:size])
    for layer, linear in enumerate(convolutions.linear_maps()):
        weight, bias = float64(linear.weight), float64(linear.bias)
        # (outputs, KERNEL_SIZE, channels)
        lower, upper = (
            ends.reshape(shape.lengths[layer], -1)[convolutions.positions(layer)] for ends in (box.lower, box.upper)
        )
        outputs = [Box(low.ravel(), high.ravel()).affine(weight, bias) for low, high in zip(lower, upper, strict=True)]
        box = outputs[0].join(*outputs[1:]).gelu()
    return box.join(Box(patch.lower[size:], patch.upper[size:]))


def embedding_stages(ensemble: Ensemble) -> tuple[list[DilatedConvolutions], list[nn.Linear]]:
    """Return the convolutions of the members, if any, and the linear maps of their embeddings."""
    # nn.ModuleList yields nn.Module: this narrows the types.
    convolutions = [stage for stage in ensemble.convolutions if isinstance(stage, DilatedConvolutions)]
    return convolutions, [embedding for embedding in ensemble.embeddings if isinstance(embedding, nn.Linear)]


def _patch_range(model: SequenceModel, inputs: Box) -> Box:
    """Return the range of the channels of a patch, as :class:`stablernn.nn.preprocessing.Patches` orders them."""
    if model.resampling is not None:
        # A mean of two values lies between them.
        inputs = inputs.join(model.resampling.channel_range())
    channels, extras = model.scaling.channel_range(inputs)
    # Samples before the first are zero.
    samples = channels.with_zero()
    return Box(
        np.concatenate([np.tile(samples.lower, model.patches.size), extras.lower]),
        np.concatenate([np.tile(samples.upper, model.patches.size), extras.upper]),
    )


def _norm_document(bound: StepBound, states: list[str]) -> dict[str, Any]:
    """Return the norm of a bound as JSON types."""
    document: dict[str, Any] = {"states": states, "norm": _norm_name(bound)}
    if bound.metric is not None:
        # The numbers of a metric are those of float32; base64 of them is short.
        content = base64.b64encode(bound.metric.astype("<f4").tobytes()).decode("ascii")
        document["matrix"] = {"shape": list(bound.metric.shape), "float32_base64": content}
    if bound.multipliers is not None:
        document["multipliers"] = bound.multipliers.tolist()
        if bound.neuron_scale is not None:
            document["neuron_scale"] = bound.neuron_scale.tolist()
    if bound.weights is not None:
        document["weights"] = bound.weights.tolist()
    return document


def _norm_name(bound: StepBound) -> str:
    """Return the name of the norm of a bound."""
    # A metric already makes the norm of the bound weighted-l2.
    return f"weighted-{bound.norm}" if bound.weights is not None else str(bound.norm)


def _decode_norm(layer_norm: Mapping[str, Any]) -> tuple[set[str], GivenNorm] | None:
    """Return states, metric and multipliers of an entry of ``metrics``; None if it lacks one or is damaged."""
    try:
        states = set(layer_norm["states"])
        multipliers = np.array(layer_norm["multipliers"], dtype=np.float64)
        matrix = layer_norm.get("matrix")
        if matrix is None:
            return states, (None, multipliers)
        content = np.frombuffer(base64.b64decode(matrix["float32_base64"]), dtype="<f4")
        return states, (content.reshape(matrix["shape"]).astype(np.float64), multipliers)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
        # Anything may stand in a stored document. Without its norm the rate that it states is not proved.
        return None


@dataclass(frozen=True)
class Certificate:
    """The properties that are proved of a model's recurrent layers.

    Attributes:
        kind: The strongest of ``KINDS`` that is proved.
        cell: Key of the cell.
        stacks: The bounds of each member's layers.
        states: Names of the recurrent state tensors, as exported graphs have them, that the rate is of.
        balls: Invariant balls of the state tensors, by the same names.
        tolerance: By how much a rate of 1 may be exceeded and still count as non-expansive: the effect of rounding an
            orthogonal matrix to float32.
        max_dt: Longest step in regular ones, for irregular time; None if all steps are regular.
        inputs: Range of the raw inputs for which it holds; None for all inputs.
        quantization: By weight format, how far rounding the weights moves the output; empty if it was not computed.
        resample_steps: Samples of the resampled sequence that steps are of; None if they are of the samples themselves.
    """

    kind: str
    cell: str
    stacks: tuple[Cascade, ...]
    states: tuple[str, ...]
    balls: tuple[dict[str, Any], ...]
    tolerance: float
    max_dt: float | None = None
    inputs: InputRange | None = None
    quantization: Mapping[Format, QuantizationErrorBound | None] = field(default_factory=dict)
    resample_steps: int | None = None

    @property
    def rate(self) -> float | None:
        """The factor a step by which two states under one input approach in the end; None if none is proved."""
        rate = max(stack.rate for stack in self.stacks)
        return rate if math.isfinite(rate) else None

    @property
    def bounds(self) -> list[StepBound]:
        """The bounds of all layers, member after member."""
        return [bound for stack in self.stacks for bound in stack.bounds]

    @property
    def is_deep(self) -> bool:
        """True if a member has several layers."""
        return any(len(stack.bounds) > 1 for stack in self.stacks)

    def total_gain(self) -> float | None:
        """Return the gain of the layers' input on their output over any time; None if none is proved."""
        return _proved(max(stack.total_gain() for stack in self.stacks))

    def state_gains(self) -> list[float | None]:
        """Return the gain on the state of each layer, in the norm of the layer."""
        return [_proved(max(gains)) for gains in zip(*(stack.state_gains() for stack in self.stacks), strict=True)]

    def missing_data_error(self, steps: int) -> float | None:
        """Bound the error of the output after a gap of so many samples, filled in with errors of at most 1 (2-norm).

        None if none is proved, as for irregular time, where a gap has no length in samples.
        """
        if self.max_dt is not None:
            return None
        return _proved(max(stack.missing_data_error(steps, self.tolerance) for stack in self.stacks))

    def settling_time(self, share: float) -> int | None:
        """Return the steps after which two starts move the output by at most a share of what they can move it at once.

        Of several layers any two starts within the balls; None if none is proved. Of irregular time it is the time in
        regular steps, of one layer.
        """
        if self.max_dt is not None and self.is_deep:
            return None
        # Of one layer the share does not depend on how far apart the starts are.
        return longest(
            stack.settling_time_in_balls(share) if len(stack.bounds) > 1 else stack.settling_time(share)
            for stack in self.stacks
        )

    def forgetting_time(self, share: float) -> int | None:
        """Return the steps after which two states at a distance of 1 (2-norm) move no output by more than a share.

        None if none is proved. Of irregular time it is the time in regular steps, of one layer.
        """
        if self.max_dt is not None and self.is_deep:
            return None
        return longest(stack.forgetting_time(share) for stack in self.stacks)

    def norm_matrices(self) -> list[dict[str, Any]]:
        """Return the norm of each layer's state, and the multipliers if any, by which anybody can check the rates.

        Of several layers ``divided_by`` is the layer's weight in the norm of all, the largest of the layers' sizes. A
        layer whose rate is in the infinity norm has a second norm, ``of`` its balls and gains.
        """
        layer_norms, names = [], iter(self.states)
        for stack in self.stacks:
            weights = stack.weights() if len(stack.bounds) > 1 and self.max_dt is None else None
            for depth, bound in enumerate(stack.bounds):
                # A layer without a norm still takes its names from the iterator.
                states = [next(names) for _ in bound.covers]
                if bound.norm is None:
                    continue
                layer_norm = _norm_document(bound, states)
                if weights is not None:
                    layer_norm["divided_by"] = float(weights[depth])
                layer_norms.append(layer_norm)
                # The first of the others is the norm that was searched. Balls and gains are verified by it.
                if bound.norm == "linf" and bound.other_norms and bound.other_norms[0].multipliers is not None:
                    layer_norms.append({**_norm_document(bound.other_norms[0], states), "of": "balls and gains"})
        return layer_norms

    def step_rate(self) -> float | None:
        """Return the factor of a single step in the norm of :meth:`norm_matrices`; None if none is proved."""
        if self.max_dt is not None:
            # A step may be arbitrarily short, and then changes nothing.
            return None
        return _proved(max(stack.step_rate() for stack in self.stacks))

    def figures(self) -> dict[str, float]:
        """Return the further figures of the layers' bounds, by name."""
        return {f"{label}{name}": value for label, bound in self._layers() for name, value in bound.figures.items()}

    def hypotheses(self) -> list[Hypothesis]:
        """Return every condition of every layer, followed by that of the kind."""
        conditions = []
        for label, bound in self._layers():
            conditions += [replace(hypothesis, name=f"{label}{hypothesis.name}") for hypothesis in bound.hypotheses]
            if bound.norm is not None:
                strict = self.kind == "contracting"
                limit = CONTRACTING if strict else 1 + self.tolerance
                conditions.append(Hypothesis(f"{label}contraction rate", bound.rate, limit, strict))
        return conditions

    def document(self) -> dict[str, Any]:
        """Return the certificate as JSON types; docs/reference/certificate.md explains every key."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "holds": self.kind != "none",
            "inputs": None if self.inputs is None else self.inputs.document(),
            "norm": self._norm(),
            "contraction_rate": self.rate,
            "step_rate": self.step_rate(),
            "rounding_slack": self.tolerance,
            "states": list(self.states),
            "state_ball": self.balls[0] if self.balls else None,
            "state_balls": list(self.balls),
            "hypotheses": [_condition_document(hypothesis) for hypothesis in self.hypotheses()],
            "conditions": [
                {**_condition_document(replace(condition, name=f"{label}{condition.name}")), "of": condition.subject}
                for label, bound in self._layers()
                for condition in bound.conditions
            ],
            "figures": self.figures(),
            "time": self._time(),
            "gains": {"input_to_state": self.state_gains(), "input_to_output": self.total_gain()},
            "gaps": [{"steps": steps, "output_error": self.missing_data_error(steps)} for steps in GAP_LENGTHS],
            "forgetting": {
                "share": SETTLED_SHARE,
                "steps": self.settling_time(SETTLED_SHARE),
                "steps_from_distance_1": self.forgetting_time(SETTLED_SHARE),
            },
            "stored_weights": {
                form: None if bound is None else asdict(bound) for form, bound in self.quantization.items()
            },
            "metrics": self.norm_matrices(),
            "cell": self.cell,
            "arithmetic": "float64 on the float32 weights",
        }

    def _norm(self) -> str | None:
        """Return the norm of the whole state: over layers the largest of their sizes, each divided by a weight."""
        if any(bound.norm is None for bound in self.bounds):
            return None
        names = {_norm_name(bound) for bound in self.bounds}
        if len(names) == 1 and not self.is_deep:
            return names.pop()
        return "weighted-linf" if any("linf" in name for name in names) else "weighted-l2"

    def _time(self) -> dict[str, Any]:
        """Return what a step is, as JSON types."""
        if self.max_dt is not None:
            return {"steps": "irregular", "longest": self.max_dt}
        return {"steps": "regular"} | ({} if self.resample_steps is None else {"resample_steps": self.resample_steps})

    def _layers(self) -> Iterable[tuple[str, StepBound]]:
        """Yield each layer's label, empty for the only one, and its bound."""
        has_members = len(self.stacks) > 1
        for number, stack in enumerate(self.stacks):
            for depth, bound in enumerate(stack.bounds):
                label = (f"member {number} " if has_members else "") + (f"layer {depth} " if self.is_deep else "")
                yield label, bound


def certify(
    module: nn.Module,
    *,
    stored: bool = True,
    inputs_within: float | Sequence[float | Sequence[float]] | InputRange | None = None,
) -> Certificate:
    """Prove what holds of a cell, of layers or of a model, from its weights.

    Warns (:class:`stablernn.errors.UntrainedWarning`) if a training loop left out a call that the model depends on:
    the certificate is of the weights as they are.

    Args:
        module: A cell, a :class:`stablernn.StableRNN` or a model, on any device; it is not changed. Its matrices are
            those of float32, as every export has them.
        stored: Whether to bound the error of weights that are stored in fewer bits as well.
        inputs_within: The raw values of each feature, as :meth:`InputRange.of` takes them: gates are then bounded away
            from 0 and 1, and more is proved. None for inputs of any size.

    Raises:
        ConfigError: If ``module`` is none of these, or ``inputs_within`` does not fit it.
        CertificateError: If a weight is not finite.
    """
    # Another module is refused before anything warns of it.
    _stacks(module)
    warn_of_missing_calls(module, stacklevel=2)
    if inputs_within is not None and not isinstance(inputs_within, InputRange):
        inputs_within = InputRange.of(inputs_within)
    return prove(module, stored=stored, inputs=inputs_within)


def prove(
    module: nn.Module,
    *,
    stored: bool = True,
    norms: Iterable[Mapping[str, Any]] | None = None,
    inputs: InputRange | None = None,
    stage: str | None = None,
) -> Certificate:
    """Run :func:`certify` without warnings, for callers that have trained the model or warned already.

    Args:
        module: As of :func:`certify`.
        stored: As of :func:`certify`.
        norms: Norms to try in place of a search, as a certificate's document has them under ``metrics``, each of the
            layer whose states it names; empty for none, which is quick; None to search. Those that are damaged or do
            not fit prove nothing and are left out.
        inputs: Range of the raw inputs; None for inputs of any size.
        stage: What is logged to ``stablernn.progress`` before each layer; None for nothing.
    """
    # Of what is not a layer's bound nothing is searched either.
    with nullcontext() if norms is None else given_norms():
        return _prove(module, norms, stored, inputs, stage)


def _prove(
    module: nn.Module,
    norms: Iterable[Mapping[str, Any]] | None,
    stored: bool,
    inputs: InputRange | None,
    stage: str | None,
) -> Certificate:
    stacks, prefix = _stacks(module)
    for name, weight in module.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise CertificateError(
                f"The weight '{name}' holds a number that is not finite; there is nothing to certify."
            )
    stored_norms = None if norms is None else [norm for norm in map(_decode_norm, norms) if norm is not None]
    max_dt = _max_dt(module)
    boxes: list[Box | None] = [None] * len(stacks)
    if inputs is not None:
        assert isinstance(module, StableCell | StableRNN | Ensemble | SequenceModel)
        inputs = inputs.for_features(module.input_size)
        boxes = [*first_layer_boxes(module, inputs)]
    # Exported graphs number the state tensors of the model; those of scaling and patches come first.
    numbers, names = itertools.count(prefix), []
    for stack in stacks:
        names.append([{name: f"state_{next(numbers)}" for name in cell.state_names} for cell in stack])
    proved = tuple(
        cascade(
            stack,
            max_dt=max_dt,
            inputs=box,
            norms=None
            if stored_norms is None
            else [
                [norm for states, norm in stored_norms if states <= set(layer_names.values())]
                for layer_names in cell_names
            ],
            on_layer=None if stage is None else partial(_log_layer, stage, stacks, member),
        )
        for member, (stack, box, cell_names) in enumerate(zip(stacks, boxes, names, strict=True))
    )
    cells = [cell for stack in stacks for cell in stack]
    bounds = [bound for stack in proved for bound in stack.bounds]
    states, balls = [], []
    for cell_names, bound in zip(itertools.chain(*names), bounds, strict=True):
        states += [cell_names[name] for name in bound.covers]
        balls += [{**_ball_document(ball), "state": cell_names[ball.state]} for ball in bound.balls]
    tolerance = max(cell.hidden_size for cell in cells) * FLOAT32_EPSILON
    # Every state tensor has a ball.
    is_bounded = len(balls) == sum(len(cell.state_names) for cell in cells)
    return Certificate(
        kind=_kind(proved, tolerance, is_bounded),
        cell=cells[0].key,
        stacks=proved,
        states=tuple(states),
        balls=tuple(balls),
        tolerance=tolerance,
        max_dt=max_dt,
        inputs=inputs,
        quantization={form: _quantization_bound(stacks, proved, form, max_dt, stage) for form in FORMATS if stored},
        resample_steps=module.resampling.steps if isinstance(module, SequenceModel) and module.resampling else None,
    )


def _log_layer(stage: str, stacks: Sequence[Sequence[StableCell]], member: int, layer: int) -> None:
    """Log which layer is proved next, of all members together."""
    total = sum(map(len, stacks))
    if total == 1:
        _PROGRESS.info("%s ...", stage)
    else:
        _PROGRESS.info("%s: layer %d of %d ...", stage, 1 + sum(map(len, stacks[:member])) + layer, total)


def _quantization_bound(
    stacks: list[list[StableCell]],
    proved: tuple[Cascade, ...],
    form: Format,
    max_dt: float | None,
    stage: str | None,
) -> QuantizationErrorBound | None:
    """Return the worst bound of all members; None if nothing is proved of one."""
    if max_dt is not None:
        return None

    try:
        bounds = [
            quantization_error_bound(cells, stack, form, is_logged=stage is not None)
            for cells, stack in zip(stacks, proved, strict=True)
        ]
    except np.linalg.LinAlgError:
        # Quantized matrices may be ones that float64 cannot decompose.
        return None
    if None in bounds:
        return None
    return QuantizationErrorBound(*(max(column) for column in zip(*map(astuple, filter(None, bounds)), strict=True)))


def _kind(proved: tuple[Cascade, ...], tolerance: float, is_bounded: bool) -> str:
    """Return the strongest of ``KINDS`` that holds of all members."""
    if all(stack.is_contracting and stack.rate < CONTRACTING for stack in proved):
        return "contracting"
    # The rate of a layer does not bound its response to differences that the layer below keeps forever.
    if all(len(stack.bounds) == 1 and stack.rate <= 1 + tolerance for stack in proved):
        return "non-expansive"
    return "bounded" if is_bounded else "none"


def _stacks(module: nn.Module) -> tuple[list[list[StableCell]], int]:
    """Return the cells of each member, from input to output, and how many state tensors come before theirs."""
    if isinstance(module, StableCell):
        return [[module]], 0
    if isinstance(module, StableRNN):
        return [module.cells], 0
    if isinstance(module, Ensemble):
        return [stack.cells for stack in module.stacks if isinstance(stack, StableRNN)], 0
    if isinstance(module, SequenceModel):
        return _stacks(module.rnn)[0], len(module.patches.state_roles())
    raise ConfigError(f"certify takes a cell, a StableRNN or a model, got {type(module).__name__}.")


def _max_dt(module: nn.Module) -> float | None:
    """Return the longest step of a module for irregular time; None if all steps are regular."""
    if isinstance(module, Ensemble):
        return module.first.max_dt
    return module.max_dt if isinstance(module, StableRNN | SequenceModel) else None


def _proved(value: float) -> float | None:
    """Return a bound, None if it is not finite."""
    return value if math.isfinite(value) else None


def _ball_document(ball: Ball) -> dict[str, Any]:
    """Return a ball as JSON types."""
    document = {"state": ball.state, "norm": ball.norm, "centre": 0.0, "radius": ball.radius}
    if ball.box is not None:
        document |= {"lower": ball.box.lower.tolist(), "upper": ball.box.upper.tolist()}
    return document


def _condition_document(condition: Hypothesis) -> dict[str, Any]:
    """Return a condition as JSON types; its value is None if it is not finite."""
    value = condition.value if math.isfinite(condition.value) else None
    return {"name": condition.name, "value": value, "bound": condition.bound, "holds": condition.holds}
