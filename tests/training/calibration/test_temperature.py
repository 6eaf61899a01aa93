"""Probabilities as sure as they are right, and quantiles that cover what they say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from forecast_helpers import many_series
from stablernn.data import ForecastData, SequenceSplit
from stablernn.nn.models import Classifier, Forecaster
from stablernn.training import load_config, load_run, train
from stablernn.training.calibration import conformal_offsets, conformity_scores, fit_offsets, fit_temperature
from stablernn.training.tasks import task_for
from stablernn.training.tasks.forecast import earlier_ends


def told(samples: int, sure: float, *, flip: float = 0.0, kinds: int = 3) -> tuple[Classifier, SequenceSplit]:
    """A classifier that reads the class from the last value, ``sure`` times too loudly, and labels it does not know."""
    random = np.random.default_rng(0)
    y = random.integers(0, kinds, samples)
    seen = np.where(random.random(samples) < flip, random.integers(0, kinds, samples), y)
    x = np.zeros((samples, 4, kinds), np.float32)
    x[np.arange(samples), -1, seen] = 1
    model = Classifier("rnn", kinds, kinds, kinds).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        cell = model.rnn.cells[0]
        cell.get_parameter("weight_ih").copy_(torch.eye(kinds))
        model.head.get_parameter("maps.0.weight").copy_(sure * torch.eye(kinds))
    return model, SequenceSplit(x, np.full(samples, 4), y, tuple(map(str, range(samples))))


def log_loss(model: Classifier, split: SequenceSplit) -> float:
    with torch.no_grad():
        share = torch.log_softmax(model(torch.from_numpy(split.x)), dim=1)
    return -float(share[torch.arange(len(split)), torch.from_numpy(split.y)].mean())


@pytest.mark.parametrize(("sure", "colder"), [(30.0, False), (0.3, True)])
def test_a_temperature_lowers_the_log_loss_and_changes_no_answer(sure: float, colder: bool) -> None:
    model, split = told(400, sure, flip=0.3)
    before, answers = log_loss(model, split), model(torch.from_numpy(split.x)).argmax(dim=1)
    found = fit_temperature(model, split)
    assert (found["temperature"] < 1) is colder
    assert found["before"] == pytest.approx(before, rel=1e-5)
    assert found["after"] == pytest.approx(log_loss(model, split), rel=1e-4)
    assert found["after"] < 0.9 * before
    assert found["samples"] == 400
    assert torch.equal(model(torch.from_numpy(split.x)).argmax(dim=1), answers)
    probabilities = model.run(torch.from_numpy(split.x))[0]["probabilities"].detach()
    # 0.3 of the labels are drawn anew, one in three of them the same.
    assert float(probabilities.max(dim=1).values.mean()) == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("samples", [12, 60])
def test_the_temperature_is_the_most_probable_one_under_its_prior(samples: int) -> None:
    model, split = told(samples, 5.0)
    logits = model(torch.from_numpy(split.x)).detach().double()
    truth = torch.from_numpy(split.y)
    grid = np.linspace(-2, 2, 4001)
    surprise = [
        samples * float(torch.nn.functional.cross_entropy(logits / np.exp(log), truth)) + log**2 / 2 for log in grid
    ]
    found = fit_temperature(model, split)["temperature"]
    assert np.log(found) == pytest.approx(grid[int(np.argmin(surprise))], abs=2e-3)
    # Always right, and yet not taken for one that is never wrong.
    assert np.exp(-2) < found < 1


@pytest.mark.parametrize("kept", [0, 1, 5])
def test_one_class_says_nothing(kept: int) -> None:
    model, split = told(40, 5.0)
    chosen = np.flatnonzero(split.y == 1)[:kept]
    part = SequenceSplit(split.x[chosen], split.lengths[chosen], split.y[chosen], tuple(map(str, chosen)))
    assert fit_temperature(model, part) == {"temperature": 1.0, "samples": kept, "before": None, "after": None}
    assert float(model.temperature) == 1


def test_dropout_is_off_while_a_run_is_calibrated() -> None:
    data: Any = load_digits()
    config = load_config(overrides=["data.source=digits", "model.cell=rnn", "training.calibrate=true"])
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        model = Classifier("rnn", 1, 10, 8, head_dropout=0.5)
        model.fit_scaling(data.training_values())
        model.train()
        torch.manual_seed(len(found))
        found.append(task_for(data).calibrate(model, config, None))
        assert not model.training
    assert found[0] == found[1]


def load_digits() -> Any:
    from stablernn.data import load_data

    return load_data("digits")


def walk(series: int, *, factor: float = 1.0, seed: int = 0) -> ForecastData:
    """Many random walks, of which each gives one window to validation and one to test, hence exchangeable ones."""
    random = np.random.default_rng(seed)
    steps = 20 + 6 + 2 * 2
    values = [np.exp(0.2 * random.normal(size=(steps, 1)).cumsum(axis=0)) * factor for _ in range(series)]
    return many_series(values, season=1, horizon=2, context_length=6, validation_steps=2, test_steps=2)


def forecaster(data: ForecastData, **options: Any) -> Forecaster:
    given: dict[str, Any] = {"scaling": "context", "window": 6, "quantiles": (0.05, 0.1, 0.5, 0.9, 0.95)}
    model = Forecaster("rnn", 1, data.horizon, 5, **(given | options))
    model.fit_scaling(data.training_values())
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape))
    return model.eval()


def coverage(model: Forecaster, data: ForecastData, split: str, lower: int, upper: int) -> float:
    windows = data.windows(split)
    samples = windows.gather(range(len(windows)))
    with torch.no_grad():
        quantiles = model.run(torch.from_numpy(samples.x))[0]["quantiles"].numpy()
    inside = (quantiles[..., lower] <= samples.y) & (samples.y <= quantiles[..., upper])
    return float(inside.mean())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"log": True},
        {"members": 3},
        {"scaling": "standard", "window": None},
        {"scaling": "window"},
        {"head": "recursive"},
        {"skip": "linear", "patch_size": 2},
    ],
    ids=["plain", "logarithms", "members", "standard", "window", "recursive", "patches"],
)
def test_quantiles_cover_what_they_say(options: dict[str, Any]) -> None:
    data = walk(600)
    model = forecaster(data, **options)
    found = fit_offsets(model, conformal_offsets([conformity_scores(model, data.windows("validation"))]))
    assert found["samples"] == 600
    assert found["short"] == 0
    assert found["levels"] == list(model.quantiles)
    assert found["unit"] == ("the data's" if options.get("head") == "recursive" else "the scaling of each window")
    np.testing.assert_allclose(found["offsets"], model.offsets.numpy())
    for lower, upper, held in ((1, 3, "0.8"), (0, 4, "0.9")):
        before, after = found["coverage"][held].values()
        assert abs(before - float(held)) > 0.1
        assert after == pytest.approx(float(held), abs=0.02)
        # What was measured is what the model says, sorting included.
        assert coverage(model, data, "validation", lower, upper) == pytest.approx(after, abs=0.003)
        # Two standard deviations of 600 windows and of the 600 that the offsets were taken from.
        slack = 2 * math.sqrt(2 * float(held) * (1 - float(held)) / 600)
        assert coverage(model, data, "test", lower, upper) == pytest.approx(float(held), abs=slack + 0.01)


def test_the_mean_and_the_median_stay() -> None:
    data = walk(50)
    model = forecaster(data)
    windows = data.windows("test")
    x = torch.from_numpy(windows.gather(range(len(windows))).x)
    before = model.run(x)[0]
    fit_offsets(model, conformal_offsets([conformity_scores(model, data.windows("validation"))]))
    after = model.run(x)[0]
    assert torch.equal(before["mean"], after["mean"])
    assert float(model.offsets[..., 2].abs().max()) == 0
    assert not torch.equal(before["quantiles"], after["quantiles"])


@pytest.mark.parametrize(("least", "span"), [(6, 19), (30, 8), (39, 0)])
def test_each_later_origin_is_scored_once_by_a_fit_to_what_comes_before(least: int, span: int) -> None:
    """Of 40 and 37 training steps, half of 38 count, or those after the least ones."""
    values = [np.arange(length, dtype=np.float64)[:, None] for length in (52, 49)]
    data = many_series(values, horizon=4, context_length=6, validation_steps=6, test_steps=6)
    origins: list[tuple[int, int]] = []
    for part in earlier_ends(data, least):
        windows = part.windows("test").origins
        assert all(first >= len(part.training_values()[series]) for series, first in windows)
        origins += windows
    assert sorted(origins) == [
        (series, first) for series, end in ((0, 40), (1, 37)) for first in range(end - span, end)
    ]


TINY = [
    "model.hidden_size=5",
    "training.threads=1",
    "training.device=cpu",
    "training.plots=false",
    "training.max_steps=2",
]
RUNS = {
    "classify": (["data.source=digits", "training.batch_size=500"], ["temperature"]),
    "forecast": (
        ["data.source=co2", "task.horizon=6", "task.context_length=12", "task.season=1"],
        ["gate", "intervals"],
    ),
}


@pytest.mark.parametrize("task", RUNS)
def test_what_was_fitted_is_written_down_and_is_in_the_weights(task: str, tmp_path: Path) -> None:
    overrides, parts = RUNS[task]
    config = load_config(overrides=[*overrides, "model.cell=rnn", *TINY])
    train(config, tmp_path / "run")
    written = json.loads((tmp_path / "run/calibration.json").read_text())
    assert sorted(written) == sorted(parts)
    model = load_run(tmp_path / "run").model
    if task == "classify":
        assert float(model.get_buffer("temperature")) == pytest.approx(written["temperature"]["temperature"])
        assert float(model.get_buffer("temperature")) != 1
    else:
        np.testing.assert_allclose(model.get_buffer("offsets").numpy(), written["intervals"]["offsets"])
        assert np.abs(written["intervals"]["offsets"]).max() > 0
        assert 0 <= written["gate"]["share"] <= 1
