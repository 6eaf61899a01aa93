"""Certificates and policies that were written before the kind ``local`` was withdrawn."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stablernn_registry import CheckResult, GateRefused, ManifestFields, PolicyRules, Registry, Version, model_card
from stablernn_registry.certificates import current_certificate, describe_certificate, format_kind
from stablernn_registry.copies import copy_versions

Publish = Callable[..., Version]
Tree = Callable[[Path], dict[str, bytes]]
STORED: dict[str, Any] = {
    "kind": "local",
    "holds": True,
    "contraction_rate": 1.5,
    "conditions": [{"name": "theorem 1 (a): mu2(A) + norm(W)", "value": -4.0, "bound": 0.0, "holds": True}],
}
MEANT = "The kind 'local' was withdrawn and now means 'bounded' (docs/stability.md)."
SHOWN = "none (stored as local; withdrawn)"


@pytest.fixture
def ruled(registry: Registry, publish: Publish) -> Registry:
    """A policy whose second line, for ``production``, was written when there was a kind ``local``; one version."""
    publish(certificate=STORED)
    registry.set_policy({"max_parity": 1.0}, alias="canary", why="first", who="ada")
    registry.set_policy({"kind": "none"}, alias="production", why="second", who="ada")
    path = registry.root / "policy.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    tree = json.loads(second)
    del tree["sha256"]
    tree["rules"]["kind"] = "local"
    body = json.dumps(tree, separators=(",", ":")).encode()
    line_hash = hashlib.sha256(body).hexdigest()
    path.write_bytes(first + body[:-1] + f',"sha256":"{line_hash}"}}\n'.encode())
    return registry


class TestCertificates:
    def test_the_stored_kind_counts_as_none(self) -> None:
        current = current_certificate(STORED)
        assert current == {**STORED, "kind": "none", "holds": False, "stored_kind": "local"}
        assert STORED["kind"] == "local"
        # What a server answered is read by other programs again.
        assert current_certificate(current) == current

    @pytest.mark.parametrize("kind", ["contracting", "non-expansive", "bounded", "none"])
    def test_other_kinds_are_as_they_are_stored(self, kind: str) -> None:
        stored = {"kind": kind, "holds": kind != "none"}
        assert current_certificate(stored) == stored
        assert format_kind(stored) == kind

    @pytest.mark.parametrize("kind", ["global", 3, ["contracting"], {"contracting": True}])
    def test_a_kind_of_another_program_is_shown_as_unknown(self, kind: object) -> None:
        assert describe_certificate({"kind": kind}) == f"{kind}: a kind that this version does not know"

    def test_the_card_says_none(self, fields: dict[str, Any]) -> None:
        card = model_card(ManifestFields.parse({**fields, "certificate": STORED}))
        assert f"\n{SHOWN}: no rate, and no bound of all its states, is proved.\n" in card
        assert "\n| kind | none |\n| holds | false |\n" in card
        assert "\n| stored_kind | local |\n" in card
        assert "\n| condition | value | at most | holds |\n" in card


class TestGates:
    @pytest.mark.parametrize("kind", ["contracting", "non-expansive", "bounded", "local"])
    def test_no_gate_is_passed(self, registry: Registry, publish: Publish, kind: str) -> None:
        publish(certificate=STORED)
        registry.set_policy({"kind": kind}, why="w")
        required = "bounded" if kind == "local" else kind
        with pytest.raises(GateRefused) as caught:
            registry.set_alias("digits", "production", 1)
        weaker = f"certificate kind '{SHOWN}' is weaker than '{required}', see stablernn certify digits:1"
        assert f"check 'policy kind' failed ({weaker})" in str(caught.value)


class TestPolicy:
    def test_a_new_rule_means_bounded_with_a_warning(
        self, registry: Registry, caplog: pytest.LogCaptureFixture
    ) -> None:
        entry = registry.set_policy({"kind": "local"}, why="w")
        assert entry.rules == PolicyRules(kind="bounded")
        assert b'"kind":"bounded"' in (registry.root / "policy.jsonl").read_bytes()
        assert [(record.levelno, record.message) for record in caplog.records] == [(logging.WARNING, MEANT)]

    def test_a_stored_rule_means_bounded_and_its_line_stays(
        self, ruled: Registry, tree: Tree, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = tree(ruled.root)
        policy = ruled.policy()
        assert policy.rules("production") == PolicyRules(kind="bounded")
        assert policy.withdrawn == {2}
        assert ruled.verify().problems == ()
        # Reading a registry says nothing: what was withdrawn counts when it is judged or shown.
        assert caplog.records == []
        assert tree(ruled.root) == before

    def test_lines_after_it_are_chained_to_its_stored_hash(self, ruled: Registry) -> None:
        ruled.set_policy({"kind": "bounded"}, alias="production", why="named anew")
        policy = ruled.policy()
        stored = json.loads((ruled.root / "policy.jsonl").read_bytes().splitlines()[1])
        assert policy.entries[2].previous == stored["sha256"]
        assert stored["rules"]["kind"] == "local"
        assert ruled.verify().problems == ()
        assert policy.warnings() == ()

    def test_it_is_named_for_the_aliases_under_it(self, ruled: Registry) -> None:
        sentence = (
            f"Line 2 of the policy asks for the kind 'local' for 'production'. {MEANT} Set the rule again: stablernn "
            "registry policy set --alias 'production' --require bounded --why '...'."
        )
        assert ruled.policy().warnings() == (sentence,)
        assert ruled.policy().warnings("production") == (sentence,)
        assert ruled.policy().warnings("canary") == ruled.policy().warnings("unruled") == ()

    def test_a_move_that_it_judges_warns_and_asks_for_bounded(
        self, ruled: Registry, publish: Publish, caplog: pytest.LogCaptureFixture
    ) -> None:
        publish(certificate={"kind": "bounded", "holds": True})
        (check,) = ruled.set_alias("digits", "production", 2).checks
        assert check.detail == "certificate kind 'bounded', 'bounded' is required"
        assert [record.message for record in caplog.records] == list(ruled.policy().warnings("production"))
        caplog.clear()
        with pytest.raises(GateRefused, match=r"'none \(stored as local; withdrawn\)' is weaker than 'bounded'"):
            ruled.set_alias("digits", "production", 1)
        assert len(caplog.records) == 1

    def test_a_move_that_is_judged_twice_warns_once(
        self, ruled: Registry, publish: Publish, caplog: pytest.LogCaptureFixture
    ) -> None:
        publish(certificate={"kind": "bounded", "holds": True})
        judged: list[int | None] = []

        def moves_once(candidate: Version, current: Version | None) -> CheckResult:
            judged.append(current.version if current else None)
            if len(judged) == 1:
                ruled.set_alias("digits", "production", 2)
                caplog.clear()
            return CheckResult("slow", True)

        ruled.set_alias("digits", "production", 2, checks=[moves_once])
        assert judged == [None, 2]
        assert caplog.records == []

    def test_an_alias_that_moved_by_it_and_its_history_are_read(self, ruled: Registry, tmp_path: Path) -> None:
        ruled.set_alias("digits", "production", 1, force=True, why="before it was withdrawn")
        assert ruled.get("digits@production").version == 1
        copied = copy_versions(ruled, [ruled.get("digits:1")], tmp_path / "copy")
        assert copied.get("digits@production").digest == ruled.get("digits:1").digest
        assert copied.get("digits:1").manifest.certificate == STORED
