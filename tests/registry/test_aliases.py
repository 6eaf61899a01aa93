from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stablernn_registry import (
    AliasEntry,
    AliasError,
    CheckResult,
    GateRefused,
    PublishEntry,
    RefError,
    Registry,
    StorageError,
    Version,
)
from stablernn_registry.log import Line
from stablernn_registry.storage import Writer, WriteTarget

Publish = Callable[..., Version]
Tree = Callable[[Path], dict[str, bytes]]


@pytest.fixture
def three(registry: Registry, publish: Publish) -> Registry:
    for content in (b"one", b"two", b"three"):
        publish(content={"step.onnx": content})
    return registry


def test_history_says_who_when_from_to_and_why(three: Registry) -> None:
    three.set_alias("digits", "production", 1, who="ada", why="first release")
    entry = three.set_alias("digits", "production", 2, who="bob")
    assert three.log("digits")[-1] == entry
    assert entry.time.endswith("Z")
    assert [
        (line.seq, line.action, line.who, line.from_version, line.to_version, line.why)
        for line in three.log("digits")
        if isinstance(line, AliasEntry)
    ] == [(4, "alias", "ada", None, 1, "first release"), (5, "alias", "bob", 1, 2, None)]
    published = [line for line in three.log("digits") if isinstance(line, PublishEntry)]
    assert [line.digest for line in published] == [three.get(f"digits:{n}").digest for n in (1, 2, 3)]


def test_lines_are_chained_as_the_documentation_says(three: Registry) -> None:
    three.set_alias("digits", "production", 2)
    previous = "0" * 64
    for line in (three.root / "models/digits/log.jsonl").read_bytes().splitlines():
        line_hash = hashlib.sha256(line[:-77] + b"}").hexdigest()
        assert line.endswith(f',"sha256":"{line_hash}"}}'.encode())
        assert json.loads(line)["previous"] == previous
        previous = line_hash
    assert json.loads(line)["from"] is None
    assert json.loads(line)["to"] == 2


def test_each_rollback_goes_one_further_back(three: Registry) -> None:
    # A version that is set again is no step, and one that was left by a rollback is none to go back to.
    for version in (1, 2, 2, 3):
        three.set_alias("digits", "production", version)
    assert three.rollback("digits", "production").to_version == 2
    three.set_alias("digits", "production", 1)
    assert three.rollback("digits", "production").to_version == 2
    entry = three.rollback("digits", "production", who="ada", why="still bad")
    assert (entry.action, entry.from_version, entry.to_version, entry.who, entry.why) == (
        "rollback",
        2,
        1,
        "ada",
        "still bad",
    )
    with pytest.raises(AliasError, match="'digits@production' cannot be rolled back"):
        three.rollback("digits", "production")


@pytest.mark.parametrize("alias", ["latest", "v3", ""])
def test_bad_alias_changes_nothing(three: Registry, tree: Tree, alias: str) -> None:
    before = tree(three.root)
    with pytest.raises(RefError):
        three.set_alias("digits", alias, 1)
    assert tree(three.root) == before


def passes(candidate: Version, current: Version | None) -> CheckResult:
    return CheckResult("parity", True, "largest error 3e-7")


def refuses(candidate: Version, current: Version | None) -> CheckResult:
    then = current.version if current else None
    return CheckResult("accuracy", False, f"version {candidate.version} is below {then}")


def test_a_check_that_refuses_changes_nothing_and_names_its_line(three: Registry, tree: Tree) -> None:
    three.set_alias("digits", "production", 1)
    before = tree(three.root)
    with pytest.raises(GateRefused, match="'digits@production' stays at version 1, version 2 is refused") as error:
        three.set_alias("digits", "production", 2, checks=[passes, refuses])
    assert [result.ok for result in error.value.results] == [True, False]
    assert tree(three.root) == before
    with pytest.raises(GateRefused, match="'digits@canary' is not set, version 2 is refused"):
        three.set_alias("digits", "canary", 2, checks=[refuses])


def test_a_forced_move_is_logged_with_its_reason_and_the_refusal(three: Registry) -> None:
    three.set_alias("digits", "production", 2, checks=[refuses], force=True, why="incident 12")
    assert three.get("digits@production").version == 2
    entry = three.log("digits")[-1]
    assert isinstance(entry, AliasEntry)
    assert (entry.forced, entry.why, [c.ok for c in entry.checks]) == (True, "incident 12", [False])
    assert three.verify().ok


@pytest.mark.parametrize("why", [None, "  "])
def test_force_needs_a_reason(three: Registry, why: str | None) -> None:
    for ask in (three.set_alias, lambda name, alias, version, **more: three.rollback(name, alias, **more)):
        with pytest.raises(AliasError, match="A forced move needs a reason, got none"):
            ask("digits", "production", 1, force=True, why=why)


def test_a_check_that_breaks_changes_nothing(three: Registry, tree: Tree) -> None:
    def breaks(candidate: Version, current: Version | None) -> CheckResult:
        raise OSError("its own trouble")

    before = tree(three.root)
    with pytest.raises(OSError, match=r"^its own trouble$"):
        three.set_alias("digits", "production", 1, checks=[breaks])
    assert tree(three.root) == before
    three.set_alias("digits", "production", 1)


# A check may take minutes: nobody waits for it.


def test_others_write_while_a_version_is_checked(three: Registry) -> None:
    impatient = Registry(three.root, lock_timeout_seconds=0)

    def publishes(candidate: Version, current: Version | None) -> CheckResult:
        impatient.set_alias("digits", "canary", 3)
        return CheckResult("slow", True)

    assert three.set_alias("digits", "production", 1, checks=[publishes]).seq == 5
    assert [(model.name, model.aliases) for model in three.list()] == [("digits", {"canary": 3, "production": 1})]
    assert three.verify().ok


def test_a_judgement_holds_for_the_version_that_it_was_compared_with(three: Registry) -> None:
    three.set_alias("digits", "production", 1)
    judged: list[tuple[int, int | None]] = []

    def moves_once(candidate: Version, current: Version | None) -> CheckResult:
        judged.append((candidate.version, current.version if current else None))
        if len(judged) == 1:
            three.set_alias("digits", "production", 2)
        return CheckResult("comparison", True, f"against {judged[-1][1]}")

    entry = three.set_alias("digits", "production", 3, checks=[moves_once])
    assert judged == [(3, 1), (3, 2)]
    assert (entry.from_version, [check.detail for check in entry.checks]) == (2, ["against 2"])


@pytest.mark.parametrize("earlier", [{}, {"*": {"max_parity": 1.0}}], ids=["first line", "further line"])
def test_a_policy_that_is_set_while_the_move_is_written_counts(
    three: Registry, tree: Tree, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch, earlier: dict[str, Any]
) -> None:
    for alias, rules in earlier.items():
        three.set_policy(rules, alias=alias, why="from the start")
    parity = {"parity": {"max_rel_error": 0.5}}
    version = three.publish("digits", {"step.onnx": three.get("digits").path("step.onnx")}, {**fields, **parity})
    stage_line = Writer.stage_line
    before: dict[str, bytes] = {}

    def tightens(writer: Writer, target: WriteTarget, entry: Line) -> None:
        stage_line(writer, target, entry)
        if target.label == "'digits'":
            three.set_policy({"max_parity": 1e-9}, alias="production", why="careful")
            before.update(tree(three.root / "models"))

    monkeypatch.setattr(Writer, "stage_line", tightens)
    with pytest.raises(GateRefused, match="check 'policy parity' failed"):
        three.set_alias("digits", "production", version.version)
    assert tree(three.root / "models") == before
    assert three.aliases("digits") == {}
    assert (three.verify().problems, three.verify().notes) == ((), ())


def test_a_line_of_the_policy_for_another_alias_does_not_judge_anew(three: Registry) -> None:
    three.set_policy({}, alias="production", why="free on purpose")
    judged: list[int] = []

    def changes(candidate: Version, current: Version | None) -> CheckResult:
        judged.append(candidate.version)
        three.set_policy({"max_parity": 1e-9}, alias="canary", why="careful")
        three.set_policy({"max_parity": 1e-9}, why="careful")
        return CheckResult("slow", True)

    three.set_alias("digits", "production", 1, checks=[changes])
    assert judged == [1]


@pytest.mark.parametrize("alias", ["production", "*"])
def test_rules_that_were_changed_and_changed_back_judge_anew(three: Registry, alias: str) -> None:
    judged: list[int] = []

    def changes(candidate: Version, current: Version | None) -> CheckResult:
        judged.append(candidate.version)
        if len(judged) == 1:
            three.set_policy({}, alias=alias, why="for a moment")
            three.set_policy(None, alias=alias, why="it is over")
        return CheckResult("slow", True)

    three.set_alias("digits", "production", 1, checks=[changes])
    assert judged == [1, 1]


def test_a_rollback_that_was_overtaken_goes_back_from_where_the_alias_is(three: Registry) -> None:
    for version in (1, 2):
        three.set_alias("digits", "production", version)
    judged: list[int] = []

    def moves_once(candidate: Version, current: Version | None) -> CheckResult:
        judged.append(candidate.version)
        if len(judged) == 1:
            three.set_alias("digits", "production", 3)
        return CheckResult("slow", True)

    assert three.rollback("digits", "production", checks=[moves_once]).to_version == 2
    assert judged == [1, 2]


def test_a_move_that_is_always_overtaken_gives_up(three: Registry) -> None:
    def moves(candidate: Version, current: Version | None) -> CheckResult:
        three.set_alias("digits", "production", 1 if current is None or current.version == 2 else 2)
        return CheckResult("slow", True)

    with pytest.raises(StorageError, match="'digits@production' was not moved"):
        three.set_alias("digits", "production", 3, checks=[moves])
