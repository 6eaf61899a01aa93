"""Closed-form continuous-time network: Hasani, Lechner, Amini et al., Nature Machine Intelligence 2022."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.gated import gated_bound, largest_bend
from stablernn.bounds.intervals import Box, shrink_invariant
from stablernn.bounds.linalg import EPSILON, Matrix, norm_upper_bound, row_norms
from stablernn.bounds.step_bound import GELU_SLOPE, StepBound, ball_of
from stablernn.cells._base import (
    StableCell,
    State,
    Weights,
    check_at_least,
    check_choice,
    check_whole_number,
    empty_parameter,
    float64,
)
from stablernn.cells._catalog import practical, register_cell

Activation = Literal["lecun_tanh", "tanh", "relu", "silu", "gelu"]
# Slope at zero, the mean of both sides.
_MEAN_SLOPES = {"lecun_tanh": 1.7159 * 0.666, "tanh": 1.0, "relu": 0.5, "silu": 0.5, "gelu": 0.5}
# The smallest and the largest slope; those of silu are at x tanh(x / 2) = 2.
_SLOPE_RANGES = {
    "lecun_tanh": (0.0, 1.7159 * 0.666 + EPSILON),
    "tanh": (0.0, 1.0),
    "relu": (0.0, 1.0),
    "silu": (-0.09984, 1.09984),
    "gelu": (1 - GELU_SLOPE, GELU_SLOPE),
}


@register_cell(
    "cfc",
    title="closed-form continuous-time network",
    paper="Hasani, Lechner, Amini et al.: Closed-form Continuous-time Neural Networks (Nature Mach. Intell. 2022)",
    year=2022,
    guarantee="the state stays within 1 for any time step, by construction; not contracting",
    equation=(
        "v = backbone([x, h]), affine maps with an activation; s = sigmoid(ta(v) dt + tb(v)); "
        "h <- (1 - s) .* tanh(f1(v)) + s .* tanh(f2(v)), all four affine"
    ),
    paper_options={"backbone_units": 128, "init": "xavier"},
    paper_source=(
        "LeCun's tanh as in the released code; one backbone layer of 128 units and Glorot weights after the authors' "
        "library; the training settings are ours, and so is the start in the preset practical."
    ),
    training={
        "practical": practical(0.001, 80),
        "paper": {"lr": 0.001, "optimizer": "adam"},
    },
)
class CfCCell(StableCell):
    r"""A closed form that replaces the solution of an ODE: a gate that depends on time blends two heads.

    .. math::
        v = \mathrm{backbone}([x_t, h_{t-1}]), \quad s = \sigma(t_a(v)\, dt + t_b(v)), \quad
        h_t = (1 - s) \odot \tanh(f_1(v)) + s \odot \tanh(f_2(v))

    In code: the first affine map is ``weight_ih`` on x, ``weight_hh`` on h and ``bias_ih``; the other layers of the
    backbone are ``weight_backbone`` and ``bias_backbone``; ``weight_head`` and ``bias_head`` hold f1, f2, t_a, t_b,
    stacked. Without a backbone the first map is the head.

    Guarantee:
        The bound by construction: the state lies within 1 in every coordinate, whatever the time step, as a convex
        combination of two tanh. No other part of the old state is added, so that a step contracts if the weights are
        small.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state.
        backbone_layers: Affine maps, each followed by the activation, before the head; 0 or more.
        backbone_units: Length of their outputs; None: hidden_size, our choice.
        activation: ``lecun_tanh``, which is ``1.7159 tanh(0.666 v)``, ``tanh``, ``relu``, ``silu`` or ``gelu``.
        init: Initial weights: ``xavier`` is Glorot uniform; with ``memory`` (ours) backbone and f1, f2 together pass
            the state on as nearly unchanged as their nonlinearities allow.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next state, same shape and dtype as ``state``

    Raises:
        ValueError: If ``backbone_layers`` is negative, ``backbone_units`` is below 1, or ``activation`` or ``init`` is
            none of those listed.

    Example:
        >>> cell = CfCCell(input_size=3, hidden_size=8)
        >>> cell(torch.zeros(2, 3), dt=2.5).shape
        torch.Size([2, 8])

    References:
        The paper's closed form as its released code has it: f1 and f2 are heads of one backbone, and time enters the
        gate as t_a dt + t_b. The code's modes without a gate and without time are not offered.
    """

    takes_dt = True

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        backbone_layers: int = 1,
        backbone_units: int | None = None,
        activation: Activation = "lecun_tanh",
        init: Literal["memory", "xavier"] = "memory",
    ) -> None:
        super().__init__(input_size, hidden_size)
        check_at_least(self, 0, backbone_layers=backbone_layers)
        check_whole_number(self, "backbone_units", backbone_units)
        check_choice(self, "activation", activation, tuple(_MEAN_SLOPES))
        check_choice(self, "init", init, ("memory", "xavier"))
        self.backbone_layers = backbone_layers
        self.backbone_units = backbone_units
        self.activation: Activation = activation
        self.init = init
        head, units = 4 * hidden_size, hidden_size if backbone_units is None else backbone_units
        first = units if backbone_layers else head
        self.weight_hh = empty_parameter(first, hidden_size)
        self.weight_ih = empty_parameter(first, input_size)
        self.bias_ih = empty_parameter(first)
        if backbone_layers > 1:
            self.weight_backbone = empty_parameter(backbone_layers - 1, units, units)
            self.bias_backbone = empty_parameter(backbone_layers - 1, units)
        if backbone_layers:
            self.weight_head = empty_parameter(head, units)
            self.bias_head = empty_parameter(head)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        n = self.hidden_size
        for name, parameter in self.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(parameter)
            elif name != "weight_backbone":
                nn.init.xavier_uniform_(parameter)
        for matrix in self._backbone()[1:]:
            nn.init.xavier_uniform_(matrix)
        if self.init == "xavier":
            return
        with torch.no_grad():
            # Near zero the backbone is about this matrix; f1 and f2 get its pseudoinverse.
            product = torch.eye(n, dtype=self.weight_hh.dtype, device=self.weight_hh.device)
            for matrix in self._backbone():
                nn.init.orthogonal_(matrix)
                product = _MEAN_SLOPES[self.activation] * matrix @ product
            head = self.weight_head if self.backbone_layers else self.weight_hh
            head[: 2 * n] = torch.linalg.pinv(product).repeat(2, 1)

    def substeps(self, longest: float) -> int:
        """Return 1: the closed form holds for a time of any length."""
        return 1

    def recurrent_matrix(self) -> Tensor:
        """Return the matrix of the first affine map that acts on the state."""
        return self.weight_hh

    def step_bound(self) -> StepBound:
        return self.step_bound_within(Box.around_zero(self.input_size, math.inf))

    def step_bound_within(self, inputs: Box) -> StepBound:
        drive = inputs.affine(float64(self.weight_ih), float64(self.bias_ih))

        def candidates(states: Box) -> tuple[Box, Box]:
            f1, f2, *_ = self._ranges(drive, states)[0].split(4)
            return f1.tanh(), f2.tanh()

        states = Box.around_zero(self.hidden_size, 1.0)
        if inputs.is_finite:
            # Each step is a convex combination of both candidates.
            states = shrink_invariant(states, lambda states: Box.hull(*candidates(states)))
        heads, slopes = self._ranges(drive, states)
        t1, t2 = candidates(states)
        *_, rate_head, offset_head = heads.split(4)
        gate, tanh_distance = rate_head.plus(offset_head).sigmoid(), t1.distance(t2)
        margin = 1 + 64 * max(self.weight_hh.shape) * EPSILON

        def largest(rows: Matrix) -> Matrix:
            # A row of the Jacobian is p F1 + q F2 + r (Ta + Tb), times that of the backbone, with
            # p = (1 - s) (1 - t1^2), q = s (1 - t2^2) and r = s (1 - s) (t2 - t1): a parabola in s. And with m the mean
            # of both squared tanh, p + q = 1 - m and |r| <= sqrt(m) / 2.
            f1, f2, gate_rows = np.split(rows, 3)
            joint = largest_bend(np.maximum(f1, f2), gate_rows / 2) * margin
            if not inputs.is_finite:
                return joint
            first, second = (1 - t1.smallest_modulus**2) * f1, (1 - t2.smallest_modulus**2) * f2
            bend = tanh_distance * gate_rows
            with np.errstate(over="ignore"):
                peak = 0.5 + (second - first) / (2 * np.maximum(bend, np.finfo(np.float64).tiny))
            s = np.clip(peak, gate.lower, gate.upper)
            separate = (1 - s) * first + s * second + s * (1 - s) * bend
            smaller: Matrix = np.minimum(joint, separate * margin)
            return smaller

        state_entries = self._bound_entries(self.weight_hh, slopes)
        input_entries = self._bound_entries(self.weight_ih, slopes)
        balls = (ball_of("hidden", states),)
        by_row = gated_bound(
            lambda weights: largest(state_entries @ weights),
            largest(row_norms(input_entries)),
            covers=("hidden",),
            output=slice(None),
            balls=balls,
        )
        rate, gain = (self._bound_norm(weight, slopes) * margin for weight in (self.weight_hh, self.weight_ih))
        by_norm = StepBound(covers=("hidden",), norm="l2", rate=rate, gain=gain, output_gain=1.0, balls=balls)
        # Two proofs about the same step: take the one with the smaller rate.
        return min(by_norm, by_row, key=lambda bound: bound.rate)

    def irregular_bound(self) -> StepBound:
        # The state is a convex combination of two tanh after any time; a rate is proved for the regular step only.
        return StepBound(balls=self.step_bound().balls)

    def _ranges(self, drive: Box, states: Box) -> tuple[Box, list[Box]]:
        """Return the ranges of the four heads and of the slopes of each layer of the backbone.

        Args:
            drive: Of the first map's input part.
            states: Of the state.
        """
        if not drive.is_finite:
            # Certificates for all inputs do not use that a bounded activation narrows the layers above it.
            slopes = [self._all_slopes(weight.shape[1]) for weight in self.materialize()[1::2]]
            return Box.around_zero(4 * self.hidden_size, math.inf), slopes
        values, slopes = drive.plus(states.affine(float64(self.weight_hh))), []
        other_maps = self.materialize()[1:]
        for weight, bias in zip(other_maps[::2], other_maps[1::2], strict=True):
            activated, slope = _activated(values, self.activation)
            slopes.append(slope)
            values = activated.affine(float64(weight), float64(bias))
        return values, slopes

    def _all_slopes(self, size: int) -> Box:
        """Return the range of the slopes of the activation, whatever its arguments, for ``size`` units."""
        smallest, largest = _SLOPE_RANGES[self.activation]
        return Box(np.full(size, smallest), np.full(size, largest))

    def _maps(self, first: Tensor) -> list[Matrix]:
        """Return the matrices of all maps, ``first`` in place of the first, the heads combined."""
        maps = [float64(first), *(float64(weight) for weight in self.materialize()[1::2])]
        maps[-1] = _heads(maps[-1])
        return maps

    def _bound_entries(self, first: Tensor, slopes: Sequence[Box]) -> Matrix:
        """Return at least the moduli of the entries of the product of all maps, whatever the slopes within ranges."""
        center, *matrices = self._maps(first)
        # Every product is the center, at the middle slopes, plus a matrix whose entries are within the radius.
        radius = np.zeros_like(center)
        for matrix, slope in zip(matrices, slopes, strict=True):
            half, largest = (slope.upper - slope.lower)[:, None] / 2, slope.modulus[:, None]
            radius = np.abs(matrix) @ (half * np.abs(center) + largest * radius)
            center = matrix @ ((slope.upper + slope.lower)[:, None] / 2 * center)
        return np.abs(center) + radius

    def _bound_norm(self, first: Tensor, slopes: Sequence[Box]) -> float:
        """Return at least the norm of the rows of a Jacobian, see :func:`_stacked_heads`, for slopes within ranges."""
        # Ranges that differ from unit to unit can have a larger norm than the range that holds them all.
        widest = [self._all_slopes(len(slope.lower)) for slope in slopes]
        return min(self._norm_for_slopes(first, ranges) for ranges in (slopes, widest))

    def _norm_for_slopes(self, first: Tensor, slopes: Sequence[Box]) -> float:
        center, *matrices = [float64(first), *(float64(weight) for weight in self.materialize()[1::2])]
        if not matrices:
            center = _stacked_heads(center)
        else:
            matrices[-1] = _stacked_heads(matrices[-1])
        radius = 0.0
        for matrix, slope in zip(matrices, slopes, strict=True):
            half, largest = float((slope.upper - slope.lower).max()) / 2, float(slope.modulus.max())
            radius = norm_upper_bound(matrix) * (half * norm_upper_bound(center) + largest * radius)
            center = matrix @ ((slope.upper + slope.lower)[:, None] / 2 * center)
        return norm_upper_bound(center) + radius

    def materialize(self) -> Weights:
        """Return the first map's matrix on the state, then matrix and bias of each other map, the head's last."""
        weights = [self.weight_hh]
        if self.backbone_layers > 1:
            for weight, bias in zip(self.weight_backbone, self.bias_backbone, strict=True):
                weights += [weight, bias]
        if self.backbone_layers:
            weights += [self.weight_head, self.bias_head]
        return tuple(weights)

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        (h,) = state
        recurrent, *other_maps = weights
        v = nn.functional.linear(h, recurrent) + drive
        for weight, bias in zip(other_maps[::2], other_maps[1::2], strict=True):
            v = nn.functional.linear(self._activate(v), weight, bias)
        # The heads f1, f2, t_a and t_b, each (batch, hidden)
        f1, f2, rate, offset = v.chunk(4, dim=-1)
        s = torch.sigmoid((rate if dt is None else rate * dt) + offset)
        return ((1 - s) * torch.tanh(f1) + s * torch.tanh(f2),)

    def _backbone(self) -> list[Tensor]:
        """Return the matrices of the backbone's layers, of the first one that on the state."""
        if self.backbone_layers < 2:
            return [self.weight_hh] * self.backbone_layers
        return [self.weight_hh, *self.weight_backbone.unbind()]

    def _activate(self, v: Tensor) -> Tensor:
        match self.activation:
            case "lecun_tanh":
                return 1.7159 * torch.tanh(0.666 * v)
            case "tanh":
                return torch.tanh(v)
            case "relu":
                return torch.relu(v)
            case "silu":
                return nn.functional.silu(v)
            case _:
                return nn.functional.gelu(v)


def _heads(head: Matrix) -> Matrix:
    """Return F1, F2 and the gate's matrix in a regular step, Ta + Tb, stacked."""
    f1, f2, rate, offset = np.split(head, 4)
    return np.concatenate([f1, f2, rate + offset])


def _stacked_heads(head: Matrix) -> Matrix:
    """Return a matrix whose norm is at least that of any rows ``p F1 + q F2 + r (Ta + Tb)`` of a Jacobian."""
    f1, f2, gate = np.split(_heads(head), 3)
    mean, difference = (f1 + f2) / 2, (f1 - f2) / 2
    # The rows are (p + q) mean + (p - q) difference + 2 r gate / 2, with
    # (p + q)^2 share + (p - q)^2 (1 - share) + (2 r)^2 <= 1 for every share within 0 to 1.
    a, b = norm_upper_bound(mean), norm_upper_bound(difference)
    share = 0.5 if a + b == 0 else min(max(a / (a + b), 1e-6), 1 - 1e-6)
    return np.concatenate([mean / share**0.5, difference / (1 - share) ** 0.5, gate / 2])


def _activated(values: Box, activation: Activation) -> tuple[Box, Box]:
    """Return the ranges of a nonlinearity and of its slopes."""
    lowest, highest = (np.full(len(values.lower), end) for end in _SLOPE_RANGES[activation])
    everywhere = Box(lowest, highest)
    match activation:
        case "relu":
            return values.relu(), Box((values.lower >= 0).astype(float), (values.upper > 0).astype(float))
        case "silu":
            return values.silu(), everywhere
        case "gelu":
            return values.gelu(), everywhere
    size, steepness = (1.7159, 0.666) if activation == "lecun_tanh" else (1.0, 1.0)
    bent = values.scaled(steepness).tanh()
    # 1 - tanh^2, widened by its rounding.
    slopes = Box(1 - bent.modulus**2 - 8 * EPSILON, 1 - bent.smallest_modulus**2 + 8 * EPSILON)
    return bent.scaled(size), slopes.scaled(size * steepness).meet(everywhere)
