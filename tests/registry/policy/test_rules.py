"""The policy: the moves that it allows, and the rules that make no sense."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stablernn_registry import (
    AliasEntry,
    GateRefused,
    MetricRule,
    Policy,
    PolicyError,
    PolicyRules,
    RefError,
    Registry,
    Version,
    check_score,
)

Publish = Callable[..., Version]
Tree = Callable[[Path], dict[str, bytes]]
ACCURACY = MetricRule(name="accuracy", worse_by=0.01, better="higher")
CONTRACTING = {"kind": "contracting", "holds": True}
GRAPH = {
    "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 1]}],
    "outputs": [{"name": "logits", "dtype": "float32", "shape": ["batch", 2]}],
}
BOTH = {"sequence": GRAPH, "step": GRAPH}
TOKENS = {
    "inputs": [{"name": "tokens", "dtype": "int64", "shape": ["batch"]}],
    "outputs": [{"name": "logits", "dtype": "float32", "shape": ["batch", 2]}],
}
WITHIN_TWO = {"kind": "bounded", "inputs_within": {"lower": [-1.0, 0.0], "upper": [1.0, 2.0]}}
WITHIN_ONE = {"kind": "bounded", "inputs_within": {"lower": [-1.0], "upper": [1.0]}}


def within(lower: list[float], upper: list[float]) -> dict[str, Any]:
    """A certificate that proves something of inputs within a range alone."""
    bounded = {"kind": "bounded", "holds": True, "inputs": {"lower": lower, "upper": upper}}
    return {"kind": "none", "holds": False, "bounded_inputs": bounded}


def scored(accuracy: object) -> dict[str, Any]:
    return {"metrics": {"test": {"accuracy": accuracy}}}


@pytest.mark.parametrize(
    ("rules", "published", "refusal"),
    [
        ({"kind": "contracting"}, {"certificate": CONTRACTING}, None),
        (
            {"kind": "contracting"},
            {"certificate": {"kind": "bounded", "holds": True}},
            "check 'policy kind' failed (certificate kind 'bounded' is weaker than 'contracting', see stablernn "
            "certify digits:1)",
        ),
        (
            {"kind": "none"},
            {},
            "check 'policy kind' failed (no certificate is stored, kind 'none' is required)",
        ),
        (
            {"kind": "bounded"},
            {"certificate": {"kind": "splendid", "holds": True}},
            "check 'policy kind' failed (the certificate's kind must be one of contracting, non-expansive, bounded, "
            "none, got 'splendid')",
        ),
        ({"max_parity": 1e-5}, {"parity": {"max_rel_error": 1e-5}}, None),
        (
            {"max_parity": 1e-5},
            {"parity": {"max_abs_error": 0.0}},
            "check 'policy parity' failed (no figure 'max_rel_error' of parity is stored, at most 1e-05 is allowed)",
        ),
        ({"model_signature": True}, {"signature": BOTH}, None),
        (WITHIN_ONE, {"certificate": {"kind": "bounded", "holds": True}}, None),
        # Ranges of other features are a mistake, however much is proved; one range stands for all features.
        (WITHIN_ONE, {"certificate": CONTRACTING, "features": ["pressure", "flow"], "signature": {}}, None),
        (
            WITHIN_TWO,
            {"certificate": CONTRACTING},
            "check 'policy kind' failed (the rule has ranges of 2 features, the version has 1)",
        ),
        (
            WITHIN_TWO,
            {"certificate": CONTRACTING | {"bounded_inputs": within([0.0] * 3, [1.0] * 3)["bounded_inputs"]}},
            "check 'policy kind' failed (the rule has ranges of 2 features, the version has 3)",
        ),
        (
            WITHIN_TWO,
            {"certificate": CONTRACTING, "features": ["a", "b"], "signature": {"step": TOKENS}},
            "check 'policy kind' failed (the rule has ranges of 2 features, the version reads tokens, which have no "
            "ranges)",
        ),
        (WITHIN_ONE, {"certificate": CONTRACTING, "signature": {"step": TOKENS}}, None),
        *(
            (
                WITHIN_ONE,
                {"certificate": {"kind": "none", "holds": False, "bounded_inputs": stored}},
                "check 'policy kind' failed (certificate kind 'none' is weaker than 'bounded', see stablernn certify "
                "digits:1; the version has no certificate for inputs within a range, export it again with this version "
                "of stablernn)",
            )
            for stored in (
                None,
                {},
                {"inputs": {"lower": ["x"], "upper": [1]}},
                {"inputs": {"lower": [1], "upper": []}},
            )
        ),
        (
            {"kind": "bounded", "max_parity": 1.0},
            {},
            "check 'policy kind' failed (no certificate is stored, kind 'bounded' is required) and check "
            "'policy parity' failed (no figure 'max_rel_error' of parity is stored, at most 1 is allowed)",
        ),
    ],
)
def test_rules_of_one_version(
    registry: Registry,
    publish: Publish,
    tree: Tree,
    rules: dict[str, Any],
    published: dict[str, Any],
    refusal: str | None,
) -> None:
    publish(**published)
    registry.set_policy(rules, why="w")
    before = tree(registry.root)
    if refusal is None:
        entry = registry.set_alias("digits", "production", 1)
        assert [check.ok for check in entry.checks] == [True] * len(rules.keys() - {"inputs_within"})
        return
    with pytest.raises(GateRefused, match=re.escape(refusal)):
        registry.set_alias("digits", "production", 1)
    assert tree(registry.root) == before


@pytest.mark.parametrize(("lower", "upper"), [([], []), ([1.0], [1.0]), ([float("nan")], [1.0])])
def test_a_range_of_inputs_that_is_none(registry: Registry, lower: list[float], upper: list[float]) -> None:
    with pytest.raises(PolicyError, match="The policy cannot be written"):
        registry.set_policy({"kind": "bounded", "inputs_within": {"lower": lower, "upper": upper}}, why="w")
    assert registry.policy() == Policy()


@pytest.mark.parametrize(
    ("old", "new", "rule", "refusal"),
    [
        (0.98, 0.97, ACCURACY, None),
        (
            0.98,
            0.9699,
            ACCURACY,
            "'accuracy' on 'test' is 0.9699, version 1 has 0.98, 0.01 worse is allowed",
        ),
        (0.2, 0.21, MetricRule(name="accuracy", worse_by=0.01, better="lower"), None),
        (
            0.2,
            0.2001,
            MetricRule(name="accuracy", worse_by=0, better="lower"),
            "'accuracy' on 'test' is 0.2001, version 1 has 0.2, no worse is allowed",
        ),
        (0.98, None, ACCURACY, "version 2 has no figure 'accuracy' on 'test'"),
        (
            None,
            0.98,
            ACCURACY,
            "version 1, where it points now, has no figure 'accuracy' on 'test' to compare with",
        ),
    ],
)
def test_a_figure_against_the_version_before(
    registry: Registry, publish: Publish, old: object, new: object, rule: MetricRule, refusal: str | None
) -> None:
    publish(**scored(old))
    publish(**scored(new))
    registry.set_alias("digits", "production", 1)
    registry.set_policy(PolicyRules(metric=rule), alias="production", why="w")
    if refusal is None:
        assert registry.set_alias("digits", "production", 2).checks[0].ok
        return
    with pytest.raises(GateRefused) as error:
        registry.set_alias("digits", "production", 2)
    assert f"version 2 is refused: check 'policy metric' failed ({refusal}). " in str(error.value)
    assert registry.get("digits@production").version == 1


def test_the_first_version_of_an_alias_needs_its_figure_only(registry: Registry, publish: Publish) -> None:
    publish(**scored(0.1))
    publish(**scored(None))
    registry.set_policy(PolicyRules(metric=ACCURACY), why="w")
    with pytest.raises(GateRefused, match="version 2 has no figure 'accuracy' on 'test'"):
        registry.set_alias("digits", "production", 2)
    (check,) = registry.set_alias("digits", "production", 1).checks
    assert check.detail == "'accuracy' on 'test' is 0.1, and there is no version to compare with"


@pytest.mark.parametrize(
    ("metrics", "refusal"),
    [
        ({}, "no score"),
        ({"test": {"accuracy": 0.4, "majority": {"accuracy": 0.4}}}, "the most frequent class: 'accuracy' on 'test'"),
        # Calibrated to constant probabilities, and no better than they.
        ({"test": {"accuracy": 0.4, "log_loss": 1.09, "majority": {"accuracy": 0.4, "log_loss": 1.0986}}}, "log_loss"),
        # Of rare classes a useful model may name none, and know when they are likely.
        ({"test": {"accuracy": 0.9, "log_loss": 0.2, "majority": {"accuracy": 0.9, "log_loss": 0.33}}}, None),
        # The test split counts, which chose nothing.
        (
            {
                "validation": {"accuracy": 0.9, "majority": {"accuracy": 0.5}},
                "test": {"accuracy": 0.3, "majority": {"accuracy": 0.5}},
            },
            "on 'test' is 0.3, the most frequent class has 0.5",
        ),
        ({"cross_validation": {"accuracy": 0.6, "majority": {"accuracy": 0.5}}}, None),
        ({"test": {"mase": 1.3, "mae": 5.0, "seasonal_naive": {"mase": 1.2, "mae": 5.0}}}, "seasonal naive forecast"),
        ({"test": {"mase": 1.1, "mae": 6.0, "seasonal_naive": {"mase": 1.2, "mae": 5.0}}}, None),
    ],
)
def test_a_score_is_one_on_other_data_and_better_than_the_trivial_answer(
    publish: Publish, metrics: dict[str, Any], refusal: str | None
) -> None:
    result = check_score(publish(metrics=metrics))
    assert (result.ok, result.name) == (refusal is None, "score")
    assert (refusal or "") in result.detail


def test_the_policy_stands_beside_the_checks_and_is_logged_with_them(registry: Registry, publish: Publish) -> None:
    from stablernn_registry import CheckResult

    publish(certificate=CONTRACTING)
    registry.set_policy({"kind": "bounded"}, why="w")
    entry = registry.set_alias("digits", "production", 1, checks=[lambda new, old: CheckResult("mine", True, "fine")])
    assert [(check.name, check.ok, check.detail) for check in entry.checks] == [
        ("policy kind", True, "certificate kind 'contracting', 'bounded' is required"),
        ("mine", True, "fine"),
    ]


def test_rollback_and_force_are_under_the_policy_too(registry: Registry, publish: Publish) -> None:
    publish()
    publish(certificate=CONTRACTING)
    registry.set_alias("digits", "production", 1)
    registry.set_alias("digits", "production", 2)
    registry.set_policy({"kind": "contracting"}, alias="production", why="w")
    with pytest.raises(GateRefused, match="stays at version 2, version 1 is refused: check 'policy kind' failed"):
        registry.rollback("digits", "production")
    registry.set_alias("digits", "canary", 1)
    registry.rollback("digits", "production", force=True, why="the night shift")
    entry = registry.log("digits")[-1]
    assert isinstance(entry, AliasEntry)
    assert (entry.action, entry.forced, entry.why) == ("rollback", True, "the night shift")
    assert [(check.name, check.ok) for check in entry.checks] == [("policy kind", False)]


@pytest.mark.parametrize(
    ("rules", "sentence"),
    [
        (
            {"kind": "stable"},
            "field 'kind': input should be 'contracting', 'non-expansive', 'bounded' or 'none', got 'stable'",
        ),
        ({"max_parity": float("nan")}, "field 'max_parity': input should be a finite number, got nan"),
        ({"knd": "bounded"}, "unknown field 'knd'; did you mean 'kind'"),
    ],
)
def test_rules_that_make_no_sense_change_nothing(registry: Registry, rules: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PolicyError, match=re.escape(sentence)):
        registry.set_policy(rules, why="w")
    assert not registry.root.exists()


@pytest.mark.parametrize("why", ["", "  "])
def test_a_change_needs_a_reason(registry: Registry, why: str) -> None:
    with pytest.raises(PolicyError, match="A change of the policy needs a reason, got none"):
        registry.set_policy({}, why=why)
    assert not registry.root.exists()


@pytest.mark.parametrize(
    "alias",
    [
        "latest",
        "prod*",
    ],
)
def test_rules_are_for_an_alias_or_all(registry: Registry, alias: str) -> None:
    with pytest.raises(RefError):
        registry.set_policy({}, alias=alias, why="w")
    assert not registry.root.exists()
