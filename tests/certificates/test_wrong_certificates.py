"""Certificates that are wrong on purpose: each is found out by the searches that right ones pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bounds.specimens import drawn, proved, sampled
from bounds.step_search import checked, violations
from certificates.trajectory_search import Stack, checked_module, checked_stack
from stablernn import StableRNN, create_cell
from stablernn.bounds.step_bound import StepBound
from stablernn.cells import StableCell
from stablernn.certificates.cascade import cascade
from stablernn.certificates.certificate import SETTLED_SHARE, certify

NEAR = (
    "antisymmetric", "dtriv", "eunn", "exprnn", "fc_urnn", "identity_rnn", "indrnn", "kru", "lru", "lvf_mid",
    "neural_ode_rnn", "nnrnn", "rnn_orth", "scornn", "soft_orth", "spectral_rnn", "urnn",
)  # fmt: skip
"""Cells some step of which comes within a hundredth of the certified rate and of the gain, drawn as below."""
WITHIN_A_TENTH = (*NEAR, "cornn", "nais_net", "ren", "unicornn")


def found(cell: StableCell, bound: StepBound) -> set[str]:
    """The claims that the searches of the fast suite find to be wrong."""
    return {one.claim for one in violations(checked(cell, bound))}


def near(key: str) -> tuple[StableCell, StepBound]:
    cell = drawn(key, 2, "fresh")
    return cell, proved(cell)


@pytest.mark.parametrize(
    ("key", "factor"),
    sampled(
        [*((key, 0.9) for key in WITHIN_A_TENTH), *((key, 0.99) for key in NEAR)],
        ("unicornn", 0.9), ("cornn", 0.9), ("lru", 0.99), ("eunn", 0.99), ("nnrnn", 0.99),
    ),
)  # fmt: skip
def test_a_rate_that_is_too_small(key: str, factor: float) -> None:
    cell, bound = near(key)
    assert not found(cell, bound)
    assert "rate" in found(cell, replace(bound, rate=factor * bound.rate))


@pytest.mark.parametrize("key", sampled(NEAR, "lru", "exprnn", "neural_ode_rnn"))
def test_a_gain_that_is_too_small(key: str) -> None:
    cell, bound = near(key)
    assert "gain" in found(cell, replace(bound, gain=0.98 * bound.gain))


@pytest.mark.parametrize(
    "key", sampled(["rnn", "gru", "lstm", "lvf", "fastrnn", "lem", "cfc", "slstm"], "rnn", "gru", "fastrnn")
)
def test_a_ball_that_is_too_small(key: str) -> None:
    cell = drawn(key, 5, "large")
    bound = proved(cell)
    assert not found(cell, bound)
    smaller = tuple(replace(ball, radius=0.97 * ball.radius) for ball in bound.balls)
    assert f"ball of {smaller[0].state}" in found(cell, replace(bound, balls=smaller))


@pytest.mark.parametrize("key", ["cornn", "unicornn", "nais_net"])
def test_a_rate_in_another_metric(key: str) -> None:
    cell = drawn(key, 5, "small" if key == "cornn" else "fresh")
    bound = proved(cell)
    assert bound.metric is not None
    assert not found(cell, bound)
    assert "rate" in found(cell, replace(bound, metric=None))
    assert "rate" in found(cell, replace(bound, metric=np.linalg.inv(bound.metric)))


def test_other_weights_of_a_largest_coordinate() -> None:
    cell = drawn("gru", 4, "small")
    with torch.no_grad():
        cell.get_parameter("weight_hh").mul_(torch.tensor([0.1, 1.0, 4.0, 8.0]))
    bound = proved(cell)
    assert bound.weights is not None
    assert not found(cell, bound)
    assert {"rate", "output_rate"} & found(cell, replace(bound, weights=1 / bound.weights))


@pytest.mark.parametrize("key", ["rnn", "lru", "cornn"])
def test_an_output_gain_that_is_too_small(key: str) -> None:
    cell = drawn(key, 2, "small" if key == "cornn" else "fresh")
    bound = proved(cell)
    assert "output_rate" in found(cell, replace(bound, output_gain=0.5 * bound.output_gain))


def test_a_bound_that_forgets_what_an_input_gives_at_once() -> None:
    cell = drawn("lru", 3, "large")
    with torch.no_grad():
        cell.get_parameter("log_gain").fill_(-9)
    bound = proved(cell)
    assert bound.output_input_gain > 0
    assert not found(cell, bound)
    assert "output_gain" in found(cell, replace(bound, output_input_gain=0.0))


def slow(depth: int = 1) -> StableRNN:
    """Layers that forget a tenth in each step, and no less."""
    built = StableRNN("rnn", 2, 4, num_layers=depth)
    for cell in built.cells:
        nn.init.eye_(cell.get_parameter("weight_hh"))
        nn.init.eye_(cell.get_parameter("weight_ih"))
        with torch.no_grad():
            cell.get_parameter("weight_hh").mul_(0.9)
    return built.eval()


def wrong(built: StableRNN, rate: float = 0.9, **changes: Any) -> set[str]:
    """The claims of a changed certificate that trajectories break."""
    proved = cascade(built.cells)
    certificate = certify(built, stored=False)
    if "steps" in changes:
        seen = checked_stack(
            Stack(built.cells), proved, rate=rate, gain=None, forgotten=changes["steps"], steps=40, pairs=8, searches=10
        )
    else:
        stack = replace(proved, **changes)
        seen = checked_module(built, replace(certificate, stacks=(stack,)), steps=40, searches=10)
    return {one.claim for one in violations(seen)}


class TestTrajectories:
    def test_the_right_ones_pass(self) -> None:
        assert not wrong(slow())
        assert not wrong(slow(2))

    @pytest.mark.parametrize("factor", [0.9, 0.99])
    def test_a_rate(self, factor: float) -> None:
        built = slow()
        (bound,) = cascade(built.cells).bounds
        assert "approach" in wrong(built, bounds=(replace(bound, rate=factor * bound.rate),))

    @pytest.mark.parametrize("depth", [1, 2])
    def test_gains(self, depth: int) -> None:
        built = slow(depth)
        proved, share = cascade(built.cells), (0.8, 0.65)[depth - 1]
        first, *others = proved.bounds
        found = wrong(
            built, input_gains=share * proved.input_gains, bounds=(replace(first, gain=share * first.gain), *others)
        )
        assert {"gain over any time", "largest gain", "gap", "gain on the state of layer 0"} <= found

    def test_what_layers_make_of_one_another(self) -> None:
        built = slow(2)
        nn.init.constant_(built.cells[1].get_parameter("weight_ih"), 3.0)
        step = cascade(built.cells).step.copy()
        step[1, 0] *= 0.01
        assert "approach" in wrong(built, step=step)

    def test_steps_after_which_a_start_is_forgotten(self) -> None:
        built = slow()
        steps = cascade(built.cells).settling_time(0.05)
        assert SETTLED_SHARE < 0.05
        assert steps is not None
        # What is left then is 0.05 at most, and not the share that is claimed.
        assert wrong(built, steps=steps) == {"share remembered"}

    def test_a_ball(self) -> None:
        built = slow(2)
        certificate = certify(built, stored=False)
        smaller = tuple({**ball, "radius": 0.95 * ball["radius"]} for ball in certificate.balls)
        seen = checked_module(built, replace(certificate, balls=smaller))
        assert {"ball of state_0", "ball of state_1"} == {one.claim for one in violations(seen)}


def test_a_cell_that_says_more_than_it_keeps() -> None:
    class Boastful(type(create_cell("rnn", 1, 1))):  # type: ignore[misc]
        def step_bound(self) -> StepBound:
            return replace(super().step_bound(), rate=0.5)

    torch.manual_seed(0)
    cell = Boastful(2, 4).eval()
    assert certify(cell, stored=False).kind == "contracting"
    assert violations(checked(cell, proved(cell)))
    assert violations(checked_module(cell))
