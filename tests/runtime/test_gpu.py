"""On a CUDA GPU: both engines run there, agree with the CPU, and continue streams."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest
import torch

from engine_helpers import CUDA_ENGINES, NEEDS_GPU
from published_models import Published
from stablernn.export.parity import SEQUENCE_CAP, max_errors
from stablernn_runtime import ServedModel
from stablernn_runtime.engines.session import BoundSession, GpuOptions
from stablernn_runtime.errors import OutOfMemoryError
from stablernn_runtime.run_batch import BatchResult, run_steps
from stablernn_runtime.step_buffers import DeviceBuffers

pytestmark = NEEDS_GPU
TOLERANCE = SEQUENCE_CAP


@pytest.mark.parametrize("engine", CUDA_ENGINES)
def test_it_runs_on_cuda(zoo: Published, engine: str) -> None:
    model = ServedModel.load(zoo.registry.get("classes"), "cuda", engine=engine)
    assert (model.engine, model.placement.device) == (engine, "cuda")
    if engine == "onnx":
        for graph in (model.sequence, model.step):
            assert isinstance(graph.session, BoundSession)
            session = graph.session.ort_session
            assert session.get_providers()[0] == "CUDAExecutionProvider"
            assert session.get_provider_options()["CUDAExecutionProvider"]["use_tf32"] == "0"
    else:
        before = torch.cuda.max_memory_allocated()
        model.run_numpy(np.zeros((64, 200, 2), np.float32))
        assert torch.cuda.max_memory_allocated() > before


@pytest.mark.parametrize("kind", ["classes", "patches-dt"])
@pytest.mark.parametrize("rows", [1, 9, 300])
def test_states_that_stay_on_the_gpu_come_to_those_of_the_cpu(zoo: Published, kind: str, rows: int) -> None:
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        pytest.skip("ONNX Runtime is built without CUDA")
    version = zoo.registry.get(kind)
    cpu, gpu = ServedModel.load(version, "cpu"), ServedModel.load(version, "cuda")
    x = np.random.default_rng(rows).uniform(100, 600, (rows, 50, 2)).astype(np.float32)
    results = [run_steps(model.step, [model.prepare_steps({"x": x}, {})], None)[0] for model in (cpu, gpu)]
    assert isinstance(results[0], BatchResult)
    assert isinstance(results[1], BatchResult)
    assert max_errors(results[0].outputs, results[1].outputs)[1] <= TOLERANCE
    assert max_errors(results[0].states, results[1].states)[1] <= TOLERANCE
    assert isinstance(gpu.step.take_buffers(rows), DeviceBuffers)


def test_a_memory_limit_ends_large_runs_alone(zoo: Published) -> None:
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        pytest.skip("ONNX Runtime is built without CUDA")
    gpu = ServedModel.load(zoo.registry.get("classes"), "cuda", gpu=GpuOptions(0, 64 * 2**20))
    with pytest.raises(OutOfMemoryError, match=r" fits?: send fewer or shorter series at a time, or raise the limit"):
        gpu.run_numpy(np.zeros((20_000, 500, 2), np.float32))
    assert np.isfinite(gpu.run_numpy(np.zeros((2, 5, 2), np.float32))["logits"]).all()


def test_auto_says_what_it_measured(zoo: Published) -> None:
    model = ServedModel.load(zoo.registry.get("classes"), "auto", engine="auto", gpu=GpuOptions(batch=64))
    assert model.engine_reason.startswith("auto: ")
    if "CUDAExecutionProvider" not in ort.get_available_providers():
        return
    work = model.placement.by_work
    assert model.placement.device == ("cuda" if "cuda" in (work["single"], work["batch"], work["step"]) else "cpu")
    assert any(label.endswith(" on cuda") for label in model.placement.measured_ms)
    for label, times in model.placement.measured_ms.items():
        print(label, times)
        assert None not in times.values()
    print(model.placement.reason)
