"""`eval --robustness`: the document, the tables, what a run keeps, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import Result, Workplace, copied
from stablernn_cli.output import Output
from stablernn_cli.records import record_report
from stablernn_registry import Registry, Version
from stablernn_registry.certificates import format_lower

FEW = "--attack-sequences 20 --attack-steps 3 --attack-budgets 0.01,0.2 --attack-budgets-l2 0.1,1,5"


@dataclass(frozen=True)
class Measured:
    """A workplace, and what `eval --robustness` said there."""

    workplace: Workplace
    result: Result


@pytest.fixture(scope="module")
def run(trained: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """``digits-run`` was attacked; not to be changed."""
    with copied(trained, tmp_path_factory.mktemp("run") / "copy") as copy:
        yield Measured(copy, copy.ok(f"eval digits-run --robustness {FEW} --json"))


@pytest.fixture(scope="module")
def version(trained: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """``digits:1`` was attacked; not to be changed."""
    with copied(trained, tmp_path_factory.mktemp("version") / "copy") as copy:
        yield Measured(copy, copy.ok(f"eval digits:1 --robustness {FEW} --json"))


def test_a_run_keeps_its_report_and_pictures(run: Measured) -> None:
    workplace, result = run.workplace, run.result
    report = result.json["robustness"]
    assert report["sequences"] == 20
    assert [attack["budgets"] for attack in report["attacks"]] == [[0.01, 0.2], [0.1, 1.0, 5.0]] * 2
    assert set(report["attacks"][0]) == {"name", "norm", "budgets", "accuracy", "certified"}
    assert {"accuracy_after_steps", "median_perturbation"} <= set(report["attacks"][2])
    assert report["settings"]["steps"] == 3
    assert report["hessian"]["trace_standard_error"] > 0
    assert json.loads(workplace.path("digits-run/robustness.json").read_text()) == report
    for name in ("robustness.png", "noise.png"):
        assert workplace.path(f"digits-run/plots/{name}").read_bytes().startswith(b"\x89PNG")
    assert "PGD, linf" in result.err
    assert "Wrote digits-run/robustness.json" in result.err


def registered(workplace: Workplace, ref: str) -> Version:
    return Registry(workplace.registry).get(ref)


@pytest.mark.slow
def test_a_version_is_attacked_by_its_own_weights_and_its_report_is_kept_beside_it(
    trained: Workplace, run: Measured, version: Measured
) -> None:
    before = registered(trained, "digits:1")
    workplace, result = version.workplace, version.result
    report = result.json["robustness"]
    assert run.result.json["robustness"] == report
    assert report["weights"] == f"sha256:{before.manifest.files['weights.safetensors'].sha256}"
    assert "Stored with digits:1 as its record 'robustness'." in result.err

    (record,) = result.json["records"]
    assert (record["kind"], record["seq"]) == ("robustness", 2)
    assert set(record["files"]) == {"robustness.json", "plots/robustness.png", "plots/noise.png"}
    assert json.loads(Path(record["files"]["robustness.json"]["path"]).read_text()) == report
    assert Path(record["files"]["plots/noise.png"]["path"]).read_bytes().startswith(b"\x89PNG")
    after = registered(workplace, "digits:1")
    assert (after.digest, after.manifest) == (before.digest, before.manifest)
    assert workplace.document("registry show digits:1")["records"] == [record]
    assert workplace.document("registry verify")["ok"] is True
    # Found out once more, it is not kept once more.
    again = workplace.document(f"eval digits --robustness {FEW}")["records"]
    assert again == [record]
    assert "record robustness of version 1" in workplace.ok("-q registry log digits").out


SOMEBODY = 65534


def test_a_registry_of_somebody_else_is_not_written(
    trained: Workplace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Not below tmp_path, which nobody but its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        registry, report = Path(folder) / "registry", Path(folder) / "report"
        report.mkdir()
        (report / "robustness.json").write_text("{}")
        shutil.copytree(trained.registry, registry)
        monkeypatch.setenv("STABLERNN_REGISTRY", str(registry))
        folders = [Path(folder), *(path for path in registry.parent.rglob("*") if path.is_dir())]
        for path in folders:
            path.chmod(0o555)
        is_root = os.geteuid() == 0
        try:
            if is_root:
                os.seteuid(SOMEBODY)
            records = record_report(Output(), "digits:1", "robustness", report)
        finally:
            if is_root:
                os.seteuid(0)
            for path in folders:
                path.chmod(0o755)
        assert records == []
        assert Registry(registry).records("digits:1") == ()
    assert capsys.readouterr().err == (
        "Note: this report is only printed, not stored in the registry. Could not lock 'digits': the registry "
        f"{registry} does not allow it: Permission denied ({registry}/locks/digits). Change its permissions or point "
        "STABLERNN_REGISTRY to another folder.\n"
    )


@pytest.fixture
def reported(run: Measured, tmp_path: Path) -> Iterator[Workplace]:
    """A copy to change, in which ``digits-run`` keeps its report and pictures."""
    with copied(run.workplace, tmp_path / "copy") as copy:
        yield copy


def stored_report(workplace: Workplace) -> Any:
    return json.loads(workplace.path("digits-run/robustness.json").read_text())


PICTURES = {"plots/robustness.png", "plots/noise.png"}


def test_a_report_goes_with_the_weights_that_it_is_of(reported: Workplace) -> None:
    report = stored_report(reported)
    exported = reported.document("export digits-run --name digits")
    assert {"robustness.json", *PICTURES} <= set(exported["files"])
    version = registered(reported, "digits:2")
    assert json.loads(version.read("robustness.json")) == report
    assert report["weights"] == f"sha256:{version.manifest.files['weights.safetensors'].sha256}"
    pgd = report["attacks"][0]["accuracy"]
    said = f"{pgd[0]:.4g} at 0.01, {pgd[1]:.4g} at 0.2"
    certified = report["certified"]
    radius = "none: " if certified["reason"] is not None else f"{format_lower(certified['median_radius'], 4)} (l2)"
    card = version.read("README.md").decode()
    assert f"| accuracy under PGD (linf) | {said} |" in card
    assert f"| median certified radius | {radius}" in card
    shown = reported.ok("-q registry show digits:2").out
    for words in ("Robustness on 20 sequences of digits, test", said, radius):
        assert words in shown
    assert "Robustness on" not in reported.ok("-q registry show digits:1").out
    assert (
        "Not measured before this version was published." in registered(reported, "digits:1").read("README.md").decode()
    )


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda report: {**report, "weights": "sha256:" + "0" * 64},
            "digits-run/robustness.json is left out with its plots: it is about other weights than the "
            "exported ones. See `stablernn eval digits-run --robustness`.",
        ),
        (
            lambda report: {key: value for key, value in report.items() if key != "weights"},
            "digits-run/robustness.json is left out with its plots: it is about other weights",
        ),
        (lambda report: [report], "digits-run/robustness.json is left out: it is not a robustness report that"),
    ],
    ids=["other-weights", "no-weights", "no-report"],
)
def test_a_report_of_other_weights_stays_out(reported: Workplace, damage: Callable[[Any], Any], words: str) -> None:
    report = stored_report(reported)
    reported.path("digits-run/robustness.json").write_text(json.dumps(damage(report)))
    result = reported.ok("export digits-run --name digits --json")
    assert f"Note: {words}" in result.err
    assert not {"robustness.json", *PICTURES} & set(result.json["files"])
    assert "plots/loss.png" in result.json["files"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "load-run --robustness",
            "--robustness is for classification, and load-run is for 'forecast'. Leave it out.",
        ),
        ("digits-run --attack-steps 3", "The options --attack-... need --robustness."),
        ("digits-run --robustness --attack-budgets a,b", "--attack-budgets must be a list of numbers"),
        ("digits-run --robustness --attack-budgets-l2 2,1", "increasing numbers greater than 0"),
        ("digits-run --robustness --attack-sequences 0", "must be 1 or more, got 0"),
    ],
)
def test_what_cannot_be_asked_for(trained: Workplace, arguments: str, words: str) -> None:
    assert words in trained.refusal(f"eval {arguments}")
