"""Missing values in a cell that takes them: what reaches it, what it makes of them, and the same in exported graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import stablernn as srn
from model_helpers import TRAINED
from stablernn.cells import cell_info
from stablernn.nn.models import SequenceModel

TAKING = [key for key in TRAINED if cell_info(key).cell.takes_missing]
taking = pytest.mark.parametrize("cell", TAKING)
every_scaling = pytest.mark.parametrize("options", [{}, {"scaling": "window", "window": 6}], ids=["standard", "window"])


def gappy(*shape: int, share: float = 0.4) -> Tensor:
    x = 5 + 3 * torch.randn(*shape)
    x[torch.rand(shape) < share] = torch.nan
    return x


def fitted(model: SequenceModel) -> SequenceModel:
    model.fit_scaling([np.random.default_rng(0).normal(5, 3, (200, model.input_size))])
    return model.eval()


def seen(model: SequenceModel, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """What the first layer's cell is given, ``(batch, time, features)``."""
    cell, given = model.rnn.cells[0], []
    original = cell.drive
    monkeypatch.setattr(cell, "drive", lambda value: given.append(value) or original(value))
    model.run(x)
    # Layers put time first.
    return given[0].transpose(0, 1)


@taking
@every_scaling
def test_the_cell_is_given_nan_where_a_value_is_missing_and_nowhere_else(
    cell: str, options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = gappy(3, 12, 2)
    given = seen(fitted(srn.Classifier(cell, 2, 3, 5, **options)), x, monkeypatch)
    assert torch.equal(torch.isnan(given), torch.isnan(x))
    # An engine that asks the cell for its drive, which the test records.
    other = seen(fitted(srn.Classifier("gru", 2, 3, 5, engine="loop", **options)), x, monkeypatch)
    assert torch.isfinite(other).all()
    assert torch.equal(given[~torch.isnan(x)], other[~torch.isnan(x)])


@taking
def test_a_mask_channel_is_one_more_feature_that_is_never_missing(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = gappy(3, 12, 2)
    given = seen(fitted(srn.Classifier(cell, 2, 3, 5, mask_channel=True)), x, monkeypatch)
    assert torch.equal(given[..., 2:], (~torch.isnan(x)).float())


@taking
@pytest.mark.parametrize("share", [0.3, 1.0], ids=["some", "all"])
@pytest.mark.parametrize("task", ["classify", "forecast"])
def test_outputs_and_gradients_are_finite_whatever_is_missing(cell: str, task: str, share: float) -> None:
    model = srn.Classifier(cell, 2, 3, 5, num_layers=2) if task == "classify" else srn.Forecaster(cell, 2, 4, 5)
    fitted(model)
    x = gappy(4, 12, 2, share=share)
    x[0] = torch.nan
    outputs, _ = model.run(x, torch.tensor([12, 1, 7, 3]))
    sum(value.square().sum() for value in outputs.values()).backward()
    assert all(torch.isfinite(value).all() for value in outputs.values())
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@taking
@every_scaling
def test_a_stream_equals_the_sequence(cell: str, options: dict[str, object]) -> None:
    model = fitted(srn.Classifier(cell, 2, 3, 5, num_layers=2, max_dt=4.0, **options)).double()
    x, dt = gappy(3, 9, 2).double(), 4 * torch.rand(3, 9, dtype=torch.float64)
    with torch.no_grad():
        _, expected = model.run(x, dt=dt)
        state, weights = model.initial_state(3), model.materialize()
        for step in range(9):
            state = model.transition(weights, x[:, step], state, dt[:, step])
    for got, want in zip(state, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_a_first_layer_that_imputes_nothing_gets_missing_values_filled_in() -> None:
    model = srn.Classifier("gru_d", 2, 3, 8, cell_options={"imputation": "none"})
    x = torch.randn(4, 20, 2)
    x[:, 5:9] = torch.nan
    assert torch.isfinite(model(x)).all()
