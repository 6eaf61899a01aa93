"""Certificates at the edge of what numbers hold: nothing is claimed there that is not so, and nothing breaks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from bounds.specimens import sampled
from stablernn import StableRNN, create_cell, list_cells
from stablernn.certificates.certificate import certify

TIMED = [key for key in list_cells() if create_cell(key, 2, 3).takes_dt]


def test_what_an_input_skips_to_the_output_is_counted_where_the_state_is_not_read() -> None:
    cell = create_cell("lru", 2, 2, activation="none")
    with torch.no_grad():
        cell.get_parameter("weight_output").zero_()
        cell.get_parameter("weight_skip").fill_(3.0)
    document = certify(cell).document()
    # Inputs that differ by (a, a) move both outputs by 3 a.
    assert document["gains"]["input_to_output"] >= 6
    assert all(gap["output_error"] >= 6 for gap in document["gaps"])


@pytest.mark.parametrize(
    ("key", "std"),
    sampled(itertools.product(TIMED, [30.0, 1e4, 3e37]), ("lipschitz", 3e37), ("cfc", 1e4), ("lvf", 30.0)),
)
def test_huge_weights_of_irregular_time_end_in_a_document(key: str, std: float) -> None:
    torch.manual_seed(0)
    layers = StableRNN(key, 2, 8, max_dt=3.0)
    for parameter in layers.parameters():
        nn.init.normal_(parameter, std=std)
    assert certify(layers).document()["kind"] in ("none", "bounded", "non-expansive", "contracting")


def test_numbers_beyond_float32_prove_nothing() -> None:
    torch.manual_seed(0)
    cell = create_cell("fc_urnn", 2, 5)
    for parameter in cell.parameters():
        nn.init.normal_(parameter, std=3e37)
    assert certify(cell).kind == "none"
    cell = create_cell("lru", 2, 4)
    nn.init.constant_(cell.get_parameter("log_gain"), 95.0)
    assert certify(cell).kind == "none"


@pytest.mark.parametrize("key", ["lipschitz", "noisy_rnn", "neural_ode_rnn"])
def test_no_step_is_called_proved_whose_linear_part_expands(key: str) -> None:
    torch.manual_seed(0)
    cell = create_cell(key, 2, 16)
    with torch.no_grad():
        for parameter in cell.parameters():
            if parameter.dim() > 1:
                parameter.mul_(1e-6)
    figures = cell.step_bound().figures
    (longest,) = (value for name, value in figures.items() if name.startswith("largest"))
    step = cell.lure_system()
    assert step is not None
    unit = np.eye(16)
    length = longest if key == "noisy_rnn" else longest / cell.step_size
    for slopes in (0.0, 1.0):
        jacobian = unit + length * (step.F - unit + slopes * step.G @ step.V)
        assert np.linalg.norm(jacobian, 2) <= 1 + 16 * 2**-22


def test_a_gap_counts_what_rounding_lets_grow() -> None:
    cell = create_cell("identity_rnn", 1, 16)
    with torch.no_grad():
        cell.get_parameter("weight_hh").copy_((1 + 1.5e-6) * torch.eye(16))
        cell.get_parameter("weight_ih").fill_(1.0)
    certificate = certify(cell)
    assert certificate.kind == "non-expansive"
    cost = certificate.missing_data_error(1)
    assert cost is not None
    assert cost >= 4 * cell.get_parameter("weight_hh")[0, 0].item() ** 100_000


def test_what_is_nothing_is_forgotten_at_once() -> None:
    layers = StableRNN("incremental", 1, 3, 2, start="zero", nonlinearity="tanh")
    for cell in layers.cells:
        nn.init.zeros_(cell.get_parameter("inner_lengths"))
    assert certify(layers).document()["forgetting"]["steps"] in (None, 1)


@pytest.mark.parametrize("damping", [0.0, 0.01])
def test_matrices_that_are_next_to_nothing_do_not_cost_the_proof(damping: float) -> None:
    cell = create_cell("lipschitz", 2, 8, linear_damping=damping, recurrent_damping=0.0)
    for name in ("weight_linear", "weight_hh"):
        nn.init.zeros_(cell.get_parameter(name))
    rate = cell.step_bound().rate
    assert rate == pytest.approx(1 - 0.5 * damping, abs=1e-6)
    assert not math.isnan(rate)
