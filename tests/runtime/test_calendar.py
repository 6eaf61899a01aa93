"""Calendar steps, against dates worked out by hand."""

from __future__ import annotations

import re
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablernn_runtime.calendar import DataZone, advance, check_frequency, step_frequency
from stablernn_runtime.errors import InputError


@pytest.mark.parametrize(
    ("start", "steps", "frequency", "expected"),
    [
        ("2024-02-28T23:59:30", 45, "S", "2024-02-29T00:00:15"),
        ("2024-02-28T23:45:00", 3, "15min", "2024-02-29T00:30:00"),
        ("2024-02-28T23:00:00Z", 26, "h", "2024-03-01T01:00:00Z"),
        ("2024-03-31T01:00:00+01:00", 2, "H", "2024-03-31T03:00:00+01:00"),
        ("2023-02-28", 1, "D", "2023-03-01T00:00:00"),
        ("2024-01-06", 52, "W", "2025-01-04T00:00:00"),
        ("2024-01-06", 1, "W-SAT", "2024-01-13T00:00:00"),
        ("2024-01-10", 1, "W-SAT", "2024-01-13T00:00:00"),
        ("2024-03-01T09:30:00", 1, "B", "2024-03-04T09:30:00"),
        ("2024-03-02", 1, "B", "2024-03-04T00:00:00"),
        ("2024-02-28", 7, "B", "2024-03-08T00:00:00"),
        ("2024-01-15", 1, "M", "2024-02-15T00:00:00"),
        ("2024-01-30", 1, "M", "2024-02-29T00:00:00"),
        ("2024-02-29", 1, "M", "2024-03-31T00:00:00"),
        ("2024-01-01", 13, "MS", "2025-02-01T00:00:00"),
        ("2024-01-15", 1, "MS", "2024-02-01T00:00:00"),
        ("2024-01-31T06:00:00", 1, "ME", "2024-02-29T06:00:00"),
        ("2024-02-15", 1, "Q", "2024-05-15T00:00:00"),
        ("2024-03-31", 1, "quarter", "2024-06-30T00:00:00"),
        ("2024-05-20", 1, "QS", "2024-07-01T00:00:00"),
        ("2024-12-31", 1, "QE", "2025-03-31T00:00:00"),
        ("2024-02-01", 1, "QS-FEB", "2024-05-01T00:00:00"),
        ("2024-01-31", 2, "QE-JAN", "2024-07-31T00:00:00"),
        ("2024-02-29", 1, "Y", "2025-02-28T00:00:00"),
        ("2024-12-31", 1, "YE", "2025-12-31T00:00:00"),
        ("2024-04-01", 1, "YS-APR", "2025-04-01T00:00:00"),
        ("2024-02-29", 1, "MS-30", "2024-03-30T00:00:00"),
        ("2024-03-10", 1, "MS-30", "2024-03-30T00:00:00"),
        ("2024-01-31", 2, "BME", "2024-03-29T00:00:00"),
        ("2024-03-31", 1, "BME", "2024-04-30T00:00:00"),
        ("2024-05-01T07:00:00Z", 1, "BMS", "2024-06-03T07:00:00Z"),
        ("2021-12-31", 1, "BYE", "2022-12-30T00:00:00"),
    ],
)
def test_advance(start: str, steps: int, frequency: str, expected: str) -> None:
    assert advance(start, steps, frequency) == expected


@pytest.mark.parametrize(
    ("asked", "trained", "expected"),
    [
        ("MS", "D", "MS"),
        (None, "W-SAT", "W-SAT"),
        (None, "2MS", "2M"),
        (None, "QS-FEB", "Q"),
        (None, "MS-30", "MS-30"),
    ],
)
def test_months_of_training_data_keep_their_day(asked: str | None, trained: str | None, expected: str | None) -> None:
    assert step_frequency(asked, trained) == expected


@settings(max_examples=40)
@given(
    st.datetimes(datetime(1001, 1, 1), datetime(2999, 12, 31), allow_imaginary=False),
    st.integers(1, 40),
    st.integers(1, 40),
    st.sampled_from(["S", "15min", "h", "D", "W-SUN", "MS", "ME", "QS", "QE-JAN", "YS", "YE", "2QS", "BME", "MS-30"]),
)
def test_two_strides_are_one(start: object, first: int, second: int, frequency: str) -> None:
    text = str(start).replace(" ", "T")
    assert advance(advance(text, first, frequency), second, frequency) == advance(text, first + second, frequency)


@pytest.mark.parametrize(
    ("frequency", "sentence"),
    [
        ("ms", "Unknown frequency 'ms'."),
        ("0D", "Unknown frequency '0D'."),
        ("W-SOM", "The frequency 'W-SOM' may have one of MON, TUE, WED, THU, FRI, SAT, SUN after 'W-'."),
        ("QS-SUN", "The frequency 'QS-SUN' may have one of JAN, FEB, MAR,"),
        ("MS-32", "The frequency 'MS-32' may have one of 1, 2, 3,"),
    ],
)
def test_an_unknown_frequency_is_refused(frequency: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        check_frequency(frequency)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("start", "zone"),
    [
        ("9999-12-31T23:00:00Z", "Asia/Tokyo"),
        ("2024-01-01T00:00:00Z", "Europe/Berlln"),
        ("2024-01-01T00:00:00Z", "../zone"),
    ],
)
def test_days_of_a_zone_that_cannot_be_are_refused(start: str, zone: str) -> None:
    with pytest.raises(InputError):
        advance(start, 1, "D", DataZone(zone, True))


@pytest.mark.parametrize(("asked", "trained"), [("60min", "h"), ("month", "MS"), ("3ME", "QE-JAN"), ("D", "1")])
def test_a_step_may_have_several_words(asked: str, trained: str | None) -> None:
    check_frequency(asked, trained)


@pytest.mark.parametrize(("asked", "trained"), [("D", "h"), ("B", "D"), ("Q", "MS")])
def test_steps_of_another_length_are_refused(asked: str, trained: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"'{trained}'")):
        check_frequency(asked, trained)
