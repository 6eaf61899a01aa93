"""A search whose workers train nothing: what it compares within a budget, and what it chooses."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import cast

import numpy as np
import pytest

from search_helpers import ScoringWorkers, candidate
from stablernn.data.options import TaskName
from stablernn.errors import ConfigError, InterruptedRun
from stablernn.training.search.budget import Budget
from stablernn.training.search.candidates import Candidate
from stablernn.training.search.ladder import Choice, Ladder, SearchedData, load_searched
from stablernn.training.search.speeds import Speeds
from stablernn.training.search.trial import Trial, TrialWorkers, resample, run_trial
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
    ladder = Ladder(USER, SearchedData(task, "toy", "accuracy", *parts, seconds), budget, closed_forms, others, speeds)
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
        (20_000, {}, ("contracting", "contracting"), "closed form"),
    ],
    ids=["too little for a network", "better network", "better closed form", "much better", "proved less", "equal"],
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
    ("steps", "parts", "compared"),
    [(2_200, (5, 3), 5), (1_400, (5, 3), 3), (1_200, (5, 3), 0), (20_000, (5, 1), 1)],
    ids=["all", "few in place of none", "too little", "one is enough"],
)
def test_networks_are_compared_on_fewer_parts_where_the_budget_or_the_data_asks_for_it(
    tmp_path: Path, steps: int, parts: tuple[int, int], compared: int
) -> None:
    """Half of a training takes 250 steps, and the comparison 60 % of the budget."""
    contenders = [*networks(1), closed_form()]
    document = climb(ScoringWorkers({0: 0.9}), tmp_path, Budget(None, steps), contenders, parts=parts).document
    assert [len(recipe["scores"]) for recipe in document["recipes"]] == [compared, compared or 5]


@pytest.mark.parametrize(
    ("scores", "failures", "chosen"),
    [
        ({1: 0.99}, [(1, 1, 4)], "number 1"),
        ({2: 0.99}, [(2, 1, 0)], "closed form"),
        ({0: 0.9}, [(0, 1, 1), (1, 1, 1)], "0"),
    ],
    ids=["best network", "best closed form", "all networks"],
)
def test_a_draw_in_which_a_recipe_fails_is_left_out_for_all(
    tmp_path: Path, scores: Mapping[int, float], failures: list[tuple[int, int, int]], chosen: str
) -> None:
    contenders = [*networks(2), closed_form()]
    document = climb(ScoringWorkers(scores, failures=failures), tmp_path, Budget(None, 15_000), contenders).document
    assert document["chosen"].endswith(chosen)
    assert [len(recipe["scores"]) for recipe in document["recipes"]] == [5, 5, 5]
    failed = document["recipes"][failures[0][0]]
    assert failed["reason"] == "of the test"
    assert failed["status"] in ("chosen", "compared")


def test_what_was_measured_once_plans_for_a_busy_and_an_idle_machine(tmp_path: Path) -> None:
    """The first of them is the busy one, so that a plan by what is measured now would be another one."""
    documents = []
    for slowness in (1.0, 0.25):
        workers = ScoringWorkers({1: 0.9}, step_seconds=0.002 * slowness, start=slowness)
        choice = climb(workers, tmp_path, Budget(22.0), [*networks(6), closed_form()], seconds=slowness)
        documents.append(choice.document)
    assert documents[0] == documents[1]
    statuses = [recipe["status"] for recipe in documents[0]["recipes"]]
    # Not all of them in 22 s.
    assert (statuses[1], statuses[-2:]) == ("chosen", ["skipped", "compared"])


def test_only_the_time_of_loading_counts_for_a_process_that_has_worked_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.process_time
    monkeypatch.setattr(time, "process_time", lambda: 300 + now())
    np.savez(tmp_path / "toy_TRAIN.npz", x=np.ones((30, 4, 1), np.float32), y=np.arange(30) % 2)
    _, searched = load_searched(validate({"data": {"source": str(tmp_path / "toy_TRAIN.npz")}}))
    assert searched.seconds < 100
    assert (searched.parts, searched.metric) == (5, "accuracy")


def test_all_parts_of_series_of_unequal_length_have_one_metric(tmp_path: Path) -> None:
    """Only the longer series is in the last parts, and one series alone is scored by another metric."""
    values = np.random.default_rng(0).normal(size=120)
    rows = [f"{name},{step},{values[step]:.4f}" for name, count in (("a", 120), ("b", 60)) for step in range(count)]
    (tmp_path / "two.csv").write_text("\n".join(["unique_id,ds,y", *rows]))
    data = {"source": str(tmp_path / "two.csv"), "validation_steps": 12, "test_steps": 12}
    task, training = {"horizon": 2, "context_length": 4}, {"method": "closed-form"}
    config = validate({"data": data, "task": task, "model": {"cell": "lru"}, "training": training})
    loaded, searched = load_searched(config)
    parts = resample(loaded, searched.parts, seed=0, refit=False)
    assert [len(part.series) for part in parts] == [2, 2, 1, 1, 1]  # type: ignore[union-attr]
    results = [run_trial(Trial(0, config, part, metric=searched.metric)) for part in (0, 4)]
    assert [(result.status, result.metric) for result in results] == [("done", "mase")] * 2


@pytest.mark.parametrize(("step_seconds", "entries"), [(0.0, 3), (0.002, 4)], ids=["too short a step", "a step"])
def test_no_speed_is_kept_of_a_failure_or_what_was_not_measured(
    tmp_path: Path, step_seconds: float, entries: int
) -> None:
    """Those of start, loading and baselines are; the closed form fails on the last part."""
    workers = ScoringWorkers(step_seconds=step_seconds, failures=[(1, 0, 4)])
    climb(workers, tmp_path, Budget(60.0), [*networks(1), closed_form()])
    assert len(json.loads((tmp_path / "speeds.json").read_text())) == entries


@pytest.mark.parametrize(
    ("scores", "contenders", "chosen", "reason"),
    [
        ({0: 0.3, 1: 0.1}, networks(2), "number 0", "the best mean over 5 parts; the baseline 'majority' is better"),
        ({0: 0.3, 1: 0.6}, [*networks(1), closed_form()], "closed form", "the best mean over 5 parts"),
    ],
    ids=["no recipe reaches it", "one recipe does"],
)
def test_a_baseline_is_a_floor_with_and_without_a_closed_form(
    tmp_path: Path, scores: Mapping[int, float], contenders: list[Candidate], chosen: str, reason: str
) -> None:
    document = climb(ScoringWorkers(scores, baseline=0.5), tmp_path, Budget(None, 9000), contenders).document
    assert (document["chosen"], document["reason"]) == (chosen, reason)
    assert document["baselines"] == {"majority": [0.5] * 5}


def test_time_before_the_comparison_counts_in_a_budget(tmp_path: Path) -> None:
    for number, (seconds, has_network) in enumerate(((0.5, True), (20.0, False))):
        workers = ScoringWorkers({1: 0.9}, step_seconds=0.001)
        contenders = [*networks(1), closed_form()]
        folder = tmp_path / str(number)
        document = climb(workers, folder, Budget(20.0), contenders, seconds=seconds).document
        assert bool(document["recipes"][0]["scores"]) is has_network


@pytest.mark.parametrize(
    ("contenders", "trials", "chosen"),
    [
        ([*networks(2), closed_form()], 8, "closed form"),
        ([*networks(2), closed_form()], 16, "number 0"),
        (networks(2), 8, "number 0"),
    ],
    ids=["closed forms alone", "networks too", "no closed form"],
)
def test_a_stop_keeps_the_best_of_what_was_compared(
    tmp_path: Path, contenders: list[Candidate], trials: int, chosen: str
) -> None:
    stop = Event()
    workers = ScoringWorkers({0: 0.99}, stop=stop, stop_after=trials)
    document = climb(workers, tmp_path, Budget(None, 100_000), contenders, stop=stop).document
    assert document["chosen"] == chosen
    assert document["reason"].endswith("; the search was stopped")
    # The last training takes no more than it must.
    assert not document["settings"].keys() & {"model.members", "training.epochs"}


def test_a_stop_before_any_model_keeps_none(tmp_path: Path) -> None:
    stop = Event()
    with pytest.raises(InterruptedRun, match=r"^Stopped before a model was compared"):
        climb(ScoringWorkers(stop=stop), tmp_path, Budget(None, 20_000), [*networks(2), closed_form()], stop=stop)


@pytest.mark.parametrize(("failed", "chosen"), [(3, "closed form"), (0, "number 0")], ids=["fourth part", "all parts"])
def test_a_closed_form_that_fails_leaves_what_it_finished_or_a_network(
    tmp_path: Path, failed: int, chosen: str
) -> None:
    failures = [(1, 0, part) for part in range(5) if part == failed or not failed]
    workers = ScoringWorkers(failures=failures)
    document = climb(workers, tmp_path, Budget(None, 100), [*networks(1), closed_form()]).document
    assert document["chosen"] == chosen
    assert document["recipes"][1]["reason"] == "of the test"
    assert document["metric"] == "accuracy"


def test_data_without_parts_gets_the_first_closed_form_and_no_usable_recipe_is_an_error(tmp_path: Path) -> None:
    choice = climb(ScoringWorkers(), tmp_path, Budget(), [*networks(2), closed_form()], parts=(0, 0))
    assert choice.document["chosen"] == "closed form"
    assert choice.document["reason"] == "the data is too small to compare recipes on"
    failures = [(recipe, 0, part) for recipe in range(2) for part in range(5)]
    with pytest.raises(ConfigError, match=r"^No recipe can be trained on this data\. 'number 0': of the test"):
        climb(ScoringWorkers(failures=failures), tmp_path, Budget(None, 9000), [*networks(1), closed_form()])
