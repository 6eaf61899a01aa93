"""`cells`, `data`, `doctor`, and the whole way in `quickstart`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli_helpers import Workplace
from fake_driver import write_driver
from stablernn_cli.commands import doctor
from stablernn_runtime.engines import devices


@pytest.mark.parametrize("key", ["lipschitz", "gru", "lru"])
def test_cells_show_has_every_option_under_both_presets(empty: Workplace, key: str) -> None:
    document = empty.document(f"cells show {key}")
    assert document["equation"]
    assert set(document["options"]) == {"practical", "paper"}
    text = empty.ok(f"cells show {key}").out
    assert "Source of the preset 'paper': " in text
    for name in document["options"]["practical"]:
        assert name in text


def test_doctor_finds_what_is_there(empty: Workplace) -> None:
    import onnxruntime
    import torch

    document = empty.document("doctor")
    assert document["ok"] is True
    assert document["torch"]["version"] == torch.__version__
    assert document["torch"]["gpus"] == [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
    runtime = document["onnxruntime"]
    assert runtime["version"] == onnxruntime.__version__
    assert runtime["providers"] == onnxruntime.get_available_providers()
    assert runtime["devices"]["cpu"] == {"usable": True, "reason": None, "provider": "CPUExecutionProvider"}
    assert {state["provider"] for state in runtime["devices"].values()} - {None} <= set(runtime["providers"])
    # Named by the build is one thing, usable here another: without a GPU the reason must be given.
    assert runtime["devices"]["cuda"]["usable"] or runtime["devices"]["cuda"]["reason"]
    folders = document["folders"]
    assert folders["registry"] == {
        "path": str(empty.registry),
        "exists": False,
        "writable": True,
        "set by": "STABLERNN_REGISTRY",
    }
    assert set(folders) == {"registry", "data", "cache", "working folder"}
    assert list(empty.folder.iterdir()) == []
    text = empty.ok("doctor").out
    assert str(empty.registry) in text
    assert text.endswith("Everything essential works.\n")


def test_doctor_says_how_to_mend_a_folder(empty: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    empty.path("file").write_text("")
    monkeypatch.setenv("STABLERNN_CACHE", str(empty.path("file") / "cache"))
    document = empty.document("doctor")
    problem = {
        "what": f"The cache {empty.path('file')}/cache cannot be written to.",
        "fix": "Set STABLERNN_CACHE to a writable folder",
        "essential": False,
    }
    assert problem in document["problems"]


def test_doctor_fails_when_a_library_does_not_load(
    empty: Workplace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_runtime.py").write_text(
        "raise ImportError('libsomething.so.1: cannot open shared object file')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    findings = doctor.Findings()
    assert doctor._import("broken_runtime", findings, needed_for="serve") is None
    assert findings.ok is False
    assert findings.problems == [
        {
            "what": "broken_runtime cannot be imported (libsomething.so.1: cannot open shared object file); "
            "serve need it.",
            "fix": "Install stablernn again",
            "essential": True,
        }
    ]


@pytest.mark.slow
def test_quickstart_goes_the_whole_way(empty: Workplace) -> None:
    result = empty.ok("quickstart --epochs 1 --json")
    document = result.json
    assert document["ref"] == "digits:1"
    assert document["run"] == "runs/digits-lipschitz-1"
    assert [answer["truth"] for answer in document["answers"]] == ["0", "5", "0", "5", "0"]
    for answer in document["answers"]:
        assert answer["label"] in "0123456789"
        assert 0 < answer["probability"] <= 1
    assert (empty.path(document["run"]) / "server.log").read_text().splitlines()[-1] == "Stopped."
    # The answers are those of the published version, asked again without a server.
    predicted = empty.document("eval digits")["metrics"]
    assert predicted["accuracy"] == pytest.approx(document["metrics"]["accuracy"], abs=0.01)
    for word in ("train", "eval", "export", "serve"):
        assert f"$ stablernn {word} " in result.err
    assert "/v1/timeseries/classify" in result.err


def test_doctor_names_the_missing_libraries_and_the_command_that_brings_them(
    empty: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "missing_libraries", lambda: ("libcublas.so.13", "libcudnn.so.9"))
    document = empty.document("doctor")
    assert document["onnxruntime"]["missing_libraries"] == ["libcublas.so.13", "libcudnn.so.9"]
    assert {
        "what": "ONNX Runtime cannot load libcublas.so.13, libcudnn.so.9; serving uses the CPU.",
        "fix": "Only if this machine has an NVIDIA GPU: pip install -e '.[cuda]' in the checkout",
        "essential": False,
    } in document["problems"]


@pytest.mark.slow
def test_doctor_lists_the_gpus_of_the_driver(empty: Workplace, tmp_path: Path) -> None:
    driver = write_driver(tmp_path, [("NVIDIA Alpha", 24 * 2**30), ("NVIDIA Beta", 80 * 2**30)])
    done = subprocess.run(
        [sys.executable, "-m", "stablernn_cli", "doctor", "--json"],
        env={**os.environ, **driver},
        capture_output=True,
        text=True,
        check=True,
    )
    document = json.loads(done.stdout)
    gpus = document["onnxruntime"]["gpus"]
    assert [(gpu["device_id"], gpu["name"], gpu["memory_bytes"]) for gpu in gpus] == [
        (0, "NVIDIA Alpha", 24 * 2**30),
        (1, "NVIDIA Beta", 80 * 2**30),
    ]
    assert all(gpu["usable"] or gpu["reason"] for gpu in gpus)
    assert any(problem["what"].startswith("The GPUs differ: GPU 0 (NVIDIA Alpha") for problem in document["problems"])


def test_doctor_opens_a_model_as_serve_does(trained: Workplace) -> None:
    import onnxruntime

    (model,) = trained.document("doctor --model digits")["models"]
    assert (model["ref"], model["engine"]) == ("digits:1", "onnx")
    if model["device"] == "cpu" and model["measured_ms"] is None:
        assert model["device_note"].startswith("auto: CPU, because ")
        assert model["engine_note"] == f"auto: ONNX Runtime {onnxruntime.__version__}, as always on the CPU"
        assert model["device_by_work"] is None
    assert "digits:1 " in trained.ok("doctor --model digits").out
    assert trained.refusal("doctor --model nothing")[:27] == "Unknown model 'nothing' in "


def installed(folder: Path, name: str, version: str) -> None:
    """Makes a package that only says that it is installed."""
    description = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    description.mkdir()
    (description / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_doctor_says_which_of_two_runtimes_to_uninstall(
    empty: Workplace, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("packages")
    installed(folder, "onnxruntime", "1.31.1")
    installed(folder, "onnxruntime-gpu", "1.31.1")
    monkeypatch.syspath_prepend(folder)
    assert {
        "what": "onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files; onnxruntime-gpu "
        "includes all of onnxruntime.",
        "fix": "pip uninstall onnxruntime, then pip install --force-reinstall --no-deps onnxruntime-gpu==1.31.1",
        "essential": False,
    } in empty.document("doctor")["problems"]
