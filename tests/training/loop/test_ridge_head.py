"""Heads that are solved for in closed form: what they predict, their probabilities and quantiles, and refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from forecast_helpers import many_series
from stablernn.certificates.certificate import prove
from stablernn.data import ClassificationData, ForecastData, SequenceSplit
from stablernn.data.step_data import StepData, StoredSteps
from stablernn.errors import ConfigError
from stablernn.nn.models import Forecaster, SequenceModel
from stablernn.training.build import create_model, create_trainer, measure_speed
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loop.base_trainer import NoRecorder
from stablernn.training.loop.closed_form import median_shift
from stablernn.training.resolve import resolve
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import load_config
from stablernn.training.tasks import task_for

Data = ClassificationData | ForecastData | StepData


def waves(samples: int, seed: int, *, noise: float, classes: int = 2) -> SequenceSplit:
    """Sine waves of random phase, a frequency for each class."""
    random = np.random.default_rng(seed)
    y = np.arange(samples) % classes
    time = np.arange(20)[None, :, None]
    x = np.sin(time * (0.4 + 0.2 * y[:, None, None]) + random.uniform(0, 6, (samples, 1, 1)))
    x = (x + noise * random.normal(size=x.shape)).astype(np.float32)
    return SequenceSplit(x, np.full(samples, 20), y, tuple(map(str, range(samples))))


def classes(samples: int, *, noise: float = 0.4, count: int = 2, labels: str = "uv") -> ClassificationData:
    train, validation = (waves(samples, seed, noise=noise, classes=count) for seed in range(2))
    return ClassificationData("waves", tuple(labels), ("a",), train, validation, None, {}, "sha256:0")


def recurrence(steps: int = 400, **changes: Any) -> ForecastData:
    """A series of which each value is a linear map of the two before, and noise."""
    random = np.random.default_rng(0)
    values = np.zeros(steps)
    for step in range(2, steps):
        values[step] = 1.8 * values[step - 1] - 0.99 * values[step - 2] + 0.3 * random.normal()
    settings = {"context_length": 12, "horizon": 2, "validation_steps": 80, "test_steps": 40}
    return many_series([values[:, None]], **(settings | changes))


def settings(data: Data, *overrides: str) -> Config:
    options = ["data.source=x", "model.cell=lru", "model.hidden_size=32", "training.method=closed-form"]
    return resolve(load_config(overrides=[*options, *overrides]), task_for(data))


def solved(data: Data, *overrides: str) -> tuple[Any, float]:
    """The model and its training loss."""
    config = settings(data, *overrides)
    torch.manual_seed(0)
    model = create_model(config, data)
    trainer = create_trainer(NoRecorder(), config, task_for(data), model)
    assert trainer.fit()
    assert trainer.position.last_loss is not None
    return model.eval(), trainer.position.last_loss


def score(model: SequenceModel, data: Data, split: Any, metric: str) -> float:
    return float(task_for(data).scorer(split, settings(data)).score_of(TorchPredictor(model))[metric])


def test_fixed_kernels_take_method_and_memory_from_the_data_and_refuse_gradients() -> None:
    data = classes(60)
    cell = ["data.source=x", "model.cell=rocket"]
    config = resolve(load_config(overrides=cell), task_for(data))
    assert (config.training.method, config.training.certified) == ("closed-form", False)
    assert (config.model.hidden_size, config.model.readout, config.model.patch_size) == (2520, "last", 1)
    assert config.model.cell_options == {"memory": 20}
    own = ["model.hidden_size=168", "model.cell_options.memory=12"]
    model, loss = solved(data, "model.cell=rocket", *own)
    assert model.state_roles()[1:] == [("layer 0 share", 168), ("layer 0 steps", 1), ("layer 0 history", 11)]
    assert score(model, data, "validation", "accuracy") > 0.9
    assert loss < 0.5
    with pytest.raises(
        ConfigError, match=r"No gradient reaches the weights of 'rocket', got training\.method=gradient"
    ):
        resolve(load_config(overrides=[*cell, "training.method=gradient"]), task_for(data))
    with pytest.raises(ConfigError, match="'rocket' .* has no speed to give a time by"):
        measure_speed(load_config(overrides=["data.source=digits", "model.cell=rocket"]))


def test_layers_stay_as_they_were_drawn_and_only_the_head_is_solved_for() -> None:
    data = classes(60)
    torch.manual_seed(0)
    drawn = create_model(settings(data), data).state_dict()
    model, _ = solved(data)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, drawn[name])}
    assert changed == {"head.maps.0.weight", "head.maps.0.bias"}
    assert score(model, data, "validation", "accuracy") > 0.8


def test_layers_are_moved_into_the_certified_region_once() -> None:
    free = prove(solved(classes(60), "model.cell=lipschitz", "training.certified=false")[0])
    options = ("training.certified=true", "training.certified_margin=0.05")
    certified = prove(solved(classes(60), "model.cell=lipschitz", *options)[0])
    assert free.rate is None or free.rate > 0.95
    assert certified.kind == "contracting"
    assert certified.rate is not None
    assert certified.rate <= 0.95 + 1e-6


def test_probabilities_are_calibrated_without_a_validation_split() -> None:
    # Noise hides a good part of the classes: a fit that trusts its own training rows would be far too sure.
    data = classes(600, noise=1.0)
    model, loss = solved(data)
    after = score(model, data, "validation", "log_loss")
    # What every sequence gets from the fit to all others is what new sequences get.
    assert abs(after - loss) < 0.08
    log_losses = []
    for temperature in (0.5, 1.0, 2.0):
        model.temperature.fill_(temperature)
        log_losses.append(score(model, data, "validation", "log_loss"))
    assert min(log_losses) == log_losses[1]


def test_a_forecast_is_that_of_the_linear_skip_with_quantiles_of_its_errors() -> None:
    data = recurrence()
    model, loss = solved(data)
    assert isinstance(model, Forecaster)
    assert model.skip is not None
    windows = data.windows("train")
    x = torch.from_numpy(windows.gather(range(len(windows))).x)
    with torch.no_grad():
        change, location, scale = model.changes(model.final_state(x))
        torch.testing.assert_close(change[:, 0, ..., 0], model.skip_change(model.final_state(x)))
        quantiles = model.run(x)[0]["quantiles"].numpy()
    truth = windows.truth(range(len(windows)))
    below = (truth[..., None] <= quantiles).mean(axis=0)
    # The first window of the training split cannot be compared with a step before it.
    np.testing.assert_allclose(below, np.broadcast_to([0.1, 0.5, 0.9], below.shape), atol=0.02)
    assert loss > 0
    scaled = float(((torch.from_numpy(truth) - location) / scale - change[:, 0, ..., 0]).abs().mean())
    assert loss == pytest.approx(scaled, rel=1e-4)


def test_an_unknown_covariate_gives_a_forecast_between_those_of_its_values() -> None:
    """A flag that rarely changes has a small unit: its mean, which stands for unknown, is far from its values."""
    random = np.random.default_rng(0)
    flag = np.repeat(random.random(150) < 0.1, 8).astype(np.float64)
    angle = 2 * np.pi * np.arange(1200) / 24
    target = 10 + np.sin(angle) - 3 * flag + 0.1 * random.normal(size=1200)
    values = np.stack([target, flag, np.sin(angle), np.cos(angle)], axis=1)
    names = ("target", "flag", "sin", "cos")
    roles = {"channels": names, "targets": names[:1], "future": names[1:], "season": 24}
    lengths = {"context_length": 24, "horizon": 12, "validation_steps": 80, "test_steps": 40}
    data = many_series([values], **roles, **lengths)
    model, _ = solved(data)
    samples = data.windows("train").gather(range(0, 900, 7))
    forecasts = []
    for value in (1.0, 0.0, np.nan):
        assert samples.future is not None
        future = samples.future.copy()
        future[..., 0] = value
        with torch.no_grad():
            forecasts.append(model.run(torch.from_numpy(samples.x), future=torch.from_numpy(future))[0]["mean"])
    on, off, unknown = forecasts
    effect = float((off - on).mean())
    assert effect > 1
    assert (unknown < off + 0.25 * effect).all()
    assert (unknown > on - 0.25 * effect).all()


@pytest.mark.parametrize("change", [False, True], ids=["value", "change"])
def test_numbers_of_the_next_step_are_solved_for(change: bool) -> None:
    random = np.random.default_rng(0)

    def split() -> StoredSteps:
        starts = random.uniform(0, 6, (12, 1, 2))
        x = np.sin(starts + 0.5 * np.arange(31)[None, :, None]).astype(np.float32)
        return StoredSteps(list(x[:, :-1]), list(x[:, 1:]))

    names = ("a", "b")
    data = StepData(
        "waves", "real", False, names, names, split(), split(), split(), continuous=False, headline="mse", notes={},
        fingerprint="sha256:0",
    )  # fmt: skip
    model, loss = solved(data, f"model.predict_change={str(change).lower()}")
    error = score(model, data, "validation", "mse")
    # The variance is 0.5; the first steps cannot be predicted.
    assert error < 0.05
    assert loss < 0.2


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("training.lr=0.01", "training.lr is only used by training.method=gradient, got 0.01"),
        ("training.epochs=3", "training.epochs is only used by training.method=gradient, got 3"),
        ("training.jitter=0.1", "training.jitter is only used by training.method=gradient, got 0.1"),
        ("training.class_weights=balanced", "training.class_weights is only used by training.method=gradient"),
        ("training.keep_epochs=true", "training.keep_epochs is only used by training.method=gradient, got True"),
        ("model.members=2", "model.members is only used by training.method=gradient, got 2"),
        ("model.head_dropout=0.2", "model.head_dropout is only used by training.method=gradient, got 0.2"),
    ],
)
def test_settings_of_training_by_gradients_are_refused(setting: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        settings(classes(20), setting)
    assert str(refusal.value).startswith(sentence)
    assert str(refusal.value).endswith("leave one of them out.")


def test_resolved_settings_resolve_to_themselves() -> None:
    data = classes(20)
    once = settings(data)
    assert resolve(once, task_for(data)) == once
    assert (once.training.epochs, once.training.lr, once.training.certified) == (None, None, True)


@pytest.mark.parametrize("zeros", [0.95, 0.6, 0.05])
def test_a_forecast_of_many_zeros_is_lowered_to_the_least_absolute_error(zeros: float) -> None:
    random = np.random.default_rng(0)
    truth = np.where(random.random((400, 2, 1)) < zeros, 0.0, random.gamma(2.0, 2.0, (400, 2, 1)))
    forecast = random.uniform(0.5, 1.5, truth.shape)
    shift = median_shift(truth - forecast, forecast)
    losses = [np.abs(truth - np.maximum(forecast - each, 0)).mean() for each in np.linspace(0, 1.5, 151)]
    assert np.abs(truth - np.maximum(forecast - shift, 0)).mean() <= min(losses) + 0.01 or zeros < 0.1
    assert {0.95: shift > 1.4, 0.6: shift > 0, 0.05: shift == 0}[zeros]
