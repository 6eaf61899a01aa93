"""Bounds of gated cells and linear recurrences: exact where the worst is known, and claimed only where proved."""

from __future__ import annotations

import math
from dataclasses import replace
from time import perf_counter
from typing import Any

import pytest
import torch
from torch import Tensor

from bounds.step_search import exact, farthest, worst_gain, worst_rate
from bounds.test_soundness import SLACK, drawn
from model_helpers import mark_fitted
from stablernn import Classifier, create_cell
from stablernn.bounds.gated import largest_bend, largest_gated, largest_mix
from stablernn.bounds.step_bound import StepBound
from stablernn.cells import StableCell
from stablernn.cells.cfc import _SLOPE_RANGES
from stablernn.certificates.certificate import certify


def with_weights(key: str, hidden: int, inputs: int, weights: dict[str, Any], **options: Any) -> StableCell:
    """A cell whose parameters are zero but for those given, which are broadcast."""
    cell = create_cell(key, inputs, hidden, **options)
    with torch.no_grad():
        for name, parameter in cell.named_parameters():
            parameter.copy_(torch.as_tensor(weights.get(name, 0.0)).expand_as(parameter))
    return cell


def small(key: str, hidden: int, spread: float = 0.1, **options: Any) -> StableCell:
    torch.manual_seed(hidden)
    cell = create_cell(key, 2, hidden, **options)
    for parameter in cell.parameters():
        torch.nn.init.normal_(parameter, std=spread * hidden**-0.5)
    return cell


def steepest(cell: StableCell, bound: StepBound, points: int = 32, searches: int = 150) -> float:
    """The largest norm of a Jacobian that gradient ascent over states in the ball and inputs of any size finds."""
    exactly, sizes = exact(cell), cell.state_sizes
    weights = tuple(weight.detach() for weight in exactly.weights())
    total = sum(sizes)
    scale = torch.ones(total, dtype=torch.float64) if bound.weights is None else torch.from_numpy(bound.weights)

    def after(state: Tensor, x: Tensor) -> Tensor:
        drive = exactly.drive(x[None])
        return torch.cat(exactly.step(weights, state[None].split(list(sizes), dim=-1), drive), dim=-1)[0]

    def norm(state: Tensor, x: Tensor) -> Tensor:
        jacobian = torch.func.jacrev(after)(state, x) * scale[None] / scale[:, None]
        return torch.linalg.matrix_norm(jacobian, 2) if bound.norm == "l2" else jacobian.abs().sum(dim=1).max()

    generator = torch.Generator().manual_seed(0)
    states = torch.randn(points, total, generator=generator, dtype=torch.float64) * 3
    x = torch.randn(points, cell.input_size, generator=generator, dtype=torch.float64)
    x = x * torch.logspace(-1, 2, points, dtype=torch.float64)[:, None]
    leaves = [states.requires_grad_(True), x.requires_grad_(True)]
    search, worst = torch.optim.Adam(leaves, lr=0.2), 0.0
    for _ in range(searches):
        norms = torch.func.vmap(norm)(torch.tanh(leaves[0]), leaves[1])
        worst = max(worst, float(norms.detach().max()))
        search.zero_grad()
        (-norms.clamp_min(1e-12).log().sum()).backward()
        search.step()
    return worst


def test_the_bend_of_a_tanh_is_the_largest_over_its_values() -> None:
    values = torch.linspace(0, 1, 100001, dtype=torch.float64)[:, None]
    slope = torch.tensor([0.0, 0.3, 2.0, 1.0, 0.0], dtype=torch.float64)
    shift = torch.tensor([0.7, 0.0, 1.0, 5.0, 0.0], dtype=torch.float64)
    searched = ((1 - values**2) * slope + values * shift).amax(dim=0)
    assert torch.from_numpy(largest_bend(slope.numpy(), shift.numpy())).numpy() == pytest.approx(searched.numpy())


def test_what_a_gate_lets_through_is_the_largest_over_its_values() -> None:
    values = torch.linspace(0, 1, 100001, dtype=torch.float64)[:, None]
    value = torch.tensor([0.0, 0.3, 2.0, 1.0, 0.0], dtype=torch.float64)
    change = torch.tensor([0.7, 0.0, 1.0, 5.0, 0.0], dtype=torch.float64)
    searched = (values * value + values * (1 - values) * change).amax(dim=0)
    assert largest_gated(value.numpy(), change.numpy()) == pytest.approx(searched.numpy())


def test_a_mix_is_never_below_the_largest_and_exact_where_keeping_is_worst() -> None:
    kept = torch.tensor([1.0, 1.0, 0.3], dtype=torch.float64).numpy()
    slopes = torch.tensor([0.9, 3.0, 1.0], dtype=torch.float64).numpy()
    shares = torch.linspace(0, 1, 100001, dtype=torch.float64)[:, None].numpy()
    searched = (shares * kept + (1 - shares) * shares * slopes).max(axis=0)
    mixed = largest_mix(kept, lambda share: share * slopes)
    assert (mixed >= searched).all()
    assert mixed == pytest.approx(searched, rel=0.01)
    assert mixed[0] == 1


# With every sign alike and an input for each gate the worst of all terms can come together.
SCALARS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("gru", {"weight_hh": [[1.5], [1.2], [0.8]], "weight_ih": torch.eye(3), "bias_hn": 0.3}, {}),
    ("gru", {"weight_hh": [[0.5], [0.4], [1.8]], "weight_ih": torch.eye(3), "bias_hn": 1.0}, {}),
    (
        "gru_d",
        {"weight_hh": [[1.6], [0.7], [1.4]], "weight_ih": torch.eye(3), "state_decay": 0.5},
        {"imputation": "none"},
    ),
    ("cfc", {"weight_hh": [[0.7], [0.9], [2.0], [0.5]], "weight_ih": torch.eye(4)[:, :3]}, {"backbone_layers": 0}),
    ("lem", {"weight_hh": [[1.1], [1.6], [0.9]], "weight_memory": 1.3, "weight_ih": torch.eye(4)}, {"step_size": 0.8}),
    ("lem", {"weight_hh": [[0.1], [2.6], [1.9]], "weight_memory": 0.8, "weight_ih": torch.eye(4)}, {"step_size": 1.0}),
)


@pytest.mark.parametrize(("key", "weights", "options"), SCALARS)
def test_the_rate_of_a_unit_is_that_of_its_steepest_jacobian(
    key: str, weights: dict[str, Any], options: dict[str, Any]
) -> None:
    cell = with_weights(key, 1, torch.as_tensor(weights["weight_ih"]).shape[1], weights, **options)
    bound = cell.step_bound()
    found = steepest(cell, bound)
    assert found <= bound.rate * (1 + SLACK)
    assert bound.rate <= found * 1.05


def test_a_gru_without_gates_from_the_state_expands_as_its_candidate_does() -> None:
    for candidate, rate in ((0.5, 1.0), (1.0, 1.0), (2.0, 2.0)):
        cell = with_weights("gru", 1, 3, {"weight_hh": [[0.0], [0.0], [candidate]], "weight_ih": torch.eye(3)})
        assert cell.step_bound().rate == pytest.approx(rate, rel=1e-9)


def test_no_rate_below_one_holds_of_a_gru_over_all_inputs() -> None:
    cell = small("gru", 16)
    assert cell.step_bound().rate == 1
    with torch.no_grad():
        cell.weight_ih[16:32, 0] = 1
    assert steepest(cell, cell.step_bound()) >= 0.999
    assert certify(cell).kind == "non-expansive"


def test_a_gru_with_large_weights_is_bounded_only() -> None:
    assert certify(drawn("gru", 16, "large")).kind == "bounded"


def test_weights_of_coordinates_find_what_plain_ones_miss() -> None:
    # The first unit sees 1.5 of the second, which sees little of the first.
    candidate = torch.tensor([[0.1, 1.5], [0.3, 0.1]])
    weights = {"weight_hh": torch.cat([torch.zeros(4, 2), candidate]), "weight_ih": torch.eye(6)}
    bound = with_weights("gru", 2, 6, weights).step_bound()
    assert bound.rate == 1
    assert bound.weights is not None
    assert bound.weights[0] > bound.weights[1]


def test_gru_d_without_recurrence_contracts_as_its_slowest_decay() -> None:
    decay = [[0.5], [0.1], [0.0], [-1.0]]
    cell = with_weights("gru_d", 4, 2, {"state_decay": decay, "state_decay_bias": 0.2}, imputation="none")
    assert cell.step_bound().rate == 1
    decay = [[0.5], [0.1], [0.0], [-0.1]]
    cell = with_weights("gru_d", 4, 2, {"state_decay": decay, "state_decay_bias": 0.2}, imputation="none")
    assert cell.step_bound().rate == pytest.approx(math.exp(-0.1), rel=1e-6)


def test_gru_d_with_small_weights_contracts_by_its_decay() -> None:
    cell = small("gru_d", 16, imputation="none")
    with torch.no_grad():
        cell.state_decay.fill_(0.05)
        cell.state_decay_bias.zero_()
    assert cell.step_bound().rate == pytest.approx(math.exp(-0.05), rel=1e-6)
    assert certify(cell).kind == "contracting"


def test_gru_d_that_fills_in_values_proves_its_ball_alone() -> None:
    bound = create_cell("gru_d", 2, 4).step_bound()
    assert bound.norm is None
    assert [(ball.state, ball.radius) for ball in bound.balls] == [("hidden", 1.0)]


@pytest.mark.parametrize("heads", [(0.7, 0.7, 0.0), (0.9, 0.4, 0.0), (0.0, 0.0, 3.0), (1.2, 1.2, 1.0)])
def test_cfc_of_one_unit_is_exact(heads: tuple[float, float, float]) -> None:
    f1, f2, gate = heads
    weights = {"weight_hh": [[f1], [f2], [gate / 2], [gate / 2]], "weight_ih": torch.eye(4)[:, :3]}
    rate = with_weights("cfc", 1, 3, weights, backbone_layers=0).step_bound().rate
    # The gate alone: at s = 1/2 and two tanh of 1 and -1.
    if not f1:
        assert rate == pytest.approx(gate / 2)
    elif not gate:
        assert rate == pytest.approx(max(f1, f2))
    else:
        assert rate == pytest.approx(f1 + gate**2 / (16 * f1))


@pytest.mark.parametrize("activation", ["lecun_tanh", "tanh", "relu", "silu", "gelu"])
@pytest.mark.parametrize("layers", [0, pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("hidden", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_cfc_with_any_backbone_keeps_its_bound(activation: str, layers: int, hidden: int) -> None:
    for spread in (0.3, 1.0, 3.0):
        cell = small("cfc", hidden, spread, activation=activation, backbone_layers=layers, backbone_units=5)
        bound = cell.step_bound()
        assert worst_rate(cell, bound) <= bound.rate * (1 + SLACK)
        assert worst_gain(cell, bound) <= bound.gain * (1 + SLACK)
        assert steepest(cell, bound, searches=30) <= bound.rate * (1 + SLACK)


def test_cfc_with_small_weights_contracts() -> None:
    cell = small("cfc", 16, 0.4)
    assert certify(cell).kind == "contracting"
    # Without a backbone the worst is found: the bound is no more than twice what is true.
    cell = small("cfc", 16, 0.3, backbone_layers=0)
    bound = cell.step_bound()
    assert bound.rate <= 2 * steepest(cell, bound)


@pytest.mark.parametrize("activation", ["silu", "gelu", "lecun_tanh"])
def test_slopes_of_activations_stay_in_their_ranges(activation: str) -> None:
    cell = create_cell("cfc", 1, 1, activation=activation)
    v = torch.linspace(-12, 12, 200001, dtype=torch.float64, requires_grad=True)
    (slopes,) = torch.autograd.grad(cell._activate(v).sum(), v)
    least, most = _SLOPE_RANGES[activation]
    assert least <= float(slopes.min()) <= least + 1e-5
    assert most - 1e-5 <= float(slopes.max()) <= most


def test_lem_needs_a_step_of_one_for_its_rate_and_of_two_for_its_ball() -> None:
    radii = {}
    for step_size in (0.5, 1.0, 1.5, 2.0, 3.0):
        cell = small("lem", 8, 1.0, step_size=step_size)
        bound = cell.step_bound()
        assert [one.holds for one in bound.hypotheses] == [step_size <= 1]
        assert (bound.norm is not None) == (step_size <= 1)
        radii[step_size] = [ball.radius for ball in bound.balls]
        for ball, (largest, _) in zip(bound.balls, farthest(cell), strict=False):
            assert largest <= ball.radius * (1 + SLACK)
    assert radii == {0.5: [1.0, 1.0], 1.0: [1.0, 1.0], 1.5: pytest.approx([3.0, 3.0]), 2.0: [], 3.0: []}


def test_lem_above_one_comes_close_to_its_wider_ball() -> None:
    # Open gates and a candidate that turns each step: a state of 3 is taken to -3.
    cell = with_weights(
        "lem", 1, 1, {"weight_ih": [[0.0], [0.0], [1.0], [1.0]], "bias_ih": [30, 30, 0, 0]}, step_size=1.5
    )
    exactly = exact(cell)
    state = exactly.initial_state(1)
    for step in range(60):
        x = torch.full((1, 1), 30.0 * (-1) ** step, dtype=torch.float64)
        state = exactly.step(exactly.weights(), state, exactly.drive(x))
    assert cell.step_bound().balls[1].radius * 0.999 <= abs(float(state[1].detach())) <= 3


def test_lem_with_small_weights_is_non_expansive() -> None:
    assert certify(small("lem", 16)).kind == "non-expansive"
    assert certify(small("lem", 16, 1.0)).kind == "bounded"


@pytest.mark.parametrize("key", ["mingru", "minlstm"])
def test_a_gate_of_the_input_alone_never_expands_and_comes_close_to_keeping_all(key: str) -> None:
    cell = drawn(key, 5, "large")
    bound = cell.step_bound()
    assert bound.rate == 1
    assert math.isinf(bound.gain)
    assert certify(cell).kind == "non-expansive"
    x = torch.randn(2000, 2) * 100
    kept = exact(cell).drive(x.double()).chunk(2, dim=-1)[0]
    assert 0.999 <= float(kept.detach().max()) <= 1


def test_lru_contracts_by_its_largest_modulus() -> None:
    cell = create_cell("lru", 2, 16)
    bound = cell.step_bound()
    assert bound.rate == pytest.approx(float(cell.eigenvalues().detach().abs().max()), rel=1e-6)
    # The slowest pole is hardly slower than the next: it takes long to stand out.
    assert worst_rate(cell, bound, searches=1000) >= 0.9999 * bound.rate
    assert certify(cell).kind == "contracting"
    assert certify(mark_fitted(Classifier("lru", 1, 3, 8, num_layers=2))).kind == "contracting"


def test_lru_of_the_slowest_decay_still_contracts() -> None:
    cell = create_cell("lru", 2, 64)
    with torch.no_grad():
        cell.log_decay.fill_(-200.0)
    assert 1 - 1e-6 < cell.step_bound().rate < 1


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_what_lru_puts_out_moves_by_no_more_than_its_state_and_input_allow(activation: str) -> None:
    cell = exact(small("lru", 3, 1.0, activation=activation))
    bound = cell.step_bound()
    generator = torch.Generator().manual_seed(0)
    weights = cell.weights()

    def moved(h: Tensor, further: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        nothing = torch.zeros(len(h), 3, dtype=torch.float64)
        one, other = (cell.step(weights, (nothing, state), cell.drive(x)) for state in (h, h + further))
        return (one[0] - other[0]).norm(dim=-1), (one[1] - other[1]).norm(dim=-1)

    h = torch.randn(20000, 6, generator=generator, dtype=torch.float64)
    further = torch.randn(20000, 6, generator=generator, dtype=torch.float64) * 1e-3
    x = torch.randn(20000, 2, generator=generator, dtype=torch.float64)
    output, state = moved(h, further, x)
    ratio = float((output / state).detach().max())
    assert 0.7 * bound.output_gain <= ratio <= bound.output_gain * (1 + SLACK)
    # A change of the input that leaves the state alone goes by D.
    (jacobian,) = torch.autograd.grad(torch.nn.functional.gelu(at := torch.tensor(2**0.5, requires_grad=True)), at)
    steepest_output = float(jacobian) if activation == "gelu" else 1.0
    skip = float(torch.linalg.matrix_norm(cell.weight_skip.detach(), 2))
    assert bound.output_input_gain == pytest.approx(steepest_output * skip, rel=1e-6)


@pytest.mark.parametrize("key", ["lstm", "momentum_lstm", "sr_lstm", "ode_lstm", "slstm"])
def test_cells_whose_memory_has_no_bound_claim_a_ball_of_the_output_alone(key: str) -> None:
    cell = drawn(key, 5, "large")
    bound = cell.step_bound()
    assert (bound.norm, bound.covers, math.isinf(bound.rate)) == (None, (), True)
    assert bound.balls[0].state == "hidden"
    assert {"cell", "normalizer", "momentum", "previous"}.isdisjoint(ball.state for ball in bound.balls)
    assert certify(cell).kind == "none"


def test_no_rate_holds_of_an_lstm_for_its_forget_gate_multiplies_a_cell_state_without_bound() -> None:
    cell = exact(drawn("lstm", 4, "small"))
    h, drive = torch.zeros(1, 4, dtype=torch.float64), cell.drive(torch.zeros(1, 2, dtype=torch.float64))
    grown = []
    for size in (1e2, 1e4, 1e6):
        c = torch.full((1, 4), size, dtype=torch.float64)
        one, other = (cell.step(cell.weights(), (state, c), drive)[1] for state in (h, h + 1e-3))
        grown.append(float((one - other).detach().norm()) / 1e-3)
    assert grown[1] > 50 * grown[0]
    assert grown[2] > 50 * grown[1]


def test_the_count_of_a_scheduled_restart_ends_before_the_restart() -> None:
    for restart in (1, 2, 7):
        cell = create_cell("sr_lstm", 2, 3, restart=restart)
        radii = {ball.state: ball.radius for ball in cell.step_bound().balls}
        assert radii == {"hidden": 1.0, "count": restart - 1}
        assert farthest(cell, steps=20)[3][0] == restart - 1


@pytest.mark.parametrize("solver", ["euler", "heun", "rk4"])
def test_the_hidden_state_of_an_ode_lstm_stays_within_what_its_flow_can_add(solver: str) -> None:
    cell = with_weights(
        "ode_lstm",
        1,
        1,
        {"weight_ih": 1.0, "bias_ih": [30, 0, 30, 30], "flow_in_bias": 30.0, "flow_out": 2.0, "flow_out_bias": 1.0},
        solver=solver,
    )
    (ball,) = cell.step_bound().balls
    # Above what the flow can add in exact arithmetic, by what float32 rounds.
    assert 4.0 < ball.radius < 4.0001
    assert 0.99 * ball.radius <= farthest(cell)[0][0] <= ball.radius


def test_slstm_with_heads_keeps_its_output_within_one() -> None:
    cell = create_cell("slstm", 2, 6, num_heads=3)
    (ball,) = cell.step_bound().balls
    assert farthest(cell)[0][0] <= ball.radius * (1 + SLACK)


@pytest.mark.parametrize(("key", "options"), [("gru", {}), ("gru_d", {"imputation": "none"}), ("lem", {})])
def test_the_rate_of_a_fresh_cell_is_within_a_small_factor_of_the_steepest_jacobian(
    key: str, options: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    cell = create_cell(key, 48, 8, **options)
    with torch.no_grad():
        cell.weight_ih.mul_(3)
    bound = cell.step_bound()
    found = steepest(cell, bound)
    assert found <= bound.rate * (1 + SLACK)
    assert bound.rate <= 1.5 * found


@pytest.mark.parametrize(("key", "hidden", "options"), [("lru", 16, {}), ("gru_d", 1, {"imputation": "none"})])
def test_the_probe_catches_a_rate_that_is_a_tenth_too_small(key: str, hidden: int, options: dict[str, Any]) -> None:
    cell = create_cell(key, 2, hidden, **options)
    bound = cell.step_bound()
    wrong = replace(bound, rate=0.9 * bound.rate)
    assert wrong.rate < worst_rate(cell, wrong) <= bound.rate * (1 + SLACK)


@pytest.mark.parametrize("key", ["gru", "gru_d", "cfc", "lem", "lru", "mingru"])
def test_a_bound_at_128_units_takes_seconds_at_most(key: str) -> None:
    options = {"imputation": "none"} if key == "gru_d" else {}
    cell = create_cell(key, 8, 128, **options)
    start = perf_counter()
    cell.step_bound()
    assert perf_counter() - start < 15
