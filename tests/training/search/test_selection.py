"""Which candidate is selected by its scores and its proof."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from search_helpers import candidate
from stablernn.training.search.candidates import Candidate, held_out_temperature, keep_comparable, select


def without_streams(name: str, proof: str, scores: list[float]) -> Candidate:
    made = candidate(name, proof, scores)
    return replace(made, recipe=replace(made.recipe, streams=False))


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
            "as good as 'second' within one standard error, and the default",
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
        (
            [("first", "none", [0.5, 0.4]), ("second", "none", [0.9, 0.8]), ("third", "none", [0.8, 1.0])],
            "third",
            "the best mean over 2 parts",
        ),
        ([("only", "none", [0.5])], "only", "the only recipe that was compared"),
    ],
    ids=["better", "as good", "stronger", "weaker and better", "better than the default", "alone"],
)
def test_what_is_as_good_within_one_standard_error_is_chosen_by_its_proof(
    rows: list[tuple[str, str, list[float]]], chosen: str, reason: str
) -> None:
    selected, why = select([candidate(*row) for row in rows])
    assert (selected.recipe.name, why) == (chosen, reason)


@pytest.mark.parametrize(("parts", "chosen"), [(2, "better"), (3, "proved")])
def test_two_parts_say_nothing_of_the_error_of_a_forecast(parts: int, chosen: str) -> None:
    rows = [
        candidate("proved", "contracting", [1.2, 4.4, 3.0][:parts]),
        candidate("better", "none", [1.6, 2.1, 2.9][:parts]),
    ]
    for each in rows:
        each.results = {part: replace(result, metric="mase") for part, result in each.results.items()}
    assert select(rows)[0].recipe.name == chosen


def test_what_a_baseline_beats_is_not_chosen_for_being_as_good_within_one_standard_error() -> None:
    rows = [candidate("first", "contracting", [0.4, 0.6, 0.4]), candidate("second", "none", [0.6, 0.5, 0.5])]
    assert select(rows)[0].recipe.name == "first"
    assert select(rows, baselines={"majority": dict.fromkeys(range(3), 0.5)})[0].recipe.name == "second"


@pytest.mark.parametrize(("shared", "chosen"), [(17, "second"), (0, "first")])
def test_recipes_that_err_on_different_sequences_differ_by_chance(shared: int, chosen: str) -> None:
    """In each of three parts the first errs on 20 of 100 sequences and the second on 17, of which some are the same."""
    rows = [candidate("first", "none", [0.8] * 3), candidate("second", "none", [0.83] * 3)]
    for each, wrong in zip(rows, (range(20), range(20 - shared, 37 - shared)), strict=True):
        logits, truth = np.zeros((100, 2)), np.zeros(100, dtype=np.int64)
        logits[list(wrong), 1] = 1
        each.results = {
            part: replace(result, samples=100, held_out=(logits, truth)) for part, result in each.results.items()
        }
    assert select(rows)[0].recipe.name == chosen


@pytest.mark.parametrize(("margin", "chosen"), [(5.0, "strong"), (0.5, "sure")])
def test_a_stronger_proof_wins_only_where_the_log_loss_is_as_good(margin: float, chosen: str) -> None:
    """Both are right on 19 of 20 sequences of each part, by logits that exceed the others by 5 or by less."""
    rows = [candidate("sure", "none", [0.95] * 2), candidate("strong", "contracting", [0.95] * 2, [1.0] * 2)]
    for each, size in zip(rows, (5.0, margin), strict=True):
        logits, truth = np.zeros((20, 2)), np.zeros(20, dtype=np.int64)
        logits[:, 0] = size
        logits[0] = (0.0, size)
        each.config = each.config.updated("training", temperature=1.0)
        each.results = {
            part: replace(result, samples=20, held_out=(logits, truth)) for part, result in each.results.items()
        }
    assert select(rows)[0].recipe.name == chosen


@pytest.mark.parametrize(("draws", "chosen", "error"), [(2, "first", 0.025), (1, "second", 0.025 / 2**0.5)])
def test_a_second_draw_of_the_same_sequences_makes_no_difference_more_certain(
    draws: int, chosen: str, error: float
) -> None:
    rows = [candidate("first", "none", [0.8] * 4), candidate("second", "none", [0.845, 0.795] * 2)]
    for each in rows:
        each.results = {
            part: replace(result, samples=100, trial=replace(result.trial, draw=part * draws // 4))
            for part, result in each.results.items()
        }
    assert select(rows)[0].recipe.name == chosen
    # The deviation over four parts is smaller by the square root of 2/3 than that over two.
    assert rows[1].document()["standard_error"] == pytest.approx(error * (2 / 3) ** 0.5)


def test_recipes_are_compared_on_parts_that_more_than_half_of_them_have() -> None:
    """Time ran out while the second part was trained."""
    first = candidate("first", "none", [0.8, 0.7])
    others = [candidate("best", "none", [0.9]), candidate("third", "none", [0.7]), candidate("skipped", "none", [])]
    chosen = keep_comparable([first, *others])
    assert [each.recipe.name for each in chosen] == ["first", "best", "third"]
    assert [each.scores for each in chosen] == [[0.8], [0.9], [0.7]]
    assert select(chosen)[0].recipe.name == "best"


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
            "the best mean over 3 parts; it cannot stream",
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
