"""Closed-form continuous-time network: Hasani, Lechner, Amini et al., Nature Machine Intelligence 2022."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.gated import gated_bound, largest_bend
from stablernn.bounds.linalg import EPSILON, Matrix, norm_upper_bound, row_norms
from stablernn.bounds.step_bound import GELU_SLOPE, Ball, StepBound
from stablernn.cells._base import StableCell, State, check_at_least, check_choice, float64
from stablernn.cells._catalog import register_cell

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
    family="general",
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
        "practical": {"lr": 0.001, "schedule": "one-cycle", "epochs": 80, "batch_size": 32, "clip_norm": 1.0},
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
        if backbone_units is not None and backbone_units < 1:
            raise ValueError(f"backbone_units must be 1 or more, or None, for CfCCell, got {backbone_units}.")
        check_choice(self, "activation", activation, tuple(_MEAN_SLOPES))
        check_choice(self, "init", init, ("memory", "xavier"))
        self.backbone_layers = backbone_layers
        self.backbone_units = backbone_units
        self.activation = activation
        self.init = init
        head, units = 4 * hidden_size, hidden_size if backbone_units is None else backbone_units
        first = units if backbone_layers else head
        self.weight_hh = nn.Parameter(torch.empty(first, hidden_size))
        self.weight_ih = nn.Parameter(torch.empty(first, input_size))
        self.bias_ih = nn.Parameter(torch.empty(first))
        if backbone_layers > 1:
            self.weight_backbone = nn.Parameter(torch.empty(backbone_layers - 1, units, units))
            self.bias_backbone = nn.Parameter(torch.empty(backbone_layers - 1, units))
        if backbone_layers:
            self.weight_head = nn.Parameter(torch.empty(head, units))
            self.bias_head = nn.Parameter(torch.empty(head))
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
        # A row of the Jacobian is p F1 + q F2 + r (Ta + Tb), times that of the backbone, where p and q are not negative
        # and (p + q)^2 + 4 r^2 <= 1: with m the mean of both squared tanh, p + q = 1 - m and |r| <= sqrt(m) / 2.
        ball = Ball("hidden", "linf", 1.0)
        margin = 1 + 64 * max(self.weight_hh.shape) * EPSILON

        def largest(rows: Matrix) -> Matrix:
            f1, f2, gate = np.split(rows, 3)
            return largest_bend(np.maximum(f1, f2), gate / 2) * margin

        state_entries = self._bound_products(self.weight_hh, np.abs, _heads)
        input_entries = self._bound_products(self.weight_ih, np.abs, _heads)
        by_row = gated_bound(
            lambda weights: largest(state_entries @ weights),
            largest(row_norms(input_entries)),
            covers=("hidden",),
            output=slice(None),
            balls=(ball,),
        )
        rate, gain = (
            float(self._bound_products(weight, _norm, _stacked_heads)[0, 0]) * margin
            for weight in (self.weight_hh, self.weight_ih)
        )
        by_norm = StepBound(covers=("hidden",), norm="l2", rate=rate, gain=gain, output_gain=1.0, balls=(ball,))
        # Two proofs about the same step: take the one with the smaller rate.
        return min(by_norm, by_row, key=lambda bound: bound.rate)

    def irregular_bound(self) -> StepBound:
        # The state is a convex combination of two tanh after any time; a rate is proved for the regular step only.
        return StepBound(balls=self.step_bound().balls)

    def _bound_products(
        self, first: Tensor, magnitude: Callable[[Matrix], Matrix], heads: Callable[[Matrix], Matrix]
    ) -> Matrix:
        """Return an upper bound of the magnitude of the product of all maps, whatever the slopes of the activation.

        Args:
            first: Matrix of the first map, on the state or on the input.
            magnitude: Function that maps a matrix to the moduli of its entries, or to its norm, ``(1, 1)``.
            heads: Function that combines the four heads of the last map.
        """
        maps = [float64(first), *(float64(weight) for weight in self.materialize()[1::2])]
        maps[-1] = heads(maps[-1])
        min_slope, max_slope = _SLOPE_RANGES[self.activation]
        # Every product is the center, at the middle slope, plus a matrix whose magnitude is within the radius.
        center, radius = maps[0], 0 * magnitude(maps[0])
        for matrix in maps[1:]:
            radius = magnitude(matrix) @ ((max_slope - min_slope) / 2 * magnitude(center) + max_slope * radius)
            center = (max_slope + min_slope) / 2 * matrix @ center
        return magnitude(center) + radius

    def materialize(self) -> tuple[Tensor, ...]:
        """Return the first map's matrix on the state, then matrix and bias of each other map, the head's last."""
        weights = [self.weight_hh]
        if self.backbone_layers > 1:
            for weight, bias in zip(self.weight_backbone, self.bias_backbone, strict=True):
                weights += [weight, bias]
        if self.backbone_layers:
            weights += [self.weight_head, self.bias_head]
        return tuple(weights)

    def drive(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight_ih, self.bias_ih)

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor, dt: Tensor | None = None) -> State:
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


def _norm(matrix: Matrix) -> Matrix:
    return np.array([[norm_upper_bound(matrix)]])
