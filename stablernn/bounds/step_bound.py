"""What can be proved of one step of a cell, for all states and all inputs.

:mod:`stablernn.bounds.lure` finds it for steps that are linear but for nonlinearities, and
:mod:`stablernn.bounds.gated` for gates; other cells say it by hand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from torch import Tensor

from stablernn.bounds.linalg import UNIT, Matrix
from stablernn.bounds.linear_response import Response

Norm = Literal["l2", "weighted-l2", "linf"]
Subject = Literal["step", "single Jacobians", "differential equation", "limit of many inner steps"]
"""What a condition is about. Only the first is the step that a model takes. Eigenvalues of the Jacobian at one state,
and the differential equation that a step discretizes, decide nothing about a sequence of steps."""
FLOAT32 = float(np.finfo(np.float32).eps)
GELU_SLOPE = (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi) + 4 * UNIT
"""The largest slope of GELU, at the root of 2, about 1.129; the smallest is 1 less this."""


_FASTEST = 700.0
"""Beyond this the exponential is no number of float64."""


def float64(tensor: Tensor) -> Matrix:
    """The numbers that a tensor holds, exactly."""
    return tensor.detach().cpu().double().numpy()


@dataclass(frozen=True)
class Hypothesis:
    """One condition of a proof.

    Attributes:
        name: What is compared, as a formula in the words of the cell's documentation.
        value: Its value.
        bound: What it must not exceed; with ``strict`` what it must be below.
        strict: Whether equality fails.
        of: What it is about. Proofs of this package rest on conditions about the step alone.
    """

    name: str
    value: float
    bound: float
    strict: bool = False
    of: Subject = "step"

    @property
    def holds(self) -> bool:
        """Whether the condition is met; never for a value that is not a number."""
        return bool(self.value < self.bound if self.strict else self.value <= self.bound)


@dataclass(frozen=True)
class Ball:
    """A set that holds every state that can be reached from the origin, where sequences start, whatever the inputs.

    Attributes:
        state: The name of the state tensor, one of the cell's ``state_names``.
        norm: ``linf`` (largest coordinate) or ``l2``.
        radius: Its size; the centre is the origin.
    """

    state: str
    norm: Literal["l2", "linf"]
    radius: float


@dataclass(frozen=True)
class StepBound:
    """What is proved of one step.

    With ``e`` the difference of two states under one input and ``|e|`` its size in ``norm`` after multiplication by
    ``metric`` (l2) or division by ``weights`` (linf): a step makes of it at most ``rate * |e|``, and inputs that differ
    by ``d`` in the 2-norm add at most ``gain * d``.

    Attributes:
        covers: The state tensors that ``e`` is made of; the two states agree in all others that a step reads (a count,
            a flag that the sequence has started).
        norm: Which norm; None where no rate is proved.
        rate: The factor; infinity where none is proved.
        gain: Of the input; infinity where none is proved.
        output_gain: At most the 2-norm of the change of the output (the first state tensor) for ``|e| = 1``.
        output_input_gain: The same for a change of the input of 2-norm 1, beside what goes by the state.
        metric: ``(n, n)``, in which norm ``weighted-l2`` is taken; None for the identity.
        weights: ``(n,)``, what coordinates are divided by in ``linf``; None for ones.
        balls: Sets that states stay in, one for each tensor of which that is known.
        hypotheses: What the proof rests on.
        conditions: What papers ask for and what else is worth knowing. Neither the rate nor the kind of a certificate
            depends on them.
        figures: Further numbers that describe the step, by name.
        response: Of a linear layer what its inputs do, which tells more than ``gain`` and the rest.
    """

    covers: tuple[str, ...] = ()
    norm: Norm | None = None
    rate: float = math.inf
    gain: float = math.inf
    output_gain: float = math.inf
    output_input_gain: float = 0.0
    metric: Matrix | None = None
    weights: Matrix | None = None
    balls: tuple[Ball, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    conditions: tuple[Hypothesis, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)
    response: Response | None = None


def irregular(bound: StepBound) -> StepBound:
    """What holds of steps of any length, where a shorter step is a mean of the regular one and of the identity.

    A norm is convex: after ``dt`` of a regular step a difference is at most ``1 - dt (1 - rate)`` times as large. Over
    the time of a regular step, in parts of any lengths, that is at most ``exp(rate - 1)``, which is the rate given.
    No input moves a state further than in one regular step, and a ball that a regular step does not leave holds every
    mean of a state in it and of what the step makes of that.
    """
    return replace(bound, rate=math.exp(bound.rate - 1) * (1 + 4 * UNIT) if bound.rate < _FASTEST else math.inf)
