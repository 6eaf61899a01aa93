"""Layers of torch.nn with trained weights: same outputs, then everything that models of this library have."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stablernn as srn
from exports import exported
from stablernn.certificates.certified_radius import certified_radii
from stablernn.errors import CertificateError, ConfigError
from stablernn.nn.models import build_model

LAYERS: dict[str, Any] = {
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
}
TOLERANCES = {torch.float32: 1e-6, torch.float64: 1e-12}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch-first", "time-first"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("num_layers", [1, 3], ids=["1-layer", "3-layers"])
@pytest.mark.parametrize("kind", LAYERS)
def test_layers_have_the_outputs_of_torch(
    kind: str, num_layers: int, bias: bool, batch_first: bool, dtype: torch.dtype
) -> None:
    layer, options = LAYERS[kind]
    module = layer(3, 7, num_layers, bias=bias, batch_first=batch_first, dtype=dtype, **options)
    x = torch.randn((2, 31, 3) if batch_first else (31, 2, 3), dtype=dtype)
    hidden = torch.randn(num_layers, 2, 7, dtype=dtype)
    state = (hidden, torch.randn_like(hidden)) if kind == "lstm" else hidden

    outputs, last = srn.from_torch(module)(x, state)
    expected, expected_last = module(x, state)
    torch.testing.assert_close(outputs, expected, rtol=0, atol=TOLERANCES[dtype])
    torch.testing.assert_close(last, expected_last, rtol=0, atol=TOLERANCES[dtype])


@pytest.mark.parametrize("kind", LAYERS)
def test_a_classifier_has_the_logits_of_torch(kind: str) -> None:
    layer, options = LAYERS[kind]
    module, head = layer(2, 6, 2, dropout=0.3, batch_first=True, **options).eval(), nn.Linear(6, 3, bias=False)
    model = srn.from_torch(module, head, task="classify")
    assert isinstance(model, srn.Classifier)
    assert (model.training, model.rnn.first.dropout) == (False, 0.3)
    x = torch.randn(4, 25, 2)
    torch.testing.assert_close(model(x), head(module(x)[0][:, -1]), rtol=0, atol=1e-6)


def test_a_regression_of_the_last_state_is_the_last_output_of_a_predictor() -> None:
    module, head = nn.GRU(2, 6, dtype=torch.float64), nn.Linear(6, 3, dtype=torch.float64)
    model = srn.from_torch(module, head, task="predict-next")
    assert isinstance(model, srn.SequencePredictor)
    x = torch.randn(4, 25, 2, dtype=torch.float64)
    # The module reads (time, batch, features).
    torch.testing.assert_close(model(x), head(module(x.transpose(0, 1))[0]).transpose(0, 1), rtol=0, atol=1e-12)


def test_a_forecaster_has_the_values_of_torch_in_raw_units(tmp_path: Path) -> None:
    module, head = nn.LSTM(3, 6, batch_first=True), nn.Linear(6, 8)
    mean, scale = torch.tensor([100.0, -3.0, 0.5]), torch.tensor([20.0, 0.1, 4.0])
    model = srn.from_torch(
        module, head, task="forecast", horizon=4, target_indices=(2, 0), mean=mean.tolist(), scale=scale.tolist()
    )
    assert isinstance(model, srn.Forecaster)
    x = mean + scale * torch.randn(5, 25, 3)
    scaled: Tensor = head(module((x - mean) / scale)[0][:, -1]).reshape(5, 4, 2)
    torch.testing.assert_close(model(x), mean[[2, 0]] + scale[[2, 0]] * scaled, rtol=1e-6, atol=1e-5)
    again = build_model(model.config())
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(x), model(x), rtol=0, atol=0)
    assert exported(model, tmp_path).parity["stream_equals_sequence"]


@pytest.mark.parametrize(
    "task", ["forecast", *(pytest.param(task, marks=pytest.mark.slow) for task in ("classify", "predict-next"))]
)
def test_a_sequential_head_has_the_outputs_of_torch(task: Any, tmp_path: Path) -> None:
    module = nn.LSTM(2, 6, batch_first=True).eval()
    inner = nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(inplace=True))
    head = nn.Sequential(nn.Dropout(0.5), inner, nn.LeakyReLU(), nn.Linear(5, 7), nn.GELU(), nn.Linear(7, 4)).eval()
    model = srn.from_torch(module, head, task=task, horizon=4 if task == "forecast" else None).eval()
    x = torch.randn(4, 25, 2)
    expected: Tensor = head(module(x)[0])
    if task != "predict-next":
        expected = expected[:, -1]
    torch.testing.assert_close(model(x).reshape(expected.shape), expected, rtol=0, atol=1e-6)
    again = build_model(model.config())
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again.eval()(x), model(x), rtol=0, atol=0)
    assert exported(model, tmp_path).parity["stream_equals_sequence"]


def test_no_radius_is_certified_through_layers_in_front_of_the_head() -> None:
    module, layers = nn.RNN(1, 4, batch_first=True), (nn.Linear(4, 4), nn.Tanh())
    with torch.no_grad():
        module.weight_hh_l0.mul_(0.1)
    radii = []
    for head in (nn.Linear(4, 2), nn.Sequential(*layers, nn.Linear(4, 2))):
        model = srn.from_torch(module, head, task="classify").eval()
        assert isinstance(model, srn.Classifier)
        with contextlib.suppress(CertificateError):
            radii.append(certified_radii(model, torch.zeros(1, 9, 1)))
    # The weights of the last map alone would be a radius of another function.
    assert len(radii) == 1


def test_an_imported_layer_goes_on_training() -> None:
    module = nn.LSTM(2, 4, batch_first=True)
    layer = srn.from_torch(module)
    layer(torch.randn(3, 9, 2))[0].sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    # A copy: the module keeps its weights.
    with torch.no_grad():
        layer.cells[0].get_parameter("weight_hh").zero_()
    assert bool(module.weight_hh_l0.any())


Case = tuple[Any, dict[str, Any], str]
LINEAR = nn.Linear(4, 6)
REFUSED: dict[str, Case] = {
    "another module": (nn.Linear(3, 4), {}, "from_torch takes torch.nn.LSTM, GRU or RNN, got Linear."),
    "a cell": (
        nn.LSTMCell(3, 4),
        {},
        "got torch.nn.LSTMCell, which is a single step; copy its weights into torch.nn.LSTM",
    ),
    "bidirectional": (nn.LSTM(3, 4, bidirectional=True), {}, "got bidirectional=True"),
    "projections": (nn.LSTM(3, 4, proj_size=2), {}, "got proj_size=2"),
    "half": (nn.GRU(3, 4).half(), {}, "takes weights in float32 or float64, got torch.float16. Convert with .float()"),
    "bfloat16": (nn.RNN(3, 4).bfloat16(), {}, "got torch.bfloat16"),
    "two dtypes": (nn.GRU(3, 4), {"head": nn.Linear(4, 2).double(), "task": "classify"}, "float32 and torch.float64"),
    "an activation alone": (nn.GRU(3, 4), {"head": nn.ReLU()}, "The head must end with a torch.nn.Linear"),
    "probabilities": (
        nn.GRU(3, 4),
        {"head": nn.Sequential(nn.Linear(4, 2), nn.Softmax(1))},
        "got Softmax(dim=1). Pass head=None",
    ),
    "an activation with options": (
        nn.GRU(3, 4),
        {"head": nn.Sequential(nn.LeakyReLU(0.3), nn.Linear(4, 2))},
        "got LeakyReLU(negative_slope=0.3)",
    ),
    "maps that do not fit": (
        nn.GRU(3, 4),
        {"head": nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(5, 2)), "task": "classify"},
        "The head must take the 3 outputs of the Linear before it, got a Linear of 5 inputs.",
    ),
    "a head of another size": (
        nn.GRU(3, 5),
        {"head": LINEAR, "task": "classify"},
        "The head must take the 5 outputs of the last layer, got a Linear of 4 inputs.",
    ),
    "no task": (nn.GRU(3, 4), {"head": LINEAR}, "one of classify, forecast, predict-next, got None."),
    "an unknown task": (nn.GRU(3, 4), {"head": LINEAR, "task": "clasify"}, "Did you mean 'classify'?"),
    "a task without head": (nn.GRU(3, 4), {"task": "classify"}, "which needs a head, got task='classify' without one."),
    "one class": (nn.GRU(3, 4), {"head": nn.Linear(4, 1), "task": "classify"}, "2 or more classes, got a head of 1"),
    "no horizon": (nn.GRU(3, 4), {"head": LINEAR, "task": "forecast"}, "got horizon=None for task='forecast'."),
    "a horizon of classes": (nn.GRU(3, 4), {"head": LINEAR, "task": "classify", "horizon": 2}, "got horizon=2"),
    "another horizon": (
        nn.GRU(3, 4),
        {"head": LINEAR, "task": "forecast", "horizon": 5},
        "A head for 5 steps of 1 targets has 5 outputs, got 6.",
    ),
    "a mean alone": (nn.GRU(1, 4), {"head": LINEAR, "task": "classify", "mean": [0.0]}, "mean and scale go together"),
    "a short mean": (
        nn.GRU(3, 4),
        {"head": LINEAR, "task": "classify", "mean": [0.0], "scale": [1.0] * 3},
        "mean has a number for each of the 3 features of the module, got 1.",
    ),
    "a scale of zero": (
        nn.GRU(1, 4),
        {"head": LINEAR, "task": "classify", "mean": [0.0], "scale": [0.0]},
        "scale greater than 0, got [0.0] and [0.0].",
    ),
}


@pytest.mark.parametrize(("module", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_by_name(module: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        srn.from_torch(module, **options)


def test_weights_that_are_not_finite_are_refused() -> None:
    module = nn.GRU(3, 4)
    with torch.no_grad():
        module.weight_hh_l0[0, 0] = torch.nan
    with pytest.raises(ConfigError, match="The weights of the module are not all finite numbers"):
        srn.from_torch(module)
