"""Claims of papers that are false, and what certificates say of the same weights: counterexamples in float64.

Trajectories and eigenvalues are computed from the equations by numpy and scipy, apart from the library;
docs/background/stability.md tells of each claim.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.linalg import expm

from stablernn import create_cell
from stablernn.bounds.continuous import theorem_1_conditions, theorem_1_holds
from stablernn.certificates.certificate import certify

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class TestTheoremOneOfTheEquationAndTheStep:
    """Theorem 1 is about ``h' = A h + tanh(W h + u)``; the step that a model takes can still explode."""

    @pytest.mark.parametrize(("key", "factor"), [("lipschitz", 1.5), ("noisy_rnn", 1.5), ("lipschitz_rk2", 1.625)])
    def test_damping_beyond_the_steps_reach_multiplies_the_state(self, key: str, factor: float) -> None:
        torch.manual_seed(0)
        cell = create_cell(key, 1, 8, linear_damping=5.0)
        linear, recurrent = (
            matrix().detach().double().numpy() for matrix in (cell.linear_matrix, cell.recurrent_matrix)
        )
        assert theorem_1_holds(theorem_1_conditions(linear, recurrent))

        def velocity(h: Vector) -> Vector:
            return linear @ h + np.tanh(recurrent @ h)

        h = np.full(8, 1e6)
        sizes = []
        for _ in range(50):
            middle = h + cell.step_size / 2 * velocity(h) if key == "lipschitz_rk2" else h
            h = h + cell.step_size * velocity(middle)
            sizes.append(np.linalg.norm(h))
        factors = np.array(sizes[1:]) / np.array(sizes[:-1])
        assert factors == pytest.approx(np.full(49, factor), rel=0.03)
        document = certify(cell).document()
        assert (document["kind"], document["holds"], document["state_balls"]) == ("none", False, [])

    @pytest.mark.parametrize("key", ["lipschitz", "lipschitz_rk2", "noisy_rnn"])
    @pytest.mark.parametrize(("damped_step", "kind"), [(1.9, "contracting"), (2.1, "none")])
    def test_linear_damping_helps_while_its_product_with_the_step_is_below_two(
        self, key: str, damped_step: float, kind: str
    ) -> None:
        torch.manual_seed(0)
        cell = create_cell(key, 1, 8, step_size=0.1, linear_damping=damped_step / 0.1)
        assert certify(cell).kind == kind

    @pytest.mark.parametrize(
        ("key", "subject"),
        [
            *((key, "differential equation") for key in ("lipschitz", "noisy_rnn", "lvf")),
            *((key, "single Jacobians") for key in ("antisymmetric", "nais_net", "unicornn")),
        ],
    )
    def test_conditions_of_papers_say_what_they_are_about(self, key: str, subject: str) -> None:
        conditions = certify(create_cell(key, 1, 4)).document()["conditions"]
        assert {condition["of"] for condition in conditions} == {subject}


class TestTheoremOneCaseB:
    """Case (b) as printed: sym(A) and sym(W) negative definite, W regular, A^T W + W^T A positive definite."""

    A = np.array([[-0.03, -1.31, 1.13], [1.45, -0.43, 0.21], [-0.97, -1.13, -0.53]])
    W = np.array([[-0.02, -3.98, 4.21], [4.0, -0.28, -0.49], [-4.19, -0.07, -0.32]])
    SLOPES = np.array([0.52, 0.89, 0.45])

    def test_the_matrices_meet_every_condition_of_the_paper_and_an_equilibrium_is_unstable(self) -> None:
        products = self.A.T @ self.W + self.W.T @ self.A
        assert max(np.linalg.eigvalsh(matrix + matrix.T).max() for matrix in (self.A, self.W)) < -0.03
        assert np.linalg.svd(self.W, compute_uv=False).min() > 0.5
        assert np.linalg.eigvalsh(products).min() > 0.03
        # A bias puts the equilibrium where tanh has these slopes.
        eigenvalues = np.linalg.eigvals(self.A + np.diag(self.SLOPES) @ self.W)
        growing = eigenvalues[eigenvalues.real.argmax()]
        assert (growing.real, abs(growing.imag)) == pytest.approx((0.0382, 5.174), abs=1e-4)

    def test_it_does_not_count(self) -> None:
        conditions = theorem_1_conditions(self.A, self.W)
        assert [condition.holds for condition in conditions] == [True, True, False, True, True, False]
        assert conditions[-1].name == "theorem 1 (b), not in the paper: largest entry of abs(W - W^T)"
        assert not theorem_1_holds(conditions)

    def test_it_counts_where_the_recurrent_matrix_is_symmetric(self) -> None:
        linear = np.array([[-0.1, 0.05], [-0.05, -0.2]])
        recurrent = np.array([[-3.0, 1.0], [1.0, -2.0]])
        conditions = theorem_1_conditions(linear, recurrent)
        assert [condition.holds for condition in conditions] == [True, True, False, True, True, True]
        assert theorem_1_holds(conditions)

    def test_symmetry_by_a_hair_is_not_symmetry(self) -> None:
        recurrent = np.array([[-3.0, 1.0], [np.nextafter(1.0, 2), -2.0]])
        assert not theorem_1_holds(theorem_1_conditions(-0.1 * np.eye(2), recurrent))

    def test_units_of_different_steps_do_not_count_for_it(self) -> None:
        cell = create_cell("noisy_rnn", 1, 2, skew_weight=0.0)
        with torch.no_grad():
            cell.get_parameter("unit_steps").copy_(torch.tensor([0.5, 0.25]))
        condition = cell.step_bound().conditions[-1]
        assert condition.name == "theorem 1 (b): largest difference of the units' steps"
        assert (condition.value, condition.holds) == (0.25, False)


class TestSingleJacobiansOfTheAntisymmetricRNN:
    """Every Jacobian on the way passes the paper's criterion, and neighboring trajectories part."""

    STEP_SIZE = DAMPING = 0.05
    K = np.array([[-DAMPING, 1.0], [-1.0, -DAMPING]])
    STEPS, SWITCH = 1600, 66
    FLAT = 1.44
    """The argument of tanh at which a unit is flat: its slope there is 0.2."""

    def inputs(self) -> tuple[Matrix, Matrix, Matrix]:
        """Inputs that hold one unit flat and the other steep and change over every 66 steps, as the ellipses on which
        a difference moves would turn inwards.

        The flat unit's input changes sign at every step, which keeps the state near the origin.

        Returns:
            Inputs, states and slopes, each ``(steps, 2)``.
        """
        h = np.zeros(2)
        inputs, states, slopes = [], [], []
        for step in range(self.STEPS):
            flat = (step // self.SWITCH) % 2
            argument = np.zeros(2)
            argument[flat] = self.FLAT if h[flat] < self.STEP_SIZE / 2 else -self.FLAT
            inputs.append(argument - self.K @ h)
            slopes.append(1 - np.tanh(argument) ** 2)
            h = h + self.STEP_SIZE * np.tanh(self.K @ h + inputs[-1])
            states.append(h)
        return np.array(inputs), np.array(states), np.array(slopes)

    def test_the_cell_does_it_and_its_certificate_claims_nothing(self) -> None:
        inputs, states, _ = self.inputs()
        cell = create_cell("antisymmetric", 2, 2, step_size=self.STEP_SIZE, damping=self.DAMPING)
        with torch.no_grad():
            cell.get_parameter("weight_hh").fill_(1.0)
            cell.get_parameter("weight_ih").copy_(torch.eye(2))
        document = certify(cell).document()
        assert [condition["holds"] for condition in document["conditions"]] == [True]
        assert (document["kind"], document["holds"]) == ("none", False)
        cell.double()
        pair = torch.tensor([[0.0, 0.0], [1e-6, 0.0]], dtype=torch.float64)
        with torch.no_grad():
            for x in torch.from_numpy(inputs):
                pair = cell(x.expand(2, 2), pair)
        assert pair[0].numpy() == pytest.approx(states[-1], abs=1e-12)
        assert float((pair[1] - pair[0]).norm()) / 1e-6 > 2.6e6

    @pytest.mark.parametrize("damping", [0.0, 0.05])
    def test_the_papers_theorem_on_the_equation_fails_too(self, damping: float) -> None:
        # h' = tanh(K h + x) with the same slopes: real parts at most 0 at all times, and differences grow at each turn.
        flat = 1 - np.tanh(self.FLAT) ** 2
        k = np.array([[-damping, 1.0], [-1.0, -damping]])
        turn = np.eye(2)
        for slopes in ((flat, 1.0), (1.0, flat)):
            velocity = np.diag(slopes) @ k
            assert np.linalg.eigvals(velocity).real.max() <= 1e-15
            turn = expm(np.pi / 2 / np.sqrt(flat) * velocity) @ turn
        assert np.abs(np.linalg.eigvals(turn)).max() > 4
