"""The types in which bounds on one step of a cell are stated, for all states and all inputs or those within a box.

:mod:`stablernn.bounds.lure` computes them for Lur'e systems and :mod:`stablernn.bounds.gated` for gated steps; other
cells derive theirs by hand. A box that no step leaves follows here where the diagonal of a matrix dominates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from stablernn.bounds.intervals import FLOAT32_EPSILON, Box
from stablernn.bounds.linalg import EPSILON, Matrix
from stablernn.bounds.linear_response import ImpulseResponse

Norm = Literal["l2", "weighted-l2", "linf"]
Subject = Literal["step", "single Jacobians", "differential equation", "limit of many inner steps"]
"""The subject of a condition. Only the first is the step that a model takes. Eigenvalues of the Jacobian at one state,
and the differential equation that a step discretizes, decide nothing about a sequence of steps."""
GELU_SLOPE = (1 + math.erf(1)) / 2 + math.exp(-1) / math.sqrt(math.pi) + 4 * EPSILON
"""The largest slope of GELU, at the root of 2, about 1.129; the smallest is 1 less this."""


_LARGEST_EXPONENT = 700.0
"""Beyond this the exponential overflows float64."""


@dataclass(frozen=True)
class Hypothesis:
    """One condition of a proof.

    Attributes:
        name: What is compared, as a formula in the words of the cell's documentation.
        value: Its value.
        bound: What it must not exceed; with ``strict`` what it must be below.
        strict: Whether equality fails.
        subject: What it is about. Proofs of this package rest on conditions about the step alone.
    """

    name: str
    value: float
    bound: float
    strict: bool = False
    subject: Subject = "step"

    @property
    def holds(self) -> bool:
        """True if the condition is met; never for NaN."""
        return bool(self.value < self.bound if self.strict else self.value <= self.bound)


@dataclass(frozen=True)
class Ball:
    """An invariant ball around the origin: it holds every state that inputs can lead to from the zero state.

    Attributes:
        state: The name of the state tensor, one of the cell's ``state_names``.
        norm: ``linf`` (the infinity norm) or ``l2``.
        radius: Its size; the center is the origin.
        box: A smaller set with the same property, an interval for each coordinate, for inputs of a bounded size; None
            if there is none. Rates and gains are then of states within it.
    """

    state: str
    norm: Literal["l2", "linf"]
    radius: float
    box: Box | None = None


def ball_of(state: str, box: Box) -> Ball:
    """Return the ball of the infinity norm around a finite box that no step leaves."""
    radius = float(np.max(box.modulus, initial=0.0))
    is_cube = bool((box.upper == radius).all() and (box.lower == -radius).all())
    return Ball(state, "linf", radius, None if is_cube else box)


@dataclass(frozen=True)
class StepBound:
    """The contraction rate and the gains that are proved of one step.

    With ``e`` the difference of two states under one input and ``|e|`` its size in ``norm`` after multiplication by
    ``metric`` (l2) or division by ``weights`` (linf): after a step it is at most ``rate * |e|``, and inputs that differ
    by ``d`` in the 2-norm add at most ``gain * d``.

    Attributes:
        covers: The state tensors that ``e`` is made of; the two states agree in all others that a step reads (a count,
            a flag that the sequence has started).
        norm: Which norm; None if no rate is proved.
        rate: The contraction factor; infinity if none is proved.
        gain: Of the input; infinity if none is proved.
        output_gain: At most the 2-norm of the change of the output (the first state tensor) for ``|e| = 1``.
        output_input_gain: The same for a change of the input of 2-norm 1, besides its effect through the state.
        metric: ``(n, n)``, in which norm ``weighted-l2`` is taken; None for the identity.
        multipliers: ``(q,)``, of the neurons of a Lur'e system, by which the matrix inequality of
            :mod:`stablernn.bounds.norm_search` proves ``rate``; None if it is proved otherwise.
        neuron_scale: ``(q,)``, by which the neurons of the step were multiplied before; None for ones.
        weights: ``(n,)``, by which coordinates are divided in ``linf``; None for ones.
        balls: Invariant balls, one for each state tensor that has one.
        hypotheses: The conditions that the proof rests on.
        conditions: Conditions of papers, and others worth knowing. Neither the rate nor the kind of a certificate
            depends on them.
        figures: Further numbers that describe the step, by name.
        impulse_response: Of a linear layer its response to inputs, which is tighter than ``gain`` and the others.
        other_norms: Bounds of the same step in other norms, with larger rates and perhaps smaller gains. Code that
            replaces a rate or a gain of a bound must replace those of ``other_norms`` too, or empty it.
    """

    covers: tuple[str, ...] = ()
    norm: Norm | None = None
    rate: float = math.inf
    gain: float = math.inf
    output_gain: float = math.inf
    output_input_gain: float = 0.0
    metric: Matrix | None = None
    multipliers: Matrix | None = None
    neuron_scale: Matrix | None = None
    weights: Matrix | None = None
    balls: tuple[Ball, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    conditions: tuple[Hypothesis, ...] = ()
    figures: dict[str, float] = field(default_factory=dict)
    impulse_response: ImpulseResponse | None = None
    other_norms: tuple[StepBound, ...] = ()


def irregular_step_bound(bound: StepBound) -> StepBound:
    """Return the bound of steps of any length, if a shorter step is a convex combination of the regular one and none.

    A norm is convex: after ``dt`` of a regular step a difference is at most ``1 - dt (1 - rate)`` times as large. Over
    the time of a regular step, in parts of any lengths, that is at most ``exp(rate - 1)``, which is the rate returned.
    No input moves a state further than in one regular step, and a ball that a regular step does not leave holds every
    convex combination of a state in it and of the next state. All this is so in every norm, and other norms are kept.
    """
    # exp would raise OverflowError for a larger rate; infinity is the bound then.
    is_representable = bound.rate < _LARGEST_EXPONENT
    rate = math.exp(bound.rate - 1) * (1 + 4 * EPSILON) if is_representable else math.inf
    # The multipliers still prove the rate of a regular step, from which this one follows.
    return replace(bound, rate=rate, other_norms=tuple(map(irregular_step_bound, bound.other_norms)))


def restoring_box(matrix: Matrix, drive: Box, longest_move: float) -> Box | None:
    """Return a cube that no step leaves, for a matrix whose negative diagonal dominates its rows; None for others.

    The step is ``h <- h + s(K h + d)``, where every coordinate of ``s`` has the sign of its argument and a modulus of
    at most ``longest_move``, e. With ``-k`` the diagonal entry of a row of K and ``r`` the sum of the other moduli, the
    cube of radius ``R >= e`` is invariant if ``k (R - e) >= r R + abs(d)``: a coordinate of at most ``R - e`` stays
    below R in any case, and beyond it the argument is negative or zero, so that the step leads back, by at most e.

    Args:
        matrix: K, ``(n, n)``.
        drive: Range of d, ``(n,)``.
        longest_move: e, greater than 0.
    """
    damping, moduli = -np.diagonal(matrix), np.abs(matrix).sum(axis=1)
    others = moduli - np.abs(damping)
    # The argument in float32 is off by the rounding of each product and sum. The state is off by the rounding of its
    # own sum, which lets a coordinate that may move freely end slightly further out.
    relative_error = (matrix.shape[1] + 8) * FLOAT32_EPSILON * moduli
    surplus = damping - others - 2 * relative_error
    if not drive.is_finite or not (surplus > 0).all():
        return None
    move = longest_move * (1 + 8 * FLOAT32_EPSILON)
    radius = float(np.max((damping * move + drive.modulus * (1 + 8 * FLOAT32_EPSILON)) / surplus, initial=move))
    return Box.around_zero(len(matrix), radius * (1 + 8 * FLOAT32_EPSILON))
