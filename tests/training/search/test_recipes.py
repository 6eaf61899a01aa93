"""The recipes of a task, and the settings that they leave to the user."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forecast_helpers import many_series
from search_helpers import sequences
from stablernn.data import ClassificationData
from stablernn.errors import ConfigError
from stablernn.training.search.candidates import (
    find_closed_forms,
    find_networks,
    merge,
    open_settings,
    recipes,
)
from stablernn.training.settings.load import validate


def test_a_setting_of_the_user_wins_and_equal_recipes_are_tried_once() -> None:
    data = sequences()
    config = validate({"data": {"source": "toy"}, "model": {"hidden_size": 7}, "training": {"shift": 0.2}})
    candidates = find_networks(config, data)
    assert {candidate.config.model.hidden_size for candidate in candidates} == {7}
    assert {candidate.config.training.shift for candidate in candidates} == {0.2}
    names = [candidate.recipe.name for candidate in candidates]
    # They differ from the first in a setting that is given.
    assert "lru, 128 units" not in names
    assert "lru, any start" not in names
    assert len(names) < len(recipes(data))


def test_only_what_the_user_left_open_counts_as_chosen() -> None:
    config = validate({"data": {"source": "toy"}, "model": {"cell": "auto"}, "training": {"refit": False}})
    settings = {"model.cell": "lru", "model.hidden_size": 128, "training.refit": True}
    assert open_settings(config, settings) == {"model.cell": "lru", "model.hidden_size": 128}
    assert merge(config, settings).training.refit is False


def test_closed_forms_have_random_layers_that_are_proved_and_stay_below_settings_of_the_user() -> None:
    kernels, first = find_closed_forms(validate({"data": {"source": "x"}}), sequences())
    assert (kernels.recipe.name, kernels.proof) == ("rocket, closed form", "bounded")
    assert (first.recipe.name, first.proof) == ("lru, closed form", "contracting")
    assert (first.config.model.hidden_size, first.config.training.refit) == (256, True)
    certified = validate({"data": {"source": "x"}, "training": {"certified": True}})
    assert "rocket" not in {candidate.config.model.cell for candidate in find_closed_forms(certified, sequences())}
    data = sequences()
    splits = {name: replace(split, dt=np.ones(split.x.shape[:2], np.float32)) for name, split in data.splits().items()}
    timed = replace(data, time_step=1.0, **splits)
    *_, own = find_closed_forms(validate({"data": {"source": "x"}, "model": {"hidden_size": 8}}), timed)
    assert (own.config.model.cell, own.config.model.hidden_size, own.proof) == ("lipschitz", 8, "contracting")
    for training in ({"lr": 0.1}, {"method": "gradient"}):
        assert not find_closed_forms(validate({"data": {"source": "x"}, "training": training}), sequences())
    asked_for = validate({"data": {"source": "x"}, "training": {"method": "closed-form", "lr": 0.1}})
    with pytest.raises(ConfigError, match=r"training\.lr is only used by training\.method=gradient"):
        find_closed_forms(asked_for, sequences())


def test_logarithms_are_smoothed_where_all_values_are_positive_and_smoothing_is_certified_on_request() -> None:
    config = validate({"data": {"source": "x"}, "training": {"certified": True}})
    for lowest, names in ((1.0, ["linear", "smoothing", "smoothing, log"]), (0.0, ["linear", "smoothing"])):
        data = many_series([lowest + np.arange(40.0)[:, None] for _ in range(3)])
        candidates = find_closed_forms(config, data)
        assert [candidate.recipe.name for candidate in candidates] == names
        assert {candidate.proof for candidate in candidates[1:]} == {"bounded"}


def test_many_windows_begin_with_a_larger_network(monkeypatch: pytest.MonkeyPatch) -> None:
    data = many_series([np.arange(40.0)[:, None] for _ in range(3)])
    assert recipes(data)[0].settings == {"model.cell": "lipschitz"}
    monkeypatch.setattr("stablernn.training.search.candidates.MANY_WINDOWS", len(data.windows("train")) - 1)
    every = recipes(data)
    assert every[0].settings == {"model.cell": "lru", "model.hidden_size": 128, "training.lr": 0.01}
    assert {recipe.most_epochs for recipe in every} == {20}


@pytest.mark.parametrize(("lowest", "is_log"), [(0.0, False), (1.0, True), (8.0, False)])
def test_networks_read_logarithms_of_positive_series_that_differ_by_factors(lowest: float, is_log: bool) -> None:
    data = many_series([np.linspace(start, 39.5, 40)[:, None] for start in (9.0, lowest)])
    assert {recipe.settings.get("model.log", False) for recipe in recipes(data)} == {is_log}
    for model in ({"scaling": "standard"}, {"head": "recursive"}):
        config = validate({"data": {"source": "x"}, "model": model})
        assert not any(each.config.model.log for each in find_networks(config, data))


def varied(shortest: int, longest: int, **changes: Any) -> ClassificationData:
    """Sequences whose lengths are spread evenly."""
    data = sequences(length=longest)
    lengths = np.linspace(shortest, longest, len(data.train)).astype(np.int64)
    return replace(data, train=replace(data.train, lengths=lengths), **changes)


def test_resampling_is_tried_only_on_lengths_that_vary_much() -> None:
    resampled = [recipe for recipe in recipes(varied(29, 361)) if not recipe.streams]
    assert [recipe.settings["model.resample_steps"] for recipe in resampled] == [100]
    assert "cannot stream" in resampled[0].purpose
    assert all(recipe.streams for recipe in recipes(varied(200, 361)))
    # Samples with times need not be equidistant.
    assert all(recipe.streams for recipe in recipes(varied(29, 361, time_step=1.0)))
