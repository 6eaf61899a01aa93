"""Forecasts over irregular time stamps: who is told the distances, and in which unit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stablernn.data import ForecastData
from stablernn.errors import ConfigError
from stablernn.training.resolve import resolve
from stablernn.training.run_data import load_run_data
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import load_config
from stablernn.training.tasks import task_for


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("irregular") / "d.csv"
    stamps = np.cumsum(np.random.RandomState(0).randint(1, 5, 80)) * 600
    rows = [f"{np.datetime64('2024-01-01T00:00:00') + stamp},{np.sin(stamp / 5000):.4f}" for stamp in stamps]
    path.write_text("\n".join(["ds,y", *rows]))
    return path


def settings(source: Path, *overrides: str) -> Config:
    return load_config(overrides=[f"data.source={source}", "task.horizon=3", *overrides])


def resolved(source: Path, *overrides: str) -> Config:
    config = settings(source, *overrides)
    return resolve(config, task_for(load_run_data(config)))


def test_a_cell_that_takes_time_is_told_it(source: Path) -> None:
    model = resolved(source, "model.cell=lem").model
    assert (model.time, model.time_step) == ("dt", 1800.0)
    assert model.max_dt == pytest.approx(4 / 3)


def test_a_cell_that_is_asked_to_and_cannot_is_refused(source: Path) -> None:
    with pytest.raises(ConfigError, match=r"^'d\.csv' says when its steps were, and model\.cell='gru' takes no time"):
        resolved(source, "model.cell=gru", "model.time=dt")


def test_the_data_of_a_run_is_measured_in_its_step(source: Path) -> None:
    told = load_run_data(resolved(source, "model.cell=lem", "model.time_step=600"))
    assert isinstance(told, ForecastData)
    assert (told.time_step, told.longest_step()) == (600.0, 4.0)
    not_told = load_run_data(resolved(source, "model.cell=gru"))
    assert isinstance(not_told, ForecastData)
    assert (not_told.time_step, not_told.windows("train").gather([0]).dt) == (None, None)


def test_regular_data_serves_a_model_that_is_told_the_time(source: Path, tmp_path: Path) -> None:
    rows = [f"{np.datetime64('2024-01-01T00:00:00') + 2400 * step},{step}" for step in range(60)]
    (tmp_path / "even.csv").write_text("\n".join(["ds,y", *rows]))
    data = load_run_data(resolved(source, "model.cell=lem"), str(tmp_path / "even.csv"))
    assert isinstance(data, ForecastData)
    assert data.frequency == "40min"
    assert data.longest_step() == pytest.approx(4 / 3)
