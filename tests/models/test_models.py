"""Whole models: steps against sequences, readouts, units, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import stablernn as srn
from stablernn.nn.models import READOUTS, SequenceModel
from stablernn.training.loop.losses import ClassifyObjective, ForecastObjective
from stablernn.training.loop.minibatches import Batch

WINDOW = {"standard": None, "window": 6, "context": 6}


def step_by_step(model: SequenceModel, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    state, weights = model.initial_state(len(x)), model.materialize()
    for sample in x.unbind(1):
        state = model.transition(weights, sample, state)
    return (*model.emit(state), *state)


MODELS: dict[str, Any] = {
    "classifier": lambda readout: srn.Classifier("lstm", 2, 3, 5, num_layers=2, readout=readout, mask_channel=True),
    "forecaster": lambda readout: srn.Forecaster(
        "lipschitz", 2, 4, 5, readout=readout, scaling="window", window=5, target_indices=[1, 0]
    ),
}


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("kind", MODELS)
def test_a_padded_batch_equals_each_sequence_step_by_step(kind: str, readout: str) -> None:
    model = MODELS[kind](readout).double().eval()
    x = torch.randn(4, 9, 2, dtype=torch.float64)
    x[torch.rand(x.shape) < 0.2] = torch.nan
    lengths = torch.tensor([9, 1, 4, 7])
    with torch.no_grad():
        outputs, state = model.run(x, lengths)
        for row, length in enumerate(lengths.tolist()):
            expected = step_by_step(model, x[row : row + 1, :length])
            for got, want in zip((*outputs.values(), *state), expected, strict=True):
                torch.testing.assert_close(got[row : row + 1], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("readout", READOUTS)
@pytest.mark.parametrize("kind", MODELS)
def test_a_sequence_in_two_parts_equals_the_whole(kind: str, readout: str) -> None:
    model = MODELS[kind](readout).double().eval()
    x = torch.randn(3, 12, 2, dtype=torch.float64)
    with torch.no_grad():
        whole, _ = model.run(x)
        _, state = model.run(x[:, :5])
        parts, _ = model.run(x[:, 5:], state=state)
    for name, want in whole.items():
        torch.testing.assert_close(parts[name], want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("scaling", ["standard", "window"])
def test_a_head_of_zeros_is_the_naive_forecast_of_the_right_channels(scaling: str) -> None:
    model = srn.Forecaster("gru", 3, 4, 5, target_indices=[2, 0], scaling=scaling, window=WINDOW[scaling])
    model.fit_scaling([np.random.default_rng(0).normal(50, 9, (40, 3))])
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.zero_()
    x = torch.randn(2, 10, 3) * 9 + 50
    torch.testing.assert_close(model(x), x[:, -1, [2, 0]][:, None].expand(2, 4, 2))


@pytest.mark.parametrize("scaling", WINDOW)
def test_forecasts_move_with_the_units_of_the_data(scaling: str) -> None:
    """The same series in other units, scaling fitted to each, gives the same forecast in those units."""
    generator = np.random.default_rng(0)
    train, x = generator.normal(size=(60, 1)), generator.normal(size=(2, 10, 1))
    forecasts = []
    for offset, factor in ((0.0, 1.0), (-40.0, 250.0)):
        torch.manual_seed(3)
        model = srn.Forecaster("lipschitz", 1, 4, 6, scaling=scaling, window=WINDOW[scaling]).double()
        model.fit_scaling([train * factor + offset])
        with torch.no_grad():
            forecasts.append((model(torch.from_numpy(x * factor + offset)) - offset) / factor)
    torch.testing.assert_close(forecasts[0], forecasts[1], rtol=1e-5, atol=1e-5)


def test_the_forecast_loss_is_the_mean_pinball_loss_over_observed_targets() -> None:
    model = srn.Forecaster("rnn", 1, 3, 4, quantiles=(0.2, 0.9)).double()
    model.fit_scaling([np.random.default_rng(0).normal(10, 4, (30, 1))])
    x, y = torch.randn(5, 7, 1).double() * 4 + 10, torch.randn(5, 3, 1).double() * 4 + 10
    y[0, 1] = torch.nan
    loss = ForecastObjective().loss(model, Batch(x, torch.full((5,), 7), y))

    outputs, _ = model.run(x)
    scale = float(model.scaling.scale)
    change, location, _ = model.changes(model.final_state(x))
    total, count = 0.0, 0
    for level, column in ((0.5, 0), (0.2, 1), (0.9, 2)):
        forecasts = (location + scale * change[:, 0, ..., column]).flatten().tolist()
        for forecast, truth in zip(forecasts, y.flatten().tolist(), strict=True):
            if truth == truth:
                error = (truth - forecast) / scale
                total += max(level * error, (level - 1) * error)
                count += 1
    assert float(loss.detach()) == pytest.approx(2 * total / count, rel=1e-9)
    assert outputs["mean"].shape == (5, 3, 1)


def test_a_soft_constraint_of_the_cell_reaches_the_loss() -> None:
    def loss(weight: float) -> float:
        torch.manual_seed(0)
        options = {"constraint": "soft", "divergence_weight": weight} if weight else {"constraint": "none"}
        model = srn.Classifier("lvf", 1, 2, 6, num_layers=2, cell_options=options)
        with torch.no_grad():
            for cell in model.rnn.cells:
                cell.weight_hh.copy_(torch.linspace(-1, 1, cell.weight_hh.numel()))
        batch = Batch(torch.ones(2, 5, 1), torch.tensor([5, 5]), torch.tensor([0, 1]))
        return float(ClassifyObjective().loss(model, batch).detach())

    free, light, heavy = loss(0.0), loss(1.0), loss(3.0)
    assert light > free
    assert heavy - free == pytest.approx(3 * (light - free), rel=1e-5)
