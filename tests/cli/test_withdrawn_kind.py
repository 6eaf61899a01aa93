"""Models that explode and had the certificate ``local``: what commands say of new and of stored ones."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import UNPLOTTED, Workplace, republish_certificate
from stablernn_registry import Registry

MEANT = "WARNING: The kind 'local' was withdrawn and now means 'bounded' (docs/background/stability.md)."
SHOWN = "none (stored as local; withdrawn)"
RULE = (
    "WARNING: Line 1 of the policy asks for the kind 'local' for '*'. The kind 'local' was withdrawn and now means "
    "'bounded' (docs/background/stability.md). Set the rule again: stablernn registry policy set --alias '*' "
    "--require bounded "
    "--why '...'."
)


def as_stored_before(certificate: dict[str, Any]) -> dict[str, Any]:
    """The certificate as a program wrote it that still knew the kind: its conditions do not say what they are about."""
    conditions = [
        {key: value for key, value in condition.items() if key != "of"}
        for condition in certificate["conditions"]
        if "not in the paper" not in condition["name"]
    ]
    return {**certificate, "kind": "local", "holds": True, "conditions": conditions}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """The run ``r``, whose step multiplies its state by 1.5; ``m:1`` as exported now, ``m:2`` as it was before."""
    workplace = Workplace(tmp_path_factory.mktemp("withdrawn"))
    damped = "--set model.cell_options.linear_damping=5"
    workplace.ok(
        f"-q train {UNPLOTTED} --data digits --cell lipschitz --hidden-size 8 --max-steps 2 --free {damped} "
        "--run-dir r",
    )
    workplace.ok("-q export r --name digits")
    certificate = Registry(workplace.registry).get("digits:1").manifest.certificate or {}
    republish_certificate(workplace, "digits:1", as_stored_before(certificate))
    return workplace


@pytest.fixture
def workplace(made: Workplace, tmp_path: Path) -> Iterator[Workplace]:
    """A copy to change."""
    shutil.copytree(made.folder, tmp_path / "copy")
    yield Workplace(tmp_path / "copy")
    for path in (tmp_path / "copy").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def store_old_rule(workplace: Workplace) -> None:
    """A policy of one line that asks for the withdrawn kind of every alias."""
    workplace.ok("-q registry policy set --require bounded --why 'stored before'")
    path = workplace.registry / "policy.jsonl"
    tree = json.loads(path.read_bytes())
    del tree["sha256"]
    tree["rules"]["kind"] = "local"
    body = json.dumps(tree, separators=(",", ":")).encode()
    path.write_bytes(body[:-1] + f',"sha256":"{hashlib.sha256(body).hexdigest()}"}}\n'.encode())


def test_a_model_that_explodes_is_certified_as_none(made: Workplace) -> None:
    document = made.document("certify r")
    assert (document["kind"], document["holds"], document["state_balls"]) == ("none", False, [])
    # Each unit's own part of the step is 1 - 0.5 * 5.
    assert document["contraction_rate"] == pytest.approx(1.5, abs=0.05)
    assert {condition["of"] for condition in document["conditions"]} == {"differential equation"}
    text = made.ok("certify r").out
    assert "none: no rate, and no bound of all its states, is proved" in text
    assert text.count("differential equation") == len(document["conditions"])


@pytest.mark.parametrize("target", ["r", "digits:1", "digits:2"])
def test_requiring_the_withdrawn_kind_requires_bounded_with_a_warning(made: Workplace, target: str) -> None:
    refused = made(f"certify {target} --require local")
    assert refused.code == 3
    assert MEANT in refused.err.splitlines()
    assert refused.sentence.startswith(f"'bounded' is required of {target}, but only 'none' is proved. ")
    assert MEANT not in made(f"-q certify {target} --require local").err


def test_a_stored_certificate_is_shown_as_withdrawn(made: Workplace) -> None:
    before = Registry(made.registry).get("digits:2")
    assert f"{SHOWN}: no rate, and no bound of all its states, is proved" in made.ok("registry show digits:2").out
    document = made.document("registry show digits:2")
    certificate = document["manifest"]["certificate"]
    assert (certificate["kind"], certificate["holds"], certificate["stored_kind"]) == ("none", False, "local")
    assert document["digest"] == before.digest
    assert before.manifest.certificate is not None
    assert before.manifest.certificate["kind"] == "local"
    fresh = made.document("registry show digits:1")["manifest"]["certificate"]
    assert "stored_kind" not in fresh


@pytest.mark.slow
def test_recomputing_does_not_call_it_forged(made: Workplace) -> None:
    report = made.document("registry verify digits:2 --recompute")
    assert (report["ok"], report["problems"]) == (True, [])
    assert report["recomputed"][0]["certificate"] == "'none', stored as the kind 'local', which was withdrawn"


def test_setting_a_rule_by_the_withdrawn_kind_stores_bounded_with_a_warning(workplace: Workplace) -> None:
    result = workplace.ok("registry policy set --require local --why w --json")
    assert result.json["rules"]["kind"] == "bounded"
    assert "stored_kind" not in result.json
    assert result.err.splitlines() == [MEANT]


def test_a_stored_rule_is_shown_and_judged_as_bounded_with_a_warning(workplace: Workplace) -> None:
    store_old_rule(workplace)
    shown = workplace.ok("registry policy show --json")
    assert shown.err.splitlines() == [RULE]
    (line,) = shown.json["history"]
    assert shown.json["policy"] == {"*": line}
    assert (line["rules"]["kind"], line["stored_kind"]) == ("bounded", "local")
    assert "bounded or stronger" in workplace.ok("registry policy show").out
    for version, kind in ((1, "none"), (2, SHOWN)):
        refused = workplace(f"registry alias digits@production {version}")
        assert refused.code == 3
        assert refused.err.splitlines().count(RULE) == 1
        assert f"certificate kind '{kind}' is weaker than 'bounded'" in refused.sentence
    assert workplace.document("registry verify")["problems"] == []
