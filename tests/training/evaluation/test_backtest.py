from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from forecast_helpers import Sums, many_series
from stablernn.data import ForecastData
from stablernn.errors import ConfigError
from stablernn.nn.models import Forecaster
from stablernn.training import TorchPredictor
from stablernn.training.evaluation.backtest import backtest, parse
from stablernn.training.evaluation.predictors import predict
from stablernn.training.evaluation.scorers import ForecastScorer


def toy(*lengths: int, channels: int = 1, **changes: object) -> ForecastData:
    random = np.random.default_rng(0)
    return many_series([random.normal(size=(length, channels)) for length in lengths or (30,)], **changes)


def own(report: dict) -> dict[str, float]:
    """A report's scores without those of the naive forecasts."""
    return {name: value for name, value in report["metrics"].items() if not isinstance(value, dict)}


def test_origins_end_with_the_split_and_lie_a_step_apart() -> None:
    data = toy(30)
    predictor = Sums()
    got = backtest(predictor, data, windows=3, step=3)
    # Test steps are 21 to 29; the last window forecasts 28 and 29.
    ends = [22, 25, 28]
    truth = data.series[0].values[:, 0]
    expected = [np.mean([abs(truth[end] - truth[end - 1]), abs(truth[end + 1] - truth[end - 1])]) for end in ends]
    assert [row["mae_fresh"] for row in got["by_window"]] == pytest.approx(expected)
    assert [row["window"] for row in got["by_window"]] == [1, 2, 3]
    assert got["fresh"]["metrics"]["mae"] == pytest.approx(np.mean(expected))
    assert (got["windows"], got["step"], got["origins"], got["missing_origins"]) == (3, 3, 3, 0)


def test_the_state_is_carried_over_the_new_steps_only() -> None:
    data = toy(30)
    predictor = Sums(weight=1.0)
    got = backtest(predictor, data, windows=3, step=3)
    carried = predictor.inputs[:3]
    assert [x.shape[1] for x in carried] == [4, 3, 3]
    values = data.series[0].values
    np.testing.assert_array_equal(np.concatenate(carried, axis=1)[0], values[18:28])
    assert [x.shape[1] for x in predictor.inputs[3:]] == [4, 4, 4]
    assert (got["carried"]["steps_read"], got["fresh"]["steps_read"]) == (10, 12)
    # The carried sum reaches back to step 18 at every origin.
    last = values[27, 0] + values[18:28, 0].sum()
    assert got["by_window"][2]["mae_carried"] == pytest.approx(np.abs(values[28:30, 0] - last).mean(), rel=1e-5)


def test_origins_between_patches_read_their_context() -> None:
    predictor = Sums()
    predictor.patch_stride = 2
    got = backtest(predictor, toy(30), windows=3, step=3)
    assert got["carried"] is None
    assert got["fresh"] == {**backtest(Sums(), toy(30), windows=3, step=3)["fresh"], "seconds": got["fresh"]["seconds"]}
    assert "mae_carried" not in got["by_window"][0]


@pytest.mark.parametrize("cell", ["gru", "lipschitz"])
@pytest.mark.parametrize(
    "scaling", [{"scaling": "standard"}, {"scaling": "window", "window": 4}], ids=lambda s: s["scaling"]
)
def test_a_carried_state_equals_reading_everything_since_the_first_origin(cell: str, scaling: dict) -> None:
    data = toy(30, 33, channels=2, targets=("c1",))
    torch.manual_seed(0)
    model = Forecaster(cell, 2, 2, 5, target_indices=(1,), **scaling)
    model.fit_scaling(data.training_values())
    predictor = TorchPredictor(model)
    got = backtest(predictor, data, windows=4, step=2, quantiles=(0.1, 0.5, 0.9))
    errors = []
    for series in data.series:
        begin = len(series.values) - 2 - 3 * 2 - 4
        for window in range(4):
            end = begin + 4 + 2 * window
            mean = predictor.run_numpy(series.values[None, begin:end])["mean"][0, :, 0]
            errors.append(np.abs(mean - series.values[end : end + 2, 1]).mean())
    assert got["carried"]["metrics"]["mae"] == pytest.approx(np.mean(errors), rel=1e-5)
    # Afresh is what eval scores on the same windows.
    windows = data.windows("test")
    chosen = np.array(
        [n for n, (s, end) in enumerate(windows.origins) if (len(data.series[s].values) - 2 - end) in (0, 2, 4, 6)]
    )
    scorer = ForecastScorer(data, "test", quantiles=(0.1, 0.5, 0.9), windows=chosen)
    expected = scorer.score(predict(predictor, scorer.source))
    assert own(got["fresh"]) == pytest.approx(own({"metrics": expected}), rel=1e-5)
    assert got["carried"]["metrics"]["seasonal_naive"] == expected["seasonal_naive"]


def test_a_window_without_truth_is_left_out_and_the_state_begins_anew() -> None:
    data = toy(30)
    data.series[0].values[25:27] = np.nan
    predictor = Sums()
    got = backtest(predictor, data, windows=3, step=3)
    assert (got["origins"], got["missing_origins"]) == (2, 1)
    assert [row["series"] for row in got["by_window"]] == [1, 0, 1]
    assert [x.shape[1] for x in predictor.inputs[:2]] == [4, 4]


def test_the_time_since_the_last_step_is_known_where_the_state_is_carried() -> None:
    data = toy(30)
    dt = np.arange(30, dtype=np.float32)
    timed = replace(data, series=(replace(data.series[0], dt=dt),), time_step=1.0)
    predictor = Sums()
    backtest(predictor, timed, windows=2, step=3)
    first, second, afresh, _ = [inputs["dt"][0] for inputs in predictor.optional_inputs]
    np.testing.assert_array_equal(first, [1, 22, 23, 24])
    np.testing.assert_array_equal(second, [25, 26, 27])
    np.testing.assert_array_equal(afresh, first)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"windows": 0, "step": 1}, "windows of a backtest must be 1 or more, got 0."),
        ({"windows": 2, "step": 0}, "step of a backtest must be 1 or more, got 0."),
        (
            {"windows": 9, "step": 2},
            "The split 'test' of 'toy' holds at most 4 origins of a series at a distance of 2 steps, got windows=9. "
            "Ask for fewer windows or a smaller step, or hold out more by data.test_steps.",
        ),
    ],
    ids=["windows", "step", "too many"],
)
def test_what_cannot_be_rolled(options: dict[str, int], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        backtest(Sums(), toy(30), **options)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("text", ["windows=8,step=24", "step=24,windows=8", "windows=8 step=24"])
def test_a_backtest_as_it_is_written(text: str) -> None:
    assert parse(text) == {"windows": 8, "step": 24}


@pytest.mark.parametrize(
    "text",
    ["", "8,24", "windows=8", "windows=8,step=x", "windows=8,step=1,step=2", "steps=8,windows=1", "windows=-1,step=2"],
)
def test_a_backtest_that_does_not_read(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert str(caught.value) == f"A backtest is written windows=8,step=24, got '{text}'."
