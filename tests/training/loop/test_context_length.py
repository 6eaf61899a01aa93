"""A context length where no season says how far back to look: chosen by forecasts of the validation windows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forecast_helpers import many_series
from stablernn.data import ForecastData
from stablernn.errors import InterruptedRun
from stablernn.training import Progress, load_config, train
from stablernn.training.data_report import check_run_data
from stablernn.training.dry_run import add_plan
from stablernn.training.loop.linear_skip import choose_context

PERIOD = 13
CHOSEN = 32
"""Twice the period and more, over which the noise of the context is averaged."""


def weekly(count: int = 3, steps: int = 150, *, amplitude: float = 1.0, **changes: Any) -> ForecastData:
    """Series with a period that nobody names, and noise."""
    random = np.random.default_rng(0)
    time = np.arange(steps)
    values = [
        10 + amplitude * np.sin(2 * np.pi * (time + 4 * number) / PERIOD) + 0.1 * random.normal(size=steps)
        for number in range(count)
    ]
    settings: dict[str, Any] = {"season": 1, "horizon": 2, "context_length": 4, "has_default_context": True}
    settings |= {"validation_steps": 30, "test_steps": 20}
    return many_series([series[:, None] for series in values], **(settings | changes))


def test_a_context_that_holds_the_period_is_chosen() -> None:
    data = weekly()
    got = choose_context(data, 0.01)
    assert got.context_length == CHOSEN > PERIOD
    tried = got.notes["context_length"]
    assert (tried["chosen"], tried["by"]) == (CHOSEN, "linear forecasts of the validation windows")
    scores = {row["context_length"]: row["mase"] for row in tried["tried"]}
    assert list(scores) == [4, 8, 16, 32]
    assert scores[CHOSEN] < 0.7 * scores[4]
    least = min(scores.values())
    assert [row["context_length"] for row in tried["tried"] if row["mase"] - least <= row["standard_error"]][
        0
    ] == CHOSEN
    assert {word: count["kept"] for word, count in got.notes["windows"].items()} == {
        word: len(got.windows(word)) for word in ("train", "validation", "test")
    }
    assert len(got.windows("validation")) == len(data.windows("validation"))
    assert len(got.windows("test")) == len(data.windows("test"))


def test_a_longer_context_that_gains_nothing_is_not_taken() -> None:
    values = weekly(amplitude=0.0).series
    walks = [np.cumsum(one.values, axis=0) for one in values]
    settings = {"season": 1, "context_length": 4, "has_default_context": True, "validation_steps": 30, "test_steps": 20}
    assert choose_context(many_series(walks, **settings), 0.01).context_length == 4


@pytest.mark.parametrize("changes", [{"has_default_context": False}, {"season": 3}])
def test_a_given_context_and_a_known_season_stay(changes: dict[str, Any]) -> None:
    data = weekly(**changes)
    assert choose_context(data, 0.01) is data


TINY = ["model.cell=rnn", "model.hidden_size=4", "training.max_steps=2", "training.device=cpu", "task.horizon=2"]
TINY += ["training.plots=false"]


def write(path: Path) -> Path:
    rows = [
        f"{one.unique_id},{time},{value:.4f}" for one in weekly().series for time, value in enumerate(one.values[:, 0])
    ]
    path.write_text("\n".join(["unique_id,ds,y", *rows]) + "\n")
    return path


def test_a_run_records_what_was_tried_and_resumes_with_it(tmp_path: Path) -> None:
    overrides = [f"data.source={write(tmp_path / 'weekly.csv')}", *TINY]

    def stop(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(InterruptedRun):
        train(load_config(overrides=overrides), tmp_path / "run", progress=stop)
    summary = train(None, tmp_path / "run", resume=True)
    assert summary["context_length"]["chosen"] == CHOSEN
    described = json.loads((tmp_path / "run/data.json").read_text())
    assert described["context_length"] == CHOSEN
    assert described["notes"]["context_length"] == summary["context_length"]
    config = load_config(overrides=overrides)
    _, plan = add_plan(check_run_data(config), config)
    assert plan is not None
    assert plan["context_length"] == CHOSEN
