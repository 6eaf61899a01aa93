"""The plain step on complex units, ``h <- modReLU(W h + V x)``, in real numbers: the state is [Re h | Im h]."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import Matrix
from stablernn.bounds.lure import LureSystem, lure_bound
from stablernn.bounds.step_bound import Ball, Hypothesis, StepBound
from stablernn.cells._base import StableCell, State, Weights, check_choice, empty_parameter, float64
from stablernn.cells._plain import PlainWeights
from stablernn.cells._structured_products import StructuredProduct
from stablernn.parametrizations import complex_modrelu, real_form

ComplexNonlinearity = Literal["modrelu", "softshrink"]

OFFSET = FLOOR = 1e-5
"""Constant that the complex modReLU adds to the modulus in its denominator, and the modulus that it computes for 0."""


class StartedWeights(NamedTuple):
    recurrent: Tensor
    """The real form of W, (2 hidden, 2 hidden)."""
    bias: Tensor
    """Bias that the nonlinearity adds to the modulus, (hidden,)."""
    start: Tensor
    """The trained initial state h_0, (2 hidden,)."""


@dataclass(frozen=True, eq=False)
class StructuredStep:
    """The step ``h <- modReLU(W h + d)`` with the structure of W, for engines.

    Attributes:
        product: The product with W.
        bias: What the nonlinearity adds to the modulus, ``(hidden,)``.
        offset: What it adds to the modulus in the denominator.
        start: The state that replaces that of a sequence which has not started, ``(2 hidden,)``; None for zeros.
    """

    product: StructuredProduct
    bias: Tensor
    offset: float
    start: Tensor | None = None


class ComplexCell(StableCell):
    """A cell of complex units with input projection and nonlinearity; a subclass implements ``complex_matrix``.

    ``modrelu`` is ``z max(|z| + b, 0) / (|z| + 1e-5)``; ``softshrink`` is modReLU with the bias ``-|b|``, which no
    training can make positive and which is therefore 1-Lipschitz. A subclass creates its parameters, then calls
    ``reset_parameters``.

    Args:
        input_size: Features per time step.
        hidden_size: Complex units; the state is twice as long.
        nonlinearity: ``modrelu`` or ``softshrink``.

    Raises:
        ValueError: If the nonlinearity is none of them.
    """

    nonlinearities: ClassVar[tuple[ComplexNonlinearity, ...]] = ("modrelu", "softshrink")

    def __init__(self, input_size: int, hidden_size: int, *, nonlinearity: ComplexNonlinearity) -> None:
        super().__init__(input_size, hidden_size)
        check_choice(self, "nonlinearity", nonlinearity, self.nonlinearities)
        self.nonlinearity = nonlinearity
        self.weight_ih = empty_parameter(2 * hidden_size, input_size)
        self.bias = empty_parameter(hidden_size)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (2 * self.hidden_size,)

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight_ih)
        nn.init.uniform_(self.bias, -0.01, 0.01)

    def complex_matrix(self) -> Tensor:
        """Return the complex matrix W, ``(hidden_size, hidden_size)``, column convention."""
        raise NotImplementedError

    def recurrent_matrix(self) -> Tensor:
        return real_form(self.complex_matrix())

    def used_bias(self) -> Tensor:
        """Return the bias as the nonlinearity adds it."""
        return -self.bias.abs() if self.nonlinearity == "softshrink" else self.bias

    def materialize(self) -> Weights:
        return PlainWeights(self.recurrent_matrix(), self.used_bias())

    def structured_product(self) -> StructuredProduct | None:
        """Return the product with W by its structure; None for a cell without."""
        return None

    def structured_step(self, weights: Weights) -> StructuredStep | None:
        """Return the step as data, with the bias of ``weights``; None without a structure."""
        product = self.structured_product()
        return None if product is None else StructuredStep(product, weights[1], OFFSET)

    def lure_system(self) -> LureSystem:
        return complex_lure_system(self.recurrent_matrix(), self.weight_ih, self.used_bias(), OFFSET)

    def step_bound(self) -> StepBound:
        return complex_bound(self.lure_system(), self.used_bias(), OFFSET)

    def drive(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        recurrent, bias = weights
        return (complex_modrelu(nn.functional.linear(h, recurrent) + drive, bias),)


class StartedComplexCell(ComplexCell):
    """A complex cell with a trained initial state, which replaces the state of a sequence that has not started."""

    # Sequences start from zeros: the flag distinguishes that start from a state that happens to be 0.
    state_names = ("hidden", "started")

    def __init__(self, input_size: int, hidden_size: int, *, nonlinearity: ComplexNonlinearity) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        self.hidden_0 = empty_parameter(2 * hidden_size)

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (2 * self.hidden_size, 1)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        # As in the released code of the unitary evolution RNN.
        bound = (3 / (2 * self.hidden_size)) ** 0.5
        nn.init.uniform_(self.hidden_0, -bound, bound)

    def materialize(self) -> Weights:
        return StartedWeights(self.recurrent_matrix(), self.used_bias(), self.hidden_0)

    def structured_step(self, weights: Weights) -> StructuredStep | None:
        step = super().structured_step(weights)
        return None if step is None else replace(step, start=weights[2])

    def step_bound(self) -> StepBound:
        return replace(super().step_bound(), balls=(Ball("started", "linf", 1.0),))

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        h, started = state
        recurrent, bias, start = weights
        # (batch, 1) against (batch, 2 hidden) and (2 hidden,)
        previous = torch.where(started > 0, h, start)
        next_state = super().step((recurrent, bias), (previous,), drive)
        return (*next_state, torch.ones_like(started))


def steepest_slopes(bias: Tensor, offset: float) -> Matrix:
    """Return the Lipschitz constant of complex modReLU in each unit.

    Its Jacobian is symmetric and positive semidefinite. With ``m`` the modulus, ``FLOOR`` or more, its eigenvalues are
    ``(m + b) / (m + offset)`` across ``z`` and that plus ``(offset - b) (m - FLOOR^2 / m) / (m + offset)^2`` along it,
    or 0 if ``m + b`` is negative. Up to ``b = offset`` neither exceeds 1; beyond it both fall with ``m``, from the
    value at 0 that is used here.
    """
    # The factor covers rounding in this line.
    return np.maximum(1.0, (FLOOR + float64(bias)) / (FLOOR + offset) * (1 + 1e-12))


def complex_lure_system(recurrent: Tensor, input_weights: Tensor, bias: Tensor, offset: float) -> LureSystem:
    """Return the step of complex units in real numbers as a Lur'e system.

    Its nonlinearity is divided by its steepest slopes, so that all slopes lie within 0 to 1.
    """
    slopes = np.tile(steepest_slopes(bias, offset), 2)
    return LureSystem(
        np.zeros(recurrent.shape),
        np.diag(slopes),
        float64(recurrent),
        float64(input_weights),
        f_max=math.inf,
        # The real and the imaginary part of a unit depend on each other.
        groups=np.tile(np.arange(len(slopes) // 2), 2),
    )


def complex_bound(
    step: LureSystem, bias: Tensor, offset: float, *, states: tuple[str, ...] = ("hidden",), output: int | None = None
) -> StepBound:
    """Return the :func:`lure_bound` of complex units.

    Its conditions say up to which bias the nonlinearity stretches nothing.
    """
    return replace(
        lure_bound(step, states=states, output=output),
        conditions=(Hypothesis("largest bias of modReLU", float(float64(bias).max()), offset),),
        figures={"steepest slope of modReLU": float(steepest_slopes(bias, offset).max())},
    )
