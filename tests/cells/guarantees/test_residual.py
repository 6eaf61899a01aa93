"""Guarantees of the residual cells other than the antisymmetric and the Lipschitz ones, and where they end.

NAIS-Net, neural ODEs, the ablation of the gated antisymmetric cell, the incremental RNN and the noisy RNN; FastRNN and
FastGRNN have ``test_fastrnn.py``. Checked on fresh parameters, after a random perturbation, after optimizer steps.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from reference import nais_net as nais_reference
from reference import noisy_rnn as noisy_reference
from reference.dynamics import cell_at
from reference.mapping import MAPPING
from stablernn import StableRNN, create_cell


class TestNAISNet:
    @pytest.mark.parametrize("margin", [0.01, 0.2])
    @pytest.mark.parametrize(("dtype", "slack"), [(torch.float32, 1e-6), (torch.float64, 1e-13)])
    def test_the_spectrum_stays_in_its_interval_through_training(
        self, dtype: torch.dtype, slack: float, margin: float
    ) -> None:
        layer = StableRNN("nais_net", 1, 16, margin=margin).to(dtype)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        x, target = torch.randn(8, 12, 1, dtype=dtype), 3 * torch.randn(8, 16, dtype=dtype)
        largest = 0.0
        for step in range(1, 201):
            optimizer.zero_grad()
            (layer(x)[0][:, -1] - target).square().mean().backward()
            optimizer.step()
            largest = max(largest, _gram_size(layer.cells[0]))
            layer.after_step(step, 200)
            matrix = layer.cells[0].recurrent_matrix().detach()
            assert torch.equal(matrix, matrix.T) or (matrix - matrix.T).abs().max() < slack
            eigenvalues = torch.linalg.eigvalsh(matrix)
            assert eigenvalues.min() >= -(1 - margin) - slack
            assert eigenvalues.max() <= -margin + slack
        assert largest > 1 - 2 * margin, "the projection had something to do"

    @pytest.mark.parametrize("size", [0.3, 1.0, 5.0])
    def test_the_projection_is_the_papers(self, size: float) -> None:
        cell = cell_at("fresh", "nais_net", 7)
        with torch.no_grad():
            cell.weight_hh.copy_(size * torch.randn(7, 7, dtype=torch.float64) / 7)
            expected = nais_reference.projected(cell.weight_hh.clone(), cell.margin)
            cell.after_step(1, 1)
        torch.testing.assert_close(cell.weight_hh.detach(), expected, rtol=1e-13, atol=0)
        assert _gram_size(cell) <= (1 - 2 * cell.margin) * (1 + 1e-12)

    def test_a_fresh_cell_is_projected(self) -> None:
        assert _gram_size(create_cell("nais_net", 1, 40)) == pytest.approx(0.98, rel=1e-5)


def _gram_size(cell: Any) -> float:
    return float((cell.weight_hh.T @ cell.weight_hh).detach().norm())


class TestNoisy:
    def _layer(self, **options: Any) -> StableRNN:
        layer = StableRNN("noisy_rnn", 2, 5, **options).double()
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.3)
        return layer

    def test_training_draws_afresh_each_time_and_evaluation_draws_nothing(self) -> None:
        layer = self._layer()
        x = torch.randn(2, 12, 2, dtype=torch.float64)
        assert not torch.equal(layer(x)[0], layer(x)[0])
        state = torch.get_rng_state()
        layer.eval()(x)
        assert torch.equal(torch.get_rng_state(), state)

    def test_in_training_it_is_the_reference_with_the_draws_of_the_drive(self) -> None:
        layer = self._layer(additive_noise=0.3, multiplicative_noise=0.4)
        cell = layer.cells[0]
        x = torch.randn(2, 12, 2, dtype=torch.float64)
        torch.manual_seed(7)
        output = layer(x)[0]
        torch.manual_seed(7)
        # Layers put time first, and so draw in that order.
        _, factors, noise = cell.drive(x.transpose(0, 1)).transpose(0, 1).chunk(3, dim=-1)
        expected = noisy_reference.sequence(
            MAPPING["noisy_rnn"].params(cell),
            x,
            torch.zeros(2, 5, dtype=torch.float64),
            **MAPPING["noisy_rnn"].scalars(cell),
            additive=0.3,
            multiplicative=0.4,
            normal=noise / 0.3,
            uniform=(factors - 0.6) / 0.4,
        )
        torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)

    def test_the_draws_have_their_laws(self) -> None:
        cell = create_cell("noisy_rnn", 2, 50, additive_noise=0.05, multiplicative_noise=0.3)
        driven, factors, noise = cell.drive(torch.randn(20, 40, 2)).detach().chunk(3, dim=-1)
        assert driven.shape == (20, 40, 50)
        assert 0.7 <= factors.min() < 0.71
        assert 0.99 < factors.max() <= 1
        assert factors.mean().item() == pytest.approx(0.85, abs=0.005)
        assert noise.std().item() == pytest.approx(0.05, rel=0.02)
        assert abs(noise.mean().item()) < 1e-3
        # One draw for each unit, step and sample.
        assert len(noise.unique()) > 0.99 * noise.numel()

    @pytest.mark.parametrize(
        ("additive", "multiplicative"), [(0.0, 0.0), (0.1, 0.0), (0.0, 0.1)], ids=["none", "additive", "multiplicative"]
    )
    def test_each_noise_can_be_switched_off(self, additive: float, multiplicative: float) -> None:
        cell = create_cell("noisy_rnn", 2, 5, additive_noise=additive, multiplicative_noise=multiplicative)
        drive = cell.drive(torch.randn(3, 2))
        if not additive and not multiplicative:
            assert drive.shape == (3, 5)
            return
        _, factors, noise = drive.chunk(3, dim=-1)
        assert bool((factors == 1).all()) == (multiplicative == 0)
        assert bool((noise == 0).all()) == (additive == 0)

    def test_parameters_are_drawn_afresh_steps_included(self) -> None:
        cell = create_cell("noisy_rnn", 2, 5, step_size=0.3)
        with torch.no_grad():
            cell.unit_steps.zero_()
        torch.manual_seed(3)
        cell.reset_parameters()
        torch.manual_seed(3)
        again = create_cell("noisy_rnn", 2, 5, step_size=0.3)
        assert all(torch.equal(value, again.state_dict()[name]) for name, value in cell.state_dict().items())
