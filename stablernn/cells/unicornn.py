"""UnICORNN: Rusch, Mishra, "UnICORNN: a recurrent model for learning very long time dependencies", ICML 2021."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import Matrix, norm_above
from stablernn.bounds.step_bound import Hypothesis, StepBound, float64
from stablernn.cells._base import StableCell, State, check_not_negative, check_positive, step_length
from stablernn.cells._catalog import register_cell


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
    family="general",
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
        "practical": {"lr": 0.03, "schedule": "one-cycle", "epochs": 60, "batch_size": 32, "clip_norm": 1.0},
        "paper": {"lr": 0.00251, "optimizer": "adam", "batch_size": 32},
    },
)
class UnICORNNCell(StableCell):
    r"""Oscillators without damping, each with its own frequency and driven by the input alone; symplectic Euler.

    .. math::
        z_t = z_{t-1} - \Delta t \, \sigma(c) \odot (\tanh(w \odot y_{t-1} + V x_t + b) + \alpha y_{t-1}), \quad
        y_t = y_{t-1} + \Delta t \, \sigma(c) \odot z_t

    In code: y is ``hidden``, z is ``velocity``, :math:`\Delta t` is ``step_size``, :math:`\alpha` is ``stiffness``;
    w is ``weight_hh`` and c is ``speed``, one number a unit each; V is ``weight_ih``, b is ``bias_ih``. Units meet in
    the next layer only, so that the paper stacks several.

    Guarantee:
        By construction, for any weights, inputs and lengths of the step: the map of (y, z) is symplectic unit by unit,
        so its Jacobian has determinant 1, and :meth:`inverse_step` undoes it but for rounding. It follows that nothing
        is forgotten: no step contracts all directions. Where step_size^2 stiffness < 4 and stiffness > 0, with
        h = step_size sigmoid(c), the root of alpha y^2 + z^2 - alpha h y z, which the linear part keeps, grows by at
        most h in a regular step: linearly in time, as an input in resonance makes it do. Steps of changing length can
        pump an oscillator up faster. How small rounding comes back depends on the units: 1,000 steps return to 1e-10
        in float64 at the paper's options (at any abs(w) up to 10 that was tried), and at ours with the weights of the
        start. Units can turn chaotic where abs(w) is well above ``stiffness`` (w below -stiffness makes two wells of
        one), as training at our options may bring about; then 1,000 steps do not return.

    Args:
        input_size: Features per time step.
        hidden_size: Number of oscillators.
        step_size: Length of a step, greater than 0. The default is ours.
        stiffness: Restoring force, 0 or more. The default is ours.
        speed_range: c starts uniform within it, 0 or more. The default is ours.

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
        The paper's recurrence for one layer. Start as in the released code but for ``speed_range``: w uniform on
        [0, 1], V within sqrt(6 / (65 input_size)), b = 0. The code's c on [-0.1, 0.1] gives all units nearly one
        frequency, which a single layer cannot make up for.
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
        self.weight_hh = nn.Parameter(torch.empty(hidden_size))
        self.speed = nn.Parameter(torch.empty(hidden_size))
        self.weight_ih = nn.Parameter(torch.empty(hidden_size, input_size))
        self.bias_ih = nn.Parameter(torch.empty(hidden_size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight_hh, 0, 1)
        nn.init.uniform_(self.speed, -self.speed_range, self.speed_range)
        nn.init.kaiming_uniform_(self.weight_ih, a=8)
        nn.init.zeros_(self.bias_ih)

    def recurrent_matrix(self) -> Tensor:
        """The diagonal matrix of w."""
        return torch.diag(self.weight_hh)

    def materialize(self) -> UnICORNNWeights:
        return UnICORNNWeights(self.weight_hh, torch.sigmoid(self.speed))

    def step_bound(self) -> StepBound:
        recurrent, speed = (float64(weight) for weight in self.materialize())
        length = self.step_size * speed
        # Between two states the tanh acts like one spring more, of a stiffness from 0 to w.
        weakest, stiffest = self.stiffness + np.minimum(recurrent, 0), self.stiffness + np.maximum(recurrent, 0)
        kept = _best_spring(length, weakest, stiffest)
        # In k y^2 + z^2 - length k y z, which a step with a spring k keeps, one with a spring s is a rotation and a
        # change of ``length abs(k - s) / scale`` at right angles to it: singular values whose product is 1.
        scale = np.sqrt(kept * (1 - length**2 * kept / 4))
        change = length * np.maximum(stiffest - kept, kept - weakest) / scale
        rates = change / 2 + np.sqrt(1 + (change / 2) ** 2)
        unit = np.eye(self.hidden_size)
        name = "(step_size sigmoid(c))^2 (stiffness + max(w, 0)) of every unit"
        return StepBound(
            covers=self.state_names,
            norm="weighted-l2",
            rate=float(rates.max()) * (1 + 1e-12),
            gain=norm_above((length / scale)[:, None] * float64(self.weight_ih)) * (1 + 1e-12),
            output_gain=1.0,
            metric=np.block([[unit, 0 * unit], [np.diag(-length * kept / 2 / scale), np.diag(1 / scale)]]),
            conditions=(
                Hypothesis(name, float((length**2 * stiffest).max()), 4.0, strict=True, of="single Jacobians"),
            ),
        )

    def drive(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih, self.bias_ih)

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        y, z = state
        recurrent, speed = weights
        length = step_length(self.step_size, dt) * speed
        z = z - length * (torch.tanh(recurrent * y + drive) + self.stiffness * y)
        return y + length * z, z

    def inverse_step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        """The state before a :meth:`step` that led to ``state`` under the same weights, drive and length."""
        y, z = state
        recurrent, speed = weights
        length = step_length(self.step_size, dt) * speed
        y = y - length * z
        return y, z + length * (torch.tanh(recurrent * y + drive) + self.stiffness * y)


def _best_spring(length: Matrix, weakest: Matrix, stiffest: Matrix) -> Matrix:
    """The k for which ``max(stiffest - k, k - weakest) / sqrt(k (1 - length^2 k / 4))`` is least, unit by unit.

    It is the mean; but more where a spring pushes, and less where one is too stiff for the step. Both roots are of the
    derivative, and the first is below ``2 / length^2``, the second above.
    """
    square = np.maximum(length**2, 1e-12)
    pushing = np.maximum(-weakest, 0)
    kept = np.maximum((weakest + stiffest) / 2, pushing / (1 + pushing * square / 2))
    excess = np.maximum(stiffest * square / 2 - 1, 1e-12)
    most = np.where(stiffest * square > 2, stiffest / excess, np.inf)
    return np.clip(np.minimum(kept, most), 1e-4, 3.999 / square)
