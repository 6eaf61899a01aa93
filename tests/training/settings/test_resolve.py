from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forecast_helpers import EACH_TRAINED
from stablernn.cells import create_cell, recommended_training
from stablernn.data import ClassificationData, ForecastData, load_data
from stablernn.errors import ConfigError
from stablernn.training.resolve import resolve
from stablernn.training.settings.config import Config
from stablernn.training.settings.defaults import FALLBACK_LR
from stablernn.training.settings.load import load_config
from stablernn.training.tasks import task_for


@pytest.fixture(scope="module")
def digits() -> ClassificationData:
    data = load_data("digits")
    assert isinstance(data, ClassificationData)
    return data


@pytest.fixture(scope="module")
def co2() -> ForecastData:
    data = load_data("co2")
    assert isinstance(data, ForecastData)
    return data


def settings(*overrides: str, cell: str = "lipschitz") -> Config:
    return load_config(overrides=["data.source=x", f"model.cell={cell}", *overrides])


@pytest.mark.parametrize("preset", ["practical", "paper"])
@pytest.mark.parametrize("cell", EACH_TRAINED)
def test_takes_what_the_catalog_recommends(cell: str, preset: str, digits: ClassificationData) -> None:
    training = resolve(settings(f"model.preset={preset}", cell=cell), task_for(digits)).training
    recommended = recommended_training(cell, preset)
    if not create_cell(cell, 1, 2, preset=preset).orthogonal:
        recommended.pop("orthogonal_lr", None)  # of another form of the cell
    for key, value in recommended.items():
        assert getattr(training, key) == value
    for key in ("epochs", "batch_size", "lr", "optimizer", "weight_decay", "schedule"):
        assert getattr(training, key) is not None


@pytest.mark.parametrize(
    ("overrides", "section", "values"),
    [
        (
            "training.lr=0.5 training.batch_size=7 training.epochs=2",
            "training",
            {"lr": 0.5, "batch_size": 7, "epochs": 2},
        ),
        ("training.optimizer=sgd", "training", {"lr": FALLBACK_LR["sgd"], "momentum": 0.0}),
        # Drops of the rate belong to the schedule, and to the length, that are recommended.
        ("model.preset=paper training.schedule=cosine", "training", {"step_epochs": None, "lr_decay": None}),
        ("model.preset=paper training.epochs=6", "training", {"schedule": "step", "step_epochs": 2}),
        ("", "training", {"clip_norm": 1.0}),
        ("training.clip_norm=0", "training", {"clip_norm": 0}),
        ("training.max_steps=5", "training", {"epochs": None, "max_steps": 5}),
        # 1,077 training samples are 17 steps of 64, so 100 steps are 6 epochs.
        ("training.schedule=step training.batch_size=64 training.epochs=10", "training", {"step_epochs": 4}),
        ("training.schedule=step training.batch_size=64 training.max_steps=100", "training", {"step_epochs": 2}),
        ("training.schedule=step", "training", {"lr_decay": 0.1}),
        ("model.cell=scornn model.cell_options.negative_signs=30", "model", {"cell_options": {"negative_signs": 30}}),
        ("model.cell=spectral_rnn model.cell_options.num_reflections=40", "model", {}),
        ("model.cell=slstm model.cell_options.num_heads=8", "model", {}),
        ("model.cell=kru model.cell_options.factors=3", "model", {}),
    ],
)
def test_what_is_given_wins_and_moves_what_is_recommended(
    digits: ClassificationData, overrides: str, section: str, values: dict[str, object]
) -> None:
    resolved = getattr(resolve(settings(*overrides.split()), task_for(digits)), section)
    assert {key: getattr(resolved, key) for key in values} == values


REFUSED = {
    "task.quantiles=[0.5]": "only used by the task 'forecast', and 'digits' is for 'classify'",
    "training.momentum=0.9": "'sgd' and 'rmsprop', got training.optimizer='adamw'",
    "model.time=dt": "model.time=dt need data that says when its steps were, .* 'digits' does not",
    "model.max_dt=3": "model.max_dt need data that says when its steps were",
    "model.time_step=60": "model.time_step need data that says when its steps were",
    "training.orthogonal_lr=0.5 model.cell=gru": "got training.orthogonal_lr=0.5 with model.cell='gru'",
}


@pytest.mark.parametrize("overrides", REFUSED)
def test_what_does_not_go_with_the_data_or_the_cell_is_refused(digits: ClassificationData, overrides: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[overrides]):
        resolve(settings(*overrides.split()), task_for(digits))


@pytest.mark.parametrize("cell", EACH_TRAINED)
def test_resolving_again_changes_nothing(cell: str, co2: ForecastData) -> None:
    once = resolve(settings("training.optimizer=rmsprop", cell=cell), task_for(co2))
    assert resolve(once, task_for(co2)) == once


def timed(digits: ClassificationData, gap: float) -> ClassificationData:
    """Digits whose pixels are half an hour apart but for one gap of so many of them."""
    dt = np.ones(digits.train.x.shape[:2], np.float32)
    dt[:, 7] = gap
    return replace(digits, train=replace(digits.train, dt=dt), time_step=1800.0)


def test_times_in_the_data_are_used_and_what_they_mean_is_kept(digits: ClassificationData) -> None:
    model = resolve(settings(), task_for(timed(digits, 4.5))).model
    assert (model.time, model.time_step, model.max_dt) == ("dt", 1800.0, 4.5)
    model = resolve(settings("model.time_step=3600"), task_for(timed(digits, 4.5))).model
    assert (model.time_step, model.max_dt) == (3600.0, 2.25)
    assert resolve(settings("model.max_dt=9"), task_for(timed(digits, 4.5))).model.max_dt == 9.0
    model = resolve(settings("model.time=ignore", cell="gru"), task_for(timed(digits, 4.5))).model
    assert (model.time, model.time_step, model.max_dt) == ("ignore", None, None)


@pytest.mark.parametrize(
    ("gap", "override", "message"),
    [
        (500.0, "model.time=auto", "is 500 regular steps of 1800, .* 64 are allowed; set a longer model.time_step"),
        (4.5, "model.max_dt=2", "is 4.5 regular steps of 1800, got model.max_dt=2"),
    ],
)
def test_a_gap_that_is_too_long_is_refused(digits: ClassificationData, gap: float, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve(settings(override), task_for(timed(digits, gap)))
