"""Initial parameters: the distributions of the papers, and of their released code."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from stablernn import create_cell

PAPER: dict[str, Any] = {"preset": "paper"}
N, M = 200, 60
"""Units and features."""
ROOT, UNITARY = N**-0.5, math.sqrt(6 / (M + 2 * N))
# Of each cell under some options, parameters by the law of their entries: all the same number, normal with a deviation,
# or uniform within a bound.
STARTS: list[tuple[str, dict[str, Any], str, float, tuple[str, ...]]] = [
    ("antisymmetric", PAPER, "normal", ROOT, ("weight_hh",)),
    ("antisymmetric", PAPER, "normal", M**-0.5, ("weight_ih",)),
    ("antisymmetric", PAPER, "constant", 0, ("bias_ih",)),
    ("antisym_ablation", {}, "normal", ROOT, ("weight_hh",)),
    ("fastrnn", PAPER, "normal", 0.1, ("weight_hh", "weight_ih")),
    ("fastrnn", PAPER, "constant", 1, ("bias_ih",)),
    ("fastrnn", PAPER, "constant", 3, ("beta",)),
    ("fastrnn", PAPER, "constant", -3, ("alpha",)),
    *(
        (key, {}, law, value, names)
        for key in ("fastgrnn", "fastgrnn_lsq")
        for law, value, names in [
            ("normal", 0.1, ("weight_hh", "weight_ih")),
            ("constant", 1, ("bias_ih", "zeta")),
            ("constant", -4, ("nu",)),
        ]
    ),
    ("lipschitz", PAPER, "normal", 0.1 / N, ("weight_linear",)),
    ("lipschitz_rk2", PAPER, "normal", 0.1 / N, ("weight_linear",)),
    ("neural_ode_rnn", {"init_scale": 2.0}, "normal", 2 / N, ("weight_hh",)),
    ("ode_rnn", {"flow_size": 100}, "uniform", ROOT, ("flow_in", "flow_in_bias")),
    ("ode_rnn", {"flow_size": 100}, "uniform", 0.01, ("flow_out", "flow_out_bias")),
    # The product has one variance whatever its rank.
    ("incremental", {"recurrent_rank": 20}, "uniform", 3**0.25 * 20**-0.5, ("weight_hh",)),
    ("incremental", {"recurrent_rank": 20}, "uniform", 3**0.25 * ROOT, ("weight_hh_right",)),
    ("incremental", PAPER, "constant", 0.01, ("inner_lengths",)),
    ("exprnn", PAPER, "normal", (2 / M) ** 0.5, ("weight_ih",)),
    *((key, PAPER, "uniform", 0.01, ("bias",)) for key in ("exprnn", "nnrnn", "rnn_orth", "urnn")),
    *((key, PAPER, "uniform", 0.01, ("weight_ih",)) for key in ("scornn", "soft_orth", "eunn")),
    ("scornn", PAPER, "constant", 0, ("bias",)),
    ("soft_orth", PAPER, "constant", 0, ("bias_ih",)),
    ("nnrnn", PAPER, "normal", (2 / (M + N)) ** 0.5, ("weight_ih",)),
    ("nnrnn", PAPER, "constant", 0, ("weight_upper",)),
    ("nnrnn", PAPER, "constant", 1, ("gain",)),
    ("identity_rnn", PAPER, "normal", 0.001, ("weight_ih",)),
    ("identity_rnn", PAPER, "constant", 0, ("bias",)),
    ("urnn", PAPER, "uniform", math.pi, ("phases",)),
    ("urnn", PAPER, "uniform", math.sqrt(6 / (2 + 2 * N)), ("reflections",)),
    ("urnn", PAPER, "uniform", UNITARY, ("weight_ih",)),
    ("urnn", PAPER, "uniform", math.sqrt(3 / (2 * N)), ("hidden_0",)),
    ("eunn", PAPER, "uniform", math.pi, ("theta", "phi", "omega")),
    ("eunn", PAPER, "constant", 0, ("bias",)),
    ("cornn", {}, "uniform", (M + 2 * N) ** -0.5, ("weight_hh", "weight_velocity", "weight_ih", "bias_ih")),
    ("lem", {}, "uniform", ROOT, ("weight_hh", "weight_memory", "weight_ih", "bias_ih")),
    ("unicornn", PAPER, "uniform", 0.1, ("speed",)),
    ("unicornn", PAPER, "uniform", math.sqrt(6 / (65 * M)), ("weight_ih",)),
    ("unicornn", PAPER, "constant", 0, ("bias_ih",)),
    *((key, PAPER, "constant", 0, ("bias_ih",)) for key in ("mingru", "minlstm")),
]


@pytest.mark.parametrize(("key", "options", "law", "value", "names"), STARTS, ids=str)
def test_parameters_start_by_their_law(
    key: str, options: dict[str, Any], law: str, value: float, names: tuple[str, ...]
) -> None:
    cell = create_cell(key, M, N, **options)
    for name in names:
        parameter = cell.get_parameter(name).detach()
        if law == "constant":
            torch.testing.assert_close(parameter, torch.full_like(parameter, value))
            continue
        spread = value if law == "normal" else value / math.sqrt(3)
        # Of n entries the deviation is known to about 1 / sqrt(n).
        assert parameter.std().item() == pytest.approx(spread, rel=max(0.05, 2.5 * parameter.numel() ** -0.5)), name
        if law == "uniform":
            assert 0.9 * value < parameter.abs().max() <= value * (1 + 1e-6), name


def test_unitary_and_identity_starts_that_no_law_describes() -> None:
    cell = create_cell("urnn", 2, 50)
    assert sorted(cell.get_buffer("permutation").tolist()) == list(range(50))
    assert torch.equal(create_cell("identity_rnn", 2, 50, preset="paper").recurrent_matrix(), torch.eye(50))
    weights = create_cell("unicornn", 2, 2000, preset="paper").get_parameter("weight_hh")
    assert 0 <= weights.min() <= 0.01
    assert 0.99 <= weights.max() <= 1
