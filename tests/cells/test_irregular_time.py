"""Steps of unequal length: what holds for every cell that takes ``dt``, and what is refused."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.func import functional_call

import stablernn as srn
from model_helpers import mark_fitted
from reference.dynamics import cell_at, log_norm, norm
from reference.mapping import MAPPING
from stablernn import StableRNN, create_cell, list_cells
from stablernn.cells import NoisyRNNCell, StableCell
from stablernn.errors import ConfigError
from stablernn.parametrizations import cayley_propagator

TIMED = [key for key in list_cells() if create_cell(key, 2, 3).takes_dt]
UNTIMED = [key for key in list_cells() if key not in TIMED]


def _repeats_its_step(key: str) -> bool:
    """Whether a long step is the regular one several times over, the input held; others have a way of their own."""
    cell = type(create_cell(key, 2, 3))
    # Without noise the noisy cell's own way is that one.
    own = cell.advance is not StableCell.advance and cell is not NoisyRNNCell
    return not own and cell.substeps is StableCell.substeps


REPEATING = [key for key in TIMED if _repeats_its_step(key)]
# The midpoint rule's reference has no dt: a test of its own says what its step is.
REFERENCED = [key for key in TIMED if "dt" in inspect.signature(MAPPING[key].module.sequence).parameters]
every_timed_cell = pytest.mark.parametrize("key", TIMED)
# Along random directions, which a wrong derivative does not survive; entry by entry in the slow tests.
every_thoroughness = pytest.mark.parametrize(
    "fast", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["directions", "entries"]
)
every_repeating_cell = pytest.mark.parametrize("key", REPEATING)


def _exactly(sentence: str) -> str:
    return f"^{re.escape(sentence)}$"


def _layer(key: str, num_layers: int = 1, **options: Any) -> StableRNN:
    """A float64 layer of 3 features and 5 units in evaluation mode, away from its start."""
    layer = StableRNN(key, 3, 5, num_layers, **options).double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    return layer


def _inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def _lengths_of_steps(*shape: int, longest: float = 2.5) -> Tensor:
    return longest * torch.rand(*shape, dtype=torch.float64)


def _parts(state: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return [state] if isinstance(state, Tensor) else list(state)


def _assert_close(got: list[Tensor], expected: list[Tensor], tolerance: float = 1e-11) -> None:
    for have, want in zip(got, expected, strict=True):
        torch.testing.assert_close(have, want, rtol=tolerance, atol=tolerance)


def test_the_cells_that_come_from_an_equation_in_time_take_dt() -> None:
    assert {"antisymmetric", "antisymmetric_g", "antisym_ablation", "lipschitz", "lipschitz_rk2", "noisy_rnn"} <= {
        *TIMED
    }
    assert {"neural_ode_rnn", "ode_rnn", "nais_net", "lvf", "lvf_mid"} <= {*TIMED}
    assert {"rnn", "lstm", "gru", "fastrnn", "incremental"} <= {*UNTIMED}


def test_every_cell_but_one_has_a_reference_with_dt() -> None:
    assert set(TIMED) - set(REFERENCED) == {"lvf_mid"}


@every_timed_cell
@pytest.mark.parametrize("num_layers", [1, 2])
def test_regular_steps_said_are_regular_steps_unsaid(key: str, num_layers: int) -> None:
    layer = _layer(key, num_layers)
    x = _inputs(3, 9, 3)
    output, last = layer(x, dt=torch.ones(3, 9, dtype=torch.float64))
    expected, expected_last = layer(x)
    _assert_close([output, *_parts(last)], [expected, *_parts(expected_last)])


@every_timed_cell
def test_the_length_of_a_step_matters(key: str) -> None:
    layer = _layer(key)
    x = _inputs(1, 6, 3)
    dt = torch.ones(1, 6, dtype=torch.float64)
    regular = layer(x, dt=dt)[0]
    dt[0, 3] = 0.5
    shorter = layer(x, dt=dt)[0]
    assert torch.equal(shorter[:, :3], regular[:, :3])
    assert (shorter[:, 3:] - regular[:, 3:]).abs().amax(dim=(0, 2)).gt(1e-6).all()


@every_timed_cell
def test_each_sample_has_lengths_of_its_own(key: str) -> None:
    layer = _layer(key, max_dt=2.5)
    x, dt = _inputs(3, 7, 3), _lengths_of_steps(3, 7)
    output, last = layer(x, dt=dt)
    for row in range(3):
        alone, alone_last = layer(x[row], dt=dt[row])
        _assert_close([alone, *_parts(alone_last)], [output[row], *(part[:, row] for part in _parts(last))])


@every_repeating_cell
def test_a_step_of_two_in_two_parts_is_two_regular_steps_of_one_input(key: str) -> None:
    layer = _layer(key)
    x = _inputs(2, 6, 3)
    output, last = layer(x, dt=torch.full((2, 6), 2.0, dtype=torch.float64))
    expected, expected_last = layer(x.repeat_interleave(2, dim=1))
    _assert_close([output, *_parts(last)], [expected[:, 1::2], *_parts(expected_last)])


@every_repeating_cell
def test_a_step_of_no_length_leaves_the_state(key: str) -> None:
    cell = _layer(key).cells[0]
    state = cell(_inputs(2, 3))
    _assert_close(_parts(cell(_inputs(2, 3), state, dt=0.0)), _parts(state))


@every_repeating_cell
def test_no_part_of_a_step_is_longer_than_a_regular_one(key: str) -> None:
    cell = create_cell(key, 3, 5)
    assert [cell.substeps(longest) for longest in (0.1, 1.0, 1.01, 2.0, 2.5, 7.0)] == [1, 1, 2, 2, 3, 7]


def test_the_longest_step_decides_the_parts_of_all_steps() -> None:
    # max_dt fixes the parts once, so that a model gives the same numbers whatever else is in a batch.
    layer, free = _layer("lipschitz", max_dt=2.5), _layer("lipschitz")
    free.load_state_dict(layer.state_dict())
    x, ones = _inputs(1, 5, 3), torch.ones(1, 5, dtype=torch.float64)
    in_three, whole = layer(x, dt=ones)[0], free(x, dt=ones)[0]
    assert not torch.allclose(in_three, whole)
    longer = ones.clone()
    longer[0, -1] = 2.5
    assert torch.equal(layer(x, dt=longer)[0][:, :-1], in_three[:, :-1])
    _assert_close([free(x, dt=longer)[0][:, :-1]], [in_three[:, :-1]])


@every_timed_cell
@every_thoroughness
@pytest.mark.parametrize("size", [1, 3])
def test_first_derivatives_through_dt_equal_finite_differences(key: str, size: int, fast: bool) -> None:
    function, points = _problem(key, size, time=3)
    assert gradcheck(function, points, fast_mode=fast)


@every_timed_cell
@every_thoroughness
def test_second_derivatives_through_dt_equal_finite_differences(key: str, fast: bool) -> None:
    function, points = _problem(key, 3, time=2)
    assert gradgradcheck(function, points, fast_mode=fast)


def _problem(key: str, size: int, time: int) -> tuple[Any, list[Tensor]]:
    """The layer as a function of input, lengths of steps and parameters, away from whole lengths."""
    # Of its field's 100 units a few are as good, and take a tenth of the time.
    options = {"flow_size": 4} if key == "ode_rnn" else {}
    layer = StableRNN(key, 2, size, engine="loop", max_dt=2.5, **options).double().eval()
    names = [name for name, _ in layer.named_parameters()]
    points = [_inputs(2, time, 2), 0.1 + _lengths_of_steps(2, time, longest=2.3)]
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(std=0.5)
        # Outside a constraint the gradient passes straight through the projection, and is no derivative.
        layer.after_step(1, 100)
    points += [parameter.detach().clone() for parameter in layer.parameters()]

    def outputs(x: Tensor, dt: Tensor, *values: Tensor) -> Tensor:
        result, last = functional_call(layer, dict(zip(names, values, strict=True)), (x, None, None, dt))
        return torch.cat([result.flatten(), *(part.flatten() for part in _parts(last))])

    return outputs, [point.detach().requires_grad_() for point in points]


@pytest.mark.parametrize("key", REFERENCED)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (2, 7, 3, 7), (2, 20, 2, 32)], ids=["ones", "odd", "usual"])
def test_values_and_gradients_are_those_of_the_reference(key: str, sizes: tuple[int, ...]) -> None:
    batch, time, features, hidden = sizes
    module = MAPPING[key].module
    layer = StableRNN(key, features, hidden).double().eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4 * hidden**-0.5)
    layer.after_step(1, 100)
    cell = layer.cells[0]
    # Up to 1 no cell divides a step; beyond it only those that take any length at once do not.
    longest = 3.0 if cell.substeps(3.0) == 1 else 1.0
    x, dt = _inputs(batch, time, features), _lengths_of_steps(batch, time, longest=longest)
    if cell.takes_missing:
        x[torch.rand(x.shape) < 0.2] = math.nan
    leaves = [x.requires_grad_(), dt.requires_grad_()]
    zeros = cell.initial_state(batch)

    def flat(states: Any) -> Tensor:
        outputs = states[0] if isinstance(states, tuple) else states
        return (outputs * torch.linspace(-1, 2, outputs.numel(), dtype=outputs.dtype).reshape(outputs.shape)).sum()

    output, _ = layer.run(leaves[0], zeros, dt=leaves[1])
    scalars = MAPPING[key].scalars(cell)
    expected = module.sequence(MAPPING[key].params(cell), leaves[0], *zeros, **scalars, dt=leaves[1])
    _assert_close([output], [expected[0] if isinstance(expected, tuple) else expected], 1e-9)
    wanted = [*leaves, *layer.parameters()]
    arguments: dict[str, Any] = {"allow_unused": True, "materialize_grads": True}
    got = torch.autograd.grad(flat(output), wanted, **arguments)
    for have, want in zip(got, torch.autograd.grad(flat(expected), wanted, **arguments), strict=True):
        if want.numel():
            torch.testing.assert_close(have, want, rtol=0, atol=1e-9 * max(1.0, float(want.abs().max())))


@every_timed_cell
@pytest.mark.parametrize("filler", [0.0, -3.0, 1e9, math.nan, math.inf])
def test_what_stands_in_the_padding_of_dt_changes_no_bit(key: str, filler: float) -> None:
    layer = _layer(key, num_layers=2, max_dt=2.5)
    lengths = torch.tensor([8, 5, 1])
    x, dt = _inputs(3, 8, 3), _lengths_of_steps(3, 8)
    results = []
    for value in (1.0, filler):
        filled = dt.masked_fill(torch.arange(8) >= lengths[:, None], value)
        output, last = layer(x, lengths=lengths, dt=filled)
        gradients = torch.autograd.grad(output.square().sum(), list(layer.parameters()), allow_unused=True)
        results.append([output, *_parts(last), *(gradient for gradient in gradients if gradient is not None)])
    for have, want in zip(results[1], results[0], strict=True):
        assert torch.equal(have, want)


@every_timed_cell
@pytest.mark.parametrize("cuts", [[5, 6], [1] * 11], ids=["two-chunks", "single-steps"])
def test_a_run_in_chunks_equals_the_whole_run(key: str, cuts: list[int]) -> None:
    layer = _layer(key, num_layers=2, max_dt=2.5)
    x, dt = _inputs(2, 11, 3), _lengths_of_steps(2, 11)
    output, last = layer(x, dt=dt)
    state, pieces = None, []
    for chunk, lengths in zip(x.split(cuts, dim=1), dt.split(cuts, dim=1), strict=True):
        piece, state = layer(chunk, state if state is None or isinstance(state, Tensor) else tuple(state), dt=lengths)
        pieces.append(piece)
    assert state is not None
    _assert_close([torch.cat(pieces, dim=1), *_parts(state)], [output, *_parts(last)])


@every_timed_cell
def test_stepping_the_cell_equals_the_layer(key: str) -> None:
    layer = _layer(key)
    x, dt = _inputs(2, 6, 3), _lengths_of_steps(2, 6, longest=1.0)
    output, _ = layer(x, dt=dt)
    state = None
    for t in range(6):
        state = layer.cells[0](x[:, t], state, dt=dt[:, t])
        _assert_close([_parts(state)[0]], [output[:, t]])


@every_timed_cell
def test_a_cell_takes_one_length_for_all_samples(key: str) -> None:
    cell = _layer(key).cells[0]
    x = _inputs(2, 3)
    _assert_close(_parts(cell(x, dt=0.7)), _parts(cell(x, dt=torch.tensor([0.7, 0.7], dtype=torch.float64))))


@every_timed_cell
def test_time_first_equals_batch_first(key: str) -> None:
    layer, time_first = _layer(key), _layer(key, batch_first=False)
    time_first.load_state_dict(layer.state_dict())
    x, dt = _inputs(2, 6, 3), _lengths_of_steps(2, 6)
    _assert_close([time_first(x.transpose(0, 1), dt=dt.T)[0].transpose(0, 1)], [layer(x, dt=dt)[0]])


@every_timed_cell
def test_without_gradients_the_numbers_are_the_same(key: str) -> None:
    layer = _layer(key)
    x, dt = _inputs(2, 6, 3), _lengths_of_steps(2, 6)
    expected = layer(x, dt=dt)[0]
    with torch.no_grad():
        regular = layer(x)[0]
        _assert_close([layer(x, dt=dt)[0]], [expected])
        # Matrices are kept between calls, those for dt apart from those for regular steps.
        assert torch.equal(layer(x)[0], regular)
        _assert_close([layer(x, dt=dt)[0]], [expected])


class TestRefusals:
    @pytest.mark.parametrize("key", UNTIMED)
    def test_a_cell_without_an_equation_in_time_takes_no_dt(self, key: str) -> None:
        sentence = _exactly(
            f"The cell '{key}' takes no dt: its step has no length. Leave dt out, or take a cell that comes from a "
            "differential equation, such as lipschitz, lem or gru_d."
        )
        with pytest.raises(ConfigError, match=sentence):
            StableRNN(key, 2, 3)(torch.zeros(1, 4, 2), dt=torch.ones(1, 4))
        with pytest.raises(ConfigError, match=sentence):
            create_cell(key, 2, 3)(torch.zeros(1, 2), dt=1.0)
        with pytest.raises(ConfigError, match=sentence):
            StableRNN(key, 2, 3, max_dt=2.0)
        with pytest.raises(ConfigError, match=sentence):
            srn.Classifier(key, 2, 3, max_dt=2.0)

    @pytest.mark.parametrize("constraint", ["none", "soft"])
    def test_the_midpoint_rule_takes_dt_for_a_skew_operator_only(self, constraint: str) -> None:
        weight = 0.1 if constraint == "soft" else 0.0
        layer = StableRNN("lvf_mid", 2, 3, constraint=constraint, divergence_weight=weight)
        assert not layer.cells[0].takes_dt
        sentence = (
            f"The cell 'lvf_mid' takes dt with constraint='hard' only, got constraint='{constraint}'. Leave dt out, or "
            "take the cell lvf."
        )
        with pytest.raises(ConfigError, match=_exactly(sentence)):
            layer(torch.zeros(1, 4, 2), dt=torch.ones(1, 4))

    @every_timed_cell
    def test_a_step_beyond_the_longest_is_refused(self, key: str) -> None:
        layer = StableRNN(key, 2, 3, max_dt=2.5)
        dt = torch.tensor([[1.0, 2.75]])
        sentence = (
            "dt is at most max_dt=2.5, the longest step that the model takes, got 2.75; divide the gap into steps with "
            "missing values."
        )
        with pytest.raises(ConfigError, match=_exactly(sentence)):
            layer(torch.zeros(1, 2, 2), dt=dt)
        layer(torch.zeros(1, 2, 2), lengths=torch.tensor([1]), dt=dt)

    @pytest.mark.parametrize("longest", [1.0, 2.7, 1.1, 12.3])
    def test_the_longest_step_itself_is_taken_whatever_float32_makes_of_it(self, longest: float) -> None:
        layer = StableRNN("lipschitz", 2, 3, max_dt=longest)
        output, _ = layer(torch.zeros(1, 2, 2), dt=torch.full((1, 2), longest))
        assert torch.isfinite(output).all()

    @pytest.mark.parametrize("length", [-0.5, math.nan, math.inf])
    def test_time_goes_forward_and_ends(self, length: float) -> None:
        sentence = "dt must be finite numbers of 0 or more, the time since the step before."
        with pytest.raises(ValueError, match=_exactly(sentence)):
            StableRNN("lipschitz", 2, 3)(torch.zeros(1, 2, 2), dt=torch.tensor([[1.0, length]]))

    @pytest.mark.parametrize("shape", [(1, 3), (2,), (1, 2, 1)])
    def test_there_is_one_length_for_each_step(self, shape: tuple[int, ...]) -> None:
        sentence = f"dt has shape {shape}, the input's steps are (1, 2)."
        with pytest.raises(ValueError, match=_exactly(sentence)):
            StableRNN("lipschitz", 2, 3)(torch.zeros(1, 2, 2), dt=torch.ones(shape))

    @pytest.mark.parametrize("longest", [0.0, -1.0, math.inf, math.nan])
    def test_the_longest_step_is_a_length(self, longest: float) -> None:
        sentence = f"max_dt must be a finite number of 1, the regular step, or more, got {longest}."
        with pytest.raises(ValueError, match=_exactly(sentence)):
            StableRNN("lipschitz", 2, 3, max_dt=longest)

    def test_a_model_for_regular_steps_takes_no_dt(self) -> None:
        sentence = "The model was built for regular steps, got dt; give max_dt when it is built."
        with pytest.raises(ConfigError, match=_exactly(sentence)):
            srn.Classifier("lipschitz", 2, 3)(torch.zeros(1, 4, 2), dt=torch.ones(1, 4))


class TestShorterStepsKeepWhatARegularOnePromises:
    """A shorter Euler step is a mean of the regular one and of the identity: it expands only where the regular does."""

    @pytest.mark.parametrize("length", [0.01, 0.3, 1.0])
    def test_of_a_contracting_lipschitz_cell(self, length: float) -> None:
        cell = cell_at("perturbed", "lipschitz", 8, step_size=0.05, linear_damping=4.0, init_scale=0.5)
        with torch.no_grad():
            cell.weight_hh.mul_(0.5 / norm(cell.recurrent_matrix()))
        a, q, w = -log_norm(cell.linear_matrix()), norm(cell.linear_matrix()), norm(cell.recurrent_matrix())
        assert a > w
        assert cell.step_size < min(1 / w, 2 * (a - w) / (q**2 - w**2))
        rate = 1 - length * (1 - _largest_stretch(cell, 1.0))
        assert _largest_stretch(cell, length) <= rate + 1e-12 < 1

    @pytest.mark.parametrize("length", [0.01, 0.3, 1.0])
    def test_of_a_cell_that_does_not_expand_and_does_not_contract(self, length: float) -> None:
        cell = cell_at("perturbed", "neural_ode_rnn", 6, step_size=1.0)
        with torch.no_grad():
            cell.weight_hh.copy_(-torch.diag(torch.linspace(0.1, 2.0, 6)))
            cell.weight_ih.zero_()
            cell.bias_ih.zero_()
        assert _largest_stretch(cell, 1.0) <= 1
        assert _largest_stretch(cell, length) <= 1

    @pytest.mark.parametrize("longest", [1.7, 10.0])
    def test_of_a_long_step_in_parts(self, longest: float) -> None:
        layer = StableRNN("lipschitz", 1, 8, step_size=0.05, linear_damping=6.0, max_dt=longest).double()
        start = 3 * torch.randn(2, 8, dtype=torch.float64)
        x = torch.randn(1, 30, 1, dtype=torch.float64).expand(2, -1, -1)
        dt = _lengths_of_steps(1, 30, longest=longest).expand(2, -1)
        states = torch.cat([start[:, None], layer(x, start[None], dt=dt)[0]], dim=1)
        distances = (states[0] - states[1]).norm(dim=-1)
        apart = distances[:-1] > 1e-13
        assert apart.sum() > 5
        assert (distances[1:] - distances[:-1])[apart].max() < 0

    @pytest.mark.parametrize("length", [1e-3, 0.4, 1.0, 17.0])
    @pytest.mark.parametrize("nonlinearity", ["tanh", "softshrink"])
    def test_of_the_hard_constrained_midpoint_rule_at_any_length(self, nonlinearity: str, length: float) -> None:
        cell = cell_at("perturbed", "lvf_mid", 9, nonlinearity=nonlinearity)
        assert _largest_stretch(cell, length) <= 1 + 1e-12

    @pytest.mark.parametrize("length", [0.2, 0.7, 1.0])
    def test_of_nais_net_in_its_spectral_radius(self, length: float) -> None:
        cell = cell_at("trained", "nais_net", 9)
        for _ in range(20):
            step = _jacobian(cell, 2 * torch.randn(9, dtype=torch.float64), length)
            assert torch.linalg.eigvals(step).abs().max() < 1


def _jacobian(cell: StableCell, state: Tensor, length: float) -> Tensor:
    weights = tuple(tensor.detach() for tensor in cell.materialize_timed())
    drive = cell.drive(torch.randn(1, cell.input_size, dtype=torch.float64)).detach()
    dt = torch.full((1, 1), length, dtype=torch.float64)
    matrix = torch.autograd.functional.jacobian(lambda h: cell.step(weights, (h[None],), drive, dt)[0][0], state)
    assert isinstance(matrix, Tensor)
    return matrix


def _largest_stretch(cell: StableCell, length: float) -> float:
    """The largest 2-norm of a step's Jacobian at the same thirty states and inputs."""
    torch.manual_seed(1)
    size = cell.hidden_size
    return max(norm(_jacobian(cell, 2 * torch.randn(size, dtype=torch.float64), length)) for _ in range(30))


class TestLatentVectorField:
    """Their step is a linear propagator, then input and nonlinearity: only the first has a length."""

    @pytest.mark.parametrize("constraint", ["none", "hard"])
    def test_euler_divides_the_propagator_and_feeds_the_input_once(self, constraint: str) -> None:
        cell = cell_at("perturbed", "lvf", 7, constraint=constraint, step_size=0.4)
        h, x = _inputs(2, 7), _inputs(2, 1)
        part = torch.eye(7, dtype=torch.float64) + (2.5 / 3) * 0.4 * cell.operator()
        expected = torch.tanh(h @ torch.linalg.matrix_power(part, 3).T + cell.drive(x) + cell.bias)
        _assert_close([cell(x, h, dt=2.5)], [expected])

    def test_parts_of_the_propagator_come_near_the_flow(self) -> None:
        cell = cell_at("perturbed", "lvf", 7, step_size=0.01)
        with torch.no_grad():
            cell.bias.zero_()
            cell.weight_ih.zero_()
        h = 0.001 * _inputs(1, 7)
        flow = torch.matrix_exp(100 * 0.01 * cell.operator())
        torch.testing.assert_close(cell(_inputs(1, 1), h, dt=100.0), h @ flow.T, rtol=0.1, atol=1e-4)

    @pytest.mark.parametrize("nonlinearity", ["tanh", "modrelu", "softshrink"])
    @pytest.mark.parametrize("hidden_size", [1, 2, 7, 32])
    def test_midpoint_is_one_step_of_the_rule_for_each_sample(self, hidden_size: int, nonlinearity: str) -> None:
        cell = cell_at("perturbed", "lvf_mid", hidden_size, nonlinearity=nonlinearity, step_size=0.8)
        h, x, dt = _inputs(4, hidden_size), _inputs(4, 1), torch.tensor([0.0, 0.3, 1.0, 9.0], dtype=torch.float64)
        moved = torch.stack(
            [cayley_propagator(cell.operator(), 0.8 * length) @ row for length, row in zip(dt.tolist(), h, strict=True)]
        )
        expected = cell.activate(moved + cell.drive(x), cell.used_bias())
        _assert_close([cell(x, h, dt=dt)], [expected])
        if hidden_size > 1:
            gradients = [
                torch.autograd.grad(y.square().sum(), cell.weight_hh)[0] for y in (cell(x, h, dt=dt), expected)
            ]
            _assert_close(gradients[:1], gradients[1:])

    def test_midpoint_gradients_are_finite_where_frequencies_meet(self) -> None:
        # Two units turn at one pace, two do not turn at all: the gradient of an eigenvector would be infinite.
        cell = create_cell("lvf_mid", 1, 6).double()
        with torch.no_grad():
            cell.weight_hh.zero_()
            cell.weight_hh[0] = 0.5
            cell.weight_hh[9] = 0.5
            cell.bias.fill_(0.01)
        frequencies = torch.linalg.eigvals(cell.operator()).imag.sort().values
        assert frequencies.tolist() == pytest.approx([-0.5, -0.5, 0, 0, 0.5, 0.5])
        h, x = _inputs(3, 6), _inputs(3, 1)
        propagator = cayley_propagator(cell.operator(), cell.step_size * 1.5)
        expected = cell.activate(h @ propagator.T + cell.drive(x), cell.used_bias())
        gradients = [torch.autograd.grad(y.square().sum(), cell.weight_hh)[0] for y in (cell(x, h, dt=1.5), expected)]
        _assert_close(gradients[:1], gradients[1:])

    def test_midpoint_in_float32_keeps_norms_over_a_thousand_steps(self) -> None:
        cell = create_cell("lvf_mid", 1, 64).eval()
        with torch.no_grad():
            cell.bias.zero_()
            cell.weight_ih.zero_()
            nn.init.normal_(cell.weight_hh, std=0.2)
            weights, h = cell.materialize_timed(), torch.randn(4, 64)
            before = h.norm(dim=1)
            for _ in range(1000):
                (h,) = cell.step(weights, (h,), cell.drive(torch.zeros(4, 1)), 3 * torch.rand(4, 1))
        assert h.norm(dim=1) == pytest.approx(before, rel=1e-4)


class TestODERNN:
    def test_a_long_flow_takes_more_steps_and_the_sample_enters_once(self) -> None:
        cell = _layer("ode_rnn", solver="euler", solver_steps=2).cells[0]
        h, x, dt = _inputs(2, 5), _inputs(2, 3), torch.tensor([2.5, 0.4], dtype=torch.float64)
        row = MAPPING["ode_rnn"]
        scalars = row.scalars(cell) | {"substeps": 6}
        expected = row.module.sequence(row.params(cell), x[:, None], h, **scalars, dt=dt[:, None])[:, 0]
        _assert_close([cell(x, h, dt=dt)], [expected])


def test_noise_is_added_once_to_a_step_in_parts() -> None:
    layer = _layer("noisy_rnn", additive_noise=0.5, multiplicative_noise=0.0, max_dt=3.0).train()
    cell = layer.cells[0]
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
    output, _ = layer(_inputs(400, 1, 3), dt=torch.full((400, 1), 3.0, dtype=torch.float64))
    assert output.std().item() == pytest.approx(0.5, rel=0.1)


FAST = ("lvf_mid", "neural_ode_rnn")


@pytest.mark.parametrize("key", [key if key in FAST else pytest.param(key, marks=pytest.mark.slow) for key in TIMED])
def test_a_model_for_irregular_time_exports_to_both_formats_with_parity(key: str, tmp_path: Path) -> None:
    model = mark_fitted(srn.Classifier(key, 2, 3, 17, max_dt=2.5))
    report = srn.export(model, tmp_path, formats=("onnx", "torchscript"))
    assert report.signature["max_dt"] == 2.5
    assert report.parity["stream_equals_sequence"] is True
    assert report.parity["batch_equals_single"] is True
    assert all(row["torchscript_rel_error"] <= row["allowed_rel_error"] for row in report.parity["compared"])
