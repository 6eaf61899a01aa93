"""The benchmark of GPUs: its parts run without one, their failures are results, and its page is that of the results."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmark_scripts import BENCHMARKS, script


def measured(folder: Path, *parts: str) -> dict[str, Any]:
    """Run the command, and return what it wrote."""
    results = folder / "gpu.json"
    words = [word for part in parts for word in ("--only", part)]
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--results", str(results), *words]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    document: dict[str, Any] = json.loads(results.read_text())
    return document


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_the_kernels_are_checked(tmp_path: Path) -> None:
    checks = measured(tmp_path, "checks")["parts"]["checks"]
    assert checks["passed"] is True
    assert {row["engine"] for row in checks["rows"]} == {"triton", "triton-tf32", "triton-bf16"}


@pytest.mark.slow
def test_every_part_runs(tmp_path: Path) -> None:
    results = measured(tmp_path)
    assert list(results["parts"]) == ["checks", "steps", "long", "training", "onnx", "serving"]
    for part in results["parts"].values():
        assert "error" not in part, part
    if results["environment"]["gpu"] is None:
        (table,) = results["parts"]["steps"]["tables"].values()
        assert list(table["missing"]) == ["engine cuda-graph"]


def test_parts_that_fail_are_results(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = script("gpu")

    def fail(has_cuda: bool) -> dict[str, Any]:
        raise ValueError("no such kernel")

    def miss(has_cuda: bool) -> dict[str, Any]:
        raise gpu.NotMeasured("no data")

    for measure, expected in ((fail, {"error": "ValueError: no such kernel"}), (miss, {"not_measured": "no data"})):
        monkeypatch.setitem(sys.modules, "gpu_checks", SimpleNamespace(measure=measure))
        assert gpu.measure_part("checks") == expected
    monkeypatch.setitem(gpu.PARTS, "checks", 0.01)
    result = gpu.run_part("checks")
    assert result.pop("seconds") < 5
    assert result == {"error": "It took longer than 0.01 seconds and was stopped."}


def test_a_process_that_ends_is_a_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpu = script("gpu")
    program = tmp_path / "gpu.py"
    program.write_text("import sys; print('illegal memory access', file=sys.stderr); sys.exit(1)")
    monkeypatch.setattr(gpu, "__file__", str(program))
    result = gpu.run_part("checks")
    assert result["error"] == "illegal memory access"


def stored(**parts: Any) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(script("gpu").RESULTS.read_text(encoding="utf-8"))
    gpu = {"name": "NVIDIA H100", "memory_gib": 79.1, "driver": "1", "cuda": "13.0", "cudnn": 91000}
    return {"environment": {**results["environment"], "gpu": gpu}, "parts": {**results["parts"], **parts}}


def test_goals_and_tables_of_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = script("gpu_page")
    row = {"ms_low": 1.0, "ms_high": 9.0}
    times = {"engine triton": 2.0, "nn.LSTM, float32": 5.0, "engine loop": 60.0}
    table = {
        "rows": {name: {**row, "ms": ms} for name, ms in times.items()},
        "missing": {"engine triton-bf16": "E: no"},
    }
    training = {"data": "mnist", "cell": "antisymmetric", "engine": "triton", "epochs": 3, "steps": 1290}
    results = stored(
        steps={"rounds": 7, "tables": {page.MAIN: table, "another": {"not_measured": "130 seconds had passed."}}},
        training={"runs": [{**training, "seconds_of_epochs": [9.0, 2.5, 7.0], "accuracy": 0.5}]},
        long={
            "rows": [
                {
                    "cell": "rnn",
                    "N": 64,
                    "T": 65536,
                    "ms": {"shooting": [4.0, 2.0, 3.0], "triton": [9.0], "loop": [60.0]},
                    "missing": {"torch-rnn": "E: no"},
                }
            ],
            "sweeps": ["there were 2."],
        },
        onnx={"error": "RuntimeError: no CUDA"},
        serving={
            "model": "a model",
            "auto": {"device_note": "auto: steps on cpu"},
            "request_ms": {"cpu": {"1": 2.5}},
            "difference": 1e-6,
        },
    )
    assert [goal.reached for goal in page.goals(results)] == ["2.50", "30.00", "2.50 s", "20.0", "3.0"]
    monkeypatch.setattr(page, "PAGE", tmp_path / "gpu.md")
    page.write_page(results)
    text = page.PAGE.read_text(encoding="utf-8")
    for part in (
        "NVIDIA H100 with 79.1 GiB, driver 1, CUDA 13.0, cuDNN 91000",
        "| engine triton | 2.00 | 1.00 to 9.00 |",
        "| engine triton-bf16 | not measured | E: no |",
        "Not measured: 130 seconds had passed.",
        "| antisymmetric | mnist | triton | 430 | 9.00, 2.50, 7.00 | 0.5000 |",
        "| rnn | 64 | 65,536 | shooting | 3.0 | 2.0 to 4.0 |",
        "| rnn | 64 | 65,536 | torch-rnn | not measured | E: no |",
        "Failed: RuntimeError: no CUDA",
        "auto: steps on cpu.",
        "| cpu | 1 | 2.50 |",
    ):
        assert part in text
    assert "Nothing on this page was measured on a GPU" not in text


def test_times_without_a_gpu_are_not_goals() -> None:
    page, results = script("gpu_page"), stored()
    results["environment"]["gpu"] = None
    assert {goal.reached for goal in page.goals(results)} == {"not measured"}


def test_the_page_in_the_repository_is_that_of_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = script("gpu_page")
    text = page.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(page, "PAGE", tmp_path / "gpu.md")
    page.write_page(json.loads(script("gpu").RESULTS.read_text(encoding="utf-8")))
    assert page.PAGE.read_text(encoding="utf-8") == text
