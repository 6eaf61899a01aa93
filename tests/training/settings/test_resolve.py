from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stablernn.cells import create_cell, list_cells, recommended_training
from stablernn.data import ClassificationData, ForecastData, load_data
from stablernn.errors import ConfigError, UnknownNameError
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
@pytest.mark.parametrize("cell", list_cells())
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


def test_a_forecast_takes_its_windows_from_the_data(co2: ForecastData) -> None:
    task = resolve(settings(), task_for(co2)).task
    assert task.model_dump() == {
        "name": "forecast",
        "horizon": 52,
        "context_length": 104,
        "season": 52,
        "quantiles": (0.1, 0.5, 0.9),
    }


def test_missing_values_get_a_mask_channel(co2: ForecastData, digits: ClassificationData) -> None:
    for data, override, has_mask in ((co2, "auto", True), (digits, "auto", False), (co2, "false", False)):
        assert resolve(settings(f"model.mask_channel={override}"), task_for(data)).model.mask_channel is has_mask


def test_missing_values_of_validation_and_test_are_not_looked_at(co2: ForecastData, digits: ClassificationData) -> None:
    holes = digits.validation.x.copy()
    holes[0, 0] = np.nan
    later = replace(digits.validation, x=holes)
    assert resolve(settings(), task_for(replace(digits, validation=later, test=later))).model.mask_channel is False
    (one,) = co2.series
    held_out = co2.validation_steps + co2.test_steps
    values = np.nan_to_num(one.values)
    values[-held_out:] = np.nan
    assert (
        resolve(settings(), task_for(replace(co2, series=(replace(one, values=values),)))).model.mask_channel is False
    )
    values[-held_out - 1] = np.nan
    assert resolve(settings(), task_for(replace(co2, series=(replace(one, values=values),)))).model.mask_channel is True


def test_running_scaling_remembers_the_context_or_the_longest_sequence(
    co2: ForecastData, digits: ClassificationData
) -> None:
    assert resolve(settings("model.scaling=window"), task_for(co2)).model.window == 104
    assert resolve(settings("model.scaling=window"), task_for(digits)).model.window == 64
    short = replace(digits, train=replace(digits.train, lengths=np.ones_like(digits.train.lengths)))
    assert resolve(settings("model.scaling=window"), task_for(short)).model.window == 2


@pytest.mark.parametrize("cell", list_cells())
def test_resolving_again_changes_nothing(cell: str, co2: ForecastData) -> None:
    once = resolve(settings("training.optimizer=rmsprop", cell=cell), task_for(co2))
    assert resolve(once, task_for(co2)) == once


def test_unknown_cell(digits: ClassificationData) -> None:
    with pytest.raises(
        UnknownNameError, match=r"^Unknown cell 'lipshitz'\. Did you mean 'lipschitz'\? See `stablernn cells"
    ):
        resolve(settings(cell="lipshitz"), task_for(digits))


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


def test_orthogonal_matrices_train_at_a_tenth_of_the_rate(digits: ClassificationData) -> None:
    assert resolve(settings("training.lr=0.02", cell="urnn"), task_for(digits)).training.orthogonal_lr == pytest.approx(
        0.002
    )
    given = resolve(settings("training.orthogonal_lr=0.5", cell="scornn"), task_for(digits)).training
    assert given.orthogonal_lr == 0.5
    assert resolve(settings(), task_for(digits)).training.orthogonal_lr is None


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


def test_a_longer_gap_in_the_test_split_counts_too(digits: ClassificationData) -> None:
    data, test = timed(digits, 2.0), digits.test
    assert test is not None
    dt = np.full(test.x.shape[:2], 7.5, np.float32)
    assert resolve(settings(), task_for(replace(data, test=replace(test, dt=dt)))).model.max_dt == 7.5


def test_a_given_rate_moves_the_recommended_one_of_the_matrices_along(digits: ClassificationData) -> None:
    usual = resolve(settings(cell="exprnn"), task_for(digits)).training
    doubled = resolve(settings(f"training.lr={2 * (usual.lr or 0)}", cell="exprnn"), task_for(digits)).training
    assert doubled.orthogonal_lr == pytest.approx(2 * (usual.orthogonal_lr or 0))
