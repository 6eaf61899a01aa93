"""Sequences of the Open Inference Protocol."""

from __future__ import annotations

import time
from typing import Any

import httpx
import numpy as np
import pytest

from server_helpers import Published
from session_helpers import assert_refused
from stablernn_runtime import ServedModel
from stream_helpers import offline, plain, samples, serving


def infer(client: httpx.Client, x: np.ndarray, path: str = "classes", **parameters: Any) -> httpx.Response:
    tensor = {"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": plain(x)}
    return client.post(f"/v2/models/{path}/infer", json={"inputs": [tensor], "parameters": parameters})


def output(answer: httpx.Response, name: str) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    found = next(tensor for tensor in answer.json()["outputs"] if tensor["name"] == name)
    return np.array(found["data"], np.float32).reshape(found["shape"])


@pytest.mark.parametrize("identity", [7, 2**64 - 1, "seven"])
def test_a_sequence_of_the_protocol_goes_on(client: httpx.Client, classes: ServedModel, identity: int | str) -> None:
    x = np.stack([samples(classes, 6, seed) for seed in (0, 1)])
    whole = classes.run_sequence(x)["probabilities"]
    infer(client, x[:, :2], sequence_id=identity, sequence_start=True)
    # Another of the same number as text, or the same of another model, is another one.
    infer(client, x[:1, :3], sequence_id=str(identity) + "'", sequence_start=True)
    infer(client, x[:, 2:5], sequence_id=identity)
    last = infer(client, x[:, 5:], sequence_id=identity, sequence_end=True)
    assert np.array_equal(output(last, "probabilities"), whole)
    sentence = assert_refused(infer(client, x[:, 5:], sequence_id=identity), 409, "unknown_sequence")
    assert sentence == (
        f"The sequence {identity!r} of the model 'classes' has ended. Begin it with sequence_start=true and send its "
        "series from the first step on."
    )


@pytest.mark.parametrize("name", ["patched", "ragged"])
def test_a_sequence_of_patches_takes_samples_one_by_one(
    client: httpx.Client, stream_models: Published, name: str
) -> None:
    """Series that are out of step with each other, too: each answers by the patches that a request fills."""
    model = ServedModel.load(stream_models.registry.get(name), "cpu")
    x, stride = np.stack([samples(model, 8, seed) for seed in (0, 1)]), model.patch_stride
    key = "mean" if name == "ragged" else "probabilities"
    whole = [offline(model, series)[key] for series in x]
    taken = [0, 0]
    for lengths in ([1, 2], [2, 1], [1, 1], [1, 2]):
        parts = np.zeros((2, 2, x.shape[2]), np.float32)
        for row, length in enumerate(lengths):
            parts[row, :length] = x[row, taken[row] : taken[row] + length]
        tensors = [
            {"name": "x", "shape": list(parts.shape), "datatype": "FP32", "data": plain(parts)},
            {"name": "lengths", "shape": [2], "datatype": "INT64", "data": lengths},
        ]
        control = {"sequence_id": 71, "sequence_start": taken == [0, 0]}
        body = {"inputs": tensors, "parameters": control}
        found = output(client.post(f"/v2/models/{name}/infer", json=body), key)
        for row, length in enumerate(lengths):
            before, taken[row] = taken[row], taken[row] + length
            if taken[row] // stride == before // stride:
                assert np.isnan(found[row]).all()
            else:
                assert np.array_equal(found[row], whole[row][taken[row] // stride - 1])


def test_the_end_of_a_sequence_of_patches_is_that_of_the_whole_series(
    client: httpx.Client, stream_models: Published
) -> None:
    model = ServedModel.load(stream_models.registry.get("patched"), "cpu")
    x = samples(model, 8)[None]
    infer(client, x[:, :4], "patched", sequence_id=72, sequence_start=True)
    infer(client, x[:, 4:5], "patched", sequence_id=72)
    last = infer(client, x[:, 5:], "patched", sequence_id=72, sequence_end=True)
    for name, value in model.run_numpy(x).items():
        assert np.array_equal(output(last, name), value)


def test_a_sequence_keeps_its_series(client: httpx.Client, classes: ServedModel) -> None:
    x = np.stack([samples(classes, 2, seed) for seed in (0, 1)])
    infer(client, x, sequence_id=2, sequence_start=True)
    assert assert_refused(infer(client, x[:1], sequence_id=2), 400, "bad_input") == (
        "The sequence '2' has 2 series in a request, got 1; send the same ones each time, or begin with "
        "sequence_start=true."
    )


def test_a_sequence_that_was_not_begun(client: httpx.Client, classes: ServedModel) -> None:
    x = samples(classes, 2)[None]
    assert assert_refused(infer(client, x, sequence_id="new"), 409, "unknown_sequence") == (
        "The sequence 'new' of the model 'classes' was not begun in this server process. Begin it with "
        "sequence_start=true and send its series from the first step on."
    )
    wrong = infer(client, np.zeros((1, 2, 5), np.float32), sequence_id="new", sequence_start=True)
    assert_refused(wrong, 400, "bad_input")
    assert "was not begun, its first request failed" in assert_refused(
        infer(client, x, sequence_id="new"), 409, "unknown_sequence"
    )


def test_sequences_expire_and_need_one_process(stream_models: Published, classes: ServedModel) -> None:
    x = samples(classes, 2)[None]
    for running in serving(stream_models, models=("classes",), session_ttl_seconds=0.2):
        with httpx.Client(base_url=running.url) as client:
            infer(client, x, sequence_id=3, sequence_start=True)
            time.sleep(0.5)
            assert "expired after 0.2 s" in assert_refused(infer(client, x, sequence_id=3), 409, "unknown_sequence")
    for running in serving(stream_models, models=("classes",), workers=2):
        with httpx.Client(base_url=running.url) as client:
            answer = infer(client, x, sequence_id=3, sequence_start=True)
            assert assert_refused(answer, 409, "one_process_only").startswith(
                "Sequences are kept by one process, and 2 share"
            )
