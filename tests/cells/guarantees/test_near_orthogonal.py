"""Guarantees of the cells that relax orthogonality: bounded spectra, a penalty, non-normal matrices."""

from __future__ import annotations

import pytest
import torch

from cells.guarantees.long_training import every_long_run, off_orthogonal, train_long
from reference import soft_orth as soft_orth_reference
from reference.dynamics import cell_at, every_stage
from stablernn import create_cell
from stablernn.parametrizations import initial_skew, reflections


class TestSpectralRNN:
    @every_long_run
    def test_singular_values_stay_within_the_margin_over_200_optimizer_steps(
        self, dtype: torch.dtype, size: int, tolerance: float
    ) -> None:
        cell = train_long("spectral_rnn", dtype, size)
        for vectors in (cell.weight_left, cell.weight_right):
            assert off_orthogonal(reflections(vectors)) < tolerance
        singular = torch.linalg.svdvals(cell.recurrent_matrix().double())
        assert singular.min() >= 1 - cell.margin - tolerance
        assert singular.max() <= 1 + cell.margin + tolerance
        assert singular.max() - singular.min() > 1e-4

    @every_stage
    @pytest.mark.parametrize("margin", [0.0, 0.01, 0.5])
    def test_singular_values_are_as_parametrized(self, margin: float, stage: str) -> None:
        cell = cell_at(stage, "spectral_rnn", 9, margin=margin, num_reflections=4)
        singular = torch.linalg.svdvals(cell.recurrent_matrix())
        expected = cell.singular_values().sort(descending=True).values
        torch.testing.assert_close(singular, expected, rtol=0, atol=1e-12)
        assert (singular - 1).abs().max() <= margin + 1e-12

    def test_after_a_step_vectors_are_masked_and_of_length_one_and_the_matrix_is_the_same(self) -> None:
        cell = cell_at("perturbed", "spectral_rnn", 9, num_reflections=5)
        before = cell.recurrent_matrix().detach()
        with torch.no_grad():
            cell.after_step(1, 10)
        for vectors in (cell.weight_left, cell.weight_right):
            assert not torch.tril(vectors, diagonal=-1).any()
            torch.testing.assert_close(vectors.norm(dim=1), torch.ones(5).double(), rtol=0, atol=1e-12)
        torch.testing.assert_close(cell.recurrent_matrix(), before, rtol=0, atol=1e-12)


class TestSoftOrthogonal:
    @every_long_run
    def test_factors_stay_orthogonal_over_200_optimizer_steps(
        self, dtype: torch.dtype, size: int, tolerance: float
    ) -> None:
        cell = train_long("soft_orth", dtype, size, form="factored", margin=0.1)
        p, s, q = cell.factors()
        assert off_orthogonal(p) < tolerance
        assert off_orthogonal(q) < tolerance
        singular = torch.linalg.svdvals(cell.recurrent_matrix().double())
        assert (singular - 1).abs().max() <= 0.1 + tolerance
        torch.testing.assert_close(singular, s.double().sort(descending=True).values, rtol=0, atol=100 * tolerance)

    def test_penalty_is_the_squared_distance_from_orthogonality(self) -> None:
        cell = cell_at("perturbed", "soft_orth", 7, penalty_weight=0.3)
        expected = 0.3 * soft_orth_reference.penalty(cell.weight_hh.detach())
        assert cell.penalty().item() == pytest.approx(expected.item(), rel=1e-12)
        assert create_cell("soft_orth", 1, 7, form="factored").penalty() is None
        assert create_cell("soft_orth", 1, 7).penalty().item() == pytest.approx(0, abs=1e-10)

    def test_a_sequence_starts_at_the_trained_state_and_goes_on_from_its_own(self) -> None:
        cell = cell_at("perturbed", "soft_orth", 5, form="factored")
        x = torch.randn(2, 1, dtype=torch.float64)
        hidden, started = cell(x)
        expected = torch.tanh(cell.hidden_0 @ cell.recurrent_matrix().T + cell.drive(x))
        torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-14)
        assert torch.equal(started, torch.ones(2, 1).double())
        # A state that training or chance brought to zero is no start.
        again, _ = cell(x, (torch.zeros(2, 5).double(), started))
        torch.testing.assert_close(again, torch.tanh(cell.drive(x)), rtol=0, atol=1e-14)

    @pytest.mark.parametrize("form", ["penalty", "factored", "unbounded"])
    def test_starts_are_orthogonal(self, form: str) -> None:
        assert off_orthogonal(create_cell("soft_orth", 1, 31, form=form).recurrent_matrix()) < 5e-6

    @pytest.mark.parametrize("form", ["factored", "unbounded"])
    def test_the_whole_random_start_is_in_the_left_factor(self, form: str) -> None:
        torch.manual_seed(3)
        cell = create_cell("soft_orth", 1, 31, form=form)
        torch.manual_seed(3)
        assert torch.equal(cell.weight_left, initial_skew("haar", 31))
        p, _, q = cell.factors()
        assert torch.equal(q, torch.eye(31))
        torch.testing.assert_close(cell.recurrent_matrix(), p, rtol=0, atol=0)


class TestNonNormal:
    @every_stage
    @pytest.mark.parametrize("hidden_size", [1, 2, 7, 8])
    def test_eigenvalues_are_as_parametrized(self, hidden_size: int, stage: str) -> None:
        cell = cell_at(stage, "nnrnn", hidden_size)
        pairs = hidden_size // 2
        planes = torch.polar(cell.gain[:pairs].abs().detach(), cell.phase.detach())
        planes = planes * torch.sign(cell.gain[:pairs].detach())
        expected = torch.cat([planes, planes.conj(), cell.gain[pairs:].detach().to(torch.complex128)])
        found = torch.linalg.eigvals(cell.recurrent_matrix())
        # In no order: each expected eigenvalue has one of those found next to it.
        distances = (expected[:, None] - found[None, :]).abs()
        assert distances.min(dim=1).values.max() < 1e-7
        assert distances.min(dim=0).values.max() < 1e-7
        moduli = torch.cat([cell.gain[:pairs], cell.gain]).abs().detach().sort().values
        torch.testing.assert_close(found.abs().sort().values, moduli, rtol=0, atol=1e-7)

    def test_penalties_are_those_of_the_paper(self) -> None:
        cell = cell_at("perturbed", "nnrnn", 7, gain_penalty=0.2, upper_penalty=0.3)
        gains = sum((g - 1) ** 2 for g in cell.gain.tolist())
        upper = sum(t**2 for t in cell.weight_upper.tolist())
        assert cell.penalty().item() == pytest.approx(0.2 * gains + 0.15 * upper, rel=1e-12)
        (gradient,) = torch.autograd.grad(cell.penalty(), cell.weight_upper)
        # An optimizer's weight decay of 0.3 adds 0.3 T to the gradient of T.
        torch.testing.assert_close(gradient, 0.3 * cell.weight_upper.detach(), rtol=0, atol=1e-14)
