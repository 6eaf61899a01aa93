"""Guarantees of the real orthogonal cells, and where they end."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cells.guarantees.long_training import every_long_run, off_orthogonal, train_long
from reference import pieces
from reference.dynamics import cell_at, eye, norm
from stablernn import StableRNN, create_cell
from stablernn.parametrizations import cayley, exponential, initial_skew, reflections, skew, skew_size

ORTHOGONAL = pytest.mark.parametrize("key", ["scornn", "exprnn", "dtriv"])


def _free_skew(size: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(skew_size(size), dtype=torch.float64)


class TestParametrizations:
    @pytest.mark.parametrize("size", [1, 2, 7, 64])
    @pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
    @pytest.mark.parametrize("parametrization", [exponential, cayley])
    def test_skew_matrices_become_rotations(self, parametrization: Any, scale: float, size: int) -> None:
        w = parametrization(skew(_free_skew(size, scale), size))
        assert off_orthogonal(w) < 1e-10
        assert torch.linalg.det(w).item() == pytest.approx(1, abs=1e-9)

    @pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 100.0])
    def test_exponential_is_that_of_any_matrix(self, scale: float) -> None:
        for a in (skew(_free_skew(9, scale), 9), min(scale, 2.0) * torch.randn(9, 9, dtype=torch.float64)):
            expected = torch.linalg.matrix_exp(a)
            torch.testing.assert_close(exponential(a), expected, rtol=1e-12, atol=1e-12)
            complex_a = torch.complex(a, 0.3 * a.T)
            torch.testing.assert_close(exponential(complex_a), torch.linalg.matrix_exp(complex_a), rtol=1e-9, atol=1e-9)

    def test_exponential_of_what_is_not_finite_is_not_finite_and_no_error(self) -> None:
        for value in (math.nan, math.inf, 1e308):
            assert not torch.isfinite(exponential(torch.full((3, 3), value, dtype=torch.float64))).all()

    @pytest.mark.parametrize("scale", [1.0, 10.0])
    def test_single_precision_exponential_is_orthogonal_to_its_last_digits(self, scale: float) -> None:
        assert off_orthogonal(exponential(skew(_free_skew(128, scale).float(), 128))) < 2e-6

    @pytest.mark.parametrize("length", [1.0, 1e2, 1e4])
    def test_single_precision_cayley_transform_is_orthogonal_near_an_eigenvalue_minus_one(self, length: float) -> None:
        a = skew(_free_skew(128).float(), 128)
        a = a * (length / norm(a))
        w = cayley(a)
        assert w.dtype == torch.float32
        assert length < 100 or (torch.linalg.eigvals(w.double()) + 1).abs().min() < 0.1
        assert off_orthogonal(w.double()) < 2e-6

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_gradients_go_through_the_cayley_transform(self, dtype: torch.dtype) -> None:
        free = _free_skew(5).requires_grad_()
        assert torch.autograd.gradcheck(lambda f: cayley(skew(f, 5)), free)
        single = free.detach().to(dtype).requires_grad_()
        cayley(skew(single, 5))[0, 1].backward()
        cayley(skew(free, 5))[0, 1].backward()
        assert single.grad is not None
        assert free.grad is not None
        torch.testing.assert_close(single.grad.double(), free.grad, rtol=1e-5, atol=1e-6)

    def test_cayley_transform_solves_the_implicit_rule_and_is_close_to_an_exponential(self) -> None:
        a = skew(_free_skew(9), 9)
        torch.testing.assert_close((eye(9) + a) @ cayley(a), eye(9) - a, rtol=0, atol=1e-12)
        small = 1e-3 * a
        torch.testing.assert_close(cayley(small), exponential(-2 * small), rtol=0, atol=1e-7)

    @pytest.mark.parametrize(("count", "size"), [(1, 1), (1, 5), (3, 7), (7, 7), (16, 64)])
    def test_reflections_multiply_as_one_after_the_other(self, count: int, size: int) -> None:
        vectors = 3 * torch.randn(count, size, dtype=torch.float64)
        product = eye(size)
        for k in range(count):
            product = product @ pieces.reflection(torch.cat([torch.zeros(k).double(), vectors[k, k:]]))
        torch.testing.assert_close(reflections(vectors), product, rtol=0, atol=1e-12)
        assert off_orthogonal(reflections(vectors)) < 1e-12
        assert torch.linalg.det(product).item() == pytest.approx((-1) ** count)


class TestInitialMatrices:
    """The ledger's two henaff ranges: here the exponential RNN's, U(-pi, pi)."""

    @pytest.mark.parametrize("size", [1, 2, 5, 8])
    @pytest.mark.parametrize("kind", ["henaff", "cayley"])
    def test_block_diagonal_starts_have_nothing_outside_their_blocks(self, kind: Any, size: int) -> None:
        a = skew(initial_skew(kind, size), size)
        s = a.diagonal(1)[::2]
        blocks = [torch.tensor([[0.0, value], [-value, 0.0]]) for value in s[: size // 2]]
        expected = torch.block_diag(*blocks, *[torch.zeros(1, 1)] * (size % 2))
        assert torch.equal(a, expected)
        assert size < 2 or s[: size // 2].abs().min() > 0

    def test_henaff_draws_angles_from_minus_pi_to_pi(self) -> None:
        size = 2000
        s = skew(initial_skew("henaff", size), size).diagonal(1)[::2]
        assert s.abs().max() <= math.pi
        assert s.min() < -0.99 * math.pi
        assert s.max() > 0.99 * math.pi
        assert s.mean().item() == pytest.approx(0, abs=0.25)
        assert s.std().item() == pytest.approx(math.pi / 3**0.5, rel=0.1)

    def test_cayley_draws_half_angles_of_up_to_a_quarter_turn(self) -> None:
        size = 2000
        s = skew(initial_skew("cayley", size), size).diagonal(1)[::2]
        turned = -2 * torch.atan(s)
        assert turned.min() >= 0
        assert turned.max() <= math.pi / 2
        assert turned.mean().item() == pytest.approx(math.pi / 4, rel=0.05)
        assert turned.std().item() == pytest.approx(math.pi / 2 / 12**0.5, rel=0.1)
        # The form in which the papers print it.
        torch.testing.assert_close(s, -torch.sqrt((1 - turned.cos()) / (1 + turned.cos())), rtol=0, atol=1e-3)

    def test_haar_start_has_the_moments_of_the_uniform_distribution(self) -> None:
        # On SO(N), N > 2: E tr Q = 0, E (tr Q)^2 = 1, E Q_ij^2 = 1/N.
        draws = torch.stack([exponential(skew(initial_skew("haar", 5).double(), 5)) for _ in range(1500)])
        traces = draws.diagonal(dim1=1, dim2=2).sum(dim=1)
        assert traces.mean().item() == pytest.approx(0, abs=0.1)
        assert traces.square().mean().item() == pytest.approx(1, abs=0.15)
        torch.testing.assert_close(draws.square().mean(dim=0), torch.full((5, 5), 0.2).double(), rtol=0, atol=0.03)

    def test_initial_skew_of_haar_loses_nothing_in_the_logarithm(self) -> None:
        torch.manual_seed(3)
        a = skew(initial_skew("haar", 6).double(), 6)
        torch.manual_seed(3)
        q, r = torch.linalg.qr(torch.randn(6, 6, dtype=torch.float64))
        q = q * torch.sign(r.diagonal())
        # Either the orthogonal matrix that was drawn, or that with its first row turned.
        assert (exponential(a) - q)[1:].abs().max() < 1e-6

    @pytest.mark.parametrize("init", ["henaff", "cayley", "haar"])
    @pytest.mark.parametrize("key", ["rnn_orth", "exprnn", "dtriv", "scornn"])
    def test_every_start_is_orthogonal(self, key: str, init: str) -> None:
        assert off_orthogonal(create_cell(key, 1, 31, init=init).recurrent_matrix()) < 2e-6


class TestOrthogonal:
    @ORTHOGONAL
    @every_long_run
    def test_matrix_stays_orthogonal_over_200_optimizer_steps(
        self, key: str, dtype: torch.dtype, size: int, tolerance: float
    ) -> None:
        cell = train_long(key, dtype, size)
        assert off_orthogonal(cell.recurrent_matrix()) < tolerance

    @every_long_run
    @pytest.mark.parametrize("parametrization", ["exp", "cayley"])
    def test_a_base_that_moves_at_every_step_does_not_drift(
        self, parametrization: str, dtype: torch.dtype, size: int, tolerance: float
    ) -> None:
        cell = train_long("dtriv", dtype, size, rebase=1, project=0, parametrization=parametrization)
        assert int(cell.rebases) == 200
        assert off_orthogonal(cell.recurrent_matrix()) < tolerance

    @pytest.mark.parametrize(
        ("key", "options", "names"),
        [
            ("scornn", {}, ["weight_hh"]),
            ("exprnn", {}, ["weight_hh"]),
            ("dtriv", {}, ["weight_hh"]),
            ("nnrnn", {}, ["weight_hh"]),
            ("spectral_rnn", {}, ["weight_left", "weight_right"]),
            ("soft_orth", {"form": "factored"}, ["weight_left", "weight_right"]),
            ("soft_orth", {}, []),
            ("rnn_orth", {}, []),
        ],
    )
    def test_parameters_behind_orthogonal_matrices_have_their_own_group(
        self, key: str, options: dict[str, Any], names: list[str]
    ) -> None:
        layer = StableRNN(key, 2, 6, **options)
        groups = layer.parameter_groups()
        assert [id(p) for p in groups["orthogonal"]] == [id(getattr(layer.cells[0], name)) for name in names]
        assert len(groups["orthogonal"]) + len(groups["other"]) == len(list(layer.parameters()))


class TestMovingBase:
    def test_a_rebase_leaves_the_matrix_as_it_is(self) -> None:
        cell = cell_at("perturbed", "dtriv", 9, rebase=5)
        before = cell.recurrent_matrix().detach()
        with torch.no_grad():
            for step in range(1, 5):
                cell.after_step(step, 20)
            assert cell.weight_hh.any()
            cell.after_step(5, 20)
        assert not cell.weight_hh.any()
        assert int(cell.rebases) == 1
        torch.testing.assert_close(cell.recurrent_matrix(), before, rtol=0, atol=1e-14)
        torch.testing.assert_close(cell.base, before, rtol=0, atol=0)

    @pytest.mark.parametrize(("project", "repaired"), [(3, True), (0, False)])
    def test_every_third_rebase_projects_the_base(self, project: int, repaired: bool) -> None:
        cell = create_cell("dtriv", 1, 9, rebase=1, project=project).double()
        with torch.no_grad():
            for step in (1, 2):
                cell.after_step(step, 3)
            # Further off than the correction in each pass can take in one step.
            cell.base.mul_(1.3)
            cell.after_step(3, 3)
        assert (off_orthogonal(cell.base) < 1e-12) is repaired

    def test_the_base_travels_with_the_weights(self) -> None:
        layer = StableRNN("dtriv", 1, 9, rebase=1)
        with torch.no_grad():
            layer.cells[0].weight_hh.normal_()
            layer.after_step(1, 10)
        other = StableRNN("dtriv", 1, 9, rebase=1)
        other.load_state_dict(copy.deepcopy(layer.state_dict()))
        assert torch.equal(other.cells[0].recurrent_matrix(), layer.cells[0].recurrent_matrix())
        assert int(other.cells[0].rebases) == 1

    def test_a_fresh_cell_has_the_matrix_of_the_static_form(self) -> None:
        torch.manual_seed(1)
        static = create_cell("exprnn", 3, 9)
        torch.manual_seed(1)
        moving = create_cell("dtriv", 3, 9)
        assert not moving.weight_hh.any()
        torch.testing.assert_close(moving.recurrent_matrix(), static.recurrent_matrix(), rtol=0, atol=1e-6)
