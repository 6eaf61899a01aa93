"""Models of other libraries: their names, their tasks, and their scores where the extra `compare` is installed."""

from __future__ import annotations

import importlib.util

import pytest

from stablernn.compare.baselines import baselines_of, check_baseline, score_baseline
from stablernn.errors import ConfigError
from stablernn.training import load_config, load_run_data

DIGITS = ["data.source=digits", "model.cell=lru"]
CO2 = ["data.source=co2", "model.cell=lru"]


def test_names_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"^There is no baseline 'rocket'\. Allowed are minirocket, .*, autotheta\.$"):
        baselines_of(["rocket"])


@pytest.mark.parametrize(("name", "settings"), [("autoets", DIGITS), ("minirocket", CO2)])
def test_a_baseline_of_another_task_is_refused(name: str, settings: list[str]) -> None:
    data = load_run_data(load_config(overrides=settings))
    with pytest.raises(
        ConfigError, match=rf"^The baseline '{name}' is not for the task '{data.task}' of '{data.name}'"
    ):
        check_baseline(name, data)  # type: ignore[arg-type]


@pytest.mark.skipif(importlib.util.find_spec("aeon") is None, reason="the extra `compare` is not installed")
@pytest.mark.parametrize("name", ["minirocket", "1nn-dtw"])
def test_classifiers_of_aeon_classify(name: str) -> None:
    figures = score_baseline(name, load_config(overrides=DIGITS), [0])  # type: ignore[arg-type]
    assert figures["scores"]["accuracy"] > 0.9


@pytest.mark.skipif(importlib.util.find_spec("statsforecast") is None, reason="the extra `compare` is not installed")
def test_forecasters_of_statsforecast_forecast() -> None:
    figures = score_baseline("autotheta", load_config(overrides=CO2), [0])
    assert figures["scores"]["mae"] < figures["scores"]["mae"] / figures["scores"]["relative_mae"]
