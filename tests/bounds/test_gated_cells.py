"""Bounds of gated cells and linear recurrences: exact where the worst is known, and claimed only where proved."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bounds.step_search import exact, farthest
from bounds.test_soundness import SLACK, drawn
from stablernn import create_cell
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


def steepest(cell: StableCell, bound: StepBound, points: int = 32, searches: int = 80) -> float:
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


def test_lru_of_the_slowest_decay_still_contracts() -> None:
    cell = create_cell("lru", 2, 64)
    with torch.no_grad():
        cell.log_decay.fill_(-200.0)
    assert 1 - 1e-6 < cell.step_bound().rate < 1


@pytest.mark.parametrize("key", ["lstm", "momentum_lstm", "sr_lstm", "ode_lstm", "slstm"])
def test_cells_whose_memory_has_no_bound_claim_a_ball_of_the_output_alone(key: str) -> None:
    cell = drawn(key, 5, "large")
    bound = cell.step_bound()
    assert (bound.norm, bound.covers, math.isinf(bound.rate)) == (None, (), True)
    assert bound.balls[0].state == "hidden"
    assert {"cell", "normalizer", "momentum", "previous"}.isdisjoint(ball.state for ball in bound.balls)
    assert certify(cell).kind == "none"


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
