"""Frames and handshakes of ``WS /v1/stream`` that are refused."""

from __future__ import annotations

import json
import struct

import httpx
import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from server_helpers import Running
from stream_helpers import (
    Wire,
    X,
    assert_same_bits,
    frame,
)

BINARY: dict[str, tuple[str, bytes, str, str]] = {
    "cut off": ("classes", frame([0], np.zeros((1, 1, 2)))[:-1], "bad_input", "must have 24 bytes, got 23."),
    "infinite": ("classes", frame([0], np.full((1, 1, 2), np.inf)), "bad_input", "x holds an infinite value"),
    "tokens": ("text", frame([0], np.full((1, 1), 5)), "bad_input", "tokens must be from 0 to 4"),
    "dt of regular steps": (
        "classes",
        frame([0], np.zeros((1, 1, 2)), dt=np.ones((1, 1))),
        "bad_input",
        "dt: the model 'classes' was trained on regular steps",
    ),
    "dt missing": (
        "timed",
        frame([0], np.zeros((1, 2, 1)), dt=np.array([[1, np.nan]])),
        "bad_input",
        "dt holds values that are not finite",
    ),
    "streams": ("classes", frame(list(range(9)), np.zeros((9, 1, 2))), "too_many", "at most 8 streams, got 9"),
    "streams by the head alone": ("classes", struct.pack("<BBHII", 1, 16, 0, 9, 1), "too_many", "8 streams, got 9"),
    "steps": (
        "classes",
        struct.pack("<BBHII", 1, 0, 0, 1, 2**32 - 1),
        "too_large",
        "4294967295 samples at a time are more than the limit of 1000",
    ),
    "elements": (
        "classes",
        struct.pack("<BBHII", 1, 0, 0, 2**31, 1000),
        "too_large",
        "1000 samples of 2147483648 streams make",
    ),
    "sequence": (
        "classes",
        frame([0, 1], np.zeros((2, 1, 2)), sequence=[1, 5]),
        "skipped_step",
        "The stream has taken 0 samples, so sequence must be 1, got 5",
    ),
    "token": ("classes", frame([0], np.zeros((1, 1, 2)), tokens=["AAAA"]), "bad_token", "was not signed"),
}
STATUS = {"bad_input": 400, "bad_token": 400, "too_many": 429, "too_large": 413, "skipped_step": 409}


@pytest.mark.parametrize("case", BINARY)
def test_a_binary_frame_is_refused_in_words(running: Running, case: str) -> None:
    model, content, code, sentence = BINARY[case]
    with Wire(running.url, model) as wire:
        error = wire.send(content)
        assert isinstance(error, dict)
        assert (error["code"], error["status"]) == (code, STATUS[code])
        assert sentence in error["error"]
        # The socket stays open, and its streams are where they were.
        shape = tuple(wire.hello["sample_shape"])
        dtype = np.int64 if model == "text" else np.float32
        taken, _, _ = wire.step([0], np.ones((1, 1, *shape), dtype), sequence=[1])
        assert taken == [1]


TEXT: dict[str, tuple[str, str, str]] = {
    "no JSON": ("{", "bad_input", "The body is not JSON"),
    "no object": ("[1]", "bad_input", "The body must be a JSON object, got an array."),
    "nothing": ("{}", "bad_input", "The frame is empty: give values, state_token, static, token or close."),
    "misspelled": ('{"value": 1}', "bad_input", "the frame: unknown field 'value'. Did you mean 'values'?"),
    "stream": ('{"stream": -1, "values": [1, 2]}', "bad_input", "stream: input should be greater than or equal to 0"),
    "values": ('{"stream": 3, "id": 5, "values": [1]}', "bad_input", "values must be one sample of the shape [2]"),
    "long": ('{"values": [' + "1," * 2**19 + "1]}", "too_large", "The frame is longer than the limit of 1048576 bytes"),
    "token": ('{"state_token": "x"}', "bad_token", "The state token is not base64url text"),
}


@pytest.mark.parametrize("case", TEXT)
def test_a_text_frame_is_refused_in_words(running: Running, case: str) -> None:
    text, code, sentence = TEXT[case]
    with Wire(running.url, "classes") as wire:
        wire.socket.send(text)
        error = json.loads(wire.socket.recv(10))
        assert error["error"].startswith(sentence)
        assert (error["code"], error["status"]) == (code, STATUS[code])
        if case == "values":
            assert (error["stream"], error["id"]) == (3, 5)
        assert wire.say(values=X)["step"] == 1


@pytest.mark.parametrize(
    ("query", "status", "sentence"),
    [
        ("model=clases", 404, "Unknown model 'clases'. Did you mean 'classes'?"),
        ("", 400, "The query parameter model is missing: /v1/stream?model=NAME."),
        ("model=classes&outputs=mean", 400, "Unknown output 'mean'."),
        ("model=classes&outputs=logits,logits", 400, "outputs names one output twice: logits, logits."),
        ("model=classes&output=logits", 400, "Unknown query parameter 'output'; /v1/stream takes model and outputs."),
    ],
)
def test_a_handshake_is_refused_as_a_request_is(running: Running, query: str, status: int, sentence: str) -> None:
    address = f"{running.url.replace('http', 'ws', 1)}/v1/stream?{query}"
    with pytest.raises(InvalidStatus) as caught, connect(address):
        pass
    response = caught.value.response
    assert response.status_code == status
    assert response.body is not None
    assert json.loads(response.body)["error"].startswith(sentence)


def test_a_token_of_another_model(running: Running) -> None:
    with httpx.Client(base_url=running.url) as client:
        token = client.post("/v1/step", json={"model": "deep", "values": [1, 2, 3]}).json()["state_token"]
    with Wire(running.url, "classes") as wire:
        error = wire.say(state_token=token)
        assert (error["code"], error["status"]) == ("other_model", 409)
        assert "is of 'deep:1', this socket streams model 'classes:1'" in error["error"]


def test_frames_that_fail_leave_the_streams_alone(running: Running) -> None:
    """No stream is begun, and none is set back, by a frame that was refused, whatever stood in its way."""
    sockets = running.app.state.context.sockets
    other = np.zeros((1, 1, 2), np.float32)
    with Wire(running.url, "classes") as wire:
        _, first, (token,) = wire.step([3], other, want_tokens=True)
        _, second, _ = wire.step([3], other)
        before = sockets.streams
        for content in (
            frame([0, 1], np.zeros((2, 1, 2)), sequence=[1, 5]),
            frame([0, 1], np.full((2, 1, 2), np.inf)),
            frame([3, 0], np.full((2, 1, 2), np.inf), tokens=[token, token]),
            frame([0, 3], np.zeros((2, 1, 2)), tokens=[token, token], sequence=[2, 9]),
        ):
            assert isinstance(wire.send(content), dict)
        assert "error" in wire.say(stream=5, values=[1])
        assert "error" in wire.say(stream=3, state_token=token, values=[1])
        assert sockets.streams == before
        taken, third, _ = wire.step([3], other)
        assert taken == [3]
        wire.say(stream=3, state_token=token)
        _, again, _ = wire.step([3], other)
        assert_same_bits(again, second)
        assert not np.array_equal(third["logits"], second["logits"])
        assert not np.array_equal(first["logits"], second["logits"])
