"""The adapters in examples/libraries, with the libraries that are installed."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from stablernn import StableForecaster

LIBRARIES = Path(__file__).parents[2] / "examples" / "libraries"


pytestmark = pytest.mark.slow


def hourly(steps: int, phase: float = 0.0) -> np.ndarray[Any, Any]:
    return 100 + 20 * np.sin(np.arange(steps) * 2 * np.pi / 24 + phase)


@pytest.mark.filterwarnings("default")
def test_the_classifier_of_aeon() -> None:
    pytest.importorskip("aeon", reason="aeon is not installed")
    names = runpy.run_path(str(LIBRARIES / "aeon_classifier.py"))
    generator = np.random.default_rng(0)
    y = np.array(["slow", "fast"] * 20)
    waves = [
        np.sin(np.arange(generator.integers(20, 30)) * (0.3 if label == "slow" else 1.1))[None] + [[0.0], [1.0]]
        for label in y
    ]
    classifier = names["AeonClassifier"]("gru", max_steps=60).fit(waves, y)
    assert (classifier.predict(waves) == y).mean() > 0.9
    assert classifier.predict_proba(waves).shape == (40, 2)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("has_dates", [True, False], ids=["dates", "numbers"])
def test_the_forecaster_of_sktime(has_dates: bool) -> None:
    pytest.importorskip("sktime", reason="sktime is not installed")
    names = runpy.run_path(str(LIBRARIES / "sktime_forecaster.py"))
    index = pd.date_range("2024-01-01", periods=400, freq="h") if has_dates else pd.RangeIndex(400)
    series = pd.Series(hourly(400), index=index, name="load")
    forecaster = names["SktimeForecaster"](context_length=48, max_steps=20)
    forecast = forecaster.fit(series, fh=[1, 2, 6]).predict()
    assert len(forecast) == 3
    assert forecast.index[0] == (index[-1] + pd.Timedelta(hours=1) if has_dates else 400)
    np.testing.assert_allclose(forecast, hourly(406)[[400, 401, 405]], atol=6)


def test_cross_validation_in_the_form_of_nixtla() -> None:
    generator = np.random.default_rng(0)
    frames = [
        pd.DataFrame(
            {
                "unique_id": name,
                "ds": pd.date_range("2024-01-01", periods=24 * 22, freq="h"),
                "y": hourly(24 * 22, phase) + generator.normal(0, 1, 24 * 22),
            }
        )
        for name, phase in (("north", 0.0), ("south", 1.0))
    ]
    df = pd.concat(frames, ignore_index=True)
    cross_validation = runpy.run_path(str(LIBRARIES / "nixtla_cross_validation.py"))["cross_validation"]
    forecaster = StableForecaster(horizon=24, context_length=168, max_steps=200)
    windows = cross_validation(forecaster, df, n_windows=3, step_size=24)
    errors = (windows["y"] - windows["StableForecaster"]).abs().groupby(windows["cutoff"]).mean()
    assert list(windows.columns[:3]) == ["unique_id", "ds", "StableForecaster"]
    assert len(windows) == 2 * 3 * 24
    assert windows["y"].notna().all()
    assert (windows["ds"] > windows["cutoff"]).all()
    assert (windows["ds"] - windows["cutoff"]).max() == pd.Timedelta(hours=24)
    assert errors.index.tolist() == sorted(df["ds"].unique())[-73::24][:3]
    assert errors.max() < 3
    assert not windows.duplicated(["unique_id", "ds"]).any()
    # Nothing after the first origin was trained on.
    assert forecaster.run_.data["splits"]["train"] > 0
