"""GRU-D: Che, Purushotham, Cho, Sontag, Liu, "RNNs for multivariate time series with missing values", 2018."""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.gated import gated_bound, largest_convex_step, largest_gated
from stablernn.bounds.intervals import Box, accumulated_rounding, shrink_invariant, sigmoid
from stablernn.bounds.linalg import EPSILON, Matrix, row_norms
from stablernn.bounds.step_bound import Ball, StepBound, ball_of
from stablernn.cells._base import (
    StableCell,
    State,
    Weights,
    check_choice,
    check_finite,
    check_positive,
    empty_parameter,
    float64,
    uniform_,
)
from stablernn.cells._catalog import practical, register_cell

Imputation = Literal["decay", "none"]


class GRUDWeights(NamedTuple):
    input: Tensor
    """[W | V], (3 hidden, input or 2 input): acts on the imputed values and on the mask of observed ones."""
    bias: Tensor
    """b, (3 hidden,)."""
    recurrent: Tensor
    """U_z stacked on U_r, (2 hidden, hidden)."""
    candidate: Tensor
    """U_n, (hidden, hidden)."""
    decay: Tensor
    """W_gh stacked on diag(w_gx), (hidden + input, input): acts on the elapsed times; without imputation only W_gh."""
    decay_bias: Tensor
    """b_gh and b_gx, (hidden + input,)."""


@register_cell(
    "gru_d",
    title="GRU whose state and missing inputs decay with time",
    paper=(
        "Che, Purushotham, Cho, Sontag, Liu: Recurrent Neural Networks for Multivariate Time Series with Missing "
        "Values (Scientific Reports 2018)"
    ),
    year=2018,
    guarantee="the state stays within 1 once it is there, whatever is missing for however long; not contracting",
    equation=(
        "e = elapsed + dt, the time since each feature was observed; gx = exp(-max(0, w .* e + b)), "
        "gh = exp(-max(0, W_gh e + b_gh)); x^ = x where observed, else gx .* last; h <- gh .* h; "
        "z, r = sigmoid(W x^ + U h + V m + b); n = tanh(W_n x^ + U_n (r .* h) + V_n m + b_n); "
        "h <- (1 - z) .* h + z .* n"
    ),
    paper_options={"update_bias": 0.0},
    paper_source="the paper's equations; initial values and training settings are ours.",
    training={
        "practical": practical(0.01),
        "paper": {"lr": 0.001, "optimizer": "adam"},
    },
    upper_options={"imputation": "none"},
)
class GRUDCell(StableCell):
    r"""A GRU for missing values: NaN in the input means that a feature was not observed.

    .. math::
        e = \mathrm{elapsed} + dt, \quad \gamma_x = \exp(-\max(0, w \odot e + b)), \quad
        \gamma_h = \exp(-\max(0, W_\gamma e + b_\gamma))
    .. math::
        \hat x = m \odot x_t + (1 - m) \odot \gamma_x \odot \mathrm{last}, \quad \hat h = \gamma_h \odot h_{t-1}
    .. math::
        z, r = \sigma(W \hat x + U \hat h + V m + b), \quad
        n = \tanh(W_n \hat x + U_n (r \odot \hat h) + V_n m + b_n), \quad h_t = (1 - z) \odot \hat h + z \odot n

    In code: m is 1 if a feature was observed and 0 if not, ``elapsed`` is the time since its last observation, ``last``
    its value then; both are part of the state. W, U, V and b are ``weight_ih``, ``weight_hh``, ``weight_mask`` and
    ``bias_ih``, rows in the order z, r, n; :math:`w` and :math:`b` of the first line are ``input_decay`` and
    ``input_decay_bias``, :math:`W_\gamma` and :math:`b_\gamma` are ``state_decay`` and ``state_decay_bias``.

    Guarantee:
        The bound by construction: a state within 1 in every coordinate stays so, since a factor within 0 to 1 shrinks
        it and the step mixes it with a tanh. This and finite gradients hold for all patterns of missing values. Without
        imputation a step contracts within 1, in a weighted infinity norm, if all units decay and the recurrent weights
        are small. With imputation no rate is proved: two states with different last values differ for as long as none
        is observed, and the effect of different elapsed times grows with these values, which have no bound.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        imputation: ``decay``, or ``none`` for inputs without missing values, such as those of the upper layers of a
            stack: no imputed values, no mask, and all features were last observed a time dt ago.
        update_bias: Initial bias of the update gate z: below 0 most of the state is kept at first. Our choice.
        init_decay: Initial decay rate of state and imputed values per regular step, on average, greater than 0. Our
            choice.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``, NaN where missing
        - state: hidden ``(batch, hidden_size)``, last and elapsed ``(batch, input_size)``, or all three without
          ``batch``; hidden alone if ``imputation`` is ``none``; zeros when omitted
        - output: the next state

    Raises:
        ValueError: If ``imputation`` is neither of these, or ``init_decay`` is not positive.

    Example:
        >>> hidden, last, elapsed = GRUDCell(input_size=2, hidden_size=8)(torch.tensor([[1.0, torch.nan]]))
        >>> elapsed
        tensor([[0., 1.]])

    References:
        The paper's GRU-D. A missing value decays towards the feature's mean, which is 0 after scaling. The paper sets
        the first elapsed time to 0, here it is the first dt: with the initial state at zero the two differ only if a
        value is missing from the beginning.
    """

    takes_dt = True
    takes_missing = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        imputation: Imputation = "decay",
        update_bias: float = -1.0,
        init_decay: float = 0.01,
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_choice(self, "imputation", imputation, ("decay", "none"))
        check_finite(self, update_bias=update_bias)
        check_positive(self, init_decay=init_decay)
        self.imputation = imputation
        self.update_bias = update_bias
        self.init_decay = init_decay
        self.weight_hh = empty_parameter(3 * hidden_size, hidden_size)
        self.weight_ih = empty_parameter(3 * hidden_size, input_size)
        self.bias_ih = empty_parameter(3 * hidden_size)
        imputes = self.takes_missing = imputation == "decay"
        self.state_decay = empty_parameter(hidden_size, input_size if imputes else 1)
        self.state_decay_bias = empty_parameter(hidden_size)
        if imputes:
            self.state_names = ("hidden", "last", "elapsed")
            self.weight_mask = empty_parameter(3 * hidden_size, input_size)
            self.input_decay = empty_parameter(input_size)
            self.input_decay_bias = empty_parameter(input_size)
        self.reset_parameters()

    @property
    def state_sizes(self) -> tuple[int, ...]:
        sizes = (self.hidden_size, self.input_size, self.input_size)
        return sizes[: len(self.state_names)]

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            uniform_(parameter, self.hidden_size)
        with torch.no_grad():
            self.bias_ih[: self.hidden_size] = self.update_bias
        # Above zero: a rate that max(0, .) cuts off has no gradient and would never change.
        nn.init.uniform_(self.state_decay, 0, 2 * self.init_decay / self.state_decay.shape[1])
        nn.init.zeros_(self.state_decay_bias)
        if self.imputation == "decay":
            nn.init.uniform_(self.input_decay, 0, 2 * self.init_decay)
            nn.init.zeros_(self.input_decay_bias)

    def substeps(self, longest: float) -> int:
        """Return 1: the decay is a function of the elapsed time, of any length."""
        return 1

    def recurrent_matrix(self) -> Tensor:
        """Return U of z, r and n, stacked, ``(3 hidden, hidden)``; the state decays before the product."""
        return self.weight_hh

    def step_bound(self) -> StepBound:
        if self.imputation == "decay":
            return StepBound(balls=(Ball("hidden", "linf", 1.0),))
        return self.step_bound_within(Box.around_zero(self.input_size, math.inf))

    def step_bound_within(self, inputs: Box) -> StepBound:
        size, imputes = self.hidden_size, self.imputation == "decay"
        weight_ih, bias = float64(self.weight_ih), float64(self.bias_ih)
        u_z, u_r, u_n = float64(self.weight_hh).reshape(3, size, size)
        if imputes:
            # A missing value decays from the last one, which is zero before the first.
            inputs = inputs.with_zero()
            mask = Box(np.zeros(self.input_size), np.ones(self.input_size))
            matrix = np.concatenate([weight_ih, float64(self.weight_mask)], axis=1)
            drive = inputs.join(mask).affine(matrix, bias)
        else:
            drive = inputs.affine(weight_ih, bias)
        drive_z, drive_r, drive_n = drive.split(3)
        decay = self._largest_decay()

        def candidate(states: Box) -> tuple[Box, Box]:
            h = states.scaled(decay)
            reset = drive_r.plus(h.affine(u_r)).sigmoid()
            return reset, drive_n.plus(reset.times(h).affine(u_n)).tanh()

        def image(states: Box) -> Box:
            # Decay moves the state towards zero, and the update gate mixes it with the candidate.
            update = drive_z.plus(states.scaled(decay).affine(u_z))
            return candidate(states)[1].scaled(accumulated_rounding(sigmoid(update.lower)))

        states = shrink_invariant(Box.around_zero(size, 1.0), image)
        balls = (ball_of("hidden", states),)
        if imputes:
            # No rate: two states with other values last observed differ for as long as none is observed.
            return StepBound(balls=(*balls, ball_of("last", inputs)))
        h, (reset, candidates) = Box(states.lower * decay, states.upper * decay), candidate(states)
        share = drive_z.plus(h.affine(u_z)).negated().sigmoid()

        def mixed(old: Matrix, by_z: Matrix, by_n: Matrix) -> Matrix:
            return largest_convex_step(old, by_z, by_n, states=h, candidates=candidates, shares=share)

        def row_sums(weights: Matrix) -> Matrix:
            old = decay * weights
            passed = largest_gated(old, h.modulus * (np.abs(u_r) @ old), reset.lower, reset.upper)
            return mixed(old, np.abs(u_z) @ old, np.abs(u_n) @ passed)

        w_z, w_r, w_n = row_norms(weight_ih).reshape(3, -1)
        reset_slope = largest_gated(np.zeros(size), np.ones(size), reset.lower, reset.upper)
        return gated_bound(
            row_sums,
            mixed(np.zeros(size), w_z, w_n + np.abs(u_n) @ (h.modulus * w_r * reset_slope)),
            covers=("hidden",),
            output=slice(None),
            balls=balls,
        )

    def _largest_decay(self) -> Matrix:
        """Return the largest factor of each unit's state in a regular step, ``(hidden,)``."""
        decay = float64(self.state_decay)
        # Every time since an observation is 1 or more. A negative rate makes the exponent as small as one likes.
        exponent = np.where((decay < 0).any(axis=1), 0.0, decay.sum(axis=1) + float64(self.state_decay_bias))
        if self.imputation == "none":
            exponent = decay[:, 0] + float64(self.state_decay_bias)
        factor: Matrix = np.exp(-np.maximum(exponent, 0)) * (1 + (decay.shape[1] + 4) * EPSILON)
        return np.minimum(factor, 1.0)

    def irregular_bound(self) -> StepBound:
        # After any time, decay moves the state towards 0, and the update gate mixes it with a tanh.
        return StepBound(balls=self.step_bound().balls)

    def materialize(self) -> GRUDWeights:
        recurrent, candidate = torch.split(self.weight_hh, [2 * self.hidden_size, self.hidden_size])
        input_weights: Tensor = self.weight_ih
        decay: Tensor = self.state_decay
        decay_bias: Tensor = self.state_decay_bias
        if self.imputation == "decay":
            # Values and mask share one product, and so do both decays.
            input_weights = torch.cat([input_weights, self.weight_mask], dim=1)
            decay = torch.cat([decay, torch.diag(self.input_decay)])
            decay_bias = torch.cat([decay_bias, self.input_decay_bias])
        return GRUDWeights(input_weights, self.bias_ih, recurrent, candidate, decay, decay_bias)

    def drive(self, x: Tensor) -> Tensor:
        # Imputed values depend on the state: the product has to wait for the step.
        return x

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        matrix, bias, recurrent, candidate, decay, decay_bias = weights
        size, h, gate_input = self.hidden_size, state[0], drive
        elapsed: Tensor = torch.ones_like(h[:, :1]) if dt is None else dt
        if self.imputation == "decay":
            elapsed = state[2] + (1.0 if dt is None else dt)
        # (batch, hidden + input), or (batch, hidden) without imputation
        decay_factors = torch.exp(-torch.relu(nn.functional.linear(elapsed, decay, decay_bias)))
        observations: State = ()
        if self.imputation == "decay":
            observed = ~torch.isnan(drive)
            # where, not a product with the mask: NaN times 0 is NaN, in the gradient too.
            last = torch.where(observed, drive, state[1])
            imputed = torch.where(observed, last, decay_factors[:, size:] * last)
            gate_input = torch.cat([imputed, observed.to(drive.dtype)], dim=-1)
            observations = (last, torch.where(observed, 0.0, elapsed))
        h = decay_factors[:, :size] * h
        gates, n = torch.split(nn.functional.linear(gate_input, matrix, bias), [2 * size, size], dim=-1)
        z, r = torch.sigmoid(gates + nn.functional.linear(h, recurrent)).chunk(2, dim=-1)
        n = torch.tanh(n + nn.functional.linear(r * h, candidate))
        return ((1 - z) * h + z * n, *observations)
