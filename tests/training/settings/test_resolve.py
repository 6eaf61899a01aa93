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


def test_what_is_given_wins(digits: ClassificationData) -> None:
    training = resolve(
        settings("training.lr=0.5", "training.batch_size=7", "training.epochs=2"), task_for(digits)
    ).training
    assert (training.lr, training.batch_size, training.epochs) == (0.5, 7, 2)


def test_another_optimizer_takes_its_own_rate(digits: ClassificationData) -> None:
    training = resolve(settings("training.optimizer=sgd"), task_for(digits)).training
    assert (training.lr, training.momentum) == (FALLBACK_LR["sgd"], 0.0)


def test_another_schedule_forgets_the_drops_of_the_recommended_one(digits: ClassificationData) -> None:
    training = resolve(settings("model.preset=paper", "training.schedule=cosine"), task_for(digits)).training
    assert (training.schedule, training.step_epochs, training.lr_decay) == ("cosine", None, None)


def test_another_length_moves_the_drops(digits: ClassificationData) -> None:
    training = resolve(settings("model.preset=paper", "training.epochs=6"), task_for(digits)).training
    assert (training.schedule, training.epochs, training.step_epochs) == ("step", 6, 2)


def test_recommended_clipping_can_be_switched_off(digits: ClassificationData) -> None:
    assert resolve(settings(), task_for(digits)).training.clip_norm == 1.0
    assert resolve(settings("training.clip_norm=0"), task_for(digits)).training.clip_norm == 0


def test_steps_take_the_place_of_epochs(digits: ClassificationData) -> None:
    training = resolve(settings("training.max_steps=5"), task_for(digits)).training
    assert (training.epochs, training.max_steps) == (None, 5)


@pytest.mark.parametrize(
    ("length", "every"), [("training.epochs=10", 4), ("training.max_steps=100", 2)], ids=["epochs", "steps"]
)
def test_drops_of_the_rate_come_after_thirds_of_the_run(length: str, every: int, digits: ClassificationData) -> None:
    # 1,077 training samples are 17 steps of 64, so 100 steps are 6 epochs.
    training = resolve(settings("training.schedule=step", "training.batch_size=64", length), task_for(digits)).training
    assert (training.step_epochs, training.lr_decay) == (every, 0.1)


def test_a_forecast_takes_its_windows_from_the_data(co2: ForecastData) -> None:
    task = resolve(settings(), task_for(co2)).task
    assert task.model_dump() == {
        "name": "forecast",
        "horizon": 52,
        "context_length": 104,
        "season": 52,
        "quantiles": (0.1, 0.5, 0.9),
    }


def test_no_quantiles_stay_none(co2: ForecastData) -> None:
    assert resolve(settings("task.quantiles=[]"), task_for(co2)).task.quantiles == ()


def test_missing_values_get_a_mask_channel(co2: ForecastData, digits: ClassificationData) -> None:
    assert resolve(settings(), task_for(co2)).model.mask_channel is True
    assert resolve(settings(), task_for(digits)).model.mask_channel is False
    assert resolve(settings("model.mask_channel=false"), task_for(co2)).model.mask_channel is False


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


def test_quantiles_are_not_for_classification(digits: ClassificationData) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(settings("task.quantiles=[0.5]"), task_for(digits))
    assert str(caught.value) == "task.quantiles is only used by the task 'forecast', and 'digits' is for 'classify'."


def test_momentum_meets_the_recommended_optimizer(digits: ClassificationData) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(settings("training.momentum=0.9"), task_for(digits))
    assert str(caught.value) == (
        "training.momentum is only used by the optimizers 'sgd' and 'rmsprop', got training.optimizer='adamw'."
    )


def test_unknown_cell(digits: ClassificationData) -> None:
    with pytest.raises(UnknownNameError) as caught:
        resolve(settings(cell="lipshitz"), task_for(digits))
    assert str(caught.value) == "Unknown cell 'lipshitz'. Did you mean 'lipschitz'? See `stablernn cells list`."


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


def test_times_can_be_ignored(digits: ClassificationData) -> None:
    model = resolve(settings("model.time=ignore", cell="gru"), task_for(timed(digits, 4.5))).model
    assert (model.time, model.time_step, model.max_dt) == ("ignore", None, None)


def test_a_gap_that_would_make_every_step_slow_is_refused(digits: ClassificationData) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(settings(), task_for(timed(digits, 500.0)))
    assert str(caught.value) == (
        "The longest time between two steps is 500 regular steps of 1800, for which 'lipschitz' would divide every "
        "step into 500 parts, 64 are allowed; set a longer model.time_step, or cut the sequences at the gaps."
    )


@pytest.mark.parametrize("override", ["model.time=dt", "model.max_dt=3", "model.time_step=60"])
def test_settings_of_time_need_data_with_times(digits: ClassificationData, override: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(settings(override), task_for(digits))
    name = override if override == "model.time=dt" else override.split("=")[0]
    assert str(caught.value) == (
        f"{name} need data that says when its steps were, by an array 't', and 'digits' does not."
    )


def test_orthogonal_matrices_train_at_a_tenth_of_the_rate(digits: ClassificationData) -> None:
    assert resolve(settings("training.lr=0.02", cell="urnn"), task_for(digits)).training.orthogonal_lr == pytest.approx(
        0.002
    )
    given = resolve(settings("training.orthogonal_lr=0.5", cell="scornn"), task_for(digits)).training
    assert given.orthogonal_lr == 0.5
    assert resolve(settings(), task_for(digits)).training.orthogonal_lr is None


def test_a_rate_for_orthogonal_matrices_is_refused_where_there_is_none(digits: ClassificationData) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(settings("training.orthogonal_lr=0.5", cell="gru"), task_for(digits))
    assert str(caught.value) == (
        "training.orthogonal_lr is only used by cells with an orthogonal matrix, "
        "got training.orthogonal_lr=0.5 with model.cell='gru'."
    )


@pytest.mark.parametrize(
    ("cell", "options"),
    [
        ("scornn", {"negative_signs": 30}),
        ("spectral_rnn", {"num_reflections": 40}),
        ("slstm", {"num_heads": 8}),
        ("kru", {"factors": 3}),
    ],
)
def test_options_that_depend_on_the_hidden_size_are_taken(
    digits: ClassificationData, cell: str, options: dict[str, int]
) -> None:
    words = [f"model.cell_options.{name}={value}" for name, value in options.items()]
    assert resolve(settings(*words, "model.hidden_size=64", cell=cell), task_for(digits)).model.cell_options == options


def test_a_longest_step_below_that_of_the_data_is_refused(digits: ClassificationData) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(settings("model.max_dt=2"), task_for(timed(digits, 4.5)))
    assert str(caught.value) == (
        "The longest time between two steps is 4.5 regular steps of 1800, got model.max_dt=2; leave it out, "
        "or cut the sequences at the gaps."
    )


def test_a_longer_gap_in_the_test_split_counts_too(digits: ClassificationData) -> None:
    data, test = timed(digits, 2.0), digits.test
    assert test is not None
    dt = np.full(test.x.shape[:2], 7.5, np.float32)
    assert resolve(settings(), task_for(replace(data, test=replace(test, dt=dt)))).model.max_dt == 7.5


def test_a_given_rate_moves_the_recommended_one_of_the_matrices_along(digits: ClassificationData) -> None:
    usual = resolve(settings(cell="exprnn"), task_for(digits)).training
    doubled = resolve(settings(f"training.lr={2 * (usual.lr or 0)}", cell="exprnn"), task_for(digits)).training
    assert doubled.orthogonal_lr == pytest.approx(2 * (usual.orthogonal_lr or 0))
