"""However a stream comes to the server, its answers have the bits of the sequence graph on the whole sequence."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from server_helpers import Running, json_tensor
from stablernn_runtime import ServedModel
from stream_helpers import (
    Wire,
    assert_same_bits,
    at_or_none,
    distances,
    frame,
    offline,
    plain,
    post_json,
    samples,
    stacked,
    step_body,
)

pytestmark = pytest.mark.anyio

MODELS = ["classes", "deep", "text", "timed", "patched", "ragged", "fed"]
STEPS = 7

Outputs = dict[str, np.ndarray]
Transport = Callable[[Running, ServedModel, np.ndarray, np.ndarray | None], Outputs]


def by_session(running: Running, model: ServedModel, x: np.ndarray, dt: np.ndarray | None) -> Outputs:
    """One sample, three and one again, and the rest."""
    path = f"/v1/sessions/{post_json(running, '/v1/sessions', {'model': model.name})['session_id']}/step"
    found, taken = [], 0
    for part in (0, slice(1, 4), slice(4, 5), slice(5, len(x))):
        answer = post_json(running, path, step_body(x[part], at_or_none(dt, part), sequence=taken + 1))
        taken = part.stop if isinstance(part, slice) else 1
        assert answer["step"] == taken
        found += answer["outputs"]
    return stacked(found)


def by_token(running: Running, model: ServedModel, x: np.ndarray, dt: np.ndarray | None) -> Outputs:
    state: dict[str, str] = {"model": model.name}
    found = []
    for step in range(len(x)):
        answer = post_json(running, "/v1/step", step_body(x[step], at_or_none(dt, step), **state))
        state = {"state_token": answer["state_token"]}
        found += answer["outputs"]
    return stacked(found)


def by_text_frames(running: Running, model: ServedModel, x: np.ndarray, dt: np.ndarray | None) -> Outputs:
    with Wire(running.url, model.name) as wire:
        answers = [wire.say(stream=9, **step_body(x[step], at_or_none(dt, step))) for step in range(len(x))]
    assert [answer["step"] for answer in answers] == list(range(1, len(x) + 1)), answers
    return stacked([output for answer in answers for output in answer["outputs"]])


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
    # Whole patches: a forecast from the end of the sequence aligns them there.
    x, dt = np.nan_to_num(samples(model, 6)), distances(model, 6)
    assert dt is not None
    expected = offline(model, x, dt)["mean"][-1]
    dt.reshape(-1)[0] = 2.5
    path = f"/v2/models/{name}/infer"
    whole = post_json(running, path, {"inputs": v2_tensors(model, x, dt)})
    (mean,) = [output["data"] for output in whole["outputs"] if output["name"] == "mean"]
    assert np.array_equal(np.array(mean, np.float32), expected.reshape(-1))
    item = {"series": x.reshape(-1).tolist(), "dt": dt.reshape(-1).tolist()}
    forecast = post_json(running, "/v1/timeseries/forecast", {"model": name, "inputs": [item]})["outputs"][0][
        "content"
    ][0]
    assert np.array_equal(np.array(forecast["mean_forecast"], np.float32), expected.reshape(-1))
    # Where a sequence goes on, the first dt of a request is the time since the last one.
    for cut, start in ((slice(None, 3), True), (slice(3, None), False)):
        control = {"sequence_id": 7, "sequence_start": start, "sequence_end": not start}
        part = post_json(running, path, {"inputs": v2_tensors(model, x[cut], dt[cut]), "parameters": control})
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
    answer = post_json(running, "/v2/models/timed/infer", {"inputs": [*v2_tensors(model, x, dt), *given]})
    (mean,) = [output["data"] for output in answer["outputs"] if output["name"] == "mean"]
    assert np.array_equal(np.array(mean, np.float32), expected.reshape(-1))


@pytest.mark.parametrize("first", [-1e-3, 4.5, float("nan")], ids=str)
def test_the_first_dt_must_be_one_that_a_step_may_have(
    first: float, running: Running, opened: dict[str, ServedModel]
) -> None:
    model = opened["timed"]
    x, dt = np.ones((2, 1), np.float32), np.array([first, 1.0])
    session = post_json(running, "/v1/sessions", {"model": "timed"})["session_id"]
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
            stride = model.patch_stride
            for place, number in enumerate(chosen):
                patches = (taken[number] + steps) // stride - taken[number] // stride
                taken[number] += steps
                # Streams that are further along fill more patches of the frame.
                assert all(np.isnan(value[place, patches:]).all() for value in outputs.values())
                found[number].append({output: value[place, :patches] for output, value in outputs.items()})
            assert after == [taken[number] for number in chosen]
    for number, parts in found.items():
        joined = {output: np.concatenate([part[output] for part in parts]) for output in parts[0]}
        assert_same_bits(joined, offline(model, x[number], None if dt is None else dt[number]))


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
        stacked(post_json(running, "/v1/step", {"model": "deep", **step_body(x, None, every=False)})["outputs"]),
        expected,
    )


def test_times_are_turned_into_distances(running: Running, opened: dict[str, ServedModel]) -> None:
    """Hours of the clock, numbers of steps and distances say the same."""
    model = opened["timed"]
    x = samples(model, 4)
    stamps = ["2024-02-28T22:00:00Z", "2024-02-28T23:30:00Z", "2024-02-29T01:15:00+01:00", "2024-02-29T03:45:00Z"]
    dt = np.array([1.0, 1.5, 0.75, 3.5], np.float32)
    expected = offline(model, x, dt)
    assert_same_bits(
        stacked(post_json(running, "/v1/step", {"model": "timed", "values": plain(x), "time": stamps})["outputs"]),
        expected,
    )
    numbers = [10, 11.5, 12.25, 15.75]
    state: dict[str, Any] = {"model": "timed"}
    found = []
    for step, moment in enumerate(numbers):
        answer = post_json(running, "/v1/step", {**state, "values": plain(x[step]), "time": moment})
        state = {"state_token": answer["state_token"]}
        found += answer["outputs"]
    assert_same_bits(stacked(found), expected)
