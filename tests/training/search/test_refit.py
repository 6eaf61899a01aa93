"""Recipes that train on the validation split as well, and settings that keep it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forecast_helpers import many_series
from stablernn.data import ClassificationData, SequenceSplit
from stablernn.data.step_data import Data
from stablernn.training import train
from stablernn.training.search.budget import Budget
from stablernn.training.search.candidates import find_candidates
from stablernn.training.search.recipes import recipes
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
@pytest.mark.parametrize("task", ["classify", "forecast"])
def test_a_validation_split_stays_where_a_setting_needs_it(
    training: dict[str, Any], task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stablernn.training.search.recipes.MANY_WINDOWS", 0)
    data: Data = sequences() if task == "classify" else many_series([np.arange(40.0)[:, None] for _ in range(3)])
    source = {"data": {"source": "toy"}}
    usual = find_candidates(validate(source), data)[0]
    validated = find_candidates(validate({**source, "training": training}), data)[0]
    assert usual.recipe == validated.recipe == recipes(data)[0]
    assert usual.config.training.refit
    assert not validated.config.training.refit


@pytest.mark.parametrize("keeps_validation", [False, True])
def test_many_windows_are_all_trained_on(
    keeps_validation: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stablernn.training.search.recipes.MANY_WINDOWS", 0)
    tiny = ["task.horizon=8", "model.hidden_size=4", "training.max_steps=3", "training.plots=false"]
    calibrated = ["training.calibrate=true"] if keeps_validation else []
    config = load_config(overrides=["data.source=co2", *tiny, *calibrated])
    summary = train(config, tmp_path / "run", budget=Budget.parse("4steps"))
    assert summary["metrics"].keys() == ({"validation", "test"} if keeps_validation else {"test"})
    assert ("gate" in summary) == keeps_validation


def test_the_unit_of_scores_does_not_depend_on_whether_validation_steps_are_trained_on() -> None:
    def scorer(refit: bool) -> tuple[int, dict[str, Any]]:
        overrides = [
            "data.source=co2",
            "task.horizon=8",
            "model.cell=lipschitz",
            f"training.refit={str(refit).lower()}",
        ]
        part, scored = _part(Trial(0, load_config(overrides=overrides), 0, 3))
        return len(part.windows("train")), task_for(scored).scorer("test", load_config(overrides=overrides)).naive

    (held_out, naive), (refitted, same_naive) = scorer(False), scorer(True)
    assert refitted > held_out
    assert same_naive == naive
    assert "mase" in naive["seasonal_naive"]
