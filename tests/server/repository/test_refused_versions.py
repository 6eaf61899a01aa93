"""What a server refuses to start with; tests/runtime has the versions that nothing opens."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort
import pytest

from published_models import Published, flip_byte, republished
from stablernn_registry import IntegrityError
from stablernn_server import DeviceError, ModelLoadError, ServerError, Settings, create_app

HAS_CUDA_DRIVER = Path("/proc/driver/nvidia/version").exists()


def test_a_flipped_byte_is_refused_before_a_port_is_open(published: Published, tmp_path: Path) -> None:
    registry = republished(published, tmp_path, lambda fields, files: None)
    # From now on this process knows the content as sound and opens it itself, so that the error has its cause.
    create_app(Settings(registry=registry.root))
    flip_byte(registry.get("animals").path("sequence.onnx"))
    with pytest.raises(
        ModelLoadError, match=r"^'animals:1' cannot be served: 'sequence\.onnx' of 'animals:1'"
    ) as caught:
        create_app(Settings(registry=registry.root))
    assert isinstance(caught.value, ServerError)
    assert isinstance(caught.value.__cause__, IntegrityError)


@pytest.mark.skipif(HAS_CUDA_DRIVER, reason="this machine has an NVIDIA driver")
def test_cuda_without_cuda_is_an_error_that_says_what_is_missing(published: Published) -> None:
    with pytest.raises(DeviceError) as caught:
        create_app(Settings(registry=published.root, models=("animals",), device="cuda"))
    if "CUDAExecutionProvider" in ort.get_available_providers():
        missing = "no NVIDIA driver was found on this machine"
    else:
        missing = f"this build of ONNX Runtime ({ort.__version__}) has no CUDA provider; install onnxruntime-gpu"
    assert str(caught.value) == f"The device 'cuda' cannot be used: {missing}. Use --device cpu or auto."


def test_an_empty_registry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError) as caught:
        create_app(Settings(registry=tmp_path))
    assert str(caught.value) == f"The registry {tmp_path} holds no models; publish one with 'stablernn export'."
