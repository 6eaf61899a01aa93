"""Our figures are those of ``utilsforecast``; where a definition differs, the exact relation of the two."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import utilsforecast.losses as oracle

from stablernn.training.evaluation.metrics import forecast_metrics, quantile_metrics, seasonal_scale

LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)
SERIES, HORIZON, TRAIN, SEASON = 4, 6, 30, 5


class Case:
    """Four series with one window each, in our shapes and as data frames."""

    def __init__(self, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.train = random.normal(size=(SERIES, TRAIN)).cumsum(axis=1)
        self.truth = random.normal(size=(SERIES, HORIZON, 1)) * np.array([1, 5, 20, 0.1])[:, None, None]
        self.mean = self.truth + random.normal(size=self.truth.shape)
        self.quantiles = np.sort(self.mean[..., None] + random.normal(size=(*self.truth.shape, len(LEVELS))), axis=-1)
        self.scale = np.stack([seasonal_scale(values[:, None], SEASON) for values in self.train])

    def frame(self) -> pd.DataFrame:
        columns = {f"q{level:g}": self.quantiles[..., number].ravel() for number, level in enumerate(LEVELS)}
        return pd.DataFrame(
            {
                "unique_id": np.repeat(np.arange(SERIES), HORIZON),
                "ds": np.tile(np.arange(TRAIN, TRAIN + HORIZON), SERIES),
                "y": self.truth.ravel(),
                "model": self.mean.ravel(),
                "model-lo-80": columns["q0.1"],
                "model-hi-80": columns["q0.9"],
                **columns,
            }
        )

    def train_frame(self) -> pd.DataFrame:
        return pd.DataFrame(
            {
                "unique_id": np.repeat(np.arange(SERIES), TRAIN),
                "ds": np.tile(np.arange(TRAIN), SERIES),
                "y": self.train.ravel(),
            }
        )

    def ours(self, *series: int) -> dict[str, float]:
        chosen = list(series or range(SERIES))
        points = forecast_metrics(
            self.mean[chosen], self.truth[chosen], scale=self.scale[chosen], series=np.arange(len(chosen))
        )
        return points | quantile_metrics(self.quantiles[chosen], self.truth[chosen], LEVELS)


MODELS = {"model": [f"q{level:g}" for level in LEVELS]}
FIGURES: dict[str, Callable[[Case], pd.DataFrame]] = {
    "mae": lambda case: oracle.mae(case.frame(), ["model"]),
    "mse": lambda case: oracle.mse(case.frame(), ["model"]),
    "rmse": lambda case: oracle.rmse(case.frame(), ["model"]),
    "wape": lambda case: oracle.wape(case.frame(), ["model"]),
    "smape": lambda case: oracle.smape(case.frame(), ["model"]),
    "mase": lambda case: oracle.mase(case.frame(), ["model"], SEASON, case.train_frame()),
    "pinball_0.1": lambda case: oracle.quantile_loss(case.frame(), {"model": "q0.1"}, q=0.1),
    "pinball_0.75": lambda case: oracle.quantile_loss(case.frame(), {"model": "q0.75"}, q=0.75),
    "crps": lambda case: oracle.mqloss(case.frame(), MODELS, np.array(LEVELS)),
    "coverage_0.8": lambda case: oracle.coverage(case.frame(), ["model"], 80),
    # The Winkler score of a truth inside of the interval, where it has no penalty.
    "width_0.8": lambda case: oracle.winkler_score(case.frame().assign(y=case.frame()["model-lo-80"]), ["model"], 80),
}
# Theirs divides by |y| + |f|, ours by the mean of the two, as the M competitions do; CRPS is twice the pinball loss.
FACTORS = {"smape": 2, "crps": 2}


@pytest.mark.parametrize("name", FIGURES)
def test_figures_of_each_series(name: str) -> None:
    case = Case()
    expected = FACTORS.get(name, 1) * FIGURES[name](case).sort_values("unique_id")["model"].to_numpy()
    assert [case.ours(series)[name] for series in range(SERIES)] == pytest.approx(expected)
    if name in ("mase", "crps", "mae"):
        assert case.ours()[name] == pytest.approx(expected.mean())
