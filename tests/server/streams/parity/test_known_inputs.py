"""Streams with static values, calendar and known future have the bits of the sequence graph."""

from __future__ import annotations

import numpy as np

from server_helpers import Running
from stablernn_runtime import ServedModel
from stream_helpers import (
    Wire,
    assert_same_bits,
    offline,
    post_json,
    samples,
    step_body,
)

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


def test_a_recursive_head_is_rolled_out(running: Running, opened: dict[str, ServedModel]) -> None:
    """After each sample the whole horizon, without the stream's own state moving on."""
    model = opened["fed"]
    x = samples(model, 4)
    known = np.random.default_rng(3).normal(5.0, 3.0, (4, 4, 1)).astype(np.float32)
    session = post_json(running, "/v1/sessions", {"model": "fed"})["session_id"]
    for step in range(4):
        content = step_body(x[step], None, horizon=4, future={"b": known[step, :, 0].tolist()})
        (found,) = post_json(running, f"/v1/sessions/{session}/step", content)["outputs"]
        whole = model.run_sequence(x[None, : step + 1], future=known[step][None])
        for name in ("mean", "quantiles"):
            assert np.array_equal(np.array(found[name], np.float32), whole[name][0])


def test_the_calendar_and_what_is_known(running: Running, opened: dict[str, ServedModel]) -> None:
    """The same numbers as the forecast of the whole series by the time-series route."""
    series = np.random.default_rng(2).normal(5.0, 3.0, (5, 2)).astype(np.float32).tolist()
    future, static = {"price": [3.0, None, 5.0]}, {"age": 7.0}
    session = post_json(running, "/v1/sessions", {"model": "told", "static": static})
    assert session["sample_shape"] == [2]
    path, times = f"/v1/sessions/{session['session_id']}/step", [f"2024-03-01T{hour}:00:00Z" for hour in range(19, 24)]
    first = post_json(running, path, {"values": series[:2], "time": times[0]})
    assert len(first["outputs"]) == 2
    for step in range(2, 5):
        given = {} if step == 3 else {"time": times[step]}
        answer = post_json(running, path, {"values": series[step], "future": future, **given})
        item = {"series": series[: step + 1], "start_timestamp": times[0], "future": future, "static": static}
        whole = post_json(running, "/v1/timeseries/forecast", {"model": "told", "inputs": [item]})
        content = whole["outputs"][0]["content"][0]
        (found,) = answer["outputs"]
        assert np.ravel(found["mean"]).tolist() == content["mean_forecast"]
        assert np.array(found["quantiles"])[:, 0, 2].tolist() == content["quantiles"]["0.9"]
