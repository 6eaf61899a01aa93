"""The TorchScript module: made without ``torch.jit.script``, which torch has deprecated, and for any length."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor

import stablernn as srn
from stablernn.export import torchscript
from stablernn.nn.models import SequenceModel, SequencePredictor

MODELS: dict[str, Callable[[], SequenceModel]] = {
    "last-step": lambda: srn.Classifier("lipschitz", 2, 3, 5),
    "every-step": lambda: SequencePredictor("gru", 2, 2, 5, output="real"),
    "patches-dt": lambda: srn.Classifier("lem", 2, 3, 5, max_dt=4.0, patch_size=4, patch_stride=3),
}


@pytest.fixture(params=["patches-dt", *(pytest.param(name, marks=pytest.mark.slow) for name in list(MODELS)[:2])])
def model(request: pytest.FixtureRequest) -> SequenceModel:
    return MODELS[request.param]().eval().requires_grad_(False)


def arguments(model: SequenceModel, batch: int, steps: int) -> list[Tensor]:
    """Return inputs, lengths and states, in the order of ``sequence.onnx``."""
    generator = torch.Generator().manual_seed(steps)
    x = torch.randn(batch, steps, 2, generator=generator)
    times = [] if model.max_dt is None else [torch.ones(batch, steps)]
    return [x, *times, torch.full((batch,), steps), *model.initial_state(batch)]


def refuse(*arguments: object, **options: object) -> NoReturn:
    raise AssertionError("torch.jit.script was called")


# TorchScript is deprecated as a whole; to load a module is what its users do.
@pytest.mark.filterwarnings("ignore:`torch.jit.load` is")
@pytest.mark.filterwarnings("error")
def test_a_module_is_saved_without_torch_jit_script_for_any_batch_and_length(
    model: SequenceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.jit, "script", refuse)
    monkeypatch.setattr(torch.jit, "script_method", refuse)
    torchscript.save(torchscript.script(model), tmp_path / "model.torchscript")
    loaded = torch.jit.load(str(tmp_path / "model.torchscript"))
    for steps in (1, 7, 40):
        inputs = arguments(model, batch=3, steps=steps)
        expected, _ = model.run(inputs[0], dt=None if model.max_dt is None else inputs[1])
        outputs = dict(zip(model.output_names, loaded(*inputs), strict=False))
        for name, value in expected.items():
            np.testing.assert_allclose(outputs[name].numpy(), value.numpy(), rtol=1e-4, atol=1e-5)
