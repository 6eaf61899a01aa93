"""GPUs of a server: by a driver that was compiled here, and by real sessions of the CPU in place of those of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import onnxruntime as ort
import pytest

from fake_driver import write_driver
from published_models import Published
from server_helpers import serve
from serving_helpers import failed_serve, start_serve
from stablernn_registry import Signature, Version
from stablernn_runtime.engines import select
from stablernn_runtime.engines.loaded_graphs import LoadedGraphs
from stablernn_runtime.engines.session import CUDA, GpuOptions
from stablernn_server import Settings, create_app
from stablernn_server.supervisor import place_worker

GIB = 2**30
TWO = [("NVIDIA Alpha", 24 * GIB), ("NVIDIA Beta", 80 * GIB)]
needs_provider = pytest.mark.skipif(
    CUDA not in ort.get_available_providers(), reason="this ONNX Runtime has no CUDA provider"
)


@pytest.mark.parametrize(
    ("fields", "gpus", "devices"),
    [
        ({}, 2, [0, 1, 0, 1]),
        ({"device": "cuda", "engine": "torch"}, 3, [0, 1, 2, 0]),
        # One GPU, none, a named one, the CPU, and an engine that chooses itself.
        ({}, 1, [None] * 4),
        ({}, 0, [None] * 4),
        ({"device_id": 1}, 2, [1] * 4),
        ({"device": "cpu"}, 2, [None] * 4),
        ({"engine": "native"}, 2, [None] * 4),
    ],
)
def test_processes_are_spread_over_the_gpus(fields: dict[str, Any], gpus: int, devices: list[int | None]) -> None:
    settings = Settings(workers=4, gpu_mem_limit=GIB, max_batch_size=7, **fields)
    placed = [place_worker(settings, number, gpus) for number in range(4)]
    assert [each.device_id for each in placed] == devices
    assert {each.gpu_options.memory_limit for each in placed} == {GIB}
    assert {each.gpu_options.batch for each in placed} == {7}


@pytest.fixture
def measured(published: Published, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The metadata of a model on a machine with a GPU, whose sequences and steps alike are real runs of the CPU."""
    open_onnx = select.open_onnx

    def open_on(version: Version, signature: Signature, device: str, threads: int, gpu: GpuOptions) -> LoadedGraphs:
        graphs = open_onnx(version, signature, "cpu", threads)
        placement = replace(graphs.placement, device="cuda", device_id=gpu.device_id or 0)
        return graphs if device == "cpu" else replace(graphs, placement=placement)

    monkeypatch.setattr(select, "open_onnx", open_on)
    monkeypatch.setattr(select, "count_gpus", lambda: 2)
    monkeypatch.setattr(select, "_SELECTIONS", {})
    settings = Settings(registry=published.root, models=("flow:1",), device_id=1, engine="onnx", max_batch_size=12)
    for server in serve(create_app(settings)):
        yield httpx.get(f"{server.url}/v2/models/flow").json()["parameters"]


def test_metadata_says_what_was_measured_and_chosen(measured: dict[str, Any], published: Published) -> None:
    work = measured["device_by_work"]
    assert set(work) == {"single", "batch", "min_batch_rows", "step"}
    used = {work["single"], work["batch"], work["step"]}
    assert measured["device"] == ("cuda" if "cuda" in used else "cpu")
    assert measured["device_id"] == (1 if "cuda" in used else None)
    name = f"ONNX Runtime {ort.__version__}"
    steps = published.registry.get("flow:1").manifest.parity["longest"]
    kinds = [f"one sequence of {steps} steps", "12 sequences", "one step", "one step of 12 streams"]
    assert {label: list(times) for label, times in measured["measured_ms"].items()} == {
        f"{name} on cpu": kinds,
        f"{name} on cuda": kinds,
    }
    assert all(0 < time < 10_000 for times in measured["measured_ms"].values() for time in times.values())
    assert f"; measured: {name} on cpu: one sequence of {steps} steps " in measured["device_note"]
    assert measured["engine_note"] == name


@pytest.mark.slow
@needs_provider
@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("--device-id", "2"), 2, "Error: There is no GPU with the number 2: the NVIDIA driver reports GPU 0 (NVIDIA "),
        (("--device", "cpu", "--device-id", "0"), 2, "Error: The setting device_id 0 is for a GPU"),
        (("--gpu-mem-limit", 30 * GIB), 2, f"Error: The memory limit of {30 * GIB} bytes is above the {24 * GIB} "),
        (("--device", "cuda", "--engine", "onnx"), 1, "Error: The device 'cuda' cannot be used: ONNX Runtime could "),
    ],
)
def test_serve_refuses_what_the_gpus_cannot_do(
    published: Published, tmp_path: Path, words: tuple[object, ...], code: int, sentence: str
) -> None:
    driver = write_driver(tmp_path, TWO)
    exit_code, _, err = failed_serve(published.root, "--model", "animals:1", *words, environment=driver)
    if not exit_code:
        pytest.skip("this machine has the CUDA libraries")
    assert exit_code == code, err
    assert err[-1].startswith(sentence)


@pytest.mark.slow
@needs_provider
def test_processes_on_different_gpus_are_logged(published: Published, tmp_path: Path) -> None:
    driver = write_driver(tmp_path / "driver", TWO)
    server = start_serve(
        published.root, tmp_path / "log", "--workers", 2, "--model", "animals:1", "--engine", "onnx", environment=driver
    )
    try:
        url = server.ready["url"]
        facts = httpx.get(f"{url}/v2/models/animals").json()["parameters"]
    finally:
        server.kill()
    log = (tmp_path / "log").read_text()
    names = "GPU 0 (NVIDIA Alpha, 24 GiB), GPU 1 (NVIDIA Beta, 80 GiB)"
    assert f"2 processes are spread over {names}." in log
    assert f"The GPUs differ ({names}): processes differ in speed, " in log
    if facts["device"] == "cpu":
        # The driver is there, the CUDA libraries are not.
        assert facts["device_note"].startswith("auto: CPU, because onnx cannot be used on cuda (ONNX Runtime ")
        # The number that its process was given.
        assert facts["device_note"].partition("); ")[2] in ("device_id 0 has no effect", "device_id 1 has no effect")
        assert (facts["device_by_work"], facts["measured_ms"], facts["device_id"]) == (None, None, None)
