"""`export` and `registry`: from a run to a version, aliases, and what a flipped byte does."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import Workplace
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
    path = Path(workplace.document(f"registry show {ref}")["files"][filename]["path"])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    return path


def test_export_prints_what_it_published(workplace: Workplace) -> None:
    result = workplace.ok("export digits-run --name digits --alias production --json")
    document = result.json
    assert document["ref"] == "digits:2"
    assert document["aliases"] == ["production"]
    plots = {f"plots/{path.name}" for path in (workplace.path("digits-run") / "plots").iterdir()}
    assert set(document["files"]) == FILES | plots
    assert document["parity"]["max_rel_error"] < 1e-4
    assert document["parity"]["stream_equals_sequence"] is True
    shown = workplace.document("registry show digits@production")
    assert shown["digest"] == document["digest"]
    certificate = json.loads(Path(shown["files"]["certificate.json"]["path"]).read_text())
    assert {key: value for key, value in certificate.items() if key != "metrics"} == document["certificate"]
    assert document["certificate"] == shown["manifest"]["certificate"]
    for filename, entry in shown["files"].items():
        content = Path(entry["path"]).read_bytes()
        assert {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()} == document["files"][filename]


@pytest.mark.parametrize("name", ["digits", "load"])
def test_the_manifest_says_where_a_version_comes_from(trained: Workplace, name: str) -> None:
    manifest = trained.document(f"registry show {name}")["manifest"]
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


def test_a_run_that_was_not_finished_can_be_exported(workplace: Workplace) -> None:
    (workplace.path("digits-run") / "summary.json").unlink()
    result = workplace.ok("export digits-run --name early --json")
    assert "Note: the run was not finished, so no metrics are stored. See `stablernn eval early:1`." in result.err
    assert workplace.document("registry show early")["manifest"]["metrics"] == {}


def test_a_flipped_byte_is_found_and_goes_nowhere(workplace: Workplace) -> None:
    workplace.ok("-q export load-run --name digits")
    workplace.ok("registry alias digits@live 2")
    blob = flip_a_byte(workplace, "digits:1", "sequence.onnx")
    place = blob.relative_to(workplace.registry).as_posix()
    damage = f"'sequence.onnx' of 'digits:1' ({place}) is damaged"

    report = workplace("registry verify digits:1 --json")
    assert report.code == 3
    assert report.json["ok"] is False
    assert len(report.json["problems"]) == 1
    assert place in report.json["problems"][0]
    assert report.err.count("Error") == 0

    refused = workplace("registry alias digits@live 1")
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

    forced = workplace.document("registry alias digits@live 1 --force --why 'on purpose'")
    assert forced["forced"] is True
    assert workplace.document("registry verify digits:2")["ok"] is True


def test_an_export_whose_alias_cannot_be_set_says_that_the_version_is_published(workplace: Workplace) -> None:
    set_alias = Registry.set_alias

    def hindered(registry: Registry, *arguments: Any, **options: Any) -> AliasEntry:
        # A program that keeps folders in step puts one of its own among the staged files.
        (registry.root / "tmp/digits/.sync").mkdir(parents=True)
        return set_alias(registry, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Registry, "set_alias", hindered)
        result = workplace("-q export digits-run --name digits --alias live --json")
    assert result.sentence == (
        "'digits:2' is published, and only its alias is left to set. tmp/digits/.sync does not belong in a registry: "
        "take it out before the next write."
    )
    assert (result.code, result.out) == (1, "")
    assert workplace.document("registry list")[0] == {"name": "digits", "versions": [1, 2], "aliases": {}}


def test_an_export_whose_alias_was_set_does_not_say_that_it_is_left_to_set(workplace: Workplace) -> None:
    sync_folder = atomic_io.sync_folder

    def unconfirmed(folder: Path) -> None:
        # The folder of the log; the new version is in it already.
        if folder.name == "digits" and Registry(workplace.registry).aliases("digits"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync_folder(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(atomic_io, "sync_folder", unconfirmed)
        result = workplace("-q export digits-run --name digits --alias live --json")
    assert result.sentence == (
        "'digits:2' is published. 'digits@live' is moved, but the disk did not confirm it (Input/output error), so a "
        "power cut may undo it. Check the disk, then run 'stablernn registry verify'."
    )
    assert (result.code, result.out) == (1, "")
    assert Registry(workplace.registry).aliases("digits") == {"live": 2}
