"""Spaces: their parameters are settings that exist, the first trial is the recommended model, fixed ones are left."""

from __future__ import annotations

import optuna
import pytest

from forecast_helpers import EACH_TRAINED
from model_helpers import TRAINED
from stablernn.catalog import get_cell_facts
from stablernn.data.step_data import Data
from stablernn.errors import ConfigError
from stablernn.training.resolve import resolve
from stablernn.training.search.trial import load_all
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import validate
from stablernn.training.tasks import task_for
from stablernn.training.tune.space import CELL, CELL_OPTIONS, Space, build_space
from tune_helpers import write_waves

CELLS = TRAINED


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Data]:
    folder = tmp_path_factory.mktemp("space")
    write_waves(folder)
    config = validate({"data": {"source": str(folder / "waves_TRAIN.npz")}})
    return config, load_all(config)


def space_of(data: tuple[Config, Data], *cells: str, require: str = "none", **sections: object) -> Space:
    config = validate({**data[0].model_dump(mode="json", exclude_unset=True), **sections})
    return build_space(config, cells, data[1], require)


@pytest.mark.parametrize("cell", CELL_OPTIONS)
def test_the_options_that_are_searched_are_options_of_the_cell(cell: str) -> None:
    options = get_cell_facts(cell)["options"]["practical"]
    assert {parameter.name for parameter in CELL_OPTIONS[cell]} <= options.keys()


@pytest.mark.parametrize("cell", EACH_TRAINED)
def test_the_first_trial_has_the_recommended_settings(data: tuple[Config, Data], cell: str) -> None:
    space, task = space_of(data, cell), task_for(data[1])
    recommended = resolve(space.run_config({CELL: cell}), task)
    first = resolve(space.run_config(space.settings(space.recommended(cell, recommended))), task)
    expected, settings = recommended.by_key(), first.by_key()
    options = get_cell_facts(cell)["options"]["practical"]
    for key, value in settings.items():
        option = key.removeprefix("model.cell_options.")
        # Options that depend on the hidden size have no value in the catalog.
        if option == key or option in options:
            default = expected.get(key) if option == key or options[option] is None else options[option]
            assert value == default or (option != key and default is None), key


def test_every_suggestion_is_a_model_that_can_be_trained(data: tuple[Config, Data]) -> None:
    space, task = space_of(data, *CELLS), task_for(data[1])
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(60):
        trial = study.ask()
        params = space.suggest(trial)
        assert params == trial.params
        resolve(space.run_config(space.settings(params)), task)


def test_a_setting_of_the_user_is_no_parameter(data: tuple[Config, Data]) -> None:
    model = {"hidden_size": 8, "patch_stride": 2, "num_layers": 1, "cell_options": {"step_size": 0.1}}
    space = space_of(data, "lipschitz", model=model, training={"lr": 0.01})
    names = space.document().keys()
    assert names == {
        "training.weight_decay",
        *(f"lipschitz.{option}" for option in ("skew_weight", "linear_damping", "recurrent_damping")),
    }


def test_a_search_of_nothing_is_refused(data: tuple[Config, Data]) -> None:
    model = {"hidden_size": 8, "patch_stride": 2, "num_layers": 1}
    with pytest.raises(ConfigError, match="Every setting that could be searched is fixed"):
        space_of(data, "lru", model=model, training={"lr": 0.01, "weight_decay": 0.0})
    with pytest.raises(ConfigError, match="Nothing is searched for the cell 'rocket'"):
        space_of(data, "lru", "rocket")
