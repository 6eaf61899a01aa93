"""On a CUDA GPU: both engines run there, agree with the CPU, and continue streams."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import pytest
import torch

from engine_helpers import CUDA_ENGINES, KINDS, NEEDS_GPU, publish, random_inputs, sequence, zeros
from published_models import Published
from stablernn.export.parity import SEQUENCE_CAP, _split_steps
from stablernn.export.torch_outputs import max_errors
from stablernn_runtime import ServedModel

pytestmark = NEEDS_GPU
TOLERANCE = SEQUENCE_CAP


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return publish(tmp_path_factory.mktemp("zoo"), tmp_path_factory.mktemp("exports"), list(KINDS))


@pytest.mark.parametrize("engine", CUDA_ENGINES)
def test_it_runs_on_cuda(zoo: Published, engine: str) -> None:
    model = ServedModel.load(zoo.registry.get("classes"), "cuda", engine=engine)
    assert (model.engine, model.placement.device) == (engine, "cuda")
    if engine == "onnx":
        for graph in (model.sequence, model.step):
            assert graph.session.get_providers()[0] == "CUDAExecutionProvider"
            assert graph.session.get_provider_options()["CUDAExecutionProvider"]["use_tf32"] == "0"
    else:
        before = torch.cuda.max_memory_allocated()
        model.run_numpy(np.zeros((64, 200, 2), np.float32))
        assert torch.cuda.max_memory_allocated() > before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", CUDA_ENGINES)
def test_the_numbers_are_those_of_the_cpu(
    zoo: Published, engine: str, kind: str, record_property: Callable[[str, object], None]
) -> None:
    version = zoo.registry.get(kind)
    cpu, gpu = ServedModel.load(version, "cpu"), ServedModel.load(version, "cuda", engine=engine)
    inputs, _ = random_inputs(zoo.torch_models[f"{kind}:1"], seed=1)
    expected = sequence(cpu, inputs, zeros(cpu, 5))
    difference = max_errors(expected, sequence(gpu, inputs, zeros(cpu, 5)))[1]
    record_property("max_rel_error", difference)
    print(
        f"{kind} by {engine} on {torch.cuda.get_device_name() if torch.cuda.is_available() else 'a GPU'}: ", difference
    )
    assert difference <= TOLERANCE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", CUDA_ENGINES)
def test_a_stream_comes_to_what_the_whole_sequence_comes_to(zoo: Published, engine: str, kind: str) -> None:
    gpu = ServedModel.load(zoo.registry.get(kind), "cuda", engine=engine)
    model = zoo.torch_models[f"{kind}:1"]
    inputs, known = random_inputs(model, seed=2)
    del inputs["lengths"]
    whole = sequence(gpu, inputs, {})
    states, outputs = zeros(gpu, 5), {}
    for sample in _split_steps(model, {name: value for name, value in inputs.items() if name not in known}):
        outputs = gpu.run(gpu.step, {**sample, **known, **states})
        states = gpu.next_state(outputs)
    if model.every_step:
        whole = {name: value if name in gpu.sequence.state_outputs else value[:, -1] for name, value in whole.items()}
    assert max_errors(whole, outputs)[1] <= TOLERANCE


def test_auto_says_what_it_measured(zoo: Published) -> None:
    model = ServedModel.load(zoo.registry.get("classes"), "auto", engine="auto")
    assert model.placement.device == "cuda"
    assert model.engine_reason.startswith("auto: ")
    if torch.cuda.is_available() and "CUDAExecutionProvider" in ort.get_available_providers():
        assert " measured on cuda: one sequence of " in model.engine_reason
