"""Moves of an alias that the policy guards: refused, passed, forced, rolled back."""

from __future__ import annotations

import pytest

from cli_helpers import Workplace, republish
from policy_helpers import CHECKS, STABLE, aliases, bytes_of, instead, require, weaker


def test_an_unstable_model_is_refused_and_nothing_changes(guarded: Workplace) -> None:
    before = bytes_of(guarded)
    refused = guarded("registry alias digits@production 2")
    assert (
        refused.sentence
        == f"'digits@production' stays at version 1, version 2 is refused: {weaker(2)}. {instead('alias', 2)}"
    )
    assert (refused.code, refused.out) == (3, "")
    assert bytes_of(guarded) == before
    # Another alias is under no rule.
    guarded.ok("-q registry alias digits@canary 2")
    assert aliases(guarded) == {"production": 1, "canary": 2}


def test_a_stable_model_passes_and_the_log_says_by_what(guarded: Workplace) -> None:
    moved = guarded.document("registry alias digits@production 1")
    assert [(check["name"], check["ok"]) for check in moved["checks"]] == [(name, True) for name in CHECKS]
    kind, _, _, certificate, _, signature = moved["checks"]
    assert kind["detail"] == "certificate kind 'contracting', 'contracting' is required"
    assert certificate["detail"] == "'contracting', as stored"
    assert signature["detail"] == "inputs x, lengths, outputs logits, probabilities, 7 states, as stated"


def test_a_forced_move_is_in_the_history_with_its_reason(guarded: Workplace) -> None:
    guarded.ok("-q registry alias digits@production 2 --force --why 'a demonstration'")
    entry = guarded.document("registry log digits")[-1]
    assert (entry["forced"], entry["why"], entry["to"]) == (True, "a demonstration", 2)
    assert [check["name"] for check in entry["checks"] if not check["ok"]] == ["policy kind"]
    assert "alias production: 1 -> 2 (forced past: policy kind)" in guarded.ok("-q registry log digits").out
    assert (
        guarded.refusal("registry alias digits@production 2 --force")
        == "--force needs a reason, got none. Add --why '...'."
    )


def test_a_rollback_is_gated(workplace: Workplace) -> None:
    for version in (2, 1):
        workplace.ok(f"-q registry alias digits@production {version}")
    require(workplace, "--require contracting")
    refused = workplace("registry rollback digits@production")
    assert (
        refused.sentence
        == f"'digits@production' stays at version 1, version 2 is refused: {weaker(2)}. {instead('rollback')}"
    )
    assert (refused.code, aliases(workplace)) == (3, {"production": 1})
    rolled = workplace.ok("-q registry rollback digits@production --force --why 'as it was' --json")
    assert (rolled.json["action"], rolled.json["forced"], rolled.json["to"]) == ("rollback", True, 2)
    assert [check["name"] for check in rolled.json["checks"]] == CHECKS


@pytest.mark.slow
def test_export_publishes_what_the_alias_does_not_take(guarded: Workplace) -> None:
    refused = guarded("export rnn-run --name digits --alias production --json")
    assert (
        refused.sentence
        == f"'digits@production' stays at version 1, version 3 is refused: {weaker(3)}. {instead('alias', 3)}"
    )
    assert (refused.code, refused.out) == (3, "")
    assert "Published digits:3." in refused.err
    assert aliases(guarded) == {"production": 1}
    done = guarded.document("export lru-run --name digits --alias production")
    assert (done["ref"], done["aliases"], aliases(guarded)) == ("digits:4", ["production"], {"production": 4})
    assert [check["name"] for check in guarded.document("registry log digits")[-1]["checks"]] == CHECKS


def test_a_worse_figure_is_refused(workplace: Workplace) -> None:
    for accuracy in (0.98, 0.96):
        republish(workplace, STABLE, metrics={"test": {"accuracy": accuracy}})
    workplace.ok("-q registry alias digits@production 3")
    require(workplace, "--metric accuracy --worse-by 0.01")
    refused = workplace("registry alias digits@production 4")
    assert refused.sentence == (
        "'digits@production' stays at version 3, version 4 is refused: check 'policy metric' failed ('accuracy' on "
        f"'test' is 0.96, version 3 has 0.98, 0.01 worse is allowed). {instead('alias', 4)}"
    )
    require(workplace, "--metric accuracy --worse-by 0.02")
    workplace.ok("-q registry alias digits@production 4")
