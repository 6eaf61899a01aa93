"""Parts of a search without a training: budgets, plans, parts of the data, and which candidate is selected."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from threading import Event
from typing import Any, cast

import numpy as np
import pytest

from forecast_helpers import many_series
from stablernn.data import ClassificationData, SequenceSplit
from stablernn.data.splits import stratified_folds
from stablernn.errors import ConfigError, DataError
from stablernn.training.search.budget import Budget
from stablernn.training.search.candidates import (
    Candidate,
    RecommendedLength,
    comparable,
    find_baseline,
    find_candidates,
    held_out_temperature,
    merged,
    open_settings,
    select,
)
from stablernn.training.search.choose import LEAST_TRAINED, _Search
from stablernn.training.search.plan import LEAST_SHARE, count_trainings, first_parts, halving_rounds, make_plan
from stablernn.training.search.recipes import Recipe, recipes
from stablernn.training.search.resampling import resample
from stablernn.training.search.trial import Trial, TrialResult
from stablernn.training.search.workers import Workers
from stablernn.training.settings.load import validate
from stablernn.training.settings.resolve import resolve
from stablernn.training.tasks import task_for

MARK = 999.0
"""A value that only test sequences have."""


def sequences(count: int = 30, test: int = 10, *, length: int = 12) -> ClassificationData:
    def split(first: int, last: int, value: float) -> SequenceSplit:
        numbers = np.arange(first, last)
        x = np.full((last - first, length, 1), value, np.float32)
        return SequenceSplit(x, np.full(len(numbers), length), numbers % 3, tuple(map(str, numbers)))

    parts = split(0, count - 6, 1.0), split(count - 6, count, 2.0), split(0, test, MARK)
    return ClassificationData("toy", ("a", "b", "c"), ("x",), *parts, {}, "sha256:0")


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
    assert whole.trainings == 8 * 3 + 4 * 2
    smaller = make_plan(8, 5, 3, affordable=LEAST_SHARE * count_trainings(halving_rounds(4, 5, 3)), whole_steps=500)
    assert smaller is not None
    assert (smaller.recipes, smaller.share) == (4, pytest.approx(LEAST_SHARE))
    assert make_plan(8, 5, 3, affordable=1, whole_steps=500) is None
    # A training of a few steps says nothing, whatever share of the whole they are.
    few = LEAST_SHARE * count_trainings(halving_rounds(2, 5, 3))
    assert make_plan(8, 5, 3, affordable=few, whole_steps=10) is None


@pytest.mark.parametrize(
    ("sequences", "parts", "first", "last"),
    [
        (40, 5, 3, 5),
        (1600, 5, 3, 5),
        (2500, 5, 2, 4),
        (7200, 5, 1, 3),
        (7200, 1, 1, 1),
        (None, 5, 3, 5),
        (None, 2, 2, 2),
    ],
)
def test_many_sequences_are_compared_on_fewer_parts(sequences: int | None, parts: int, first: int, last: int) -> None:
    assert first_parts(sequences, parts) == first
    plan = make_plan(4, parts, first, affordable=1000, whole_steps=500)
    assert plan is not None
    assert plan.rounds[0] == (4, first)
    assert plan.rounds[-1][1] == last


@pytest.mark.parametrize("count", [2, 5])
def test_folds_hold_every_sample_once_and_every_class_evenly(count: int) -> None:
    y = np.array([0] * 20 + [1] * 10 + [2] * 5)
    folds = stratified_folds(y, count, seed=3)
    assert sorted(np.concatenate(folds).tolist()) == list(range(len(y)))
    for label, size in ((0, 20), (1, 10), (2, 5)):
        shares = [int((y[fold] == label).sum()) for fold in folds]
        assert max(shares) - min(shares) <= 1, (label, size)
    assert [fold.tolist() for fold in folds] == [fold.tolist() for fold in stratified_folds(y, count, seed=3)]


@pytest.mark.parametrize("refit", [True, False])
def test_sequences_of_a_group_are_never_on_both_sides(refit: bool) -> None:
    data = sequences(60)
    # Groups of five sequences, of all classes.
    numbered = [replace(split, groups=np.arange(len(split)) // 5 + first) for split, first in
                ((data.train, 0), (data.validation, 100))]  # fmt: skip
    parts = resample(replace(data, train=numbered[0], validation=numbered[1]), 5, seed=0, refit=refit)
    assert len(parts) == 5
    for part in parts:
        sides = [set(split.groups.tolist()) for split in (part.train, part.validation, part.test) if len(split)]
        assert len(set.union(*sides)) == sum(map(len, sides))


@pytest.mark.parametrize("refit", [True, False])
def test_no_test_sequence_is_in_any_part(refit: bool) -> None:
    parts = resample(sequences(), 5, seed=0, refit=refit)
    held_out: list[str] = []
    for part in parts:
        assert isinstance(part, ClassificationData)
        assert part.test is not None
        for split in (part.train, part.validation, part.test):
            assert not (split.x == MARK).any()
        used = {*part.train.ids, *part.validation.ids}
        assert not used & set(part.test.ids)
        assert len(used) + len(part.test) == 30
        assert bool(len(part.validation)) is not refit
        held_out += part.test.ids
    assert sorted(held_out, key=int) == [str(number) for number in range(30)]


def test_no_test_step_is_in_any_part_of_a_series() -> None:
    data = many_series([np.arange(60.0)[:, None], np.arange(60.0)[:, None]])
    for series in data.series:
        series.values[-data.test_steps :] = MARK
    parts = resample(data, 3, seed=0, refit=False)
    assert len(parts) == 3
    lengths = [len(part.series[0].values) for part in parts]  # type: ignore[union-attr]
    # Each is earlier than the one before by what is scored.
    assert lengths == [60 - data.test_steps - number * data.validation_steps for number in range(3)]
    for part in parts:
        assert all(not (series.values == MARK).any() for series in part.series)  # type: ignore[union-attr]
        assert len(part.split("test"))


def test_data_that_is_too_short_is_refused_with_what_to_do() -> None:
    short = many_series([np.arange(18.0)[:, None]])
    with pytest.raises(DataError, match=r"is too short to compare settings on: .* Name a cell, such as --cell lipsch"):
        resample(short, 3, seed=0, refit=False)


def test_a_setting_of_the_user_wins_and_equal_recipes_are_tried_once() -> None:
    data = sequences()
    config = validate({"data": {"source": "toy"}, "model": {"hidden_size": 7}, "training": {"shift": 0.2}})
    candidates = find_candidates(config, data)
    assert {candidate.config.model.hidden_size for candidate in candidates} == {7}
    assert {candidate.config.training.shift for candidate in candidates} == {0.2}
    names = [candidate.recipe.name for candidate in candidates]
    # They differ from the first in a setting that is given.
    assert "lru, 128 units" not in names
    assert "lru, any start" not in names
    assert len(names) < len(recipes(data))


def test_only_what_the_user_left_open_counts_as_chosen() -> None:
    config = validate({"data": {"source": "toy"}, "model": {"cell": "auto"}, "training": {"refit": False}})
    settings = {"model.cell": "lru", "model.hidden_size": 128, "training.refit": True}
    assert open_settings(config, settings) == {"model.cell": "lru", "model.hidden_size": 128}
    assert merged(config, settings).training.refit is False


def test_the_baseline_has_random_layers_that_are_proved_and_stays_below_settings_of_the_user() -> None:
    baseline = find_baseline(validate({"data": {"source": "x"}}), sequences())
    assert (baseline.recipe.name, baseline.proof) == ("lru, closed form", "contracting")
    assert (baseline.config.model.hidden_size, baseline.config.training.refit) == (256, True)
    own = find_baseline(
        validate({"data": {"source": "x"}, "model": {"cell": "lipschitz", "hidden_size": 8}}), sequences()
    )
    assert (own.config.model.cell, own.config.model.hidden_size, own.proof) == ("lipschitz", 8, "contracting")
    with pytest.raises(ConfigError, match=r"training\.lr is only used by training\.method=gradient"):
        find_baseline(validate({"data": {"source": "x"}, "training": {"lr": 0.1}}), sequences())
    with pytest.raises(ConfigError, match=r"takes training\.method=closed-form, got training\.method=gradient"):
        find_baseline(validate({"data": {"source": "x"}, "training": {"method": "gradient"}}), sequences())


def test_the_baseline_of_sequences_with_times_takes_them() -> None:
    data = sequences()
    dt = np.ones((len(data.train), 12), np.float32)
    timed = replace(data, train=replace(data.train, dt=dt), validation=replace(data.validation, dt=dt[:6]), test=None)
    baseline = find_baseline(validate({"data": {"source": "x"}}), replace(timed, time_step=1.0))
    assert baseline.recipe.name == "lipschitz, closed form"


def test_the_cell_auto_is_replaced() -> None:
    config = validate({"data": {"source": "toy"}, "model": {"cell": "auto"}})
    assert merged(config, {"model.cell": "gru"}).model.cell == "gru"


def candidate(
    name: str, proof: str, scores: list[float], ties: list[float] | None = None, *, steps: int = 500
) -> Candidate:
    config = validate({"data": {"source": "toy"}, "model": {"cell": "lru"}})
    found = Candidate(Recipe(name, {}, ""), config, proof, RecommendedLength(steps, 0, 0))
    for part, score in enumerate(scores):
        trial, tie = Trial(0, config, part, len(scores)), None if ties is None else ties[part]
        found.results[part] = TrialResult(trial, "done", score=score, metric="accuracy", tie=tie)
    return found


@pytest.mark.parametrize(
    ("rows", "chosen", "reason"),
    [
        (
            [("first", "contracting", [0.8, 0.9, 0.7]), ("second", "contracting", [0.9, 1.0, 0.8])],
            "second",
            "the best mean over 3 parts",
        ),
        (
            [("first", "contracting", [0.8, 0.9, 0.7]), ("second", "contracting", [0.9, 0.8, 0.8])],
            "first",
            "as good as 'second' within one standard error, and before it in the order of the recipes",
        ),
        (
            [("first", "bounded", [0.9, 0.8, 0.8]), ("second", "contracting", [0.8, 0.9, 0.7])],
            "second",
            "as good as 'first' within one standard error, and proved to be contracting where that is bounded",
        ),
        (
            [("first", "contracting", [0.5, 0.5, 0.4]), ("second", "none", [0.9, 0.9, 0.9])],
            "second",
            "the best mean over 3 parts",
        ),
        ([("only", "none", [0.5])], "only", "the only recipe that was compared"),
    ],
    ids=["better", "as good", "stronger", "weaker and better", "alone"],
)
def test_what_is_as_good_within_one_standard_error_is_chosen_by_proof_and_order(
    rows: list[tuple[str, str, list[float]]], chosen: str, reason: str
) -> None:
    selected, why = select([candidate(*row) for row in rows])
    assert (selected.recipe.name, why) == (chosen, reason)


@pytest.mark.parametrize(("stopped", "chosen"), [(0, "second"), (8, "first")])
def test_the_best_of_many_has_to_be_better_by_more(stopped: int, chosen: str) -> None:
    """By 1.25 standard errors of the difference, which the best of ten equal recipes exceeds as a rule."""
    rows = [candidate("first", "none", [0.8, 0.8, 0.8]), candidate("second", "none", [0.83, 0.83, 0.79])]
    others = [candidate(f"other {number}", "none", [0.7]) for number in range(stopped)]
    selected, reason = select(rows, others)
    assert selected.recipe.name == chosen
    if stopped:
        assert reason == "as good as 'second' within 1.5 standard errors, and before it in the order of the recipes"
    # Recipes that no part was trained of are no comparison.
    unseen = [candidate(f"other {number}", "none", []) for number in range(8)]
    assert select(rows, unseen)[0].recipe.name == "second"


@pytest.mark.parametrize(("samples", "chosen"), [(20, "first"), (200, "second")])
def test_parts_that_agree_by_chance_do_not_make_few_sequences_many(samples: int, chosen: str) -> None:
    """Of 20 sequences, one more right in each of two parts."""
    rows = [candidate("first", "none", [0.8] * 2), candidate("second", "none", [0.85] * 2)]
    for each in rows:
        each.results = {part: replace(result, samples=samples) for part, result in each.results.items()}
    assert select(rows, [candidate(f"other {number}", "none", [0.7]) for number in range(8)])[0].recipe.name == chosen


@pytest.mark.parametrize(("shared", "chosen"), [(16, "second"), (0, "first")])
def test_recipes_that_err_on_different_sequences_differ_by_chance(shared: int, chosen: str) -> None:
    """In each of three parts the first errs on 20 of 100 sequences and the second on 16, of which some are the same."""
    rows = [candidate("first", "none", [0.8] * 3), candidate("second", "none", [0.84] * 3)]
    for each, wrong in zip(rows, (range(20), range(20 - shared, 36 - shared)), strict=True):
        logits, truth = np.zeros((100, 2)), np.zeros(100, dtype=np.int64)
        logits[list(wrong), 1] = 1
        each.results = {
            part: replace(result, samples=100, held_out=(logits, truth)) for part, result in each.results.items()
        }
    assert select(rows, [candidate(f"other {number}", "none", [0.7]) for number in range(8)])[0].recipe.name == chosen


def test_what_is_as_good_as_the_best_has_to_be_better_than_the_default() -> None:
    rows = [
        candidate("default", "none", [0.80, 0.80, 0.80]),
        candidate("lucky", "contracting", [0.75, 0.93, 0.88]),
        candidate("best", "none", [0.89, 0.90, 0.91]),
    ]
    assert select([rows[1], rows[2]])[0].recipe.name == "lucky"
    selected, reason = select(rows)
    assert (selected.recipe.name, reason) == ("best", "the best mean over 3 parts")


@pytest.mark.parametrize(("samples", "chosen"), [(20, "first"), (2000, "second"), (0, "second")])
def test_a_single_part_tells_apart_what_its_sequences_do(samples: int, chosen: str) -> None:
    rows = [candidate("first", "none", [0.85]), candidate("second", "none", [0.9])]
    for each in rows:
        each.results[0] = replace(each.results[0], samples=samples)
    selected, reason = select(rows)
    assert selected.recipe.name == chosen
    assert reason == (
        "as good as 'second' within one standard error, and before it in the order of the recipes"
        if samples == 20
        else "the best score"
    )


def test_recipes_are_compared_on_parts_that_more_than_half_of_them_have() -> None:
    """Time ran out while the second part was trained."""
    first = candidate("first", "none", [0.8, 0.7])
    others = [candidate("best", "none", [0.9]), candidate("third", "none", [0.7]), candidate("skipped", "none", [])]
    chosen = comparable([first, *others])
    assert [each.recipe.name for each in chosen] == ["first", "best", "third"]
    assert [each.scores for each in chosen] == [[0.8], [0.9], [0.7]]
    assert select(chosen)[0].recipe.name == "best"


def test_a_recipe_with_fewer_parts_than_the_others_is_left_out() -> None:
    rows = [candidate(name, "none", scores) for name, scores in (("a", [0.8] * 3), ("b", [0.7] * 3), ("c", [0.9] * 2))]
    # Without its first part nothing of a recipe can be compared.
    late = candidate("late", "none", [1.0] * 3)
    del late.results[0]
    failed = candidate("failed", "none", [1.0] * 3)
    failed.status = "failed"
    assert [each.recipe.name for each in comparable([*rows, late, failed])] == ["a", "b"]
    assert comparable([late]) == []


def test_the_temperature_is_that_of_the_sequences_of_all_parts() -> None:
    def with_logits(parts: list[tuple[list[list[float]], list[int]] | None]) -> Candidate:
        found = candidate("a", "none", [0.5] * len(parts))
        for part, held_out in enumerate(parts):
            arrays = None if held_out is None else (np.array(held_out[0]), np.array(held_out[1]))
            found.results[part] = replace(found.results[part], held_out=arrays)
        return found

    sure = ([[0.0, 6.0], [6.0, 0.0]] * 200, [1, 0] * 200)
    wrong = ([[0.0, 6.0], [6.0, 0.0]] * 100, [0, 1] * 100)
    overconfident = held_out_temperature(with_logits([sure, wrong]))
    assert overconfident is not None
    # Right in two of three cases: 6 / T is the logarithm of 2, but for the prior.
    assert overconfident == pytest.approx(6 / np.log(2), rel=0.05)
    assert held_out_temperature(with_logits([sure])) < 1  # type: ignore[operator]
    assert held_out_temperature(with_logits([None, None])) is None


def test_equal_accuracies_are_ranked_by_log_loss() -> None:
    first, second = candidate("a", "none", [0.9], [0.5]), candidate("b", "none", [0.9], [0.4])
    assert second.rank < first.rank


def test_the_recipe_of_convolutions_has_patches_as_long_as_they_read() -> None:
    for length, size in ((24, 15), (240, 40)):
        data = sequences(length=length)
        candidates = find_candidates(validate({"data": {"source": "toy"}}), data)
        (config,) = [each.config for each in candidates if each.recipe.name == "lru, convolutions"]
        model = resolve(config, task_for(data.without_validation())).model
        assert (model.conv_layers, model.patch_size, model.patch_stride) == (3, size, length // 24)


def test_recipes_of_classification_go_with_the_lengths() -> None:
    settings: dict[str, dict[str, Any]] = {
        recipe.name: dict(recipe.settings) for recipe in recipes(sequences(length=240))
    }
    # A stride of 10 samples by default, and half of it.
    assert settings["lru, short patches"]["model.patch_stride"] == 5
    assert settings["lru"]["training.refit"] is True


def test_many_windows_begin_with_a_larger_network_and_a_fair_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    data = many_series([np.arange(40.0)[:, None] for _ in range(3)])
    assert recipes(data)[0].name == "lipschitz"
    monkeypatch.setattr("stablernn.training.search.recipes.MANY_WINDOWS", len(data.windows("train")) - 1)
    first, *others = recipes(data)
    assert first.name == "lipschitz, many windows"
    assert first.settings == {"model.cell": "lipschitz", "model.hidden_size": 128, "training.lr": 0.01}
    assert {recipe.most_epochs for recipe in others if recipe.name != "lru"} == {first.most_epochs} == {20}
    config = validate({"data": {"source": "toy"}, "model": {"cell": "lipschitz"}})
    length = RecommendedLength(100, 1, 20)
    networks = [Candidate(recipe, config, "contracting", length) for recipe in (first, *others)]
    search = _Search(config, "forecast", Budget(None, 1000), networks, None, (5, 3), 0.0)
    workers = cast(Workers, ScoringWorkers(100))
    # A fifth of the steps of two recipes would fit: 2 * 5 * 20 = 200.
    assert search._plan(workers, 0.0, 200) is None
    plan = search._plan(workers, 0.0, 100)
    assert plan is not None
    assert plan.share >= LEAST_TRAINED


def varied(shortest: int, longest: int, **changes: Any) -> ClassificationData:
    """Sequences whose lengths are spread evenly."""
    data = sequences(length=longest)
    lengths = np.linspace(shortest, longest, len(data.train)).astype(np.int64)
    return replace(data, train=replace(data.train, lengths=lengths), **changes)


def test_resampling_is_tried_only_on_lengths_that_vary_much() -> None:
    resampled = [recipe for recipe in recipes(varied(29, 361)) if not recipe.streams]
    assert [recipe.settings["model.resample_steps"] for recipe in resampled] == [100]
    assert "cannot stream" in resampled[0].purpose
    assert all(recipe.streams for recipe in recipes(varied(200, 361)))
    # Samples with times need not be equidistant.
    assert all(recipe.streams for recipe in recipes(varied(29, 361, time_step=1.0)))


def without_streams(name: str, proof: str, scores: list[float]) -> Candidate:
    made = candidate(name, proof, scores)
    return replace(made, recipe=replace(made.recipe, streams=False))


@pytest.mark.parametrize(
    ("streaming", "chosen", "reason"),
    [
        (
            ("streaming", "none", [0.8, 0.7, 0.8]),
            "streaming",
            "as good as 'resampled' within one standard error, and it streams, which that does not",
        ),
        (
            ("streaming", "contracting", [0.5, 0.5, 0.4]),
            "resampled",
            "the best mean over 3 parts, by more than one standard error from the recipes that stream and were "
            "compared; it needs complete sequences and cannot stream",
        ),
        (("streaming", "bounded", [0.9, 0.9, 0.95]), "streaming", "the best mean over 3 parts"),
        (
            ("streaming", "bounded", [0.9, 0.75, 0.85]),
            "streaming",
            "the best mean over 3 parts",
        ),
    ],
    ids=["as good", "worse", "better", "as good with a weaker proof"],
)
def test_streams_are_given_up_only_for_more_than_one_standard_error(
    streaming: tuple[str, str, list[float]], chosen: str, reason: str
) -> None:
    # The proof of the one that cannot stream is the strongest, and it comes first.
    compared = [without_streams("resampled", "contracting", [0.75, 0.85, 0.85]), candidate(*streaming)]
    selected, why = select(compared)
    assert (selected.recipe.name, why) == (chosen, reason)


def test_a_recipe_that_streams_and_was_as_good_until_it_was_stopped_is_named() -> None:
    compared = [without_streams("resampled", "contracting", [0.9, 0.95]), candidate("default", "none", [0.5, 0.6])]
    stopped = [candidate("short patches", "contracting", [0.9]), candidate("long patches", "contracting", [0.6])]
    selected, why = select(compared, stopped)
    assert selected is compared[0]
    assert why.endswith("cannot stream, and 'short patches', which streams, was as good on the 1 part that it finished")


class ScoringWorkers:
    """Workers that train nothing: networks score .8 and the baseline .9, on every part.

    Args:
        whole_steps: Optimizer steps of a network.
        step_seconds: Seconds of a step.
        slowdown: Factor of these while recipes are compared, as where other work begins.
    """

    count = 1

    def __init__(self, whole_steps: int, *, step_seconds: float = 0.0, slowdown: float = 1.0) -> None:
        self._whole_steps = whole_steps
        self._step_seconds = step_seconds
        self._slowdown = slowdown

    def run(
        self, trials: Sequence[Trial], deadline: float | None, most_seconds: float | None = None
    ) -> Iterator[TrialResult]:
        for trial in trials:
            is_baseline = trial.config.training.method == "closed-form"
            score, whole_steps = (0.9, 0) if is_baseline else (0.8, self._whole_steps)
            yield TrialResult(
                trial,
                "done",
                score=score,
                metric="accuracy",
                tie=0.5,
                steps=round(whole_steps * trial.share),
                whole_steps=whole_steps,
                step_seconds=self._step_seconds * (1.0 if trial.most_steps else self._slowdown),
            )


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
    search = _Search(user, "classify", Budget(None, steps), networks, baseline, (5, 3), 0.0)
    choice = search.run(cast(Workers, ScoringWorkers(whole_steps)), Event())
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
    search = _Search(user, "classify", Budget(60.0), networks, baseline, (5, 3), time.monotonic())
    workers = ScoringWorkers(1000, step_seconds=0.01, slowdown=slowdown)
    choice = search.run(cast(Workers, workers), Event())
    assert choice.document["share_of_steps"] < LEAST_TRAINED
    assert choice.document["chosen"] == chosen


def test_a_budget_that_compares_nothing_is_told_a_larger_one(caplog: pytest.LogCaptureFixture) -> None:
    """What loading took counts, too: of 20 s, 12 are for the search, of which 11 are over."""
    networks = [candidate(name, "contracting", [], steps=1000) for name in ("first", "second")]
    user = validate({"data": {"source": "toy"}})
    workers = ScoringWorkers(1000, step_seconds=0.01)
    search = _Search(user, "classify", Budget(20.0), networks, None, (5, 3), time.monotonic() - 11.0)
    search.run(cast(Workers, workers), Event())
    found = re.search(r"the budget of 20 s compares no recipes on this data; that needs about (\d+) s", caplog.text)
    assert found is not None
    needed = float(found[1])
    assert needed > 20
    # With that budget, recipes are compared.
    caplog.clear()
    search = _Search(user, "classify", Budget(needed), networks, None, (5, 3), time.monotonic() - 11.0)
    search.run(cast(Workers, workers), Event())
    assert "Nothing was compared" not in caplog.text


def test_a_stop_names_the_best_on_the_same_parts_with_what_the_user_left_open() -> None:
    user = validate({"data": {"source": "toy"}, "training": {"patience": 3}})
    settings = {"model.cell": "lru", "model.hidden_size": 128, "training.refit": True}
    scores = {"first": [0.8, 1.0], "best": [0.85], "third": [0.7], "second part alone": []}
    networks = [candidate(name, "none", rows) for name, rows in scores.items()]
    for network in networks:
        network.recipe = replace(network.recipe, settings=settings)
    networks[3].results[1] = networks[0].results[1]
    search = _Search(user, "classify", Budget(60.0), networks, None, (5, 3), time.monotonic())
    # By means over different parts, each of the two with a result on the second would be the best.
    assert str(search._interrupted()) == (
        "Stopped while recipes were compared. The best so far, 'best', is trained with --set model.cell=lru --set "
        "model.hidden_size=128"
    )
