"""Frames that close a stream, and what else they say."""

from __future__ import annotations

import json

import httpx
import numpy as np
import pytest

from server_helpers import Running
from stablernn_runtime import ServedModel
from stream_helpers import Wire, plain

X = np.array([[3.0], [-1.5], [0.25]], np.float32)


def logits(model: ServedModel, steps: int) -> np.ndarray:
    """Of the last of so many samples."""
    found: np.ndarray = model.run_sequence(X[None, :steps])["logits"][0]
    return found


def test_the_values_are_taken_and_the_token_is_given_before_the_stream_is_closed(
    server: Running, animals: ServedModel
) -> None:
    with Wire(server.url, "animals@production") as wire:
        wire.say(values=plain(X[0]))
        last = wire.say(values=plain(X[1]), token=True, close=True, id="bye")
        assert (last["stream"], last["id"], last["step"], last["closed"]) == (0, "bye", 2, True)
        assert np.array_equal(np.array(last["outputs"][0]["logits"], np.float32), logits(animals, 2))
        assert wire.say(close=True)["error"] == "The stream 0 is not open on this socket; there is nothing to close."
    body = {"state_token": last["state_token"], "values": plain(X[2])}
    answer = httpx.post(f"{server.url}/v1/step", json=body).raise_for_status().json()
    assert answer["step"] == 3
    assert np.array_equal(np.array(answer["outputs"][0]["logits"], np.float32), logits(animals, 3))


def test_a_stream_may_begin_and_end_in_one_frame(server: Running, animals: ServedModel) -> None:
    sockets = server.app.state.context.sockets
    with Wire(server.url, "animals@production") as wire:
        token = wire.say(stream=1, values=plain(X[:2]), token=True)["state_token"]
        open_before = sockets.streams
        found = wire.say(stream=2, state_token=token, values=plain(X[2]), close=True)
        assert (found["step"], found["closed"]) == (3, True)
        assert np.array_equal(np.array(found["outputs"][0]["logits"], np.float32), logits(animals, 3))
        assert sockets.streams == open_before


def test_a_frame_that_fails_closes_nothing(server: Running) -> None:
    with Wire(server.url, "animals@production") as wire:
        wire.say(values=plain(X))
        assert wire.say(values=[1, 2, 3], sequence=9, close=True)["code"] == "skipped_step"
        assert wire.say(values=[[1, 2]], close=True)["code"] == "bad_input"
        assert wire.say(close=True) == {"stream": 0, "step": 3, "closed": True}


@pytest.mark.parametrize(
    "field", [{"sequence": 4}, {"time": 1}, {"dt": 2}, {"state_token": "x"}, {"every": False}, {"horizon": 2}]
)
def test_what_has_no_effect_beside_the_end_is_refused(server: Running, field: dict[str, object]) -> None:
    with Wire(server.url, "animals@production") as wire:
        wire.say(values=plain(X))
        error = wire.say(close=True, token=True, **field)
        (name,) = field
        assert (error["code"], error["error"]) == (
            "bad_input",
            f"close ends the stream, and without values {name} has no effect; leave it out.",
        )
        # Fields that say what holds without them are no mistake.
        wire.socket.send(json.dumps({"close": True, "values": None, "every": True, "state_token": None}))
        assert json.loads(wire.socket.recv(10)) == {"stream": 0, "step": 3, "closed": True}
