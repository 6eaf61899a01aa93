"""GPUs and what keeps CUDA from being used, by a driver that was compiled here and a real ONNX Runtime."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnxruntime as ort
import pytest

from engine_helpers import environment
from fake_driver import write_driver
from published_models import Published
from stablernn_runtime.engines.devices import required_cuda_version
from stablernn_runtime.engines.session import CUDA, GpuOptions, choose_device
from stablernn_runtime.errors import SettingsError

needs_provider = pytest.mark.skipif(
    CUDA not in ort.get_available_providers(), reason="this ONNX Runtime has no CUDA provider"
)
GIB = 2**30
TWO = [("NVIDIA Alpha", 24 * GIB), ("NVIDIA Beta", 80 * GIB)]

CALL = """
import json, sys
from stablernn_runtime.engines.devices import read_driver
from stablernn_runtime.engines.session import GpuOptions, choose_device
from stablernn_runtime.errors import ServingError
device, number, limit = json.loads(sys.argv[1])
driver = read_driver()
try:
    placement = choose_device(device, GpuOptions(number, limit))
    chosen = [placement.device, placement.device_id, placement.memory_limit, placement.reason]
except ServingError as error:
    chosen = [type(error).__name__, str(error)]
print(json.dumps({"gpus": [vars(gpu) for gpu in driver.gpus], "chosen": chosen}))
"""


def choose(folder: Path, device: str, number: int | None = None, limit: int | None = None) -> dict[str, object]:
    """The GPUs and the chosen device in a process that finds the driver in a folder."""
    done = subprocess.run(
        [sys.executable, "-c", CALL, json.dumps([device, number, limit])],
        env=environment(LD_LIBRARY_PATH=str(folder)),
        capture_output=True,
        text=True,
        check=True,
    )
    document: dict[str, object] = json.loads(done.stdout)
    return document


@needs_provider
def test_gpus_are_those_of_the_driver(tmp_path: Path) -> None:
    write_driver(tmp_path, TWO)
    document = choose(tmp_path, "cuda", 1, 5 * GIB)
    assert document["gpus"] == [
        {"device_id": number, "name": name, "memory_bytes": size, "compute_capability": "8.9"}
        for number, (name, size) in enumerate(TWO)
    ]
    assert document["chosen"] == ["cuda", 1, 5 * GIB, ""]
    assert choose(tmp_path, "auto")["chosen"] == ["cuda", 0, None, "auto: CUDA was found"]


@pytest.mark.slow
@needs_provider
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path, device: str) -> None:
    write_driver(tmp_path, TWO)
    assert choose(tmp_path, device, 2)["chosen"] == [
        "SettingsError",
        "There is no GPU with the number 2: the NVIDIA driver reports GPU 0 (NVIDIA Alpha, 24 GiB), GPU 1 (NVIDIA "
        "Beta, 80 GiB). Use a --device-id from 0 to 1.",
    ]


@pytest.mark.slow
@needs_provider
@pytest.mark.skipif(required_cuda_version() is None, reason="the provider does not tell its CUDA version")
def test_an_old_driver_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    write_driver(tmp_path, TWO, version=11080)
    missing = (
        f"the NVIDIA driver supports CUDA 11.8, and ONNX Runtime {ort.__version__} is built for CUDA "
        f"{required_cuda_version()}; install a newer driver"
    )
    assert choose(tmp_path, "cuda")["chosen"] == [
        "DeviceError",
        f"The device 'cuda' cannot be used: {missing}. Use --device cpu or auto.",
    ]
    assert choose(tmp_path, "auto", 1)["chosen"] == [
        "cpu",
        0,
        None,
        f"auto: CPU, because {missing}; device_id 1 has no effect",
    ]


@pytest.mark.slow
@needs_provider
@pytest.mark.parametrize(
    ("code", "missing"),
    [
        (803, "the NVIDIA driver does not work: system driver mismatch (code 803)"),
    ],
)
def test_a_driver_that_does_not_work_is_told_from_one_without_a_gpu(tmp_path: Path, code: int, missing: str) -> None:
    write_driver(tmp_path, TWO, code=code)
    document = choose(tmp_path, "auto")
    assert document == {"gpus": [], "chosen": ["cpu", 0, None, f"auto: CPU, because {missing}"]}


def test_settings_of_a_gpu_are_refused_on_the_cpu() -> None:
    with pytest.raises(SettingsError, match="The setting device_id 1 and gpu_mem_limit 1048576 is for a GPU, but"):
        choose_device("cpu", GpuOptions(1, 2**20))
    # The batch that is measured is not such a setting.
    assert choose_device("cpu", GpuOptions(batch=64)).device == "cpu"


OPEN = """
import json, logging, sys
logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
from stablernn_registry import Registry
from stablernn_runtime import ServedModel
from stablernn_runtime.errors import ServingError
try:
    model = ServedModel.load(Registry(sys.argv[1]).get("animals:1"), sys.argv[2])
    print(model.engine, model.placement.device, model.placement.reason)
except ServingError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
@needs_provider
@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_cuda_libraries_that_do_not_load_are_noticed(tmp_path: Path, published: Published, device: str) -> None:
    # The driver reports a GPU, and the real provider of ONNX Runtime falls back to the CPU without an error.
    write_driver(tmp_path, TWO[:1])
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(published.root), device],
        env=environment(LD_LIBRARY_PATH=str(tmp_path)),
        capture_output=True,
        text=True,
        check=True,
    )
    if "could not load" not in done.stdout:
        pytest.skip("this machine has the CUDA libraries")
    lines = done.stdout.splitlines()
    if device == "cuda":
        assert lines[-1].startswith("DeviceError The device 'cuda' cannot be used: ONNX Runtime could not load libcu")
        return
    assert lines[0].startswith("animals:1 cannot be run by 'onnx' on cuda: The device 'cuda' cannot be used: ")
    assert lines[-1].startswith(
        "onnx cpu auto: CPU, because onnx cannot be used on cuda (ONNX Runtime could not load libcu"
    )
