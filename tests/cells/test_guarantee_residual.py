"""What the residual cells beside the antisymmetric and the Lipschitz ones promise, and where a promise ends.

NAIS-Net, FastRNN and FastGRNN, neural ODEs, the ablation of the gated antisymmetric cell, the incremental RNN and the
noisy RNN. As in ``test_guarantee.py``: on fresh parameters, after a random perturbation, after optimizer steps.
"""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stablernn as srn
from model_helpers import mark_fitted
from reference import lipschitz as lipschitz_reference
from reference import nais_net as nais_reference
from reference import noisy_rnn as noisy_reference
from reference.dynamics import STAGES, assert_approach, cell_at, eye, jacobian, norm, train, trajectory
from reference.mapping import MAPPING
from stablernn import StableRNN, create_cell
from stablernn.cells import cell_info

every_stage = pytest.mark.parametrize("stage", STAGES)
EVERY_FASTGRNN = pytest.mark.parametrize("key", ["fastgrnn", "fastgrnn_lsq"])


def _vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class TestFastRNN:
    @every_stage
    @pytest.mark.parametrize("nonlinearity", ["tanh", "quant_tanh"])
    def test_the_state_stays_within_the_ratio_of_its_two_numbers(self, nonlinearity: str, stage: str) -> None:
        cell = cell_at(stage, "fastrnn", 9, nonlinearity=nonlinearity)
        alpha, beta = torch.sigmoid(cell.alpha).item(), torch.sigmoid(cell.beta).item()
        bound = alpha / (1 - beta)
        h0 = torch.empty(4, 9, dtype=torch.float64).uniform_(-bound, bound)
        states = trajectory(cell, h0, 10 * torch.randn(200, 1, dtype=torch.float64))
        assert states.abs().max() <= bound * (1 + 1e-12)

    def test_the_bound_is_reached(self) -> None:
        cell = cell_at("fresh", "fastrnn", 3)
        with torch.no_grad():
            cell.bias_ih.fill_(50.0)
        last = trajectory(cell, torch.zeros(1, 3, dtype=torch.float64), torch.zeros(2000, 1, dtype=torch.float64))[-1]
        bound = torch.sigmoid(cell.alpha) / (1 - torch.sigmoid(cell.beta))
        assert last == pytest.approx(torch.full((1, 3), bound.item()), rel=1e-9)

    def test_with_relu_the_state_can_grow(self) -> None:
        cell = cell_at("fresh", "fastrnn", 3, nonlinearity="relu")
        with torch.no_grad():
            cell.weight_hh.copy_(3 * eye(3))
        states = trajectory(cell, torch.ones(1, 3, dtype=torch.float64), torch.zeros(100, 1, dtype=torch.float64))
        assert states[-1].min() > 1e3

    @every_stage
    def test_trajectories_approach_where_the_two_numbers_and_the_matrix_say_so(self, stage: str) -> None:
        cell = cell_at(stage, "fastrnn", 9)
        with torch.no_grad():
            cell.beta.fill_(math.log(0.6 / 0.4))
            cell.alpha.fill_(math.log(0.3 / 0.7))
            cell.weight_hh.div_(norm(cell.weight_hh))
        assert_approach(cell, rate=0.9)

    def test_it_starts_as_in_the_released_code(self) -> None:
        cell = create_cell("fastrnn", 60, 200, preset="paper")
        assert cell.weight_hh.std().item() == pytest.approx(0.1, rel=0.05)
        assert cell.weight_ih.std().item() == pytest.approx(0.1, rel=0.05)
        assert bool((cell.bias_ih == 1).all())
        assert (cell.alpha.item(), cell.beta.item()) == (-3.0, 3.0)


class TestFastGRNN:
    @EVERY_FASTGRNN
    @every_stage
    @pytest.mark.parametrize("gate", ["sigmoid", "quant_sigmoid", "quant_sigmoid4"])
    def test_a_step_adds_at_most_nu_beyond_zeta(self, key: str, gate: str, stage: str) -> None:
        cell = cell_at(stage, key, 9, gate_nonlinearity=gate)
        zeta, nu = torch.sigmoid(cell.zeta).item(), torch.sigmoid(cell.nu).item()
        h0 = 3 * torch.randn(4, 9, dtype=torch.float64)
        states = trajectory(cell, h0, 10 * torch.randn(200, 1, dtype=torch.float64)).abs()
        assert (states[1:] - states[:-1].clamp(min=zeta)).max() <= nu * (1 + 1e-9)

    @EVERY_FASTGRNN
    def test_from_below_zeta_a_step_adds_more_than_nu(self, key: str) -> None:
        cell = cell_at("fresh", key, 2)
        zeta, nu = torch.sigmoid(cell.zeta).item(), torch.sigmoid(cell.nu).item()
        with torch.no_grad():
            # The gate at zero, the candidate at one.
            cell.bias_ih.copy_(_vector(-60, -60, 60, 60))
        zeros = torch.zeros(1, 2, dtype=torch.float64)
        first = cell(zeros[:, :1], zeros).detach()
        assert first.flatten().tolist() == pytest.approx([zeta + nu] * 2)
        assert zeta + nu > 40 * nu
        assert cell_info(key).guarantee.startswith("beyond sigmoid(zeta) the state grows by at most sigmoid(nu) a step")

    @EVERY_FASTGRNN
    def test_two_states_can_move_apart(self, key: str) -> None:
        cell = cell_at("fresh", key, 2)
        with torch.no_grad():
            cell.weight_hh.copy_(4 * eye(2))
            cell.bias_ih.zero_()
        states = trajectory(cell, 0.01 * eye(2), torch.zeros(1, 1, dtype=torch.float64))
        before, after = (states[:, 0] - states[:, 1]).norm(dim=-1).tolist()
        assert after > 1.5 * before

    @EVERY_FASTGRNN
    def test_a_gate_at_one_lets_the_state_grow_for_ever(self, key: str) -> None:
        cell = cell_at("fresh", key, 2)
        with torch.no_grad():
            cell.bias_ih.fill_(60.0)
        states = trajectory(cell, torch.zeros(1, 2, dtype=torch.float64), torch.zeros(500, 1, dtype=torch.float64))
        assert states[-1].min().item() == pytest.approx(500 * torch.sigmoid(cell.nu).item(), rel=1e-3)

    def test_lsq_stands_for_minus_low_rank_sparsity_and_quantization(self) -> None:
        options = cell_info("fastgrnn").options()
        extra = set(options) - set(cell_info("fastgrnn_lsq").options())
        assert extra == {"input_rank", "recurrent_rank", "input_kept", "recurrent_kept", "byte_weights"}
        full, plain = (
            create_cell("fastgrnn", 2, 5, recurrent_kept=1.0, byte_weights=False),
            create_cell("fastgrnn_lsq", 2, 5),
        )
        assert not list(plain.buffers())
        plain.load_state_dict(full.state_dict())
        x, h = torch.randn(3, 2), torch.randn(3, 5)
        assert torch.equal(full.eval()(x, h), plain.eval()(x, h))

    @EVERY_FASTGRNN
    def test_it_starts_as_in_the_released_code(self, key: str) -> None:
        cell = create_cell(key, 60, 200)
        assert cell.weight_hh.std().item() == pytest.approx(0.1, rel=0.05)
        assert bool((cell.bias_ih == 1).all())
        assert (cell.zeta.item(), cell.nu.item()) == (1.0, -4.0)

    @pytest.mark.parametrize(
        ("word", "values"),
        [
            ("quant_tanh", [-1.0, -1.0, -0.5, 0.0, 0.5, 1.0, 1.0]),
            ("quant_sigmoid", [0.0, 0.0, 0.25, 0.5, 0.75, 1.0, 1.0]),
            ("quant_sigmoid4", [0.0, 0.25, 0.375, 0.5, 0.625, 0.75, 1.0]),
        ],
    )
    def test_functions_for_arithmetic_without_exponentials(self, word: str, values: list[float]) -> None:
        # One unit without matrices, which shows each of its functions: z where c = 0, c where z = 0 and zeta = 1.
        at = _vector(-2, -1, -0.5, 0, 0.5, 1, 2)
        gate = word.startswith("quant_sigmoid")
        cell = cell_at(
            "fresh",
            "fastgrnn_lsq",
            7,
            nonlinearity="quant_tanh",
            gate_nonlinearity=word if gate else "quant_sigmoid",
            zeta_init=60.0,
            nu_init=-60.0,
        )
        with torch.no_grad():
            cell.weight_hh.zero_()
            cell.weight_ih.zero_()
            cell.bias_ih.copy_(torch.cat([at, torch.zeros(7)] if gate else [torch.full((7,), -9.0), at]))
        h = torch.ones(1, 7, dtype=torch.float64)
        assert cell(torch.zeros(1, 1, dtype=torch.float64), h)[0].tolist() == pytest.approx(values, abs=1e-15)


class TestLowRank:
    @pytest.mark.parametrize("key", ["fastrnn", "fastgrnn"])
    def test_matrices_are_products_of_two_factors(self, key: str) -> None:
        cell = create_cell(key, 6, 10, input_rank=2, recurrent_rank=3)
        shapes = {name: tuple(parameter.shape) for name, parameter in cell.named_parameters() if "weight" in name}
        assert shapes == {
            "weight_ih": (10, 2),
            "weight_ih_right": (2, 6),
            "weight_hh": (10, 3),
            "weight_hh_right": (3, 10),
        }
        assert torch.linalg.matrix_rank(cell.eval().recurrent_matrix()) == 3
        count = sum(parameter.numel() for parameter in cell.parameters())
        biases = 10 if key == "fastrnn" else 20
        assert count == 2 * (10 + 6) + 2 * 3 * 10 + biases + 2

    @pytest.mark.parametrize("rank", [None, 10, 50])
    def test_a_rank_that_is_full_is_one_matrix(self, rank: int | None) -> None:
        cell = create_cell("fastgrnn", 6, 10, recurrent_rank=rank)
        assert cell.weight_hh.shape == (10, 10)
        assert not hasattr(cell, "weight_hh_right")
        assert cell.recurrent_rank == 10

    def test_the_papers_ranks_and_rate_are_those_of_pixel_mnist(self) -> None:
        cell = create_cell("fastgrnn", 1, 128, preset="paper")
        assert (cell.input_rank, cell.recurrent_rank) == (1, 30)
        assert (cell.input_kept, cell.recurrent_kept) == (1.0, 0.3)
        assert cell.weight_hh.shape == (128, 30)
        for key, factor in {"fastgrnn": 0.5, "fastgrnn_lsq": 0.1, "fastrnn": 0.1}.items():
            training = cell_info(key).training["paper"]
            assert (training["schedule"], training["step_epochs"], training["lr_decay"]) == ("step", 200, factor)


class TestSparsity:
    """Three phases of training, each a third of its steps."""

    STEPS = 90

    def _train(self, layer: StableRNN) -> list[dict[str, Tensor]]:
        """The parameters after each step; an optimizer with momentum also moves numbers without a gradient."""
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
        x, target = torch.randn(8, 9, layer.input_size), torch.randn(8, layer.hidden_size)
        seen = []
        for step in range(1, self.STEPS + 1):
            optimizer.zero_grad()
            (layer(x)[0][:, -1] - target).square().mean().backward()
            optimizer.step()
            layer.after_step(step, self.STEPS)
            seen.append(copy.deepcopy(layer.cells[0].state_dict()))
        return seen

    @pytest.mark.parametrize("ranks", [{}, {"input_rank": 2, "recurrent_rank": 4}], ids=["full", "low-rank"])
    def test_dense_then_thresholded_then_frozen(self, ranks: dict[str, int]) -> None:
        layer = StableRNN("fastgrnn", 3, 10, input_kept=0.5, recurrent_kept=0.3, **ranks)
        seen = self._train(layer)
        names = {name for name in seen[0] if name.startswith("weight") and not name.endswith("support")}
        assert len(names) == (4 if ranks else 2)
        for name in names:
            kept = 0.5 if name.startswith("weight_ih") else 0.3
            count = math.floor(kept * seen[0][name].numel() + 1e-9)
            supports = [state[name] != 0 for state in seen]
            left = [int(support.sum()) for support in supports]
            assert left[:30] == [seen[0][name].numel()] * 30
            # Steps 31 and 46 cut, step 61 cuts and freezes; in between everything moves.
            assert [step for step, size in enumerate(left[:60], start=1) if size == count] == [31, 46]
            assert left[60:] == [count] * 30
            masks = [state[f"{name}_support"] for state in seen]
            assert all(bool(mask.all()) for mask in masks[:60])
            assert all(torch.equal(mask, supports[60]) for mask in masks[60:])
            assert all(torch.equal(support, supports[60]) for support in supports[60:])
            # In the third phase the numbers that are left go on moving.
            assert not torch.equal(seen[60][name], seen[-1][name])
        came_back = [name for name in names if not torch.equal(seen[30][name] != 0, seen[60][name] != 0)]
        assert came_back, "numbers that were set to zero come back in the second phase"

    def test_thresholding_keeps_the_largest(self) -> None:
        cell = create_cell("fastgrnn", 1, 4, recurrent_kept=0.25)
        with torch.no_grad():
            cell.weight_hh.copy_(torch.arange(-8.0, 8.0).reshape(4, 4))
            cell.after_step(2, 4)
        assert sorted(cell.weight_hh[cell.weight_hh != 0].tolist()) == [-8.0, -7.0, -6.0, 7.0]

    @pytest.mark.parametrize("total", [1, 2, 3, 4, 5])
    def test_a_run_of_few_steps_ends_frozen(self, total: int) -> None:
        cell = create_cell("fastgrnn", 1, 10, recurrent_kept=0.3)
        with torch.no_grad():
            for step in range(1, total + 1):
                cell.after_step(step, total)
        assert int(cell.weight_hh_support.sum()) == 30
        assert torch.equal(cell.weight_hh != 0, cell.weight_hh_support)

    @pytest.mark.parametrize("done", [0, 5, 31, 40, 90])
    def test_in_evaluation_no_more_than_the_kept_fraction_is_left_in_any_phase(self, done: int) -> None:
        layer = StableRNN("fastgrnn", 1, 10, recurrent_kept=0.3, recurrent_rank=4)
        if done:
            state = self._train(layer)[done - 1]
            layer.cells[0].load_state_dict(state)
        cell = layer.eval().cells[0]
        *_, left, right = cell.materialize()
        assert int((left != 0).sum()) == int((right != 0).sum()) == 12
        assert torch.equal(cell.recurrent_matrix(), left @ right)

    def test_the_support_is_saved_and_goes_on_frozen(self) -> None:
        layer, other = (StableRNN("fastgrnn", 1, 10, recurrent_kept=0.3) for _ in range(2))
        self._train(layer)
        other.load_state_dict(layer.state_dict())
        support = layer.cells[0].weight_hh_support.clone()
        with torch.no_grad():
            other.cells[0].weight_hh.add_(1.0)
            other.after_step(89, 90)
        assert torch.equal(other.cells[0].weight_hh != 0, support)

    def test_without_it_nothing_is_stored_and_nothing_is_set_to_zero(self) -> None:
        layer = StableRNN("fastgrnn", 1, 10, recurrent_kept=1.0)
        seen = self._train(layer)
        assert not list(layer.buffers())
        assert bool((seen[-1]["weight_hh"] != 0).all())


class TestBytes:
    @pytest.mark.parametrize("ranks", [{}, {"input_rank": 2, "recurrent_rank": 4}], ids=["full", "low-rank"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_in_evaluation_every_number_is_a_byte_times_a_scale(
        self, dtype: torch.dtype, ranks: dict[str, int]
    ) -> None:
        cell = create_cell("fastgrnn", 5, 40, **ranks).to(dtype).eval()
        _, _, bias_z, bias_h, *matrices = cell.materialize()
        for used in (torch.cat([bias_z, bias_h]), *matrices):
            scale = used.abs().max().item() / 127
            numbers = used.double() / scale
            assert (numbers - numbers.round()).abs().max() < 1e-4
            assert int(numbers.round().abs().max()) == 127
            assert len(used.unique()) <= 255

    def test_rounding_moves_no_number_by_more_than_half_a_step(self) -> None:
        cell = create_cell("fastgrnn", 5, 40, recurrent_kept=1.0).eval()
        weight = cell.weight_hh
        scale = weight.abs().max() / 127
        error = (cell.recurrent_matrix() - weight).abs().max()
        assert 0.4 * scale < error <= 0.5001 * scale

    def test_both_precisions_round_to_the_same_bytes(self) -> None:
        cell = create_cell("fastgrnn", 5, 60).eval()
        precise = copy.deepcopy(cell).double()
        for used, exact in zip(cell.materialize(), precise.materialize(), strict=True):
            torch.testing.assert_close(used.double(), exact, rtol=1e-6, atol=0)

    def test_in_training_nothing_is_rounded(self) -> None:
        cell = create_cell("fastgrnn", 5, 40)
        assert cell.training
        assert torch.equal(cell.recurrent_matrix(), cell.weight_hh)
        assert not torch.equal(cell.eval().recurrent_matrix(), cell.weight_hh)

    def test_switched_off_nothing_is_rounded(self) -> None:
        cell = create_cell("fastgrnn", 5, 40, recurrent_kept=1.0, byte_weights=False).eval()
        assert torch.equal(cell.recurrent_matrix(), cell.weight_hh)

    def test_a_matrix_of_zeros_stays_one(self) -> None:
        cell = create_cell("fastgrnn", 2, 3).eval()
        with torch.no_grad():
            cell.weight_hh.zero_()
        assert not cell.recurrent_matrix().any()

    def test_what_is_exported_is_sparse_and_in_bytes(self, tmp_path: Any) -> None:
        import onnx
        from onnx import numpy_helper

        model = srn.Classifier("fastgrnn", 1, 2, 12, cell_options={"recurrent_rank": 5, "recurrent_kept": 0.25})
        report = srn.export(mark_fitted(model), tmp_path)
        graph = onnx.load(report.files["step.onnx"]).graph
        constants = [numpy_helper.to_array(tensor) for tensor in graph.initializer]
        factors = [constant for constant in constants if sorted(constant.shape) == [5, 12]]
        assert len(factors) == 2
        for factor in factors:
            assert int((factor != 0).sum()) == 15
            numbers = factor / (abs(factor).max() / 127)
            assert abs(numbers - numbers.round()).max() < 1e-4


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

    @every_stage
    def test_the_spectral_radius_of_a_step_is_below_one_at_every_state(self, stage: str) -> None:
        cell = cell_at(stage, "nais_net", 12)
        with torch.no_grad():
            cell.project()
        for scale in (0.1, 1.0, 5.0):
            for _ in range(10):
                state, x = scale * torch.randn(12, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
                eigenvalues = torch.linalg.eigvals(jacobian(cell, state, x))
                assert eigenvalues.imag.abs().max() < 1e-9
                assert eigenvalues.abs().max() < 1
                assert eigenvalues.real.min() > 0

    def test_its_norm_is_not_and_trajectories_can_move_apart(self) -> None:
        cell = cell_at("fresh", "nais_net", 2)
        with torch.no_grad():
            cell.weight_hh.copy_(math.sqrt(0.45) * torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
            cell.weight_ih.zero_()
            cell.bias_ih.copy_(_vector(0, 8))
            before = cell.weight_hh.clone()
            cell.project()
        assert torch.equal(cell.weight_hh, before), "this R is one that the projection leaves alone"
        # The second unit is saturated: it stays where it is, and the first is pushed away from it.
        step = jacobian(cell, _vector(0, 0), torch.zeros(1, dtype=torch.float64))
        assert norm(step) > 1.09
        pair = torch.tensor([[0.0, 0.01], [0.0, -0.01]], dtype=torch.float64)
        states = trajectory(cell, pair, torch.zeros(1, 1, dtype=torch.float64))
        before, after = (states[:, 0] - states[:, 1]).norm(dim=1).tolist()
        assert after > 1.09 * before

    def test_random_states_have_it_too(self) -> None:
        cell = cell_at("perturbed", "nais_net", 8)
        with torch.no_grad():
            cell.project()
        norms = [
            norm(jacobian(cell, 3 * torch.randn(8, dtype=torch.float64), torch.randn(1, dtype=torch.float64)))
            for _ in range(50)
        ]
        assert max(norms) > 1.01

    @pytest.mark.parametrize("size", [0.3, 1.0, 5.0])
    def test_the_projection_is_the_papers(self, size: float) -> None:
        cell = cell_at("fresh", "nais_net", 7)
        with torch.no_grad():
            cell.weight_hh.copy_(size * torch.randn(7, 7, dtype=torch.float64) / 7)
            expected = nais_reference.projected(cell.weight_hh.clone(), cell.margin)
            cell.after_step(1, 1)
        torch.testing.assert_close(cell.weight_hh.detach(), expected, rtol=1e-13, atol=0)
        assert _gram_size(cell) <= (1 - 2 * cell.margin) * (1 + 1e-12)

    def test_the_root_on_the_product_would_leave_the_interval(self) -> None:
        # Two public versions scale R^T R, not R, by the root of d / ||R^T R||_F.
        margin = 0.01
        cell = cell_at("fresh", "nais_net", 2, margin=margin)
        r, d = 2.0 * eye(2), 1 - 2 * margin
        gram = r.T @ r
        theirs = -math.sqrt(d / gram.norm()) * gram - margin * eye(2)
        assert torch.linalg.eigvalsh(theirs).min() < -1.5
        with torch.no_grad():
            cell.weight_hh.copy_(r)
            cell.project()
        assert torch.linalg.eigvalsh(cell.recurrent_matrix()).min() >= -(1 - margin)

    def test_a_fresh_cell_is_projected(self) -> None:
        assert _gram_size(create_cell("nais_net", 1, 40)) == pytest.approx(0.98, rel=1e-5)


def _gram_size(cell: Any) -> float:
    return float((cell.weight_hh.T @ cell.weight_hh).detach().norm())


class TestNeuralODE:
    @every_stage
    @pytest.mark.parametrize("key", ["neural_ode_rnn", "antisym_ablation"])
    def test_a_step_moves_the_state_by_at_most_its_length_times_the_root_of_the_units(
        self, key: str, stage: str
    ) -> None:
        cell = cell_at(stage, key, 9, step_size=0.2)
        states = trajectory(cell, torch.randn(4, 9, dtype=torch.float64), 10 * torch.randn(30, 1, dtype=torch.float64))
        assert (states[1:] - states[:-1]).norm(dim=-1).max() <= 0.2 * math.sqrt(9) * (1 + 1e-12)

    def test_a_free_matrix_can_drive_the_state_from_the_origin(self) -> None:
        cell = cell_at("fresh", "neural_ode_rnn", 3, step_size=0.1)
        with torch.no_grad():
            cell.weight_hh.copy_(eye(3))
            cell.bias_ih.zero_()
        states = trajectory(cell, torch.full((1, 3), 1e-3).double(), torch.zeros(50, 1, dtype=torch.float64))
        assert states[-1].min().item() == pytest.approx(1e-3 * 1.1**50, rel=0.01)

    def test_it_is_the_lipschitz_cell_without_linear_term_and_structure(self) -> None:
        cell = cell_at("perturbed", "neural_ode_rnn", 6, step_size=0.3)
        x = torch.randn(2, 9, 1, dtype=torch.float64)
        zero = torch.zeros(6, 6, dtype=torch.float64)
        params = {"M_A": zero, "M_W": cell.weight_hh, "U": cell.weight_ih, "b": cell.bias_ih}
        expected = lipschitz_reference.sequence(
            params, x, torch.zeros(2, 6).double(), eps=0.3, beta=0.5, gamma_A=0.0, gamma_W=0.0, alpha=0.0
        )
        layer = StableRNN("neural_ode_rnn", 1, 6, step_size=0.3).double()
        layer.cells[0].load_state_dict(cell.state_dict())
        torch.testing.assert_close(layer(x)[0], expected, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("scale", [0.1, 2.0])
    def test_its_matrix_starts_with_a_deviation_that_falls_with_the_units(self, scale: float) -> None:
        weight = create_cell("neural_ode_rnn", 1, 200, init_scale=scale).weight_hh
        assert weight.std().item() == pytest.approx(scale / 200, rel=0.05)

    @pytest.mark.parametrize(("solver", "order"), [("euler", 1), ("midpoint", 2), ("heun", 2), ("rk4", 4)])
    def test_each_solver_has_its_order(self, solver: str, order: int) -> None:
        def after(steps: int, method: str) -> Tensor:
            torch.manual_seed(4)
            cell = cell_at("perturbed", "ode_rnn", 4, solver=method, solver_steps=steps, flow_size=8)
            return cell(torch.zeros(1, 1).double(), _vector(0.3, -0.5, 0.2, 0.9)[None]).detach()

        exact = after(400, "rk4")
        errors = [(after(steps, solver) - exact).norm().item() for steps in (8, 16)]
        assert math.log2(errors[0] / errors[1]) == pytest.approx(order, abs=0.35)

    def test_the_sample_enters_after_the_flow(self) -> None:
        cell = cell_at("perturbed", "ode_rnn", 4)
        gru = create_cell("gru", 1, 4).double()
        gru.load_state_dict({name: cell.state_dict()[name] for name in gru.state_dict()})
        with torch.no_grad():
            cell.flow_out.zero_()
            cell.flow_out_bias.copy_(_vector(1, 2, 3, 4))
        x, h = torch.randn(2, 1, dtype=torch.float64), torch.randn(2, 4, dtype=torch.float64)
        torch.testing.assert_close(cell(x, h), gru(x, h + _vector(1, 2, 3, 4)), rtol=1e-12, atol=1e-12)

    def test_the_flow_starts_small(self) -> None:
        cell = create_cell("ode_rnn", 1, 60, flow_size=100)
        bounds = {"flow_in": 60**-0.5, "flow_in_bias": 60**-0.5, "flow_out": 0.01, "flow_out_bias": 0.01}
        for name, bound in bounds.items():
            values = getattr(cell, name).detach()
            assert 0.9 * bound < values.abs().max() <= bound, name
        assert cell.flow_out.std().item() == pytest.approx(0.01 / math.sqrt(3), rel=0.05)


class TestAblation:
    def test_with_the_antisymmetric_matrix_it_is_the_gated_cell(self) -> None:
        gated = cell_at("perturbed", "antisymmetric_g", 6, step_size=0.2)
        cell = cell_at("perturbed", "antisym_ablation", 6, step_size=0.2)
        with torch.no_grad():
            cell.weight_hh.copy_(gated.recurrent_matrix())
            cell.weight_ih.copy_(gated.weight_ih)
            cell.bias_ih.copy_(gated.bias_ih)
        x, h = torch.randn(3, 1, dtype=torch.float64), torch.randn(3, 6, dtype=torch.float64)
        torch.testing.assert_close(cell(x, h), gated(x, h), rtol=1e-13, atol=1e-13)

    def test_there_is_no_damping_unless_asked_for(self) -> None:
        for preset in ("practical", "paper"):
            cell = create_cell("antisym_ablation", 1, 5, preset=preset)
            assert torch.equal(cell.recurrent_matrix(), cell.weight_hh)
        damped = cell_at("fresh", "antisym_ablation", 5, damping=0.3)
        assert torch.equal(damped.recurrent_matrix(), damped.weight_hh - 0.3 * eye(5))

    def test_a_fresh_matrix_has_eigenvalues_on_both_sides(self) -> None:
        matrix = cell_at("fresh", "antisym_ablation", 40).recurrent_matrix().detach()
        real = torch.linalg.eigvals(matrix).real
        assert real.max() > 0.5
        assert real.min() < -0.5
        assert matrix.std().item() == pytest.approx(40**-0.5, rel=0.1)


class TestIncremental:
    """On the equilibrium the sum of old and new state is a function of the input alone."""

    def _converging(self, stage: str, **options: Any) -> Any:
        """A cell of that stage, trained with one inner step, whose inner steps halve distances."""
        cell = create_cell("incremental", 1, 6, **options).double()
        source = cell_at(stage, "incremental", 6, **{**options, "inner_steps": 1}).state_dict()
        del source["inner_lengths"]
        cell.load_state_dict(source, strict=False)
        with torch.no_grad():
            cell.weight_hh.mul_(0.5 / norm(cell.weight_hh))
            cell.inner_lengths.fill_(0.5)
        return cell

    @every_stage
    @pytest.mark.parametrize("start", ["previous", "zero"])
    @pytest.mark.parametrize("nonlinearity", ["relu", "tanh"])
    def test_the_jacobian_at_the_equilibrium_is_minus_the_identity(
        self, nonlinearity: str, start: str, stage: str
    ) -> None:
        cell = self._converging(stage, nonlinearity=nonlinearity, start=start, inner_steps=120)
        state, x = torch.randn(6, dtype=torch.float64), torch.randn(1, dtype=torch.float64)
        torch.testing.assert_close(jacobian(cell, state, x), -eye(6), rtol=0, atol=1e-10)

    def test_there_the_sum_solves_its_equation_and_does_not_know_the_old_state(self) -> None:
        cell = self._converging("perturbed", inner_steps=150, leak=1.3, nonlinearity="tanh")
        x = torch.randn(1, 1, dtype=torch.float64)
        h = 2 * torch.randn(4, 6, dtype=torch.float64)
        y = cell(x.expand(4, 1), h) + h
        torch.testing.assert_close(y, y[:1].expand(4, 6), rtol=0, atol=1e-12)
        torch.testing.assert_close(
            torch.tanh(y @ cell.recurrent_matrix().T + cell.drive(x)), 1.3 * y, rtol=0, atol=1e-12
        )

    @pytest.mark.parametrize(("start", "factor"), [("previous", 2.0), ("zero", 1.0)])
    @pytest.mark.parametrize("count", [1, 2, 5, 20])
    def test_after_few_steps_it_is_as_near_as_the_docstring_says(self, count: int, start: str, factor: float) -> None:
        cell = self._converging("perturbed", inner_steps=count, start=start)
        rate = (1 - 0.5) + 0.5 * 0.5
        for _ in range(5):
            step = jacobian(cell, torch.randn(6, dtype=torch.float64), torch.randn(1, dtype=torch.float64))
            assert norm(step + eye(6)) <= factor * rate**count * (1 + 1e-9)

    def test_at_the_published_size_it_is_far_from_that(self) -> None:
        cell = cell_at("fresh", "incremental", 6, preset="paper", inner_steps=5)
        step = jacobian(cell, torch.randn(6, dtype=torch.float64), torch.randn(1, dtype=torch.float64))
        assert norm(step - eye(6)) < 0.2

    def test_a_large_matrix_keeps_the_inner_steps_from_converging(self) -> None:
        cell = cell_at("fresh", "incremental", 3, inner_steps=120, step_size=0.5)
        with torch.no_grad():
            cell.weight_hh.copy_(2 * eye(3))
            cell.bias_ih.fill_(1.0)
        assert norm(jacobian(cell, torch.ones(3, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))) > 1e6

    def test_the_inner_steps_are_trained_from_where_they_start(self) -> None:
        cell = create_cell("incremental", 1, 4, preset="paper", inner_steps=3)
        assert cell.inner_lengths.tolist() == pytest.approx([0.01] * 3)
        assert cell.inner_lengths.requires_grad

    def test_of_low_rank_the_matrix_is_a_product(self) -> None:
        cell = cell_at("perturbed", "incremental", 8, recurrent_rank=2, inner_steps=2)
        assert sum(parameter.numel() for parameter in cell.parameters()) == 2 * 8 * 2 + 8 + 8 + 2
        assert torch.linalg.matrix_rank(cell.recurrent_matrix()) == 2
        assert cell.weight_hh.shape == (8, 2)
        assert cell.weight_hh_right.shape == (2, 8)

    @pytest.mark.parametrize("rank", [None, 4, 30], ids=["full", "4", "30"])
    def test_its_matrix_starts_with_one_variance_whatever_its_rank(self, rank: int | None) -> None:
        matrices = torch.stack(
            [create_cell("incremental", 1, 60, recurrent_rank=rank).recurrent_matrix().detach() for _ in range(20)]
        )
        # That of numbers uniform within 1/sqrt(60).
        assert matrices.var().item() == pytest.approx(1 / (3 * 60), rel=0.05)

    def test_its_factors_are_uniform_within_their_bounds(self) -> None:
        cell = create_cell("incremental", 1, 200, recurrent_rank=20)
        for name, fan_in in {"weight_hh": 20, "weight_hh_right": 200}.items():
            values, bound = getattr(cell, name).detach(), 3**0.25 * fan_in**-0.5
            assert 0.99 * bound < values.abs().max() <= bound, name
            assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name


class TestNoisy:
    def _layer(self, **options: Any) -> StableRNN:
        layer = StableRNN("noisy_rnn", 2, 5, **options).double()
        for parameter in layer.parameters():
            nn.init.normal_(parameter, std=0.3)
        return layer

    def test_evaluation_is_the_lipschitz_cell_with_a_step_for_each_unit(self) -> None:
        layer = self._layer().eval()
        plain = StableRNN("lipschitz", 2, 5).double()
        cell = layer.cells[0]
        with torch.no_grad():
            cell.unit_steps.fill_(0.5)
        plain.load_state_dict({name: value for name, value in layer.state_dict().items() if "unit" not in name})
        x = torch.randn(2, 12, 2, dtype=torch.float64)
        assert torch.equal(layer(x)[0], layer(x)[0])
        torch.testing.assert_close(layer(x)[0], plain(x)[0], rtol=1e-13, atol=1e-13)
        with torch.no_grad():
            cell.unit_steps[2] = 0.0
        assert not layer(x)[0][..., 2].any()

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

    def test_each_unit_starts_with_the_same_step_and_learns_its_own(self) -> None:
        layer = StableRNN("noisy_rnn", 1, 6, step_size=0.2).double()
        assert layer.cells[0].unit_steps.tolist() == pytest.approx([0.2] * 6)
        train(layer, steps=30)
        assert layer.cells[0].unit_steps.std() > 0.01

    def test_the_paper_preset_has_the_released_noise(self) -> None:
        cell = create_cell("noisy_rnn", 1, 6, preset="paper")
        assert (cell.additive_noise, cell.multiplicative_noise, cell.step_size) == (0.02, 0.02, 0.01)


@pytest.mark.parametrize(
    ("key", "options", "sentence"),
    [
        ("nais_net", {"margin": 0.5}, "margin must be between 0 and 0.5 for NAISNetCell, got 0.5."),
        ("nais_net", {"margin": 0.0}, "margin must be between 0 and 0.5 for NAISNetCell, got 0.0."),
        (
            "fastrnn",
            {"nonlinearity": "sigmoid"},
            "nonlinearity of FastRNNCell must be 'tanh', 'relu' or 'quant_tanh', got 'sigmoid'.",
        ),
        ("fastrnn", {"alpha_init": math.nan}, "alpha_init must be a finite number for FastRNNCell, got nan."),
        (
            "fastrnn",
            {"recurrent_rank": 0},
            "recurrent_rank must be a whole number, 1 or more, for FastRNNCell, got 0.",
        ),
        (
            "fastgrnn",
            {"input_rank": 2.5},
            "input_rank must be a whole number, 1 or more, for FastGRNNCell, got 2.5.",
        ),
        (
            "fastgrnn",
            {"recurrent_rank": math.nan},
            "recurrent_rank must be a whole number, 1 or more, for FastGRNNCell, got nan.",
        ),
        (
            "fastgrnn",
            {"recurrent_kept": 0.0},
            "recurrent_kept must be greater than 0 and at most 1 for FastGRNNCell, got 0.0.",
        ),
        (
            "fastgrnn",
            {"input_kept": 1.5},
            "input_kept must be greater than 0 and at most 1 for FastGRNNCell, got 1.5.",
        ),
        (
            "fastgrnn_lsq",
            {"gate_nonlinearity": "tanh"},
            "gate_nonlinearity of FastGRNNLSQCell must be 'sigmoid', 'quant_sigmoid' or 'quant_sigmoid4', got 'tanh'.",
        ),
        ("fastgrnn_lsq", {"nu_init": math.inf}, "nu_init must be a finite number for FastGRNNLSQCell, got inf."),
        (
            "neural_ode_rnn",
            {"init_scale": -1.0},
            "init_scale must be a finite number, 0 or more, for NeuralODERNNCell, got -1.0.",
        ),
        (
            "ode_rnn",
            {"solver": "dopri5"},
            "solver of ODERNNCell must be 'euler', 'midpoint', 'heun' or 'rk4', got 'dopri5'.",
        ),
        ("ode_rnn", {"solver_steps": 0}, "solver_steps must be 1 or more for ODERNNCell, got 0."),
        ("ode_rnn", {"flow_size": 0}, "flow_size must be 1 or more for ODERNNCell, got 0."),
        ("incremental", {"inner_steps": 0}, "inner_steps must be 1 or more for IncrementalRNNCell, got 0."),
        ("incremental", {"leak": 0.0}, "leak must be a finite number greater than 0 for IncrementalRNNCell, got 0.0."),
        ("incremental", {"start": "here"}, "start of IncrementalRNNCell must be 'previous' or 'zero', got 'here'."),
        (
            "incremental",
            {"recurrent_rank": 1.5},
            "recurrent_rank must be a whole number, 1 or more, for IncrementalRNNCell, got 1.5.",
        ),
        (
            "noisy_rnn",
            {"additive_noise": -0.1},
            "additive_noise must be a finite number, 0 or more, for NoisyRNNCell, got -0.1.",
        ),
        (
            "noisy_rnn",
            {"multiplicative_noise": 1.1},
            "multiplicative_noise must be from 0 to 1 for NoisyRNNCell, got 1.1.",
        ),
    ],
    ids=lambda value: ",".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else None,
)
def test_an_option_out_of_range_is_refused(key: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        create_cell(key, 5, 5, **options)
