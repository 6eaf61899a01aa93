"""``certify``: what is proved of a trained model, from its weights.

Each layer says what holds of one of its steps (:meth:`stablernn.cells.StableCell.step_bound`); here these are put
together over depth and over members. Everything is computed in float64 on the numbers that the float32 weights hold,
and rounded to the safe side. A certificate is of the recurrent layers: scaling, patches and a linear skip are functions
of the input alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from stablernn.cells import StableCell
from stablernn.errors import CertificateError, ConfigError
from stablernn.layers import StableRNN
from stablernn.members import Members
from stablernn.models import SequenceModel
from stablernn.stability.bounds import FLOAT32, Hypothesis, StepBound
from stablernn.stability.cascade import Cascade, cascade

KINDS = ("contracting", "non-expansive", "bounded", "local", "none")
"""From the strongest to the weakest: the order in which ``--require`` and gates compare."""
SCHEMA = 1
CONTRACTING = 1 - 2 * FLOAT32
"""What a rate must be below: an orthogonal matrix that float32 rounds inwards contracts nothing."""
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
    """

    kind: str
    cell: str
    stacks: tuple[Cascade, ...]
    states: tuple[str, ...]
    balls: tuple[dict[str, Any], ...]
    tolerance: float

    @property
    def rate(self) -> float | None:
        """The factor a step by which two states under one input approach in the end; None where none is proved."""
        rate = max(stack.rate for stack in self.stacks)
        return rate if math.isfinite(rate) else None

    def total_gain(self) -> float | None:
        """Of the layers' input on their output over any time; None where none is proved."""
        gain = max(stack.total_gain() for stack in self.stacks)
        return gain if math.isfinite(gain) else None

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
        # The share of a difference is of one size only where one layer has it.
        forgotten = [None if deep else stack.forgotten_after(FORGOTTEN) for stack in self.stacks]
        known = [steps for steps in forgotten if steps is not None]
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "holds": self.kind != "none",
            "norm": _norm(bounds, deep=deep),
            "contraction_rate": self.rate,
            "rounding_slack": self.tolerance,
            "states": list(self.states),
            "state_ball": self.balls[0] if self.balls else None,
            "state_balls": list(self.balls),
            "hypotheses": [_shown(one) for one in self.hypotheses()],
            "conditions": [
                _shown(replace(one, name=f"{place}{one.name}"))
                for place, bound in self._layers()
                for one in bound.conditions
            ],
            "figures": {
                f"{place}{name}": value for place, bound in self._layers() for name, value in bound.figures.items()
            },
            "gains": {"input_to_output": self.total_gain()},
            "forgetting": {"share": FORGOTTEN, "steps": max(known) if len(known) == len(forgotten) else None},
            "cell": self.cell,
            "arithmetic": "float64 on the float32 weights",
        }

    def _layers(self) -> Iterable[tuple[str, StepBound]]:
        several, deep = len(self.stacks) > 1, len(self.stacks[0].bounds) > 1
        for number, stack in enumerate(self.stacks):
            for depth, bound in enumerate(stack.bounds):
                place = (f"member {number} " if several else "") + (f"layer {depth} " if deep else "")
                yield place, bound


def certify(module: nn.Module) -> Certificate:
    """What is proved of a cell, of layers or of a model.

    Args:
        module: A cell, a :class:`stablernn.StableRNN` or a model, on any device; it is not changed. Its matrices are
            those of float32, as every export has them.

    Raises:
        ConfigError: If it is none of these.
        CertificateError: If a weight is not finite.
    """
    stacks, prefix = _stacks(module)
    for name, weight in module.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise CertificateError(
                f"The weight '{name}' holds a number that is not finite; there is nothing to certify."
            )
    proved = tuple(cascade(stack, max_dt=_max_dt(module)) for stack in stacks)
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
    )


def _kind(proved: tuple[Cascade, ...], tolerance: float, is_bounded: bool) -> str:
    bounds = [bound for stack in proved for bound in stack.bounds]
    if all(stack.is_contracting and stack.rate < CONTRACTING for stack in proved):
        return "contracting"
    # What a layer above does with the differences that one below keeps for ever is not bounded by its own rate.
    if all(len(stack.bounds) == 1 and stack.rate <= 1 + tolerance for stack in proved):
        return "non-expansive"
    if is_bounded:
        return "bounded"
    return "local" if all(bound.local for bound in bounds) else "none"


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


def _norm(bounds: list[StepBound], *, deep: bool) -> str | None:
    """The norm of the whole state; over layers and members it is a largest part, each divided by a weight."""
    if any(bound.norm is None for bound in bounds):
        return None
    names = {f"weighted-{bound.norm}" if bound.weights is not None else str(bound.norm) for bound in bounds}
    if len(names) == 1 and not deep:
        return names.pop()
    return "weighted-linf" if any("linf" in name for name in names) else "weighted-l2"


def _shown(one: Hypothesis) -> dict[str, Any]:
    value = one.value if math.isfinite(one.value) else None
    return {"name": one.name, "value": value, "bound": one.bound, "holds": one.holds}
