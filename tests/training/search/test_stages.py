"""A search whose workers train nothing: what it compares within a budget, and what it does at the end."""

from __future__ import annotations

import re
import time
from threading import Event
from typing import Literal, cast

import pytest

from search_helpers import ScoringWorkers, candidate
from stablernn.data.options import TaskName
from stablernn.training.search.budget import Budget
from stablernn.training.search.candidates import Candidate, Recipe, RecommendedLength
from stablernn.training.search.successive_halving import Search
from stablernn.training.search.trial import TrialWorkers
from stablernn.training.settings.load import validate


@pytest.mark.parametrize(
    ("steps", "whole_steps", "chosen", "has_warning"),
    [
        (100, 500, "closed form, toy", False),
        (1400, 500, "first", True),
        (20_000, 500, "closed form, toy", False),
        (900, 60_000, "closed form, toy", False),
        (1100, 60_000, "first", False),
    ],
    ids=["too few", "a fifth", "all", "too few of many", "enough of many"],
)
def test_the_baseline_is_chosen_over_networks_that_got_half_of_their_steps(
    steps: int, whole_steps: int, chosen: str, has_warning: bool, caplog: pytest.LogCaptureFixture
) -> None:
    networks = [candidate(name, "contracting", [], steps=whole_steps) for name in ("first", "second")]
    method = {"method": "closed-form"}
    config = validate({"data": {"source": "toy"}, "model": {"cell": "lru"}, "training": method})
    baseline = Candidate(Recipe("closed form, toy", {}, ""), config, "contracting", RecommendedLength(0, 0, 0))
    user = validate({"data": {"source": "toy"}})
    search = Search(user, "classify", Budget(None, steps), networks, baseline, (5, 3), 0.0)
    choice = search.run(cast(TrialWorkers, ScoringWorkers(whole_steps)), Event())
    assert choice.document["chosen"] == chosen
    assert ("is better than 'first' after" in caplog.text) is has_warning
    assert (choice.document["recipes"][-1]["status"] == "chosen") is (chosen != "first")
    assert choice.config.training.method == ("gradient" if chosen == "first" else "closed-form")


def test_a_budget_that_compares_nothing_is_told_a_larger_one(caplog: pytest.LogCaptureFixture) -> None:
    """What loading took counts, too: of 20 s, 12 are for the search, of which 11 are over."""
    networks = [candidate(name, "contracting", [], steps=1000) for name in ("first", "second")]
    user = validate({"data": {"source": "toy"}})
    workers = ScoringWorkers(1000, step_seconds=0.01)
    search = Search(user, "classify", Budget(20.0), networks, None, (5, 3), time.monotonic() - 11.0)
    search.run(cast(TrialWorkers, workers), Event())
    found = re.search(r"the budget of 20 s compares no recipes on this data; that needs about (\d+) s", caplog.text)
    assert found is not None
    needed = float(found[1])
    assert needed > 20
    # With that budget, recipes are compared.
    caplog.clear()
    search = Search(user, "classify", Budget(needed), networks, None, (5, 3), time.monotonic() - 11.0)
    search.run(cast(TrialWorkers, workers), Event())
    assert "Nothing was compared" not in caplog.text


@pytest.mark.parametrize(
    ("task", "steps", "draws"),
    [("classify", 16_000, 1), ("classify", 20_000, 2), ("classify", 40_000, 3), ("forecast", 40_000, 1)],
    ids=["too little", "enough for one", "enough for any number", "ends of series"],
)
def test_what_the_last_training_has_no_use_for_pays_for_further_draws(task: TaskName, steps: int, draws: int) -> None:
    """The first draw takes 8,000 steps, each further one 5,000, and eight members at the end 4,000."""
    networks = [candidate(f"number {number}", "contracting", [], steps=500) for number in range(4)]
    user = validate({"data": {"source": "toy"}})
    search = Search(user, task, Budget(None, steps), networks, None, (5, 3), 0.0)
    document = search.run(cast(TrialWorkers, ScoringWorkers(500)), Event()).document
    assert document["share_of_steps"] == 1
    assert [len(recipe["scores"]) for recipe in document["recipes"]] == [5 * draws, 5 * draws, 3, 3]
    assert document["parts"] == 5 * draws
    assert document["settings"].get("model.members") == 8


@pytest.mark.parametrize(
    ("statuses", "parts"),
    [
        ({(1, 1, 2): "out of time"}, [7, 7]),
        ({(0, 1, 0): "out of time"}, [5, 5]),
        ({(1, 1, 4): "failed"}, [10, 9]),
        ({(0, 1, 1): "failed", (1, 1, 1): "failed"}, [5, 5]),
    ],
    ids=["late", "at once", "one fails", "all fail"],
)
def test_a_draw_that_ends_early_leaves_what_all_finalists_have(
    statuses: dict[tuple[int, int, int], Literal["out of time", "failed"]], parts: list[int]
) -> None:
    networks = [candidate(name, "contracting", [], steps=500) for name in ("first", "second")]
    user = validate({"data": {"source": "toy"}})
    search = Search(user, "classify", Budget(None, 14_000), networks, None, (5, 3), 0.0)
    document = search.run(cast(TrialWorkers, ScoringWorkers(500, statuses=statuses)), Event()).document
    assert document["chosen"] == "first"
    assert [len(recipe["scores"]) for recipe in document["recipes"]] == parts
    assert [recipe["status"] for recipe in document["recipes"]] == [
        "chosen",
        "failed" if parts == [10, 9] else "compared",
    ]
