"""What the real orthogonal cells and their relatives promise, and where a promise ends."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from reference import pieces
from reference import soft_orth as soft_orth_reference
from reference.dynamics import STAGES, assert_approach, cell_at, eye, norm, trajectory
from stablernn import StableRNN, create_cell
from stablernn.parametrizations import cayley, exponential, initial_skew, reflections, skew, skew_size

every_stage = pytest.mark.parametrize("stage", STAGES)
# A larger matrix and float64 in the same steps are slow tests.
every_long_run = pytest.mark.parametrize(
    ("dtype", "size", "tolerance"),
    [
        pytest.param(torch.float32, 64, 1e-5, id="float32-64"),
        pytest.param(torch.float32, 128, 1e-5, id="float32-128", marks=pytest.mark.slow),
        pytest.param(torch.float64, 128, 1e-10, id="float64-128", marks=pytest.mark.slow),
    ],
)
ORTHOGONAL = pytest.mark.parametrize("key", ["scornn", "exprnn", "dtriv"])


def _off_orthogonal(matrix: Tensor) -> float:
    """The largest entry of W^T W - I."""
    w = matrix.detach()
    return float((w.T @ w - torch.eye(len(w), dtype=w.dtype)).abs().max())


def _trained(key: str, dtype: torch.dtype, size: int, **options: Any) -> Any:
    """A cell after 200 optimizer steps at a rate that moves every entry far."""
    layer = StableRNN(key, 1, size, **options).to(dtype)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
    x, target = torch.randn(8, 4, 1, dtype=dtype), torch.randn(8, size, dtype=dtype)
    for step in range(200):
        optimizer.zero_grad()
        (layer(x)[0][:, -1] - target).square().mean().backward()
        optimizer.step()
        layer.after_step(step + 1, 200)
    return layer.cells[0]


def _free_skew(size: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(skew_size(size), dtype=torch.float64)


class TestParametrizations:
    @pytest.mark.parametrize("size", [1, 2, 7, 64])
    @pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
    @pytest.mark.parametrize("parametrization", [exponential, cayley])
    def test_skew_matrices_become_rotations(self, parametrization: Any, scale: float, size: int) -> None:
        w = parametrization(skew(_free_skew(size, scale), size))
        assert _off_orthogonal(w) < 1e-10
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
        assert _off_orthogonal(exponential(skew(_free_skew(128, scale).float(), 128))) < 2e-6

    @pytest.mark.parametrize("length", [1.0, 1e2, 1e4])
    def test_single_precision_cayley_transform_is_orthogonal_near_an_eigenvalue_minus_one(self, length: float) -> None:
        a = skew(_free_skew(128).float(), 128)
        a = a * (length / norm(a))
        w = cayley(a)
        assert w.dtype == torch.float32
        assert length < 100 or (torch.linalg.eigvals(w.double()) + 1).abs().min() < 0.1
        assert _off_orthogonal(w.double()) < 2e-6

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

    def test_no_cayley_transform_has_an_eigenvalue_minus_one_but_scaled_ones_have(self) -> None:
        cell = cell_at("perturbed", "scornn", 6, negative_signs=3)
        a = skew(cell.weight_hh.detach(), 6)
        assert (torch.linalg.eigvals(cayley(a)) + 1).abs().min() > 1e-3
        with torch.no_grad():
            cell.weight_hh.zero_()
        assert torch.equal(cell.recurrent_matrix(), torch.diag(torch.tensor([1.0, 1, 1, -1, -1, -1]).double()))

    @pytest.mark.parametrize(("count", "size"), [(1, 1), (1, 5), (3, 7), (7, 7), (16, 64)])
    def test_reflections_multiply_as_one_after_the_other(self, count: int, size: int) -> None:
        vectors = 3 * torch.randn(count, size, dtype=torch.float64)
        product = eye(size)
        for k in range(count):
            product = product @ pieces.reflection(torch.cat([torch.zeros(k).double(), vectors[k, k:]]))
        torch.testing.assert_close(reflections(vectors), product, rtol=0, atol=1e-12)
        assert _off_orthogonal(reflections(vectors)) < 1e-12
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

    def test_cayley_start_turns_scornn_by_those_angles(self) -> None:
        cell = create_cell("scornn", 1, 40, negative_signs=0).double()
        angles = torch.linalg.eigvals(cell.recurrent_matrix()).angle().abs()
        assert angles.max() <= math.pi / 2 + 1e-6
        assert angles.max() > 1.2

    @pytest.mark.parametrize("size", [1, 2, 5, 64])
    def test_haar_start_is_the_real_logarithm_of_a_rotation(self, size: int) -> None:
        a = skew(initial_skew("haar", size).double(), size)
        assert size < 2 or 0 < torch.linalg.eigvals(a).imag.abs().max() <= math.pi + 1e-6
        assert torch.linalg.det(exponential(a)).item() == pytest.approx(1)

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

    def test_papers_input_matrices_and_biases(self) -> None:
        exprnn = create_cell("exprnn", 50, 200, preset="paper")
        assert exprnn.weight_ih.std().item() == pytest.approx((2 / 50) ** 0.5, rel=0.05)
        scornn = create_cell("scornn", 50, 200, preset="paper")
        assert 0.0099 < scornn.weight_ih.abs().max() <= 0.01
        assert not scornn.bias.any()
        assert scornn.negative_signs == 20
        nnrnn = create_cell("nnrnn", 50, 200, preset="paper")
        assert nnrnn.weight_ih.std().item() == pytest.approx((2 / 250) ** 0.5, rel=0.05)
        assert not nnrnn.weight_upper.any()
        assert torch.equal(nnrnn.gain, torch.ones(100))
        assert 0 <= nnrnn.phase.min() < 0.3
        assert 6 < nnrnn.phase.max() <= 2 * math.pi
        for cell in (exprnn, nnrnn, create_cell("rnn_orth", 50, 200, preset="paper")):
            assert 0.0095 < cell.bias.abs().max() <= 0.01
            assert cell.bias.min() < 0 < cell.bias.max()
        soft = create_cell("soft_orth", 50, 200, preset="paper")
        assert 0.0099 < soft.weight_ih.abs().max() <= 0.01
        assert not soft.bias_ih.any()

    @pytest.mark.parametrize("init", ["henaff", "cayley", "haar"])
    @pytest.mark.parametrize("key", ["rnn_orth", "exprnn", "dtriv", "scornn"])
    def test_every_start_is_orthogonal(self, key: str, init: str) -> None:
        assert _off_orthogonal(create_cell(key, 1, 31, init=init).recurrent_matrix()) < 2e-6


class TestOrthogonal:
    @ORTHOGONAL
    @every_long_run
    def test_matrix_stays_orthogonal_over_200_optimizer_steps(
        self, key: str, dtype: torch.dtype, size: int, tolerance: float
    ) -> None:
        cell = _trained(key, dtype, size)
        assert _off_orthogonal(cell.recurrent_matrix()) < tolerance

    @every_long_run
    @pytest.mark.parametrize("parametrization", ["exp", "cayley"])
    def test_a_base_that_moves_at_every_step_does_not_drift(
        self, parametrization: str, dtype: torch.dtype, size: int, tolerance: float
    ) -> None:
        cell = _trained("dtriv", dtype, size, rebase=1, project=0, parametrization=parametrization)
        assert int(cell.rebases) == 200
        assert _off_orthogonal(cell.recurrent_matrix()) < tolerance

    @ORTHOGONAL
    @every_stage
    @pytest.mark.parametrize("hidden_size", [1, 2, 9, 64])
    def test_matrix_is_orthogonal_at_every_size_and_stage(self, hidden_size: int, stage: str, key: str) -> None:
        assert _off_orthogonal(cell_at(stage, key, hidden_size).recurrent_matrix()) < 1e-10

    @ORTHOGONAL
    @every_stage
    @pytest.mark.parametrize("bias", [0.0, 0.01, 0.5])
    def test_with_softshrink_trajectories_never_move_apart(self, bias: float, stage: str, key: str) -> None:
        cell = cell_at(stage, key, 9)
        assert cell.nonlinearity == "softshrink"
        with torch.no_grad():
            # Of either sign: softshrink takes its size, while modReLU below does not survive a positive one.
            cell.bias.copy_(torch.linspace(-bias, bias, 9))
        assert_approach(cell, rate=1.0, scale=2.0)

    @ORTHOGONAL
    def test_with_modrelu_that_holds_while_no_bias_is_positive(self, key: str) -> None:
        cell = cell_at("perturbed", key, 9, nonlinearity="modrelu")
        with torch.no_grad():
            cell.bias.copy_(-cell.bias.abs())
        assert_approach(cell, rate=1.0, scale=2.0)

    @ORTHOGONAL
    def test_a_positive_modrelu_bias_drives_trajectories_apart(self, key: str) -> None:
        cell = cell_at("fresh", key, 4, nonlinearity="modrelu", init="cayley")
        with torch.no_grad():
            cell.bias.fill_(0.5)
        pair = torch.full((2, 4), 1e-3, dtype=torch.float64)
        pair[1] *= -1
        states = trajectory(cell, pair, torch.zeros(1, 1, dtype=torch.float64))
        before, after = (states[:, 0] - states[:, 1]).norm(dim=1).tolist()
        assert after > 100 * before

    @ORTHOGONAL
    def test_gradients_by_the_state_never_grow_and_keep_their_norm_without_a_threshold(self, key: str) -> None:
        layer = StableRNN(key, 1, 16).double()
        for bias, lowest in ((0.3, 0.0), (0.0, 1 - 1e-12)):
            with torch.no_grad():
                layer.cells[0].bias.fill_(bias)
            h0 = torch.randn(3, 16, dtype=torch.float64, requires_grad=True)
            output, _ = layer.run(torch.randn(3, 50, 1, dtype=torch.float64), (h0,))
            direction = torch.randn(3, 16, dtype=torch.float64)
            (gradient,) = torch.autograd.grad((output[:, -1] * direction).sum(), h0)
            ratio = gradient.norm(dim=1) / direction.norm(dim=1)
            assert lowest <= ratio.min()
            assert ratio.max() <= 1 + 1e-12

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

    def test_zero_never_moves_the_base(self) -> None:
        cell = cell_at("fresh", "dtriv", 9, rebase=0)
        before = cell.base.clone()
        with torch.no_grad():
            cell.weight_hh.normal_()
            for step in range(1, 500):
                cell.after_step(step, 500)
        assert torch.equal(cell.base, before)
        assert cell.weight_hh.all()

    @pytest.mark.parametrize(("project", "repaired"), [(3, True), (0, False)])
    def test_every_third_rebase_projects_the_base(self, project: int, repaired: bool) -> None:
        cell = create_cell("dtriv", 1, 9, rebase=1, project=project).double()
        with torch.no_grad():
            for step in (1, 2):
                cell.after_step(step, 3)
            # Further off than the correction in each pass can take in one step.
            cell.base.mul_(1.3)
            cell.after_step(3, 3)
        assert (_off_orthogonal(cell.base) < 1e-12) is repaired

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


class TestOrthogonalStart:
    @pytest.mark.parametrize("nonlinearity", ["modrelu", "tanh", "relu"])
    def test_training_takes_the_matrix_away_from_orthogonality(self, nonlinearity: str) -> None:
        cell = cell_at("fresh", "rnn_orth", 16, nonlinearity=nonlinearity)
        assert _off_orthogonal(cell.recurrent_matrix()) < 2e-6
        cell = cell_at("trained", "rnn_orth", 16, nonlinearity=nonlinearity)
        assert _off_orthogonal(cell.recurrent_matrix()) > 0.1
        assert norm(cell.recurrent_matrix()) > 1.1


class TestSpectralRNN:
    @every_long_run
    def test_singular_values_stay_within_the_margin_over_200_optimizer_steps(
        self, dtype: torch.dtype, size: int, tolerance: float
    ) -> None:
        cell = _trained("spectral_rnn", dtype, size)
        for vectors in (cell.weight_left, cell.weight_right):
            assert _off_orthogonal(reflections(vectors)) < tolerance
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

    @every_stage
    @pytest.mark.parametrize("nonlinearity", ["relu", "tanh", "softshrink"])
    def test_a_step_expands_by_at_most_one_plus_the_margin(self, nonlinearity: str, stage: str) -> None:
        cell = cell_at(stage, "spectral_rnn", 9, margin=0.05, nonlinearity=nonlinearity)
        assert_approach(cell, rate=1.05, scale=2.0)

    def test_with_a_margin_states_can_move_apart(self) -> None:
        cell = cell_at("fresh", "spectral_rnn", 8, margin=0.1)
        with torch.no_grad():
            cell.spectrum.fill_(3.0)
            cell.bias.fill_(100.0)  # relu's linear side, where nothing but W acts
        pair = torch.randn(2, 8, dtype=torch.float64)
        states = trajectory(cell, pair, torch.zeros(3, 1, dtype=torch.float64))
        distances = (states[:, 0] - states[:, 1]).norm(dim=1)
        assert (distances[1:] / distances[:-1]).min() > 1.08

    def test_after_a_step_vectors_are_masked_and_of_length_one_and_the_matrix_is_the_same(self) -> None:
        cell = cell_at("perturbed", "spectral_rnn", 9, num_reflections=5)
        before = cell.recurrent_matrix().detach()
        with torch.no_grad():
            cell.after_step(1, 10)
        for vectors in (cell.weight_left, cell.weight_right):
            assert not torch.tril(vectors, diagonal=-1).any()
            torch.testing.assert_close(vectors.norm(dim=1), torch.ones(5).double(), rtol=0, atol=1e-12)
        torch.testing.assert_close(cell.recurrent_matrix(), before, rtol=0, atol=1e-12)

    def test_as_many_reflections_as_units_reach_other_matrices_than_a_quarter_does(self) -> None:
        # n reflections leave a space of N - n dimensions as it is.
        few, all_of_them = (
            create_cell("spectral_rnn", 1, 8, num_reflections=count, margin=0.0).double() for count in (2, 8)
        )
        kept = torch.linalg.matrix_rank(few.recurrent_matrix() - eye(8), tol=1e-6)
        assert int(kept) <= 4
        assert int(torch.linalg.matrix_rank(all_of_them.recurrent_matrix() - eye(8), tol=1e-6)) > 6


class TestSoftOrthogonal:
    @every_long_run
    def test_factors_stay_orthogonal_over_200_optimizer_steps(
        self, dtype: torch.dtype, size: int, tolerance: float
    ) -> None:
        cell = _trained("soft_orth", dtype, size, form="factored", margin=0.1)
        p, s, q = cell.factors()
        assert _off_orthogonal(p) < tolerance
        assert _off_orthogonal(q) < tolerance
        singular = torch.linalg.svdvals(cell.recurrent_matrix().double())
        assert (singular - 1).abs().max() <= 0.1 + tolerance
        torch.testing.assert_close(singular, s.double().sort(descending=True).values, rtol=0, atol=100 * tolerance)

    @every_stage
    @pytest.mark.parametrize("margin", [0.0, 0.01, 1.0])
    def test_factored_singular_values_are_within_the_margin(self, margin: float, stage: str) -> None:
        cell = cell_at(stage, "soft_orth", 9, form="factored", margin=margin)
        assert (torch.linalg.svdvals(cell.recurrent_matrix()) - 1).abs().max() <= margin + 1e-12

    def test_unbounded_singular_values_are_one_plus_what_is_trained(self) -> None:
        cell = cell_at("perturbed", "soft_orth", 9, form="unbounded", margin=0.01)
        expected = (1 + cell.spectrum).abs().sort(descending=True).values
        singular = torch.linalg.svdvals(cell.recurrent_matrix())
        torch.testing.assert_close(singular, expected, rtol=0, atol=1e-12)
        assert singular.max() > 1.1

    def test_penalty_is_the_squared_distance_from_orthogonality(self) -> None:
        cell = cell_at("perturbed", "soft_orth", 7, penalty_weight=0.3)
        expected = 0.3 * soft_orth_reference.penalty(cell.weight_hh.detach())
        assert cell.penalty().item() == pytest.approx(expected.item(), rel=1e-12)
        assert create_cell("soft_orth", 1, 7, form="factored").penalty() is None
        assert create_cell("soft_orth", 1, 7).penalty().item() == pytest.approx(0, abs=1e-10)

    def test_the_distance_from_orthogonality_goes_to_zero_as_the_penalty_is_weighted_up(self) -> None:
        distances = []
        for weight in (0.0, 0.1, 10.0, 1000.0):
            torch.manual_seed(2)
            layer = StableRNN("soft_orth", 1, 12, penalty_weight=weight).double()
            optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
            x, target = torch.randn(8, 4, 1).double(), torch.randn(8, 12).double()
            for _ in range(400):
                optimizer.zero_grad()
                ((layer(x)[0][:, -1] - target).square().mean() + layer.penalty()).backward()
                optimizer.step()
                schedule.step()
            distances.append(_off_orthogonal(layer.cells[0].recurrent_matrix()))
        assert distances[0] > 0.1
        for low, high in zip(distances[1:], distances[:-1], strict=True):
            assert low < high / 5
        assert distances[-1] < 1e-4

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
        assert _off_orthogonal(create_cell("soft_orth", 1, 31, form=form).recurrent_matrix()) < 5e-6

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

    def test_a_number_inside_a_block_would_lose_the_modulus(self) -> None:
        cell = cell_at("fresh", "nnrnn", 2)
        with torch.no_grad():
            cell.phase.fill_(1.0)
        assert cell.weight_upper.numel() == 0
        block = cell.schur_form().detach()
        assert torch.linalg.eigvals(block).abs() == pytest.approx(torch.ones(2), abs=1e-12)
        # What the released code's mask lets T do there.
        block[0, 1] += 0.5
        assert torch.linalg.eigvals(block).abs() == pytest.approx(torch.full((2,), 0.761), abs=5e-4)

    @every_stage
    def test_the_upper_triangle_is_zero_inside_the_blocks_and_nowhere_else(self, stage: str) -> None:
        cell = cell_at(stage, "nnrnn", 7)
        with torch.no_grad():
            cell.weight_upper.fill_(1.0)
            cell.gain.zero_()
        expected = torch.triu(torch.ones(7, 7).double(), 1)
        for k in (0, 2, 4):
            expected[k, k + 1] = 0
        assert torch.equal(cell.schur_form().detach(), expected)

    def test_states_can_grow_though_every_eigenvalue_is_below_one(self) -> None:
        cell = cell_at("fresh", "nnrnn", 6)
        with torch.no_grad():
            cell.gain.fill_(0.9)
            cell.weight_upper.fill_(3.0)
            cell.bias.zero_()
        assert torch.linalg.eigvals(cell.recurrent_matrix()).abs().max() < 0.91
        assert norm(cell.recurrent_matrix()) > 5
        states = trajectory(cell, torch.randn(20, 6, dtype=torch.float64), torch.zeros(4, 1, dtype=torch.float64))
        growth = states.norm(dim=-1) / states[0].norm(dim=-1)
        assert growth.max() > 5

    def test_penalties_are_those_of_the_paper(self) -> None:
        cell = cell_at("perturbed", "nnrnn", 7, gain_penalty=0.2, upper_penalty=0.3)
        gains = sum((g - 1) ** 2 for g in cell.gain.tolist())
        upper = sum(t**2 for t in cell.weight_upper.tolist())
        assert cell.penalty().item() == pytest.approx(0.2 * gains + 0.15 * upper, rel=1e-12)
        (gradient,) = torch.autograd.grad(cell.penalty(), cell.weight_upper)
        # An optimizer's weight decay of 0.3 adds 0.3 T to the gradient of T.
        torch.testing.assert_close(gradient, 0.3 * cell.weight_upper.detach(), rtol=0, atol=1e-14)

    def test_gains_go_to_one_as_their_penalty_is_weighted_up(self) -> None:
        distances = []
        for weight in (0.0, 1.0, 100.0):
            torch.manual_seed(2)
            layer = StableRNN("nnrnn", 1, 12, gain_penalty=weight).double()
            optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.97)
            x, target = torch.randn(8, 4, 1).double(), torch.randn(8, 12).double()
            for _ in range(270):
                optimizer.zero_grad()
                ((layer(x)[0][:, -1] - target).square().mean() + layer.penalty()).backward()
                optimizer.step()
                schedule.step()
            distances.append(float((layer.cells[0].gain.detach() - 1).abs().max()))
        assert distances[0] > 0.05
        assert distances[1] < distances[0] / 2
        assert distances[2] < distances[1] / 20
