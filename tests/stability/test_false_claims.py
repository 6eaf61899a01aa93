"""Claims of papers that are false, and what certificates say of the same weights: counterexamples in float64.

Trajectories and eigenvalues are computed from the equations by numpy and scipy, apart from the library;
docs/stability.md tells of each claim.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.linalg import expm

from stablernn import create_cell
from stablernn.stability.certificate import certify
from stablernn.stability.continuous import theorem_1, theorem_1_holds

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
        assert theorem_1_holds(theorem_1(linear, recurrent))

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

    @pytest.mark.parametrize("key", ["lipschitz", "lipschitz_rk2", "noisy_rnn", "lvf"])
    def test_conditions_of_papers_say_that_they_are_about_the_equation(self, key: str) -> None:
        conditions = certify(create_cell(key, 1, 4)).document()["conditions"]
        assert conditions
        assert {condition["of"] for condition in conditions} == {"differential equation"}

    @pytest.mark.parametrize("key", ["antisymmetric", "nais_net", "unicornn"])
    def test_conditions_on_eigenvalues_say_that_they_are_about_single_jacobians(self, key: str) -> None:
        conditions = certify(create_cell(key, 1, 4)).document()["conditions"]
        assert {condition["of"] for condition in conditions} == {"single Jacobians"}


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

    def test_inputs_and_states_are_small_and_every_jacobian_passes(self) -> None:
        inputs, states, slopes = self.inputs()
        assert np.abs(inputs).max() < 1.5
        assert np.abs(states).max() < 0.05
        jacobians = np.eye(2) + self.STEP_SIZE * slopes[:, :, None] * self.K
        assert np.abs(np.linalg.eigvals(jacobians)).max() < 0.9988
        velocities = slopes[:, :, None] * self.K
        assert np.linalg.eigvals(velocities).real.max() < 0

    def test_a_difference_of_a_millionth_grows_millions_of_times(self) -> None:
        inputs, states, _ = self.inputs()
        h = np.array([1e-6, 0.0])
        for x in inputs:
            h = h + self.STEP_SIZE * np.tanh(self.K @ h + x)
        assert np.linalg.norm(h - states[-1]) / 1e-6 > 2.6e6

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

    @pytest.mark.parametrize("damping", [0.0, 0.05], ids=["undamped", "damped"])
    def test_the_papers_theorem_on_the_equation_fails_too(self, damping: float) -> None:
        # h' = tanh(K h + x) with the same slopes: real parts at most 0 at all times, and differences grow at each turn.
        flat = 1 - np.tanh(self.FLAT) ** 2
        k = np.array([[-damping, 1.0], [-1.0, -damping]])
        quarter = np.pi / 2 / np.sqrt(flat)
        turn = np.eye(2)
        for slopes in ((flat, 1.0), (1.0, flat)):
            velocity = np.diag(slopes) @ k
            assert np.linalg.eigvals(velocity).real.max() <= 1e-15
            turn = expm(quarter * velocity) @ turn
        assert np.abs(np.linalg.eigvals(turn)).max() > 4
