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
    results = measured(tmp_path, "checks")
    checks = results["parts"]["checks"]
    assert checks["passed"] is True
    on_gpu = set() if results["environment"]["gpu"] is None else {"scan", "cuda-graph"}
    assert {row["engine"] for row in checks["rows"]} == {"triton", "triton-tf32", "triton-bf16", *on_gpu}
    # The page of results that are not those of the repository is beside them.
    text = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert on_gpu or "Nothing on this page was measured on a GPU" in text
    assert "Not measured: It was left out." in text


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


def test_goals_and_tables_of_a_gpu(tmp_path: Path) -> None:
    page = script("gpu_page")
    row = {"ms_low": 1.0, "ms_high": 9.0}
    times = {"engine triton": 2.0, "nn.LSTM, float32": 5.0, "engine loop": 60.0}
    table = {
        "rows": {name: {**row, "ms": ms} for name, ms in times.items()},
        "missing": {"engine triton-bf16": "E: no"},
    }
    training = {"data": "mnist", "cell": "antisymmetric", "engine": "triton", "epochs": 3, "steps": 1290}
    results = stored(
        steps={
            "seconds": 60.0,
            "rounds": 7,
            "tables": {page.MAIN: table, "another": {"not_measured": "130 seconds had passed."}},
        },
        training={"seconds": 60.0, "runs": [{**training, "seconds_of_epochs": [9.0, 2.5, 7.0], "accuracy": 0.5}]},
        long={
            "seconds": 60.0,
            "rows": [
                {
                    "cell": "rnn",
                    "N": 64,
                    "T": 65536,
                    "ms": {"shooting": [4.0, 2.0, 3.0], "triton": [9.0], "loop": [60.0]},
                    "missing": {"torch-rnn": "E: no"},
                },
                {"cell": "rnn", "N": 64, "T": 99, "ms": {"triton": [1.0], "shooting": [1.0]}, "missing": {}},
            ],
            "sweeps": ["there were 2."],
        },
        onnx={"seconds": 1.0, "error": "RuntimeError: no CUDA"},
        serving={
            "seconds": 60.0,
            "model": "a model",
            "auto": {"device_note": "auto: steps on cpu"},
            "request_ms": {"cpu": {"1": 2.5}},
            "difference": 1e-6,
        },
    )
    assert [goal.reached for goal in page.goals(results)] == ["2.50", "30.00", "2.50 s", "20.0", "3.0"]
    assert all(goal.is_met for goal in page.goals(results))
    page.write_page(results, tmp_path / "gpu.md")
    text = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    for part in (
        "NVIDIA H100 with 79.1 GiB, driver 1, CUDA 13.0, cuDNN 91000",
        "| engine triton | 2.00 | 1.00 to 9.00 |",
        "| engine triton-bf16 | not measured | E: no |",
        "Not measured: 130 seconds had passed.",
        "| antisymmetric | mnist | triton | 430 | 9.00, 2.50, 7.00 | 0.5000 |",
        "| rnn | 64 | 65,536 | shooting | 3.0 | 2.0 to 4.0 |",
        "| rnn | 64 | 65,536 | torch-rnn | not measured | E: no |",
        "| rnn | 64 | 99 | loop | not measured | left out |",
        "`triton` takes 1.28 µs for each of its 1,568 products",
        "| an epoch of MNIST pixel by pixel | under 3 s | 2.50 s | yes |",
        "Failed: RuntimeError: no CUDA",
        "auto: steps on cpu.",
        "| cpu | 1 | 2.50 |",
    ):
        assert part in text
    assert "Nothing on this page was measured on a GPU" not in text


def test_times_without_a_gpu_are_not_goals() -> None:
    page, results = script("gpu_page"), stored()
    results["environment"]["gpu"] = None
    assert {(goal.reached, goal.is_met) for goal in page.goals(results)} == {("not measured", None)}


def test_a_goal_that_was_missed_is_said_to_be() -> None:
    page = script("gpu_page")
    training = {"cell": "antisymmetric", "seconds_of_epochs": [4.0, 3.16, 9.0]}
    goals = {goal.what: goal for goal in page.goals(stored(training={"runs": [training]}))}
    assert goals["an epoch of MNIST pixel by pixel"][2:] == ("3.16 s", False)


def test_bytes_are_compared_with_the_bandwidth_of_a_gpu_that_is_known() -> None:
    page = script("gpu_page")
    assert "206 MB, and to read or write each once takes 0.04 ms at the 4.8 TB/s" in page._distance(4.0, "NVIDIA H200")
    assert "TB/s" not in page._distance(4.0, "another")


def test_the_page_in_the_repository_is_that_of_the_results(tmp_path: Path) -> None:
    page = script("gpu_page")
    page.write_page(json.loads(script("gpu").RESULTS.read_text(encoding="utf-8")), tmp_path / "gpu.md")
    assert (tmp_path / "gpu.md").read_text(encoding="utf-8") == page.PAGE.read_text(encoding="utf-8")


def test_a_machine_without_cuda_leaves_the_results_of_a_gpu_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = script("gpu")
    facts = {**stored()["environment"], "gpu": None}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gpu, "environment", lambda: facts)
    monkeypatch.setattr(gpu, "run_part", lambda name: {"seconds": 1.0, "not_measured": "no data"})
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--only", "training"])
    gpu.main()
    assert json.loads((tmp_path / "gpu.json").read_text())["parts"].keys() == {"training"}
    assert "Nothing on this page was measured on a GPU" in (tmp_path / "gpu.md").read_text(encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--only", "training", "--results", str(gpu.RESULTS)])
    with pytest.raises(SystemExit, match="has the results of another machine; give --results another file"):
        gpu.main()


def test_results_of_the_repository_write_its_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, pages = script("gpu"), [script("gpu_page"), script("serving_page")]
    expected = [page.PAGE.read_text(encoding="utf-8") for page in pages]
    monkeypatch.setattr(pages[1], "PAGE", tmp_path / "performance.md")
    monkeypatch.setattr(pages[0], "write_page", lambda results: None)
    assert gpu.write_pages(gpu.RESULTS) == [pages[0].PAGE, tmp_path / "performance.md"]
    assert (tmp_path / "performance.md").read_text(encoding="utf-8") == expected[1]
