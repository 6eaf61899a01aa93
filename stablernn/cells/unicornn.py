"""UnICORNN: Rusch, Mishra, "UnICORNN: a recurrent model for learning very long time dependencies", ICML 2021."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import Matrix, norm_upper_bound
from stablernn.bounds.step_bound import Hypothesis, StepBound
from stablernn.cells._base import (
    StableCell,
    State,
    Weights,
    check_not_negative,
    check_positive,
    empty_parameter,
    float64,
    step_length,
)
from stablernn.cells._catalog import practical, register_cell


class UnICORNNWeights(NamedTuple):
    recurrent: Tensor
    """w, (hidden,)."""
    speed: Tensor
    """sigmoid(c), (hidden,)."""


@register_cell(
    "unicornn",
    title="independent undamped oscillators, symplectic and invertible",
    paper="Rusch, Mishra: UnICORNN: A recurrent model for learning very long time dependencies (ICML 2021)",
    year=2021,
    guarantee="by construction each step keeps volume and can be undone; nothing is forgotten, the state can grow",
    equation=(
        "z <- z - step_size sigmoid(c) .* (tanh(w .* y + V x + b) + stiffness y); "
        "y <- y + step_size sigmoid(c) .* z (the new z)"
    ),
    paper_options={"step_size": 0.19, "stiffness": 30.65, "speed_range": 0.1},
    paper_source=(
        "the released code's settings for permuted MNIST with 3 layers of 256 units; epochs and schedule of the "
        "training are our choice (2,600 epochs there, with one drop of the rate)."
    ),
    training={
        "practical": practical(0.03),
        "paper": {"lr": 0.00251, "optimizer": "adam", "batch_size": 32},
    },
)
class UnICORNNCell(StableCell):
    r"""Undamped oscillators, each with its own frequency and driven by the input alone; symplectic Euler.

    .. math::
        z_t = z_{t-1} - \Delta t \, \sigma(c) \odot (\tanh(w \odot y_{t-1} + V x_t + b) + \alpha y_{t-1}), \quad
        y_t = y_{t-1} + \Delta t \, \sigma(c) \odot z_t

    In code: y is ``hidden``, z is ``velocity``, :math:`\Delta t` is ``step_size``, :math:`\alpha` is ``stiffness``;
    w is ``weight_hh`` and c is ``speed``, both with one number per unit; V is ``weight_ih``, b is ``bias_ih``. Units
    interact in the next layer only, so that the paper stacks several.

    Guarantee:
        By construction, for any weights, inputs and lengths of the step: the map of (y, z) is symplectic unit by unit,
        so its Jacobian has determinant 1, and :meth:`inverse_step` inverts it up to rounding. It follows that nothing
        is forgotten: no step contracts all directions. If step_size^2 stiffness < 4 and stiffness > 0, with
        h = step_size sigmoid(c), the root of alpha y^2 + z^2 - alpha h y z, which the linear part conserves, grows by
        at most h in a regular step: linearly in time, as under an input in resonance. Steps of varying length can
        excite an oscillator faster. The rounding error of the inverse depends on the units: 1,000 steps return to 1e-10
        in float64 at the paper's options (at any abs(w) up to 10 that was tried), and at ours with the initial
        weights. Units can become chaotic where abs(w) is well above ``stiffness`` (w below -stiffness makes two
        potential wells of one), as training at our options may cause; then 1,000 steps do not return.

    Args:
        input_size: Features per time step.
        hidden_size: Number of oscillators.
        step_size: Length of a step, greater than 0. The default is ours.
        stiffness: Restoring force, 0 or more. The default is ours.
        speed_range: Bound of the initial c, which is uniform, 0 or more. The default is ours.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: hidden and velocity, each ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next hidden and velocity

    Raises:
        ValueError: If ``step_size`` is not positive, or ``stiffness`` or ``speed_range`` is negative.

    Example:
        >>> hidden, velocity = UnICORNNCell(input_size=3, hidden_size=8)(torch.zeros(2, 3))
        >>> hidden.shape
        torch.Size([2, 8])

    References:
        The paper's recurrence for one layer. Initialization as in the released code except for ``speed_range``: w
        uniform on [0, 1], V within sqrt(6 / (65 input_size)), b = 0. The code's c on [-0.1, 0.1] gives all units nearly
        the same frequency, for which a single layer cannot compensate.
    """

    state_names = ("hidden", "velocity")
    takes_dt = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float = 0.5,
        stiffness: float = 1.0,
        speed_range: float = 3.0,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_positive(self, step_size=step_size)
        check_not_negative(self, stiffness=stiffness, speed_range=speed_range)
        self.step_size = step_size
        self.stiffness = stiffness
        self.speed_range = speed_range
        self.weight_hh = empty_parameter(hidden_size)
        self.speed = empty_parameter(hidden_size)
        self.weight_ih = empty_parameter(hidden_size, input_size)
        self.bias_ih = empty_parameter(hidden_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight_hh, 0, 1)
        nn.init.uniform_(self.speed, -self.speed_range, self.speed_range)
        # Uniform within sqrt(6 / ((1 + a^2) input_size)).
        nn.init.kaiming_uniform_(self.weight_ih, a=8)
        nn.init.zeros_(self.bias_ih)

    def recurrent_matrix(self) -> Tensor:
        """Return the diagonal matrix of w."""
        return torch.diag(self.weight_hh)

    def materialize(self) -> UnICORNNWeights:
        return UnICORNNWeights(self.weight_hh, torch.sigmoid(self.speed))

    def step_bound(self) -> StepBound:
        recurrent, speed = (float64(weight) for weight in self.materialize())
        length = self.step_size * speed
        # On the difference of two states the tanh acts as a further spring, of a stiffness from 0 to w.
        weakest, stiffest = self.stiffness + np.minimum(recurrent, 0), self.stiffness + np.maximum(recurrent, 0)
        spring = _best_spring(length, weakest, stiffest)
        # In the norm k y^2 + z^2 - length k y z, which a step with a spring k conserves, one with a spring s is a
        # rotation and a change of ``length abs(k - s) / scale`` at right angles to it: singular values of product 1.
        scale = np.sqrt(spring * (1 - length**2 * spring / 4))
        change = length * np.maximum(stiffest - spring, spring - weakest) / scale
        rates = change / 2 + np.sqrt(1 + (change / 2) ** 2)
        unit = np.eye(self.hidden_size)
        name = "(step_size sigmoid(c))^2 (stiffness + max(w, 0)) of every unit"
        return StepBound(
            covers=self.state_names,
            norm="weighted-l2",
            rate=float(rates.max()) * (1 + 1e-12),
            gain=norm_upper_bound((length / scale)[:, None] * float64(self.weight_ih)) * (1 + 1e-12),
            output_gain=1.0,
            metric=np.block([[unit, 0 * unit], [np.diag(-length * spring / 2 / scale), np.diag(1 / scale)]]),
            conditions=(
                Hypothesis(name, float((length**2 * stiffest).max()), 4.0, strict=True, subject="single Jacobians"),
            ),
        )

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        y, z = state
        recurrent, speed = weights
        length = step_length(self.step_size, dt) * speed
        # Symplectic: y moves by the new z.
        z = z - length * (torch.tanh(recurrent * y + drive) + self.stiffness * y)
        return y + length * z, z

    def inverse_step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        """Return the state before the :meth:`step` that led to ``state`` under the same weights, drive and length."""
        y, z = state
        recurrent, speed = weights
        length = step_length(self.step_size, dt) * speed
        y = y - length * z
        return y, z + length * (torch.tanh(recurrent * y + drive) + self.stiffness * y)


def _best_spring(length: Matrix, weakest: Matrix, stiffest: Matrix) -> Matrix:
    """Return the k that minimizes ``max(stiffest - k, k - weakest) / sqrt(k (1 - length^2 k / 4))``, unit by unit.

    It is the mean of both springs; but more where the weakest is repulsive, and less where the stiffest is too stiff
    for the step. Both of these are roots of the derivative, the first below ``2 / length^2`` and the second above.
    """
    # Bounded below, so that nothing is divided by zero for a unit of speed 0.
    square = np.maximum(length**2, 1e-12)
    repulsion = np.maximum(-weakest, 0)
    spring = np.maximum((weakest + stiffest) / 2, repulsion / (1 + repulsion * square / 2))
    excess = np.maximum(stiffest * square / 2 - 1, 1e-12)
    upper = np.where(stiffest * square > 2, stiffest / excess, np.inf)
    # Inside 0 < k < 4 / length^2, where the quadratic form is positive definite.
    return np.clip(np.minimum(spring, upper), 1e-4, 3.999 / square)
