"""State tokens that clients keep, and those that are refused."""

from __future__ import annotations

import time

import httpx

from server_helpers import Published, Running
from session_helpers import assert_refused
from stablernn_runtime.state_token import StateTokens
from stream_helpers import X, serving


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


def test_a_token_of_another_model(client: httpx.Client) -> None:
    token = client.post("/v1/step", json={"model": "classes", "values": X}).json()["state_token"]
    answer = client.post("/v1/step", json={"state_token": token, "model": "deep", "values": X})
    assert assert_refused(answer, 409, "other_model") == (
        "The state token is of 'classes:1', the request names 'deep'; leave model out, or begin a new stream "
        "without the token."
    )
    assert client.post("/v1/step", json={"state_token": token, "model": "classes", "values": X}).status_code == 200
