"""The policy: the moves that it allows, its format, and the detection of damage."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from stablernn_registry import (
    AliasEntry,
    GateRefused,
    IntegrityError,
    MetricRule,
    Policy,
    PolicyError,
    PolicyRules,
    RefError,
    Registry,
    RegistryError,
    StorageError,
    Version,
)
from stablernn_registry.documents.certificates import KINDS, Kind

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


def test_kinds_are_those_of_certificates_in_their_order() -> None:
    from stablernn.certificates.certificate import KINDS as LIBRARY
    from stablernn_registry.documents.certificates import KINDS as COMMAND_LINE

    assert KINDS == get_args(Kind) == LIBRARY == COMMAND_LINE


def test_without_a_policy_nothing_is_asked(registry: Registry, publish: Publish) -> None:
    assert registry.policy() == Policy()
    publish()
    assert not (registry.root / "policy.jsonl").exists()
    assert registry.set_alias("digits", "production", 1).checks == []
    assert registry.policy().rules("production") == PolicyRules()
    assert registry.verify().ok


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


@pytest.mark.parametrize(
    ("rules", "published", "refusal"),
    [
        ({"kind": "contracting"}, {"certificate": CONTRACTING}, None),
        ({"kind": "bounded"}, {"certificate": CONTRACTING}, None),
        ({"kind": "none"}, {"certificate": {"kind": "none", "holds": False}}, None),
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
        (
            {"kind": "bounded"},
            {"certificate": CONTRACTING | {"holds": False}},
            "check 'policy kind' failed (the certificate does not say that its kind 'contracting' holds)",
        ),
        ({"max_parity": 1e-5}, {"parity": {"max_rel_error": 1e-5}}, None),
        ({"max_parity": 0.0}, {"parity": {"max_rel_error": 0}}, None),
        (
            {"max_parity": 1e-5},
            {"parity": {"max_rel_error": 1.5e-5}},
            "check 'policy parity' failed (parity's max_rel_error 1.5e-05 is above 1e-05)",
        ),
        (
            {"max_parity": 1e-5},
            {"parity": {"max_abs_error": 0.0}},
            "check 'policy parity' failed (no figure 'max_rel_error' of parity is stored, at most 1e-05 is allowed)",
        ),
        ({"model_signature": True}, {"signature": BOTH}, None),
        (
            {"model_signature": True},
            {},
            "check 'policy model signature' failed (the manifest has no signature of the graph 'sequence')",
        ),
        (WITHIN_ONE, {"certificate": {"kind": "bounded", "holds": True}}, None),
        (WITHIN_ONE, {"certificate": within([-2.0, -1.0], [1.0, 3.0])}, None),
        # Ranges of other features are a mistake, however much is proved; one range stands for all features.
        (WITHIN_ONE, {"certificate": CONTRACTING, "features": ["pressure", "flow"]}, None),
        (WITHIN_TWO, {"certificate": CONTRACTING, "features": ["pressure", "flow"]}, None),
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
        (
            WITHIN_ONE,
            {"certificate": within([-2.0, -0.5], [1.0, 3.0])},
            "check 'policy kind' failed (the version's certificate is for inputs with features within -2 to 1, -0.5 to "
            "3, 'bounded' is required with every feature within -1 to 1)",
        ),
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
    with pytest.raises(GateRefused) as error:
        registry.set_alias("digits", "production", 1)
    assert str(error.value) == (
        f"'digits@production' is not set, version 1 is refused: {refusal}. Choose another version, or move it all "
        "the same: stablernn registry alias digits@production 1 --force --why '...'."
    )
    assert tree(registry.root) == before


@pytest.mark.parametrize(
    ("lower", "upper"), [([], []), ([1.0], [1.0]), ([1.0], [0.0]), ([0.0], [1.0, 2.0]), ([float("nan")], [1.0])]
)
def test_a_range_of_inputs_that_is_none(registry: Registry, lower: list[float], upper: list[float]) -> None:
    with pytest.raises(PolicyError, match="The policy cannot be written"):
        registry.set_policy({"kind": "bounded", "inputs_within": {"lower": lower, "upper": upper}}, why="w")
    assert registry.policy() == Policy()


@pytest.mark.parametrize(
    ("old", "new", "rule", "refusal"),
    [
        (0.98, 0.97, ACCURACY, None),
        (0.98, 0.99, ACCURACY, None),
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
        (0.98, True, ACCURACY, "version 2 has no figure 'accuracy' on 'test'"),
        (
            None,
            0.98,
            ACCURACY,
            "version 1, where it points now, has no figure 'accuracy' on 'test' to compare with",
        ),
        (
            0.9,
            0.9,
            MetricRule(name="accuracy", split="validation", worse_by=1, better="higher"),
            "version 2 has no figure 'accuracy' on 'validation'",
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
        ({"max_parity": -1.0}, "field 'max_parity': input should be greater than or equal to 0, got -1.0"),
        ({"max_parity": float("nan")}, "field 'max_parity': input should be a finite number, got nan"),
        ({"knd": "bounded"}, "unknown field 'knd'; did you mean 'kind'"),
        ({"metric": {"name": "mse", "better": "lower"}}, "the field 'metric.worse_by' is missing"),
    ],
)
def test_rules_that_make_no_sense_change_nothing(registry: Registry, rules: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PolicyError) as error:
        registry.set_policy(rules, why="w")
    assert str(error.value) == f"The policy cannot be written: {sentence}."
    assert not registry.root.exists()


@pytest.mark.parametrize("why", ["", "  "])
def test_a_change_needs_a_reason(registry: Registry, why: str) -> None:
    with pytest.raises(PolicyError) as error:
        registry.set_policy({}, why=why)
    assert str(error.value) == "A change of the policy needs a reason, got none. Give why."
    assert not registry.root.exists()


@pytest.mark.parametrize("alias", ["latest", "v3", "prod*", "**", ""])
def test_rules_are_for_an_alias_or_all(registry: Registry, alias: str) -> None:
    with pytest.raises(RefError):
        registry.set_policy({}, alias=alias, why="w")
    assert not registry.root.exists()


def test_a_policy_is_no_model(registry: Registry, publish: Publish) -> None:
    registry.set_policy({}, why="before the first model")
    assert registry.list() == ()
    publish("policy")
    assert [model.name for model in registry.list()] == ["policy"]
    assert registry.verify().ok
    assert not list((registry.root / "tmp").iterdir())


def test_a_folder_that_is_no_registry_gets_no_policy(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(StorageError, match="is not a registry"):
        Registry(tmp_path).set_policy({}, why="w")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.fixture
def ruled(registry: Registry, publish: Publish) -> Registry:
    """A version and a policy of two lines."""
    publish()
    registry.set_policy({"kind": "none"}, alias="gated", why="first reason", who="ada")
    registry.set_policy({"kind": "bounded"}, alias="gated", why="second reason", who="ada")
    return registry


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


def test_a_sound_line_with_a_bad_alias(ruled: Registry) -> None:
    (ruled.root / "policy.jsonl").write_bytes(sealed({**first_line(ruled), "alias": "No Alias"}))
    assert_nothing_moves(
        ruled,
        "The policy (policy.jsonl) is damaged: line 1: field 'alias': an alias is 1 to 64 of the characters a-z 0-9 . "
        "_ -, the first a letter or a digit, got 'No Alias'. Restore it from a copy of the registry.",
    )


@pytest.mark.parametrize(
    ("stray", "what"),
    [
        ("tmp/@policy/log.jsonl", " does not belong in a registry: take it out."),
        ("tmp/digits/policy.jsonl", " does not belong in a registry: take it out."),
        ("models/@policy", " does not belong in a registry: take it out."),
        ("locks/@Policy", " does not belong in a registry: take it out."),
    ],
)
def test_strays_beside_the_policy(ruled: Registry, stray: str, what: str) -> None:
    (ruled.root / stray).parent.mkdir(parents=True, exist_ok=True)
    (ruled.root / stray).write_text("x")
    assert ruled.verify().problems == (stray + what,)


def test_a_link_in_place_of_the_policy(ruled: Registry, tmp_path: Path) -> None:
    (ruled.root / "policy.jsonl").rename(tmp_path / "elsewhere")
    (ruled.root / "policy.jsonl").symlink_to(tmp_path / "elsewhere")
    assert ruled.verify().problems == ("policy.jsonl does not belong in a registry in place of a file: take it out.",)


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


def test_a_registry_of_a_policy_only_that_lost_its_registry_json(registry: Registry) -> None:
    registry.set_policy({}, why="w")
    (registry.root / "registry.json").unlink()
    with pytest.raises(IntegrityError, match="has lost its registry.json"):
        registry.policy()
    (problem,) = registry.verify().problems
    assert problem.startswith("registry.json is missing: ")


CHANGER = """
import sys
from stablernn_registry import Registry
registry = Registry(sys.argv[1])
for _ in range(8):
    registry.set_policy({"max_parity": 1.0}, why=sys.argv[2])
"""


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


def test_a_change_that_waits_too_long_says_for_what(ruled: Registry) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import filelock, sys\n"
            "with filelock.FileLock(sys.argv[1]):\n"
            "    print('held', flush=True); sys.stdin.readline()",
            str(ruled.root / "locks/@policy"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StorageError) as error:
            Registry(ruled.root, lock_timeout_seconds=0.1).set_policy({}, why="w")
        assert str(error.value) == (
            f"Another process has been writing to the policy for 0.1 s ({ruled.root / 'locks/@policy'} is locked). "
            "Wait for it to end, then do it again."
        )
        # Aliases do not wait for it.
        ruled.set_alias("digits", "free", 1)
    finally:
        holder.communicate("\n")
