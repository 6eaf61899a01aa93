"""The plain step on complex units, ``h <- modReLU(W h + V x)``, in real numbers: a state is [Re h | Im h]."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import Matrix
from stablernn.bounds.lure import Sector, sector_bound
from stablernn.bounds.step_bound import Ball, Hypothesis, StepBound, float64
from stablernn.cells._base import StableCell, State, check_word
from stablernn.parametrizations import complex_modrelu, real_form

ComplexNonlinearity = Literal["modrelu", "softshrink"]

OFFSET = FLOOR = 1e-5
"""What the complex modReLU adds to a modulus in its denominator, and what it takes for the modulus of 0."""


class ComplexWeights(NamedTuple):
    recurrent: Tensor
    """The real form of W, (2 hidden, 2 hidden)."""
    bias: Tensor
    """What the nonlinearity adds to the modulus, (hidden,)."""


class StartedWeights(NamedTuple):
    recurrent: Tensor
    """The real form of W, (2 hidden, 2 hidden)."""
    bias: Tensor
    """What the nonlinearity adds to the modulus, (hidden,)."""
    start: Tensor
    """The trained first state h_0, (2 hidden,)."""


class ComplexCell(StableCell):
    """Input projection and nonlinearity of a cell whose subclass gives ``complex_matrix``.

    ``modrelu`` is ``z max(|z| + b, 0) / (|z| + 1e-5)``; ``softshrink`` is modReLU with the bias ``-|b|``, which no
    training can make positive and which is therefore 1-Lipschitz. A subclass makes its own parameters, then calls
    ``reset_parameters``.

    Args:
        input_size: Features per time step.
        hidden_size: Complex units; the state is twice as long.
        nonlinearity: ``modrelu`` or ``softshrink``.

    Raises:
        ValueError: If the nonlinearity is another.
    """

    nonlinearities: ClassVar[tuple[ComplexNonlinearity, ...]] = ("modrelu", "softshrink")

    def __init__(self, input_size: int, hidden_size: int, *, nonlinearity: ComplexNonlinearity) -> None:
        super().__init__(input_size, hidden_size)
        check_word(self, "nonlinearity", nonlinearity, self.nonlinearities)
        self.nonlinearity = nonlinearity
        self.weight_ih = nn.Parameter(torch.empty(2 * hidden_size, input_size))
        self.bias = nn.Parameter(torch.empty(hidden_size))

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (2 * self.hidden_size,)

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight_ih)
        nn.init.uniform_(self.bias, -0.01, 0.01)

    def complex_matrix(self) -> Tensor:
        """The complex matrix W, ``(hidden_size, hidden_size)``, column convention."""
        raise NotImplementedError

    def recurrent_matrix(self) -> Tensor:
        return real_form(self.complex_matrix())

    def used_bias(self) -> Tensor:
        """The bias as the nonlinearity adds it."""
        return -self.bias.abs() if self.nonlinearity == "softshrink" else self.bias

    def materialize(self) -> tuple[Tensor, ...]:
        return ComplexWeights(self.recurrent_matrix(), self.used_bias())

    def sector(self) -> Sector:
        return complex_sector(self.recurrent_matrix(), self.weight_ih, self.used_bias(), OFFSET)

    def step_bound(self) -> StepBound:
        return complex_bound(self.sector(), self.used_bias(), OFFSET)

    def drive(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih)

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        recurrent, bias = weights
        return (complex_modrelu(nn.functional.linear(h, recurrent) + drive, bias),)


class StartedComplexCell(ComplexCell):
    """A complex cell with a trained first state, which stands in for the state of a sequence that has not started."""

    state_names = ("hidden", "started")

    def __init__(self, input_size: int, hidden_size: int, *, nonlinearity: ComplexNonlinearity) -> None:
        super().__init__(input_size, hidden_size, nonlinearity=nonlinearity)
        self.hidden_0 = nn.Parameter(torch.empty(2 * hidden_size))

    @property
    def state_sizes(self) -> tuple[int, ...]:
        return (2 * self.hidden_size, 1)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        bound = (3 / (2 * self.hidden_size)) ** 0.5
        nn.init.uniform_(self.hidden_0, -bound, bound)

    def materialize(self) -> tuple[Tensor, ...]:
        return StartedWeights(self.recurrent_matrix(), self.used_bias(), self.hidden_0)

    def step_bound(self) -> StepBound:
        return replace(super().step_bound(), balls=(Ball("started", "linf", 1.0),))

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        h, started = state
        recurrent, bias, start = weights
        following = super().step((recurrent, bias), (torch.where(started > 0, h, start),), drive)
        return (*following, torch.ones_like(started))


def steepest_slopes(bias: Tensor, offset: float) -> Matrix:
    """The Lipschitz constant of complex modReLU in each unit, whose Jacobian is symmetric and nowhere negative.

    With ``m`` the modulus, ``FLOOR`` or more, its eigenvalues are ``(m + b) / (m + offset)`` across ``z`` and that plus
    ``(offset - b) (m - FLOOR^2 / m) / (m + offset)^2`` along it, or 0 where ``m + b`` is negative. Up to ``b = offset``
    neither exceeds 1; beyond it both fall with ``m``, from the value at 0 that is taken here.
    """
    return np.maximum(1.0, (FLOOR + float64(bias)) / (FLOOR + offset) * (1 + 1e-12))


def complex_sector(recurrent: Tensor, given: Tensor, bias: Tensor, offset: float) -> Sector:
    """The step of complex units in real numbers, its nonlinearity divided by its steepest slopes."""
    slopes = np.tile(steepest_slopes(bias, offset), 2)
    return Sector(np.zeros(recurrent.shape), np.diag(slopes), float64(recurrent), float64(given), reach=math.inf)


def complex_bound(
    step: Sector, bias: Tensor, offset: float, *, states: tuple[str, ...] = ("hidden",), output: int | None = None
) -> StepBound:
    """:func:`sector_bound`, and beside it the bias up to which the nonlinearity stretches nothing."""
    return replace(
        sector_bound(step, states=states, output=output),
        conditions=(Hypothesis("largest bias of modReLU", float(float64(bias).max()), offset),),
        figures={"steepest slope of modReLU": float(steepest_slopes(bias, offset).max())},
    )
