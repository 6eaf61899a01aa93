"""Noisy RNN: Lim, Erichson, Hodgkinson, Mahoney, "Noisy recurrent neural networks", NeurIPS 2021."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.continuous import largest_euler_step, theorem_1_conditions
from stablernn.bounds.linalg import log_norm_upper_bound, norm_upper_bound
from stablernn.bounds.lure import LureSystem, dominance_bound, lure_bound
from stablernn.bounds.step_bound import Hypothesis, StepBound
from stablernn.cells._base import State, Weights, check_not_negative, empty_parameter, float64, step_length
from stablernn.cells._catalog import practical, register_cell
from stablernn.cells.lipschitz import SymmetricSkewCell


class NoisyWeights(NamedTuple):
    stacked: Tensor
    """The linear matrix A over the recurrent matrix W, (2 hidden, hidden)."""
    lengths: Tensor
    """The step length d of each unit, (hidden,)."""


@register_cell(
    "noisy_rnn",
    title="Lipschitz RNN with noise on the state in training",
    paper="Lim, Erichson, Hodgkinson, Mahoney: Noisy Recurrent Neural Networks (NeurIPS 2021)",
    year=2021,
    guarantee="conditional, as lipschitz; the noise only encourages stability, and each unit's step is trained freely",
    equation=(
        "A, W as in lipschitz; h <- h + d .* mu .* (A h + tanh(W h + U x + bias)) + additive_noise N(0, 1), "
        "mu = 1 - multiplicative_noise + multiplicative_noise U(0, 1) in training; mu = 1 and no noise otherwise"
    ),
    paper_options={"step_size": 0.01, "linear_damping": 0.001, "recurrent_damping": 0.001, "skew_weight": 0.75},
    paper_source=(
        "noise, step and learning rate as in the released code, where additive_noise is 0.02 or 0.05; skew_weight and "
        "the dampings are the Lipschitz RNN's for ordered MNIST."
    ),
    training={
        "practical": practical(0.005, 80),
        "paper": {"lr": 0.001, "optimizer": "adam", "epochs": 100, "batch_size": 128},
    },
)
class NoisyRNNCell(SymmetricSkewCell):
    r"""The Lipschitz RNN with a trained step for each unit, and noise on the state in training.

    .. math::
        h_t = h_{t-1} + d \odot \mu_t \odot (A h_{t-1} + \tanh(W h_{t-1} + U x_t + b)) + s_a n_t, \quad
        \mu_t = (1 - s_m) + s_m u_t

    with n standard normal and u uniform on (0, 1), drawn for each unit, step and sample; in evaluation
    :math:`\mu = 1` and n is absent.

    In code: d is ``unit_steps``, which starts at ``step_size``; :math:`s_a` is ``additive_noise``, :math:`s_m` is
    ``multiplicative_noise``; A, W and the other letters are those of :class:`stablernn.cells.LipschitzRNNCell`. The
    noise is drawn with the drive, so that a step stays a pure function of its arguments.

    Guarantee:
        Conditional, as for the Lipschitz RNN: none by construction. The paper shows that for small noise training also
        minimizes a penalty on the derivatives of the loss, which encourages stability and robustness; nothing is
        enforced. A trained d can turn negative, which runs the equation of that unit backward. Where all are positive,
        part (a) of theorem 1 is sufficient for units of different step lengths too: two solutions of the differential
        equation ``h' = d .* (A h + tanh(...))`` approach each other in the norm ``|d^(-1/2) .* e|``. The discrete step
        of length d need not follow them: a larger ``linear_damping`` helps only while ``d linear_damping < 2`` for
        every unit.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        step_size: Initial Euler step of each unit, greater than 0. The default is ours.
        skew_weight, linear_damping, recurrent_damping, init_scale: As for
            :class:`stablernn.cells.LipschitzRNNCell`.
        additive_noise: Standard deviation of the noise added to the state in training, 0 or more; once per step, also
            if the step is divided for its length.
        multiplicative_noise: Random share of each unit's step in training, 0 to 1.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If an option is outside what is listed above.

    Example:
        >>> cell = NoisyRNNCell(input_size=3, hidden_size=8).eval()
        >>> bool((cell(torch.zeros(2, 3)) == cell(torch.zeros(2, 3))).all())
        True

    References:
        The paper and its released code, which has a step length for each unit. The noise does not grow with dt: neither
        of them has irregular steps.
    """

    # In evaluation, without the noise.
    is_euler = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        step_size: float = 0.5,
        skew_weight: float = 0.75,
        linear_damping: float = 0.001,
        recurrent_damping: float = 0.001,
        init_scale: float = 0.1,
        additive_noise: float = 0.02,
        multiplicative_noise: float = 0.02,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            step_size=step_size,
            skew_weight=skew_weight,
            linear_damping=linear_damping,
            recurrent_damping=recurrent_damping,
            init_scale=init_scale,
        )
        check_not_negative(self, additive_noise=additive_noise)
        if not 0 <= multiplicative_noise <= 1:
            raise ValueError(
                f"multiplicative_noise must be from 0 to 1 for {type(self).__name__}, got {multiplicative_noise}."
            )
        self.additive_noise = additive_noise
        self.multiplicative_noise = multiplicative_noise

    def add_parameters(self) -> None:
        super().add_parameters()
        self.unit_steps = empty_parameter(self.hidden_size)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.unit_steps, self.step_size)

    def lure_system(self) -> LureSystem:
        lengths = float64(self.unit_steps)
        return LureSystem(
            np.eye(self.hidden_size) + lengths[:, None] * float64(self.linear_matrix()),
            np.diag(lengths),
            float64(self.recurrent_matrix()),
            float64(self.weight_ih),
        )

    def step_bound(self) -> StepBound:
        step, lengths = self.lure_system(), float64(self.unit_steps)
        linear = float64(self.linear_matrix())
        # d^(-1/2) as a metric is well conditioned only if no length is negligible next to the largest.
        metrics = [np.diag(lengths**-0.5)] if lengths.min() > 1e-4 * lengths.max() > 0 else []
        positive_lengths = Hypothesis(
            "-(smallest of the units' steps)", -float(lengths.min()), 0.0, strict=True, subject="differential equation"
        )
        # (a) also holds for units of different lengths, in the norm |d^(-1/2) .* e|; (b) holds in the norm of -W alone.
        equal_lengths = Hypothesis(
            "theorem 1 (b): largest difference of the units' steps",
            float(np.ptp(lengths)),
            0.0,
            subject="differential equation",
        )
        bound = dominance_bound(step, lure_bound(step, metrics=metrics), metrics)
        return replace(
            bound,
            conditions=(positive_lengths, *theorem_1_conditions(linear, step.V), equal_lengths),
            figures={
                "mu2_A": log_norm_upper_bound(linear),
                "norm_A": norm_upper_bound(linear),
                "norm_W": norm_upper_bound(step.V),
                "largest_dt": largest_euler_step(step, bound),
            },
        )

    def materialize(self) -> NoisyWeights:  # type: ignore[override]
        return NoisyWeights(torch.cat([self.linear_matrix(), self.recurrent_matrix()]), self.unit_steps)

    def drive(self, x: Tensor) -> Tensor:
        """Return the projected input; in training followed by the factors mu and the noise, ``(..., 3 hidden)``."""
        projected = super().drive(x)
        if not self.training or (self.additive_noise == 0 and self.multiplicative_noise == 0):
            return projected
        factors = (1 - self.multiplicative_noise) + self.multiplicative_noise * torch.rand_like(projected)
        return torch.cat([projected, factors, self.additive_noise * torch.randn_like(projected)], dim=-1)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        return self.advance(weights, state, drive, dt, 1)

    def advance(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None, substeps: int) -> State:
        """Take the step in equal parts; the additive noise enters once, at the end."""
        (h,) = state
        stacked, lengths = weights
        # By the width of the drive, not by self.training: the mode may have changed since the noise was drawn.
        projected, *draws = torch.split(drive, self.hidden_size, dim=-1)
        length = lengths * step_length(1.0, dt) / substeps
        if draws:
            length = length * draws[0]
        for _ in range(substeps):
            linear, recurrent = nn.functional.linear(h, stacked).chunk(2, dim=-1)
            h = h + length * (linear + torch.tanh(recurrent + projected))
        return (h + draws[1] if draws else h,)
