"""Forecasts of a scorer go on from the times of the table, as those of ``predict`` do."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from cli_helpers import NO_PLOTS, Workplace
from published_models import Published
from stablernn_runtime.calendar import DataZone, advance
from stablernn_runtime.scoring import Scorer
from stablernn_runtime.scoring.scorer import times_ahead

FIRST = datetime(2024, 1, 1)


def hours(*numbers: int) -> list[datetime]:
    return [datetime(2024, 1, 1, number) for number in numbers]


@pytest.mark.parametrize(
    ("times", "frequency", "ahead"),
    [
        (hours(3, 4, 5), "h", hours(6, 7)),
        (hours(3, 5), None, hours(7, 9)),
        ([datetime(2024, 1, 31), datetime(2024, 2, 29)], "ME", [datetime(2024, 3, 31), datetime(2024, 4, 30)]),
        ([FIRST], "YS", [datetime(2025, 1, 1), datetime(2026, 1, 1)]),
        ([date(2024, 1, 31), date(2024, 2, 29)], "BME", [datetime(2024, 3, 29), datetime(2024, 4, 30)]),
        ([date(2024, 1, 30), date(2024, 2, 29)], "MS-30", [datetime(2024, 3, 30), datetime(2024, 4, 30)]),
        ([3, 5, 7], None, [9, 11]),
    ],
    ids=[
        "hours",
        "own steps",
        "ends of months",
        "years",
        "business",
        "clipped",
        "integers",
    ],
)
def test_times_go_on(times: list[Any], frequency: str | None, ahead: list[Any]) -> None:
    assert times_ahead(pl.Series("ds", [times]), 2, frequency)[0].to_list() == [ahead]
    assert times_ahead(pl.Series("ds", [times]), 2, frequency)[1] == {}


@pytest.mark.parametrize(
    ("times", "frequency", "error"),
    [
        (hours(3, 4, 6), "h", "Its times are not one step of 'h' apart. Fill the gaps with empty values."),
        ([FIRST, datetime(2024, 3, 1)], "MS", "Its times are not one step of 'M' apart. Fill the gaps"),
        (hours(3), None, "A single time does not say how long its steps are."),
        ([1, 2, 4], None, "Its times are not one step apart. Fill the gaps with empty values."),
    ],
)
def test_a_gap_is_the_error_of_its_series_alone(times: list[Any], frequency: str | None, error: str) -> None:
    sound = [times[0], times[0] + (times[1] - times[0])] if len(times) > 2 else []
    ahead, errors = times_ahead(pl.Series("ds", [sound, times]), 2, frequency)
    assert list(errors) == [1]
    assert errors[1].startswith(error)
    assert ahead[1] is None
    if sound:
        assert ahead[0].to_list() == [sound[1] + step * (sound[1] - sound[0]) for step in (1, 2)]


@pytest.mark.parametrize(
    ("times", "frequency"),
    [
        (pl.Series("ds", [[datetime(9999, 12, 1)], [FIRST]]), "MS"),
        (pl.Series("ds", [[datetime(2262, 4, 11)], [FIRST]], dtype=pl.List(pl.Datetime("ns"))), "D"),
    ],
    ids=[
        "months",
        "nanoseconds",
    ],
)
def test_times_beyond_the_last_one_are_an_error(times: pl.Series, frequency: str | None) -> None:
    ahead, errors = times_ahead(times, 2, frequency)
    assert errors == {0: "The times of its forecast lie beyond the last one that the column can hold."}
    assert ahead.is_null().to_list() == [True, False]


@pytest.mark.parametrize(("frequency", "last", "ahead"), [("D", 30, "2024-03-31"), ("MS", 1, "2024-04-01")])
def test_days_go_on_at_the_same_time_when_clocks_change(frequency: str, last: int, ahead: str) -> None:
    local = pl.Series("ds", [[datetime(2024, 3, last)]])
    times = local.list.eval(pl.element().dt.replace_time_zone("Europe/Berlin"))
    (after,) = times_ahead(times, 2, frequency)[0].to_list()
    assert after[0].isoformat()[:19] == f"{ahead}T00:00:00"
    assert after[1].utcoffset().total_seconds() == 7200
    hourly = times_ahead(times, 30, "h")[0].to_list()[0]
    assert {second.timestamp() - first.timestamp() for first, second in zip(hourly[:-1], hourly[1:], strict=True)} == {
        3600
    }


@pytest.mark.parametrize(
    ("zone", "last", "ahead"),
    [
        # The midnight of November 4 did not exist, and the day began at 1:00.
        ("America/Sao_Paulo", "2018-11-02T03:00", ["2018-11-03T03:00", "2018-11-04T03:00", "2018-11-05T02:00"]),
        ("America/Sao_Paulo", "2018-11-04T03:00", ["2018-11-05T02:00", "2018-11-06T02:00", "2018-11-07T02:00"]),
        ("Europe/Berlin", "2024-03-29T23:00", ["2024-03-30T23:00", "2024-03-31T22:00", "2024-04-01T22:00"]),
    ],
)
def test_days_of_a_zone_go_on_when_they_begin_there(zone: str, last: str, ahead: list[str]) -> None:
    utc = pl.Series("ds", [[datetime.fromisoformat(last)]]).list.eval(pl.element().dt.replace_time_zone("UTC"))
    after, errors = times_ahead(utc, 3, "D", zone)
    assert ([f"{time:%Y-%m-%dT%H:%M}" for time in after.to_list()[0]], errors) == (ahead, {})
    local = utc.list.eval(pl.element().dt.convert_time_zone(zone))
    assert times_ahead(local, 3, "D")[0].to_list()[0] == after.to_list()[0]
    assert advance(f"{last}Z", 3, "D", DataZone(zone, has_days=True)) == f"{ahead[-1]}:00Z"


@pytest.mark.slow
def test_a_forecast_has_the_rows_of_predict(tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    hours = np.datetime64("2024-01-01", "us") + np.arange(60) * np.timedelta64(1, "h")
    values = np.random.default_rng(0).normal(50, 5, size=120)
    table = pl.DataFrame({"unique_id": np.repeat(["a", "b"], 60), "ds": np.tile(hours, 2), "y": values})
    table.write_parquet(place.path("load.parquet"))
    options = ("--cell", "lipschitz", "--hidden-size", 4, "--horizon", 3, "--context-length", 12, "--max-steps", 1)
    place.ok("train", "--data", "load.parquet", *options, *NO_PLOTS, "--run-dir", "run")
    place.ok("export", "run", "--name", "load")
    place.ok("predict", "load:1", "--input", "load.parquet", "--output", "answers.parquet")
    predicted = pl.read_parquet(place.path("answers.parquet"))
    scorer = Scorer.find("load:1", registry=place.registry)
    answers = scorer.score(table.sample(fraction=1.0, shuffle=True, seed=0), time_column="ds").sort("unique_id", "ds")
    assert answers["error"].null_count() == len(answers) == 6
    assert answers.drop("error").columns == predicted.columns
    assert answers["ds"].dt.strftime("%Y-%m-%dT%H:%M:%S").to_list() == predicted["ds"].cast(pl.String).to_list()
    assert answers.drop("error", "ds").equals(predicted.drop("ds"))


def test_each_target_has_the_times_and_a_series_with_a_gap_has_a_reason(published: Published) -> None:
    scorer = Scorer.find("flow:1", registry=published.registry.root)
    numbers = np.arange(6)
    values = {name: np.linspace(0, 1, 6) for name in ("flow", "rain", "level")}
    whole = pl.DataFrame({"id": ["a"] * 6, "hour": numbers, **values})
    gap = pl.DataFrame({"id": ["b"] * 6, "hour": np.where(numbers > 2, numbers + 1, numbers), **values})
    answers = scorer.score(pl.concat([gap, whole]), time_column="hour")
    assert answers["unique_id"].to_list() == ["b", *["a"] * 10]
    assert answers["error"][0] == "Its times are not one step apart. Fill the gaps with empty values."
    assert answers["hour"].to_list() == [None, *[6, 7, 8, 9, 10] * 2]
    without_times = scorer.score(whole)
    assert answers[1:].drop("hour").equals(without_times.drop("step"))
