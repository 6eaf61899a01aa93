"""What is computed again from a version's own files before an alias leads to it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import onnx
import pytest

from cli_helpers import Workplace, command, encoded, republish, republish_certificate
from hostile_graphs import in_ort_format, ort_and_onnx, with_contrib_operator, with_endless_loop, with_endless_scan
from policy_helpers import CHECKS, STABLE, UNSTABLE, aliases, instead, require
from stablernn_cli.promotion_checks import promotion_checks
from stablernn_registry import GateRefused, Manifest, Registry


def test_parity_above_the_rule_is_refused_stored_or_computed(workplace: Workplace) -> None:
    republish(workplace, STABLE, {"parity.json": None}, parity={"max_rel_error": 0.0})
    require(workplace, "--max-parity 1e-12")
    sentence = workplace.refusal("registry alias digits@production 1", code=3)
    assert "check 'policy parity' failed (parity's max_rel_error " in sentence
    assert "check 'parity recomputed' failed (max_rel_error " in sentence
    # What is stored passes, what is computed does not.
    lying = workplace("registry alias digits@production 3")
    assert "policy parity" not in lying.sentence
    assert "is computed, above 1e-12). " in lying.sentence
    assert (lying.code, aliases(workplace)) == (3, {})


LIE = {"kind": "contracting", "holds": True}


@pytest.mark.parametrize("in_the_file", [True, False], ids=["file-and-manifest", "manifest"])
def test_a_false_certificate_is_refused_and_found(guarded: Workplace, in_the_file: bool) -> None:
    true = Registry(guarded.registry).get(UNSTABLE).manifest.certificate
    assert true is not None
    lie = true | LIE | {"contraction_rate": 0.9}
    republish(guarded, UNSTABLE, {"certificate.json": encoded(lie)} if in_the_file else {}, certificate=lie)
    what = (
        'kind "contracting" is stored, "bounded" is computed'
        if in_the_file
        else "certificate.json is not the certificate of the manifest"
    )
    refused = guarded("registry alias digits@production 3")
    assert refused.sentence == (
        "'digits@production' stays at version 1, version 3 is refused: check 'certificate recomputed' failed "
        f"({what}). {instead('alias', 3)}"
    )
    assert (refused.code, aliases(guarded)) == (3, {"production": 1})
    assert guarded.document("registry verify digits:3")["ok"] is True
    found = guarded("registry verify digits:3 --recompute --json")
    assert (found.code, found.json["ok"]) == (3, False)
    assert found.json["problems"] == [f"'digits:3': certificate recomputed: {what}."]
    # Without a policy, too.
    assert guarded("registry alias digits@free 3").code == 3


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"contraction_rate": 0.5}, "contraction_rate 0.5 is stored, "),
        ({"contraction_rate": None}, "contraction_rate null is stored, "),
        ({"norm": "linf"}, 'norm "linf" is stored, "l2" is computed'),
        ({"states": []}, "states [] is stored, "),
        ({"in_words": ["It forgets everything."]}, 'in_words ["It forgets everything."] is stored, '),
        ({"wrong_sample": {"output": "nothing"}}, 'wrong_sample {"output": "nothing"} is stored, '),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_certificate_that_is_false_in_a_figure_is_found(
    workplace: Workplace, change: dict[str, object], what: str
) -> None:
    true = Registry(workplace.registry).get(STABLE).manifest.certificate
    assert true is not None
    republish(workplace, STABLE, {"certificate.json": encoded(true | change)}, certificate=true | change)
    found = workplace("registry verify digits:3 --recompute --json")
    (problem,) = found.json["problems"]
    assert problem.startswith(f"'digits:3': certificate recomputed: {what}")
    assert found.code == 3


def test_figures_may_differ_by_little(workplace: Workplace) -> None:
    true = Registry(workplace.registry).get(UNSTABLE).manifest.certificate
    assert true is not None
    ball = true["state_ball"] | {"radius": true["state_ball"]["radius"] * (1 + 2e-4)}
    for factor, changed, code in ((1 + 5e-5, {}, 0), (1 + 2e-4, {}, 3), (1.0, {"state_ball": ball}, 3)):
        near = true | {"contraction_rate": true["contraction_rate"] * factor} | changed
        version = republish_certificate(workplace, UNSTABLE, near)
        assert workplace(f"-q registry verify {version.ref} --recompute").code == code, factor


def test_graphs_of_other_weights_are_found(workplace: Workplace) -> None:
    other = Registry(workplace.registry)
    weights = other.get(STABLE).read("weights.safetensors")
    from safetensors.torch import load, save

    tensors = load(weights)
    name = next(name for name in tensors if name.endswith("weight_skip"))
    tensors[name] = tensors[name] + 1
    republish(workplace, STABLE, {"weights.safetensors": save(tensors)})
    (problem,) = workplace("registry verify digits:3 --recompute --json").json["problems"]
    assert problem.startswith("'digits:3': parity recomputed: One step of the exported graph differs from torch by ")
    assert problem.endswith(" of the largest output, allowed is 1e-05.")
    assert "check 'parity recomputed' failed (One step of the exported graph differs" in workplace.refusal(
        "registry alias digits@production 3", code=3
    )

    republish(workplace, STABLE, {"step.onnx": other.get(UNSTABLE).read("step.onnx")})
    parity, signature = workplace("registry verify digits:4 --recompute --json").json["problems"]
    assert parity.startswith("'digits:4': parity recomputed: the graphs cannot be compared with the weights: ")
    assert signature.startswith("'digits:4': signature of the graphs: step.onnx of 'digits:4' has the inputs {'x': ")


def other_states(manifest: Manifest) -> dict[str, Any]:
    signature = json.loads(json.dumps(manifest.signature))
    tensors = [tensor for graph in ("sequence", "step") for side in signature[graph].values() for tensor in side]
    for tensor in tensors:
        if tensor["name"] in ("state_1", "state_1_out"):
            tensor["shape"] = ["batch", 99]
    signature["states"][1]["shape"] = ["batch", 99]
    return {"signature": signature}


def test_a_manifest_that_is_not_that_of_its_graphs_is_refused(guarded: Workplace) -> None:
    what = "sequence.onnx of 'digits:3' has the inputs "
    republish(guarded, STABLE, **other_states(Registry(guarded.registry).get(STABLE).manifest))
    refused = guarded("registry alias digits@production 3")
    assert f"version 3 is refused: check 'signature of the graphs' failed ({what}" in refused.sentence
    assert (refused.code, aliases(guarded)) == (3, {"production": 1})
    found = guarded("registry verify digits:3 --recompute --json")
    assert [
        problem.startswith(f"'digits:3': signature of the graphs: {what}") for problem in found.json["problems"]
    ] == [True]


@pytest.mark.parametrize(
    ("files", "fields", "why"),
    [
        ({"sequence.onnx": None}, {}, "the version has no sequence.onnx"),
        ({}, {"signature": {}}, "the manifest has no signature of both graphs"),
    ],
    ids=["no-graph", "no-signature"],
)
def test_without_graphs_the_policy_decides_whether_a_signature_is_needed(
    workplace: Workplace, files: dict[str, bytes | None], fields: dict[str, object], why: str
) -> None:
    republish(workplace, STABLE, files, **fields)
    moved = workplace.document("registry alias digits@production 3")
    assert moved["checks"][-1] == {"name": CHECKS[-1], "ok": True, "detail": f"nothing to check: {why}"}
    require(workplace, "--model-signature")
    sentence = workplace.refusal("registry alias digits@production 3", code=3)
    assert f"check 'signature of the graphs' failed (nothing to check: {why})" in sentence
    asked = "check 'policy model signature' failed (the manifest has no signature of the graph 'sequence')"
    assert (asked in sentence) == bool(fields)
    moved = workplace.document("registry alias digits@production 1")
    assert moved["checks"][0]["detail"] == "the manifest has a signature of both graphs"
    assert "must match the graphs" in workplace.ok("-q registry policy show").out


@pytest.mark.parametrize(
    ("files", "fields", "detail"),
    [
        ({"certificate.json": None}, {"certificate": None}, "nothing to recompute: no certificate is stored"),
        ({"weights.safetensors": None}, {}, "nothing to recompute: the version has no weights.safetensors"),
        ({"config.json": b"{}"}, {}, "nothing to recompute: config.json was not written by stablernn"),
        ({"config.json": b"\xff"}, {}, "nothing to recompute: config.json was not written by stablernn"),
    ],
    ids=["no-certificate", "no-weights", "not-ours", "no-json"],
)
def test_where_there_is_nothing_to_recompute_the_policy_decides(
    workplace: Workplace, files: dict[str, bytes | None], fields: dict[str, object], detail: str
) -> None:
    republish(workplace, STABLE, files, **fields)
    moved = workplace.document("registry alias digits@production 3")
    assert moved["checks"][2] == {"name": "certificate recomputed", "ok": True, "detail": detail}
    assert workplace.document("registry verify digits:3 --recompute")["ok"] is True

    require(workplace, "--require none")
    reason = (
        "'policy kind' failed (no certificate is stored, kind 'none' is required)"
        if "certificate" in fields
        else f"'certificate recomputed' failed ({detail})"
    )
    assert f"version 3 is refused: check {reason}. " in workplace.refusal("registry alias digits@production 3", code=3)


def test_verify_recomputes_every_version(workplace: Workplace) -> None:
    report = workplace.document("registry verify --recompute")
    assert (report["ok"], report["problems"]) == (True, [])
    assert [(one["ref"], one["certificate"]) for one in report["recomputed"]] == [
        (STABLE, "'contracting', as stored"),
        (UNSTABLE, "'bounded', as stored"),
    ]
    assert all(one["parity"].startswith("max_rel_error ") for one in report["recomputed"])
    text = workplace.ok(f"-q registry verify {UNSTABLE} --recompute").out
    assert "1 version recomputed, everything is as it was published." in text
    assert "recomputed" not in workplace.document("registry verify")


def test_damage_is_reported_once(workplace: Workplace) -> None:
    path = Registry(workplace.registry).get(STABLE).path("config.json")
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"lru", b"LRU", 1))
    report = workplace("registry verify --recompute --json").json
    assert len(report["problems"]) == 1
    assert [one["ref"] for one in report["recomputed"]] == [UNSTABLE]
    refused = workplace("registry alias digits@production 1")
    assert refused.sentence.count("is damaged: ") == 1
    assert "check 'certificate recomputed' failed (its files are damaged)" in refused.sentence

    log = workplace.registry / "models/digits/log.jsonl"
    log.write_bytes(log.read_bytes()[:-1])
    report = workplace("registry verify --recompute --json").json
    assert "Nothing was recomputed, since a log is damaged; name a version of another model." in report["notes"]
    assert report["recomputed"] == []


@pytest.mark.parametrize("filename", ["config.json", "step.onnx"])
@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_plain_file_is_refused_as_damage(
    workplace: Workplace, tmp_path: Path, kind: str, filename: str
) -> None:
    registry = Registry(workplace.registry)
    blob = registry.get(STABLE).path(filename)
    blob.rename(tmp_path / "elsewhere")
    if kind == "pipe":
        os.mkfifo(blob)
    else:
        blob.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(GateRefused) as error:
        registry.set_alias("digits", "production", 1, checks=promotion_checks(registry, "production"))
    damaged = [result.name for result in error.value.results if result.detail == "its files are damaged"]
    computed = ["certificate recomputed", "parity recomputed"]
    assert damaged == (computed if filename == "config.json" else [*computed, "signature of the graphs"])


WITHOUT_TORCH = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.mark.slow
def test_without_torch_nothing_moves_unless_it_is_forced(workplace: Workplace, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_TORCH)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | workplace.environment | {"PYTHONPATH": path}

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command("-q", *arguments), env=environment, capture_output=True, text=True, check=False)

    refused = run("registry", "alias", "digits@production", 1)
    lacks = "failed (this installation has no 'torch', which the computation needs)"
    assert refused.stderr == (
        f"Error: 'digits@production' is not set, version 1 is refused: check 'certificate recomputed' {lacks} and "
        f"check 'parity recomputed' {lacks}. {instead('alias', 1)}\n"
    )
    assert refused.returncode == 3
    assert run("registry", "alias", "digits@production", 1, "--force", "--why", "no torch here").returncode == 0
    verify = run("registry", "verify", "--recompute")
    assert verify.stderr.startswith("Error: This installation has no 'torch', which this command needs.")
    assert verify.returncode == 1
    assert run("registry", "verify").returncode == 0


@pytest.mark.slow
def test_a_graph_that_never_ends_is_refused(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLERNN_CHECK_TIMEOUT_SECONDS", "1")
    good = Registry(workplace.registry).get(STABLE)
    republish(workplace, STABLE, {"step.onnx": with_endless_scan(good.read("step.onnx"))})
    reason = "failed (it takes longer than 1 s)"
    assert workplace.refusal("-q registry alias digits@production 3", code=3) == (
        f"'digits@production' is not set, version 3 is refused: check 'certificate recomputed' {reason} and check "
        f"'parity recomputed' {reason} and check 'signature of the graphs' {reason}. {instead('alias', 3)}"
    )


def test_a_graph_that_breaks_the_rules_is_not_run_to_compare_it(workplace: Workplace) -> None:
    step = Registry(workplace.registry).get(STABLE).read("step.onnx")
    both = ort_and_onnx(in_ort_format(with_contrib_operator(step)), onnx.load_from_string(step))
    republish(workplace, STABLE, {"step.onnx": both})
    republish(workplace, STABLE, {"step.onnx": with_endless_loop(step)})
    in_two_formats = "is in ONNX Runtime's own format, which cannot be checked; only ONNX graphs are served"
    endless = "uses the operator 'Loop', whose running time has no bound; use Scan, which runs once a time step"
    for number, why in ((3, in_two_formats), (4, endless)):
        problems = workplace(f"registry verify digits:{number} --recompute --json").json["problems"]
        assert problems == [
            f"'digits:{number}': parity recomputed: the graphs cannot be compared with the weights: step.onnx {why}.",
            f"'digits:{number}': signature of the graphs: step.onnx of 'digits:{number}' {why}.",
        ]
