from __future__ import annotations

import numpy as np
import pytest

from forecast_helpers import Sums, many_series
from stablernn.training.evaluation.metrics import seasonal_naive
from stablernn.training.evaluation.predictors import predict
from stablernn.training.evaluation.scorers import ForecastScorer, by_series, by_step

LEVELS = (0.1, 0.5, 0.9)


def scored():
    random = np.random.default_rng(0)
    # With a season, so that the naive forecast of each series alone repeats that of all.
    values = [
        unit * (random.normal(size=(length, 3)) + 5 * (np.arange(length) % 3)[:, None])
        for length, unit in ((24, 1), (12, 1), (30, 10))
    ]
    data = many_series(values, targets=("c1", "c2"))
    scorer = ForecastScorer(data, "test", quantiles=LEVELS)
    return data, scorer, predict(Sums(targets=(1, 2)), scorer.source)


def test_a_row_is_the_score_of_its_series_alone() -> None:
    data, scorer, outputs = scored()
    rows = by_series(data, scorer, outputs)
    assert [(row["unique_id"], row["target"], row["windows"]) for row in rows] == [
        ("s0", "c1", 8),
        ("s1", "c1", 8),
        ("s2", "c1", 8),
        ("s0", "c2", 8),
        ("s1", "c2", 8),
        ("s2", "c2", 8),
    ]
    for row in rows:
        alone = many_series(
            [one.values for one in data.series if one.unique_id == row["unique_id"]], targets=(row["target"],)
        )
        single = ForecastScorer(alone, "test", quantiles=LEVELS)
        expected = single.score(
            predict(Sums(targets=data.target_indices[data.targets.index(row["target"]) :][:1]), single.source)
        )
        beside = expected["seasonal_naive"]["mae"]
        figures = {name: value for name, value in expected.items() if not isinstance(value, dict)}
        got = {name: value for name, value in row.items() if name not in ("unique_id", "target", "windows")}
        # A series without training steps has no unit of MASE.
        assert got == pytest.approx(figures | {"seasonal_naive_mae": beside}, nan_ok=True)


def test_a_step_is_scored_over_all_windows() -> None:
    data, scorer, outputs = scored()
    rows = by_step(data, scorer, outputs)
    assert [(row["step"], row["target"]) for row in rows] == [(1, "c1"), (2, "c1"), (1, "c2"), (2, "c2")]
    error = np.abs(outputs["mean"] - scorer.truth)
    assert [row["mae"] for row in rows] == pytest.approx([error[:, k, t].mean() for t in (0, 1) for k in (0, 1)])
    naive = np.concatenate(
        [
            seasonal_naive(data.series[number].values[:, [1]], scorer.origins[mine, 1], season=3, horizon=2)
            for number, mine in scorer.series_slices()
        ]
    )
    expected = np.abs(naive[:, 1, 0] - scorer.truth[:, 1, 0]).mean()
    assert rows[1]["seasonal_naive_mae"] == pytest.approx(expected)
    assert rows[1]["relative_mae"] == pytest.approx(rows[1]["mae"] / expected)
