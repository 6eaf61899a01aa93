"""``certify``: what is proved of a trained model, from its weights.

Each layer says what holds of one of its steps (:meth:`stablernn.cells.StableCell.step_bound`); here these are put
together over depth and over members. Everything is computed in float64 on the numbers that the float32 weights hold,
and rounded to the safe side. A certificate is of the recurrent layers: scaling, patches and a linear skip are functions
of the input alone.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from stablernn.bounds.linalg import Matrix
from stablernn.bounds.step_bound import FLOAT32, Hypothesis, StepBound
from stablernn.cells import StableCell
from stablernn.certificates.cascade import Cascade, cascade
from stablernn.certificates.quantization import FORMATS, Format, StorageBound, storage_bound
from stablernn.errors import CertificateError, ConfigError
from stablernn.nn.ensemble import Members
from stablernn.nn.layers import StableRNN
from stablernn.nn.models import SequenceModel
from stablernn.nn.training_calls import warn_of_missing_calls

KINDS = ("contracting", "non-expansive", "bounded", "none")
"""From the strongest to the weakest: the order in which ``--require`` and gates compare."""
SCHEMA = 1
CONTRACTING = 1 - 2 * FLOAT32
"""What a rate must be below: an orthogonal matrix that float32 rounds inwards contracts nothing."""
GAPS = (1, 10, 100, 1000)
"""Lengths of gaps whose cost a certificate tells."""
FORGOTTEN = 1e-3
"""The share of a difference of two starts that counts as forgotten."""


@dataclass(frozen=True)
class Certificate:
    """What is proved of a model's recurrent layers.

    Attributes:
        kind: The strongest of ``KINDS`` that is proved.
        cell: Key of the cell.
        stacks: What is proved of each member's layers.
        states: Names of the recurrent state tensors, as exported graphs have them, that the rate is of.
        balls: Where the state tensors stay, by the same names.
        tolerance: By how much a rate of 1 may be exceeded and still count as non-expansive: what rounding matrices to
            float32 does to an orthogonal one.
        max_dt: Longest step in regular ones, for irregular time; None where all steps are regular.
        stored: By format, how far rounding the stored weights moves the output; none where it was not asked for.
    """

    kind: str
    cell: str
    stacks: tuple[Cascade, ...]
    states: tuple[str, ...]
    balls: tuple[dict[str, Any], ...]
    tolerance: float
    max_dt: float | None = None
    stored: Mapping[Format, StorageBound | None] = field(default_factory=dict)

    @property
    def rate(self) -> float | None:
        """The factor a step by which two states under one input approach in the end; None where none is proved."""
        rate = max(stack.rate for stack in self.stacks)
        return rate if math.isfinite(rate) else None

    def total_gain(self) -> float | None:
        """Of the layers' input on their output over any time; None where none is proved."""
        return _proved(max(stack.total_gain() for stack in self.stacks))

    def state_gains(self) -> list[float | None]:
        """The same of the state of each layer, in the norm of the layer."""
        return [_proved(max(gains)) for gains in zip(*(stack.state_gains() for stack in self.stacks), strict=True)]

    def gap_error(self, steps: int) -> float | None:
        """How far off the output can be by a gap of so many samples whose values are off by at most 1, in the 2-norm.

        None where none is proved, as for irregular time, where a gap has no length in samples.
        """
        if self.max_dt is not None:
            return None
        return _proved(max(stack.gap_error(steps, self.tolerance) for stack in self.stacks))

    def forgotten_after(self, share: float) -> int | None:
        """Steps from which on two starts move the output by at most a share of what they can move it at once.

        Of several layers any two starts within the balls; None where none is proved. Of irregular time it is the time
        in regular steps, of one layer.
        """
        if self.max_dt is not None and any(len(stack.bounds) > 1 for stack in self.stacks):
            return None
        found = [stack.forgotten_after(share, stack.widths if len(stack.bounds) > 1 else None) for stack in self.stacks]
        known = [steps for steps in found if steps is not None]
        return max(known) if len(known) == len(found) else None

    def metrics(self) -> list[dict[str, Any]]:
        """The norm of each layer's state, such that anybody can check the rates.

        Of several layers ``divided_by`` is the layer's weight in the norm of all, the largest part.
        """
        found, names = [], iter(self.states)
        for stack in self.stacks:
            weights = stack.weights() if len(stack.bounds) > 1 and self.max_dt is None else None
            for depth, bound in enumerate(stack.bounds):
                about: dict[str, Any] = {"states": [next(names) for _ in bound.covers], "norm": _norm_name(bound)}
                if bound.metric is not None:
                    about["matrix"] = _packed(bound.metric)
                if bound.weights is not None:
                    about["weights"] = bound.weights.tolist()
                if weights is not None:
                    about["divided_by"] = float(weights[depth])
                if bound.norm is not None:
                    found.append(about)
        return found

    def step_rate(self) -> float | None:
        """What a single step makes of a difference, in the norm of :meth:`metrics`; None where none is proved."""
        if self.max_dt is not None:
            # A step may be as short as it likes.
            return None
        rates = []
        for stack in self.stacks:
            if len(stack.bounds) == 1:
                rates.append(stack.rate)
                continue
            weights = stack.weights()
            rates.append(math.inf if weights is None else stack.step_rate(weights))
        return _proved(max(rates))

    def figures(self) -> dict[str, float]:
        """What the layers' bounds tell beside, by name."""
        return {f"{place}{name}": value for place, bound in self._layers() for name, value in bound.figures.items()}

    def hypotheses(self) -> list[Hypothesis]:
        """Every condition of every layer, then that of the kind."""
        found = []
        for place, bound in self._layers():
            found += [replace(one, name=f"{place}{one.name}") for one in bound.hypotheses]
            if bound.norm is not None:
                strict = self.kind == "contracting"
                limit = CONTRACTING if strict else 1 + self.tolerance
                found.append(Hypothesis(f"{place}contraction rate", bound.rate, limit, strict))
        return found

    def document(self) -> dict[str, Any]:
        """The certificate as JSON types; docs/stability.md says what each key means."""
        bounds = [bound for stack in self.stacks for bound in stack.bounds]
        deep = any(len(stack.bounds) > 1 for stack in self.stacks)
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "holds": self.kind != "none",
            "norm": _norm(bounds, deep=deep),
            "contraction_rate": self.rate,
            "step_rate": self.step_rate(),
            "rounding_slack": self.tolerance,
            "states": list(self.states),
            "state_ball": self.balls[0] if self.balls else None,
            "state_balls": list(self.balls),
            "hypotheses": [_shown(one) for one in self.hypotheses()],
            "conditions": [
                {**_shown(replace(condition, name=f"{place}{condition.name}")), "of": condition.of}
                for place, bound in self._layers()
                for condition in bound.conditions
            ],
            "figures": self.figures(),
            "time": {"steps": "regular"} if self.max_dt is None else {"steps": "irregular", "longest": self.max_dt},
            "gains": {"input_to_state": self.state_gains(), "input_to_output": self.total_gain()},
            "gaps": [{"steps": steps, "output_error": self.gap_error(steps)} for steps in GAPS],
            "forgetting": {"share": FORGOTTEN, "steps": self.forgotten_after(FORGOTTEN)},
            "stored_weights": {form: None if bound is None else asdict(bound) for form, bound in self.stored.items()},
            "metrics": self.metrics(),
            "cell": self.cell,
            "arithmetic": "float64 on the float32 weights",
        }

    def _layers(self) -> Iterable[tuple[str, StepBound]]:
        several, deep = len(self.stacks) > 1, len(self.stacks[0].bounds) > 1
        for number, stack in enumerate(self.stacks):
            for depth, bound in enumerate(stack.bounds):
                place = (f"member {number} " if several else "") + (f"layer {depth} " if deep else "")
                yield place, bound


def certify(module: nn.Module, *, stored: bool = True) -> Certificate:
    """What is proved of a cell, of layers or of a model.

    Warns (:class:`stablernn.errors.UntrainedWarning`) where a training loop left out a call that the model depends on:
    the certificate is of the weights as they are.

    Args:
        module: A cell, a :class:`stablernn.StableRNN` or a model, on any device; it is not changed. Its matrices are
            those of float32, as every export has them.
        stored: Whether what weights in fewer bits would do is computed too.

    Raises:
        ConfigError: If it is none of these.
        CertificateError: If a weight is not finite.
    """
    _stacks(module)
    warn_of_missing_calls(module, stacklevel=2)
    return prove(module, stored=stored)


def prove(module: nn.Module, *, stored: bool = True) -> Certificate:
    """:func:`certify` without warnings, for callers that have trained the model or warned already."""
    stacks, prefix = _stacks(module)
    for name, weight in module.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise CertificateError(
                f"The weight '{name}' holds a number that is not finite; there is nothing to certify."
            )
    max_dt = _max_dt(module)
    proved = tuple(cascade(stack, max_dt=max_dt) for stack in stacks)
    cells = [cell for stack in stacks for cell in stack]
    bounds = [bound for stack in proved for bound in stack.bounds]
    states, balls, first = [], [], prefix
    for cell, bound in zip(cells, bounds, strict=True):
        names = {name: f"state_{first + place}" for place, name in enumerate(cell.state_names)}
        states += [names[name] for name in bound.covers]
        balls += [
            {"state": names[ball.state], "norm": ball.norm, "centre": 0.0, "radius": ball.radius}
            for ball in bound.balls
        ]
        first += len(names)
    tolerance = max(cell.hidden_size for cell in cells) * FLOAT32
    is_bounded = len(balls) == first - prefix
    return Certificate(
        kind=_kind(proved, tolerance, is_bounded),
        cell=cells[0].key,
        stacks=proved,
        states=tuple(states),
        balls=tuple(balls),
        tolerance=tolerance,
        max_dt=max_dt,
        stored={form: _stored(stacks, proved, form, max_dt) for form in FORMATS} if stored else {},
    )


def _stored(
    stacks: list[list[StableCell]], proved: tuple[Cascade, ...], form: Format, max_dt: float | None
) -> StorageBound | None:
    """The worst of all members; None where nothing is proved of one."""
    if max_dt is not None:
        return None
    try:
        bounds = [storage_bound(stack, one, form) for stack, one in zip(stacks, proved, strict=True)]
    except np.linalg.LinAlgError:
        return None
    known = [bound for bound in bounds if bound is not None]
    if len(known) < len(bounds):
        return None
    return StorageBound(*(max(parts) for parts in zip(*(astuple(bound) for bound in known), strict=True)))


def _kind(proved: tuple[Cascade, ...], tolerance: float, is_bounded: bool) -> str:
    if all(stack.is_contracting and stack.rate < CONTRACTING for stack in proved):
        return "contracting"
    # What a layer above does with the differences that one below keeps for ever is not bounded by its own rate.
    if all(len(stack.bounds) == 1 and stack.rate <= 1 + tolerance for stack in proved):
        return "non-expansive"
    return "bounded" if is_bounded else "none"


def _stacks(module: nn.Module) -> tuple[list[list[StableCell]], int]:
    """The cells of each member, from input to output, and how many state tensors stand before theirs."""
    if isinstance(module, StableCell):
        return [[module]], 0
    if isinstance(module, StableRNN):
        return [module.cells], 0
    if isinstance(module, Members):
        return [stack.cells for stack in module.stacks if isinstance(stack, StableRNN)], 0
    if isinstance(module, SequenceModel):
        return _stacks(module.rnn)[0], len(module.patches.state_roles())
    raise ConfigError(f"certify takes a cell, a StableRNN or a model, got {type(module).__name__}.")


def _max_dt(module: nn.Module) -> float | None:
    """Longest step of a module for irregular time; None where all steps are regular."""
    if isinstance(module, Members):
        return module.first.max_dt
    return module.max_dt if isinstance(module, StableRNN | SequenceModel) else None


def _proved(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _packed(matrix: Matrix) -> dict[str, Any]:
    """A matrix whose numbers are those of float32, in a short form."""
    content = base64.b64encode(matrix.astype("<f4").tobytes()).decode("ascii")
    return {"shape": list(matrix.shape), "float32_base64": content}


def _norm_name(bound: StepBound) -> str:
    return f"weighted-{bound.norm}" if bound.weights is not None else str(bound.norm)


def _norm(bounds: list[StepBound], *, deep: bool) -> str | None:
    """The norm of the whole state; over layers and members it is a largest part, each divided by a weight."""
    if any(bound.norm is None for bound in bounds):
        return None
    names = {_norm_name(bound) for bound in bounds}
    if len(names) == 1 and not deep:
        return names.pop()
    return "weighted-linf" if any("linf" in name for name in names) else "weighted-l2"


def _shown(one: Hypothesis) -> dict[str, Any]:
    value = one.value if math.isfinite(one.value) else None
    return {"name": one.name, "value": value, "bound": one.bound, "holds": one.holds}
