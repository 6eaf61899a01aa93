"""Guarantees of the unitary cells: how long W stays unitary, what it can be, and where the step stops being safe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cells.guarantees.complex_matrices import complex_randn, excess, stacked, value_id
from reference.dynamics import cell_at, every_stage
from stablernn import Classifier, StableRNN, create_cell
from stablernn.cells import StableCell
from stablernn.export.parity import open_session
from stablernn.export.scan import step_graph
from stablernn.export.step import export_parts, state_names
from stablernn.parametrizations import complex_modrelu, real_form, skew_hermitian

UNITARY: list[tuple[str, dict[str, Any]]] = [
    ("urnn", {}),
    ("fc_urnn", {}),
    ("fc_urnn", {"parametrization": "cayley", "rebase": 1}),
    ("eunn", {}),
    ("eunn", {"capacity": 9}),
    ("eunn", {"variant": "real"}),
    ("eunn", {"style": "fft"}),
]


every_unitary = pytest.mark.parametrize(("key", "options"), UNITARY, ids=value_id)


def hidden_length(cell: StableCell) -> int:
    return cell.recurrent_matrix().shape[0]


class TestUnitary:
    @every_unitary
    @pytest.mark.parametrize(
        ("dtype", "size"),
        [
            pytest.param(torch.float32, 32, id="float32-32"),
            pytest.param(torch.float32, 128, id="float32-128", marks=pytest.mark.slow),
            pytest.param(torch.float64, 128, id="float64-128", marks=pytest.mark.slow),
        ],
    )
    def test_matrix_stays_unitary_over_200_optimizer_steps(
        self, key: str, options: dict[str, Any], dtype: torch.dtype, size: int
    ) -> None:
        layer = StableRNN(key, 1, size, **options).to(dtype)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
        start = layer.cells[0].recurrent_matrix().detach()
        x, target = torch.randn(2, 3, 1, dtype=dtype), torch.randn(2, 3, layer.output_size, dtype=dtype)
        for step in range(1, 201):
            optimizer.zero_grad()
            (layer(x)[0] - target).square().mean().backward()
            optimizer.step()
            layer.after_step(step, 200)
        matrix = layer.cells[0].recurrent_matrix().detach()
        assert (matrix - start).abs().max() > 0.1
        assert excess(matrix) <= (1e-5 if dtype == torch.float32 else 1e-10)

    @every_unitary
    @every_stage
    @pytest.mark.parametrize("hidden_size", [1, 8, 16])
    def test_matrix_is_unitary_at_every_stage(
        self, key: str, options: dict[str, Any], hidden_size: int, stage: str
    ) -> None:
        assert excess(cell_at(stage, key, hidden_size, **options).recurrent_matrix().detach()) <= 1e-13

    @pytest.mark.parametrize("offset", [1e-5, 0.01])
    def test_complex_modrelu_stretches_by_as_much_as_its_docstring_says(self, offset: float) -> None:
        z = torch.cat([torch.randn(200, 2, dtype=torch.float64) * scale for scale in (1e-9, 1e-6, 1e-3, 0.01, 1.0)])
        for bias in (-0.3, 0.0, offset, offset + 0.2):
            shift = torch.full((1,), bias, dtype=torch.float64)
            slopes = torch.func.vmap(
                torch.func.jacrev(lambda point, shift=shift: complex_modrelu(point, shift, offset))
            )(z)
            largest = torch.linalg.matrix_norm(slopes, 2).max().item()
            bound = max(1.0, (bias + 1e-5) / (offset + 1e-5))
            assert largest <= bound * (1 + 1e-9)
            if bias > offset:
                assert largest == pytest.approx(bound, rel=1e-3)

    @pytest.mark.parametrize("key", ["urnn", "fc_urnn"])
    def test_the_trained_start_stands_in_for_a_state_that_has_not_started(self, key: str) -> None:
        cell = cell_at("perturbed", key, 5)
        x = torch.randn(2, 1, dtype=torch.float64)
        first = cell(x)
        told = (cell.hidden_0.expand(2, -1), torch.ones(2, 1, dtype=torch.float64))
        assert torch.equal(cell(x, told).hidden, first.hidden)
        assert torch.equal(first.started, torch.ones(2, 1, dtype=torch.float64))
        # What stands in a state that has not started does not count, even where others of the batch have.
        mixed = (torch.cat([cell.hidden_0[None] + 3, first.hidden[1:]]), torch.tensor([[0.0], [1.0]]).double())
        assert torch.equal(cell(x, mixed).hidden[0], first.hidden[0])
        assert not torch.equal(cell(x, mixed).hidden[1], first.hidden[1])

    def test_small_states_are_exported_as_they_are(self) -> None:
        # Near |z| = 1e-5 the constant under the root decides, which the exporter drops where it stands alone.
        model = Classifier("kru", 1, 2, 8, cell_options={"nonlinearity": "modrelu"}).eval().requires_grad_(False)
        with torch.no_grad():
            model.rnn.cells[0].weight_ih.mul_(1e-5)
        x, zeros = torch.ones(3, 1), model.initial_state(3)
        expected = model.transition(model.materialize(), x, zeros)
        feed = {"x": x.numpy()} | {name: part.numpy() for name, part in zip(state_names(model), zeros, strict=True)}
        graph = open_session(step_graph(export_parts(model)).SerializeToString())
        got = graph.run([f"{name}_out" for name in state_names(model)], feed)
        for have, want in zip(got, expected, strict=True):
            np.testing.assert_allclose(have, want.numpy(), rtol=1e-4)


class TestUnitaryEvolution:
    def test_its_permutation_is_saved_with_it(self) -> None:
        first, second = create_cell("urnn", 2, 20), create_cell("urnn", 2, 20)
        assert not torch.equal(first.permutation, second.permutation)
        second.load_state_dict(first.state_dict())
        assert torch.equal(first.recurrent_matrix(), second.recurrent_matrix())


class TestFullCapacity:
    def test_skew_hermitian_has_all_its_coordinates_and_equally_long_ones(self) -> None:
        free = torch.randn(6, 6, dtype=torch.float64)
        a = skew_hermitian(free)
        assert torch.equal(a.mH, -a)
        assert a.abs().square().sum().item() == pytest.approx(2 * free.square().sum().item(), rel=1e-12)
        assert torch.linalg.matrix_rank(torch.stack([stacked(skew_hermitian(e)).flatten() for e in _units(6)])) == 36

    def test_it_starts_at_a_random_matrix_of_the_restricted_kind(self) -> None:
        cell = create_cell("fc_urnn", 2, 20).double()
        assert not cell.weight_hh.any()
        assert torch.equal(cell.complex_matrix(), cell.base_matrix())
        assert excess(cell.complex_matrix().detach()) < 1e-13

    def test_cayley_with_a_rebase_at_each_step_is_the_step_of_the_paper(self) -> None:
        cell = create_cell("fc_urnn", 1, 9, preset="paper").double()
        target, rate = complex_randn(9, 9), 0.003

        def loss(w: Tensor) -> Tensor:
            return (w - target).abs().pow(3).sum()

        optimizer = torch.optim.SGD([cell.weight_hh], lr=rate)
        w = cell.complex_matrix().detach()
        for step in range(1, 4):
            leaf = w.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(loss(leaf), leaf)
            a, identity = gradient @ w.mH - w @ gradient.mH, torch.eye(9, dtype=w.dtype)
            w = torch.linalg.inv(identity + rate / 2 * a) @ (identity - rate / 2 * a) @ w
            optimizer.zero_grad()
            loss(cell.complex_matrix()).backward()
            optimizer.step()
            with torch.no_grad():
                cell.after_step(step, 3)
            assert not cell.weight_hh.any()
            torch.testing.assert_close(cell.complex_matrix().detach(), w, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("parametrization", ["exp", "cayley"])
    def test_a_rebase_moves_the_base_and_not_the_matrix(self, parametrization: str) -> None:
        cell = create_cell("fc_urnn", 1, 9, parametrization=parametrization, rebase=3).double()
        nn.init.normal_(cell.weight_hh)
        before, base = cell.recurrent_matrix().detach(), cell.base.clone()
        with torch.no_grad():
            for step in (1, 2):
                cell.after_step(step, 9)
                assert torch.equal(cell.base, base)
            cell.after_step(3, 9)
        assert not cell.weight_hh.any()
        assert not torch.equal(cell.base, base)
        torch.testing.assert_close(cell.recurrent_matrix().detach(), before, rtol=0, atol=1e-13)

    def test_rounding_does_not_add_up_over_many_rebases(self) -> None:
        cell = create_cell("fc_urnn", 1, 16, parametrization="cayley", rebase=1)
        with torch.no_grad():
            for step in range(1, 2001):
                nn.init.normal_(cell.weight_hh, std=0.1)
                cell.after_step(step, 2000)
        assert excess(cell.recurrent_matrix().detach()) < 2e-6


def _units(size: int) -> list[Tensor]:
    return list(torch.eye(size * size, dtype=torch.float64).reshape(-1, size, size))


def test_a_product_of_complex_matrices_is_that_of_their_real_forms() -> None:
    a, b = complex_randn(5, 5), complex_randn(5, 5)
    torch.testing.assert_close(real_form(a) @ real_form(b), real_form(a @ b), rtol=0, atol=1e-13)
    h = complex_randn(5)
    torch.testing.assert_close(real_form(a) @ stacked(h), stacked(a @ h), rtol=0, atol=1e-13)
