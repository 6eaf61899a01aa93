"""Recipes that train on the validation split as well, and settings that keep it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stablernn.data import ClassificationData, ForecastData, SequenceSplit
from stablernn.training.search.candidates import find_networks, recipes
from stablernn.training.search.trial import Trial, _part
from stablernn.training.settings.load import load_config, validate
from stablernn.training.tasks import task_for


def sequences() -> ClassificationData:
    def split(count: int) -> SequenceSplit:
        numbers = np.arange(count)
        return SequenceSplit(np.ones((count, 12, 1), np.float32), np.full(count, 12), numbers % 3, ())

    return ClassificationData("toy", ("a", "b", "c"), ("x",), split(24), split(6), None, {}, "sha256:0")


@pytest.mark.parametrize(
    "training", [{"patience": 3}, {"patience_steps": 9}, {"calibrate": True}, {"schedule": "plateau"}, {"refit": False}]
)
def test_a_validation_split_stays_where_a_setting_needs_it(training: dict[str, Any]) -> None:
    data, source = sequences(), {"data": {"source": "toy"}}
    usual = find_networks(validate(source), data)[0]
    validated = find_networks(validate({**source, "training": training}), data)[0]
    assert usual.recipe == validated.recipe == recipes(data)[0]
    assert usual.config.training.refit
    assert not validated.config.training.refit


def test_the_unit_of_scores_does_not_depend_on_whether_validation_steps_are_trained_on() -> None:
    def scorer(refit: bool) -> tuple[int, dict[str, Any]]:
        overrides = [
            "data.source=co2",
            "task.horizon=8",
            "model.cell=lipschitz",
            f"training.refit={str(refit).lower()}",
        ]
        part, scored = _part(Trial(0, load_config(overrides=overrides), 0))
        assert isinstance(part, ForecastData)
        return len(part.windows("train")), task_for(scored).scorer("test", load_config(overrides=overrides)).naive

    (held_out, naive), (refitted, same_naive) = scorer(False), scorer(True)
    assert refitted > held_out
    assert same_naive == naive
    assert "mase" in naive["seasonal_naive"]
