"""Certificates and policies that were written before the kind ``local`` was withdrawn."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stablernn_registry import GateRefused, PolicyRules, Registry, Version
from stablernn_registry.certificates import current_certificate

Publish = Callable[..., Version]
Tree = Callable[[Path], dict[str, bytes]]
STORED: dict[str, Any] = {
    "kind": "local",
    "holds": True,
    "contraction_rate": 1.5,
    "conditions": [{"name": "theorem 1 (a): mu2(A) + norm(W)", "value": -4.0, "bound": 0.0, "holds": True}],
}
MEANT = "The kind 'local' was withdrawn and now means 'bounded' (docs/background/stability.md)."
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
