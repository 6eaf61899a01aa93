"""Time grids: what is inferred, what comes next, and what the words mean. Oracle: pandas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stablernn.data.table.frequency import infer_frequency, parse_frequency
from stablernn.errors import UnknownNameError

WORDS = [
    ("h", "2024-02-28 22:00"),
    ("6h", "2024-02-28 06:00"),
    ("15min", "2024-02-28 23:00"),
    ("s", "2024-02-28 23:59:50"),
    ("250ms", "2024-02-28 23:59:59"),
    ("D", "2024-02-26"),
    ("B", "2024-02-26 17:30"),
    ("W-SAT", "2024-02-24"),
    ("2W-MON", "2024-02-26"),
    ("MS", "2023-11-01"),
    ("2MS", "2023-11-01"),
    ("ME", "2023-11-30"),
    ("3ME", "2023-11-30"),
    ("BMS", "2023-11-01"),
    ("BME", "2023-11-30"),
    ("2BME", "2023-11-30"),
    ("BQE", "2023-12-29"),
    ("BYS", "2023-01-02"),
    ("QS", "2023-10-01"),
    ("QE", "2023-12-31"),
    ("YS", "2023-01-01"),
    ("YE", "2023-12-31"),
]


@pytest.fixture(scope="module")
def pandas() -> Any:
    return pytest.importorskip("pandas")


def stamps(pandas: Any, word: str, start: str, count: int = 40) -> Any:
    return pandas.date_range(start, periods=count, freq=word).to_numpy().astype("datetime64[ns]")


@pytest.mark.parametrize(("word", "start"), WORDS, ids=[word for word, _ in WORDS])
def test_frequency_is_inferred_across_gaps_and_goes_on_as_that_of_pandas(pandas: Any, word: str, start: str) -> None:
    whole = stamps(pandas, word, start)
    assert getattr(infer_frequency(whole), "alias", None) == word
    kept = np.delete(np.arange(40), [3, 4, 17, 30])
    found = infer_frequency(whole[kept])
    assert found == parse_frequency(word)
    np.testing.assert_array_equal(found.positions(whole[kept]), kept)
    for origin in range(10):
        np.testing.assert_array_equal(found.at(whole[origin], np.arange(1, 30)), whole[origin + 1 : origin + 30])


@pytest.mark.parametrize(("day", "alias"), [(28, "MS-28"), (29, "MS-29"), (30, "MS-30"), (31, "ME")])
def test_days_that_short_months_lack_are_their_last(day: int, alias: str) -> None:
    months = np.arange("2021-01", "2025-01", dtype="datetime64[M]")
    last = (months + 1).astype("datetime64[D]") - 1
    ds = np.minimum(months.astype("datetime64[D]") + day - 1, last).astype("datetime64[ns]")
    found = infer_frequency(ds)
    assert found == parse_frequency(alias)
    assert found.season == 12
    # From a February on, too, whose day does not say which one it is of longer months.
    np.testing.assert_array_equal(found.at(ds[1], np.arange(1, 40)), ds[2:41])


@pytest.mark.parametrize("alias", ["QS-FEB", "QE-NOV", "BQE-OCT", "YS-APR", "2QE-NOV"])
def test_an_anchor_is_a_month_that_quarters_or_years_begin_or_end_in(pandas: Any, alias: str) -> None:
    ds = stamps(pandas, alias, "2022-01-01", 8)
    assert parse_frequency(alias).positions(ds).tolist() == list(range(8))  # type: ignore[union-attr]
    # Without an anchor they are those that begin with January, as in pandas.
    assert parse_frequency(alias.partition("-")[0]).positions(ds) is None


def test_integers_have_a_number_as_frequency() -> None:
    ds = np.array([0, 5, 10, 20, 25])
    found = infer_frequency(ds)
    assert found == parse_frequency("5")
    assert found.positions(ds).tolist() == [0, 1, 2, 4, 5]  # type: ignore[union-attr]
    assert found.at(ds[-1], np.array([1, 2])).tolist() == [30, 35]


@pytest.mark.parametrize(
    "ds",
    [
        ["2024-01-01"],
        ["2024-01-01T00:00", "2024-01-01T01:00", "2024-01-01T01:17", "2024-01-01T03:00"],
        ["2024-01-01T00:00:01", "2024-01-01T00:00:02", "2024-01-09T13:46:40", "2024-03-01T01:46:41"],
        ["2024-01-29", "2024-02-29", "2024-03-30"],
    ],
    ids=["one row", "off the grid", "mostly gaps", "no common day"],
)
def test_irregular_times_have_no_frequency(ds: list[str]) -> None:
    assert infer_frequency(np.array(ds, dtype="datetime64[ns]")) is None


@pytest.mark.parametrize(
    ("word", "season"),
    [
         ("2h", 12), ("7h", 1), ("15min", 96),     ("B", 5),
         ("W-SAT", 52),     ("3MS", 4), ("5MS", 1), 
          ("MS-30", 12),
        
    ],
)  # fmt: skip
def test_season_follows_from_the_frequency(word: str, season: int) -> None:
    assert parse_frequency(word).season == season


@pytest.mark.parametrize("word", ["", "W-XXX", "MS-FEB", "ME-30", "QS-XXX", "0", "1.5h", "-1D"])
def test_unknown_frequency_is_refused(word: str) -> None:
    with pytest.raises(
        UnknownNameError, match=rf"^Unknown frequency '{word}'\..*Known are D, h, min, s, ms, us, ns, B, W, "
    ):
        parse_frequency(word)


@pytest.mark.parametrize(
    ("word", "ds"),
    [
        ("B", ["2024-03-01", "2024-03-02"]),
        ("MS", ["2024-03-01", "2024-04-02"]),
        ("ME", ["2024-03-31", "2024-04-29"]),
        ("BME", ["2024-03-29", "2024-04-29"]),
        ("MS-30", ["2024-03-30", "2024-04-29"]),
        ("2D", ["2024-03-01", "2024-03-02"]),
    ],
)
def test_times_off_the_grid_have_no_positions(word: str, ds: list[str]) -> None:
    assert parse_frequency(word).positions(np.array(ds, dtype="datetime64[ns]")) is None
