"""Stacks of layers: no trajectory leaves what the bounds on each layer give together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bounds.step_search import size_of
from certificates.test_quantization import contracting
from stablernn import StableRNN
from stablernn.bounds.lure import given_norms
from stablernn.bounds.step_bound import StepBound
from stablernn.cells import StableCell
from stablernn.cells._base import State
from stablernn.certificates.cascade import Cascade, cascade
from stablernn.certificates.certificate import certify

TIME = 40
STACKS = {"rnn": 0.5, "identity_rnn": 0.5, "indrnn": 0.8, "nnrnn": 0.6, "kru": 0.7, "cornn": 0.1}
"""Cells, and how wide weights are drawn for layers that contract slowly."""


class Leaky(StableCell):
    """``h <- keep h + give x``, of which the output is ``read h + skip x``: nothing about it is only a bound."""

    key = "leaky"
    state_names = ("output", "hidden")

    def __init__(self, keep: float, give: float, read: float, skip: float) -> None:
        super().__init__(1, 1)
        self.numbers = keep, give, read, skip
        self.unused = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def materialize(self) -> tuple[Tensor, ...]:
        return ()

    def drive(self, x: Tensor) -> Tensor:
        return x

    def step(self, weights: tuple[Tensor, ...], state: State, drive: Tensor, dt: Tensor | None = None) -> State:
        keep, give, read, skip = self.numbers
        hidden = keep * state[1] + give * drive
        return read * hidden + skip * drive, hidden

    def step_bound(self) -> StepBound:
        keep, give, read, skip = self.numbers
        return StepBound(("hidden",), "l2", keep, give, read, skip)


LEAKY = [Leaky(0.9, 0.5, 2.0, 0.3), Leaky(0.5, 1.5, 0.4, 0.0), Leaky(0.7, 0.1, 3.0, 1.0)]


def stack(key: str, layers: int = 2) -> StableRNN:
    torch.manual_seed(0)
    built = StableRNN(key, 2, 6, num_layers=layers)
    for parameter in built.parameters():
        nn.init.normal_(parameter, std=STACKS[key] * 6**-0.5)
    return built.eval()


def run(cells: list[Any], x: Tensor, start: list[State] | None = None) -> tuple[Tensor, list[list[State]]]:
    """The last layer's outputs ``(batch, time, size)``, and the states of all layers before and after each step."""
    states = [cell.initial_state(len(x)) for cell in cells] if start is None else start
    outputs, seen = [], [states]
    with torch.no_grad():
        for given in x.unbind(dim=1):
            moved, following = given, []
            for cell, state in zip(cells, states, strict=True):
                after = cell.step(cell.weights(), state, cell.drive(moved))
                following.append(after)
                moved = after[0]
            states = following
            outputs.append(moved)
            seen.append(states)
    return torch.stack(outputs, dim=1), seen


def sizes(cells: list[Any]) -> Callable[[list[State], list[State]], Tensor]:
    """How far apart two states are, layer by layer, each in its norm, ``(batch, layers)``."""
    norms = [size_of(cell, cell.step_bound()) for cell in cells]
    return lambda one, other: torch.stack([norm(a, b) for norm, a, b in zip(norms, one, other, strict=True)], dim=-1)


def pairs(steps: int = TIME) -> tuple[Tensor, Tensor]:
    """Two sequences each: apart everywhere, apart in one step alone, far apart, near."""
    x = torch.randn(60, steps, 2, dtype=torch.float64)
    move = torch.randn_like(x) * torch.logspace(-3, 1, 60, dtype=torch.float64)[:, None, None]
    move[30:, 1:] = 0
    return x, x + move


@pytest.mark.parametrize("key", STACKS)
class TestTrajectories:
    def test_the_stack_contracts(self, key: str) -> None:
        proved = cascade(stack(key).cells)
        assert proved.is_contracting
        assert 0.1 < proved.rate < 1

    def test_outputs_of_two_inputs_are_within_the_gains(self, key: str) -> None:
        layers = stack(key)
        proved, cells = cascade(layers.cells), list(layers.double().cells)
        one, other = pairs()
        apart = (run(cells, one)[0] - run(cells, other)[0]).norm(dim=-1)
        given = (one - other).norm(dim=-1)
        for steps in (1, 2, 7, TIME):
            last, every = proved.gains(steps)
            energy = given[:, :steps].norm(dim=-1)
            assert (apart[:, steps - 1] <= last * energy * (1 + 1e-6)).all()
            assert (apart[:, :steps].norm(dim=-1) <= every * energy * (1 + 1e-6)).all()
            assert every <= proved.total_gain()
        assert (apart.amax(dim=-1) <= proved.total_gain() * given.amax(dim=-1) * (1 + 1e-6)).all()

    def test_states_stay_within_the_comparison_system(self, key: str) -> None:
        layers = stack(key)
        proved, cells = cascade(layers.cells), list(layers.double().cells)
        starts = [
            [tuple(torch.randn(60, size, dtype=torch.float64) for size in cell.state_sizes) for cell in cells]
            for _ in range(2)
        ]
        one, other = pairs()
        (first, seen), (second, others) = run(cells, one, starts[0]), run(cells, other, starts[1])
        apart = sizes(cells)
        allowed = apart(*starts).numpy()
        given = (one - other).norm(dim=-1).numpy()
        for time in range(TIME):
            output = allowed @ proved.output + proved.feedthrough * given[:, time]
            assert ((first - second)[:, time].norm(dim=-1).numpy() <= output * (1 + 1e-6)).all()
            allowed = allowed @ proved.step.T + given[:, [time]] * proved.input_gains
            assert (apart(seen[time + 1], others[time + 1]).numpy() <= allowed * (1 + 1e-6)).all()


class TestComparisonSystem:
    @pytest.mark.parametrize("layers", [1, 2, 3])
    def test_of_scalar_linear_layers_the_gains_are_exact(self, layers: int) -> None:
        cells = LEAKY[:layers]
        proved = cascade(cells)
        impulse = torch.zeros(1, TIME, 1, dtype=torch.float64)
        impulse[0, 0] = 1
        response = run(cells, impulse)[0][0, :, 0]
        for steps in (1, 2, TIME):
            last, every = proved.gains(steps)
            assert last == pytest.approx(float(response[:steps].norm()), rel=1e-12)
            assert every == pytest.approx(float(response[:steps].sum()), rel=1e-12)
        settled = run(cells, torch.ones(1, 600, 1, dtype=torch.float64))[0][0, -1, 0]
        assert proved.total_gain() == pytest.approx(float(settled), rel=1e-8)
        assert proved.rate == max(cell.numbers[0] for cell in cells)

    @pytest.mark.parametrize("layers", [1, 2, 3])
    def test_of_scalar_linear_layers_the_effect_of_a_start_is_exact(self, layers: int) -> None:
        cells = LEAKY[:layers]
        proved = cascade(cells)
        ones = torch.ones(1, 1, dtype=torch.float64)
        output, _ = run(cells, torch.zeros(1, TIME, 1, dtype=torch.float64), [(0 * ones, ones)] * layers)
        effect = np.ones(layers)
        for time in range(TIME):
            assert float(output[0, time, 0]) == pytest.approx(float(proved.output @ effect), rel=1e-12)
            effect = proved.step @ effect

    def test_the_gains_grow_to_the_total_one(self) -> None:
        proved = cascade(LEAKY)
        every = [proved.gains(steps)[1] for steps in (1, 2, 10, 100, 1000)]
        assert every == sorted(every)
        assert every[-1] == pytest.approx(proved.total_gain(), rel=1e-8)

    def test_a_layer_of_which_nothing_is_proved_leaves_nothing(self) -> None:
        unknown = Leaky(0.5, 1.0, 1.0, 0.0)
        unknown.step_bound = StepBound  # type: ignore[method-assign]
        for cells in ([unknown, LEAKY[0]], [LEAKY[0], unknown]):
            proved = cascade(cells)
            assert not proved.is_contracting
            assert (proved.rate, proved.total_gain()) == (math.inf, math.inf)
            assert proved.gains(3)[0] == math.inf
            assert proved.settling_time(0.1) is None

    def test_what_a_rate_of_1_keeps_is_summed_up_but_never_forgotten(self) -> None:
        proved = cascade([Leaky(1.0, 0.5, 1.0, 0.0)])
        assert proved.gains(10) == pytest.approx((0.5 * math.sqrt(10), 5.0), rel=1e-9)
        assert proved.total_gain() == math.inf
        assert proved.settling_time(0.5) is None


class InOtherNorms(Leaky):
    """A layer whose step is bounded in several norms, of ``(rate, gain)`` each."""

    def __init__(self, *norms: tuple[float, float]) -> None:
        super().__init__(*norms[0], 1.0, 0.0)
        self.norms = norms

    def step_bound(self) -> StepBound:
        first, *others = (StepBound(("hidden",), "l2", rate, gain, 1.0) for rate, gain in self.norms)
        return replace(first, other_norms=tuple(others))


def compared(rates: tuple[float, ...], gains: tuple[float, ...]) -> Cascade:
    return cascade([Leaky(rate, gain, 1.0, 0.0) for rate, gain in zip(rates, gains, strict=True)])


def last_above(proved: Cascade, share: float, most: int = 30_000) -> int:
    """The last step, from the first on, after which starts move the output by more than a share; -1 for none."""
    effect, last = np.ones(len(proved.step)), -1
    for step in range(most):
        if proved.output @ effect > share * proved.output.sum():
            last = step
        effect = proved.step @ effect
    return last


class TestForgetting:
    @pytest.mark.parametrize("share", [0.5, 1e-1, 1e-3, 1e-9])
    @pytest.mark.parametrize(
        ("rates", "gains"),
        [
            ((0.5,), (1.0,)),
            ((0.999,), (2.0,)),
            ((0.9, 0.9), (1.0, 3.0)),
            ((0.99, 0.2), (1.0, 50.0)),
            ((0.9,) * 4, (1.0,) * 4),
        ],
        ids=["fast", "slow", "two", "slow-below-fast", "four"],
    )
    def test_it_is_the_first_step_from_which_on_the_share_holds(
        self, rates: tuple[float, ...], gains: tuple[float, ...], share: float
    ) -> None:
        proved = compared(rates, gains)
        steps = proved.settling_time(share)
        assert steps is not None
        assert steps == last_above(proved, share) + 1

    def test_of_one_layer_it_is_the_logarithm(self) -> None:
        proved = compared((0.75,), (1.0,))
        assert proved.settling_time(1e-3) == math.ceil(math.log(1e-3) / math.log(0.75))

    def test_too_slow_a_decay_is_not_waited_for(self) -> None:
        assert compared((1 - 1e-12,), (1.0,)).settling_time(1e-3) is None

    def test_what_comes_up_again_from_below_is_not_forgotten(self) -> None:
        # The last layer forgets at once; what the first holds comes through the second, weakly and late.
        proved = compared((0.98, 0.98, 0.1), (1.0, 0.518, 1.94e-5))
        steps = proved.settling_time(1e-3)
        assert steps is not None
        assert last_above(proved, 1e-3) == 134
        assert steps > 134

    def test_it_can_begin_anywhere_in_the_balls(self) -> None:
        proved = compared((0.9, 0.5), (1.0, 1.0))
        far = proved.settling_time(1e-3, np.array([100.0, 1.0]))
        near = proved.settling_time(1e-3, np.array([1e-3, 1.0]))
        assert far is not None
        assert near is not None
        effect = np.array([100.0, 1.0])
        allowed = 1e-3 * float(proved.output @ effect)
        for _ in range(far):
            effect = proved.step @ effect
        assert float(proved.output @ effect) <= allowed
        assert near < far

    def test_states_without_bounds_are_not_told_of(self) -> None:
        assert compared((0.5,), (1.0,)).settling_time(1e-3, np.array([math.inf])) is None


class TestGap:
    @pytest.mark.parametrize("layers", [1, 2, 3])
    @pytest.mark.parametrize("steps", [1, 7, 50])
    def test_of_scalar_linear_layers_it_is_exact(self, layers: int, steps: int) -> None:
        cells = LEAKY[:layers]
        wrong = torch.zeros(1, 800, 1, dtype=torch.float64)
        wrong[:, :steps] = 1
        worst = float(run(cells, wrong)[0].abs().max())
        assert cascade(cells).missing_data_error(steps) == pytest.approx(worst, rel=1e-8)

    def test_what_comes_up_after_the_gap_counts(self) -> None:
        # The second layer goes on rising on what the first still holds.
        proved = compared((0.99, 0.99), (1.0, 1.0))
        during = float(proved.feedthrough)
        assert proved.missing_data_error(1) > 10 * during

    def test_it_grows_to_the_gain_over_any_time(self) -> None:
        proved = cascade(LEAKY)
        costs = [proved.missing_data_error(steps) for steps in (1, 10, 100, 10_000)]
        assert costs == sorted(costs)
        assert costs[-1] == pytest.approx(proved.total_gain(), rel=1e-6)

    def test_where_differences_last_so_does_the_cost(self) -> None:
        proved = cascade([Leaky(1.0, 0.5, 1.0, 0.0)])
        assert proved.missing_data_error(10) == pytest.approx(5.0)
        assert cascade([Leaky(1.0 + 1e-7, 0.5, 1.0, 0.0)]).missing_data_error(10) == math.inf
        assert cascade([Leaky(1.0 + 1e-7, 0.5, 1.0, 0.0)]).missing_data_error(10, tolerance=1e-6) == pytest.approx(
            5.0 * (1 + 1e-7) ** 100_000
        )
        assert cascade([Leaky(1.0, 0.5, 1.0, 0.0)] * 2).missing_data_error(10) == math.inf


class TestOtherNorms:
    SEARCHED, TRIED, PLAIN = (0.5, 40.0), (0.6, 9.0), (0.8, 1.0)

    @pytest.mark.parametrize("swapped", [False, True])
    def test_a_gap_costs_no_more_than_without_the_search_of_one_layer(self, swapped: bool) -> None:
        searched, other = [self.SEARCHED, self.TRIED, self.PLAIN], [self.TRIED, self.PLAIN]
        layers = [other, searched] if swapped else [searched, other]
        error = cascade([InOtherNorms(*norms) for norms in layers]).missing_data_error(3)
        for plain in (self.TRIED, self.PLAIN):
            assert error <= cascade([InOtherNorms(plain)] * 2).missing_data_error(3)

    @pytest.mark.parametrize("key", ["fastrnn", "lipschitz"])
    def test_the_search_for_norms_delays_no_settling(self, key: str) -> None:
        layers = contracting(key, 3, 16)
        with given_norms():
            before = certify(layers, stored=False).settling_time(1e-3)
        after = certify(layers, stored=False).settling_time(1e-3)
        assert before is not None
        assert after is not None
        assert after <= before

    def test_a_layer_gains_from_the_best_norm_of_those_below(self) -> None:
        proved = cascade([InOtherNorms(self.SEARCHED, self.TRIED, self.PLAIN), Leaky(0.5, 1.0, 1.0, 0.0)])
        # Inputs of 1 forever move the output of the first layer by 1 / (1 - 0.8) at most.
        assert proved.state_gains() == pytest.approx([80.0, 10.0])


class TestWeights:
    @pytest.mark.parametrize("rates", [(0.5,), (0.9, 0.9), (0.99, 0.2), (0.5, 0.99, 0.7)])
    def test_in_the_norm_of_all_layers_every_step_contracts(self, rates: tuple[float, ...]) -> None:
        proved = compared(rates, (3.0,) * len(rates))
        weights = proved.weights()
        assert weights is not None
        assert (weights > 0).all()
        rate = proved.step_rate(weights)
        assert proved.rate <= rate <= proved.rate + 0.11 * (1 - proved.rate)
        e = np.random.default_rng(0).uniform(0, 1, (500, len(rates)))
        before, after = (e / weights).max(axis=1), (e @ proved.step.T / weights).max(axis=1)
        assert (after <= rate * before).all()

    def test_without_contraction_there_are_none(self) -> None:
        assert compared((1.0, 0.5), (1.0, 1.0)).weights() is None


def test_the_gain_of_each_layers_state() -> None:
    proved = compared((0.5, 0.9), (1.0, 2.0))
    # Inputs of 1 for ever: the first state comes to 1 / (1 - 0.5), the second to 2 * 2 / (1 - 0.9).
    assert proved.state_gains() == pytest.approx([2.0, 40.0])
    assert compared((1.0,), (1.0,)).state_gains() == [math.inf]
