"""The projection onto the certified region: exact on matrices with a known answer, and certified for every cell."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bounds.specimens import sampled
from stablernn import create_cell, list_cells
from stablernn.bounds.intervals import Box
from stablernn.cells import StableCell
from stablernn.certificates.certificate import KINDS, certify
from stablernn.certificates.projection import (
    BY_CONSTRUCTION,
    certified_kind,
    is_projected,
    is_within_range,
    largest_margin,
    project,
    suggest_proof,
    within_norm,
    within_sum,
)
from stablernn.errors import ConfigError

PROJECTED: list[tuple[str, dict[str, Any]]] = [
    ("rnn", {}),
    ("identity_rnn", {}),
    *(("rnn_orth", {"nonlinearity": word}) for word in ("tanh", "modrelu", "softshrink")),
    ("soft_orth", {}),
    ("indrnn", {}),
    ("indrnn", {"max_length": 3}),
    *(("fastrnn", {"nonlinearity": word}) for word in ("tanh", "relu", "quant_tanh")),
    ("fastrnn", {"recurrent_rank": 2}),
    ("fastrnn", {"alpha_init": 4.0, "beta_init": 4.0}),
    *(("lipschitz", {"skew_weight": share}) for share in (0.0, 0.3, 0.75)),
    ("lipschitz", {"step_size": 0.03}),
    ("lipschitz", {"linear_scale": -0.5, "recurrent_damping": -1.0}),
    *(("lipschitz_rk2", {"skew_weight": share}) for share in (0.0, 0.75)),
    *(("noisy_rnn", {"skew_weight": share}) for share in (0.0, 0.75)),
    *(("spectral_rnn", {"margin": 0.1, "nonlinearity": name}) for name in ("relu", "tanh", "modrelu", "softshrink")),
    *(("soft_orth", {"form": form}) for form in ("factored", "unbounded")),
    *(("kru", {"nonlinearity": name}) for name in ("softshrink", "modrelu")),
    *(("nnrnn", {"nonlinearity": name}) for name in ("softshrink", "modrelu")),
    *(("incremental", {"start": start, "nonlinearity": "tanh"}) for start in ("zero", "previous")),
    ("incremental", {"inner_steps": 4}),
    ("incremental", {"inner_steps": 1, "leak": 2.0, "step_size": 3.0}),
    ("incremental", {"recurrent_rank": 2}),
]
DOMINANT: list[tuple[str, dict[str, Any]]] = [
    *(("neural_ode_rnn", {"step_size": length}) for length in (0.03, 0.5, 3.0)),
    *(("antisymmetric", {"damping": damping}) for damping in (0.01, 1.0, 6.0)),
    *(("antisymmetric_g", {"damping": damping}) for damping in (0.01, 20.0)),
    *(("antisym_ablation", {"damping": damping}) for damping in (0.0, 0.5)),
    ("fastgrnn_lsq", {}),
    ("fastgrnn", {"recurrent_kept": 1.0, "byte_weights": False}),
]
RANGED: list[tuple[str, dict[str, Any]]] = [
    ("lstm", {}),
    ("momentum_lstm", {}),
    ("sr_lstm", {"restart": 5}),
    ("ode_lstm", {}),
    ("slstm", {}),
]
REGION_OPTIONS: dict[str, dict[str, Any]] = {
    "gru_d": {"imputation": "none"},
    "fastgrnn": {"recurrent_kept": 1.0, "byte_weights": False},
}
"""Options without which a cell has no region."""
JUMPING: list[tuple[str, dict[str, Any]]] = [
    *(
        (key, {"nonlinearity": "modrelu"})
        for key in ("scornn", "exprnn", "dtriv", "urnn", "fc_urnn", "eunn", "lvf_mid")
    ),
    ("eunn", {"nonlinearity": "modrelu", "variant": "real"}),
]
MARGIN = 0.01
INEXACT = 5e-5
"""Of parameters rounded to float32, and of the certificate's search for its multiplier."""


def named(cases: list[tuple[str, dict[str, Any]]]) -> pytest.MarkDecorator:
    """Cases, of which the first of each cell is quick."""
    first = {key: (key, options) for key, options in reversed(cases)}
    return pytest.mark.parametrize(("key", "options"), sampled(cases, *first.values()))


def orthogonal(size: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    base: Tensor = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))[0]
    return base


def matrix(*values: float, seed: int = 0) -> Tensor:
    """With these singular values."""
    return orthogonal(len(values), seed) @ torch.diag(torch.tensor(values).double()) @ orthogonal(len(values), seed + 1)


def norm(of: Tensor) -> float:
    return float(torch.linalg.matrix_norm(of, 2))


def shaken(key: str, size: int, scale: float, seed: int, options: dict[str, Any]) -> StableCell:
    torch.manual_seed(seed)
    cell = create_cell(key, 2, size, **options).eval()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
        cell.after_step(1, 3)
    return cell


def test_singular_values_above_the_bound_are_cut_off() -> None:
    assert torch.allclose(within_norm(matrix(3.0, 0.5, 2.0), 1.0), matrix(1.0, 0.5, 1.0), atol=1e-12)


def test_a_matrix_inside_is_given_back() -> None:
    given = matrix(0.9, 0.2)
    assert within_norm(given, 1.0) is given
    assert within_sum(given, given, 1.9)[0] is given


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_two_numbers_move_at_right_angles_to_the_edge(factor: float) -> None:
    a, b, bound = 1.3, -0.9, 1.0
    excess = (abs(a) + factor * abs(b) - bound) / (1 + factor**2)
    first, second = within_sum(
        torch.tensor([[a]], dtype=torch.float64), torch.tensor([[b]], dtype=torch.float64), bound, factor=factor
    )
    assert first.item() == pytest.approx(a - excess, abs=1e-12)
    assert second.item() == pytest.approx(b + factor * excess, abs=1e-12)


@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_no_other_pair_of_the_region_is_nearer(factor: float) -> None:
    generator = torch.Generator().manual_seed(3)
    given = [torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
    found = within_sum(given[0], given[1], 1.0, factor=factor)
    assert norm(found[0]) + factor * norm(found[1]) == pytest.approx(1, abs=1e-9)
    for _ in range(200):
        other = [torch.randn(4, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
        scale = norm(other[0]) + factor * norm(other[1])
        # Of a convex set, no direction to another point leads nearer.
        angle = sum(float(((g - f) * (o / scale - f)).sum()) for g, f, o in zip(given, found, other, strict=True))
        assert angle <= 1e-9


@named(PROJECTED)
def test_projected_cells_contract_by_the_margin(key: str, options: dict[str, Any]) -> None:
    for seed, (size, scale) in enumerate(((1, 3.0), (3, 0.1), (5, 0.5), (5, 5.0))):
        cell = shaken(key, size, scale, seed, options)
        assert is_projected(cell)
        assert certified_kind(cell) == "contracting"
        project(cell, MARGIN)
        assert cell.step_bound().rate <= 1 - MARGIN + INEXACT, (size, scale)
    # The proof is the same at every size; it is looked at where the projection changes the most.
    assert certify(cell).kind == "contracting"


@named([("lipschitz", {}), ("noisy_rnn", {}), ("fastrnn", {"recurrent_rank": 2})])
def test_weights_far_outside_are_moved_inside_at_once(key: str, options: dict[str, Any]) -> None:
    # A change that is rounded by its own size, not by that of the result, would miss the region.
    cell = shaken(key, 32, 1e4, 0, options)
    project(cell, MARGIN)
    assert cell.step_bound().rate <= 1 - MARGIN + INEXACT


@named([("spectral_rnn", {"margin": 3.0}), ("soft_orth", {"form": "factored", "margin": 3.0})])
def test_singular_values_of_either_sign_are_bounded(key: str, options: dict[str, Any]) -> None:
    cell: Any = create_cell(key, 2, 4, **options)
    with torch.no_grad():
        # With so wide a margin they reach from -2 to 4.
        cell.spectrum.copy_(torch.tensor([-9.0, -1.0, 0.0, 9.0]))
    project(cell, MARGIN)
    assert cell.step_bound().rate <= 1 - MARGIN + INEXACT


@named(DOMINANT)
def test_a_dominant_diagonal_keeps_the_kind(key: str, options: dict[str, Any]) -> None:
    for seed, (size, scale) in enumerate(((1, 3.0), (3, 0.1), (5, 0.5), (5, 5.0))):
        cell = shaken(key, size, scale, seed, options)
        assert is_projected(cell)
        project(cell, MARGIN)
        certificate = certify(cell, inputs_within=2.0 if is_within_range(cell) else None)
        assert KINDS.index(certificate.kind) <= KINDS.index(certified_kind(cell)), (size, scale)


@named(RANGED)
def test_the_forget_gate_of_an_lstm_stays_below_one_within_the_range(key: str, options: dict[str, Any]) -> None:
    box = Box(np.array([-2.0, 0.5]), np.array([2.0, 3.0]))
    for seed, (size, scale) in enumerate(((1, 3.0), (3, 0.1), (5, 0.5), (5, 5.0))):
        cell = shaken(key, size, scale, seed, options)
        project(cell, MARGIN, box)
        before = {name: value.clone() for name, value in cell.named_parameters()}
        balls = {ball.state: ball.radius for ball in cell.step_bound_within(box).balls}
        assert set(balls) == set(cell.state_names)
        # Of a forget gate of at most 1 - MARGIN, and a candidate and an input gate of at most 1.
        if key != "slstm":
            assert balls["cell"] <= 1.01 / MARGIN
        project(cell, MARGIN, box)
        # What is inside stays as it is, to the last bit.
        assert all(torch.equal(value, before[name]) for name, value in cell.named_parameters())
        project(cell, 2 * MARGIN, box)
        if scale == 5.0:
            assert not all(torch.equal(value, before[name]) for name, value in cell.named_parameters())


def test_a_forget_gate_reaches_its_limit_at_a_corner_of_the_range() -> None:
    cell: Any = shaken("lstm", 4, 5.0, 0, {})
    project(cell, MARGIN, Box.around_zero(2, 2.0))
    rows = slice(4, 8)
    # Inputs and hidden states that open the gate of each unit as far as they can.
    arguments = 2.0 * cell.weight_ih[rows].abs().sum(1) + cell.weight_hh[rows].abs().sum(1) + cell.bias_ih[rows]
    largest = torch.sigmoid(arguments.double())
    assert bool((largest <= 1 - MARGIN).all())
    assert float(largest.detach().max()) == pytest.approx(1 - MARGIN, abs=1e-5)


@pytest.mark.parametrize("key", ["rnn", "identity_rnn", "rnn_orth", "soft_orth", "lipschitz"])
def test_one_unit_reaches_the_edge_itself(key: str) -> None:
    torch.manual_seed(0)
    cell: Any = create_cell(key, 1, 1)
    with torch.no_grad():
        cell.weight_hh.fill_(5.0)
    project(cell, MARGIN)
    assert cell.step_bound().rate == pytest.approx(1 - MARGIN, abs=1e-6)


@pytest.mark.parametrize("key", ["lipschitz", "noisy_rnn"])
def test_a_recurrent_matrix_that_damps_is_left_as_it_is(key: str) -> None:
    cell: Any = create_cell(key, 1, 3, step_size=0.5, linear_damping=0.2, recurrent_damping=1.0)
    with torch.no_grad():
        cell.weight_linear.zero_()
        cell.weight_hh.zero_()
    # step_size A is -0.1 I, step_size W is -0.5 I, and 1 - 0.1 - 0.25 + 0.25 < 1.
    assert abs(1 - 0.1) + 0.5 > 1
    project(cell, MARGIN)
    assert not cell.weight_linear.any()
    assert not cell.weight_hh.any()


def test_fastrnn_of_one_unit_gives_way_in_both_numbers() -> None:
    cell: Any = create_cell("fastrnn", 1, 1, alpha_init=0.0, beta_init=math.log(9))
    with torch.no_grad():
        cell.weight_hh.fill_(1.0)
    project(cell, MARGIN)
    # 0.9 + 0.5 exceeds 0.99 by 0.41, of which each takes half.
    assert torch.sigmoid(cell.beta).item() == pytest.approx(0.9 - 0.205, abs=1e-6)
    assert cell.weight_hh.item() == pytest.approx((0.5 - 0.205) / 0.5, abs=1e-6)


@pytest.mark.parametrize(
    "key",
    [
        *("rnn", "lipschitz", "lipschitz_rk2", "noisy_rnn", "fastrnn", "kru", "nnrnn", "incremental"),
        *("neural_ode_rnn", "antisymmetric", "antisymmetric_g", "antisym_ablation", "fastgrnn_lsq"),
    ],
)
def test_parameters_inside_stay_to_the_last_bit(key: str) -> None:
    cell = shaken(key, 4, 1.0, 0, {})
    project(cell, 0.3)
    before = {name: value.clone() for name, value in cell.named_parameters()}
    project(cell, 0.2)
    assert all(torch.equal(value, before[name]) for name, value in cell.named_parameters())


def test_the_units_own_steps_are_kept_positive() -> None:
    cell: Any = create_cell("noisy_rnn", 1, 3, step_size=0.5)
    with torch.no_grad():
        cell.unit_steps.copy_(torch.tensor([-1.0, 0.2, 0.001]))
    project(cell, MARGIN)
    assert torch.allclose(cell.unit_steps, torch.tensor([0.005, 0.2, 0.005]))


@pytest.mark.parametrize("key", sorted(BY_CONSTRUCTION))
def test_others_are_certified_for_all_parameters(key: str) -> None:
    for seed, (size, scale) in enumerate(((1, 1.0), (4, 0.3), (5, 3.0))):
        cell = shaken(key, size, scale, seed, REGION_OPTIONS.get(key, {}))
        project(cell, MARGIN)
        kind = certify(cell, inputs_within=2.0 if is_within_range(cell) else None).kind
        assert KINDS.index(kind) <= KINDS.index(certified_kind(cell))


@named(JUMPING)
def test_a_positive_bias_of_modrelu_is_moved_to_where_it_makes_no_jump(key: str, options: dict[str, Any]) -> None:
    cell = shaken(key, 4, 1.0, 0, options)
    assert certify(cell).kind == "none"
    project(cell, MARGIN)
    assert certify(cell).kind == "non-expansive"


def test_singular_values_cannot_leave_more_than_their_option_allows() -> None:
    assert largest_margin(create_cell("spectral_rnn", 2, 4, margin=0.02)) == 0.02
    assert largest_margin(create_cell("soft_orth", 2, 4, form="factored", margin=0.3)) == 0.3
    assert largest_margin(create_cell("rnn", 2, 4)) == 1.0


def test_all_cells_but_three_have_a_region() -> None:
    assert {key for key, _ in (*PROJECTED, *DOMINANT, *RANGED)} | set(BY_CONSTRUCTION) == set(list_cells()) - {
        "unicornn",
        "ode_rnn",
        "rocket",
    }
    with pytest.raises(ValueError, match="'lstm' depends on the range"):
        project(create_cell("lstm", 2, 4), MARGIN)


@pytest.mark.parametrize(
    ("key", "options", "named_in_it"),
    [
        ("unicornn", {}, "loses no energy"),
        ("ode_rnn", {}, "a gate at one"),
        ("rocket", {}, "never forgotten"),
        ("spectral_rnn", {"margin": 0.0}, "more than 0"),
        ("lvf", {"nonlinearity": "softshrink"}, "tanh"),
        ("nais_net", {"step_size": 2.5}, "2 or less"),
        ("lem", {"step_size": 2.0}, "1 or less"),
        ("gru_d", {}, "imputation to none"),
        ("cornn", {"damping": 1e-7}, "a larger number"),
        ("antisymmetric", {"damping": 0.0}, "more than 0, less than 6.66667"),
        ("antisymmetric", {"damping": 7.0}, "more than 0, less than 6.66667"),
        ("antisymmetric_g", {"damping": 0.0}, "more than 0"),
        ("fastgrnn_lsq", {"nonlinearity": "relu"}, "tanh"),
        ("lvf_mid", {"constraint": "none"}, "hard"),
        ("lipschitz", {"skew_weight": 1.0, "linear_scale": 0.0}, "skew_weight to less than 1 and .*linear_scale to 1"),
        ("noisy_rnn", {"skew_weight": 1.0}, "less than 1"),
    ],
)
def test_what_has_no_region_is_refused(key: str, options: dict[str, Any], named_in_it: str) -> None:
    cell = create_cell(key, 2, 4, **options)
    with pytest.raises(ConfigError, match=f"'{key}'.*{named_in_it}") as caught:
        certified_kind(cell)
    assert cell.is_fixed or suggest_proof(cell) == str(caught.value)
    assert "--certified" in suggest_proof(create_cell("lstm", 2, 4))
    # It has a certified kind, but training certified changes none of its weights.
    assert "--certified" not in suggest_proof(create_cell("smoothing", 2, 4))
