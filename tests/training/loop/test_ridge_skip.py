"""What of a forecaster is solved for: the linear skip, and the gate between it and the layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from forecast_helpers import many_series
from stablernn.data import ForecastData
from stablernn.data.types import LinearForecast
from stablernn.nn.models import Forecaster
from stablernn.training.loop.linear_forecast import fit_forecaster, gate, set_share

CONTEXT, HORIZON = 12, 2


def recurrence(steps: int = 400, *, noise: float = 0.02, **changes: Any) -> ForecastData:
    """A series of which each value is a linear map of the two before, all but a little noise."""
    random = np.random.default_rng(0)
    values = np.zeros(steps)
    values[:2] = random.normal(size=2)
    for step in range(2, steps):
        values[step] = 1.8 * values[step - 1] - 0.99 * values[step - 2] + noise * random.normal()
    given = {"context_length": CONTEXT, "horizon": HORIZON, "validation_steps": 80, "test_steps": 40}
    return many_series([10 + values[:, None]], **(given | changes))


def built(data: ForecastData, **options: Any) -> Forecaster:
    given: dict[str, Any] = {"scaling": "context", "window": CONTEXT, "skip": "linear", "members": 2}
    model = Forecaster(
        "rnn",
        len(data.channels),
        data.horizon,
        6,
        target_indices=data.target_indices,
        future_indices=data.future_indices,
        **(given | options),
    )
    model.fit_scaling(data.training_values())
    return model.eval()


def answers(model: Forecaster, data: ForecastData, split: str = "test") -> tuple[torch.Tensor, torch.Tensor]:
    samples = data.windows(split).gather(range(len(data.windows(split))))
    known = {} if samples.future is None else {"future": torch.from_numpy(samples.future)}
    with torch.no_grad():
        found, _ = model.run(torch.from_numpy(samples.x), **known)
    return found["mean"], found["quantiles"]


def error(model: Forecaster, data: ForecastData, split: str = "validation") -> float:
    windows = data.windows(split)
    truth = torch.from_numpy(windows.truth(range(len(windows))))
    return float((answers(model, data, split)[0] - truth).abs().mean())


def moved(model: Forecaster, seed: int, *, head: float = 0.0, skip: float = 0.0) -> None:
    """What training could have done."""
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        layers = [*model.head.parameters(), *(model.known.parameters() if model.known is not None else [])]
        for parameter in layers:
            parameter += head * torch.randn(parameter.shape, generator=random)
        assert model.skip is not None
        model.skip.weight += skip * torch.randn(model.skip.weight.shape, generator=random)


def fitted(data: ForecastData, **options: Any) -> tuple[Forecaster, torch.Tensor]:
    model = built(data, **options)
    fit_forecaster(model, data, LinearForecast(CONTEXT, strength=1e-7))
    assert model.skip is not None
    return model, model.skip.weight.detach().clone()


def test_half_a_step_too_far_is_taken_back() -> None:
    data = recurrence(noise=0.001)
    model, right = fitted(data)
    way = 0.3 * torch.randn(right.shape)
    assert model.skip is not None
    with torch.no_grad():
        model.skip.weight.copy_(right + 0.5 * way)
    assert gate(model, right - 0.5 * way, data.windows("validation")).share == pytest.approx(0.5)
    torch.testing.assert_close(model.skip.weight, right)


def with_future(data: ForecastData) -> ForecastData:
    known = np.random.default_rng(1).normal(size=len(data.series[0].values))
    values = np.stack([data.series[0].values[:, 0], known], axis=1)
    return many_series(
        [values],
        **{key: getattr(data, key) for key in ("context_length", "horizon", "validation_steps", "test_steps")},
        future=("c1",),
    )


@pytest.mark.parametrize("future", [False, True])
@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("share", [0.0, 0.35, 1.0])
def test_the_weights_hold_the_blended_forecast(share: float, members: int, future: bool) -> None:
    data = with_future(recurrence()) if future else recurrence()
    model, start = fitted(data, members=members)
    first = answers(model, data)[0]
    moved(model, 2, head=0.2, skip=0.1)
    whole, spread = answers(model, data)
    assert not torch.allclose(whole, first)
    assert model.skip is not None
    set_share(model, start, model.skip.weight.detach().clone(), share)
    mean, quantiles = answers(model, data)
    torch.testing.assert_close(mean, first + share * (whole - first), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(quantiles - mean[..., None], spread - whole[..., None], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_a_gate_is_no_worse_than_either_end(seed: int) -> None:
    data = recurrence(noise=0.3)
    model, start = fitted(data)
    first = error(model, data)
    moved(model, seed, head=0.3, skip=0.05)
    trained = error(model, data)
    share = gate(model, start, data.windows("validation")).share
    # One series: errors in units of the scaling differ from those of the data by the spread of each window alone.
    assert error(model, data) <= 1.02 * min(first, trained)
    assert 0 <= share <= 1


@pytest.mark.parametrize("seed", range(6))
def test_layers_are_kept_only_where_their_gain_exceeds_its_standard_error(seed: int) -> None:
    data = recurrence(noise=0.3)
    model, start = fitted(data)
    moved(model, seed, head=0.02, skip=0.02)
    found = gate(model, start, data.windows("validation"))
    assert found.standard_error is not None
    assert (found.share > 0) is (found.skip_error - found.layers_error > found.standard_error)
    assert found.windows == len(data.windows("validation"))
