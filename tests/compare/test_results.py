"""Scores over seeds, ranks over problems and the tests between contenders."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata, wilcoxon

from stablernn.compare.results import (
    SIGNIFICANCE,
    aggregate,
    compare_errors,
    describe_test,
    find_groups,
    paired_p_value,
    table_rows,
)
from stablernn.errors import DataError
from stablernn.training.tasks.task import SampleErrors

CONTRACTING = {"kind": "contracting", "contraction_rate": 0.95}
BOUNDED = {"kind": "bounded", "contraction_rate": None, "radius": 6_723_447_172.0}


def run(problem: str, contender: str, seed: int, score: float | None, **figures: Any) -> dict[str, Any]:
    metric = "mase" if problem == "load" else "accuracy"
    scores = {} if score is None else {"test": {metric: score, "ridge": {metric: 0.5}}}
    row = {"problem": problem, "contender": contender, "seed": seed, "cpu_seconds": 2.0 + seed, "metrics": scores}
    return {**row, "parameters": 100, "step_ms": 0.1, "certificate": CONTRACTING, "diverged": False, **figures}


def test_scores_are_means_over_seeds_and_the_weakest_certificate_stands() -> None:
    runs = [run("a", "lru", 0, 0.7), run("a", "lru", 1, 0.9, certificate=BOUNDED), run("a", "gru", 0, 0.95)]
    table = aggregate(runs, {"a": {"metric": "accuracy"}})["problems"]["a"]
    assert [(row["name"], row["rank"]) for row in table["rows"]] == [("gru", 1.0), ("lru", 2.0)]
    lru = table["rows"][1]
    assert lru["score"] == {"mean": pytest.approx(0.8), "std": pytest.approx(0.02**0.5), "min": 0.7, "max": 0.9}
    assert (lru["certificate"], lru["cpu_seconds"], lru["failed"]) == (BOUNDED, 2.5, 0)
    assert (table["split"], table["trivial"]) == ("test", {"ridge": 0.5})
    assert table_rows(table)[1][:3] == ["lru", "0.8 ± 0.14", "2"]
    # The kind alone would not tell this bound from one of 1.
    assert "bounded within 6.8e+09" in table_rows(table)[1]


def many(gap: float) -> dict[str, Any]:
    """Results of three contenders on twelve problems, of which the third is worse by a gap."""
    generator = np.random.default_rng(3)
    runs = []
    for number in range(12):
        base = generator.uniform(0.6, 0.8)
        for name, shift in (("first", 0.0), ("second", 0.0), ("third", gap)):
            runs.append(run(str(number), name, 0, float(base - shift + generator.normal(scale=0.01))))
    return aggregate(runs, {str(number): {"metric": "accuracy"} for number in range(12)})


def test_ranks_and_p_values_are_those_of_scipy() -> None:
    results = many(0.05)
    scores = {name: [] for name in ("first", "second", "third")}
    for row in results["runs"]:
        scores[row["contender"]].append(row["metrics"]["test"]["accuracy"])
    table = np.array(list(scores.values()))
    expected = rankdata(-table, axis=0).mean(axis=1)
    assert results["ranks"]["mean"] == pytest.approx(dict(zip(scores, expected, strict=True)))
    pairs = {frozenset((pair["first"], pair["second"])): pair for pair in results["ranks"]["wilcoxon"]}
    for first, second in combinations(scores, 2):
        p = wilcoxon(scores[first], scores[second]).pvalue
        assert pairs[frozenset((first, second))]["p"] == pytest.approx(p)
    different = {names for names, pair in pairs.items() if pair["is_different"]}
    assert different == {frozenset(("first", "third")), frozenset(("second", "third"))}
    assert find_groups(results["ranks"]) in ([["first", "second"]], [["second", "first"]])


def test_groups_overlap_and_none_lies_within_another() -> None:
    pairs = [{"first": "a", "second": "d", "is_different": True}, {"first": "b", "second": "d", "is_different": True}]
    ranks = {"mean": {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}, "wilcoxon": pairs}
    assert find_groups(ranks) == [["a", "b", "c"], ["c", "d"]]


def test_problems_of_different_metrics_have_ranks_but_no_test() -> None:
    runs = [run("a", "lru", 0, 0.9), run("a", "gru", 0, 0.8), run("load", "lru", 0, 0.9), run("load", "gru", 0, 1.0)]
    ranks = aggregate(runs, {"a": {"metric": "accuracy"}, "load": {"metric": "mase"}})["ranks"]
    assert ranks == {"mean": {"lru": 1.0, "gru": 2.0}, "problems": 2, "wilcoxon": []}


def test_a_sentence_says_what_the_test_separates_and_what_it_cannot() -> None:
    sentence = describe_test(many(0.05)["ranks"])
    assert re.search(
        r"separates (first|second) from third \(p 0\.00049\), .* and not the other 1 of 3 pairs; 12", sentence
    )
    runs = [run(name, cell, 0, 0.9 - 0.1 * (cell == "gru")) for name in "abcde" for cell in ("lru", "gru")]
    few = describe_test(aggregate(runs, {name: {"metric": "accuracy"} for name in "abcde"})["ranks"])
    assert "separates no two; with fewer than 6 data sets it can separate none" in few
    # Six are enough: all differences of one sign have a p of 2 / 2**6.
    assert paired_p_value(np.full(6, 0.1)) < SIGNIFICANCE < paired_p_value(np.full(5, 0.1))
    assert "No test is made on a single data set" in describe_test({"problems": 1, "wilcoxon": []})


def errors(values: list[float], clusters: list[int] | None = None) -> SampleErrors:
    numbers = np.arange(len(values)) if clusters is None else np.array(clusters)
    return SampleErrors("accuracy", list(range(len(values))), np.array(values), {"sequences": numbers})


def test_two_models_differ_by_more_than_noise_where_independent_samples_say_so() -> None:
    better, worse = errors([0.0] * 40), errors([1.0] * 12 + [0.0] * 28)
    result = compare_errors(better, worse)
    assert (result["better"], result["is_different"], result["units"]) == ("first", True, 40)
    assert compare_errors(worse, better)["better"] == "second"
    # The same mistakes of a single person are one observation; five people are too few.
    people = [number // 12 for number in range(40)]
    assert not compare_errors(errors([0.0] * 40, people), worse)["is_different"]
    # As many mistakes elsewhere.
    assert not compare_errors(errors([0.0] * 28 + [1.0] * 12), worse)["is_different"]
    assert (compare_errors(better, better)["p"], compare_errors(better, better)["better"]) == (1.0, None)
    with pytest.raises(DataError, match="no sample in common"):
        compare_errors(better, SampleErrors("accuracy", ["other"], np.zeros(1), {"sequences": np.zeros(1, np.int64)}))
