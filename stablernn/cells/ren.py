"""Recurrent equilibrium network: Revay, Wang, Manchester, "Recurrent equilibrium networks", IEEE TAC 2023."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from stablernn.bounds.linalg import Matrix
from stablernn.bounds.lure import LureSystem, cholesky_factors, lure_bound, lure_gain
from stablernn.bounds.step_bound import StepBound
from stablernn.cells._base import (
    StableCell,
    State,
    Weights,
    check_choice,
    check_positive,
    empty_parameter,
    float64,
    uniform_,
)
from stablernn.cells._catalog import practical, register_cell
from stablernn.parametrizations import skew, skew_size

Init = Literal["memory", "random"]

_INITIAL_RETENTION = 0.98
"""Norm of the initial A under ``init="memory"``, as a share of the contraction rate."""
_LARGEST_METRIC = 10.0
"""Norm of P where the recurrence starts at a linear system: its scale, which the rate does not depend on."""
_SMALLEST_NORM = 1e-9


class RENWeights(NamedTuple):
    state: Tensor
    """[C1; A; C2], (neurons + 2 hidden, hidden): from the state to neurons, next state and output."""
    input: Tensor
    """[D12; B2; D22], (neurons + 2 hidden, input)."""
    neurons: Tensor
    """[B1; D21], (2 hidden, neurons)."""
    within: Tensor
    """D11, (neurons, neurons), strictly lower triangular."""
    bias: Tensor
    """[b_v; b_x; b_y], (neurons + 2 hidden,)."""


class RENMatrices(NamedTuple):
    """The matrices that the free parameters of the contracting part represent; letters as in the paper."""

    E: Tensor
    P: Tensor
    L: Tensor
    """The diagonal of the paper's Lambda, (neurons,)."""
    F: Tensor
    B1: Tensor
    """E times the B1 of the recurrence."""
    C1: Tensor
    """L times the C1 of the recurrence."""
    D11: Tensor
    """L times the D11 of the recurrence."""


@register_cell(
    "ren",
    title="contracting recurrent equilibrium network, acyclic",
    paper="Revay, Wang, Manchester: Recurrent Equilibrium Networks (IEEE Transactions on Automatic Control 2023)",
    year=2023,
    guarantee="contracting by construction: two states under one input approach at contraction_rate in a known metric",
    equation=(
        "w = tanh(C1 x + D11 w + D12 u + b_v), D11 strictly lower triangular; y = C2 x + D21 w + D22 u + b_y; "
        "x <- A x + B1 w + B2 u + b_x"
    ),
    paper_options={"init": "random"},
    paper_source=(
        "the paper's direct parametrization, drawn at random, with a contraction rate of 1; num_neurons, the margin "
        "and the training settings are ours, and so is the start in the preset practical."
    ),
    training={
        "practical": practical(0.005, 40),
        "paper": {"lr": 0.001, "optimizer": "adam"},
    },
)
class RENCell(StableCell):
    r"""A linear system in feedback with a layer of neurons, contracting for any value of its parameters.

    .. math::
        v_t = C_1 x_t + D_{11} w_t + D_{12} u_t + b_v, \quad w_t = \tanh(v_t), \quad
        y_t = C_2 x_t + D_{21} w_t + D_{22} u_t + b_y, \quad x_{t+1} = A x_t + B_1 w_t + B_2 u_t + b_x
    .. math::
        H = X^\top X + \epsilon I = \begin{pmatrix} H_{11} & H_{21}^\top & H_{31}^\top \\ H_{21} & H_{22} & H_{32}^\top
        \\ H_{31} & H_{32} & P \end{pmatrix}, \quad
        E = \tfrac12 (H_{11} + P / \bar\alpha^2 + S), \quad \Lambda = \tfrac12 \mathrm{diag}(H_{22})
    .. math::
        A = E^{-1} H_{31}, \quad B_1 = E^{-1} H_{32}, \quad B_2 = E^{-1} \tilde B_2, \quad C_1 = -\Lambda^{-1} H_{21},
        \quad D_{11} = -\Lambda^{-1} \mathrm{tril}(H_{22}, -1), \quad D_{12} = \Lambda^{-1} \tilde D_{12}

    In code: u is the input; x, the state, is ``hidden`` and y the ``output``. X is ``weight_hh``, S a skew-symmetric
    matrix whose strict upper triangle is ``weight_skew``; :math:`\tilde D_{12}, \tilde B_2, D_{22}` are the rows of
    ``weight_ih``, C2 and D21 the columns of ``weight_output``, the biases of v, x, y one after the other ``bias_ih``;
    :math:`\bar\alpha` is ``contraction_rate``, :math:`\epsilon` is ``margin``. D11 is strictly lower triangular, so the
    neurons are computed one after the other and no equation is solved.

    Guarantee:
        By construction, for any value of the parameters: two states under one input approach each other,
        ``|x - x'|_M <= contraction_rate |x - x'|_M`` from each step to the next in the norm of the metric
        ``M = E^T P^-1 E`` (:meth:`metric`); strictly so, even with a rate of 1, as H is positive definite. It follows
        from the paper's matrix inequality, of which H is the matrix, as tanh has slopes within 0 to 1: for differences
        of states and neurons it gives ``|E dx+|^2 <= dx^T (E + E^T - P / rate^2) dx`` in the norm of ``P^-1``, which is
        at most ``rate^2 |E dx|^2``. The matrices are built in float64. A float32 cell rounds them once, and its rate
        holds up to that rounding times the condition number of the metric; :meth:`step_bound` computes the rate. The
        output is read from the state before the step, so that the bound on state differences bounds its differences,
        which need not shrink from step to step.

    Args:
        input_size: Features per time step.
        hidden_size: Length of the state and of the output.
        num_neurons: Neurons, 1 or more, each of which sees those before it; they are unrolled, so the time of a step
            is proportional to their number. Our choice.
        contraction_rate: The rate, above 0 up to 1. Below 1, differences of states decay by at least that factor a
            step.
        margin: Added to the diagonal of H, greater than 0. Our choice.
        init: ``memory`` (ours), a system that initially retains most of each state, or ``random``, X and S Glorot
            normal.

    Shape:
        - input: ``(batch, input_size)`` or ``(input_size,)``
        - state: output and hidden, each ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros when omitted
        - output: the next output and hidden state

    Raises:
        ValueError: If ``num_neurons`` is below 1, ``contraction_rate`` is outside 0 to 1, ``margin`` is not positive or
            ``init`` is unknown.

    Example:
        >>> cell = RENCell(input_size=3, hidden_size=8)
        >>> cell.metric().shape
        torch.Size([8, 8])

    References:
        The contracting, acyclic case of the paper's direct parametrization. S is the paper's Y1 - Y1^T, where Y1 is the
        full free parameter. The output is as long as the state here.
    """

    state_names = ("output", "hidden")

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_neurons: int = 16,
        contraction_rate: float = 1.0,
        margin: float = 0.001,
        init: Init = "memory",
    ) -> None:
        super().__init__(input_size, hidden_size)
        if num_neurons < 1:
            raise ValueError(f"num_neurons must be 1 or more for RENCell, got {num_neurons}.")
        if not 0 < contraction_rate <= 1:
            raise ValueError(f"contraction_rate must be above 0 up to 1 for RENCell, got {contraction_rate}.")
        check_positive(self, margin=margin)
        check_choice(self, "init", init, ("memory", "random"))
        self.num_neurons = num_neurons
        self.contraction_rate = contraction_rate
        self.margin = margin
        self.init = init
        rows = num_neurons + 2 * hidden_size
        self.weight_hh = empty_parameter(rows, rows)
        self.weight_skew = empty_parameter(skew_size(hidden_size))
        self.weight_ih = empty_parameter(rows, input_size)
        self.weight_output = empty_parameter(hidden_size, hidden_size + num_neurons)
        self.bias_ih = empty_parameter(rows)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        n = self.hidden_size
        if self.init == "random":
            nn.init.xavier_normal_(self.weight_hh)
            nn.init.normal_(self.weight_skew, std=n**-0.5)
        else:
            nn.init.zeros_(self.weight_skew)
            with torch.no_grad():
                self.weight_hh.copy_(self._draw_memory())
        uniform_(self.weight_ih, self.input_size)
        uniform_(self.weight_output, n + self.num_neurons)
        nn.init.zeros_(self.bias_ih)

    def start_at(self, state: Matrix, to_state: Matrix, from_state: Matrix, from_input: Matrix, bias: Matrix) -> None:
        """Let the recurrence be that of a stable linear system, which the neurons see and do not move.

        They see it by C1, D12 and b_v; B1 and D11 are 0, C2 and D21 are left as they are. The metric is that of the
        system's Lyapunov equation, and H has ``margin`` to spare, so that all of them are free to move.

        Args:
            state: A, whose eigenvalues have moduli below the contraction rate, ``(hidden, hidden)``.
            to_state: B2, ``(hidden, input)``.
            from_state: C1, ``(neurons, hidden)``.
            from_input: D12, ``(neurons, input)``.
            bias: b_v, ``(neurons,)``; b_x is 0.
        """
        # Loaded when it is needed: SciPy takes longer to import than the cell.
        from scipy.linalg import solve_discrete_lyapunov

        n, q, rate = self.hidden_size, self.num_neurons, self.contraction_rate
        # P - (A / rate)^T P A / rate = I, and E = P / rate^2: H without neurons is definite.
        form = solve_discrete_lyapunov((state / rate).T, np.eye(n))
        form *= _LARGEST_METRIC / np.linalg.norm(form, 2)
        e = form / rate**2
        h31 = e @ state
        spare = np.linalg.eigvalsh(e - h31.T @ np.linalg.solve(form, h31)).min()
        # C1^T L C1 / 2, which the neurons take from it, is at most half of it.
        multiplier = spare / max(np.linalg.norm(from_state, 2) ** 2, _SMALLEST_NORM)
        h = np.zeros((2 * n + q, 2 * n + q))
        h[:n, :n], h[n : n + q, n : n + q], h[n + q :, n + q :] = e, 2 * multiplier * np.eye(q), form
        h[n : n + q, :n], h[n + q :, :n] = -multiplier * from_state, h31
        h = np.tril(h) + np.tril(h, -1).T
        scale = max(2 * self.margin / np.linalg.eigvalsh(h).min(), 1.0)
        factor = np.linalg.cholesky(scale * h - self.margin * np.eye(len(h))).T
        top = scale * np.vstack([multiplier * from_input, e @ to_state])
        with torch.no_grad():
            self.weight_hh.copy_(torch.from_numpy(factor))
            self.weight_skew.zero_()
            self.weight_ih[: q + n] = torch.from_numpy(top)
            self.bias_ih[: q + n] = torch.from_numpy(np.concatenate([bias, np.zeros(n)]))

    def shift_state(self, origin: Tensor) -> None:
        """Change the coordinates of the state such that ``origin``, ``(hidden,)``, becomes 0; outputs stay the same."""
        n, q = self.hidden_size, self.num_neurons
        with torch.no_grad():
            # x = z + origin: z <- A z + (A - I) origin + ..., v = C1 z + C1 origin + ..., y = C2 z + C2 origin + ...
            shift = self.materialize().state @ origin
            shift[q : q + n] -= origin
            self.bias_ih += shift

    def matrices(self) -> RENMatrices:
        """Return the blocks of H, which determine the recurrence, in double precision.

        In single precision the margin is lost as soon as X grows, and with it the definiteness behind the guarantee.
        """
        n, q = self.hidden_size, self.num_neurons
        rows = [n, q, n]
        x = self.weight_hh.double()
        h = x.T @ x + self.margin * torch.eye(2 * n + q, dtype=x.dtype, device=x.device)
        # Blocks of sizes n, q, n in both directions; H is symmetric, so that those above the diagonal are not needed.
        (h11, _, _), (h21, h22, _), (h31, h32, p) = (torch.split(row, rows, dim=1) for row in torch.split(h, rows))
        e = (h11 + p / self.contraction_rate**2 + skew(self.weight_skew.double(), n)) / 2
        return RENMatrices(
            E=e, P=p, L=torch.diagonal(h22) / 2, F=h31, B1=h32, C1=-h21, D11=-torch.tril(h22, diagonal=-1)
        )

    def metric(self) -> Tensor:
        """Return the matrix M in whose norm, ``sqrt(d^T M d)``, the difference d of two states shrinks.

        Returns:
            ``(hidden, hidden)``, in double precision.
        """
        blocks = self.matrices()
        metric: Tensor = blocks.E.T @ torch.linalg.solve(blocks.P, blocks.E)
        return metric

    def recurrent_matrix(self) -> Tensor:
        """Return A, the linear map from a state to the next, without the neurons."""
        blocks = self.matrices()
        matrix: Tensor = torch.linalg.solve(blocks.E, blocks.F)
        return matrix.to(self.weight_hh.dtype)

    def materialize(self) -> RENWeights:
        n, q = self.hidden_size, self.num_neurons
        blocks = self.matrices()
        to_neurons, to_state, to_output = torch.split(self.weight_ih.double(), [q, n, n])
        from_state, from_neurons = torch.split(self.weight_output.double(), [n, q], dim=1)
        scale = blocks.L[:, None]
        # A, B1 and B2 by one factorization of E.
        solution = torch.linalg.solve(blocks.E, torch.cat([blocks.F, blocks.B1, to_state], dim=1))
        a, b1, b2 = torch.split(solution, [n, q, self.input_size], dim=1)
        dtype = self.weight_hh.dtype
        return RENWeights(
            state=torch.cat([blocks.C1 / scale, a, from_state]).to(dtype),
            input=torch.cat([to_neurons / scale, b2, to_output]).to(dtype),
            neurons=torch.cat([b1, from_neurons]).to(dtype),
            within=(blocks.D11 / scale).to(dtype),
            bias=self.bias_ih,
        )

    def lure_system(self) -> LureSystem:
        return self._sector_and_output()[0]

    def step_bound(self) -> StepBound:
        step, c2, d21, d22 = self._sector_and_output()
        bound = lure_bound(step, metrics=cholesky_factors(float64(self.metric())))
        feedthrough_gain = lure_gain(replace(step.map, F=d22, G=d21, V=step.U))

        def with_output(bound: StepBound) -> StepBound:
            # States that differ by |e| give outputs that differ by readout_gain |e| and next states by rate |e|. The
            # output gain is relative to the next state, so it is divided by the rate, which must not be near 0.
            readout_gain = lure_gain(replace(step.map, F=c2, G=d21), metric=bound.metric)
            rate = max(bound.rate, 0.01)
            output_gain = readout_gain / rate if math.isfinite(rate) else math.inf
            return replace(bound, rate=rate, output_gain=output_gain, output_input_gain=feedthrough_gain)

        return replace(with_output(bound), other_norms=tuple(with_output(other) for other in bound.other_norms))

    def _sector_and_output(self) -> tuple[LureSystem, Matrix, Matrix, Matrix]:
        """Return the recurrence as a Lur'e system, and C2, D21 and D22 of the output in its units."""
        n, q = self.hidden_size, self.num_neurons
        weights = self.materialize()
        c1, a, c2 = np.split(float64(weights.state), [q, q + n])
        d12, b2, d22 = np.split(float64(weights.input), [q, q + n])
        b1, d21 = np.split(float64(weights.neurons), [n])
        # Neurons scaled such that the multiplier of the paper's matrix inequality, Lambda, is the identity.
        scale = np.sqrt(float64(self.matrices().L))[:, None]
        step = LureSystem(
            F=a,
            G=b1 / scale.T,
            V=scale * c1,
            U=scale * d12,
            D=scale * float64(weights.within) / scale.T,
            B=b2,
            c=float64(weights.bias)[q : q + n],
            f_max=math.inf,
            neuron_scale=scale[:, 0],
        )
        return step, c2, d21 / scale.T, d22

    def drive(self, x: Tensor) -> Tensor:
        # B2 contains E^-1, which only materialize solves for: the input matrices act in the step.
        return x

    def step(self, weights: Weights, state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        _, x = state
        from_state, from_input, from_neurons, within, bias = weights
        size = self.hidden_size
        linear = nn.functional.linear(x, from_state, bias) + nn.functional.linear(drive, from_input)
        v, linear = torch.split(linear, [self.num_neurons, 2 * size], dim=-1)
        neurons = []
        for index in range(self.num_neurons):
            w = torch.tanh(v[..., :1])
            # v shrinks to the neurons still to come; D11 passes this one on to those alone.
            v = v[..., 1:] + w * within[index + 1 :, index]
            neurons.append(w)
        next_x, y = (linear + nn.functional.linear(torch.cat(neurons, dim=-1), from_neurons)).chunk(2, dim=-1)
        return y, next_x

    def _draw_memory(self) -> Tensor:
        """Draw the X of a system that retains most of each state: a factor of an H in which A is nearly orthogonal."""
        n, q = self.hidden_size, self.num_neurons
        rotation = nn.init.orthogonal_(torch.empty(n, n, dtype=torch.float64))
        coupling = torch.randn(q, 2 * n, dtype=torch.float64)
        # H stays definite: the blocks of state and next state leave it a margin of 1 - _INITIAL_RETENTION, of which the
        # neurons may take half.
        coupling *= (1 - _INITIAL_RETENTION) ** 0.5 / torch.linalg.matrix_norm(coupling, 2)
        lower = torch.zeros(2 * n + q, 2 * n + q, dtype=torch.float64)
        lower[n : n + q, :n] = coupling[:, :n]
        lower[n + q :, n : n + q] = coupling[:, n:].T
        lower[n + q :, :n] = _INITIAL_RETENTION * rotation
        h = lower + lower.T + torch.diag(torch.tensor([1.0, 2.0, 1.0]).repeat_interleave(torch.tensor([n, q, n])))
        factor: Tensor = torch.linalg.cholesky(h).T
        # E = I / rate^2 and A = _INITIAL_RETENTION rate Q: the state decays little faster than the rate requires.
        factor[:, :n] /= self.contraction_rate
        return factor
