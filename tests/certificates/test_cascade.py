"""Stacks of layers: no trajectory leaves what the bounds on each layer give together."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stablernn.bounds.step_bound import StepBound
from stablernn.cells import StableCell
from stablernn.cells._base import State
from stablernn.certificates.cascade import Cascade, cascade

TIME = 40


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
    @pytest.mark.parametrize("share", [0.5, 1e-9])
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

    def test_too_slow_a_decay_is_not_waited_for(self) -> None:
        assert compared((1 - 1e-12,), (1.0,)).settling_time(1e-3) is None

    def test_what_comes_up_again_from_below_is_not_forgotten(self) -> None:
        # The last layer forgets at once; what the first holds comes through the second, weakly and late.
        proved = compared((0.98, 0.98, 0.1), (1.0, 0.518, 1.94e-5))
        steps = proved.settling_time(1e-3)
        assert steps is not None
        assert last_above(proved, 1e-3) == 134
        assert steps > 134


class TestGap:
    @pytest.mark.parametrize("layers", [1, 2, 3])
    @pytest.mark.parametrize("steps", [1, 7, 50])
    def test_of_scalar_linear_layers_it_is_exact(self, layers: int, steps: int) -> None:
        cells = LEAKY[:layers]
        wrong = torch.zeros(1, 800, 1, dtype=torch.float64)
        wrong[:, :steps] = 1
        worst = float(run(cells, wrong)[0].abs().max())
        assert cascade(cells).missing_data_error(steps) == pytest.approx(worst, rel=1e-8)

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
        rate = proved.step_rate()
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
