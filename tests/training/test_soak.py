from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from forecast_helpers import Sums, many_series
from stablernn.data import ForecastData
from stablernn.errors import ConfigError, DataError
from stablernn.models import Forecaster
from stablernn.training import TorchPredictor
from stablernn.training.soak import HORIZONS, MOST_SERIES, soak


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
    np.testing.assert_array_equal(predictor.inputs[0][0], first)
    expected = first[-1, 0] * 0.5 ** np.arange(1, 3)
    np.testing.assert_allclose(predictor.inputs[1][0, :, 0], expected, rtol=1e-6)
    np.testing.assert_allclose(predictor.inputs[2][0, :, 0], expected / 4, rtol=1e-6)
    assert all((x[0, :, 1] == last).all() for x in predictor.inputs[1:])


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


def test_a_constant_run_neither_grows_nor_diverges() -> None:
    got = soak(Sums(gain=1.0), toy())
    assert got["growth"] == pytest.approx(1)
    assert got["bounded"]
    assert not got["still_growing"]
    assert got["state_norms"]["last"] == pytest.approx(got["state_norms"]["last"][:1] * 10)


def test_a_run_that_grows_is_not_bounded_and_the_step_is_told() -> None:
    data = toy()
    got = soak(Sums(gain=1.5), data)
    mean, deviation = spread(data)
    values = np.stack([series.values[27, 0] for series in data.series])[:, None] * 1.5 ** np.arange(1, 21)
    away = (np.abs(values - mean[:, None]) / deviation[:, None]).max(axis=0)
    assert got["diverged_at"] == int(np.argmax(away > 100)) + 1
    assert not got["bounded"]
    assert got["still_growing"]
    assert got["growth"] > 100


def test_slow_growth_is_told_though_it_is_within_bounds() -> None:
    data = many_series([np.sin(np.arange(60.0))[:, None] + 3])
    got = soak(Sums(gain=1.02), data)
    assert got["still_growing"]
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


def test_a_first_run_that_is_refused_is_an_error() -> None:
    class Refuses(Sums):
        def run_sequence(self, *given, **further):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        soak(Refuses(), toy())


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


def test_of_many_series_some_are_run() -> None:
    predictor = Sums()
    assert soak(predictor, toy(MOST_SERIES + 40, 1))["series"] == MOST_SERIES


def test_batches_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    import stablernn.training.soak as module

    whole = soak(Sums(gain=0.8), toy(5))
    monkeypatch.setattr(module, "BATCH_SIZE", 2)
    assert soak(Sums(gain=0.8), toy(5)) == whole


def test_a_model_by_torch() -> None:
    data = toy()
    torch.manual_seed(0)
    model = Forecaster("gru", 2, 2, 4)
    model.fit_scaling(data.training_values())
    got = soak(TorchPredictor(model), data)
    assert set(got["state_norms"]) == {role for role, _ in model.state_roles()}
    assert all(len(norms) == HORIZONS for norms in got["state_norms"].values())


def test_covariates_known_in_advance_are_not_known_beyond_the_data() -> None:
    with pytest.raises(ConfigError) as caught:
        soak(Sums(), toy(1, future=("c1",)))
    assert str(caught.value) == (
        "A soak goes beyond the data, where the covariates of 'toy' that are known in advance (c1) have no values. "
        "Train without them to soak."
    )


def test_an_empty_split_cannot_be_soaked() -> None:
    with pytest.raises(DataError) as caught:
        soak(Sums(), toy(test_steps=1))
    assert str(caught.value) == "The split 'test' of 'toy' is empty. Choose another split."
