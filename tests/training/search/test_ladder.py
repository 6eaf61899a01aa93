"""A search whose workers train nothing: what it compares within a budget, and what it chooses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import cast

import pytest

from search_helpers import ScoringWorkers, candidate
from stablernn.data.options import TaskName
from stablernn.errors import ConfigError, InterruptedRun
from stablernn.training.search.budget import Budget
from stablernn.training.search.candidates import Candidate
from stablernn.training.search.ladder import Choice, Ladder, Preparation
from stablernn.training.search.speeds import Speeds
from stablernn.training.search.trial import TrialWorkers
from stablernn.training.settings.load import validate

USER = validate({"data": {"source": "toy"}})


def closed_form(proof: str = "contracting") -> Candidate:
    return candidate("closed form", proof, [], steps=0, closed_form=True)


def networks(count: int, proof: str = "contracting") -> list[Candidate]:
    return [candidate(f"number {number}", proof, []) for number in range(count)]


def climb(
    workers: ScoringWorkers,
    folder: Path,
    budget: Budget,
    contenders: list[Candidate],
    *,
    task: TaskName = "classify",
    parts: tuple[int, int] = (5, 3),
    stop: Event | None = None,
    seconds: float = 0.0,
) -> Choice:
    closed_forms = [each for each in contenders if each.is_closed_form]
    others = [each for each in contenders if not each.is_closed_form]
    speeds = Speeds(folder / "speeds.json")
    ladder = Ladder(USER, task, budget, closed_forms, others, parts, Preparation("toy", seconds), speeds)
    return ladder.climb(cast(TrialWorkers, workers), stop or Event())


@pytest.mark.parametrize(
    ("steps", "scores", "proofs", "chosen"),
    [
        (100, {}, ("contracting", "contracting"), "closed form"),
        (20_000, {1: 0.9}, ("contracting", "contracting"), "number 1"),
        # A network that is no better than a closed form is proved no more.
        (20_000, {1: 0.9, 2: 0.91}, ("contracting", "contracting"), "closed form"),
        (20_000, {1: 0.9, 2: 0.95}, ("contracting", "bounded"), "closed form"),
        (20_000, {}, ("contracting", "bounded"), "number 0"),
    ],
    ids=["too little for a network", "better network", "better closed form", "much better", "equal, proved less"],
)
def test_a_network_is_chosen_where_no_closed_form_with_as_much_proof_is_better(
    tmp_path: Path, steps: int, scores: Mapping[int, float], proofs: tuple[str, str], chosen: str
) -> None:
    contenders = [*networks(2, proofs[0]), closed_form(proofs[1])]
    choice = climb(ScoringWorkers(scores), tmp_path, Budget(None, steps), contenders)
    assert choice.document["chosen"] == chosen
    assert choice.config.training.method == ("closed-form" if chosen == "closed form" else "gradient")
    # Compared on all parts, however small the budget is.
    assert len(choice.document["recipes"][-1]["scores"]) >= 5
    assert choice.document["baselines"] == {"majority": [0.4] * 5}


@pytest.mark.parametrize(
    ("task", "steps", "draws"),
    [("classify", 16_000, 1), ("classify", 20_000, 2), ("classify", 40_000, 3), ("forecast", 40_000, 1)],
    ids=["too little", "enough for one", "enough for any number", "ends of series"],
)
def test_what_the_last_training_has_no_use_for_pays_for_further_draws(
    tmp_path: Path, task: TaskName, steps: int, draws: int
) -> None:
    """The first draw takes 8,000 steps, each further one 5,000, and eight members at the end 4,000."""
    document = climb(ScoringWorkers(), tmp_path, Budget(None, steps), networks(4), task=task).document
    assert document["share_of_steps"] == 1
    assert [len(recipe["scores"]) for recipe in document["recipes"]] == [5 * draws, 5 * draws, 3, 3]
    assert document["parts"] == 5 * draws
    assert document["settings"].get("model.members") == 8


@pytest.mark.parametrize(
    ("failures", "parts"),
    [([(1, 1, 4)], [10, 9]), ([(0, 1, 1), (1, 1, 1)], [5, 5])],
    ids=["one fails", "all fail"],
)
def test_a_draw_in_which_recipes_fail_leaves_what_all_finalists_have(
    tmp_path: Path, failures: list[tuple[int, int, int]], parts: list[int]
) -> None:
    document = climb(ScoringWorkers(failures=failures), tmp_path, Budget(None, 14_000), networks(2)).document
    assert document["chosen"] == "number 0"
    assert [len(recipe["scores"]) for recipe in document["recipes"]] == parts
    assert document["recipes"][1]["status"] == ("failed" if parts == [10, 9] else "compared")


def test_a_busy_machine_gets_the_choice_of_an_idle_one(tmp_path: Path) -> None:
    """What was measured alone stands: beside other work the same steps and the same start take longer."""
    documents = []
    for slowness in (1.0, 4.0):
        workers = ScoringWorkers({1: 0.9}, step_seconds=0.002 * slowness)
        choice = climb(workers, tmp_path, Budget(22.0), [*networks(6), closed_form()], seconds=2.0 * slowness)
        documents.append(choice.document)
    assert documents[0] == documents[1]
    statuses = [recipe["status"] for recipe in documents[0]["recipes"]]
    # Not all of them in 22 s.
    assert (statuses[1], statuses[-2:]) == ("chosen", ["skipped", "compared"])


def test_time_before_the_comparison_counts_in_a_budget(tmp_path: Path) -> None:
    for number, (seconds, has_network) in enumerate(((0.5, True), (20.0, False))):
        workers = ScoringWorkers({1: 0.9}, step_seconds=0.001)
        contenders = [*networks(1), closed_form()]
        folder = tmp_path / str(number)
        document = climb(workers, folder, Budget(20.0), contenders, seconds=seconds).document
        assert bool(document["recipes"][0]["scores"]) is has_network


def test_a_stop_keeps_the_best_model_in_closed_form(tmp_path: Path) -> None:
    stop = Event()
    workers = ScoringWorkers({0: 0.99}, stop=stop, stop_after=7)
    choice = climb(workers, tmp_path, Budget(None, 20_000), [*networks(2), closed_form()], stop=stop)
    assert (choice.document["chosen"], choice.config.training.method) == ("closed form", "closed-form")
    stop = Event()
    with pytest.raises(InterruptedRun, match=r"^Stopped before a model in closed form"):
        climb(ScoringWorkers(stop=stop), tmp_path, Budget(None, 20_000), [*networks(2), closed_form()], stop=stop)


def test_data_without_parts_gets_the_first_closed_form_and_no_usable_recipe_is_an_error(tmp_path: Path) -> None:
    choice = climb(ScoringWorkers(), tmp_path, Budget(), [*networks(2), closed_form()], parts=(0, 0))
    assert choice.document["chosen"] == "closed form"
    assert choice.document["reason"] == "the data is too small to compare recipes on"
    failures = [(recipe, 0, part) for recipe in range(2) for part in range(5)]
    with pytest.raises(ConfigError, match=r"^No recipe can be trained on this data\. 'number 0': of the test"):
        climb(ScoringWorkers(failures=failures), tmp_path, Budget(None, 9000), [*networks(1), closed_form()])
