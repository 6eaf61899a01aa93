"""The TorchScript module: made without ``torch.jit.script``, which torch has deprecated, and for any length."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
import torch
from torch import Tensor

import stablernn as srn
from stablernn.errors import ExportError
from stablernn.export import torchscript
from stablernn.nn.models import SequenceModel, SequencePredictor

MODELS: dict[str, Callable[[], SequenceModel]] = {
    "last-step": lambda: srn.Classifier("lipschitz", 2, 3, 5),
    "every-step": lambda: SequencePredictor("gru", 2, 2, 5, output="real"),
    "patches-dt": lambda: srn.Classifier("lem", 2, 3, 5, max_dt=4.0, patch_size=4, patch_stride=3),
}


@pytest.fixture(params=list(MODELS))
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


@pytest.mark.filterwarnings("error")
def test_export_neither_calls_torch_jit_script_nor_warns(
    model: SequenceModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.jit, "script", refuse)
    monkeypatch.setattr(torch.jit, "script_method", refuse)
    torchscript.save(torchscript.script(model), tmp_path / "model.torchscript")
    assert (tmp_path / "model.torchscript").stat().st_size > 0


# TorchScript is deprecated as a whole; to load a module is what its users do.
@pytest.mark.filterwarnings("ignore:`torch.jit.load` is")
@pytest.mark.parametrize("steps", [1, 7, 40])
def test_a_saved_module_takes_any_batch_and_length(model: SequenceModel, steps: int, tmp_path: Path) -> None:
    torchscript.save(torchscript.script(model), tmp_path / "model.torchscript")
    loaded = torch.jit.load(str(tmp_path / "model.torchscript"))
    inputs = arguments(model, batch=3, steps=steps)
    expected, _ = model.run(inputs[0], dt=None if model.max_dt is None else inputs[1])
    outputs = dict(zip(model.output_names, loaded(*inputs), strict=False))
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name].numpy(), value.numpy(), rtol=1e-4, atol=1e-5)


def test_other_deprecations_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["last-step"]().eval().requires_grad_(False)
    transition = model.transition

    def deprecated(*inputs: object) -> object:
        warnings.warn("this cell goes away", DeprecationWarning, stacklevel=1)
        return transition(*inputs)

    monkeypatch.setattr(model, "transition", deprecated)
    with pytest.warns(DeprecationWarning, match="this cell goes away"):
        torchscript.script(model)


def test_a_torch_without_torchscript_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.jit, "trace_module")
    with pytest.raises(ExportError) as error:
        torchscript.script(MODELS["last-step"]().eval())
    assert str(error.value) == (
        f"torch {torch.__version__} no longer writes TorchScript; export to onnx alone, whose sequence.onnx takes "
        "the same inputs."
    )
