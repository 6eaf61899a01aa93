"""Training that stays inside the certified region: after each step parameters outside move to a near point of it.

The region of a cell is a set of parameters for which :meth:`stablernn.cells.StableCell.step_bound` proves a kind, small
enough to be projected onto in a few eigenvalues a step. With ``r = 1 - margin``:

    rnn, identity_rnn, rnn_orth, soft_orth      norm(W) <= r
    spectral_rnn, soft_orth factored            singular values <= r
    nnrnn                                       norm(L + T) <= r
    kru                                         norm of each of n factors <= r^(1/n)
    indrnn                                      |u| <= r
    fastrnn                                     sigmoid(beta) + sigmoid(alpha) norm(U) <= r
    incremental                                 |p start - 1| + norm(U) (...) <= r, with inner steps within 0 and 1/leak
    lipschitz                                   norm(I + eps (a A + W/2)) + norm(eps W/2) <= r
    noisy_rnn                                   norm(I + E (A + W/2) E) + norm(E W/2 E) <= r
    lipschitz_rk2                               norm(I + eps (A + W/2)) + 3 norm(eps W/2) <= sqrt(1 - 2 margin)
    neural_ode_rnn                              sum of |k_ij| over j != i <= r |k_ii|, -1/eps <= k_ii <= 0
    antisym_ablation                            the same, with k_ii <= -0.01
    fastgrnn, fastgrnn_lsq                      the same of U, without -1/eps
    antisymmetric, antisymmetric_g              sum of |s_ij| over j <= r damping
    lstm, momentum_lstm, sr_lstm, ode_lstm,
    slstm                                       forget gate <= r for inputs within the range of training

with a = linear_scale, and E^2 the steps of the units. Those of the Lipschitz RNN are around the middle of the slopes of
tanh, 1/2: W is in one matrix with A there, and its negative part damps too.

Each is convex, those of nnrnn at fixed phases and that of incremental at fixed inner steps, and the nearest point, in
the Frobenius norm of the matrices that it bounds, keeps their singular vectors. Why the step contracts there:
docs/stability.md. A matrix of low rank has both factors scaled alike, ``nnrnn`` is scaled where clipping does not
suffice, and ``antisymmetric`` by rows and columns, which is inside but not nearest. Cells that are certified for all
parameters have nothing to be projected but the bias of modReLU where it is positive, which makes a jump.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

from stablernn.bounds.intervals import FLOAT32_EPSILON, Box
from stablernn.cells import StableCell
from stablernn.cells.eunn import OFFSET
from stablernn.certificates.cell_projections import PROJECTIONS, RANGE_PROJECTIONS
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.layer_ranges import first_layer_boxes
from stablernn.errors import ConfigError
from stablernn.nn.layers import StableRNN
from stablernn.nn.models import SequenceModel
from stablernn.terms import terms

Kind = Literal["contracting", "non-expansive", "bounded"]

BY_CONSTRUCTION: dict[str, Kind] = {
    **dict.fromkeys(("lru", "ren"), "contracting"),
    **dict.fromkeys(("scornn", "exprnn", "dtriv", "urnn", "fc_urnn", "eunn", "lvf_mid"), "non-expansive"),
    **dict.fromkeys(("mingru", "minlstm", "nais_net"), "non-expansive"),
    **dict.fromkeys(("gru", "gru_d", "lem", "cfc", "lvf", "cornn"), "bounded"),
}
"""The kind that holds for all parameters, with softshrink or another nonlinearity without a jump."""

_PROJECTED_KINDS: dict[str, Kind] = {
    **dict.fromkeys(PROJECTIONS, "contracting"),
    **dict.fromkeys(RANGE_PROJECTIONS, "bounded"),
    **dict.fromkeys(("neural_ode_rnn", "antisymmetric"), "non-expansive"),
    **dict.fromkeys(("antisymmetric_g", "antisym_ablation", "fastgrnn", "fastgrnn_lsq"), "bounded"),
}
"""The kind that projection keeps a cell in."""

WITHIN_RANGE = frozenset({*RANGE_PROJECTIONS, "antisymmetric_g", "antisym_ablation", "fastgrnn", "fastgrnn_lsq"})
"""Cells whose kind is that for inputs within the range of training, and regular steps; nothing holds for all inputs."""

ONLY_ON_REQUEST = WITHIN_RANGE | {"incremental", "neural_ode_rnn", "antisymmetric"}
"""Cells whose region costs accuracy, or proves nothing for all inputs: training is free unless it is asked for."""

_RESTORED = frozenset({"antisymmetric_g", "antisym_ablation", "fastgrnn", "fastgrnn_lsq"})
"""Cells that stay bounded by a dominant diagonal, see :mod:`stablernn.bounds.restoring`."""

_REASONS = {
    "unicornn": "its step loses no energy, so that an input in resonance makes the state grow without end",
    "ode_rnn": "a gate at one keeps what the flow adds at every step, and the state itself can open it",
}
"""Why a cell has no region, as the rest of a sentence."""


def certified_kind(cell: StableCell) -> Kind:
    """Return the kind that :func:`project` keeps a cell in, or that holds for all of its parameters.

    Of the cells in ``WITHIN_RANGE`` it is the kind for inputs within a range.

    Raises:
        ConfigError: If the cell, or an option of it, has no certified region.
    """
    if cell.key not in _PROJECTED_KINDS and cell.key not in BY_CONSTRUCTION:
        reason = f": {_REASONS[cell.key]}" if cell.key in _REASONS else ""
        raise ConfigError(
            f"The cell '{cell.key}' has no certified region that training could stay in{reason}. Take one that has, "
            "such as lipschitz, rnn, lru or exprnn (all are in docs/stability.md), or leave "
            f"{terms().key('training.certified')} out."
        )
    # All at once: whoever sets one of them would otherwise be refused again because of the next.
    excluded = [(name, replacement) for name, is_excluded, replacement in _excluded_options(cell) if is_excluded]
    if excluded:
        values = " and ".join(f"{name}={getattr(cell, name)!r}" for name, _ in excluded)
        replacements = " and ".join(f"model.cell_options.{name} to {replacement}" for name, replacement in excluded)
        raise ConfigError(f"The cell '{cell.key}' has no certified region with {values}; set {replacements}.")
    return BY_CONSTRUCTION.get(cell.key) or _PROJECTED_KINDS[cell.key]


def suggest_proof(cell: StableCell) -> str:
    """Return the option that would give a proof of a cell for which there is none, as a sentence."""
    try:
        kind = certified_kind(cell)
    except ConfigError as error:
        return str(error)
    scope = " for inputs within the range of training" if is_within_range(cell) else ""
    setting = f"{terms().setting('training.certified', True)}{terms().flag('--certified')}"
    return f"Train with {setting}, which keeps '{cell.key}' {kind}{scope}."


def is_within_range(cell: StableCell) -> bool:
    """Return whether the cell's certified kind is for inputs within a range only."""
    return cell.key in WITHIN_RANGE


def is_projected(cell: StableCell) -> bool:
    """Return whether projection keeps the cell inside its region, by a margin."""
    return cell.key in _PROJECTED_KINDS


def largest_margin(cell: StableCell) -> float:
    """Return the margin that a projected cell's margin must be below, for its options to leave any parameters."""
    # Singular values lie within 1 - margin and 1 + margin by construction.
    is_spectral = cell.key == "spectral_rnn" or getattr(cell, "form", None) == "factored"
    margin: float = cell.margin if is_spectral else 1.0  # type: ignore[assignment]
    return margin


def least_margin(cell: StableCell) -> float:
    """Return the margin that a projected cell's margin must be above, for rounding in float32 to leave the proof."""
    if cell.key not in _RESTORED:
        return 0.0
    # A dominant diagonal must outweigh its row by what float32 can round the sum of both to.
    return 4 * (cell.hidden_size + 8) * FLOAT32_EPSILON


@torch.no_grad()
def project(cell: StableCell, margin: float, inputs: Box | None = None) -> None:
    """Move a cell's parameters into its certified region, in place; those inside stay as they are.

    Args:
        cell: One for which :func:`certified_kind` gives a kind. Parameters that are not finite are left alone.
        margin: By how much the rate of its step stays below 1, or of a region of dominant diagonals the share by which
            they exceed the rest of their rows, or of an LSTM its forget gate below 1, 0 to 0.5; of no use to cells that
            are certified by construction.
        inputs: Range of the cell's inputs, which cells of the LSTM family need.

    Raises:
        ValueError: If an LSTM has no range.
    """
    has_modrelu = getattr(cell, "nonlinearity", None) == "modrelu"
    if not (has_modrelu or cell.key in PROJECTIONS or cell.key in RANGE_PROJECTIONS):
        return
    # No decomposition takes NaN; the training loop stops at a loss that is not finite.
    if not all(bool(torch.isfinite(parameter).all()) for parameter in cell.parameters()):
        return
    if has_modrelu:
        bias: Any = cell.bias
        bias.clamp_(max=-OFFSET if cell.key == "eunn" else 0.0)
    if cell.key in PROJECTIONS:
        PROJECTIONS[cell.key](cell, 1 - margin)
    elif cell.key in RANGE_PROJECTIONS:
        if inputs is None:
            raise ValueError(f"The region of the cell '{cell.key}' depends on the range of its inputs, got none.")
        RANGE_PROJECTIONS[cell.key](cell, 1 - margin, inputs)


def project_model(model: SequenceModel, margin: float, inputs: InputRange | None = None) -> None:
    """Run :func:`project` on all layers of all members.

    Args:
        model: A model with such cells, with its scaling fitted.
        margin: As of :func:`project`.
        inputs: Range of the raw inputs, which cells of the LSTM family need.
    """
    if model.rnn.first.cells[0].key not in RANGE_PROJECTIONS or inputs is None:
        for cell in model.rnn.cells:
            project(cell, margin)
        return
    stacks = [stack for stack in model.rnn.stacks if isinstance(stack, StableRNN)]
    # An embedding trains, so that the range behind it changes with every step.
    for stack, box in zip(stacks, first_layer_boxes(model, inputs.for_features(model.input_size)), strict=True):
        for cell in stack.cells:
            project(cell, margin, box)
            # The hidden state, which the layer above reads, has a ball for all inputs.
            box = Box.around_zero(cell.output_size, cell.step_bound().balls[0].radius)


def _excluded_options(cell: Any) -> list[tuple[str, bool, str]]:
    """Return options without a certified region: name, whether the cell has it set so, and the value to set instead."""
    match cell.key:
        case "soft_orth":
            return [("margin", cell.form == "factored" and not cell.margin, "more than 0")]
        case "spectral_rnn":
            return [("margin", not cell.margin, "more than 0")]
        case "lvf_mid":
            return [("constraint", cell.constraint != "hard", "hard")]
        case "lvf":
            return [("nonlinearity", cell.nonlinearity != "tanh", "tanh")]
        case "lipschitz":
            return [("skew_weight", cell.skew_weight == 1, "less than 1"), ("linear_scale", not cell.linear_scale, "1")]
        case "lipschitz_rk2" | "noisy_rnn":
            return [("skew_weight", cell.skew_weight == 1, "less than 1")]
        case "nais_net":
            return [("step_size", cell.step_size > 2, "2 or less")]
        case "lem":
            return [("step_size", cell.step_size >= 2, "1 or less")]
        case "gru_d":
            return [("imputation", cell.imputation != "none", "none")]
        case "cornn":
            # An oscillator that fades too slowly has no ball, whatever its weights are.
            return [("damping", not cell.state_balls(), "a larger number")]
        case "antisymmetric":
            is_too_strong = cell.step_size * cell.damping >= 2
            return [("damping", not cell.damping or is_too_strong, f"more than 0, less than {2 / cell.step_size:g}")]
        case "fastgrnn" | "fastgrnn_lsq":
            return [
                ("nonlinearity", cell.nonlinearity != "tanh", "tanh"),
                ("gate_nonlinearity", cell.gate_nonlinearity != "sigmoid", "sigmoid"),
                # A dominant diagonal does not survive low rank, thresholding and rounding to int8.
                ("recurrent_rank", cell.recurrent_rank < cell.hidden_size, "null"),
                ("recurrent_kept", cell.recurrent_kept < 1, "1"),
                ("byte_weights", cell.byte_weights, "false"),
            ]
        case "antisymmetric_g":
            return [("damping", not cell.damping, "more than 0")]
        case _:
            return []
