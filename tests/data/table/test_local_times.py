"""Local times of a zone: hours that come twice and hours that do not exist."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from stablernn.data.check import check_data
from stablernn.data.options import Repairs
from stablernn.data.table.frequency import infer_frequency, parse_frequency
from stablernn.data.table.series import Table, open_table
from stablernn.errors import DataError

BERLIN = ZoneInfo("Europe/Berlin")


def read(folder: Path, lines: list[str], header: str = "ds,y", timezone: str = "Europe/Berlin") -> Table:
    path = folder / "d.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return open_table(path, repairs=Repairs(timezone=timezone)).read()


def local(begin: datetime, count: int, minutes: int, zone: ZoneInfo = BERLIN) -> list[str]:
    moments = [begin + timedelta(minutes=minutes * step) for step in range(count)]
    return [moment.astimezone(zone).strftime("%Y-%m-%d %H:%M") for moment in moments]


@pytest.mark.parametrize("minutes", [60, 15])
@pytest.mark.parametrize("begin", [datetime(2023, 10, 28, 20, tzinfo=UTC), datetime(2024, 3, 30, 20, tzinfo=UTC)])
def test_local_times_over_a_change_of_clocks_are_the_instants_that_they_were(
    tmp_path: Path, begin: datetime, minutes: int
) -> None:
    count = 12 * 60 // minutes
    lines = [f"{time},{step}" for step, time in enumerate(local(begin, count, minutes))]
    table = read(tmp_path, lines)
    expected = np.datetime64(begin.replace(tzinfo=None), "ns") + np.arange(count) * np.timedelta64(minutes, "m")
    np.testing.assert_array_equal(table.series[0].ds, expected)
    assert table.notes["time_zone"] == "UTC"
    is_autumn = begin.month == 10
    assert table.notes["repeated_hour_rows"] == (2 * 60 // minutes if is_autumn else 0)
    assert table.notes["skipped_hours"] == (0 if is_autumn else 1)


@pytest.mark.parametrize("zone", ["America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu", "UTC"])
def test_a_year_of_any_zone_comes_back_as_it_was(tmp_path: Path, zone: str) -> None:
    begin = datetime(2023, 1, 1, tzinfo=UTC)
    # Every half hour, the change of Lord Howe.
    lines = [f"{time},1" for time in local(begin, 2 * 24 * 365, 30, ZoneInfo(zone))]
    ds = read(tmp_path, lines, timezone=zone).series[0].ds
    assert (np.diff(ds) == np.timedelta64(30, "m")).all()


def test_interleaved_series_each_have_their_repeated_hour(tmp_path: Path) -> None:
    times = local(datetime(2023, 10, 28, 23, tzinfo=UTC), 4, 60)
    assert times[1] == times[2]
    lines = [f"{name},{time},{step}" for step, time in enumerate(times) for name in ("a", "b")]
    table = read(tmp_path, lines, "unique_id,ds,y")
    for series in table.series:
        assert (np.diff(series.ds) == np.timedelta64(1, "h")).all()
        np.testing.assert_array_equal(series.values[:, 0], np.arange(4))


def test_a_repeated_hour_that_is_there_once_is_the_first_pass_and_counted(tmp_path: Path) -> None:
    table = read(tmp_path, ["2023-10-29 01:00,1", "2023-10-29 02:00,2", "2023-10-29 03:00,3"])
    hours = (table.series[0].ds - np.datetime64("2023-10-28T23:00")) / np.timedelta64(1, "h")
    assert hours.tolist() == [0, 1, 3]
    assert table.notes["repeated_hour_once"] == 1


@pytest.mark.parametrize(
    ("alias", "begin", "time"),
    [("D", "2024-01-01", 0),   ("BME", "2020-01-31", 0),
     ("D", "2024-01-01", 6)],
)  # fmt: skip
def test_days_that_are_written_in_utc_are_those_of_their_zone(
    tmp_path: Path, alias: str, begin: str, time: int
) -> None:
    grid = parse_frequency(alias)
    days = grid.at(np.datetime64(begin, "ns") + np.timedelta64(time, "h"), np.arange(120))
    moments = [day.item().replace(tzinfo=BERLIN).astimezone(UTC) for day in days.astype("datetime64[us]")]
    rows = [f"{moment:%Y-%m-%dT%H:%M:%SZ},{number}" for number, moment in enumerate(moments)]
    table = read(tmp_path, rows)
    np.testing.assert_array_equal(table.series[0].ds, days)
    assert infer_frequency(table.series[0].ds) == grid
    assert (table.notes["calendar_days"], "time_zone" in table.notes) == ("Europe/Berlin", False)
    report = check_data(tmp_path / "d.csv")
    assert report.fixes == {"timezone": "Europe/Berlin"}
    # The last rows, of one summer, are read as the whole was.
    np.testing.assert_array_equal(read(tmp_path, rows[-4:]).series[0].ds, days[-4:])


@pytest.mark.parametrize(
    "zone",
    # Sao Paulo and Tehran skip midnights; those of Helsinki are of one time of the day in Berlin, too.
    ["America/Sao_Paulo", "Europe/Helsinki"],
)
def test_the_zone_whose_midnights_are_written_in_utc_is_proposed(tmp_path: Path, zone: str) -> None:
    days = np.arange("2017-01-01", "2018-12-31", dtype="datetime64[D]").astype("datetime64[us]")
    moments = [day.item().replace(tzinfo=ZoneInfo(zone)).astimezone(UTC) for day in days]
    rows = [f"{moment:%Y-%m-%dT%H:%M:%SZ},{number % 7}" for number, moment in enumerate(moments)]
    np.testing.assert_array_equal(read(tmp_path, rows, timezone=zone).series[0].ds, days)
    assert check_data(tmp_path / "d.csv").fixes == {"timezone": zone}


@pytest.mark.parametrize("doubled", [False, True])
def test_a_zone_is_proposed_where_only_its_repeated_hour_comes_twice(tmp_path: Path, doubled: bool) -> None:
    times = local(datetime(2023, 10, 28, tzinfo=UTC), 48, 60)
    lines = [f"{time},{step}" for step, time in enumerate(times) for _ in range(1 + doubled)]
    path = tmp_path / "d.csv"
    path.write_text("\n".join(["ds,y", *lines]) + "\n")
    with pytest.raises(DataError) as caught:
        open_table(path).read()
    assert ("timezone" in caught.value.settings) == (not doubled)


def test_times_in_the_hour_that_is_skipped_are_refused_with_the_zone_that_has_them(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, ["2024-03-31 01:00,1", "2024-03-31 02:30,2", "2024-03-31 03:00,3"])
    assert str(caught.value) == (
        "'d.csv' row 3: 2024-03-31 02:30:00 does not exist in Europe/Berlin, where clocks went forward over it. If "
        "clocks were never changed, set data.timezone=Etc/GMT-1; else correct the times."
    )
    assert caught.value.settings == {"timezone": "Etc/GMT-1"}
    table = read(tmp_path, ["2024-03-31 01:00,1", "2024-03-31 02:30,2"], timezone="Etc/GMT-1")
    assert table.series[0].ds[1] == np.datetime64("2024-03-31T01:30")
