"""Why a GPU that was asked for is not there, and torch's settings while a run lasts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stablernn.errors import DeviceError
from stablernn.training.loop.device import pick_device, torch_settings

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")

OLD = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading "
    "and installing a new version from the URL: http://www.nvidia.com/Download/index.aspx"
)
"""What torch raises where the driver supports no CUDA version that it can use."""


def test_a_driver_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def init() -> None:
        raise RuntimeError(OLD)

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "init", init)
    with pytest.raises(DeviceError) as caught:
        pick_device("cuda")
    assert str(caught.value) == f"The device 'cuda' is not there: {OLD}. Allowed here are 'cpu' and 'auto'."


def test_auto_and_cpu_need_no_gpu() -> None:
    assert [pick_device(name).type for name in ("auto", "cpu")] == ["cpu", "cpu"]


def test_a_run_is_deterministic_without_filling_memory_first() -> None:
    deterministic: Any = torch.utils.deterministic
    assert deterministic.fill_uninitialized_memory
    with torch_settings(torch.device("cpu"), seed=0, threads=1):
        assert torch.are_deterministic_algorithms_enabled()
        assert not deterministic.fill_uninitialized_memory
    assert not torch.are_deterministic_algorithms_enabled()
    assert deterministic.fill_uninitialized_memory
