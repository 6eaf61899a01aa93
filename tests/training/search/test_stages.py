"""A search whose workers train nothing: what it compares within a budget, and what it does at the end."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from threading import Event
from typing import Literal, cast

import pytest

from search_helpers import ScoringWorkers, candidate
from stablernn.data.options import TaskName
from stablernn.training.search.budget import Budget
from stablernn.training.search.candidates import Candidate, Recipe, RecommendedLength
from stablernn.training.search.successive_halving import LEAST_TRAINED, Search
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


@pytest.mark.parametrize(("slowdown", "chosen"), [(1.0, "first"), (20.0, "closed form, toy")])
def test_a_network_that_gets_few_steps_in_the_end_yields_to_a_better_baseline(slowdown: float, chosen: str) -> None:
    networks = [candidate(name, "contracting", [], steps=1000) for name in ("first", "second")]
    config = validate({"data": {"source": "toy"}, "training": {"method": "closed-form"}, "model": {"cell": "lru"}})
    baseline = Candidate(Recipe("closed form, toy", {}, ""), config, "contracting", RecommendedLength(0, 0, 0))
    user = validate({"data": {"source": "toy"}})
    search = Search(user, "classify", Budget(60.0), networks, baseline, (5, 3), time.monotonic())
    workers = ScoringWorkers(1000, step_seconds=0.01, slowdown=slowdown)
    choice = search.run(cast(TrialWorkers, workers), Event())
    assert choice.document["share_of_steps"] < LEAST_TRAINED
    assert choice.document["chosen"] == chosen


def test_trainings_too_short_to_measure_a_step_are_compared() -> None:
    networks = [candidate(name, "contracting", [], steps=10) for name in ("first", "second")]
    user = validate({"data": {"source": "toy"}})
    search = Search(user, "classify", Budget(60.0), networks, None, (5, 3), time.monotonic())
    assert search.run(cast(TrialWorkers, ScoringWorkers(10, step_seconds=0.0)), Event()).document["chosen"] == "first"


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


@pytest.mark.parametrize(("seconds", "parts"), [(60.0, 5), (200.0, 15)])
def test_a_budget_in_time_pays_for_further_draws(seconds: float, parts: int) -> None:
    """Eight members take 40 s, and a draw 22 or 50. Time stands still, so that a third draw fits as a second does."""
    networks = [candidate(name, "contracting", [], steps=500) for name in ("first", "second")]
    user = validate({"data": {"source": "toy"}})
    search = Search(user, "classify", Budget(seconds), networks, None, (5, 3), time.monotonic())
    workers = cast(TrialWorkers, ScoringWorkers(500, step_seconds=0.01))
    assert search.run(workers, Event()).document["parts"] == parts


def test_members_of_the_user_leave_more_for_further_draws() -> None:
    networks = [candidate(name, "contracting", [], steps=500) for name in ("first", "second")]
    user = validate({"data": {"source": "toy"}, "model": {"members": 1}})
    search = Search(user, "classify", Budget(None, 10_500), networks, None, (5, 3), 0.0)
    document = search.run(cast(TrialWorkers, ScoringWorkers(500)), Event()).document
    assert document["parts"] == 10


def test_a_stop_names_the_best_on_the_same_parts_with_what_the_user_left_open() -> None:
    user = validate({"data": {"source": "toy"}, "training": {"patience": 3}})
    settings = {"model.cell": "lru", "model.hidden_size": 128, "training.refit": True}
    scores = {"first": [0.8, 1.0], "best": [0.85], "third": [0.7], "second part alone": []}
    networks = [candidate(name, "none", rows) for name, rows in scores.items()]
    for network in networks:
        network.recipe = replace(network.recipe, settings=settings)
    networks[3].results[1] = networks[0].results[1]
    search = Search(user, "classify", Budget(60.0), networks, None, (5, 3), time.monotonic())
    # By means over different parts, each of the two with a result on the second would be the best.
    assert str(search._interrupted()) == (
        "Stopped while recipes were compared. The best so far, 'best', is trained with --set model.cell=lru --set "
        "model.hidden_size=128"
    )
