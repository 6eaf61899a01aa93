"""The file of the policy: lines, their chain, the log, and processes that write at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from stablernn_registry import MetricRule, PolicyRules, Registry, StorageError

ACCURACY = MetricRule(name="accuracy", worse_by=0.01, better="higher")


def test_a_line_says_who_when_why_and_is_chained_as_the_documentation_says(registry: Registry) -> None:
    registry.set_policy({"kind": "bounded"}, why="from the start", who="ada")
    registry.set_policy(PolicyRules(max_parity=1e-5, metric=ACCURACY), alias="production", why="it counts", who="bob")
    registry.set_policy(None, alias="production", why="it does not", who="bob")
    previous, trees = "0" * 64, []
    for line in (registry.root / "policy.jsonl").read_bytes().splitlines():
        line_hash = hashlib.sha256(line[:-77] + b"}").hexdigest()
        assert line.endswith(f',"previous":"{previous}","sha256":"{line_hash}"}}'.encode())
        trees.append(json.loads(line))
        previous = line_hash
    nothing = {"kind": None, "max_parity": None, "metric": None, "model_signature": None}
    metric = {"name": "accuracy", "split": "test", "worse_by": 0.01, "better": "higher"}
    assert [(tree["seq"], tree["who"], tree["why"], tree["alias"], tree["rules"]) for tree in trees] == [
        (1, "ada", "from the start", "*", nothing | {"kind": "bounded"}),
        (2, "bob", "it counts", "production", nothing | {"max_parity": 1e-5, "metric": metric}),
        (3, "bob", "it does not", "production", None),
    ]
    assert all(tree["time"].endswith("Z") for tree in trees)
    assert registry.policy().head == previous
    assert registry.verify().ok


def test_the_last_line_for_an_alias_counts_and_the_star_for_those_without(registry: Registry) -> None:
    def kinds() -> list[str | None]:
        return [registry.policy().rules(alias).kind for alias in ("production", "canary")]

    registry.set_policy({"kind": "none"}, why="w")
    assert kinds() == ["none", "none"]
    registry.set_policy({"kind": "contracting"}, alias="production", why="w")
    registry.set_policy({"kind": "bounded"}, why="w")
    assert kinds() == ["contracting", "bounded"]
    registry.set_policy({}, alias="production", why="free on purpose")
    assert kinds() == [None, "bounded"]
    registry.set_policy(None, alias="production", why="w")
    assert kinds() == ["bounded", "bounded"]
    registry.set_policy(None, why="w")
    assert kinds() == [None, None]
    assert registry.policy().in_force == {}
    assert len(registry.policy().entries) == 6


def test_a_change_that_waits_too_long_says_for_what(
    ruled: Registry, lock_elsewhere: Callable[[Path], AbstractContextManager[None]]
) -> None:
    with lock_elsewhere(ruled.root / "locks/@policy"):
        with pytest.raises(StorageError, match=r"Another process has been writing to the policy for 0\.1 s \("):
            Registry(ruled.root, lock_timeout_seconds=0.1).set_policy({}, why="w")
        # Aliases do not wait for it.
        ruled.set_alias("digits", "free", 1)
