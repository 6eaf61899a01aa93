"""Budgets, and which parts of the data a search compares recipes on."""

from __future__ import annotations

import pytest

from stablernn.errors import ConfigError
from stablernn.training.search.budget import Budget
from stablernn.training.search.successive_halving import (
    LEAST_SHARE,
    count_trainings,
    halving_rounds,
    make_plan,
)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("90s", Budget(90.0)),
        ("2m", Budget(120.0)),
        ("1.5h", Budget(5400.0)),
        ("300steps", Budget(None, 300)),
        (" 5 s", Budget(5.0)),
    ],
)
def test_budgets_are_times_or_steps(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["", "0s", "-5m", "5", "1.5steps", "inf s", "2 minutes"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^A (budget is a time|number of steps is whole)"):
        Budget.parse(text)


def test_a_plan_takes_fewer_recipes_where_the_budget_is_small() -> None:
    whole = make_plan(8, 5, 3, affordable=1000, whole_steps=500)
    assert whole is not None
    assert (whole.recipes, whole.share) == (8, 1.0)
    assert count_trainings(whole.rounds) == 8 * 3 + 4 * 2
    smaller = make_plan(8, 5, 3, affordable=LEAST_SHARE * count_trainings(halving_rounds(4, 5, 3)), whole_steps=500)
    assert smaller is not None
    assert (smaller.recipes, smaller.share) == (4, pytest.approx(LEAST_SHARE))
    assert make_plan(8, 5, 3, affordable=1, whole_steps=500) is None
    # A training of a few steps says nothing, whatever share of the whole they are.
    few = LEAST_SHARE * count_trainings(halving_rounds(2, 5, 3))
    assert make_plan(8, 5, 3, affordable=few, whole_steps=10) is None
