"""Guarantees of FastRNN and FastGRNN, with low ranks, sparse matrices and bytes, and where they end.

Checked on fresh parameters, after a random perturbation, after optimizer steps.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import stablernn as srn
from model_helpers import mark_fitted
from stablernn import StableRNN, create_cell
from stablernn.cells import cell_info

EVERY_FASTGRNN = pytest.mark.parametrize("key", ["fastgrnn", "fastgrnn_lsq"])


class TestFastGRNN:
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
