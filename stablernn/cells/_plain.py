"""Base classes of plain steps, ``h <- f(K h + U x)``: subclasses differ in how they build the matrix K."""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.lure import LureSystem, lure_bound
from stablernn.bounds.step_bound import Hypothesis, StepBound
from stablernn.cells._base import StableCell, State, Weights, check_choice, empty_parameter, float64, uniform_
from stablernn.cells._input_projection import project_input
from stablernn.cells._step_form import Nonlinearity, StepForm
from stablernn.parametrizations import modrelu


class PlainWeights(NamedTuple):
    recurrent: Tensor
    """K, (hidden, hidden), or the real form of a complex one, (2 hidden, 2 hidden)."""
    bias: Tensor
    """Bias of the nonlinearity, (hidden,)."""


class PlainCell(StableCell):
    """A cell with input projection, bias and nonlinearity; a subclass implements ``recurrent_matrix``.

    ``tanh`` and ``relu`` act on ``z + bias``; ``modrelu`` is ``sign(z) max(|z| + bias, 0)``; ``softshrink`` is modReLU
    with the bias ``-|bias|``, which no training can make positive and which is therefore 1-Lipschitz. A subclass
    creates its parameters, then calls ``reset_parameters``.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        nonlinearity: One of ``nonlinearities``.

    Raises:
        ValueError: If the nonlinearity is none of them.
    """

    nonlinearities: ClassVar[tuple[Nonlinearity, ...]] = ("tanh", "relu", "modrelu", "softshrink")

    def __init__(self, input_size: int, hidden_size: int, *, nonlinearity: Nonlinearity) -> None:
        super().__init__(input_size, hidden_size)
        check_choice(self, "nonlinearity", nonlinearity, self.nonlinearities)
        self.nonlinearity: Nonlinearity = nonlinearity
        self.weight_ih = empty_parameter(hidden_size, input_size)
        self.bias = empty_parameter(hidden_size)

    def reset_parameters(self) -> None:
        uniform_(self.weight_ih, self.input_size)
        # A threshold |b| has no gradient at exactly zero, where modReLU starts.
        bound = 0.01 if self.nonlinearity == "softshrink" else 0.0
        nn.init.uniform_(self.bias, -bound, bound)

    def used_bias(self) -> Tensor:
        """Return the bias as the nonlinearity adds it."""
        return -self.bias.abs() if self.nonlinearity == "softshrink" else self.bias

    def materialize(self) -> PlainWeights:
        return PlainWeights(self.recurrent_matrix(), self.used_bias())

    def lure_system(self) -> LureSystem:
        # No linear part: all of the step goes through the nonlinearity, whose slopes lie within 0 to 1.
        size = self.hidden_size
        return LureSystem(
            np.zeros((size, size)),
            np.eye(size),
            float64(self.recurrent_matrix()),
            float64(self.weight_ih),
            f_max=1.0 if self.nonlinearity == "tanh" else math.inf,
        )

    def step_bound(self) -> StepBound:
        if self.nonlinearity not in ("modrelu", "softshrink"):
            return lure_bound(self.lure_system())
        # modReLU jumps at 0 if its bias is positive.
        highest = float(self.used_bias().detach().max())
        return lure_bound(self.lure_system(), hypotheses=(Hypothesis("largest bias of modReLU", highest, 0.0),))

    def drive(self, x: Tensor) -> Tensor:
        return project_input(self, x, self.weight_ih)

    @property
    def has_timed_step_form(self) -> bool:
        return False

    def step_form(self, weights: Weights) -> StepForm:
        recurrent, bias = weights
        return StepForm("plain", recurrent, nonlinearity=self.nonlinearity, bias=bias)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        recurrent, bias = weights
        return (self.activate(nn.functional.linear(h, recurrent) + drive, bias),)

    def activate(self, z: Tensor, bias: Tensor) -> Tensor:
        """Apply the nonlinearity, with the bias that :meth:`used_bias` returns."""
        if self.nonlinearity == "tanh":
            return torch.tanh(z + bias)
        if self.nonlinearity == "relu":
            return torch.relu(z + bias)
        # softshrink differs from modReLU in the bias alone, see used_bias().
        return modrelu(z, bias)


class RebasingCell(StableCell):
    """A cell whose base becomes its recurrent matrix every ``rebase`` optimizer steps; with 0 it never changes."""

    rebase: int

    def move_base(self) -> None:
        """Set B to the recurrent matrix and A to 0, which does not change the recurrent matrix."""
        raise NotImplementedError

    def missed_schedule(self) -> str | None:
        if not self.rebase or self._passes_since_schedule < self.rebase:
            return None
        return f"have moved the base of the recurrent matrix every {self.rebase} steps"

    def after_step(self, step: int, total_steps: int) -> None:
        super().after_step(step, total_steps)
        # Steps count from 1: the first change follows step number rebase.
        if self.rebase and step % self.rebase == 0:
            self.move_base()
