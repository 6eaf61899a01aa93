"""Times and values of a step, and the sentences with which wrong ones are refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from session_helpers import assert_refused, opened, step
from stream_helpers import LETTERS, X


@pytest.mark.parametrize(
    ("first", "then", "code", "sentence"),
    [
        (
            "2024-01-31",
            "2024-02-03",
            "missing_steps",
            "The time '2024-02-03' lies 3 regular steps after '2024-01-31': 2 steps are missing. Send null values for "
            "each of them first, or the model takes the times that follow for earlier ones.",
        ),
        (
            4,
            6,
            "missing_steps",
            "The time 6 lies 2 regular steps after 4: 1 step is missing. Send null values for each of them first, or "
            "the model takes the times that follow for earlier ones.",
        ),
        (
            "2024-01-31T06:00:00Z",
            "2024-01-31T06:00:00+00:00",
            "time_order",
            "The time '2024-01-31T06:00:00+00:00' does not lie after '2024-01-31T06:00:00Z', the time of the reading "
            "before it; samples must come in the order of their times, each time once.",
        ),
        (
            7.5,
            7,
            "time_order",
            "The time 7 does not lie after 7.5, the time of the reading before it; samples must come in the order of "
            "their times, each time once.",
        ),
        (
            "2024-01-31",
            "2024-02-01T12:00",
            "time_order",
            "The time '2024-02-01T12:00' lies on none of the model's regular steps of 'D' after '2024-01-31'. Give the "
            "times of regular steps, with null values where there is none.",
        ),
    ],
)
def test_regular_steps_follow_each_other(client: httpx.Client, first: Any, then: Any, code: str, sentence: str) -> None:
    session, x = opened(client, "deep"), [1.0, 2.0, 3.0]
    assert step(client, session, x, time=first).status_code == 200
    assert assert_refused(step(client, session, x, time=then), 409, code) == sentence
    after = 8.5 if first == 7.5 else 5 if first == 4 else str(first).replace("01-31", "02-01")
    assert step(client, session, x, time=after).json()["step"] == 2
    assert step(client, session, [x, x]).json()["step"] == 4


def test_irregular_times_go_forward(client: httpx.Client) -> None:
    session = opened(client, "timed")
    assert step(client, session, [1.0], time="2024-01-31T06:00:00").status_code == 200
    for again in ("2024-01-31T06:00:00", "2024-01-31T05:00:00"):
        assert_refused(step(client, session, [1.0], time=again), 409, "time_order")
    assert "dt must be at most 4" in assert_refused(step(client, session, [1.0], time="2024-02-01"), 400, "bad_input")
    assert "all ISO 8601 or all numbers" in assert_refused(step(client, session, [1.0], time=3), 400, "bad_input")
    assert step(client, session, [1.0], dt=2).status_code == 200
    assert_refused(step(client, session, [1.0], time="2024-01-31T08:00:00"), 409, "time_order")
    assert step(client, session, [1.0], time="2024-01-31T08:30:00").status_code == 200


BAD: dict[str, tuple[str, dict[str, Any], str]] = {
    "no values": ("classes", {}, "values is missing: give one sample, [2], or an array of samples."),
    "features": (
        "classes",
        {"values": [1, 2, 3]},
        "values must be one sample of the shape [2] (l, r) for model 'classes:1', or an array of several, one level "
        "more; got the shape [3].",
    ),
    "empty": (
        "classes",
        {"values": []},
        "values must be one sample of the shape [2] (l, r) for model 'classes:1', or an array of several, one level "
        "more; got the shape [0].",
    ),
    "a number": ("classes", {"values": 3}, "values must be an array of numbers, got a number."),
    "text": (
        "classes",
        {"values": ["a", "b"]},
        "values holds text; only numbers, and null or NaN for missing values, are allowed.",
    ),
    "half a token": (
        "text",
        {"values": 1.5},
        "values must be integers, the indices of tokens in the vocabulary, without a decimal point.",
    ),
    "beyond": (
        "text",
        {"values": len(LETTERS)},
        "tokens must be from 0 to 4, their places in the vocabulary of model 'text:1', got 5 at (0,).",
    ),
    "misspelled": (
        "classes",
        {"values": X, "sequnce": 1},
        "the body: unknown field 'sequnce'. Did you mean 'sequence'? Known fields: values, time, dt, sequence, future, "
        "every, token, horizon.",
    ),
    "dt of regular steps": (
        "classes",
        {"values": X, "dt": 1},
        "dt: the model 'classes' was trained on regular steps and takes no dt; leave it out.",
    ),
    "dt and time": (
        "timed",
        {"values": [1], "dt": 1, "time": 3},
        "time and dt are both given; leave one of them out.",
    ),
    "too few dt": (
        "timed",
        {"values": [[1], [2]], "dt": [1]},
        "dt must hold a number for each sample, in the shape [2], got the shape [1].",
    ),
    "missing dt": (
        "timed",
        {"values": [1], "dt": [None]},
        "dt must hold finite numbers, the time since the sample before; none can be missing.",
    ),
    "no calendar": (
        "classes",
        {"values": X, "time": "2024-01-31"},
        "The time '2024-01-31' cannot be counted in steps: the model was trained without a frequency of the calendar. "
        "Give time as a number of regular steps, or dt where the model takes it.",
    ),
    "no time": (
        "deep",
        {"values": [1, 2, 3], "time": "soon"},
        "time must be ISO 8601, such as '2024-01-31T06:00:00Z', got 'soon'.",
    ),
    "time of a kind": (
        "deep",
        {"values": [1, 2, 3], "time": {"at": 1}},
        "time must be ISO 8601 text or a number of regular steps, or an array of these, got {'at': 1}.",
    ),
    "some times": (
        "deep",
        {"values": [[1, 2, 3]] * 3, "time": [1, 2]},
        "time must be that of the first of 3 samples, or an array of 3, got 2 times.",
    ),
    "the calendar's time": (
        "told",
        {"values": [1, 2]},
        "time is missing: the model 'told' needs the position of each step in the day and the week. Give the time of "
        "the sample, at least of the first of the stream.",
    ),
    "the calendar's numbers": (
        "told",
        {"values": [1, 2], "time": 3},
        "The calendar of this model needs ISO 8601 times such as '2024-01-31T06:00:00Z'; begin a new stream with one "
        "as time.",
    ),
    "a calendar of one's own": (
        "told",
        {"values": [1, 2], "time": "2024-01-31", "future": {"calendar_day_sin": [1, 2, 3]}},
        "future.calendar_day_sin follows from time; leave it out.",
    ),
    "future of nobody": (
        "classes",
        {"values": X, "future": {"price": [1]}},
        "future: unknown name 'price'. The model 'classes' takes none.",
    ),
    "futures": (
        "fed",
        {"values": [[1, 2, 3]] * 2, "future": {"b": [1]}},
        "future must be an array of one object for each of the 2 samples, got 1; use null for samples without any.",
    ),
    "horizon of classes": (
        "classes",
        {"values": X, "horizon": 1},
        "horizon is for forecasts; the model 'classes' was trained for 'classify'.",
    ),
    "horizon": (
        "fed",
        {"values": [1, 2, 3], "horizon": 5},
        "horizon must be at most 4, which the model 'fed' was trained for, got 5.",
    ),
    "horizon of every step": (
        "fed",
        {"values": [[1, 2, 3]] * 2, "horizon": 2},
        "A recursive head looks further than one step ahead only after the last sample; send every=false with "
        "horizon, or one sample at a time.",
    ),
    "sequence": (
        "classes",
        {"values": X, "sequence": 0},
        "sequence: input should be greater than or equal to 1, got 0.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_step_is_refused_in_words(client: httpx.Client, case: str) -> None:
    model, body, sentence = BAD[case]
    assert (
        assert_refused(client.post(f"/v1/sessions/{opened(client, model)}/step", json=body), 400, "bad_input")
        == sentence
    )


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({}, "model is missing: name the model of a new stream, or give the state_token of a stream."),
        ({"model": "classes", "static": {"size": 1}}, "static: unknown name 'size'. The model 'classes' takes none."),
        (
            {"model": "told", "static": {"sice": 1}},
            "static: unknown name 'sice'. Did you mean 'size'? The model 'told' takes size, age.",
        ),
        ({"model": 3}, "model: input should be a valid string, got 3."),
    ],
)
def test_a_session_that_cannot_begin(client: httpx.Client, body: dict[str, Any], sentence: str) -> None:
    assert assert_refused(client.post("/v1/sessions", json=body), 400, "bad_input") == sentence
