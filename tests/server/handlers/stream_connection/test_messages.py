"""Messages of ``WS /v1/stream``: the first one, outputs, tokens, static values and clocks."""

from __future__ import annotations

import httpx
import numpy as np

from server_helpers import Running
from stablernn_runtime import ServedModel
from stream_helpers import (
    Wire,
    X,
    assert_same_bits,
    frame,
    offline,
    plain,
    samples,
)


def test_the_server_speaks_first(running: Running) -> None:
    with Wire(running.url, "deep") as wire:
        assert wire.hello.pop("digest").startswith("sha256:")
        assert wire.hello == {
            "model": "deep",
            "model_version": "1",
            "sample_shape": [3],
            "patch_stride": 1,
            "datatype": "FP32",
            "outputs": [{"name": "mean", "shape": [5, 2]}, {"name": "quantiles", "shape": [5, 2, 3]}],
            "labels": None,
            "max_streams": 8,
            "new_streams": True,
        }
    with Wire(running.url, "classes") as wire:
        assert wire.hello["labels"] == ["x", "y", "z"]
    with Wire(running.url, "text") as wire:
        assert (wire.hello["sample_shape"], wire.hello["datatype"]) == ([], "INT64")
    with Wire(running.url, "patched") as wire:
        assert (wire.hello["sample_shape"], wire.hello["patch_stride"]) == ([2], 3)


def test_outputs_can_be_chosen(running: Running, classes: ServedModel) -> None:
    x = samples(classes, 3)
    with Wire(running.url, "classes", "&outputs=probabilities") as wire:
        assert wire.hello["outputs"] == [{"name": "probabilities", "shape": [3]}]
        _, found, _ = wire.step([0], x[None])
        expected = offline(classes, x)["probabilities"]
        assert_same_bits({name: value[0] for name, value in found.items()}, {"probabilities": expected})
        answer = wire.say(stream=1, values=plain(x), id="mine")
        assert answer["outputs"][2].keys() == {"probabilities", "label"}
        assert answer["outputs"][2]["label"] == "xyz"[expected[2].argmax()]
        assert (answer["stream"], answer["id"], answer["model"], answer["step"]) == (1, "mine", "classes", 3)


def test_a_stream_is_closed_and_begins_anew(running: Running) -> None:
    with Wire(running.url, "classes") as wire:
        first = wire.say(values=X)
        assert first["stream"] == 0
        assert wire.say(values=X)["step"] == 2
        assert wire.say(close=True) == {"stream": 0, "step": 2, "closed": True}
        assert wire.say(values=X) == first
        error = wire.say(stream=4, close=True)
        assert error == {
            "error": "The stream 4 is not open on this socket; there is nothing to close.",
            "code": "bad_input",
            "status": 400,
            "stream": 4,
        }


def test_closing_one_stream_leaves_the_others(running: Running, classes: ServedModel) -> None:
    """The rows of the others move; numbers, states and counts must move together."""
    x = np.stack([samples(classes, 4, seed) for seed in range(5)])
    with Wire(running.url, "classes") as wire:
        wire.step([10, 11, 12, 13, 14], x[:, :2])
        wire.say(stream=11, close=True)
        wire.say(stream=10, close=True)
        taken, found, _ = wire.step([14, 11, 13, 12], np.stack([x[4, 2:], x[1, :2], x[3, 2:], x[2, 2:]]))
    assert taken == [4, 2, 4, 4]
    for place, (seed, first) in enumerate([(4, 2), (1, 0), (3, 2), (2, 2)]):
        expected = {name: value[first : first + 2] for name, value in offline(classes, x[seed]).items()}
        assert_same_bits({name: value[place] for name, value in found.items()}, expected)


def test_tokens_in_text_and_in_bytes(running: Running, classes: ServedModel) -> None:
    x = np.stack([samples(classes, 4, seed) for seed in range(3)])
    with Wire(running.url, "classes") as wire:
        _, _, tokens = wire.step([1, 2, 3], x[:, :2], want_tokens=True)
        asked = wire.say(stream=1, token=True)
        assert (asked["step"], "outputs" in asked) == (2, False)
    with Wire(running.url, "classes") as wire:
        # The first goes on from its token, the second begins, the third goes on from a text frame.
        assert wire.say(stream=7, state_token=tokens[2])["step"] == 2
        taken, found, _ = wire.step(
            [5, 6, 7],
            np.stack([x[0, 2:], x[1, :2], x[2, 2:]]),
            tokens=[asked["state_token"], "", ""],
            sequence=[3, 1, 3],
        )
    assert taken == [4, 2, 4]
    for place, first in enumerate([2, 0, 2]):
        expected = {name: value[first : first + 2] for name, value in offline(classes, x[place]).items()}
        assert_same_bits({name: value[place] for name, value in found.items()}, expected)


def test_static_values_of_a_stream(running: Running) -> None:
    """Said before the first sample, they hold for the stream and go with its token."""
    with Wire(running.url, "told") as wire, httpx.Client(base_url=running.url) as client:
        told = wire.say(stream=2, values=X, time="2024-01-31T06:00:00Z", static={"size": 3, "age": None}, token=True)
        first = {"model": "told", "values": X, "time": "2024-01-31T06:00:00Z", "static": {"size": 3}}
        answer = client.post("/v1/step", json=first).json()
        assert told["outputs"] == answer["outputs"]
        assert told["outputs"] != client.post("/v1/step", json={**first, "static": {}}).json()["outputs"]
        goes_on = client.post("/v1/step", json={"state_token": told["state_token"], "values": X}).json()
        assert goes_on["outputs"] == wire.say(stream=2, values=X, time="2024-01-31T07:00:00Z")["outputs"]
        assert "static is for the beginning of a stream" in wire.say(stream=2, static={"size": 1})["error"]
        error = wire.send(frame([2], np.zeros((1, 1, 6))))
        assert isinstance(error, dict)
        assert error["error"] == (
            "The model 'told' needs the position of each step in the calendar, which a binary frame does not give; "
            "send text frames with time."
        )


def test_clocks_go_on_in_binary_frames(running: Running) -> None:
    with Wire(running.url, "timed") as wire:
        assert wire.say(values=[1.0], time=10)["step"] == 1
        wire.step([0], np.ones((1, 2, 1), np.float32), dt=np.array([[0.5, 1.0]], np.float32))
        assert wire.say(values=[1.0], time=11.25)["code"] == "time_order"
        assert wire.say(values=[1.0], time=12)["step"] == 4
