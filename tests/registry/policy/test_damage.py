"""A policy that was damaged, lost or edited: no alias moves."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from stablernn_registry import IntegrityError, Policy, Registry, RegistryError


def assert_nothing_moves(registry: Registry, sentence: str, error: type[RegistryError] = IntegrityError) -> None:
    """Verify and every write that asks the policy say the same; what does not ask it works."""
    assert registry.verify().problems == (sentence,)
    assert registry.verify("digits:1").problems == (sentence,)
    for ask in (
        registry.policy,
        lambda: registry.set_alias("digits", "free", 1),
        lambda: registry.set_alias("digits", "free", 1, force=True, why="must be"),
        lambda: registry.set_policy({}, why="w"),
    ):
        with pytest.raises(error) as raised:
            ask()
        assert str(raised.value) == sentence
    assert registry.get("digits").read("step.onnx") == b"graph"


def test_a_damaged_policy_moves_nothing(ruled: Registry) -> None:
    path = ruled.root / "policy.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"kind":"bounded"', b'"kind":"boundet"'))
    assert_nothing_moves(
        ruled,
        "The policy (policy.jsonl) is damaged: line 2 does not match its own sha256. Restore it from a copy of the "
        "registry.",
    )


def test_a_lost_policy_moves_nothing(ruled: Registry) -> None:
    (ruled.root / "policy.jsonl").unlink()
    assert_nothing_moves(
        ruled,
        "The policy (policy.jsonl) is missing: locks/@policy is there. Restore it from a copy of the registry; if it "
        "was taken out on purpose, take out locks/@policy too.",
    )
    (ruled.root / "locks/@policy").unlink()
    assert ruled.policy() == Policy()
    assert ruled.verify().ok


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([], "it is empty"),
        ([1], "line 1 does not follow: its seq is 2"),
        ([1, 0], "line 1 does not follow: its seq is 2"),
        ([0, 1, 1], "line 3 does not follow: its seq is 2"),
    ],
    ids=["none", "dropped", "swapped", "doubled"],
)
def test_policy_lines_that_do_not_follow(ruled: Registry, lines: list[int], what: str) -> None:
    path = ruled.root / "policy.jsonl"
    old = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(old[number] for number in lines))
    assert_nothing_moves(
        ruled, f"The policy (policy.jsonl) is damaged: {what}. Restore it from a copy of the registry."
    )


def sealed(tree: dict[str, Any]) -> bytes:
    """Return a line with the hash of its content."""
    body = json.dumps(tree, separators=(",", ":")).encode()
    return body[:-1] + f',"sha256":"{hashlib.sha256(body).hexdigest()}"}}\n'.encode()


def first_line(registry: Registry) -> dict[str, Any]:
    line: dict[str, Any] = json.loads((registry.root / "policy.jsonl").read_bytes().splitlines()[0])
    del line["sha256"]
    return line


def test_a_line_put_in_by_hand_breaks_the_chain(ruled: Registry) -> None:
    path = ruled.root / "policy.jsonl"
    forged = sealed({**first_line(ruled), "who": "mallory"})
    path.write_bytes(forged + path.read_bytes().splitlines(keepends=True)[1])
    assert_nothing_moves(
        ruled,
        "The policy (policy.jsonl) is damaged: line 2 does not follow: its previous hash is not that of the line "
        "before. Restore it from a copy of the registry.",
    )


def test_rules_of_a_newer_program_are_not_passed_over(ruled: Registry) -> None:
    tree = first_line(ruled)
    (ruled.root / "policy.jsonl").write_bytes(sealed({**tree, "rules": {**tree["rules"], "signature": "ada"}}))
    assert_nothing_moves(
        ruled,
        "The policy (policy.jsonl) has a line 1 that this stablernn does not know. Update stablernn.",
        RegistryError,
    )
