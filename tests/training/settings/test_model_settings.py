"""What is recommended for a classifier and for a forecaster, and which settings do not go together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forecast_helpers import EACH_CELL, many_series
from stablernn.data import ClassificationData, ForecastData, SequenceSplit
from stablernn.data.step_data import StepData, StoredSteps
from stablernn.errors import ConfigError
from stablernn.training.build import create_model
from stablernn.training.resolve import resolve
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import load_config
from stablernn.training.tasks import task_for


def settings(*overrides: str, cell: str = "gru") -> Config:
    return load_config(overrides=["data.source=x", f"model.cell={cell}", *overrides])


def sequences(samples: int, time: int, seed: int = 0) -> SequenceSplit:
    random = np.random.default_rng(seed)
    x = random.normal(size=(samples, time, 2)).astype(np.float32)
    lengths = np.full(samples, time)
    return SequenceSplit(x, lengths, np.arange(samples) % 2, tuple(map(str, range(samples))))


def classes(samples: int = 40, time: int = 96, validation: int = 10) -> ClassificationData:
    splits = sequences(samples, time), sequences(validation, time, 1)
    return ClassificationData("toy", ("no", "yes"), ("a", "b"), *splits, None, {}, "sha256:0")


def wave(steps: int = 400, *, context: int = 28, season: int = 7, lowest: float = -1.0, **changes: Any) -> ForecastData:
    values = lowest + 1 + np.sin(2 * np.pi * np.arange(steps) / 7)[:, None]
    given = {"season": season, "context_length": context, "horizon": 3, "validation_steps": 30, "test_steps": 30}
    return many_series([values], **(given | changes))


def steps() -> StepData:
    part = StoredSteps([np.zeros((8, 2), np.float32)] * 3, [np.zeros((8, 1), np.float32)] * 3)
    return StepData("told", "real", False, ("a", "b"), ("c",), part, part, part, False, "mse", {}, "sha256:0")


def refuses(config: Config, data: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(config, task_for(data))


MODEL = ("readout", "patch_size", "patch_stride", "patch_embedding", "head_dropout", "skip", "scaling")
MODEL = (*MODEL, "window", "season", "log")


def chosen(config: Config, data: ClassificationData | ForecastData, keys: tuple[str, ...] = MODEL) -> tuple[Any, ...]:
    model = resolve(config, task_for(data)).model
    return tuple(getattr(model, key) for key in keys)


def test_what_a_classifier_is_made_of() -> None:
    # 96 samples are 24 steps of 4.
    assert chosen(settings(), classes()) == ("all", 16, 4, 64, 0.2, "none", "standard", None, None, None)


def test_what_a_forecaster_is_made_of() -> None:
    assert chosen(settings(), wave()) == ("last", 2, 2, 0, 0.0, "linear", "context", 28, 7, False)


@pytest.mark.parametrize("preset", ["practical", "paper"])
@pytest.mark.parametrize("cell", EACH_CELL)
def test_resolved_settings_resolve_to_themselves_and_build_a_model(cell: str, preset: str) -> None:
    config = settings(f"model.preset={preset}", "model.hidden_size=4", cell=cell)
    for data in (classes(time=20), wave(steps=120)):
        resolved = resolve(config, task_for(data))
        assert resolve(resolved, task_for(data)) == resolved
        create_model(resolved, data)
    for data in (steps(),):
        resolved = resolve(config, task_for(data))
        assert resolve(resolved, task_for(data)) == resolved


@pytest.mark.parametrize(
    ("given", "size", "stride"),
    [
        (["model.patch_size=6"], 6, 6),
        (["model.patch_stride=3"], 16, 3),
        (["model.patch_stride=20"], 20, 20),
        (["model.patch_size=6", "model.patch_stride=2"], 6, 2),
    ],
)
def test_a_given_patch(given: list[str], size: int, stride: int) -> None:
    assert chosen(settings(*given), classes(), ("patch_size", "patch_stride")) == (size, stride)


def test_a_context_without_two_seasons_has_the_scaling_without_a_season() -> None:
    assert chosen(settings(), wave(context=13), ("scaling", "season", "skip")) == ("context", 1, "linear")
    assert chosen(settings("model.season=7"), wave(context=14), ("scaling", "season")) == ("context", 7)


CONVOLUTIONS = ("conv_layers", "conv_channels", "patch_size", "patch_stride", "patch_embedding")


@pytest.mark.parametrize(
    ("given", "data", "expected"),
    [
        # A recommended patch is as long as the convolutions need, at the recommended stride.
        (["model.conv_layers=1"], classes(), (1, 16, 16, 4, 64)),
        (["model.conv_layers=4"], classes(), (4, 16, 31, 4, 64)),
        (["model.conv_layers=2"], wave(), (2, 16, 7, 2, 64)),
        (["model.conv_layers=2", "model.patch_size=9", "model.patch_embedding=5"], wave(), (2, 16, 9, 9, 5)),
        (["model.conv_layers=1", "model.conv_channels=3", "model.preset=paper"], classes(), (1, 3, 3, 1, 64)),
        ([], wave(), (0, 16, 2, 2, 0)),
    ],
)
def test_convolutions_get_a_patch_and_an_embedding(given: list[str], data: Any, expected: tuple[int, ...]) -> None:
    assert chosen(settings(*given), data, CONVOLUTIONS) == expected


@pytest.mark.parametrize(
    ("given", "data", "message"),
    [
        ("model.conv_layers=3 model.patch_size=8", classes(), "reads 15 samples .* has model.patch_size=8; set"),
        ("model.conv_layers=1 model.patch_embedding=0", wave(), "conv_layers=1 .* got model.patch_embedding=0"),
        ("model.conv_layers=1 model.cell=gru_d", classes(), "model.conv_layers .* 'gru_d'"),
        ("model.patch_embedding=8 model.cell=gru_d", classes(), "model.patch_embedding .* 'gru_d'"),
        ("model.skip_strength=0.1 model.skip=none", wave(), "model.skip_strength .* model.skip='linear', got 0.1"),
        (
            "model.skip_prior=30 model.skip=linear",
            wave(context=13),
            "model.skip_prior is at most the 13 steps .* got 30",
        ),
        ("model.skip_seasons=[7,30]", wave(context=13), "model.skip_seasons is at most the 13 steps .* got 30"),
        ("model.window=9", classes(), "model.window .* 'standard'; set model.scaling=context"),
        ("model.season=30", wave(), "model.season .* 'standard'; set model.scaling=context"),
        ("model.log=true model.preset=paper", wave(), "model.log .* 'standard'; set model.scaling=context"),
        ("training.skip_lr=0.1 model.skip=none", wave(), "training.skip_lr .* model.skip='linear', got 0.1"),
        ("training.warm_up=3 model.patch_size=4", wave(), "training.warm_up .* model.patch_stride=4 steps, got 3"),
        ("training.calibrate=true task.quantiles=[]", wave(), "training.calibrate needs quantiles"),
        (
            "training.calibrate=true task.quantiles=[0.5,0.9]",
            wave(),
            r"training.calibrate .* task.quantiles=\[0.5, 0.9\]",
        ),
        ("training.calibrate=true", classes(validation=0), "training.calibrate needs a validation split"),
        ("training.calibrate=true", steps(), "training.calibrate is not used by the task 'predict-next'"),
        ("training.calibrate=false", steps(), "training.calibrate is not used by the task 'predict-next'"),
    ],
)
def test_what_has_nothing_to_act_on_is_refused(given: str, data: Any, message: str) -> None:
    refuses(settings(*given.split()), data, message)


OF_ONE_TASK = {
    "model.head=recursive": "forecast",
    "model.skip=linear": "forecast",
    "model.skip_strength=0.1": "forecast",
    "model.skip_prior=1": "forecast",
    "model.non_negative=true": "forecast",
    "training.warm_up=8": "forecast",
    "training.label_smoothing=0.1": "classify",
    "training.class_weights=balanced": "classify",
    "training.time_warp=0.1": "classify",
    "training.jitter=0.1": "classify",
    "training.rescale=0.1": "classify",
    "training.shift=0.1": "classify",
    "training.crop=0.9": "classify",
    "training.magnitude_warp=0.1": "classify",
    "training.channel_dropout=0.1": "classify",
    "training.mixup=0.1": "classify",
    "training.temperature=0.5": "classify",
}


@pytest.mark.parametrize("data", [classes(), wave(), steps()], ids=["classify", "forecast", "predict-next"])
@pytest.mark.parametrize("given", OF_ONE_TASK)
def test_what_only_one_task_has(given: str, data: ClassificationData | ForecastData | StepData) -> None:
    task, key = OF_ONE_TASK[given], given.partition("=")[0]
    if task == data.task:
        resolve(settings(given), task_for(data))
    elif key.startswith("training") or data.task != "predict-next":
        refuses(settings(given), data, f"{key} is only used by the task '{task}', .* '{data.name}' .* '{data.task}'")


def test_sequences_are_changed_in_training_unless_the_paper_is_asked_for() -> None:
    training = resolve(settings(), task_for(classes())).training
    assert (training.time_warp, training.jitter, training.rescale) == (0.03, 0.1, 0.1)
    off = (training.shift, training.crop, training.magnitude_warp, training.channel_dropout, training.mixup)
    assert off == (0, 1, 0, 0, 0)
    training = resolve(settings("training.time_warp=0", "training.jitter=0.5"), task_for(classes())).training
    assert (training.time_warp, training.jitter, training.rescale) == (0.0, 0.5, 0.1)


def timed() -> ClassificationData:
    data = classes(time=12)
    parts = {
        name: replace(split, dt=np.ones(split.x.shape[:2], np.float32))
        for name, split in (("train", data.train), ("validation", data.validation))
    }
    return replace(data, **parts, time_step=1.0)


def test_steps_whose_time_is_known_are_not_moved() -> None:
    assert resolve(settings(cell="lipschitz"), task_for(timed())).training.time_warp == 0
    assert resolve(settings("model.time=ignore"), task_for(timed())).training.time_warp == 0.03
    for key, off in (("time_warp", 0), ("shift", 0), ("crop", 1)):
        refuses(settings(f"training.{key}=0.1", cell="lipschitz"), timed(), f"training.{key} moves .* set it to {off}")
    refuses(settings("training.mixup=0.1", cell="lipschitz"), timed(), "training.mixup .* model.time=ignore")


@pytest.mark.parametrize(
    ("samples", "batch", "steps_made"),
    # For lipschitz batches of 32 and 80 epochs are recommended.
    [(8, 8, 500), (40, 8, 500), (100, 16, 560), (5000, 32, 12_560)],
)
def test_small_sets_get_smaller_batches_and_as_many_steps(samples: int, batch: int, steps_made: int) -> None:
    training = resolve(settings(cell="lipschitz"), task_for(classes(samples, time=3))).training
    assert training.epochs is not None
    assert (training.batch_size, training.epochs * -(-samples // batch)) == (batch, steps_made)


@pytest.mark.parametrize(
    ("length", "batch", "epochs"),
    # Windows are length - 60 held out - 28 of context - 2; 5 epochs, but 300 steps at least and 2000 at most.
    [(400, 32, 30), (6000, 128, 6), (66_000, 256, 5), (200_000, 256, 3)],
)
def test_the_steps_of_a_forecast(length: int, batch: int, epochs: int) -> None:
    training = resolve(settings(), task_for(wave(length))).training
    assert (training.batch_size, training.epochs) == (batch, epochs)
