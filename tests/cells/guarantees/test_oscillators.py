"""Guarantees of the oscillators and LEM, and where they end.

Bounds are checked on fresh parameters, after a random perturbation and after optimizer steps, and where it matters with
weights and inputs far beyond any that training gives.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cells.guarantees.states import make_wild, normal, run_steps, step_jacobian
from reference.dynamics import STAGES, cell_at, every_stage, eye, norm
from reference.mapping import MAPPING
from stablernn import StableRNN, create_cell


@pytest.mark.parametrize("key", ["cornn", "lem", "unicornn"])
def test_steps_of_any_length_are_those_of_the_reference(key: str) -> None:
    layer = StableRNN(key, 3, 5).double()
    make_wild(layer, 0.4)
    x, dt = normal(2, 9, 3), torch.rand(2, 9, dtype=torch.float64)
    output, last = layer(x, dt=dt)
    row, cell = MAPPING[key], layer.cells[0]
    states = row.module.sequence(row.params(cell), x, *layer.initial_state(2), **row.scalars(cell), dt=dt)
    torch.testing.assert_close(output, states[0], rtol=0, atol=1e-12)
    for got, expected in zip(last, states, strict=True):
        torch.testing.assert_close(got[0], expected[:, -1], rtol=0, atol=1e-12)


# step_size, stiffness, damping of coRNN: ours, then the released code's on ordered and permuted MNIST, on noisy CIFAR
# and on adding.
OURS = tuple(getattr(create_cell("cornn", 1, 1), name) for name in ("step_size", "stiffness", "damping"))
PUBLISHED = [OURS, (0.042, 2.7, 4.7), (0.076, 0.4, 8.0), (0.034, 1.3, 12.7), (0.06, 66.0, 15.0)]
CORNN = pytest.mark.parametrize(("step_size", "stiffness", "damping"), PUBLISHED)


def _oscillator(step_size: float, stiffness: float, damping: float) -> Tensor:
    """What a step without force does to (y, z) of one unit."""
    velocity = torch.tensor([-step_size * stiffness, 1 - step_size * damping], dtype=torch.float64)
    position = torch.tensor([1.0, 0.0], dtype=torch.float64) + step_size * velocity
    return torch.stack([position, velocity])


def _responses(step_size: float, stiffness: float, damping: float, time: int) -> Tensor:
    """(y, z) after each of ``time`` steps from a unit force in the first, (time, 2)."""
    matrix = _oscillator(step_size, stiffness, damping)
    response = torch.tensor([step_size**2, step_size], dtype=torch.float64)
    rows = []
    for _ in range(time):
        rows.append(response)
        response = matrix @ response
    return torch.stack(rows)


class TestCoRNN:
    @CORNN
    def test_the_state_stays_within_a_bound_that_knows_neither_weights_nor_time(
        self, step_size: float, stiffness: float, damping: float
    ) -> None:
        y_bound, z_bound = _responses(step_size, stiffness, damping, time=20_000).abs().sum(dim=0).tolist()
        cell = make_wild(create_cell("cornn", 1, 6, step_size=step_size, stiffness=stiffness, damping=damping).double())
        states = run_steps(cell, normal(500, 8, 1, scale=10))
        assert max(float(y.abs().max()) for y, _ in states) <= y_bound
        assert max(float(z.abs().max()) for _, z in states) <= z_bound
        # Where nothing oscillates (damping^2 >= 4 stiffness, nearly) the bound is the spring under full force.
        assert y_bound >= 1 / stiffness - 1e-9

    def test_the_bound_is_reached(self) -> None:
        step_size, stiffness, damping = 0.3, 2.0, 0.2
        responses = _responses(step_size, stiffness, damping, time=300)
        cell = create_cell("cornn", 1, 1, step_size=step_size, stiffness=stiffness, damping=damping).double()
        for parameter in cell.parameters():
            nn.init.zeros_(parameter)
        nn.init.constant_(cell.get_parameter("weight_ih"), 100.0)
        forces = responses[:, 0].sign().flip(0)[:, None, None]
        y, _ = run_steps(cell, forces)[-1]
        assert y.item() == pytest.approx(responses[:, 0].abs().sum().item(), rel=1e-9)
        assert y.item() > 2 / stiffness

    def test_the_step_is_stable_up_to_the_length_that_is_refused_and_not_beyond(self) -> None:
        for stiffness, damping in itertools.product((0.1, 1.0, 30.0), (0.1, 1.0, 15.0)):
            # The root of 2 h damping + h^2 stiffness = 4.
            longest = (math.sqrt(damping**2 + 4 * stiffness) - damping) / stiffness
            for factor, stable in ((0.1, True), (0.999, True), (1.001, False)):
                radius = torch.linalg.eigvals(_oscillator(factor * longest, stiffness, damping)).abs().max().item()
                assert (radius < 1) == stable
            create_cell("cornn", 1, 1, step_size=0.999 * longest, stiffness=stiffness, damping=damping)
            with pytest.raises(ValueError, match=r"^step_size is too long for CoRNNCell: "):
                create_cell("cornn", 1, 1, step_size=1.001 * longest, stiffness=stiffness, damping=damping)

    def test_at_the_default_options_steps_of_changing_length_keep_a_bound_too(self) -> None:
        # In the norm |L^T (y, z)| every step up to the regular one shrinks what it is given, and adds its length times
        # at most a constant; so no state exceeds the ratio of the two.
        metric = torch.tensor([[0.57, 0.225], [0.225, 1.0]], dtype=torch.float64)
        root = torch.linalg.cholesky(metric)
        shrinking, pushing = math.inf, 0.0
        step_size, stiffness, damping = OURS
        for length in torch.linspace(1e-3, 1, 500).mul(step_size).tolist():
            matrix = root.T @ _oscillator(length, stiffness, damping) @ torch.linalg.inv(root.T)
            shrinking = min(shrinking, (1 - norm(matrix)) / length)
            pushing = max(pushing, float((root.T @ torch.tensor([length, 1.0], dtype=torch.float64)).norm()))
        assert shrinking > 0.18
        cell = make_wild(create_cell("cornn", 1, 6).double())
        states = run_steps(cell, normal(800, 8, 1, scale=10), dt=torch.rand(800, 8, 1, dtype=torch.float64))
        norms = [(torch.stack(state, dim=-1) @ root).norm(dim=-1).max() for state in states]
        assert max(norms) <= pushing / shrinking

    @CORNN
    @pytest.mark.parametrize("irregular", [False, True], ids=["regular", "irregular"])
    def test_the_energy_grows_by_no_more_than_its_bound_a_step(
        self, step_size: float, stiffness: float, damping: float, irregular: bool
    ) -> None:
        assert step_size * damping <= 1
        assert step_size * stiffness < damping
        cell = make_wild(create_cell("cornn", 1, 6, step_size=step_size, stiffness=stiffness, damping=damping).double())
        dt = torch.rand(300, 8, 1, dtype=torch.float64) if irregular else None
        start = (normal(8, 6, scale=5), normal(8, 6, scale=5))
        states = run_steps(cell, normal(300, 8, 1, scale=10), start, dt)
        energy = torch.stack([stiffness * y.square().sum(dim=1) + z.square().sum(dim=1) for y, z in states])
        allowed = 6 * step_size / (damping - step_size * stiffness)
        assert (energy[1:] - energy[:-1]).max() <= allowed * (1 + 1e-9)

    def test_the_coupling_can_drive_trajectories_apart(self) -> None:
        cell = create_cell("cornn", 1, 8).double()
        with torch.no_grad():
            for parameter in cell.parameters():
                parameter.zero_()
            cell.get_parameter("weight_hh").copy_(20 * eye(8))
        state = (torch.zeros(8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64))
        assert torch.linalg.eigvals(step_jacobian(cell, state, torch.zeros(1, dtype=torch.float64))).abs().max() > 1.1

    def test_parameters_start_uniform_within_the_root_of_what_a_unit_sees(self) -> None:
        cell = create_cell("cornn", 10, 100)
        for parameter in cell.parameters():
            bound = 210**-0.5
            assert parameter.abs().max() <= bound
        assert cell.get_parameter("weight_hh").std().item() == pytest.approx(210**-0.5 / math.sqrt(3), rel=0.02)


class TestLEM:
    @every_stage
    @pytest.mark.parametrize("step_size", [0.1, 0.31, 1.0])
    @pytest.mark.parametrize("irregular", [False, True], ids=["regular", "irregular"])
    def test_hidden_state_and_memory_stay_within_one(self, step_size: float, stage: str, irregular: bool) -> None:
        cell = cell_at(stage, "lem", 9, step_size=step_size)
        dt = torch.rand(60, 8, 1, dtype=torch.float64) if irregular else None
        for wild in (False, True):
            if wild:
                make_wild(cell)
            start = tuple(torch.empty(8, 9, dtype=torch.float64).uniform_(-1, 1) for _ in range(2))
            states = run_steps(cell, normal(60, 8, 1, scale=10), start, dt)
            assert max(float(tensor.abs().max()) for state in states for tensor in state) <= 1

    def test_a_gap_of_many_steps_keeps_the_bound_too(self) -> None:
        layer = StableRNN("lem", 1, 9).double()
        make_wild(layer)
        output, state = layer(normal(4, 20, 1), dt=40 * torch.rand(4, 20, dtype=torch.float64))
        assert max(output.abs().max().item(), *(tensor.abs().max().item() for tensor in state)) <= 1

    def test_a_state_from_outside_comes_no_further_out(self) -> None:
        cell = make_wild(create_cell("lem", 1, 9).double())
        y, z = zip(*run_steps(cell, normal(60, 8, 1), (normal(8, 9, scale=5), normal(8, 9, scale=5))), strict=True)
        for states in (torch.stack(y).abs(), torch.stack(z).abs()):
            assert (states[1:] <= states[:-1].clamp_min(1)).all()

    def test_a_step_size_above_one_loses_the_bound(self) -> None:
        cell = create_cell("lem", 1, 1, step_size=1.8).double()
        with torch.no_grad():
            for parameter in cell.parameters():
                parameter.zero_()
            cell.get_parameter("bias_ih").fill_(20.0)
            cell.get_parameter("weight_ih")[2:] = -40.0
        forces = torch.tensor([0.0, 1.0] * 10, dtype=torch.float64)[:, None, None]
        assert max(float(z.abs().max()) for _, z in run_steps(cell, forces)) > 3

    def test_a_step_can_drive_states_apart(self) -> None:
        cell = make_wild(create_cell("lem", 1, 6).double())
        state = (torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64))
        with torch.no_grad():
            cell.get_parameter("bias_ih").zero_()
        assert norm(step_jacobian(cell, state, torch.zeros(1, dtype=torch.float64))) > 2

    def test_parameters_start_uniform_within_the_root_of_the_units(self) -> None:
        cell = create_cell("lem", 10, 100)
        for parameter in cell.parameters():
            assert 0.09 < parameter.abs().max() <= 0.1
            assert parameter.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.1)


class TestUnICORNN:
    @pytest.mark.parametrize(
        ("preset", "stage", "w"),
        [
            ("practical", "fresh", None),
            *(("paper", stage, None) for stage in STAGES),
            *(("paper", "fresh", w) for w in (-10.0, -2.0, 2.0, 10.0)),
        ],
    )
    @pytest.mark.parametrize("irregular", [False, True], ids=["regular", "irregular"])
    def test_a_thousand_steps_are_undone(self, preset: str, stage: str, w: float | None, irregular: bool) -> None:
        cell = cell_at(stage, "unicornn", 16, preset=preset)
        if w is not None:
            nn.init.constant_(cell.weight_hh, w)
        assert self._distance_after_there_and_back(cell, irregular) < 1e-10

    @pytest.mark.parametrize("w", [-2.0, 10.0])
    def test_units_with_weights_well_above_the_stiffness_can_be_chaotic_and_do_not_come_back(self, w: float) -> None:
        cell = cell_at("fresh", "unicornn", 16)
        assert (cell.step_size, cell.stiffness) == (0.5, 1.0)
        nn.init.constant_(cell.weight_hh, w)
        assert self._distance_after_there_and_back(cell) > 1e-8

    def _distance_after_there_and_back(self, cell: Any, irregular: bool = False) -> float:
        """The largest error of the state after 1,000 steps that are then undone."""
        x = normal(1000, 4, 1)
        dt = torch.rand(1000, 4, 1, dtype=torch.float64) if irregular else None
        start = (normal(4, 16), normal(4, 16))
        state, weights, drive = run_steps(cell, x, start, dt)[-1], cell.materialize(), cell.drive(x)
        for t in reversed(range(1000)):
            state = cell.inverse_step(weights, state, drive[t], None if dt is None else dt[t])
        return max(float((got - expected).detach().abs().max()) for got, expected in zip(state, start, strict=True))

    @every_stage
    def test_a_step_is_symplectic(self, stage: str) -> None:
        cell = cell_at(stage, "unicornn", 5, step_size=0.9, stiffness=2.0)
        form = torch.cat([torch.cat([0 * eye(5), eye(5)], dim=1), torch.cat([-eye(5), 0 * eye(5)], dim=1)])
        for scale in (0.1, 1.0, 10.0):
            for dt in (None, torch.full((1, 1), 3.7, dtype=torch.float64)):
                matrix = step_jacobian(cell, (normal(5, scale=scale), normal(5, scale=scale)), normal(1), dt)
                torch.testing.assert_close(matrix.T @ form @ matrix, form, rtol=0, atol=1e-12)
                assert torch.linalg.det(matrix).item() == pytest.approx(1, abs=1e-11)

    def test_no_step_contracts_every_direction(self) -> None:
        cell = make_wild(create_cell("unicornn", 1, 5).double())
        for _ in range(10):
            assert norm(step_jacobian(cell, (normal(5), normal(5)), normal(1))) >= 1

    @pytest.mark.parametrize("preset", ["practical", "paper"])
    def test_the_state_grows_by_at_most_its_speed_a_step_in_the_norm_of_its_linear_part(self, preset: str) -> None:
        cell: Any = make_wild(create_cell("unicornn", 1, 12, preset=preset).double())
        assert cell.step_size**2 * cell.stiffness < 4
        speed = cell.step_size * torch.sigmoid(cell.speed).detach()
        states = run_steps(cell, normal(500, 8, 1, scale=10), (normal(8, 12, scale=3), normal(8, 12, scale=3)))
        norms = torch.stack(
            [(cell.stiffness * y * y + z * z - speed * cell.stiffness * y * z).sqrt() for y, z in states]
        )
        assert (norms[1:] - norms[:-1] <= speed * (1 + 1e-9)).all()

    def test_an_input_in_resonance_makes_it_grow_for_ever(self) -> None:
        cell: Any = create_cell("unicornn", 1, 1).double()
        with torch.no_grad():
            cell.weight_hh.zero_()
            cell.speed.zero_()
            cell.weight_ih.fill_(20.0)
        weights, state = cell.materialize(), cell.initial_state(1)
        sizes = []
        for _ in range(2000):
            push = torch.where(state[1] >= 0, -1.0, 1.0).double()
            state = cell.step(weights, state, cell.drive(push))
            sizes.append(float(torch.cat(state).detach().abs().max()))
        # Not the last sizes but the largest of some periods.
        assert max(sizes[1900:]) == pytest.approx(2 * max(sizes[900:1000]), rel=0.1)

    def test_steps_of_changing_length_can_pump_it_up(self) -> None:
        cell: Any = create_cell("unicornn", 1, 1, step_size=1.0, stiffness=3.0).double()
        with torch.no_grad():
            cell.speed.fill_(5.0)
        start = (torch.ones(1, 1).double(), torch.ones(1, 1).double())
        x = torch.zeros(1000, 1, 1, dtype=torch.float64)
        regular, irregular = run_steps(cell, x, start)[-1], run_steps(cell, x, start, torch.rand_like(x))[-1]
        assert torch.cat(regular).abs().max() < 10
        assert torch.cat(irregular).abs().max() > 1e6

    def test_a_step_too_long_for_its_stiffness_explodes(self) -> None:
        cell: Any = create_cell("unicornn", 1, 1, step_size=2.0, stiffness=2.0).double()
        with torch.no_grad():
            cell.speed.fill_(5.0)
        states = run_steps(cell, torch.zeros(50, 1, 1, dtype=torch.float64), (torch.ones(1, 1).double(),) * 2)
        assert states[-1][0].abs().item() > 1e10

    def test_parameters_start_as_published(self) -> None:
        cell: Any = create_cell("unicornn", 6, 2000, preset="paper")
        assert 0 <= cell.weight_hh.min() <= 0.01
        assert 0.99 <= cell.weight_hh.max() <= 1
        assert 0.099 <= cell.speed.abs().max() <= 0.1
        assert cell.weight_ih.abs().max().item() == pytest.approx(math.sqrt(6 / (65 * 6)), rel=1e-3)
        assert not cell.bias_ih.any()
