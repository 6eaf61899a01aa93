"""Rules of the policy: how they are changed, and which make no sense."""

from __future__ import annotations

import pytest

from cli_helpers import Workplace
from policy_helpers import require

NOTHING = {"kind": None, "max_parity": None, "metric": None, "model_signature": None}
METRIC = {"name": "mae", "split": "validation", "worse_by": 0.5, "better": "lower"}


def test_rules_are_changed_one_by_one(empty: Workplace) -> None:
    shown = empty.ok("registry policy show")
    assert shown.out == "There is no policy: an alias may point to any version.\n"
    assert not empty.registry.exists()
    metric = "--metric mae --worse-by 0.5 --split validation"
    assert require(empty, "--require bounded")["rules"] == NOTHING | {"kind": "bounded"}
    assert require(empty, metric)["rules"] == NOTHING | {"kind": "bounded", "metric": METRIC}
    # An alias begins with what it was under.
    own = require(empty, "--alias production --max-parity 1e-05 --clear metric")
    assert (own["alias"], own["seq"], own["why"]) == ("production", 3, "runs unattended")
    assert own["rules"] == NOTHING | {"kind": "bounded", "max_parity": 1e-5}
    free = require(empty, "--alias production --clear kind --clear max-parity")
    assert free["rules"] == NOTHING
    document = empty.document("registry policy show")
    assert {alias: entry["rules"] for alias, entry in document["policy"].items()} == {
        "*": NOTHING | {"kind": "bounded", "metric": METRIC},
        "production": NOTHING,
    }
    assert [entry["seq"] for entry in document["history"]] == [1, 2, 3, 4]
    assert document["registry"] == str(empty.registry)
    assert require(empty, "--alias production --clear all")["rules"] is None
    text = empty.ok("-q registry policy show").out
    assert "bounded or stronger" in text
    assert "mae on validation: 0.5 worse at most (lower is better)" in text
    assert "production" not in text
    assert empty.document("registry verify")["ok"] is True


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            [],
            "A policy needs a rule, got none. Add --require KIND, --inputs-within R, --max-parity X, --metric NAME "
            "--worse-by Y, --model-signature or --clear RULE.",
        ),
        (["--worse-by", "0.1"], "--worse-by goes with --metric, got it alone. Add --metric NAME."),
        (["--split", "test"], "--split goes with --metric, got it alone. Add --metric NAME."),
        (
            ["--metric", "mse"],
            "--metric mse needs --worse-by, the allowed loss compared with the version that the alias points to "
            "now; 0 allows none.",
        ),
        (
            ["--metric", "coverage_0.9", "--worse-by", "0"],
            "The direction of improvement of 'coverage_0.9' is not known. Add --better higher or --better lower.",
        ),
        (
            ["--require", "bounded", "--clear", "kind"],
            "The rule 'kind' is both set and dropped. Leave out one of the two.",
        ),
        (
            ["--require", "bounded", "--clear", "all"],
            "--clear all drops every rule of the alias. Leave out the other rules.",
        ),
        (
            ["--clear", "rules"],
            "--clear must be one of kind, inputs-within, max-parity, metric, model-signature, all, got 'rules'.",
        ),
        (["--clear", "all"], "'*' has no rules of its own to drop. See `stablernn registry policy show`."),
        (["--max-parity", "nan"], None),
        (["--require", "stable"], None),
        (["--require", "bounded", "--alias", "latest"], None),
        (
            ["--require", "bounded", "--why", " "],
            "--why needs a reason, got none. State why the rules are as they are.",
        ),
    ],
)
def test_rules_that_make_no_sense(empty: Workplace, arguments: list[str], sentence: str | None) -> None:
    result = empty("registry policy set --why w", *arguments)
    assert (result.code, result.out) == (2, "")
    assert sentence is None or result.sentence == sentence
    assert not empty.registry.exists()


def test_rules_need_a_reason(empty: Workplace) -> None:
    assert "--why" in empty.refusal("registry policy set --require bounded")
