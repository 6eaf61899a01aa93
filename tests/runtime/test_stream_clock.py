"""Times of a stream: many of a request at once are what they are one by one."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stablernn_runtime.calendar import advance
from stablernn_runtime.errors import InputError, ServingError
from stablernn_runtime.stream_clock import Clock, Moment

FREQUENCIES = ["S", "15min", "h", "D", "W", "B", "2B", "MS", "M", "QE", None]


def outcome(function: Any) -> Any:
    try:
        return function()
    except ServingError as error:
        return type(error), str(error)


@st.composite
def moments(draw: st.DrawFn, frequency: str | None) -> list[Moment]:
    """Times on a grid, some of them with a mistake."""
    count = draw(st.integers(2, 12))
    if frequency is None:
        origin = draw(st.sampled_from([0.0, -3.5, 1e6]))
        found: list[Moment] = [origin + place for place in range(count)]
    else:
        first = advance(draw(st.sampled_from(["2024-01-31T00:00:00", "2023-12-04T06:00:00Z"])), 1, frequency)
        found = [first, *(advance(first, place, frequency) for place in range(1, count))]
    for place in range(1, count):
        if draw(st.integers(0, 15)) == 0:
            found[place] = draw(st.sampled_from([found[place - 1], found[-1], 2.5, "2024-05-01T00:00:01", "soon"]))
    return found


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(FREQUENCIES))
def test_regular_times_at_once_and_one_by_one(data: st.DataObject, frequency: str | None) -> None:
    given_ = data.draw(moments(frequency))
    split = data.draw(st.integers(0, 2))

    def one_by_one(clock: Clock, several: list[Moment]) -> Clock:
        for moment in several:
            clock = clock.advance_regular([moment], 1, frequency)
        return clock

    before = outcome(lambda: one_by_one(Clock(), given_[:split]))
    if not isinstance(before, Clock):
        return
    expected = outcome(lambda: one_by_one(before, given_[split:]))
    found = outcome(lambda: before.advance_regular(given_[split:], len(given_) - split, frequency))
    if isinstance(expected, Clock) or not given_[split:]:
        assert found == expected
    else:
        # Whichever mistake is found first.
        assert not isinstance(found, Clock)
        alike = len({isinstance(moment, str) for moment in given_}) == 1 and "soon" not in given_
        assert not alike or found == expected


def test_more_times_than_are_compared_at_once() -> None:
    times: list[Moment] = [advance("1700-01-01", day, "D") for day in range(1, 9001)]
    clock = Clock().advance_regular(times, len(times), "D")
    assert clock == Clock(times[0], 8999)
    for place in (1, 4095, 4096, 4097, 8999):
        wrong = [*times[:place], times[place - 1], *times[place + 1 :]]
        said = outcome(lambda wrong=wrong: Clock().advance_regular(wrong, len(wrong), "D"))
        assert said == outcome(
            lambda place=place: Clock(times[0], place - 1).advance_regular([times[place - 1]], 1, "D")
        )


def test_times_up_to_the_last_year_that_is_counted() -> None:
    times: list[Moment] = [advance("2261-11-21", day, "D") for day in range(1, 101)]
    right = times[: times.index("2261-12-31T00:00:00") + 1]
    assert Clock().advance_regular(right, len(right), "D") == Clock(right[0], len(right) - 1)
    with pytest.raises(InputError, match="years 1678 to 2261"):
        Clock().advance_regular(times, len(times), "D")
    with pytest.raises(ServingError, match="1 step is missing"):
        Clock().advance_regular([*times[:5], *times[6:]], 99, "D")


def test_elapsed_times_at_once_and_one_by_one() -> None:
    random = np.random.default_rng(0)
    for origin in (Clock(), Clock("2024-01-31T00:00:00", 1.5), Clock(2.0)):
        gaps = np.cumsum(random.uniform(0.1, 3.0, 50)) + 4
        given_: list[Moment] = [float(gap) for gap in gaps]
        if not isinstance(origin.origin, float):
            seconds = np.round(3600 * gaps).astype(int).tolist()
            given_ = [advance("2024-01-31T00:00:00", second, "S") for second in seconds]
        dt, clock = origin.advance_irregular(given_, True, "h")
        one, singles = origin, []
        for place, moment in enumerate(given_):
            part, one = one.advance_irregular([moment], place == 0, "h")
            singles.append(part[0])
        assert dt.dtype == np.float32
        assert dt.tolist() == pytest.approx(singles, rel=1e-6)
        assert clock == one


@pytest.mark.parametrize("reading", ["regular", "elapsed"])
@pytest.mark.parametrize(
    ("time", "text"),
    [
        (1e8, "'1973-03-03T09:46:40Z' in Unix seconds"),
        (1_700_000_000_000.0, "'2023-11-14T22:13:20Z' in Unix milliseconds"),
    ],
)
def test_a_stream_does_not_begin_at_a_unix_time(reading: str, time: float, text: str) -> None:
    begin = {
        "regular": lambda: Clock().advance_regular([time], 1, "h"),
        "elapsed": lambda: Clock().advance_irregular([time], True, "h"),
    }
    with pytest.raises(InputError, match=re.escape(text)):
        begin[reading]()


@pytest.mark.parametrize(
    ("time", "frequency"),
    [
        pytest.param(99_999_999.0, "h", id="below the first Unix time"),
        pytest.param(4_102_444_800_000.0, "h", id="above the last in milliseconds"),
        pytest.param(1_700_000_000.0, "S", id="steps of a second"),
    ],
)
def test_a_stream_may_count_its_steps_from_any_other_number(time: float, frequency: str | None) -> None:
    assert Clock().advance_regular([time], 3, frequency) == Clock(time, 2.0)
