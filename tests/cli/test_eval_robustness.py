"""`eval --robustness`: the document, the tables, what a run keeps, and what is refused."""

from __future__ import annotations

import json

import pytest

from cli_helpers import Workplace

FEW = ("--attack-sequences", 20, "--attack-steps", 3, "--attack-budgets", "0.01,0.2", "--attack-budgets-l2", "0.1,1,5")


def test_a_run_keeps_its_report_and_pictures(workplace: Workplace) -> None:
    result = workplace.ok("eval", "digits-run", "--robustness", *FEW, "--json")
    report = result.json["robustness"]
    assert report["sequences"] == 20
    assert [attack["budgets"] for attack in report["attacks"]] == [[0.01, 0.2], [0.1, 1.0, 5.0]] * 2
    assert set(report["attacks"][0]) == {"name", "norm", "budgets", "accuracy", "certified"}
    assert {"accuracy_after_steps", "median_perturbation"} <= set(report["attacks"][2])
    assert report["settings"]["steps"] == 3
    assert report["hessian"]["trace_standard_error"] > 0
    assert json.loads(workplace.path("digits-run/robustness.json").read_text()) == report
    for name in ("robustness.png", "noise.png"):
        assert workplace.path(f"digits-run/plots/{name}").read_bytes().startswith(b"\x89PNG")
    assert "PGD, linf" in result.err
    assert "Wrote digits-run/robustness.json" in result.err


def test_a_version_is_attacked_by_its_own_weights_and_keeps_nothing(workplace: Workplace) -> None:
    run, version = (
        workplace.ok("-q", "eval", target, "--robustness", *FEW, "--json").json["robustness"]
        for target in ("digits-run", "digits:1")
    )
    assert run["attacks"] == version["attacks"]
    assert run["certified"] == version["certified"]
    assert not workplace.path("robustness.json").exists()
    assert workplace.ok("registry", "verify", "digits:1").code == 0


def test_people_see_tables(trained: Workplace) -> None:
    shown = trained.ok("-q", "eval", "digits:1", "--robustness", *FEW, "--attack-clip", "--attack-random-start").out
    for words in ("PGD", "DeepFool", "certified", "median certified radius", "salt and pepper", "condition number"):
        assert words in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("load-run", "--robustness"), "--robustness is for classes, and load-run is for 'forecast'. Leave it out."),
        (("digits-run", "--attack-steps", 3), "The options --attack-... are for --robustness."),
        (("digits-run", "--robustness", "--attack-budgets", "a,b"), "--attack-budgets is a list of numbers"),
        (("digits-run", "--robustness", "--attack-budgets-l2", "2,1"), "increasing numbers greater than 0"),
        (("digits-run", "--robustness", "--attack-sequences", 0), "must be 1 or more, got 0"),
    ],
)
def test_what_cannot_be_asked_for(trained: Workplace, arguments: tuple[object, ...], words: str) -> None:
    result = trained("eval", *arguments)
    assert result.code == 2
    assert words in result.sentence
