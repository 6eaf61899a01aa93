"""``WS /v1/stream`` behind a real server: what it says and refuses, how it ends, whom a slow reader holds up."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from server_helpers import Published, Running, serve
from stablernn_runtime import ServedModel
from stablernn_server import Settings, create_app
from stream_helpers import (
    STATE_KEY,
    Wire,
    assert_same_bits,
    distances,
    frame,
    offline,
    plain,
    publish,
    samples,
    stacked,
)

X = [1.0, 2.0]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return publish(tmp_path_factory.mktemp("registry"), tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="module")
def classes(published: Published) -> ServedModel:
    return ServedModel.load(published.registry.get("classes"), "cpu")


def serving(published: Published, **settings: Any) -> Iterator[Running]:
    return serve(create_app(Settings(registry=published.root, state_key=STATE_KEY, **settings)))


@pytest.fixture(scope="module")
def running(published: Published) -> Iterator[Running]:
    yield from serving(published, max_streams=8, max_steps=1000, max_json_bytes=2**20)


# What it says.


def test_the_server_speaks_first(running: Running) -> None:
    with Wire(running.url, "deep") as wire:
        assert wire.hello.pop("digest").startswith("sha256:")
        assert wire.hello == {
            "model": "deep",
            "model_version": "1",
            "sample_shape": [3],
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
        assert wire.hello["sample_shape"] == [3, 2]


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


# What it refuses.


BINARY: dict[str, tuple[str, bytes, str, str]] = {
    "cut off": (
        "classes",
        frame([0], np.zeros((1, 1, 2)))[:-1],
        "bad_input",
        "By its head, the binary frame must have 24 bytes, got 23.",
    ),
    "infinite": (
        "classes",
        frame([0], np.full((1, 1, 2), np.inf)),
        "bad_input",
        "x holds an infinite value at (0, 0); values must be finite within float32, and a missing one is NaN (null in "
        "JSON).",
    ),
    "tokens": (
        "text",
        frame([0], np.full((1, 1), 5)),
        "bad_input",
        "tokens must be from 0 to 4, their places in the vocabulary of model 'text:1', got 5 at (0,).",
    ),
    "dt of regular steps": (
        "classes",
        frame([0], np.zeros((1, 1, 2)), dt=np.ones((1, 1))),
        "bad_input",
        "dt: the model 'classes' was trained on regular steps and takes no dt; leave it out.",
    ),
    "dt below": (
        "timed",
        frame([0], np.zeros((1, 2, 1)), dt=np.array([[1, -1]])),
        "bad_input",
        "dt must be 0 or more, the time since the step before, got -1.",
    ),
    "dt above": (
        "timed",
        frame([0], np.zeros((1, 2, 1)), dt=np.array([[1, 9]])),
        "bad_input",
        "dt must be at most 4, the longest step that the model takes, got 9; divide the gap into steps with missing "
        "values.",
    ),
    "dt missing": (
        "timed",
        frame([0], np.zeros((1, 2, 1)), dt=np.array([[1, np.nan]])),
        "bad_input",
        "dt holds values that are not finite; only x may have missing values.",
    ),
    "streams": (
        "classes",
        frame(list(range(9)), np.zeros((9, 1, 2))),
        "too_many",
        "A socket carries at most 8 streams, got 9; close some of them, or open another socket.",
    ),
    "steps": (
        "classes",
        struct.pack("<BBHII", 1, 0, 0, 1, 2**32 - 1),
        "too_large",
        "4294967295 samples at a time are more than the limit of 1000; send fewer.",
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
        "The stream has taken 0 samples, so sequence must be 1, got 5: send the samples between first, with null "
        "values where there are none.",
    ),
    "token": (
        "classes",
        frame([0], np.zeros((1, 1, 2)), tokens=["AAAA"]),
        "bad_token",
        "The state token was not signed",
    ),
}
STATUS = {"bad_input": 400, "bad_token": 400, "too_many": 429, "too_large": 413, "skipped_step": 409}


@pytest.mark.parametrize("case", BINARY)
def test_a_binary_frame_is_refused_in_words(running: Running, case: str) -> None:
    model, content, code, sentence = BINARY[case]
    with Wire(running.url, model) as wire:
        error = wire.send(content)
        assert isinstance(error, dict)
        assert (error["code"], error["status"]) == (code, STATUS[code])
        assert error["error"].startswith(sentence)
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
        assert error["error"] == (
            "The state token is of 'deep:1', this socket streams model 'classes:1'; open one with model=deep:1."
        )


def test_who_may_stream(published: Published) -> None:
    """Browsers name their token among the subprotocols."""
    for running in serving(published, models=("classes",), infer_tokens=("secret-of-the-test",)):
        with pytest.raises(InvalidStatus) as caught, Wire(running.url, "classes"):
            pass
        assert caught.value.response.status_code == 401
        headers = {"Authorization": "Bearer secret-of-the-test"}
        with Wire(running.url, "classes", additional_headers=headers) as wire:
            assert wire.say(values=X)["step"] == 1
        encoded = base64.urlsafe_b64encode(b"secret-of-the-test").rstrip(b"=").decode()
        with Wire(running.url, "classes", subprotocols=["stablernn", f"bearer.{encoded}"]) as wire:
            assert wire.socket.subprotocol == "stablernn"
            assert wire.say(values=X)["step"] == 1


# Many at a time.


def test_many_sockets_at_a_time(running: Running, published: Published) -> None:
    """Their steps are batched; each stream gets the bits of its own series, and numbers of one socket are its own."""
    names = ["classes", "timed"]
    models = {name: ServedModel.load(published.registry.get(name), "cpu") for name in names}

    def follow(seed: int) -> None:
        model = models[names[seed % 2]]
        x, dt = samples(model, 30, seed), distances(model, 30, seed)
        found = []
        with Wire(running.url, model.name) as wire:
            at = 0
            while at < 30:
                here = slice(at, at + 1 + (seed + at) % 3)
                _, outputs, _ = wire.step([0], x[None, here], dt=None if dt is None else dt[None, here])
                found.append({name: value[0] for name, value in outputs.items()})
                at = here.stop
        assert_same_bits(
            {name: np.concatenate([part[name] for part in found]) for name in found[0]}, offline(model, x, dt)
        )

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(follow, range(48)))


def test_frames_of_a_socket_are_answered_in_their_order(running: Running, classes: ServedModel) -> None:
    """All are sent before the first answer is read, those that are wrong among them."""
    x = samples(classes, 40)
    with Wire(running.url, "classes") as wire:
        for step in range(40):
            wire.socket.send(frame([step % 2], x[None, step : step + 1], sequence=[step // 2 + 1]))
            wire.socket.send(json.dumps({"stream": 5, "id": step, "values": [1]}))
        for step in range(40):
            answer = wire.socket.recv(10)
            assert isinstance(answer, bytes)
            taken, _, _ = wire.read(answer)
            assert taken == [step // 2 + 1]
            assert json.loads(wire.socket.recv(10))["id"] == step


def failures(running: Running, code: str, model: str = "classes") -> float:
    """Failures of this code word that the metrics count."""
    start = f'stablernn_failures_total{{code="{code}",model="{model}",version="1"}} '
    lines = httpx.get(f"{running.url}/metrics").text.splitlines()
    return sum(float(line.removeprefix(start)) for line in lines if line.startswith(start))


def test_frames_that_fail_are_counted(running: Running) -> None:
    before = failures(running, "bad_input"), failures(running, "skipped_step")
    with Wire(running.url, "classes") as wire:
        wire.say(values=[1])
        wire.send(frame([0], np.zeros((1, 1, 2)), sequence=[7]))
    assert (failures(running, "bad_input"), failures(running, "skipped_step")) == (before[0] + 1, before[1] + 1)


def test_more_streams_than_allowed_are_refused_by_the_head_alone(running: Running) -> None:
    with Wire(running.url, "classes") as wire:
        error = wire.send(struct.pack("<BBHII", 1, 16, 0, 9, 1))
        assert isinstance(error, dict)
        assert error["code"] == "too_many"
        assert error["error"].startswith("A socket carries at most 8 streams, got 9;")


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


def test_frames_count_among_what_is_held(published: Published) -> None:
    for running in serving(published, models=("classes",), max_held_bytes=1000):
        with Wire(running.url, "classes") as wire:
            for content in (frame([0], np.zeros((1, 200, 2))), json.dumps({"values": [[1.0, 2.0]] * 200})):
                wire.socket.send(content)
                error = json.loads(wire.socket.recv(10))
                assert (error["code"], error["status"]) == ("busy", 503)
            taken, _, _ = wire.step([0], np.zeros((1, 10, 2)))
            assert taken == [10]
        with Wire(running.url, "classes") as wire:
            assert wire.say(values=X)["step"] == 1
        assert running.app.state.context.budget.held_bytes == 0


@pytest.fixture
def alone(published: Published) -> Iterator[Running]:
    yield from serving(published, models=("deep",))


def test_a_reader_that_does_not_read_holds_up_itself_alone(alone: Running) -> None:
    """It sends frames whose answers are long; the server works on no more of them than the network holds answers."""
    frames, steps = 80, 1000
    content = frame([0], np.zeros((1, steps, 3)))
    sockets = alone.app.state.context.sockets

    def taken() -> int:
        versions = [version for each in sockets._open for version in each.connection._versions.values()]
        return max((version.batch.steps[0] for version in versions if len(version.batch)), default=0)

    async def send_all(slow: Any) -> None:
        for _ in range(frames):
            await slow.send(content)

    async def read_late() -> list[bytes | str]:
        narrow = socket.create_connection(("127.0.0.1", alone.port))
        narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
        address = f"ws://127.0.0.1:{alone.port}/v1/stream?model=deep"
        async with connect_async(address, sock=narrow, compression=None, max_size=None, max_queue=1) as slow:
            await slow.recv()
            sending = asyncio.create_task(send_all(slow))
            seen = -1
            while seen != (seen := taken()) or not seen:
                await asyncio.sleep(1)
            assert seen < frames * steps
            with Wire(alone.url, "deep") as other:
                await asyncio.to_thread(other.step, [1], np.zeros((1, 1, 3)))
            assert taken() == seen
            answers = [await asyncio.wait_for(slow.recv(), 60) for _ in range(frames)]
            await sending
            return answers

    for place, answer in enumerate(asyncio.run(read_late())):
        assert isinstance(answer, bytes)
        assert struct.unpack_from("<Q", answer, 12) == (steps * (place + 1),)


# Its end.


def leave(running: Running, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    sockets = running.app.state.context.sockets
    asyncio.run_coroutine_threadsafe(sockets.drain(seconds), loop).result(seconds + 10)


def test_a_server_that_stops_hands_back_the_streams(published: Published, classes: ServedModel) -> None:
    """Every client gets a token of each stream that has begun, and goes on elsewhere with the same bits."""
    x = np.stack([samples(classes, 5, seed) for seed in range(3)])
    tokens: dict[str, str] = {}
    for running in serving(published, models=("classes",)):
        loop = loop_of(running)
        with Wire(running.url, "classes") as wire, Wire(running.url, "classes") as idle:
            wire.step([4, 9, 6], x[:, :2])
            leave(running, loop, 5)
            said = json.loads(wire.socket.recv(10))
            assert said["closing"] is True
            tokens = said["state_tokens"]
            assert tokens.keys() == {"4", "9", "6"}
            assert json.loads(idle.socket.recv(10)) == {"closing": True, "state_tokens": {}}
            for connection in (wire.socket, idle.socket):
                with pytest.raises(ConnectionClosed) as caught:
                    connection.recv(10)
                assert caught.value.rcvd is not None
                assert caught.value.rcvd.code == 1001
    for running in serving(published, models=("classes",)):
        with Wire(running.url, "classes") as wire:
            _, found, _ = wire.step([1, 2, 3], x[:, 2:], tokens=[tokens["4"], tokens["9"], tokens["6"]])
    for place in range(3):
        expected = {name: value[2:] for name, value in offline(classes, x[place]).items()}
        assert_same_bits({name: value[place] for name, value in found.items()}, expected)


def loop_of(running: Running) -> asyncio.AbstractEventLoop:
    loop: asyncio.AbstractEventLoop = running.app.state.context.scheduler._loop
    return loop


LONG = 100_000
"""Samples of a frame that takes seconds."""


def long_frame(steps: int = LONG) -> bytes:
    return frame([0], np.zeros((1, steps, 3)), last=True)


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_that_goes_ends_its_run(alone: Running) -> None:
    scheduler = alone.app.state.context.scheduler
    with Wire(alone.url, "deep") as wire:
        wire.socket.send(long_frame())
        wait_for(lambda: scheduler.pending == 1)
        wire.socket.socket.close()  # without a word
    wait_for(lambda: scheduler.pending == 0)
    wait_for(lambda: failures(alone, "client_gone", "deep") == 1)
    assert not alone.app.state.context.sockets.streams


def test_what_is_sent_while_a_frame_takes_long_is_answered_in_its_order(alone: Running) -> None:
    """While it is looked whether the client has gone, its next frames come in."""
    with Wire(alone.url, "deep") as wire:
        wire.socket.send(long_frame(20_000))
        for step in range(3):
            wire.socket.send(frame([0], np.zeros((1, 1, 3)), sequence=[20_001 + step]))
        wire.socket.send(json.dumps({"token": True}))
        for step in (20_000, 20_001, 20_002, 20_003):
            answer = wire.socket.recv(60)
            assert isinstance(answer, bytes)
            assert wire.read(answer)[0] == [step]
        assert json.loads(wire.socket.recv(60))["step"] == 20_003
    wait_for(lambda: alone.app.state.context.budget.held_bytes == 0)


def test_goodbye_is_said_after_the_frame_in_hand(alone: Running) -> None:
    context, loop = alone.app.state.context, loop_of(alone)
    with Wire(alone.url, "deep") as wire:
        wire.socket.send(long_frame(20_000))
        wait_for(lambda: context.scheduler.pending == 1)
        leave(alone, loop, 60)
        # Not before: whoever goes on closes the connections.
        assert context.scheduler.pending == 0
        answer = wire.socket.recv(10)
        assert isinstance(answer, bytes)
        assert wire.read(answer)[0] == [20_000]
        assert list(json.loads(wire.socket.recv(10))["state_tokens"]) == ["0"]


def test_a_frame_that_outlasts_the_grace_is_ended(alone: Running, published: Published) -> None:
    """It has an answer, and the stream is where it was before the frame."""
    context, loop = alone.app.state.context, loop_of(alone)
    x = np.ones((1, 2, 3))
    with Wire(alone.url, "deep") as wire:
        wire.step([0], x[:, :1])
        wire.socket.send(long_frame())
        wait_for(lambda: context.scheduler.pending == 1)
        leave(alone, loop, 0.01)
        error = json.loads(wire.socket.recv(10))
        assert (error["code"], error["status"]) == ("not_ready", 503)
        assert error["error"] == "The server is shutting down and did not finish this request; send it again."
        (token,) = json.loads(wire.socket.recv(10))["state_tokens"].values()
        with pytest.raises(ConnectionClosed) as caught:
            wire.socket.recv(10)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1001
    assert context.scheduler.pending == 0
    with Wire(alone.url, "deep") as wire:
        taken, found, _ = wire.step([5], x[:, 1:], tokens=[token], sequence=[2])
        assert taken == [2]
    model = ServedModel.load(published.registry.get("deep"), "cpu")
    expected = {name: value[1:] for name, value in offline(model, x[0].astype(np.float32)).items()}
    assert_same_bits({name: value[0] for name, value in found.items()}, expected)


@pytest.mark.parametrize("told", ["websocket.connect", "websocket.accept"])
def test_a_handshake_in_the_middle_of_a_drain(published: Published, told: str) -> None:
    """Told to stop before it agreed, the server refuses; told after, it says goodbye at once."""
    app = create_app(Settings(registry=published.root, state_key=STATE_KEY, models=("classes",)))
    context = app.state.context
    sent: list[Any] = []

    async def run() -> None:
        context.start()
        incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        incoming.put_nowait({"type": "websocket.connect"})

        async def receive() -> dict[str, Any]:
            message = await incoming.get()
            if message["type"] == told:
                context.drain(5)
            return message

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if message["type"] == told:
                context.drain(5)
            if message["type"] == "websocket.close":
                incoming.put_nowait({"type": "websocket.disconnect", "code": 1001})

        scope = {
            "type": "websocket",
            "path": "/v1/stream",
            "query_string": b"model=classes",
            "headers": [],
            "subprotocols": [],
            "client": ("127.0.0.1", 1),
            "extensions": {"websocket.http.response": {}},
        }
        await asyncio.wait_for(app(scope, receive, send), 10)
        await context.stop()

    asyncio.run(run())
    kinds = [message["type"] for message in sent]
    if told == "websocket.connect":
        assert kinds == ["websocket.http.response.start", "websocket.http.response.body"]
        assert sent[0]["status"] == 503
    else:
        assert kinds == ["websocket.accept", "websocket.send", "websocket.send", "websocket.close"]
        assert json.loads(sent[2]["text"]) == {"closing": True, "state_tokens": {}}


def test_a_client_that_goes_leaves_nothing_behind(running: Running) -> None:
    sockets = running.app.state.context.sockets
    before = len(sockets)
    with Wire(running.url, "classes") as wire:
        wire.step([0, 1], np.zeros((2, 1, 2)))
        assert (len(sockets), sockets.streams) == (before + 1, sockets.streams)
        wire.socket.socket.close()  # without a word
    deadline = time.monotonic() + 10
    while len(sockets) > before:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_random_disconnects_lose_nothing_that_the_client_holds(running: Running, classes: ServedModel) -> None:
    """Each answer brings a token; wherever the connection breaks, the stream goes on from the last one."""

    def follow(seed: int) -> dict[str, np.ndarray]:
        random, x = np.random.default_rng(seed), samples(classes, 25, seed)
        found, token, step = [], "", 0
        while step < 25:
            with Wire(running.url, "classes") as wire:
                for _ in range(int(random.integers(1, 6))):
                    if step == 25:
                        break
                    given = [token] if token else None
                    _, outputs, (token,) = wire.step([0], x[None, step : step + 1], tokens=given, want_tokens=True)
                    found.append({name: value[0] for name, value in outputs.items()})
                    step += 1
                if step < 25:
                    # Sent, and never answered as far as the client knows: it sends the same sample again.
                    wire.socket.send(frame([0], x[None, step : step + 1], tokens=[token]))
                    wire.socket.socket.close()
        joined = {name: np.concatenate([part[name] for part in found]) for name in found[0]}
        assert_same_bits(joined, offline(classes, x))
        return joined

    with ThreadPoolExecutor(8) as pool:
        assert len(list(pool.map(follow, range(24)))) == 24


def test_text_and_binary_may_be_mixed(running: Running, classes: ServedModel) -> None:
    x = samples(classes, 4)
    with Wire(running.url, "classes") as wire:
        first = wire.step([0], x[None, :1])[1]
        second = stacked(wire.say(values=plain(x[1]))["outputs"])
        rest = wire.step([0], x[None, 2:], sequence=[3])[1]
    expected = offline(classes, x)
    for name, value in expected.items():
        assert np.array_equal(np.concatenate([first[name][0], second[name], rest[name][0]]), value)
