"""Columns of a wide table as series of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from stablernn.data import ForecastData, load_data, read_inputs
from stablernn.errors import ConfigError, DataError
from stablernn.training import evaluate, load_config, load_run, train

STEPS = 40


def wide(tmp_path: Path, header: str = "ds,a,b,known", *, series: int = 1) -> Path:
    names = header.split(",")
    rows = [("unique_id," if series > 1 else "") + header]
    for number in range(series):
        for step in range(STEPS):
            values = [f"{100 * number + 10 * place + step % (3 + place)}" for place in range(len(names) - 1)]
            rows.append(",".join([*([f"s{number}"] if series > 1 else []), str(step), *values]))
    path = tmp_path / "wide.csv"
    path.write_text("\n".join(rows))
    return path


def load(path: Path | str, **options: Any) -> ForecastData:
    data = load_data(path, channels_as_series=True, **options)
    assert isinstance(data, ForecastData)
    return data


def plain(path: Path | str, **options: Any) -> ForecastData:
    data = load_data(path, **options)
    assert isinstance(data, ForecastData)
    return data


def test_each_column_is_a_series(tmp_path: Path) -> None:
    path = wide(tmp_path)
    before = plain(path, target=["a", "b", "known"])
    data = load(path)
    assert [one.unique_id for one in data.series] == ["a", "b", "known"]
    assert (data.channels, data.targets, data.future) == (("y",), ("y",), ())
    for place, one in enumerate(data.series):
        np.testing.assert_array_equal(one.values[:, 0], before.series[0].values[:, place])
        np.testing.assert_array_equal(one.ds, before.series[0].ds)
    assert (data.horizon, data.context_length, data.season) == (before.horizon, before.context_length, before.season)
    assert data.notes["channels_as_series"] == ["a", "b", "known"]
    assert data.notes["series"] == 3
    assert "channels_left_out" not in data.notes
    assert data.notes["windows"] == data.window_counts()
    assert len(data.windows("train")) == 3 * len(before.windows("train"))


def test_what_is_known_in_advance_goes_with_each_series(tmp_path: Path) -> None:
    path = wide(tmp_path)
    data = load(path, target=["b"], future=["known"])
    assert [one.unique_id for one in data.series] == ["b"]
    assert (data.channels, data.targets, data.future) == (("y", "known"), ("y",), ("known",))
    before = plain(path, target=["b"], future=["known"])
    columns = [before.channels.index("b"), before.channels.index("known")]
    np.testing.assert_array_equal(data.series[0].values, before.series[0].values[:, columns])
    assert data.notes["channels_left_out"] == ["a"]
    assert [one.unique_id for one in load(path, future=["known"]).series] == ["a", "b"]


def test_the_fingerprint_says_which_columns(tmp_path: Path) -> None:
    path = wide(tmp_path)
    found = {
        plain(path, target=["a", "b"]).fingerprint,
        load(path).fingerprint,
        load(path, target=["a", "b"]).fingerprint,
        load(path, target=["b", "a"]).fingerprint,
    }
    assert len(found) == 4
    assert load(path).fingerprint == load(path).fingerprint


@pytest.mark.parametrize(
    ("header", "options", "sentence"),
    [
        (
            "ds,a,b,known",
            {"target": ["a", "known"], "future": ["known"]},
            "'known' is a target and is in future; what is to be forecast is",
        ),
        (
            "ds,a,b,y",
            {"target": ["a"], "future": ["y"]},
            r"data\.channels_as_series calls what is forecast 'y', and a.*data\.future",
        ),
    ],
)
def test_names_that_cannot_be(tmp_path: Path, header: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(wide(tmp_path, header), **options)


def test_a_column_without_a_value_is_no_series(tmp_path: Path) -> None:
    path = tmp_path / "wide.csv"
    path.write_text("\n".join(["ds,a,b", *(f"{step},{step}," for step in range(STEPS))]))
    with pytest.raises(
        DataError, match=r"'wide\.csv' has no value at all in column 'b' of the training.*data\.channels"
    ):
        load(path)
    # In one of two series there are values of it.
    rows = [f"s{series},{step},{step},{step if series else ''}" for series in range(2) for step in range(STEPS)]
    path.write_text("\n".join(["unique_id,ds,a,b", *rows]))
    with pytest.raises(DataError, match=r"'wide\.csv' has no value at all in the channel that is series.*data\.target"):
        load(path)


@pytest.mark.slow
def test_a_run_on_columns_is_scored_again(tmp_path: Path) -> None:
    path = wide(tmp_path, "ds,a,b")
    overrides = [f"data.source={path}", "data.channels_as_series=true", "model.cell=rnn", "model.hidden_size=4"]
    overrides += ["training.max_steps=2", "training.threads=1", "training.device=cpu", "training.plots=false"]
    summary = train(load_config(overrides=overrides), tmp_path / "run")
    run = load_run(tmp_path / "run")
    data = run.load_data()
    assert isinstance(data, ForecastData)
    assert data.fingerprint == run.data["fingerprint"]
    assert evaluate(run.predictor(), data, "test")["mae"] == pytest.approx(summary["metrics"]["test"]["mae"])
    other = tmp_path / "other.csv"
    other.write_text("\n".join(["ds,u,v,w", *(f"{n},{n % 4},{n % 5},{n % 6}" for n in range(STEPS))]))
    elsewhere = run.load_data(str(other))
    assert isinstance(elsewhere, ForecastData)
    assert [one.unique_id for one in elsewhere.series] == ["u", "v", "w"]


@pytest.mark.parametrize("future", [(), ("known",)])
@pytest.mark.parametrize("series", [1, 2])
def test_a_wide_file_to_predict_from_is_split_in_the_same_way(
    tmp_path: Path, series: int, future: tuple[str, ...]
) -> None:
    path = wide(tmp_path, series=series)
    if future:
        # Four steps ahead, of which only what is known in advance is told.
        names = [f"s{number}," for number in range(series)] if series > 1 else [""]
        lines = path.read_text().splitlines()
        parts = [lines[1 + number * STEPS : 1 + (number + 1) * STEPS] for number in range(series)]
        ahead = [[f"{name}{STEPS + step},,,{step}" for step in range(4)] for name in names]
        path.write_text(
            "\n".join([lines[0], *(line for both in zip(parts, ahead, strict=True) for part in both for line in part)])
        )
    options: dict[str, Any] = {"future": future, "horizon": 4} if future else {}
    found = read_inputs(path, task="forecast", features=("y", *future), channels_as_series=True, **options)
    trained = load(wide(tmp_path, series=series), future=future)
    assert found.ids == tuple(one.unique_id for one in trained.series)
    for row, length, one in zip(found.x, found.lengths, trained.series, strict=True):
        np.testing.assert_array_equal(row[:length], one.values)
    if future:
        assert found.future is not None
        np.testing.assert_array_equal(found.future[..., 0], [[0, 1, 2, 3]] * len(found))


def test_a_long_file_to_predict_from_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("unique_id,ds,y\n" + "".join(f"{name},{step},{step}\n" for name in "pq" for step in range(9)))
    found = read_inputs(path, task="forecast", features=("y",), channels_as_series=True)
    assert found.ids == ("p", "q")


@pytest.mark.parametrize(
    ("names", "exclude", "expected"),
    [
        (None, ["b"], ["a"]),
        (["s"], ["a"], ["b"]),
        # Of one series that is left the names are still those of two.
        (["s", "t"], ["t"], ["s/a", "s/b"]),
        (["s", "t"], ["t", "s/b"], ["s/a"]),
    ],
)
def test_series_are_left_out_by_the_names_of_the_answers(
    tmp_path: Path, names: list[str] | None, exclude: list[str], expected: list[str]
) -> None:
    path = tmp_path / "d.csv"
    wide = pl.DataFrame({"ds": range(5), "a": np.arange(5.0), "b": np.arange(5.0)})
    frame = wide if names is None else pl.concat([wide.with_columns(unique_id=pl.lit(name)) for name in names])
    frame.write_csv(path)
    faults = dict.fromkeys(exclude, "Why.")
    inputs = read_inputs(path, task="forecast", features=("y",), channels_as_series=True, exclude=faults)
    assert list(inputs.ids) == expected


def test_bad_cells_are_faults_of_their_columns_alone(tmp_path: Path) -> None:
    columns = {
        "ds": range(5),
        "good": np.arange(5.0),
        "text": ["1", "x", "3", "y", "5"],
        "large": [1.0, np.inf, 3, 4, 5],
    }
    columns["counter"] = 1.7e9 + np.arange(5) / 100
    pl.DataFrame(columns).write_parquet(tmp_path / "d.parquet")
    options: dict[str, Any] = {"task": "forecast", "features": ("y",), "channels_as_series": True}
    with pytest.raises(DataError, match="row 2, column 'text': 'x' is not a number") as refusal:
        read_inputs(tmp_path / "d.parquet", **options)
    faults = dict(refusal.value.series)
    assert faults.keys() == {"text", "large"}
    assert faults["large"].startswith("'d.parquet' row 2, column 'large' is inf.")
    with pytest.raises(DataError, match="column 'counter' goes from 1700000000 to") as refusal:
        read_inputs(tmp_path / "d.parquet", **options, exclude=faults)
    faults |= refusal.value.series
    assert faults.keys() == {"text", "large", "counter"}
    inputs = read_inputs(tmp_path / "d.parquet", **options, exclude=faults)
    assert inputs.ids == ("good",)
    np.testing.assert_array_equal(inputs.x[0, :, 0], np.arange(5))
    assert "ignored_columns" not in inputs.notes
