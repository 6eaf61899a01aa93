"""Statements of the papers are judged by the figures of results, and by nothing else."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from reproductions import STORED
from result_documents import Values, results_of
from stablernn_papers.results import read_results
from stablernn_papers.statements import STATEMENTS, Statement, judge_statements
from stablernn_papers.statements.rules import Comparable, Figure, Limit, Ordered, PeakInside
from stablernn_papers.table import FULL, SHORT
from stablernn_papers.tables import TABLES

ROOT = Path(__file__).parents[2]


def stored(key: str) -> dict[str, Any]:
    results = read_results(ROOT / STORED / key / "results.json")
    assert results is not None
    return results


def judge(key: str, *results: dict[str, Any]) -> tuple[str, str]:
    """The verdict on a statement and its figures."""
    judged = judge_statements({entry["table"]: entry for entry in results})
    (entry,) = (entry for entry in judged if entry["key"] == key)
    return entry["verdict"], entry["figures"]


def scores(table: str, data: str, rows: dict[str, Values], figure: str = "test.accuracy", share: float = 1.0) -> Any:
    return results_of(
        table, {(row, data): [{figure: value} for value in values] for row, values in rows.items()}, share
    )


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.key)
def test_a_statement_is_about_rows_and_figures_that_there_are(statement: Statement) -> None:
    rule: Any = statement.rule
    rows = {*rule.rows, *getattr(rule, "others", ())}
    for figure in rule.figures:
        table = TABLES[figure.table]
        data = table.data_set(figure.data, FULL)
        assert rows <= {row.key for row in table.rows_on(data)}
    assert len({figure.table for figure in rule.figures}) == 1
    assert statement.sentence.endswith(".")
    assert judge_statements({})[STATEMENTS.index(statement)]["verdict"] == "not tested"


def test_the_stored_robustness_is_judged_in_both_views() -> None:
    results = stored("robustness")
    verdict, figures = judge("lipschitz-resists-pgd", results)
    assert verdict == "held"
    assert figures == (
        "PGD after all epochs: lipschitz 37.6 % against neural_ode_rnn 15.4 %, antisymmetric 15.9 %; "
        "PGD at equal accuracy: lipschitz 25.5 % against neural_ode_rnn 15.2 %, antisymmetric 15.2 %"
    )
    verdict, figures = judge("lipschitz-resists-deepfool-linf", results)
    assert verdict == "not held"
    assert "lipschitz 38.9 % against neural_ode_rnn 22.7 %, antisymmetric 31.5 % (within the spread of" in figures
    assert judge("lipschitz-flatter-eigenvalue", results)[0] == "not held"


def test_another_figure_in_the_results_is_another_verdict() -> None:
    results = copy.deepcopy(stored("robustness"))
    for run in results["runs"]:
        for measured in run["measured"]:
            if run["row"] == "lipschitz":
                measured["figures"]["pgd"] = 0.1
                measured["robustness"]["noise"]["white"]["accuracy"] = [1.0] * 7
    assert judge("lipschitz-resists-pgd", results)[0] == "not held"
    assert judge("lipschitz-resists-white-noise", stored("robustness"))[0] == "not held"
    verdict, figures = judge("lipschitz-resists-white-noise", results)
    assert verdict == "held"
    assert "white noise after all epochs: lipschitz 100.0 % against" in figures


def test_runs_with_other_settings_are_no_evidence() -> None:
    results = copy.deepcopy(stored("robustness"))
    for run in results["runs"]:
        if run["row"] == "lipschitz":
            run["settings"]["model"]["preset"] = "paper"
    verdict, figures = judge("lipschitz-resists-pgd", results)
    assert (verdict, figures) == ("not tested", "not run: lipschitz on mnist-rows")


def test_scaled_down_results_are_no_evidence() -> None:
    results = stored("dynamics")
    assert judge("diffusion-damps", results | {"protocol": {**results["protocol"], "name": SHORT}})[0] == "not tested"


@pytest.mark.parametrize(
    ("exprnn", "verdict"),
    [((8.9, 9.0, 9.1), "held"), ((8.4, 8.5, 8.6), "not held"), ((8.2, 8.2, 8.2), "not held")],
    ids=["apart", "within the spread", "the other way"],
)
def test_a_mean_is_better_by_more_than_the_spread(exprnn: Values, verdict: str) -> None:
    results = scores("polyphonic", "jsb", {"lvf": (8.3, 8.4, 8.5), "exprnn": exprnn}, "test.nll")
    assert judge("lvf-beats-exprnn-jsb", results)[0] == verdict


def test_a_statement_on_all_rows_needs_all_of_them_and_falls_with_one() -> None:
    rows = dict.fromkeys(("rnn", "urnn", "eunn", "fc_urnn", "exprnn", "nnrnn"), (8.9, 9.0))
    whole = {**rows, "lvf": (8.3, 8.4)}
    assert judge("lvf-best-jsb", scores("polyphonic", "jsb", whole, "test.nll"))[0] == "held"
    part = {key: whole[key] for key in ("lvf", "exprnn")}
    verdict, figures = judge("lvf-best-jsb", scores("polyphonic", "jsb", part, "test.nll"))
    assert verdict == "not tested"
    assert figures == "jsb: lvf 8.35 against exprnn 8.95; not run: rnn, urnn, eunn, fc_urnn, nnrnn on jsb"
    part["exprnn"] = (8.0, 8.1)
    assert judge("lvf-best-jsb", scores("polyphonic", "jsb", part, "test.nll"))[0] == "not held"


@pytest.mark.parametrize("row", ["antisymmetric", "lipschitz-64"])
@pytest.mark.parametrize(
    ("part", "missing"),
    [
        ({"length": {"share": 0.2}}, "the training of {} on mnist beyond 20 %"),
        ({"partial_data": ["half"]}, "{} on the whole of mnist"),
    ],
    ids=["a part of the training", "a part of the data"],
)
def test_only_whole_trainings_are_judged(row: str, part: dict[str, Any], missing: str) -> None:
    results = scores("mnist-pixel", "mnist", {"lipschitz-64": (0.98,), "antisymmetric": (0.5,)})
    for run in results["runs"]:
        if run["row"] == row:
            run.update(part)
    assert judge("lipschitz-beats-antisymmetric-mnist", results) == ("not tested", f"not run: {missing.format(row)}")


def test_ten_seeds_lie_no_further_apart_than_printed() -> None:
    rows = ("lipschitz-64", "lipschitz_rk2-64", "lipschitz-128", "lipschitz_rk2-128")
    near = {row: (0.989, *[0.99] * 9) for row in rows}
    key = "lipschitz-insensitive-mnist"
    assert judge(key, scores("init-sensitivity", "mnist", near))[0] == "held"
    verdict, figures = judge(key, scores("init-sensitivity", "mnist", dict.fromkeys(rows, (0.989, 0.99))))
    assert verdict == "not tested"
    assert "8 more seeds of lipschitz-64" in figures
    far = {**near, "lipschitz-64": (0.9, 0.99)}
    verdict, figures = judge(key, scores("init-sensitivity", "mnist", far))
    assert verdict == "not held"
    assert "lipschitz-64 90.0 % to 99.0 % over 2 seeds, limit 0.2 points" in figures


FIGURE = (Figure("ablation", "digits", "test.accuracy", percent=True),)
SKEW = tuple(f"skew-weight-{value:g}" for value in (0.5, 0.7, 1))


@pytest.mark.parametrize(
    ("rule", "means", "state"),
    [
        (Ordered(FIGURE, SKEW), (0.1, 0.2, 0.3), "held"),
        (Ordered(FIGURE, SKEW), (0.1, 0.3, 0.2), "not held"),
        (Ordered(FIGURE, SKEW), (0.1, 0.2, 0.1), "not held"),
        (PeakInside(FIGURE, SKEW), (0.1, 0.2, 0.1), "held"),
        (PeakInside(FIGURE, SKEW), (0.1, 0.2, 0.3), "not held"),
        (PeakInside(FIGURE, SKEW), (0.1, 0.11, 0.1), "not held"),
        (Limit(FIGURE, SKEW, at_most=0.2), (0.1, 0.2, 0.1), "held"),
        (Limit(FIGURE, SKEW, at_most=0.2), (0.1, 0.21, 0.1), "not held"),
        (Comparable(FIGURE, SKEW[:1], SKEW, 0.03), (0.1, 0.12, 0.05), "held"),
        (Comparable(FIGURE, SKEW[:1], SKEW, 0.01), (0.1, 0.14, 0.1), "not held"),
    ],
)
def test_the_rules(rule: Any, means: Values, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    statement = Statement("rule", "A rule.", "none", rule)
    monkeypatch.setattr("stablernn_papers.statements.STATEMENTS", (statement,))
    rows = {key: (mean - 0.01, mean + 0.01) for key, mean in zip(SKEW, means, strict=True)}
    assert judge("rule", scores("ablation", "digits", rows))[0] == state


def test_rounds_are_the_spread_of_a_speed() -> None:
    table = TABLES["speed"]
    results = results_of("speed", {(row.key, "pixels"): [{}] for row in table.rows}, None, view="measured")
    for run in results["runs"]:
        run["step_seconds"] = [1.0, 1.1] if run["row"] == "antisymmetric-loop" else [2.0, 2.1]
    assert judge("antisymmetric-faster-than-lstm", results)[0] == "held"
    for run in results["runs"]:
        run["step_seconds"][0] = 0.0
    assert judge("antisymmetric-faster-than-lstm", results)[0] == "not held"
