from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from forecast_helpers import Sums, many_series
from stablernn.certificates.certificate import certify
from stablernn.certificates.projection import is_projected, project
from stablernn.data import ForecastData
from stablernn.nn.models import Forecaster
from stablernn.training import TorchPredictor
from stablernn.training.evaluation.backtest import HORIZONS, soak


def toy(count: int = 2, channels: int = 2, **changes: object) -> ForecastData:
    random = np.random.default_rng(0)
    return many_series([5 + random.normal(size=(30, channels)) for _ in range(count)], **changes)


def spread(data: ForecastData, target: int = 0) -> tuple[np.ndarray, np.ndarray]:
    parts = np.stack([values[:, target] for values in data.training_values()]).astype(np.float64)
    return parts.mean(axis=1), parts.std(axis=1)


def test_forecasts_are_fed_back_and_other_channels_are_held() -> None:
    data = toy(1)
    data.series[0].values[27, 1] = np.nan
    predictor = Sums(gain=0.5)
    soak(predictor, data)
    assert len(predictor.inputs) == HORIZONS
    first, last = data.series[0].values[24:28], data.series[0].values[26, 1]
    assert [x.shape for x in predictor.inputs] == [(1, 4 + 2 * number, 2) for number in range(HORIZONS)]
    assert all(np.array_equal(x[0, :4], first, equal_nan=True) for x in predictor.inputs)
    np.testing.assert_allclose(predictor.inputs[-1][0, 4:, 0], first[-1, 0] * 0.5 ** np.arange(1, 19), rtol=1e-6)
    assert (predictor.inputs[-1][0, 4:, 1] == last).all()


def test_a_run_that_dies_out_is_bounded() -> None:
    data = toy()
    got = soak(Sums(gain=0.9), data)
    mean, deviation = spread(data)
    starts = np.array([series.values[27, 0] for series in data.series])
    values = starts[:, None] * 0.9 ** np.arange(1, 21)
    away = np.abs(values - mean[:, None]) / deviation[:, None]
    assert got["largest"] == pytest.approx(away.max(), rel=1e-5)
    assert got["envelope"] == pytest.approx([part.max() for part in np.split(away, 10, axis=1)], rel=1e-5)
    assert got["growth"] == pytest.approx(got["envelope"][-1] / got["envelope"][0])
    assert (got["series"], got["steps"], got["without_spread"], got["bound"]) == (2, 20, 0, None)
    assert got["diverged_at"] is None


class Explodes(Sums):
    """Answers NaN, or refuses, after the third run."""

    def __init__(self, error: bool) -> None:
        super().__init__()
        self.error = error

    def run_sequence(self, *given, **further):
        outputs = super().run_sequence(*given, **further)
        if len(self.inputs) == 3:
            if self.error:
                raise ValueError("not finite")
            outputs["mean"] = np.full_like(outputs["mean"], np.nan)
        return outputs


@pytest.mark.parametrize("error", [True, False], ids=["refused", "not finite"])
def test_a_run_that_ends_has_diverged_where_it_ends(error: bool) -> None:
    got = soak(Explodes(error), toy())
    assert got["diverged_at"] == 5
    assert not got["bounded"]
    assert got["largest"] == math.inf
    assert len(got["state_norms"]["sum"]) == (2 if error else 3)


def test_a_series_without_spread_is_counted_and_left_out() -> None:
    data = toy(2, 1)
    data.series[0].values[:] = 7
    got = soak(Sums(gain=1.0), data)
    assert got["without_spread"] == 1
    alone = soak(Sums(gain=1.0), replace(data, series=data.series[1:]))
    assert got["largest"] == alone["largest"]
    data.series[1].values[:] = 7
    nothing = soak(Sums(gain=1.0), data)
    assert math.isnan(nothing["largest"])
    assert nothing["bounded"]


@pytest.mark.parametrize(("cell", "scale"), [("rnn", 1.0), ("lipschitz", 30.0), ("gru", 30.0), ("cornn", 30.0)])
def test_no_state_is_seen_beyond_what_is_proved_of_it(cell: str, scale: float) -> None:
    data = toy(3)
    torch.manual_seed(0)
    model = Forecaster(cell, 2, 2, 4, num_layers=2).eval()
    model.fit_scaling(data.training_values())
    with torch.no_grad():
        # Inputs that drive the states as far as they go.
        for name, weight in model.named_parameters():
            if "weight_ih" in name:
                weight.mul_(scale)
    for layer in model.rnn.cells:
        if is_projected(layer):
            project(layer, margin=0.1)
    certificate = certify(model).document()
    assert certificate["kind"] == ("contracting" if cell in ("rnn", "lipschitz") else "bounded")
    got = soak(TorchPredictor(model), data, certificate=certificate)
    assert got["bound_reason"] is None
    assert set(got["bound"]) == {role for role, _ in model.state_roles() if role.startswith("layer")}
    for role, limit in got["bound"].items():
        seen = max(got["state_norms"][role])
        assert seen <= limit * (1 + 1e-5), role
        # Not a bound that anything would keep: the least share here is 0.22.
        assert seen > 0.1 * limit, role


def test_where_no_ball_is_proved_the_reason_is_told() -> None:
    data = toy()
    model = Forecaster("unicornn", 2, 2, 4).eval()
    model.fit_scaling(data.training_values())
    got = soak(TorchPredictor(model), data, certificate=certify(model).document())
    reason = "the certificate, of kind 'none', has no ball in which a state stays"
    assert (got["bound"], got["bound_reason"]) == (None, reason)
    assert soak(TorchPredictor(model), data)["bound_reason"] == "no certificate was given"


class Listening(TorchPredictor):
    """Keeps the forecasts of each horizon."""

    def __init__(self, model: Forecaster) -> None:
        super().__init__(model)
        self.means: list[np.ndarray] = []

    def run_sequence(self, *given, **further):
        outputs = super().run_sequence(*given, **further)
        self.means.append(outputs["mean"])
        return outputs


@pytest.mark.parametrize(
    ("horizon", "stride", "context"), [(5, 3, 50), (2, 3, 48), (1, 7, 50)], ids=["remainder", "longer", "much longer"]
)
def test_a_seasonal_copy_runs_in_its_cycle_whatever_the_stride(horizon: int, stride: int, context: int) -> None:
    wave = 10 + 5 * np.sin(2 * np.pi * np.arange(300 + 10 * horizon) / 24)
    settings = {"horizon": horizon, "context_length": context, "test_steps": 24, "validation_steps": 24}
    data = many_series([wave[:300, None]], **settings)
    model = Forecaster("gru", 1, horizon, 4, scaling="context", window=48, season=24, skip="linear", patch_size=stride)
    model.fit_scaling(data.training_values())
    assert model.skip is not None
    with torch.no_grad():
        for step in range(horizon):
            model.skip.weight[step, 48 - 24 + step] = 1
    predictor = Listening(model)
    report = soak(predictor, data)
    got = np.concatenate(predictor.means, axis=1)[0, :, 0]
    np.testing.assert_allclose(got, wave[300 - horizon : 300 + 9 * horizon], atol=1e-4)
    assert report["bounded"]


def test_a_soak_is_what_a_carried_state_gives_where_the_horizon_is_whole_patches() -> None:
    data = toy(horizon=4, context_length=6)
    torch.manual_seed(0)
    model = Forecaster("gru", 2, 4, 5, scaling="window", window=6, patch_size=3, patch_stride=2, readout="all")
    model.fit_scaling(data.training_values())
    predictor = Listening(model)
    norms = soak(predictor, data)["state_norms"]
    alone, state = TorchPredictor(model), None
    x = np.stack([series.values[20:26] for series in data.series])
    held = x[:, -1:].repeat(4, axis=1)
    for number, mean in enumerate(predictor.means):
        outputs = alone.run_sequence(x, None, state)
        np.testing.assert_allclose(outputs["mean"], mean, rtol=1e-5)
        state = alone.next_state(outputs)
        for name in alone.states:
            assert norms[name.role][number] == pytest.approx(np.linalg.norm(state[name.input], axis=1).max(), rel=1e-5)
        x = held.copy()
        x[:, :, 0] = mean[:, :, 0]


def dated(hours: np.ndarray, **changes: object) -> ForecastData:
    """A target between the two channels of a calendar of days."""
    ds = np.datetime64("2026-01-01", "ns") + hours.astype("timedelta64[h]")
    random = np.random.default_rng(0).normal(size=len(ds))
    values = np.stack([np.sin(hours / 24 * 2 * np.pi), random, np.cos(hours / 24 * 2 * np.pi)], axis=1)
    made = ("calendar_day_sin", "calendar_day_cos")
    data = many_series([values], targets=("c1",), future=made, calendar=("day",), **changes)
    return replace(data, channels=(made[0], "c1", made[1]), series=(replace(data.series[0], ds=ds),))


@pytest.mark.parametrize(
    ("hours", "changes", "later"),
    [
        (np.arange(30), {"frequency": "h"}, 28 + np.arange(20)),
        (np.cumsum([1, 2, 5, 2, 2, 2] * 5), {"frequency": None, "time_step": 1800.0}, 66 + np.arange(1, 21) / 2),
    ],
    ids=["hours", "the model's step"],
)
def test_the_calendar_goes_on_beyond_the_data(hours: np.ndarray, changes: dict, later: np.ndarray) -> None:
    data = dated(hours, **changes)
    if "time_step" in changes:
        data = data.with_time_step(1800.0)
    predictor = Sums(gain=0.9, targets=(1,))
    soak(predictor, data)
    waves = np.stack([np.sin(later / 24 * 2 * np.pi), np.cos(later / 24 * 2 * np.pi)], axis=1)
    ahead = np.concatenate([inputs["future"][0] for inputs in predictor.optional_inputs])
    np.testing.assert_allclose(ahead, waves, atol=1e-6)
    np.testing.assert_allclose(predictor.inputs[-1][0, 4:, [0, 2]].T, waves[:-2], atol=1e-6)
    np.testing.assert_array_equal(predictor.inputs[-1][0, :4], data.series[0].values[24:28])
    if "time_step" in changes:
        assert predictor.optional_inputs[-1]["dt"].tolist() == [[1, 4, 10, 4, *[1] * 18]]
