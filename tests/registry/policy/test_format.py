"""The file of the policy: lines, their chain, the log, and processes that write at once."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from stablernn_registry import MetricRule, PolicyRules, Registry, StorageError, Version

Publish = Callable[..., Version]
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


def test_an_interrupted_change_is_noted_and_cleared_by_the_next(ruled: Registry) -> None:
    (ruled.root / "tmp/@policy").mkdir()
    (ruled.root / "tmp/@policy/policy.jsonl").write_text("half a li")
    report = ruled.verify()
    assert (report.problems, report.notes) == (
        (),
        (
            "tmp/@policy holds 1 staged file: a write to the policy is running or was interrupted; the next write to "
            "it clears them.",
        ),
    )
    ruled.set_policy({}, why="w")
    assert not (ruled.root / "tmp/@policy").exists()
    assert len(ruled.policy().entries) == 3


CHANGER = """
import sys
from stablernn_registry import Registry
registry = Registry(sys.argv[1])
for _ in range(8):
    registry.set_policy({"max_parity": 1.0}, why=sys.argv[2])
"""


@pytest.mark.slow
def test_processes_that_change_it_at_once_all_get_their_line(registry: Registry) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", CHANGER, str(registry.root), f"process {number}"])
        for number in range(3)
    ]
    looks = 0
    while any(process.poll() is None for process in running) or not looks:
        looks += 1
        assert registry.verify().problems == ()
        registry.policy()
    assert [process.returncode for process in running] == [0, 0, 0]
    whys = [entry.why for entry in registry.policy().entries]
    assert sorted(whys) == sorted(f"process {number}" for number in range(3) for _ in range(8))
    assert registry.verify().notes == ()


def test_a_change_that_waits_too_long_says_for_what(
    ruled: Registry, lock_elsewhere: Callable[[Path], AbstractContextManager[None]]
) -> None:
    with lock_elsewhere(ruled.root / "locks/@policy"):
        with pytest.raises(StorageError, match=r"Another process has been writing to the policy for 0\.1 s \("):
            Registry(ruled.root, lock_timeout_seconds=0.1).set_policy({}, why="w")
        # Aliases do not wait for it.
        ruled.set_alias("digits", "free", 1)
