"""Streams that go on in another process, after a stop or a kill, have the bits of the sequence graph."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from server_helpers import Published, serve
from stablernn_runtime import ServedModel
from stablernn_server import create_app
from stream_helpers import (
    STATE_KEY,
    Wire,
    assert_same_bits,
    distances,
    frame,
    offline,
    post_json,
    samples,
    stacked,
    step_body,
    stream_settings,
)

Outputs = dict[str, np.ndarray]


def test_a_stream_goes_on_in_another_process_with_the_same_key(
    stream_models: Published, opened: dict[str, ServedModel]
) -> None:
    """Servers come and go; text, binary frames and plain requests take over from each other."""
    model = opened["timed"]
    x, dt = samples(model, 6), distances(model, 6)
    assert dt is not None
    found, token = [], ""
    for part, place in enumerate((slice(0, 2), slice(2, 4), slice(4, 6))):
        for running in serve(create_app(stream_settings(stream_models))):
            if part == 0:
                with Wire(running.url, "timed") as wire:
                    _, outputs, (token,) = wire.step([4], x[None, place], dt=dt[None, place], want_tokens=True)
                found.append({name: value[0] for name, value in outputs.items()})
            elif part == 1:
                answer = post_json(running, "/v1/step", {"state_token": token, **step_body(x[place], dt[place])})
                assert answer["step"] == 4
                token = answer["state_token"]
                found.append(stacked(answer["outputs"]))
            else:
                with Wire(running.url, "timed") as wire:
                    assert wire.say(stream=1, state_token=token)["step"] == 4
                    found.append(stacked(wire.say(stream=1, **step_body(x[place], dt[place], sequence=5))["outputs"]))
    assert_same_bits({name: np.concatenate([part[name] for part in found]) for name in found[0]}, offline(model, x, dt))


@contextmanager
def process(stream_models: Published, model: str = "timed") -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``stablernn serve`` in a process of its own, and its address; killed at the end."""
    environment = os.environ | {"STABLERNN_REGISTRY": str(stream_models.root), "STABLERNN_STATE_KEY": STATE_KEY}
    command = [sys.executable, "-m", "stablernn_cli", "serve", "--json", "--port", "0", "--model", model]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as one:
        try:
            assert one.stdout is not None
            said = []
            while "}" not in "".join(said):
                line = one.stdout.readline()
                assert line, "the server did not start"
                said.append(line)
            yield json.loads("".join(said))["url"], one
        finally:
            one.kill()


def test_a_stream_outlives_the_process_that_is_killed(stream_models: Published, opened: dict[str, ServedModel]) -> None:
    """What the client holds is enough: the next process goes on from the last token, by whatever route."""
    model = opened["timed"]
    x, dt = samples(model, 6), distances(model, 6)
    assert dt is not None
    found: list[Outputs] = []
    with process(stream_models) as (first, one), process(stream_models) as (second, _):
        with Wire(first, "timed") as wire:
            _, outputs, (token,) = wire.step([4], x[None, :2], dt=dt[None, :2], want_tokens=True)
            found.append({name: value[0] for name, value in outputs.items()})
            one.kill()
            one.wait(10)
        content = {"state_token": token, "sequence": 3, **step_body(x[2:4], dt[2:4])}
        answer = httpx.post(f"{second}/v1/step", json=content).raise_for_status().json()
        found.append(stacked(answer["outputs"]))
        with Wire(second, "timed") as wire:
            given = [answer["state_token"]]
            _, outputs, _ = wire.step([0], x[None, 4:], dt=dt[None, 4:], sequence=[5], tokens=given)
            found.append({name: value[0] for name, value in outputs.items()})
    assert_same_bits({name: np.concatenate([part[name] for part in found]) for name in found[0]}, offline(model, x, dt))


def test_a_process_that_is_told_to_stop_answers_the_frame_in_hand(
    stream_models: Published, opened: dict[str, ServedModel]
) -> None:
    """Then it hands back the streams; another one goes on from there."""
    model, steps = opened["classes"], 30_000
    x = np.tile(samples(model, 100), (steps // 100, 1))
    with process(stream_models, "classes") as (url, one):
        with Wire(url, "classes") as wire:
            wire.step([7], x[None, :10])
            wire.socket.send(frame([7], x[None], last=True))
            # Long enough for the frame to arrive, and too short for it to be answered.
            time.sleep(0.3)
            one.send_signal(signal.SIGTERM)
            answer = wire.socket.recv(20)
            assert isinstance(answer, bytes)
            taken, outputs, _ = wire.read(answer)
            assert taken == [steps + 10]
            said = json.loads(wire.socket.recv(20))
            assert (said["closing"], list(said["state_tokens"])) == (True, ["7"])
            with pytest.raises(ConnectionClosed) as caught:
                wire.socket.recv(20)
            assert caught.value.rcvd is not None
            assert caught.value.rcvd.code == 1001
        assert one.wait(20) == 0
    expected = model.run_sequence(np.concatenate([x[:10], x])[None])
    assert_same_bits({name: value[0] for name, value in outputs.items()}, {name: expected[name] for name in outputs})
    for running in serve(create_app(stream_settings(stream_models))):
        answer = post_json(running, "/v1/step", {"state_token": said["state_tokens"]["7"], "values": [1.0, 2.0]})
        assert answer["step"] == steps + 11
