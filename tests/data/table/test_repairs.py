"""Values that stand for a missing one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from stablernn.data import ForecastData, load_data, read_inputs
from stablernn.data.options import Repairs
from stablernn.data.table.series import Table, open_table
from stablernn.errors import ConfigError, DataError


def read(folder: Path, text: str, **repairs: Any) -> Table:
    (folder / "d.csv").write_text(text)
    return open_table(folder / "d.csv", repairs=Repairs(**repairs)).read()


def test_codes_are_missing_values_however_they_are_written(tmp_path: Path) -> None:
    table = read(tmp_path, "ds,y,z\n1,-9999,1\n2,-9999.0,--\n3,-9.999e3,3\n4,4,-9998\n", missing=[-9999, "--"])
    nan = np.nan
    np.testing.assert_array_equal(table.series[0].values, [[nan, 1], [nan, nan], [nan, 3], [4, -9998]])
    assert table.notes["missing_codes"] == {"count": 4, "columns": {"y": 3, "z": 1}}
    assert table.notes["missing_values"] == 4


def test_codes_of_float32_columns_match(tmp_path: Path) -> None:
    frame = pl.DataFrame({"ds": [1, 2], "y": pl.Series([0.1, 2.0], dtype=pl.Float32)})
    frame.write_parquet(tmp_path / "d.parquet")
    table = open_table(tmp_path / "d.parquet", repairs=Repairs(missing=(0.1,))).read()
    np.testing.assert_array_equal(table.series[0].values[:, 0], [np.nan, 2])


def test_a_code_that_is_every_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"'d\.csv' column 'y' holds nothing but '0', which data\.missing.*data\.missing.*data\.channels",
    ):
        read(tmp_path, "ds,y,z\n1,0,1\n2,0,0\n3,,3\n", missing=[0])


def test_codes_do_not_touch_times_and_names(tmp_path: Path) -> None:
    table = read(tmp_path, "unique_id,ds,y\n1,1,1\n1,2,2\n", missing=[1])
    assert (table.series[0].unique_id, table.series[0].ds.tolist()) == ("1", [1, 2])
    assert table.notes["missing_codes"]["count"] == 1


ROWS = "unique_id,ds,y,z\na,1,1,5\na,2,2,\na,2,4,7\nb,2,9,1\nb,2,9,1\nb,3,8,1\n"


@pytest.mark.parametrize(("how", "merged"), [("mean", [3.0, 7.0]), ("last", [4.0, 7.0])], ids=["mean", "last"])
def test_rows_of_one_time_become_one(tmp_path: Path, how: str, merged: list[float]) -> None:
    table = read(tmp_path, ROWS, on_duplicate=how)
    a, b = table.series
    assert (a.ds.tolist(), b.ds.tolist()) == ([1, 2], [2, 3])
    np.testing.assert_array_equal(a.values, [[1, 5], merged])
    np.testing.assert_array_equal(b.values, [[9, 1], [8, 1]])
    assert (table.notes["duplicate_rows"], table.notes["duplicate_rows_differing"]) == (2, 1)


def test_a_mean_of_text_is_refused_and_of_equal_text_is_not(tmp_path: Path) -> None:
    text = "ds,y,wind\n1,1,N\n2,2,S\n2,3,{}\n"
    with pytest.raises(
        DataError,
        match=r"'d\.csv' column 'wind' has two categories at one time, in rows 3.*data\.on_duplicate=last",
    ):
        read(tmp_path, text.format("N"), on_duplicate="mean", categories=["wind"])
    table = read(tmp_path, text.format("S"), on_duplicate="mean", categories=["wind"])
    np.testing.assert_array_equal(table.series[0].values, [[1, 1, 0], [2.5, 0, 1]])


QUARTERS = [f"2024-01-01 {n // 4:02}:{n % 4 * 15:02}" for n in range(8)]


def read_resampling(folder: Path, rows: list[str], header: str = "ds,y", **repairs: Any) -> Table:
    (folder / "d.csv").write_text("\n".join([header, *rows]) + "\n")
    return open_table(folder / "d.csv", repairs=Repairs(**repairs)).read()


@pytest.mark.parametrize(("aggregate", "expected"), [("mean", [1, 5.5]), ("sum", [np.nan, 22]), ("last", [2, 7])])
def test_rows_are_aggregated_and_missing_values_left_out(tmp_path: Path, aggregate: str, expected: list[float]) -> None:
    rows = [f"{time},{'' if n == 3 else n}" for n, time in enumerate(QUARTERS)]
    table = read_resampling(tmp_path, rows, resample="h", aggregate=aggregate)
    np.testing.assert_array_equal(table.series[0].values[:, 0], np.float32(expected))
    np.testing.assert_array_equal(table.series[0].ds, np.array(["2024-01-01T00", "2024-01-01T01"], "datetime64[ns]"))
    assert table.notes["resampled"] == {
        "count": 6,
        "step": "h",
        "aggregate": aggregate,
        "rows": {"before": 8, "after": 2},
    }
    assert table.notes.get("incomplete_sums") == (1 if aggregate == "sum" else None)


def test_the_last_value_may_stand_in_the_first_row(tmp_path: Path) -> None:
    table = read_resampling(tmp_path, [f"{QUARTERS[0]},7", f"{QUARTERS[1]},"], resample="h", aggregate="last")
    assert table.series[0].values.tolist() == [[7]]


def test_days_are_those_of_the_zone_and_whole_when_clocks_change(tmp_path: Path) -> None:
    hours = np.arange(np.datetime64("2024-03-29T23"), np.datetime64("2024-04-01T22"))
    offset = np.where(hours < np.datetime64("2024-03-31T01"), 1, 2)
    rows = [f"{str(hour + delta).replace('T', ' ')}:00,1" for hour, delta in zip(hours, offset, strict=True)]
    table = read_resampling(tmp_path, rows, timezone="Europe/Berlin", resample="D", aggregate="sum")
    days = np.arange(np.datetime64("2024-03-30"), np.datetime64("2024-04-02"))
    np.testing.assert_array_equal(table.series[0].ds, days.astype("datetime64[ns]"))
    np.testing.assert_array_equal(table.series[0].values[:, 0], [24, 23, 24])
    assert ("time_zone" in table.notes, table.notes["calendar_days"]) == (False, "Europe/Berlin")


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        (
            {"resample": "5min"},
            DataError,
            r"'d\.csv': series 'd' is in steps of '15min', and.*data\.resample=5min",
        ),
        (
            {"resample": "20min"},
            DataError,
            r"'d\.csv': series 'd' is in steps of '15min', of which.*data\.resample=20min",
        ),
        ({"resample": "MS"}, ConfigError, "resample takes a multiple of s, min, h or D, such as 15min, got"),
        (
            {"aggregate": "sum"},
            ConfigError,
            "aggregate=sum needs resample, the step to aggregate to",
        ),
    ],
)
def test_what_cannot_be_aggregated_is_refused(
    tmp_path: Path, options: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence):
        read_resampling(tmp_path, [f"{time},1" for time in QUARTERS], **options)


TEXT = "unique_id,ds,wind,y,region\na,1,N,1,east\na,2,S,2,east\na,3,,3,east\nb,1,N,4,west\nb,2,N,5,west\nb,3,S,6,west\n"
KNOWN = {"wind": ("N", "S")}


def read_categories(folder: Path, text: str = TEXT, static: tuple[str, ...] = ("region",), **repairs: Any) -> Table:
    (folder / "d.csv").write_text(text)
    return open_table(folder / "d.csv", repairs=Repairs(**repairs)).read(static=static)


def test_channels_are_one_in_the_rows_of_their_category(tmp_path: Path) -> None:
    table = read_categories(tmp_path, categories=["wind", "region"])
    assert (table.channels, table.static) == (("wind=N", "wind=S", "y"), ("region=east", "region=west"))
    nan = np.nan
    np.testing.assert_array_equal(table.series[0].values, [[1, 0, 1], [0, 1, 2], [nan, nan, 3]])
    np.testing.assert_array_equal([each.static for each in table.series], [[1, 0], [0, 1]])
    assert table.notes["categories"] == {"wind": ["N", "S"], "region": ["east", "west"]}


def test_the_order_of_channels_does_not_depend_on_that_of_rows(tmp_path: Path) -> None:
    header, *rows = TEXT.splitlines()
    swapped = "\n".join([header, *rows[3:], *rows[:3]]) + "\n"
    first, second = (read_categories(tmp_path, text, categories=["wind", "region"]) for text in (TEXT, swapped))
    assert first.channels == second.channels
    np.testing.assert_array_equal(first.series[1].values, second.series[0].values)


def test_an_unknown_category_is_counted_and_all_zeros(tmp_path: Path) -> None:
    table = read_categories(tmp_path, TEXT.replace("b,2,N", "b,2,W"), categories={**KNOWN, "region": ("east", "west")})
    np.testing.assert_array_equal(table.series[1].values[1], [0, 0, 5])
    assert table.notes["unknown_categories"] == {"count": 1, "columns": {"wind": {"count": 1, "first": ["W"]}}}


def test_names_and_free_text_are_no_categories(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n},word{n}\n" for n in range(101))
    with pytest.raises(DataError, match=r"^'d\.csv' column 'note' has more than 100 categories\. Leave it out"):
        read_categories(tmp_path, "ds,y,note\n" + rows, (), categories=["note"])


def daily(path: Path, steps: int, first: int = 0) -> Path:
    days = [str(np.datetime64("2024-01-01") + first + n) for n in range(steps)]
    kinds = ["work" if (first + n) % 7 < 5 else "rest" for n in range(steps)]
    rows = [f"{day},{n % 7},{kind}" for n, (day, kind) in enumerate(zip(days, kinds, strict=True))]
    path.write_text("\n".join(["ds,y,kind", *rows]) + "\n")
    return path


def test_categories_that_are_known_in_advance_are_read_for_the_steps_to_forecast(tmp_path: Path) -> None:
    data = load_data(daily(tmp_path / "d.csv", 60), categories=["kind"], future=["kind"], horizon=3)
    assert isinstance(data, ForecastData)
    assert (data.channels, data.future) == (("y", "kind=rest", "kind=work"), ("kind=rest", "kind=work"))
    path = daily(tmp_path / "e.csv", 20)
    path.write_text(path.read_text() + "2024-01-21,,work\n2024-01-22,,work\n2024-01-23,,holiday\n")
    inputs = read_inputs(
        path,
        task="forecast",
        features=data.channels,
        future=["kind"],
        horizon=3,
        repairs=Repairs(categories=data.notes["categories"]),
    )
    assert inputs.future is not None
    np.testing.assert_array_equal(inputs.future[0], [[0, 1], [0, 1], [0, 0]])
    assert inputs.notes["unknown_categories"]["count"] == 1


def test_a_test_file_has_the_categories_of_training(tmp_path: Path) -> None:
    test = daily(tmp_path / "e.csv", 14, first=60)
    test.write_text(test.read_text().replace("work", "strike"))
    data = load_data(daily(tmp_path / "d.csv", 60), test=test, categories=["kind"], horizon=7)
    assert isinstance(data, ForecastData)
    assert data.channels == ("y", "kind=rest", "kind=work")
    assert data.notes["unknown_categories"]["count"] == 10


def write(path: Path, lengths: dict[str, int], first: int = 0, label: bool = False) -> Path:
    rows = [
        f"{name},{first + n},{n % 5}{',' + name[0] if label else ''}"
        for name, count in lengths.items()
        for n in range(count)
    ]
    path.write_text("\n".join(["unique_id,ds,y" + ",label" * label, *rows]).replace("ds,y,", "ds,x,") + "\n")
    return path


def test_short_series_are_set_aside_and_listed(tmp_path: Path) -> None:
    data = load_data(write(tmp_path / "d.csv", {"a": 50, "b": 9, "c": 60}), min_length=10, horizon=2)
    assert isinstance(data, ForecastData)
    assert [series.unique_id for series in data.series] == ["a", "c"]
    assert (data.notes["short_series"], data.notes["series"]) == ({"count": 1, "names": ["b"]}, 2)


def test_their_labels_go_with_them(tmp_path: Path) -> None:
    lengths = {f"{kind}{n}": 5 + 5 * (n % 2) for n in range(8) for kind in "pq"}
    data = load_data(write(tmp_path / "d.csv", lengths, label=True), min_length=10)
    assert data.notes["short_series"]["count"] == 8
    assert len(data.train.y) + len(data.validation.y) == 8  # type: ignore[union-attr]


def test_a_length_that_no_series_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'d\.csv' has no series of 51 rows \(data\.min_length\); the longest"):
        load_data(write(tmp_path / "d.csv", {"a": 50, "b": 9}), min_length=51)
