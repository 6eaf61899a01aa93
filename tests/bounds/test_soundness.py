"""No step of any cell drives states further apart, or away, than its bound says: over sizes, weights and searches.

The fast part draws a thousand cells and searches each for a moment; the slow one goes through sizes up to 128, options,
matrices that random ones are never like, trained and adversarial weights, with longer searches.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

from bounds.specimens import (
    CERTIFIED_INPUTS,
    DRAWS,
    EXTREMES,
    OPTIONS,
    certifiable,
    climbed,
    digits,
    drawn,
    extreme,
    proved,
    sampled,
    trained,
)
from bounds.step_search import SLACK, Seen, checked, violations
from certificates.trajectory_search import checked_module
from model_helpers import TRAINED
from stablernn import create_cell, list_cells
from stablernn.cells import StableCell
from stablernn.certificates.certificate import KINDS, certify
from stablernn.certificates.projection import certified_kind, is_within_range

__all__ = ["SLACK", "drawn"]

SIZES = (1, 2, 5, 16)
LARGE = (33, 64, 128)
QUICK = [
    *((key, 5, "large") for key in list_cells()),
    *((key, 5, "small") for key in ("gru", "incremental", "lem", "nais_net", "neural_ode_rnn")),
    ("ren", 5, "fresh"),
]
"""Every cell once, and what else finds faults that were planted in the bounds: a sign, a missing row, a mean."""
TIGHT = ("dtriv", "exprnn", "scornn", "eunn", "urnn", "fc_urnn", "lvf_mid", "nnrnn", "rnn_orth", "kru", "soft_orth",
         "indrnn", "lru", "spectral_rnn")  # fmt: skip
"""Cells whose certified rate is reached, or all but reached, by some step."""

every_cell = pytest.mark.parametrize("key", list_cells())
every_draw = pytest.mark.parametrize("draw", DRAWS)
every_option = pytest.mark.parametrize(
    ("key", "options"), OPTIONS, ids=[f"{key}-{','.join(map(str, options.values()))}" for key, options in OPTIONS]
)


def check(cell: StableCell, **search: int) -> list[Seen]:
    """What was found of a cell, none of which may be more than is proved."""
    seen = checked(cell, proved(cell), **search)
    assert not violations(seen)
    return seen


@pytest.mark.parametrize(("key", "hidden", "draw"), sampled(itertools.product(list_cells(), SIZES, DRAWS), *QUICK))
def test_no_step_exceeds_what_is_proved(key: str, hidden: int, draw: str) -> None:
    check(drawn(key, hidden, draw))


@pytest.mark.parametrize(("key", "options"), sampled(OPTIONS, *OPTIONS[::4]))
def test_no_step_of_any_option_exceeds_what_is_proved(key: str, options: dict[str, Any]) -> None:
    check(drawn(key, 4, "large", features=3, **options))


@pytest.mark.parametrize(
    ("key", "kind"),
    sampled(
        itertools.product(list_cells(), EXTREMES), ("gru", "zero"), ("rnn", "nilpotent"), ("lipschitz_rk2", "repeated")
    ),
)
def test_no_step_of_rare_matrices_exceeds_what_is_proved(key: str, kind: str) -> None:
    for hidden in (1, 5, 12):
        check(extreme(key, hidden, kind))


@pytest.mark.parametrize("key", TIGHT)
def test_the_rates_of_these_are_reached(key: str) -> None:
    seen = {one.claim: one for one in check(drawn(key, 5, "fresh"))}
    assert seen["rate"].share > 0.98


@pytest.mark.slow
class TestWidely:
    @every_draw
    @pytest.mark.parametrize("hidden", LARGE)
    @every_cell
    def test_of_large_cells(self, key: str, hidden: int, draw: str) -> None:
        check(drawn(key, hidden, draw, features=3), pairs=6, searches=10)

    @pytest.mark.parametrize("features", [1, 7, 40])
    @every_cell
    def test_of_other_inputs(self, key: str, features: int) -> None:
        for draw in DRAWS:
            check(drawn(key, 6, draw, features=features), pairs=16, searches=10)

    @every_draw
    @every_option
    def test_of_options(self, key: str, options: dict[str, Any], draw: str) -> None:
        for hidden in (2, 8):
            check(drawn(key, hidden, draw, features=3, **options), searches=10)

    @pytest.mark.parametrize("seed", range(300))
    def test_of_cells_drawn_at_random(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        key = list_cells()[int(generator.integers(len(list_cells())))]
        torch.manual_seed(seed)
        cell = create_cell(key, int(generator.integers(1, 9)), int(2 ** generator.uniform(0, 6)))
        for parameter in cell.parameters():
            torch.nn.init.normal_(parameter, std=float(10 ** generator.uniform(-2, 1)) * cell.hidden_size**-0.5)
        with torch.no_grad():
            cell.after_step(1, 100)
        check(cell.eval(), searches=12)


@pytest.mark.slow
class TestTrained:
    @pytest.mark.parametrize("lr", [0.005, 0.1])
    @every_cell
    def test_after_steps_of_training(self, key: str, lr: float) -> None:
        model = trained(key, 8, lr=lr)
        for cell in model.rnn.cells:
            check(cell, searches=15)
        assert not violations(checked_module(model, searches=8))

    @pytest.mark.parametrize("key", TRAINED)
    def test_deep_members_after_steps_of_training(self, key: str) -> None:
        assert not violations(checked_module(trained(key, 5, steps=15, num_layers=2, members=2)))

    @pytest.mark.parametrize("key", certifiable())
    def test_certified_training(self, key: str) -> None:
        model = trained(key, 8, lr=0.1, certified=True)
        inputs = CERTIFIED_INPUTS if is_within_range(model.rnn.cells[0]) else None
        kind = certify(model, stored=False, inputs_within=inputs).kind
        assert KINDS.index(kind) <= KINDS.index(certified_kind(model.rnn.cells[0]))
        check(model.rnn.cells[0], searches=15)
        assert not violations(checked_module(model, searches=8))

    @every_cell
    def test_digits(self, key: str) -> None:
        model = trained(key, 16, data=digits(), steps=30, lr=0.01)
        for cell in model.rnn.cells:
            check(cell, searches=10)
        assert not violations(checked_module(model))


@pytest.mark.slow
class TestAdversarial:
    @pytest.mark.parametrize("claim", ["rate", "gain", "output", "ball"])
    @every_cell
    def test_weights_that_climb_towards_the_certified_number_do_not_pass_it(self, key: str, claim: str) -> None:
        cell, share = climbed(key, 3, rounds=24, claim=claim)
        assert share <= 1 + SLACK
        check(cell, pairs=32, searches=25, steps=200)
