"""Columns of text as channels: one for each category."""

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

TEXT = "unique_id,ds,wind,y,region\na,1,N,1,east\na,2,S,2,east\na,3,,3,east\nb,1,N,4,west\nb,2,N,5,west\nb,3,S,6,west\n"
KNOWN = {"wind": ("N", "S")}


def read(folder: Path, text: str = TEXT, static: tuple[str, ...] = ("region",), **repairs: Any) -> Table:
    (folder / "d.csv").write_text(text)
    return open_table(folder / "d.csv", repairs=Repairs(**repairs)).read(static=static)


def test_channels_are_one_in_the_rows_of_their_category(tmp_path: Path) -> None:
    table = read(tmp_path, categories=["wind", "region"])
    assert (table.channels, table.static) == (("wind=N", "wind=S", "y"), ("region=east", "region=west"))
    nan = np.nan
    np.testing.assert_array_equal(table.series[0].values, [[1, 0, 1], [0, 1, 2], [nan, nan, 3]])
    np.testing.assert_array_equal([each.static for each in table.series], [[1, 0], [0, 1]])
    assert table.notes["categories"] == {"wind": ["N", "S"], "region": ["east", "west"]}


def test_the_order_of_channels_does_not_depend_on_that_of_rows(tmp_path: Path) -> None:
    header, *rows = TEXT.splitlines()
    swapped = "\n".join([header, *rows[3:], *rows[:3]]) + "\n"
    first, second = (read(tmp_path, text, categories=["wind", "region"]) for text in (TEXT, swapped))
    assert first.channels == second.channels
    np.testing.assert_array_equal(first.series[1].values, second.series[0].values)


def test_numbers_as_categories_are_the_same_in_every_format(tmp_path: Path) -> None:
    frame = pl.DataFrame({"ds": [1, 2], "y": [1.0, 2.0], "day": [6.0, 7.0]})
    frame.write_parquet(tmp_path / "d.parquet")
    repairs = Repairs(categories=["day"])  # type: ignore[arg-type]
    assert open_table(tmp_path / "d.parquet", repairs=repairs).read().channels == ("y", "day=6", "day=7")
    assert read(tmp_path, "ds,y,day\n1,1,6\n2,2,7\n", (), categories=["day"]).channels == ("y", "day=6", "day=7")


def test_an_unknown_category_is_counted_and_all_zeros(tmp_path: Path) -> None:
    table = read(tmp_path, TEXT.replace("b,2,N", "b,2,W"), categories={**KNOWN, "region": ("east", "west")})
    np.testing.assert_array_equal(table.series[1].values[1], [0, 0, 5])
    assert table.notes["unknown_categories"] == {"count": 1, "columns": {"wind": {"count": 1, "first": ["W"]}}}


def test_an_unknown_category_is_refused_where_that_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, TEXT.replace("b,2,N", "b,2,W"), categories={**KNOWN, "region": ()}, unknown_category="error")
    assert str(caught.value) == (
        "'d.csv' column 'wind' has 'W', which is none of the categories of training (N, S). Correct it, or train with "
        "data.unknown_category=zeros."
    )


def test_names_and_free_text_are_no_categories(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n},word{n}\n" for n in range(101))
    with pytest.raises(DataError, match=r"^'d\.csv' column 'note' has more than 100 categories\. Leave it out"):
        read(tmp_path, "ds,y,note\n" + rows, (), categories=["note"])


def test_a_setting_for_unknown_categories_needs_categories(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^unknown_category=error needs categories, the columns of text\."):
        read(tmp_path, "ds,y\n1,1\n", (), unknown_category="error")


def test_channels_of_categories_are_no_series(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(TEXT)
    with pytest.raises(ConfigError, match=r"^data\.channels_as_series makes channels series of numbers, and"):
        load_data(tmp_path / "d.csv", channels_as_series=True, categories=["wind"], channels=["y", "wind"])


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
