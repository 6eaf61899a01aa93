"""State tokens that clients keep, and those that are refused."""

from __future__ import annotations

import time
from dataclasses import replace

import httpx

from server_helpers import Published, Running
from session_helpers import assert_refused
from stablernn_runtime import ServedModel
from stablernn_runtime.state_token import StateTokens
from stream_helpers import X, assert_same_bits, offline, plain, samples, serving, stacked


def test_a_token_that_is_not_ours(client: httpx.Client) -> None:
    token = client.post("/v1/step", json={"model": "classes", "values": X}).json()["state_token"]
    place = len(token) // 2
    changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
    for given in (changed, "", "not a token"):
        assert_refused(client.post("/v1/step", json={"state_token": given, "values": X}), 400, "bad_token")
        assert_refused(client.post("/v1/sessions", json={"state_token": given}), 400, "bad_token")


def test_a_token_that_has_expired(stream_models: Published) -> None:
    for running in serving(stream_models, models=("classes",), token_ttl_seconds=0.001):
        with httpx.Client(base_url=running.url) as client:
            token = client.post("/v1/step", json={"model": "classes", "values": X}).json()["state_token"]
            time.sleep(2)
            assert_refused(client.post("/v1/step", json={"state_token": token, "values": X}), 400, "expired_token")


def test_a_token_of_a_version_that_is_gone(running: Running, client: httpx.Client) -> None:
    tokens: StateTokens = running.app.state.context.state_keys
    held = tokens.read(client.post("/v1/step", json={"model": "classes", "values": X}).json()["state_token"])
    other = tokens.issue(type(held)("classes:1", "sha256:" + "00" * 32, 1, held.clock, held.static, held.states))
    assert_refused(client.post("/v1/step", json={"state_token": other, "values": X}), 409, "version_gone")


def test_a_token_of_whole_patches_goes_on(running: Running, client: httpx.Client, stream_models: Published) -> None:
    """Tokens of earlier releases count patches, and have no samples of an unfinished one."""
    model = ServedModel.load(stream_models.registry.get("patched"), "cpu")
    x = samples(model, 9)
    tokens: StateTokens = running.app.state.context.state_keys
    answer = client.post("/v1/step", json={"model": "patched", "values": plain(x[:6])}).json()
    held = tokens.read(answer["state_token"])
    assert held.step == 6
    states = {name: value for name, value in held.states.items() if not name.startswith("patch.")}
    assert len(states) < len(held.states)
    old = tokens.issue(replace(held, step=2, states=states))
    found = client.post("/v1/step", json={"state_token": old, "values": plain(x[6:]), "sequence": 7}).json()
    assert found["step"] == 9
    assert_same_bits(stacked(found["outputs"]), {name: value[2:] for name, value in offline(model, x).items()})


def test_a_session_inside_a_patch(client: httpx.Client, stream_models: Published) -> None:
    x = samples(ServedModel.load(stream_models.registry.get("patched"), "cpu"), 5)
    session = client.post("/v1/sessions", json={"model": "patched"}).json()
    assert (session["sample_shape"], session["patch_stride"]) == ([2], 3)
    path = f"/v1/sessions/{session['session_id']}"
    answers = [client.post(f"{path}/step", json={"values": plain(sample)}).json() for sample in x]
    assert [(answer["step"], len(answer["outputs"])) for answer in answers] == [(1, 0), (2, 0), (3, 1), (4, 0), (5, 0)]
    # The last outputs are those of the last full patch.
    assert client.get(path).json()["last"] == answers[2]["outputs"][0]
    # What is wrong is said at once, and not when the patch is full.
    wrong = client.post(f"{path}/step", json={"values": [1e39, 0.0]})
    assert_refused(wrong, 400, "bad_input")
    assert client.get(path).json()["step"] == 5
