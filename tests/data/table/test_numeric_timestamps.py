"""Whole numbers as timestamps: refused where they look like dates, and read as ``stamps`` says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from stablernn.data import ForecastData, load_data, read_inputs
from stablernn.data.check import check_data
from stablernn.data.table.series import Table, open_table
from stablernn.data.table.timestamps import find_resemblance
from stablernn.errors import DataError

HOUR = 3600
NOON = 1_704_110_400  # 2024-01-01 12:00 UTC


def write(path: Path, times: Sequence[object], header: str = "ds,y") -> Path:
    path.write_text("\n".join([header, *(f"{time},{place % 7}" for place, time in enumerate(times))]) + "\n")
    return path


def read(path: Path, times: Sequence[object], stamps: str | None = None) -> Table:
    return open_table(write(path / "d.csv", times), stamps=stamps).read()


def refusal(form: str, first: object, date: str, stamps: str, column: str = "ds") -> str:
    return (
        f"'d.csv' column '{column}' holds whole numbers that look like {form}: {first} would be {date}. Say what they "
        f"are with data.stamps (--stamps): {stamps}, or step where they only number the steps."
    )


@pytest.mark.parametrize(
    ("numbers", "form", "example"),
    [
        pytest.param([10**8, 10**8 + 7], "Unix times in seconds", "1973-03-03 09:46:40", id="first second"),
        pytest.param([4_102_444_799], "Unix times in seconds", "2099-12-31 23:59:59", id="last second"),
        pytest.param([0, 86_400, 10**8], "Unix times in seconds", "1970-01-01 00:00:00", id="from 1970"),
        pytest.param([-(10**8), 3_600 - 10**8], "Unix times in seconds", "1966-10-31 14:13:20", id="before 1970"),
        pytest.param([1_704_110_400_000_000_000], "Unix times in nanoseconds", "2024-01-01 12:00:00", id="nanoseconds"),
        pytest.param(
            [20_240_131, 20_240_201, 20_240_232], "dates without separators", "2024-01-31", id="a day misspelled"
        ),
        pytest.param([2_024_013_123], "dates without separators", "2024-01-31 23:00:00", id="with hours"),
        pytest.param([20_240_131_235_959], "dates without separators", "2024-01-31 23:59:59", id="with seconds"),
    ],
)
def test_numbers_that_look_like_dates(numbers: list[int], form: str, example: str) -> None:
    seen = find_resemblance(np.array(numbers, dtype=np.int64))
    assert seen is not None
    assert (seen.form, seen.example) == (form, example)


@pytest.mark.parametrize(
    "numbers",
    [
        pytest.param(range(1749, 1984), id="years"),
        pytest.param([99_999_999], id="below the first Unix time"),
        pytest.param([4_102_444_800], id="above the last second"),
        pytest.param([0, 44_100, 158_760_000], id="samples counted at 44.1 kHz"),
        pytest.param([0, 86_400, 99_999_999], id="hours counted in seconds"),
        pytest.param([20_230_229], id="no leap day"),
        pytest.param(range(20_240_101, 20_240_301), id="ids of 8 digits, few of them dates"),
        pytest.param([20_240_131, 20_240_132], id="half of them dates"),
        pytest.param(range(202_001, 202_053), id="a counter of one year's weeks"),
        pytest.param([*range(202_001, 202_013), *range(202_101, 202_113)], id="months"),
    ],
)
def test_numbers_that_only_number_the_steps(numbers: range | list[int]) -> None:
    assert find_resemblance(np.array(numbers, dtype=np.int64)) is None


@pytest.mark.parametrize(
    ("times", "sentence"),
    [
        pytest.param(
            [NOON, NOON + HOUR],
            refusal("Unix times in seconds", NOON, "2024-01-01 12:00:00", "unix-s"),
            id="unix seconds",
        ),
        pytest.param(
            [2024013112, 2024013113],
            "'d.csv' column 'ds' holds whole numbers that look like dates without separators: 2024013112 would be "
            "2024-01-31 12:00:00. Write them as dates such as 2024-01-31 13:00:00 or as Unix times in milliseconds, or "
            "set data.stamps=step (--stamps) where they only number the steps.",
            id="hours of ten digits",
        ),
    ],
)
def test_whole_numbers_that_look_like_dates_are_refused(tmp_path: Path, times: Sequence[object], sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, times)
    assert str(caught.value) == sentence


WEEKS = [*range(202_001, 202_054), *range(202_101, 202_153)]
DAYS = [*range(2_023_001, 2_023_366), *range(2_024_001, 2_024_367)]
QUARTERS = [10 * year + quarter for year in range(2010, 2020) for quarter in range(1, 5)]
LEDGER = [int(day.astype(int)) + 25_569 for day in np.busday_offset("2023-01-02", np.arange(300), roll="forward")]
MONTHS = [int(month.astype("M8[D]").astype(int)) + 25_569 for month in np.arange("2018-01", "2024-01", dtype="M8[M]")]
HOURS = [f"{45_000 + hour / 24:.5f}" for hour in range(200)]
PACKED = [
    pytest.param(WEEKS, "yyyyww", "W-MON", "2019-12-30", "2022-01-03", id="weeks"),
    pytest.param(DAYS, "yyyyddd", "D", "2023-01-01", "2025-01-01", id="days of the year"),
    pytest.param(QUARTERS, "yyyyq", "QS", "2010-01-01", "2020-01-01", id="quarters"),
    pytest.param(LEDGER, "excel", "B", "2023-01-02", "2024-02-26", id="business days of a sheet"),
    pytest.param(MONTHS, "excel", "MS", "2018-01-01", "2024-01-01", id="months of a sheet"),
]


@pytest.mark.parametrize(("times", "stamps", "frequency", "first", "ahead"), PACKED)
def test_packed_periods_are_refused_and_read_by_the_option_that_a_check_proposes(
    tmp_path: Path, times: Sequence[object], stamps: str, frequency: str, first: str, ahead: str
) -> None:
    path = write(tmp_path / "d.csv", times)
    with pytest.raises(DataError, match=f"look like .*: {times[0]} would be {first}") as caught:
        load_data(path)
    assert caught.value.settings == {"stamps": stamps}
    report = check_data(path)
    assert report.fixes["stamps"] == stamps
    data = load_data(path, stamps=stamps, horizon=4)
    assert isinstance(data, ForecastData)
    assert (data.frequency, data.notes["gap_steps_filled"]) == (frequency, 0)
    inputs = read_inputs(path, task="forecast", features=["y"], frequency=frequency, stamps=stamps)
    assert str(inputs.future_ds(0, 1)[0])[:10] == ahead
    # A counter is one after all, if somebody says so.
    assert load_data(path, stamps="step", horizon=4).series[0].ds.dtype.kind == "i"  # type: ignore[union-attr]


def test_days_of_a_sheet_are_told_by_the_name_of_their_column_or_their_fractions(tmp_path: Path) -> None:
    days = write(tmp_path / "d.csv", range(43_831, 44_231))
    days.write_text(days.read_text().replace("ds", "Date"))
    with pytest.raises(DataError) as caught:
        load_data(days, time_column="Date")
    assert caught.value.settings == {"stamps": "excel"}
    hours = write(tmp_path / "h.csv", HOURS)
    assert check_data(hours).fixes == {"stamps": "excel"}
    commas = tmp_path / "c.csv"
    commas.write_text(hours.read_text().replace(",", ";").replace(".", ","))
    for path in (hours, commas):
        data = load_data(path, stamps="excel")
        assert (data.frequency, data.notes["gap_steps_filled"]) == ("h", 0)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "times",
    [
        [f"{year}{month:02}" for year in (2020, 2021) for month in range(1, 14)],
        [f"{year}{half}" for year in range(2010, 2020) for half in (1, 2)],
    ],
)
def test_periods_that_no_option_reads_are_refused(tmp_path: Path, times: Sequence[object]) -> None:
    with pytest.raises(DataError, match=r"look like .*set data\.stamps=step") as caught:
        load_data(write(tmp_path / "d.csv", times))
    assert caught.value.settings == {}


@pytest.mark.parametrize(
    ("stamps", "number"),
    [
        ("yyyyww", 202_153),
        ("yyyyddd", 2_023_366),
        ("yyyyq", 20_235),
    ],
)
def test_periods_that_do_not_exist_are_refused(tmp_path: Path, stamps: str, number: int) -> None:
    with pytest.raises(DataError, match=rf"row 2, column 'ds': '{number}' is no time .* data\.stamps={stamps}"):
        load_data(write(tmp_path / "d.csv", [number]), stamps=stamps)


def test_one_series_of_unix_times_among_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(f"unique_id,ds,y\na,1,1\na,2,1\nb,{NOON},1\nb,{NOON + HOUR},1\n")
    with pytest.raises(DataError) as caught:
        open_table(tmp_path / "d.csv").read()
    assert str(caught.value) == refusal("Unix times in seconds", NOON, "2024-01-01 12:00:00", "unix-s")


@pytest.mark.parametrize(
    ("stamps", "times"),
    [
        ("unix-s", [NOON, NOON + HOUR]),
        ("unix-ms", [1000 * NOON, 1000 * (NOON + HOUR)]),
        # Dates with separators are dates, whatever whole numbers would be.
        ("unix-s", ["2024-01-01T12:00:00Z", "2024-01-01T13:00:00Z"]),
        ("step", ["2024-01-01T12:00:00Z", "2024-01-01T13:00:00Z"]),
    ],
)
def test_unix_times_are_instants(tmp_path: Path, stamps: str, times: Sequence[object]) -> None:
    table = read(tmp_path, times, stamps)
    assert [str(one)[:16] for one in table.series[0].ds] == ["2024-01-01T12:00", "2024-01-01T13:00"]
    assert table.notes["time_zone"] == "UTC"
    assert table.notes.get("stamps") == (stamps if isinstance(times[0], int) else None)


def test_the_first_and_the_last_unix_second_that_dates_can_hold(tmp_path: Path) -> None:
    ds = read(tmp_path, [-9_214_560_000, 9_214_646_399], "unix-s").series[0].ds
    assert [str(one)[:19] for one in ds] == ["1678-01-01T00:00:00", "2261-12-31T23:59:59"]


@pytest.mark.parametrize(
    ("times", "stamps"),
    [
        ([1000 * (NOON + HOUR * step) for step in range(200)], "unix-ms"),
        ([20240101 + day for day in range(31)] + [20240201 + day for day in range(29)], "yyyymmdd"),
    ],
)
def test_a_check_goes_on_with_the_reading_that_it_guesses(tmp_path: Path, times: Sequence[object], stamps: str) -> None:
    report = check_data(write(tmp_path / "d.csv", times))
    assert not report.ok
    assert report.assumed == {"stamps": stamps}
    assert report.data is not None
    assert report.data.season in (7, 24)  # type: ignore[union-attr]
    assert check_data(tmp_path / "d.csv", stamps=stamps).ok
