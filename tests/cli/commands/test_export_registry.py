"""`export` and `registry`: from a run to a version, aliases, and what a flipped byte does."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import Result, Workplace
from stablernn_registry import AliasEntry, Registry, atomic_io

FILES = {
    "certificate.json",
    "weights.safetensors",
    "config.json",
    "step.onnx",
    "sequence.onnx",
    "parity.json",
    "calibration.json",
    "example.json",
    "metrics.json",
    "README.md",
}


def flip_a_byte(workplace: Workplace, ref: str, filename: str) -> Path:
    """Damage a file of a version where it lies."""
    path = Path(workplace.ok("registry", "show", ref, "--json").json["files"][filename]["path"])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    return path


def test_export_prints_what_it_published(workplace: Workplace) -> None:
    result = workplace.ok("export", "digits-run", "--name", "digits", "--alias", "production", "--json")
    document = result.json
    assert document["ref"] == "digits:2"
    assert document["aliases"] == ["production"]
    plots = {f"plots/{path.name}" for path in (workplace.path("digits-run") / "plots").iterdir()}
    assert set(document["files"]) == FILES | plots
    assert document["parity"]["max_rel_error"] < 1e-4
    assert document["parity"]["stream_equals_sequence"] is True
    shown = workplace.ok("registry", "show", "digits@production", "--json").json
    assert shown["digest"] == document["digest"]
    certificate = json.loads(Path(shown["files"]["certificate.json"]["path"]).read_text())
    assert {key: value for key, value in certificate.items() if key != "metrics"} == document["certificate"]
    assert document["certificate"] == shown["manifest"]["certificate"]
    for filename, entry in shown["files"].items():
        content = Path(entry["path"]).read_bytes()
        assert {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()} == document["files"][filename]


@pytest.mark.parametrize("name", ["digits", "load"])
def test_the_manifest_says_where_a_version_comes_from(trained: Workplace, name: str) -> None:
    manifest = trained.ok("registry", "show", name, "--json").json["manifest"]
    run = trained.path(f"{name}-run")
    data = json.loads((run / "data.json").read_text())
    summary = json.loads((run / "summary.json").read_text())
    assert manifest["lineage"]["data"]["fingerprint"] == data["fingerprint"]
    assert manifest["lineage"]["run"]["id"] == f"{name}-run"
    assert manifest["lineage"]["config"]["model"]["hidden_size"] == 8
    assert manifest["lineage"]["code"]["stablernn"]
    assert manifest["metrics"] == summary["metrics"]
    assert manifest["features"] == data["features"]
    if name == "load":
        expected = {
            "task": "forecast",
            "cell": "gru",
            "labels": None,
            "targets": ["heat", "power"],
            "horizon": 6,
            "context_length": 12,
            "season": 7,
            "frequency": "D",
            "quantiles": [0.1, 0.5, 0.9],
        }
    else:
        expected = {"task": "classify", "cell": "lipschitz", "labels": list("0123456789"), "targets": None}
    assert {key: manifest[key] for key in expected} == expected


@pytest.mark.slow
def test_torchscript_on_request(workplace: Workplace) -> None:
    document = workplace.ok(
        "-q", "export", "load-run", "--name", "other", "--format", "onnx", "--format", "torchscript", "--json"
    ).json
    assert "model.torchscript" in document["files"]
    assert document["parity"]["torchscript_rel_error"] < 1e-4


def test_an_unknown_format(workplace: Workplace) -> None:
    result = workplace("export", "digits-run", "--name", "other", "--format", "onx")
    assert result.sentence == "Unknown format 'onx'. Did you mean 'onnx'? It is one of onnx, torchscript."
    assert result.code == 2
    assert [model["name"] for model in workplace.ok("registry", "list", "--json").json] == ["digits", "load"]


def test_a_run_that_was_not_finished_can_be_exported(workplace: Workplace) -> None:
    (workplace.path("digits-run") / "summary.json").unlink()
    result = workplace.ok("export", "digits-run", "--name", "early", "--json")
    assert "Note: the run was not finished, so no metrics are stored. See `stablernn eval early:1`." in result.err
    assert workplace.ok("registry", "show", "early", "--json").json["manifest"]["metrics"] == {}


@pytest.mark.slow
def test_list_alias_rollback_and_log(workplace: Workplace) -> None:
    workplace.ok("-q", "export", "digits-run", "--name", "digits")
    moves: list[Result] = [
        workplace.ok("registry", "alias", "digits@live", 1, "--why", "first", "--json"),
        workplace.ok("registry", "alias", "digits@live", 2, "--json"),
        workplace.ok("registry", "rollback", "digits@live", "--why", "worse at night", "--json"),
    ]
    assert [(move.json["action"], move.json["from"], move.json["to"]) for move in moves] == [
        ("alias", None, 1),
        ("alias", 1, 2),
        ("rollback", 2, 1),
    ]
    assert workplace.ok("registry", "list", "--json").json == [
        {"name": "digits", "versions": [1, 2], "aliases": {"live": 1}},
        {"name": "load", "versions": [1], "aliases": {}},
    ]
    assert workplace.ok("registry", "show", "digits:1", "--json").json["aliases"] == ["live"]
    log = workplace.ok("registry", "log", "digits", "--json").json
    assert [entry["action"] for entry in log] == ["publish", "publish", "alias", "alias", "rollback"]
    assert [entry["why"] for entry in log[2:]] == ["first", None, "worse at night"]
    assert "live -> 1" in workplace.ok("-q", "registry", "list").out
    assert "rollback live: 2 -> 1" in workplace.ok("-q", "registry", "log", "digits").out
    assert workplace.ok("-q", "registry", "show", "digits").out.startswith("digits:2\n")
    assert "everything is as it was published" in workplace.ok("-q", "registry", "verify").out
    assert workplace("registry", "rollback", "load@live").sentence == (
        "Model 'load' has no alias 'live'. It has no aliases."
    )


@pytest.mark.parametrize(
    ("ref", "sentence"),
    [
        ("digits:9", "Model 'digits' has no version 9, it has only version 1."),
        ("digits@live", "Model 'digits' has no alias 'live'. It has no aliases."),
        (
            "digit",
            "Unknown model 'digit' in the registry {root}. Did you mean 'digits'? It has 'digits', 'load'.",
        ),
    ],
)
def test_an_unknown_reference(trained: Workplace, ref: str, sentence: str) -> None:
    for arguments in (
        ("registry", "show", ref),
        ("registry", "verify", ref),
        ("serve", "--model", ref, "--port", 0),
    ):
        result = trained(*arguments)
        assert result.sentence == sentence.format(root=trained.registry)
        assert (result.code, result.out) == (2, "")
    result = trained("eval", ref)
    assert result.sentence.endswith(sentence.format(root=trained.registry))
    assert result.code == 2


def test_verify_is_content_with_what_was_published(trained: Workplace) -> None:
    report = trained.ok("registry", "verify", "--json").json
    assert report["ok"] is True
    assert report["problems"] == []
    assert report["checked"] > 2 * len(FILES)
    assert trained.ok("registry", "verify", "digits", "--json").json["ref"].startswith("digits")


def test_a_flipped_byte_is_found_and_goes_nowhere(workplace: Workplace) -> None:
    workplace.ok("-q", "export", "load-run", "--name", "digits")
    workplace.ok("registry", "alias", "digits@live", 2)
    blob = flip_a_byte(workplace, "digits:1", "sequence.onnx")
    place = blob.relative_to(workplace.registry).as_posix()
    damage = f"'sequence.onnx' of 'digits:1' ({place}) is damaged"

    report = workplace("registry", "verify", "digits:1", "--json")
    assert report.code == 3
    assert report.json["ok"] is False
    assert len(report.json["problems"]) == 1
    assert place in report.json["problems"][0]
    assert report.err.count("Error") == 0

    refused = workplace("registry", "alias", "digits@live", 1)
    assert refused.sentence.startswith("'digits@live' stays at version 2, version 1 is refused: check 'files intact' ")
    assert damage in refused.sentence
    assert (refused.code, refused.out) == (3, "")

    for arguments in (
        ("eval", "digits:1"),
        ("predict", "digits:1", "--input", "load.csv"),
        ("serve", "--model", "digits:1", "--port", 0),
    ):
        failed = workplace(*arguments)
        assert damage in failed.sentence
        assert (failed.code, failed.out) == (1, "")

    forced = workplace.ok("registry", "alias", "digits@live", 1, "--force", "--why", "on purpose", "--json").json
    assert forced["forced"] is True
    assert workplace.ok("registry", "verify", "digits:2", "--json").json["ok"] is True


def test_publishing_over_a_damaged_log_is_refused(workplace: Workplace) -> None:
    log = workplace.registry / "models" / "digits" / "log.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"version":1', b'"version":2'))
    result = workplace("export", "digits-run", "--name", "digits")
    assert "damaged" in result.sentence
    assert result.code == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory that holds less than one version."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=60k", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("this user may not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_while_publishing(workplace: Workplace, small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_disk / "registry"
    monkeypatch.setattr(Workplace, "registry", root)
    result = workplace("export", "digits-run", "--name", "digits")
    assert result.sentence == (
        f"Could not publish 'digits': no space is left for the registry {root} (No space left on device). Nothing was "
        "changed; free some space or point STABLERNN_REGISTRY to another disk, then do it again."
    )
    assert (result.code, result.out) == (1, "")
    assert workplace.ok("registry", "list", "--json").json == []


def test_an_export_whose_alias_cannot_be_set_says_that_the_version_is_published(workplace: Workplace) -> None:
    set_alias = Registry.set_alias

    def hindered(registry: Registry, *arguments: Any, **options: Any) -> AliasEntry:
        # A program that keeps folders in step puts one of its own among the staged files.
        (registry.root / "tmp/digits/.sync").mkdir(parents=True)
        return set_alias(registry, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Registry, "set_alias", hindered)
        result = workplace("-q", "export", "digits-run", "--name", "digits", "--alias", "live", "--json")
    assert result.sentence == (
        "'digits:2' is published, and only its alias is left to set. tmp/digits/.sync does not belong in a registry: "
        "take it out before the next write."
    )
    assert (result.code, result.out) == (1, "")
    assert workplace.ok("registry", "list", "--json").json[0] == {"name": "digits", "versions": [1, 2], "aliases": {}}


def test_an_export_whose_alias_was_set_does_not_say_that_it_is_left_to_set(workplace: Workplace) -> None:
    sync_folder = atomic_io.sync_folder

    def unconfirmed(folder: Path) -> None:
        # The folder of the log; the new version is in it already.
        if folder.name == "digits" and Registry(workplace.registry).aliases("digits"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync_folder(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic_io, "sync_folder", unconfirmed)
        result = workplace("-q", "export", "digits-run", "--name", "digits", "--alias", "live", "--json")
    assert result.sentence == (
        "'digits:2' is published. 'digits@live' is moved, but the disk did not confirm it (Input/output error), so a "
        "power cut may undo it. Check the disk, then run 'stablernn registry verify'."
    )
    assert (result.code, result.out) == (1, "")
    assert Registry(workplace.registry).aliases("digits") == {"live": 2}
