"""StableForecaster: forms of series and of forecasts, the run behind it, refusals."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pandas as pd
import polars as pl
import pytest
from sklearn.model_selection import GridSearchCV, TimeSeriesSplit

import stablernn as srn
from cli_helpers import Workplace
from stablernn.errors import ConfigError, DataError
from stablernn_registry import Registry

Array = npt.NDArray[Any]
STEPS = 24 * 12
QUICK: dict[str, Any] = {
    **{"cell": "gru", "hidden_size": 4, "max_steps": 12, "certified": False},
    **{"horizon": 6, "context_length": 48, "validation_steps": 24, "season": 24},
}


def load(steps: int = STEPS, phase: float = 0.0) -> Array:
    """An hourly series with a daily season."""
    generator = np.random.default_rng(int(phase))
    return 100 + 20 * np.sin(np.arange(steps) * 2 * np.pi / 24 + phase) + generator.normal(0, 1, steps)


TIMES = pd.date_range("2024-01-01", periods=STEPS, freq="h")


def long_frame(names: tuple[Any, ...] = ("north", "south"), steps: int = STEPS) -> pd.DataFrame:
    parts = [
        pd.DataFrame({"unique_id": name, "ds": TIMES[:steps], "y": load(steps, float(number))})
        for number, name in enumerate(names)
    ]
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def fitted() -> srn.StableForecaster:
    return srn.StableForecaster(**QUICK).fit(long_frame())


def test_a_long_frame_of_pandas_comes_back_as_one(fitted: srn.StableForecaster) -> None:
    forecast = fitted.predict()
    assert list(forecast.columns) == ["unique_id", "ds", "mean", "q0.1", "q0.5", "q0.9"]
    assert forecast["unique_id"].tolist() == ["north"] * 6 + ["south"] * 6
    assert forecast["ds"].tolist()[:2] == [TIMES[-1] + pd.Timedelta(hours=1), TIMES[-1] + pd.Timedelta(hours=2)]
    pd.testing.assert_frame_equal(fitted.predict(long_frame()), forecast)
    north = forecast[forecast["unique_id"] == "north"]
    np.testing.assert_allclose(north["mean"], load(STEPS + 6)[-6:], atol=8)
    assert (north["q0.1"] <= north["q0.9"]).all()


FORMS: dict[str, tuple[Callable[[pd.DataFrame], Any], Callable[[Any], Any]]] = {
    "a long frame of polars": (
        lambda df: pl.DataFrame({name: df[name].tolist() for name in df.columns}),
        lambda forecast: forecast["mean"].to_numpy().reshape(2, 6),
    ),
    "an array (series, time, channels)": (
        lambda df: df["y"].to_numpy().reshape(2, STEPS, 1),
        lambda forecast: forecast[:, :, 0],
    ),
    "a list of arrays": (lambda df: list(df["y"].to_numpy().reshape(2, STEPS)), np.stack),
}


@pytest.mark.parametrize(("form", "values"), FORMS.values(), ids=FORMS)
def test_every_form_of_the_same_series_gives_the_same_forecast(
    form: Callable[[pd.DataFrame], Any], values: Callable[[Any], Any], fitted: srn.StableForecaster
) -> None:
    forecaster = srn.StableForecaster(**QUICK).fit(form(long_frame()))
    expected = fitted.predict()["mean"].to_numpy().reshape(2, 6)
    np.testing.assert_array_equal(values(forecaster.predict()), expected)
    np.testing.assert_array_equal(values(forecaster.predict(form(long_frame()))), expected)


def test_one_series_needs_no_name() -> None:
    alone = srn.StableForecaster(**QUICK).fit(load())
    assert alone.predict().shape == (6,)
    assert alone.predict_quantiles().shape == (6, 1, 3)
    frame = pd.DataFrame({"ds": TIMES, "y": load()})
    forecast = srn.StableForecaster(**QUICK).fit(frame).predict()
    assert list(forecast.columns) == ["ds", "mean", "q0.1", "q0.5", "q0.9"]
    np.testing.assert_array_equal(forecast["mean"], alone.predict())
    series = pd.Series(load(), index=TIMES.tz_localize("Europe/Berlin"), name="load")
    indexed = srn.StableForecaster(**QUICK).fit(series).predict()
    assert indexed.index[0] == TIMES[-1].tz_localize("Europe/Berlin") + pd.Timedelta(hours=1)
    assert str(indexed.index.tz) == "Europe/Berlin"


@pytest.mark.slow
def test_several_channels_are_forecast_together() -> None:
    wide = np.stack([load(), load(phase=1.0)], axis=1)
    forecaster = srn.StableForecaster(**QUICK).fit(wide)
    assert forecaster.predict(wide).shape == (6, 2)
    frame = pd.DataFrame({"ds": TIMES, "load": wide[:, 0], "heat": wide[:, 1]})
    forecast = srn.StableForecaster(**QUICK, target=["load", "heat"]).fit(frame).predict()
    assert forecast["target"].tolist() == ["load"] * 6 + ["heat"] * 6


def test_a_score_is_the_skill_of_the_last_steps(fitted: srn.StableForecaster) -> None:
    frame = long_frame()
    head = frame.groupby("unique_id").head(STEPS - 6)
    truth = frame.groupby("unique_id").tail(6)["y"].to_numpy()
    error = np.abs(fitted.predict(head)["mean"].to_numpy() - truth).mean()
    naive = np.abs(frame.groupby("unique_id")["y"].shift(24).groupby(frame["unique_id"]).tail(6) - truth).mean()
    assert fitted.score(frame) == pytest.approx(1 - error / naive, rel=1e-4)


@pytest.mark.slow
def test_settings_are_searched_by_time_series_splits() -> None:
    search = GridSearchCV(
        srn.StableForecaster(**QUICK), {"hidden_size": [2, 4]}, cv=TimeSeriesSplit(2, test_size=120)
    ).fit(load(480))
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.predict(load()).shape == (6,)


@pytest.mark.slow
def test_it_comes_back_from_a_folder_and_from_the_registry(fitted: srn.StableForecaster, tmp_path: Path) -> None:
    fitted.save(tmp_path / "run")
    again = srn.StableForecaster.from_run(tmp_path / "run")
    pd.testing.assert_frame_equal(again.predict(), fitted.predict())
    workplace = Workplace(tmp_path)
    workplace.ok("export", "run", "--name", "load")
    version = Registry(workplace.registry).get("load")
    loaded = srn.StableForecaster.from_registry(version)
    pd.testing.assert_frame_equal(loaded.predict(long_frame()), fitted.predict())
    with pytest.raises(ConfigError, match="loaded without the series that it was trained on. Pass the series"):
        loaded.predict()
    # The command line forecasts the same from the same rows.
    long_frame().to_csv(tmp_path / "load.csv", index=False)
    workplace.ok("predict", "run", "--input", "load.csv", "--output", "forecast.csv")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "forecast.csv")["mean"], fitted.predict()["mean"], rtol=1e-6)
    with pytest.raises(ConfigError, match="is for the task 'forecast', and StableClassifier is for 'classify'"):
        srn.StableClassifier.from_run(tmp_path / "run")


@pytest.mark.slow
def test_a_stream_ends_with_the_bits_of_the_exported_sequence(tmp_path: Path) -> None:
    forecaster = srn.StableForecaster(**QUICK).fit(load())
    report = forecaster.export(tmp_path)
    assert report.parity["stream_equals_sequence"]
    session = onnxruntime.InferenceSession(report.files["sequence.onnx"])
    context = load()[-48:].astype(np.float32)
    feeds = {"x": context[None, :, None], "lengths": np.array([48])}
    states = {entry.name: np.zeros((1, entry.shape[1]), np.float32) for entry in session.get_inputs()[2:]}
    mean = session.run(["mean"], feeds | states)[0]
    stream = forecaster.stream()
    outputs = [stream.push(value) for value in context]
    # The layers read patches of samples: there is nothing new in between.
    assert sum(output is None for output in outputs) > 0
    np.testing.assert_array_equal(outputs[-1]["mean"], mean[0])  # type: ignore[index]
    np.testing.assert_allclose(mean[0, :, 0], forecaster.predict(), rtol=1e-5)
    np.testing.assert_array_equal(stream.finish()["mean"], mean[0])
    stream.push(1.0)
    with pytest.raises(DataError, match="A forecast starts after a whole patch of 3 samples, got 1 after the last"):
        stream.finish()


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "y": (lambda: srn.StableForecaster().fit(load(), load()), "The values to forecast are in X, so y must be None."),
    "no times": (
        lambda: srn.StableForecaster().fit(pd.DataFrame({"time": TIMES, "y": load()})),
        "X has no column 'ds' with times; its columns: time, y. Name the column by time_column",
    ),
    "too short": (lambda: srn.StableForecaster(**QUICK).fit(load(60)), "X has 60 steps, 78 are needed"),
    "infinity": (
        lambda: srn.StableForecaster(**QUICK).fit([load(), np.where(np.arange(STEPS) == 7, np.inf, load())]),
        "X[1, 7] is inf. Values must be finite float32 numbers",
    ),
    "text in a column": (
        lambda: srn.StableForecaster(**QUICK).fit(
            pd.DataFrame({"ds": TIMES, "y": ["1", "abc", *map(str, load()[2:])]})
        ),
        "X.iloc[1], column 'y': 'abc' is not a number. Correct it, leave it empty if the value is missing, or name the "
        "columns to read by settings={'data.channels': [...]}.",
    ),
    "rows of one time": (
        lambda: srn.StableForecaster(**QUICK).fit(pd.DataFrame({"ds": TIMES[[0, *range(STEPS - 1)]], "y": load()})),
        "X has the time 2024-01-01 twice, in X.iloc[0] and X.iloc[1]. Name the column that tells series apart by "
        "id_column, or pass settings={'data.on_duplicate': 'mean'}.",
    ),
    "a channel of nothing": (
        lambda: srn.StableForecaster(**QUICK).fit(np.stack([load(), np.full(STEPS, np.nan)], axis=1)),
        "X has no value at all in channel 1 of the training steps.",
    ),
    "settings that exclude each other": (
        lambda: srn.StableForecaster(**QUICK, frequency="D", settings={"data.resample": "2h"}).fit(long_frame()),
        "settings={'data.resample': '2h'} makes steps of that length, and frequency='D' asks for others. Leave "
        "frequency out.",
    ),
    "a parameter": (
        lambda: srn.StableForecaster(**QUICK, calendar=["hour"]).fit(load()),
        "calendar.0 must be 'day', 'week' or 'year', got 'hour'.",
    ),
    "quantiles of frames": (
        lambda: srn.StableForecaster(**QUICK).fit(long_frame()).predict_quantiles(),
        "The quantiles of frames are columns of predict, such as q0.1.",
    ),
    "another frequency": (
        lambda: srn.StableForecaster(**QUICK).fit(long_frame()).predict(long_frame()[::3]),
        "X: series 'north' is in steps of '3h', and the model was trained on steps of 'h'",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_in_a_sentence(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.slow
def test_an_error_in_a_process_of_the_search_names_parameters() -> None:
    forecaster = srn.StableForecaster(
        horizon=4, context_length=16, cell="auto", budget="300steps", settings={"model.log": True}
    )
    with pytest.raises(ConfigError, match=re.escape("pass settings={'model.log': False}.")):
        forecaster.fit(np.sin(np.arange(300) / 5))
