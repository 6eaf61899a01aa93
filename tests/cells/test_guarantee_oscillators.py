"""What the oscillators, LEM, the momentum LSTMs, sLSTM and the two ReLU cells promise, and where a promise ends.

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

from reference.dynamics import STAGES, assert_approach, cell_at, eye, norm
from reference.mapping import MAPPING, reference_states
from stablernn import StableRNN, create_cell
from stablernn.cells import StableCell

every_stage = pytest.mark.parametrize("stage", STAGES)
State = tuple[Tensor, ...]


def _wild(cell: Any, scale: float = 3.0) -> Any:
    """The cell with weights far beyond those of training."""
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.normal_(std=scale)
    return cell


def _run(cell: StableCell, x: Tensor, state: State | None = None, dt: Tensor | None = None) -> list[State]:
    """States before, between and after the steps over x (T, B, m), each of the length dt (T, B, 1)."""
    weights = cell.materialize()
    states = [cell.initial_state(x.shape[1]) if state is None else state]
    for t, drive in enumerate(cell.drive(x)):
        states.append(cell.step(weights, states[-1], drive, None if dt is None else dt[t]))
    return [tuple(tensor.detach() for tensor in state) for state in states]


def _normal(*shape: int, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64)


def _jacobian(cell: StableCell, state: State, x: Tensor, dt: Tensor | None = None) -> Tensor:
    """d(state after) / d(state before) of one step; state tensors (N,), x (m,)."""
    weights = tuple(tensor.detach() for tensor in cell.materialize())
    drive = cell.drive(x[None]).detach()
    sizes = [len(tensor) for tensor in state]

    def step(joined: Tensor) -> Tensor:
        parts = tuple(tensor[None] for tensor in joined.split(sizes))
        return torch.cat([tensor[0] for tensor in cell.step(weights, parts, drive, dt)])

    matrix = torch.autograd.functional.jacobian(step, torch.cat(state))
    assert isinstance(matrix, Tensor)
    return matrix


@pytest.mark.parametrize("key", ["cornn", "lem", "unicornn"])
def test_steps_of_any_length_are_those_of_the_reference(key: str) -> None:
    layer = StableRNN(key, 3, 5).double()
    _wild(layer, 0.4)
    x, dt = _normal(2, 9, 3), torch.rand(2, 9, dtype=torch.float64)
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
        cell = _wild(create_cell("cornn", 1, 6, step_size=step_size, stiffness=stiffness, damping=damping).double())
        states = _run(cell, _normal(500, 8, 1, scale=10))
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
        y, _ = _run(cell, forces)[-1]
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
        cell = _wild(create_cell("cornn", 1, 6).double())
        states = _run(cell, _normal(800, 8, 1, scale=10), dt=torch.rand(800, 8, 1, dtype=torch.float64))
        norms = [(torch.stack(state, dim=-1) @ root).norm(dim=-1).max() for state in states]
        assert max(norms) <= pushing / shrinking

    @CORNN
    @pytest.mark.parametrize("irregular", [False, True], ids=["regular", "irregular"])
    def test_the_energy_grows_by_no_more_than_its_bound_a_step(
        self, step_size: float, stiffness: float, damping: float, irregular: bool
    ) -> None:
        assert step_size * damping <= 1
        assert step_size * stiffness < damping
        cell = _wild(create_cell("cornn", 1, 6, step_size=step_size, stiffness=stiffness, damping=damping).double())
        dt = torch.rand(300, 8, 1, dtype=torch.float64) if irregular else None
        start = (_normal(8, 6, scale=5), _normal(8, 6, scale=5))
        states = _run(cell, _normal(300, 8, 1, scale=10), start, dt)
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
        assert torch.linalg.eigvals(_jacobian(cell, state, torch.zeros(1, dtype=torch.float64))).abs().max() > 1.1

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
                _wild(cell)
            start = tuple(torch.empty(8, 9, dtype=torch.float64).uniform_(-1, 1) for _ in range(2))
            states = _run(cell, _normal(60, 8, 1, scale=10), start, dt)
            assert max(float(tensor.abs().max()) for state in states for tensor in state) <= 1

    def test_a_gap_of_many_steps_keeps_the_bound_too(self) -> None:
        layer = StableRNN("lem", 1, 9).double()
        _wild(layer)
        output, state = layer(_normal(4, 20, 1), dt=40 * torch.rand(4, 20, dtype=torch.float64))
        assert max(output.abs().max().item(), *(tensor.abs().max().item() for tensor in state)) <= 1

    def test_a_state_from_outside_comes_no_further_out(self) -> None:
        cell = _wild(create_cell("lem", 1, 9).double())
        y, z = zip(*_run(cell, _normal(60, 8, 1), (_normal(8, 9, scale=5), _normal(8, 9, scale=5))), strict=True)
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
        assert max(float(z.abs().max()) for _, z in _run(cell, forces)) > 3

    def test_a_step_can_drive_states_apart(self) -> None:
        cell = _wild(create_cell("lem", 1, 6).double())
        state = (torch.zeros(6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64))
        with torch.no_grad():
            cell.get_parameter("bias_ih").zero_()
        assert norm(_jacobian(cell, state, torch.zeros(1, dtype=torch.float64))) > 2

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
        x = _normal(1000, 4, 1)
        dt = torch.rand(1000, 4, 1, dtype=torch.float64) if irregular else None
        start = (_normal(4, 16), _normal(4, 16))
        state, weights, drive = _run(cell, x, start, dt)[-1], cell.materialize(), cell.drive(x)
        for t in reversed(range(1000)):
            state = cell.inverse_step(weights, state, drive[t], None if dt is None else dt[t])
        return max(float((got - expected).detach().abs().max()) for got, expected in zip(state, start, strict=True))

    @every_stage
    def test_a_step_is_symplectic(self, stage: str) -> None:
        cell = cell_at(stage, "unicornn", 5, step_size=0.9, stiffness=2.0)
        form = torch.cat([torch.cat([0 * eye(5), eye(5)], dim=1), torch.cat([-eye(5), 0 * eye(5)], dim=1)])
        for scale in (0.1, 1.0, 10.0):
            for dt in (None, torch.full((1, 1), 3.7, dtype=torch.float64)):
                matrix = _jacobian(cell, (_normal(5, scale=scale), _normal(5, scale=scale)), _normal(1), dt)
                torch.testing.assert_close(matrix.T @ form @ matrix, form, rtol=0, atol=1e-12)
                assert torch.linalg.det(matrix).item() == pytest.approx(1, abs=1e-11)

    def test_no_step_contracts_every_direction(self) -> None:
        cell = _wild(create_cell("unicornn", 1, 5).double())
        for _ in range(10):
            assert norm(_jacobian(cell, (_normal(5), _normal(5)), _normal(1))) >= 1

    @pytest.mark.parametrize("preset", ["practical", "paper"])
    def test_the_state_grows_by_at_most_its_speed_a_step_in_the_norm_of_its_linear_part(self, preset: str) -> None:
        cell: Any = _wild(create_cell("unicornn", 1, 12, preset=preset).double())
        assert cell.step_size**2 * cell.stiffness < 4
        speed = cell.step_size * torch.sigmoid(cell.speed).detach()
        states = _run(cell, _normal(500, 8, 1, scale=10), (_normal(8, 12, scale=3), _normal(8, 12, scale=3)))
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
        regular, irregular = _run(cell, x, start)[-1], _run(cell, x, start, torch.rand_like(x))[-1]
        assert torch.cat(regular).abs().max() < 10
        assert torch.cat(irregular).abs().max() > 1e6

    def test_a_step_too_long_for_its_stiffness_explodes(self) -> None:
        cell: Any = create_cell("unicornn", 1, 1, step_size=2.0, stiffness=2.0).double()
        with torch.no_grad():
            cell.speed.fill_(5.0)
        states = _run(cell, torch.zeros(50, 1, 1, dtype=torch.float64), (torch.ones(1, 1).double(),) * 2)
        assert states[-1][0].abs().item() > 1e10

    def test_parameters_start_as_published(self) -> None:
        cell: Any = create_cell("unicornn", 6, 2000, preset="paper")
        assert 0 <= cell.weight_hh.min() <= 0.01
        assert 0.99 <= cell.weight_hh.max() <= 1
        assert 0.099 <= cell.speed.abs().max() <= 0.1
        assert cell.weight_ih.abs().max().item() == pytest.approx(math.sqrt(6 / (65 * 6)), rel=1e-3)
        assert not cell.bias_ih.any()


class TestMomentumLSTM:
    BOTH = pytest.mark.parametrize("key", ["momentum_lstm", "sr_lstm"])

    @BOTH
    def test_the_identity_stands_in_the_input_gates_block_alone(self, key: str) -> None:
        i, f, g, o = create_cell(key, 3, 7).get_parameter("weight_hh").chunk(4)
        assert torch.equal(i, torch.eye(7))
        assert not any(block.any() for block in (f, g, o))

    @BOTH
    def test_both_biases_open_the_forget_gate(self, key: str) -> None:
        cell = create_cell(key, 3, 4, preset="paper")
        for name in ("bias_ih", "bias_hh"):
            assert torch.equal(cell.get_parameter(name), torch.tensor([0.0] * 4 + [1.0] * 4 + [0.0] * 8))
        timit = create_cell(key, 3, 4, forget_bias=-4.0)
        assert bool((timit.get_parameter("bias_hh")[4:8] == -4).all())

    @BOTH
    def test_the_input_matrix_starts_orthogonal(self, key: str) -> None:
        w = create_cell(key, 3, 7).double().get_parameter("weight_ih").detach()
        torch.testing.assert_close(w.T @ w, eye(3), rtol=0, atol=1e-6)

    def test_the_accumulated_forget_bias_is_that_of_the_docstring(self) -> None:
        cell: Any = create_cell("momentum_lstm", 1, 1).double()
        *_, v = _run(cell, torch.zeros(200, 1, 1, dtype=torch.float64))[-1]
        seen = v[0, 1] + cell.bias_hh[1]
        assert seen.item() == pytest.approx(1 + cell.input_scale / (1 - cell.momentum), rel=1e-12)

    def test_at_input_scale_one_the_two_forget_biases_of_sr_lstm_cancel(self) -> None:
        cell: Any = create_cell("sr_lstm", 1, 3, preset="paper").double()
        p = _run(cell, torch.zeros(1, 1, 1, dtype=torch.float64))[-1][2]
        assert not p.any()

    def test_without_momentum_it_is_the_lstm(self) -> None:
        cell: Any = _wild(create_cell("momentum_lstm", 2, 5, momentum=0.0, input_scale=1.0).double(), 0.5)
        lstm = create_cell("lstm", 2, 5).double()
        with torch.no_grad():
            bias = cell.bias_ih + cell.bias_hh
            lstm.load_state_dict({"weight_ih": cell.weight_ih, "weight_hh": cell.weight_hh, "bias_ih": bias})
        x = _normal(20, 3, 2)
        for got, expected in zip(_run(cell, x), _run(lstm, x), strict=True):
            torch.testing.assert_close(got[:2], expected, rtol=0, atol=1e-12)

    def test_a_cycle_of_one_step_is_the_lstm_with_the_input_turned_around(self) -> None:
        cell: Any = _wild(create_cell("sr_lstm", 2, 5, restart=1, input_scale=0.7).double(), 0.5)
        lstm = create_cell("lstm", 2, 5).double()
        with torch.no_grad():
            bias = cell.bias_hh - 0.7 * cell.bias_ih
            lstm.load_state_dict({"weight_ih": -0.7 * cell.weight_ih, "weight_hh": cell.weight_hh, "bias_ih": bias})
        x = _normal(20, 3, 2)
        for got, expected in zip(_run(cell, x), _run(lstm, x), strict=True):
            torch.testing.assert_close(got[:2], expected, rtol=0, atol=1e-12)

    @pytest.mark.parametrize("restart", [1, 2, 5, 40])
    def test_the_count_goes_round(self, restart: int) -> None:
        cell = create_cell("sr_lstm", 1, 2, restart=restart)
        counts = [int(state[3]) for state in _run(cell, torch.zeros(100, 1, 1))]
        assert counts == [t % restart for t in range(101)]

    def test_the_first_step_of_a_cycle_does_not_see_the_step_before(self) -> None:
        cell: Any = _wild(create_cell("sr_lstm", 1, 4).double(), 0.5)
        h, c, _, count = cell.initial_state(2)
        previous = _normal(2, 16)
        weights, drive = cell.materialize(), cell.drive(torch.ones(2, 1, dtype=torch.float64))
        first = cell.step(weights, (h, c, previous, count), drive)
        assert torch.equal(first[0], cell.step(weights, (h, c, 0 * previous, count), drive)[0])
        second = cell.step(weights, (h, c, previous, count + 1), drive)
        assert (second[0] - first[0]).abs().max() > 0.01

    @BOTH
    @every_stage
    def test_the_hidden_state_stays_within_one_and_the_cell_state_within_the_number_of_steps(
        self, key: str, stage: str
    ) -> None:
        cell = cell_at(stage, key, 9)
        for t, (h, c, *_) in enumerate(_run(cell, _normal(50, 2, 1, scale=10))):
            assert h.abs().max() <= 1
            assert c.abs().max() <= t

    @every_stage
    def test_the_momentum_stays_within_that_of_the_largest_drive(self, stage: str) -> None:
        cell = cell_at(stage, "momentum_lstm", 9)
        x = _normal(200, 2, 1, scale=10)
        largest = cell.drive(x).abs().max() / (1 - cell.momentum)
        assert max(float(v.abs().max()) for *_, v in _run(cell, x)) <= largest * (1 + 1e-12)


class TestSLSTM:
    @every_stage
    @pytest.mark.parametrize("init", ["spread", "released"])
    def test_the_output_stays_within_one_and_the_normalizer_above(self, init: str, stage: str) -> None:
        cell = cell_at(stage, "slstm", 9, init=init)
        for wild in (False, True):
            if wild:
                _wild(cell)
            states = _run(cell, _normal(80, 6, 1, scale=10))[1:]
            for t, (h, c, n, _) in enumerate(states, start=1):
                assert h.abs().max() <= 1
                assert (c.abs() <= n * (1 + 1e-12)).all()
                assert n.min() >= 1 - 1e-12
                assert n.max() <= t

    def test_the_stabilizer_changes_no_output(self) -> None:
        cell: Any = _wild(create_cell("slstm", 2, 5).double(), 0.5)
        h, c, n, m = _run(cell, _normal(10, 3, 2))[-1]
        x, shift = _normal(30, 3, 2), _normal(3, 5, scale=3)
        moved = (h, c * torch.exp(-shift), n * torch.exp(-shift), m + shift)
        for got, expected in zip(_run(cell, x, moved), _run(cell, x, (h, c, n, m)), strict=True):
            torch.testing.assert_close(got[0], expected[0], rtol=0, atol=1e-12)

    def test_it_is_the_recurrence_without_a_stabilizer_where_that_does_not_overflow(self) -> None:
        cell: Any = _wild(create_cell("slstm", 2, 5).double(), 0.5)
        x = _normal(40, 3, 2)
        h = c = n = torch.zeros(3, 5, dtype=torch.float64)
        for drive, (expected, *_) in zip(cell.drive(x), _run(cell, x)[1:], strict=True):
            i, f, z, o = (h @ cell.recurrent_matrix().T + drive).detach().chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.exp(i) * torch.tanh(z)
            n = torch.sigmoid(f) * n + torch.exp(i)
            h = torch.sigmoid(o) * c / n
            torch.testing.assert_close(h, expected, rtol=0, atol=1e-12)

    def test_each_row_knows_its_own_start(self) -> None:
        cell: Any = _wild(create_cell("slstm", 2, 5).double(), 0.5)
        going = _run(cell, _normal(10, 1, 2))[-1]
        joined = tuple(torch.cat([tensor, torch.zeros_like(tensor)]) for tensor in going)
        x = _normal(20, 2, 2)
        both = _run(cell, x, joined)[-1]
        for got, expected in zip(both, _run(cell, x[:, 1:])[-1], strict=True):
            torch.testing.assert_close(got[1:], expected, rtol=0, atol=1e-12)

    def test_the_first_step_forgets_what_never_was(self) -> None:
        cell: Any = _wild(create_cell("slstm", 2, 5).double())
        _, _, z, o = cell.drive(torch.ones(1, 2, dtype=torch.float64)).detach().chunk(4, dim=-1)
        h, c, n, _ = cell(torch.ones(1, 2, dtype=torch.float64))
        assert torch.equal(n, torch.ones_like(n))
        torch.testing.assert_close(c, torch.tanh(z), rtol=0, atol=1e-15)
        torch.testing.assert_close(h, torch.sigmoid(o) * torch.tanh(z), rtol=0, atol=1e-15)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_gates_beyond_the_range_of_the_exponential_overflow_nothing(self, dtype: torch.dtype) -> None:
        layer = StableRNN("slstm", 1, 4).to(dtype)
        with torch.no_grad():
            layer.cells[0].get_parameter("weight_ih").mul_(1e4)
        x = (100 * torch.randn(3, 40, 1, dtype=dtype)).requires_grad_()
        output, state = layer(x)
        assert all(torch.isfinite(tensor).all() for tensor in (output, *state))
        output.sum().backward()
        for tensor in (x, *layer.parameters()):
            assert tensor.grad is not None
            assert torch.isfinite(tensor.grad).all()

    @pytest.mark.parametrize("num_heads", [1, 2, 3, 6])
    def test_heads_are_those_of_the_reference(self, num_heads: int) -> None:
        layer = StableRNN("slstm", 2, 6, num_heads=num_heads).double()
        _wild(layer, 0.4)
        x = _normal(3, 11, 2)
        states = reference_states(layer.cells[0], x, layer.initial_state(3))
        output, _ = layer(x)
        torch.testing.assert_close(output, states[0], rtol=0, atol=1e-12)

    def test_a_head_sees_itself_alone(self) -> None:
        cell: Any = _wild(create_cell("slstm", 1, 6, num_heads=3).double(), 0.5)
        state = tuple(tensor[0] for tensor in _run(cell, _normal(5, 1, 1))[-1])
        blocks = _jacobian(cell, state, _normal(1))[:6, :6].view(3, 2, 3, 2).abs().amax(dim=(1, 3))
        assert blocks.diagonal().min() > 0
        assert not (blocks - torch.diag(blocks.diagonal())).any()

    def test_released_start(self) -> None:
        cell: Any = create_cell("slstm", 3, 8, num_heads=2, init="released")
        assert not cell.weight_hh.any()
        i, f, z, o = cell.bias_ih.chunk(4)
        assert not any(bias.any() for bias in (i, z, o))
        expected = 5 - 12 * (torch.arange(4) / 3) ** 0.3
        torch.testing.assert_close(f.detach(), expected.repeat(2))

    def test_spread_start(self) -> None:
        cell: Any = create_cell("slstm", 3, 100)
        assert 0.09 < cell.weight_hh.abs().max() <= 0.1
        torch.testing.assert_close(cell.bias_ih[100:200].detach(), torch.linspace(3, 6, 100))


class TestIndRNN:
    @pytest.mark.parametrize("max_length", [None, 1, 8, 784])
    def test_recurrent_weights_stay_within_their_bound_in_training(self, max_length: int | None) -> None:
        layer = StableRNN("indrnn", 1, 16, max_length=max_length).double()
        u = layer.cells[0].get_parameter("weight_hh")
        bound = 1.0 if max_length is None else 2 ** (1 / max_length)
        assert 0 <= u.min() <= u.max() <= bound
        self._grow(layer, clamped=True)
        assert u.abs().max().item() == bound

    def test_training_pushes_them_beyond_where_nothing_clamps(self) -> None:
        layer = StableRNN("indrnn", 1, 16).double()
        self._grow(layer, clamped=False)
        assert layer.cells[0].get_parameter("weight_hh").abs().max() > 1.5

    def _grow(self, layer: StableRNN, clamped: bool) -> None:
        """Training that wants the largest outputs there are."""
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
        x = _normal(8, 12, 1)
        for step in range(200):
            optimizer.zero_grad()
            (-layer(x)[0][:, -1].sum()).backward()
            optimizer.step()
            if clamped:
                layer.after_step(step + 1, 200)

    def test_a_clamp_meets_both_signs(self) -> None:
        layer = StableRNN("indrnn", 1, 3, max_length=2).double()
        u = layer.cells[0].get_parameter("weight_hh")
        with torch.no_grad():
            u.copy_(torch.tensor([-7.0, 0.5, 7.0]))
        layer.after_step(1, 1)
        assert u.tolist() == [-math.sqrt(2), 0.5, math.sqrt(2)]

    @pytest.mark.parametrize("stage", ["fresh", "trained"])
    def test_no_step_drives_two_states_apart(self, stage: str) -> None:
        assert_approach(cell_at(stage, "indrnn", 9), rate=1.0, scale=3.0)

    def test_max_length_steps_at_most_double_a_distance(self) -> None:
        cell = cell_at("fresh", "indrnn", 1, max_length=20)
        with torch.no_grad():
            cell.weight_hh.fill_(cell.bound)
        a, b = torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), 2.0, dtype=torch.float64)
        x = torch.rand(20, 1, 1, dtype=torch.float64).mul(cell.weight_ih.detach().sign())
        (first,), (second,) = _run(cell, x, (a,))[-1], _run(cell, x, (b,))[-1]
        assert (second - first).abs().item() == pytest.approx(2, rel=1e-12)

    def test_a_unit_that_adds_up_has_no_bound(self) -> None:
        cell = cell_at("fresh", "indrnn", 1)
        with torch.no_grad():
            cell.weight_hh.fill_(1.0)
            cell.weight_ih.fill_(1.0)
        (h,) = _run(cell, torch.ones(1000, 1, 1, dtype=torch.float64))[-1]
        assert h.item() == 1000


class TestIdentityRNN:
    def test_start(self) -> None:
        cell = create_cell("identity_rnn", 50, 200, preset="paper")
        assert torch.equal(cell.recurrent_matrix(), torch.eye(200))
        assert not cell.get_parameter("bias").any()
        assert cell.get_parameter("weight_ih").std().item() == pytest.approx(0.001, rel=0.05)

    def test_no_step_drives_two_states_apart_at_the_start(self) -> None:
        assert_approach(cell_at("fresh", "identity_rnn", 9), rate=1.0)

    def test_training_loses_that(self) -> None:
        cell = cell_at("trained", "identity_rnn", 9)
        assert norm(cell.recurrent_matrix()) > 1.01
