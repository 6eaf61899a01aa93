"""Times and values of a step, and the sentences with which wrong ones are refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from session_helpers import assert_refused, opened, step
from stream_helpers import LETTERS, X


@pytest.mark.parametrize(
    ("first", "then", "code", "words"),
    [
        ("2024-01-31", "2024-02-03", "missing_steps", "2 steps are missing"),
        (4, 6, "missing_steps", "1 step is missing"),
        ("2024-01-31T06:00:00Z", "2024-01-31T06:00:00+00:00", "time_order", "does not lie after"),
        (7.5, 7, "time_order", "The time 7 does not lie after 7.5"),
        ("2024-01-31", "2024-02-01T12:00", "time_order", "lies on none of the model's regular steps of 'D'"),
    ],
)
def test_regular_steps_follow_each_other(client: httpx.Client, first: Any, then: Any, code: str, words: str) -> None:
    session, x = opened(client, "deep"), [1.0, 2.0, 3.0]
    assert step(client, session, x, time=first).status_code == 200
    assert words in assert_refused(step(client, session, x, time=then), 409, code)
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


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("classes", {}, "values is missing"),
    ("classes", {"values": [1, 2, 3]}, "values must be one sample of the shape [2] (l, r) for model 'classes:1'"),
    ("classes", {"values": []}, "got the shape [0]."),
    ("classes", {"values": 3}, "values must be an array of numbers"),
    ("classes", {"values": ["a", "b"]}, "values holds text"),
    ("text", {"values": 1.5}, "values must be integers"),
    ("text", {"values": len(LETTERS)}, "tokens must be from 0 to 4"),
    ("classes", {"values": X, "sequnce": 1}, "unknown field 'sequnce'. Did you mean 'sequence'?"),
    ("classes", {"values": X, "dt": 1}, "dt: the model 'classes' was trained on regular steps"),
    ("timed", {"values": [1], "dt": 1, "time": 3}, "time and dt are both given"),
    ("timed", {"values": [[1], [2]], "dt": [1]}, "dt must hold a number for each sample, in the shape [2]"),
    ("timed", {"values": [1], "dt": [None]}, "dt must hold finite numbers"),
    ("classes", {"values": X, "time": "2024-01-31"}, "trained without a frequency of the calendar"),
    ("deep", {"values": [1, 2, 3], "time": "soon"}, "time must be ISO 8601"),
    ("deep", {"values": [1, 2, 3], "time": {"at": 1}}, "time must be ISO 8601 text or a number of regular steps"),
    ("deep", {"values": [[1, 2, 3]] * 3, "time": [1, 2]}, "time must be that of the first of 3 samples"),
    ("told", {"values": [1, 2]}, "time is missing"),
    ("told", {"values": [1, 2], "time": 3}, "The calendar of this model needs ISO 8601 times"),
    (
        "told",
        {"values": [1, 2], "time": "2024-01-31", "future": {"calendar_day_sin": [1, 2, 3]}},
        "future.calendar_day_sin follows from time",
    ),
    ("classes", {"values": X, "future": {"price": [1]}}, "future: unknown name 'price'."),
    ("fed", {"values": [[1, 2, 3]] * 2, "future": {"b": [1]}}, "one object for each of the 2 samples, got 1"),
    ("classes", {"values": X, "horizon": 1}, "horizon is for forecasts"),
    ("fed", {"values": [1, 2, 3], "horizon": 5}, "horizon must be at most 4"),
    ("fed", {"values": [[1, 2, 3]] * 2, "horizon": 2}, "A recursive head looks further than one step ahead only after"),
    ("classes", {"values": X, "sequence": 0}, "sequence: input should be greater than or equal to 1"),
]


@pytest.mark.parametrize(("model", "body", "words"), BAD, ids=range(len(BAD)))
def test_a_step_is_refused_in_words(client: httpx.Client, model: str, body: dict[str, Any], words: str) -> None:
    answer = client.post(f"/v1/sessions/{opened(client, model)}/step", json=body)
    assert words in assert_refused(answer, 400, "bad_input")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "model is missing"),
        ({"model": "classes", "static": {"size": 1}}, "static: unknown name 'size'."),
        ({"model": 3}, "model: input should be a valid string"),
    ],
)
def test_a_session_that_cannot_begin(client: httpx.Client, body: dict[str, Any], words: str) -> None:
    assert words in assert_refused(client.post("/v1/sessions", json=body), 400, "bad_input")
