"""Each setting of a model and of its training changes what is trained: none is taken and then ignored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from forecast_helpers import many_series
from stablernn.data import ClassificationData, ForecastData, SequenceSplit
from stablernn.training.build import create_model, create_trainer
from stablernn.training.loop.checkpoint import Checkpoint
from stablernn.training.resolve import resolve
from stablernn.training.settings.load import load_config
from stablernn.training.tasks import task_for

Weights = dict[str, torch.Tensor]


class Recorder:
    """Keeps nothing."""

    def record(self, line: dict[str, Any]) -> None: ...

    def save(self, name: str, checkpoint: Checkpoint) -> None: ...


def part(samples: int, seed: int) -> SequenceSplit:
    x = np.random.default_rng(seed).normal(size=(samples, 24, 2)).astype(np.float32)
    y = (np.arange(samples) % 4 == 0).astype(np.int64)
    return SequenceSplit(x, np.full(samples, 24), y, tuple(map(str, range(samples))))


CLASSES = ClassificationData("toy", ("a", "b"), ("u", "v"), part(20, 0), part(8, 1), None, {}, "sha256:0")
SERIES: ForecastData = many_series(
    [np.exp(0.3 * np.random.default_rng(seed).normal(size=(80, 1)).cumsum(axis=0)) for seed in range(2)],
    **{"context_length": 12, "horizon": 3, "season": 4, "validation_steps": 12, "test_steps": 12},
)


def trained(data: ClassificationData | ForecastData, *overrides: str) -> Weights:
    """Weights after three steps."""
    given = ["data.source=x", "model.cell=gru", "model.hidden_size=4", "training.max_steps=3", "training.threads=1"]
    settings = resolve(load_config(overrides=[*given, *overrides]), task_for(data))
    torch.manual_seed(0)
    model = create_model(settings, data)
    assert create_trainer(Recorder(), settings, task_for(data), model).fit()
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(left: Weights, right: Weights) -> bool:
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())


@pytest.fixture(scope="module")
def usual() -> dict[str, Weights]:
    return {"classify": trained(CLASSES), "forecast": trained(SERIES)}


SHARED = [
    *("model.readout=mean", "model.patch_size=3", "model.patch_stride=3", "model.patch_embedding=5"),
    *("model.conv_layers=1", "model.members=2", "model.head_dropout=0.5", "training.weight_decay=0.5"),
]
OF_CLASSES = [
    *SHARED,
    *("model.scaling=window", "model.scaling=context", "training.label_smoothing=0.2"),
    *("training.class_weights=balanced", "training.time_warp=0", "training.time_warp=0.2"),
    *("training.jitter=0", "training.rescale=0", "training.shift=0.5"),
    *("training.crop=0.8", "training.magnitude_warp=0.2", "training.channel_dropout=0.5", "training.mixup=0.2"),
]
OF_FORECASTS = [
    *SHARED,
    *("model.scaling=standard", "model.scaling=window", "model.head=recursive", "model.skip=none"),
    *("model.skip_strength=2", "model.skip_prior=1"),
    *("model.window=9", "model.season=2", "model.log=true"),
    *("training.warm_up=0", "training.warm_up=5", "training.skip_lr=0", "training.skip_lr=0.1"),
]


@pytest.mark.parametrize("given", OF_CLASSES)
def test_of_a_classifier(given: str, usual: dict[str, Weights]) -> None:
    more = ["model.window=6"] if given.startswith("model.scaling") else []
    assert not same(trained(CLASSES, given, *more), usual["classify"])


@pytest.mark.parametrize("given", OF_FORECASTS)
def test_of_a_forecaster(given: str, usual: dict[str, Weights]) -> None:
    assert not same(trained(SERIES, given), usual["forecast"])


def test_a_skip_that_does_not_learn_stays_as_it_was_fitted() -> None:
    fixed = trained(SERIES, "training.skip_lr=0")["skip.weight"]
    again = trained(SERIES, "training.skip_lr=0", "training.lr=0.5")["skip.weight"]
    assert torch.equal(fixed, again)
    assert not torch.equal(fixed, trained(SERIES)["skip.weight"])
