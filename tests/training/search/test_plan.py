"""Budgets, and which parts of the data a search compares recipes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from forecast_helpers import many_series
from search_helpers import candidate
from stablernn.errors import ConfigError
from stablernn.training.search.budget import Budget
from stablernn.training.search.ladder import LEAST_SHARE, count_first_parts, make_plan
from stablernn.training.search.speeds import Speeds


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


@pytest.mark.parametrize(
    ("affordable", "recipes", "share"),
    [(1000, 8, 1.0), (32, 8, 1.0), (31, 8, 0.8), (8, 4, LEAST_SHARE), (2.5, 1, LEAST_SHARE), (2.4, None, None)],
)
def test_a_plan_takes_fewer_recipes_where_the_budget_is_small(
    affordable: float, recipes: int | None, share: float | None
) -> None:
    """All on three parts, the better half on two more: 8 * 3 + 4 * 2 = 32 trainings."""
    costs = [(candidate(f"number {number}", "none", []), 1.0) for number in range(8)]
    plan = make_plan(costs, 5, 3, affordable)
    assert (None if plan is None else (len(plan.recipes), plan.share)) == (
        None if recipes is None else (recipes, share)
    )


@pytest.mark.parametrize(("series", "parts"), [(99, 3), (299, 2), (300, 1)])
def test_many_scored_series_tell_networks_apart_on_few_parts(series: int, parts: int) -> None:
    assert count_first_parts(many_series([np.arange(40.0)[:, None]] * series), 5) == parts


def test_a_plan_counts_what_each_recipe_takes() -> None:
    slow, fast = (candidate(name, "none", []) for name in ("slow", "fast"))
    # The slow one may be the one that goes on: 3 * (10 + 1) + 2 * 10.
    assert make_plan([(fast, 1.0), (slow, 10.0)], 5, 3, affordable=53) is not None
    plan = make_plan([(fast, 1.0), (slow, 10.0)], 5, 3, affordable=26)
    assert plan is not None
    assert [each.recipe.name for each in plan.recipes] == ["fast"]


def test_the_first_speed_stands_on_a_machine_and_a_damaged_file_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "speeds.json"
    speeds = Speeds(path)
    kept = speeds.keep({"work": "step"}, 0.020)
    speeds.store()
    assert kept == pytest.approx(0.020, rel=0.05)
    # Beside other work the same step takes longer.
    assert Speeds(path).keep({"work": "step"}, 0.035) == kept == Speeds(path).find({"work": "step"})
    assert Speeds(path).keep({"work": "other"}, 0.035) != kept
    monkeypatch.setattr("stablernn.training.search.speeds.__version__", "of another step")
    assert Speeds(path).find({"work": "step"}) is None
    monkeypatch.undo()
    path.write_text("[1, 2")
    assert Speeds(path).find({"work": "step"}) is None
