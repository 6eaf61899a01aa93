"""However a stream comes to the server, what it answers is bit for bit what the sequence graph says of the whole."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed

from server_helpers import Published, Running, json_tensor, serve
from stablernn_runtime import ServedModel
from stablernn_runtime.stream_spec import stream_spec
from stablernn_server import Settings, create_app
from stablernn_server.handlers.stream_connection import StreamConnection
from stablernn_server.http.app_context import AppContext
from stream_helpers import (
    STATE_KEY,
    Wire,
    assert_same_bits,
    distances,
    frame,
    offline,
    plain,
    samples,
    stacked,
)

MODELS = ["classes", "deep", "text", "timed", "patched", "ragged", "fed"]
STEPS = 7

Outputs = dict[str, np.ndarray]
Transport = Callable[[Running, ServedModel, np.ndarray, np.ndarray | None], Outputs]


@pytest.fixture(scope="module")
def opened(stream_models: Published) -> dict[str, ServedModel]:
    return {name: ServedModel.load(stream_models.registry.get(name), "cpu") for name in stream_models.torch_models}


def settings(stream_models: Published) -> Settings:
    return Settings(registry=stream_models.root, state_key=STATE_KEY)


@pytest.fixture(scope="module")
def running(stream_models: Published) -> Iterator[Running]:
    yield from serve(create_app(settings(stream_models)))


def body(x: np.ndarray, dt: np.ndarray | None, **further: Any) -> dict[str, Any]:
    return {"values": plain(x), **further} | ({} if dt is None else {"dt": dt.tolist()})


def post(running: Running, path: str, content: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(running.url + path, json=content)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def at(value: np.ndarray | None, place: int | slice) -> np.ndarray | None:
    return None if value is None else np.asarray(value[place])


def by_session(running: Running, model: ServedModel, x: np.ndarray, dt: np.ndarray | None) -> Outputs:
    path = f"/v1/sessions/{post(running, '/v1/sessions', {'model': model.name})['session_id']}/step"
    found = []
    for step in range(len(x)):
        answer = post(running, path, body(x[step], at(dt, step), sequence=step + 1))
        assert answer["step"] == step + 1
        found += answer["outputs"]
    return stacked(found)


def by_session_in_parts(running: Running, model: ServedModel, x: np.ndarray, dt: np.ndarray | None) -> Outputs:
    path = f"/v1/sessions/{post(running, '/v1/sessions', {'model': model.name})['session_id']}/step"
    parts = [slice(0, 3), slice(3, 4), slice(4, len(x))]
    return stacked([item for part in parts for item in post(running, path, body(x[part], at(dt, part)))["outputs"]])


def by_token(running: Running, model: ServedModel, x: np.ndarray, dt: np.ndarray | None) -> Outputs:
    state: dict[str, str] = {"model": model.name}
    found = []
    for step in range(len(x)):
        answer = post(running, "/v1/step", body(x[step], at(dt, step), **state))
        state = {"state_token": answer["state_token"]}
        found += answer["outputs"]
    return stacked(found)


def by_text_frames(running: Running, model: ServedModel, x: np.ndarray, dt: np.ndarray | None) -> Outputs:
    with Wire(running.url, model.name) as wire:
        answers = [wire.say(stream=9, **body(x[step], at(dt, step))) for step in range(len(x))]
    assert [answer["step"] for answer in answers] == list(range(1, len(x) + 1)), answers
    return stacked([answer["outputs"][0] for answer in answers])


def by_binary_frames(running: Running, model: ServedModel, x: np.ndarray, dt: np.ndarray | None) -> Outputs:
    found = []
    with Wire(running.url, model.name) as wire:
        for step in range(len(x)):
            here = slice(step, step + 1)
            told = None if dt is None else dt[None, here]
            taken, outputs, _ = wire.step([3], x[None, here], dt=told, sequence=[step + 1])
            assert taken == [step + 1]
            found.append(outputs)
    return {name: np.concatenate([outputs[name][0] for outputs in found]) for name in found[0]}


def by_one_frame(running: Running, model: ServedModel, x: np.ndarray, dt: np.ndarray | None) -> Outputs:
    with Wire(running.url, model.name) as wire:
        _, outputs, _ = wire.step([3], x[None], dt=None if dt is None else dt[None])
    return {name: value[0] for name, value in outputs.items()}


def by_many_sockets(running: Running, model: ServedModel, x: np.ndarray, dt: np.ndarray | None) -> Outputs:
    """A token carries the stream from each socket to the next."""
    found, tokens = [], None
    for step in range(len(x)):
        here = slice(step, step + 1)
        with Wire(running.url, model.name) as wire:
            told = None if dt is None else dt[None, here]
            _, outputs, tokens = wire.step([step], x[None, here], dt=told, tokens=tokens, want_tokens=True)
        found.append(outputs)
    return {name: np.concatenate([outputs[name][0] for outputs in found]) for name in found[0]}


TRANSPORTS: list[Transport] = [
    by_session,
    by_session_in_parts,
    by_token,
    by_text_frames,
    by_binary_frames,
    by_one_frame,
    by_many_sockets,
]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.__name__)
def test_a_stream_says_what_the_sequence_says(
    transport: Transport, name: str, running: Running, opened: dict[str, ServedModel]
) -> None:
    model = opened[name]
    x, dt = samples(model, STEPS), distances(model, STEPS)
    assert_same_bits(transport(running, model, x, dt), offline(model, x, dt))


def v2_tensors(model: ServedModel, x: np.ndarray, dt: np.ndarray) -> list[dict[str, Any]]:
    flat, told = x.reshape(1, -1, model.sequence.inputs["x"].shape[-1]), dt.reshape(1, -1)
    return [json_tensor("x", flat), json_tensor("dt", told)]


@pytest.mark.parametrize("name", ["timed", "ragged"])
@pytest.mark.parametrize("transport", TRANSPORTS, ids=lambda transport: transport.__name__)
def test_the_first_dt_of_a_stream_does_not_count(
    transport: Transport, name: str, running: Running, opened: dict[str, ServedModel]
) -> None:
    model = opened[name]
    x, dt = samples(model, STEPS), distances(model, STEPS)
    assert dt is not None
    expected = offline(model, x, dt)
    dt.reshape(-1)[0] = 2.5
    assert_same_bits(transport(running, model, x, dt), expected)


@pytest.mark.parametrize("name", ["timed", "ragged"])
def test_the_first_dt_of_a_whole_sequence_does_not_count(
    name: str, running: Running, opened: dict[str, ServedModel]
) -> None:
    model = opened[name]
    x, dt = np.nan_to_num(samples(model, STEPS)), distances(model, STEPS)
    assert dt is not None
    expected = offline(model, x, dt)["mean"][-1]
    dt.reshape(-1)[0] = 2.5
    path = f"/v2/models/{name}/infer"
    whole = post(running, path, {"inputs": v2_tensors(model, x, dt)})
    (mean,) = [output["data"] for output in whole["outputs"] if output["name"] == "mean"]
    assert np.array_equal(np.array(mean, np.float32), expected.reshape(-1))
    item = {"series": x.reshape(-1).tolist(), "dt": dt.reshape(-1).tolist()}
    forecast = post(running, "/v1/timeseries/forecast", {"model": name, "inputs": [item]})["outputs"][0]["content"][0]
    assert np.array_equal(np.array(forecast["mean_forecast"], np.float32), expected.reshape(-1))
    # Where a sequence goes on, the first dt of a request is the time since the last one.
    for cut, start in ((slice(None, 3), True), (slice(3, None), False)):
        control = {"sequence_id": 7, "sequence_start": start, "sequence_end": not start}
        part = post(running, path, {"inputs": v2_tensors(model, x[cut], dt[cut]), "parameters": control})
    (mean,) = [output["data"] for output in part["outputs"] if output["name"] == "mean"]
    assert np.array_equal(np.array(mean, np.float32), expected.reshape(-1))


def test_the_first_dt_after_given_states_counts(running: Running, opened: dict[str, ServedModel]) -> None:
    model = opened["timed"]
    x, dt = np.nan_to_num(samples(model, STEPS)), distances(model, STEPS)
    assert dt is not None
    states = {state.input: np.zeros((1, *state.shape[1:]), state.dtype) for state in model.states}
    dt[0] = 2.5
    expected = model.run(model.sequence, {"x": x[None], "dt": dt[None], **states})["mean"]
    given = [json_tensor(name, value) for name, value in states.items()]
    answer = post(running, "/v2/models/timed/infer", {"inputs": [*v2_tensors(model, x, dt), *given]})
    (mean,) = [output["data"] for output in answer["outputs"] if output["name"] == "mean"]
    assert np.array_equal(np.array(mean, np.float32), expected.reshape(-1))


@pytest.mark.parametrize("first", [-1.0, -1e-3, 4.5, 1e30, 1e39, float("nan"), float("inf")], ids=str)
def test_the_first_dt_must_be_one_that_a_step_may_have(
    first: float, running: Running, opened: dict[str, ServedModel]
) -> None:
    model = opened["timed"]
    x, dt = np.ones((2, 1), np.float32), np.array([first, 1.0])
    session = post(running, "/v1/sessions", {"model": "timed"})["session_id"]
    tensors = [json_tensor("x", x[None]), {"name": "dt", "datatype": "FP64", "shape": [1, 2], "data": dt.tolist()}]
    control = {"sequence_id": 8, "sequence_start": True}
    stepped = {"values": x.tolist(), "dt": dt.tolist()}
    requests: dict[str, dict[str, Any]] = {
        f"/v1/sessions/{session}/step": stepped,
        "/v1/step": {"model": "timed", **stepped},
        "/v2/models/timed/infer": {"inputs": tensors},
        "/v2/models/timed/versions/1/infer": {"inputs": tensors, "parameters": control},
        "/v1/timeseries/forecast": {"model": "timed", "inputs": [{"series": [1, 1], "dt": dt.tolist()}]},
    }
    for path, content in requests.items():
        answer = httpx.post(running.url + path, content=json.dumps(content))
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_input"), (path, answer.text)
    with Wire(running.url, model.name) as wire, np.errstate(over="ignore"):
        told = wire.say(**stepped)
        assert (told["status"], told["code"]) == (400, "bad_input")
        told = wire.send(frame([0], x[None], dt=dt[None]))
        assert isinstance(told, dict)
        assert (told["status"], told["code"]) == (400, "bad_input")
        # Nothing was taken.
        assert wire.say(values=[1.0], dt=1.0)["step"] == 1


@pytest.mark.parametrize("name", MODELS)
def test_many_streams_of_a_socket_do_not_see_each_other(
    name: str, running: Running, opened: dict[str, ServedModel]
) -> None:
    """Some are stepped in each frame, in changing order, and begin at different times."""
    model, count = opened[name], 11
    x = np.stack([samples(model, STEPS, seed) for seed in range(count)])
    told = [distances(model, STEPS, seed) for seed in range(count)]
    dt = None if told[0] is None else np.stack([one for one in told if one is not None])
    found: dict[int, list[Outputs]] = {number: [] for number in range(count)}
    taken, random = [0] * count, np.random.default_rng(5)
    with Wire(running.url, model.name) as wire:
        while min(taken) < STEPS:
            left = [number for number in range(count) if taken[number] < STEPS]
            chosen = random.permutation(left)[: random.integers(1, len(left) + 1)].tolist()
            steps = min(int(random.integers(1, 4)), STEPS - max(taken[number] for number in chosen))
            places = [slice(taken[number], taken[number] + steps) for number in chosen]
            part = np.stack([x[number, place] for number, place in zip(chosen, places, strict=True)])
            given = None
            if dt is not None:
                given = np.stack([dt[number, place] for number, place in zip(chosen, places, strict=True)])
            numbers = [7 * number + 2**31 for number in chosen]
            sequence = [taken[number] + 1 for number in chosen]
            after, outputs, _ = wire.step(numbers, part, dt=given, sequence=sequence)
            for place, number in enumerate(chosen):
                taken[number] += steps
                found[number].append({output: value[place] for output, value in outputs.items()})
            assert after == [taken[number] for number in chosen]
    for number, parts in found.items():
        joined = {output: np.concatenate([part[output] for part in parts]) for output in parts[0]}
        assert_same_bits(joined, offline(model, x[number], None if dt is None else dt[number]))


STATIC = np.array([[3.0, 1.0], [30.0, -5.0]], np.float32)


def known(row: np.ndarray) -> dict[str, float]:
    return dict(zip(["size", "age"], row.tolist(), strict=True))


def test_static_values_hold_in_binary_frames(running: Running, opened: dict[str, ServedModel]) -> None:
    """Of one stream and of several, in frames of one sample, of several, and of as many as there are streams."""
    model = opened["still"]
    x = np.stack([samples(model, 6, seed) for seed in range(2)])
    found = []
    with Wire(running.url, "still") as wire:
        for number in range(2):
            assert wire.say(stream=number, static=known(STATIC[number]))["step"] == 0
        for place in (slice(0, 1), slice(1, 3), slice(3, 6)):
            found.append(wire.step([0, 1], x[:, place])[1])
        _, alone, _ = wire.step([2], x[:1])
    for row in range(2):
        whole = {name: np.concatenate([part[name][row] for part in found]) for name in found[0]}
        assert_same_bits(whole, offline(model, x[row], static=STATIC[row : row + 1]))
    assert_same_bits({name: value[0] for name, value in alone.items()}, offline(model, x[0]))


def test_static_values_hold_in_a_shared_batch(stream_models: Published, opened: dict[str, ServedModel]) -> None:
    """Two sockets send as many samples as streams; whoever takes one axis for the other finds numbers, wrong ones."""
    model = opened["still"]
    x = np.stack([samples(model, 2, seed) for seed in range(4)]).reshape(2, 2, 2, 1)

    async def run() -> list[bytes]:
        context = AppContext.open(settings(stream_models))
        context.start()
        served = await context.models.find_open("still")
        sockets = [StreamConnection(served, served.ref, None, context, "") for _ in range(2)]
        for place, socket in enumerate(sockets):
            for row in range(2):
                await socket.text({"stream": row, "static": known(STATIC[row] + place)}, 0)
        answers = await asyncio.gather(
            *(socket.binary(frame([0, 1], values)) for socket, values in zip(sockets, x, strict=True))
        )
        await context.stop()
        return answers

    sizes = {name: int(np.prod(shape)) for name, shape in stream_spec(model).outputs.items()}
    for place, content in enumerate(asyncio.run(run())):
        at = 12 + 16
        for name, size in sizes.items():
            value = np.frombuffer(content, "<f4", 4 * size, at).reshape(2, 2, -1)
            at += 16 * size
            for row in range(2):
                expected = offline(model, x[place, row], static=STATIC[row : row + 1] + place)[name]
                assert np.array_equal(value[row], expected.reshape(2, -1)), name


def test_only_inputs_of_all_steps_go_to_the_graph_as_they_are(opened: dict[str, ServedModel]) -> None:
    plan, x = stream_spec(opened["still"]), np.zeros((2, 2, 1), np.float32)
    assert not plan.accepts({"x": x, "static": STATIC}, 2, 2)
    assert plan.accepts({"x": x, "static": np.broadcast_to(STATIC[:, None], (2, 2, 2))}, 2, 2)
    assert not plan.accepts({"x": x[:1]}, 2, 2)


def test_many_tokens_do_not_stop_the_others(stream_models: Published) -> None:
    """While the tokens of a frame are read and written, the event loop goes round."""
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def run() -> None:
        nonlocal turns
        context = AppContext.open(settings(stream_models))
        context.start()
        socket = StreamConnection(await context.models.find_open("classes"), "classes", None, context, "")
        numbers, x = list(range(2000)), np.zeros((2000, 1, 2), np.float32)
        turning = asyncio.create_task(turn())
        await asyncio.sleep(0)
        await socket.binary(frame(numbers, x, want_tokens=True))
        assert turns > 20
        token = json.loads(await socket.text({"stream": 0, "token": True}, 0))["state_token"]
        turns = 0
        await socket.binary(frame(numbers, x, tokens=[token] * 2000))
        assert turns > 20
        turning.cancel()
        await context.stop()

    asyncio.run(run())


def test_the_last_step_alone(running: Running, opened: dict[str, ServedModel]) -> None:
    model = opened["deep"]
    x = samples(model, STEPS)
    expected = {name: value[-1:] for name, value in offline(model, x).items()}
    with Wire(running.url, "deep") as wire:
        taken, outputs, _ = wire.step([0], x[None], last=True)
        assert taken == [STEPS]
        assert_same_bits({name: value[0] for name, value in outputs.items()}, expected)
        assert_same_bits(stacked(wire.say(stream=1, values=plain(x), every=False)["outputs"]), expected)
    assert_same_bits(
        stacked(post(running, "/v1/step", {"model": "deep", **body(x, None, every=False)})["outputs"]), expected
    )


def test_times_are_turned_into_distances(running: Running, opened: dict[str, ServedModel]) -> None:
    """Hours of the clock, numbers of steps and distances say the same."""
    model = opened["timed"]
    x = samples(model, 4)
    stamps = ["2024-02-28T22:00:00Z", "2024-02-28T23:30:00Z", "2024-02-29T01:15:00+01:00", "2024-02-29T03:45:00Z"]
    dt = np.array([1.0, 1.5, 0.75, 3.5], np.float32)
    expected = offline(model, x, dt)
    assert_same_bits(
        stacked(post(running, "/v1/step", {"model": "timed", "values": plain(x), "time": stamps})["outputs"]), expected
    )
    numbers = [10, 11.5, 12.25, 15.75]
    state: dict[str, Any] = {"model": "timed"}
    found = []
    for step, moment in enumerate(numbers):
        answer = post(running, "/v1/step", {**state, "values": plain(x[step]), "time": moment})
        state = {"state_token": answer["state_token"]}
        found += answer["outputs"]
    assert_same_bits(stacked(found), expected)


def test_a_recursive_head_is_rolled_out(running: Running, opened: dict[str, ServedModel]) -> None:
    """After each sample the whole horizon, without the stream's own state moving on."""
    model = opened["fed"]
    x = samples(model, 4)
    known = np.random.default_rng(3).normal(5.0, 3.0, (4, 4, 1)).astype(np.float32)
    session = post(running, "/v1/sessions", {"model": "fed"})["session_id"]
    for step in range(4):
        content = body(x[step], None, horizon=4, future={"b": known[step, :, 0].tolist()})
        (found,) = post(running, f"/v1/sessions/{session}/step", content)["outputs"]
        whole = model.run_sequence(x[None, : step + 1], future=known[step][None])
        for name in ("mean", "quantiles"):
            assert np.array_equal(np.array(found[name], np.float32), whole[name][0])


def test_the_calendar_and_what_is_known(running: Running, opened: dict[str, ServedModel]) -> None:
    """The same numbers as the forecast of the whole series by the time-series route."""
    series = np.random.default_rng(2).normal(5.0, 3.0, (5, 2)).astype(np.float32).tolist()
    future, static = {"price": [3.0, None, 5.0]}, {"age": 7.0}
    session = post(running, "/v1/sessions", {"model": "told", "static": static})
    assert session["sample_shape"] == [2]
    path, times = f"/v1/sessions/{session['session_id']}/step", [f"2024-03-01T{hour}:00:00Z" for hour in range(19, 24)]
    first = post(running, path, {"values": series[:2], "time": times[0]})
    assert len(first["outputs"]) == 2
    for step in range(2, 5):
        given = {} if step == 3 else {"time": times[step]}
        answer = post(running, path, {"values": series[step], "future": future, **given})
        item = {"series": series[: step + 1], "start_timestamp": times[0], "future": future, "static": static}
        whole = post(running, "/v1/timeseries/forecast", {"model": "told", "inputs": [item]})
        content = whole["outputs"][0]["content"][0]
        (found,) = answer["outputs"]
        assert np.ravel(found["mean"]).tolist() == content["mean_forecast"]
        assert np.array(found["quantiles"])[:, 0, 2].tolist() == content["quantiles"]["0.9"]


def test_fewer_steps_ahead_of_a_direct_head(running: Running, opened: dict[str, ServedModel]) -> None:
    x = samples(opened["deep"], 3)
    answer = post(running, "/v1/step", {"model": "deep", **body(x, None, horizon=2)})
    expected = {name: value[:, :2] for name, value in offline(opened["deep"], x).items()}
    assert_same_bits(stacked(answer["outputs"]), expected)


def test_a_stream_goes_on_in_another_process_with_the_same_key(
    stream_models: Published, opened: dict[str, ServedModel]
) -> None:
    """Servers come and go; text, binary frames and plain requests take over from each other."""
    model = opened["timed"]
    x, dt = samples(model, 6), distances(model, 6)
    assert dt is not None
    found, token = [], ""
    for part, place in enumerate((slice(0, 2), slice(2, 4), slice(4, 6))):
        for running in serve(create_app(settings(stream_models))):
            if part == 0:
                with Wire(running.url, "timed") as wire:
                    _, outputs, (token,) = wire.step([4], x[None, place], dt=dt[None, place], want_tokens=True)
                found.append({name: value[0] for name, value in outputs.items()})
            elif part == 1:
                answer = post(running, "/v1/step", {"state_token": token, **body(x[place], dt[place])})
                assert answer["step"] == 4
                token = answer["state_token"]
                found.append(stacked(answer["outputs"]))
            else:
                with Wire(running.url, "timed") as wire:
                    assert wire.say(stream=1, state_token=token)["step"] == 4
                    found.append(stacked(wire.say(stream=1, **body(x[place], dt[place], sequence=5))["outputs"]))
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
        content = {"state_token": token, "sequence": 3, **body(x[2:4], dt[2:4])}
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
    for running in serve(create_app(settings(stream_models))):
        answer = post(running, "/v1/step", {"state_token": said["state_tokens"]["7"], "values": [1.0, 2.0]})
        assert answer["step"] == steps + 11
