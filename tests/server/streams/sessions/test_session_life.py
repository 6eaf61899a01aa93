"""Sessions that the server keeps: their life, what they show, and the numbers of their samples."""

from __future__ import annotations

import httpx
import numpy as np
import pytest

from session_helpers import assert_refused, opened, step
from stablernn_runtime import ServedModel
from stream_helpers import X, assert_same_bits, offline, plain, samples, stacked


def test_a_session_from_its_beginning_to_its_end(client: httpx.Client) -> None:
    begun = client.post("/v1/sessions", json={"model": "classes"}).json()
    session = begun.pop("session_id")
    assert begun.pop("digest").startswith("sha256:")
    assert 599 < begun.pop("expires_in_seconds") <= 600
    about = {"model": "classes", "model_version": "1", "sample_shape": [2], "patch_stride": 1}
    assert begun == {**about, "outputs": ["logits", "probabilities"], "step": 0}
    answer = step(client, session, [[1, None], [2.5, 3], [None, None]], sequence=1).json()
    assert (answer["session_id"], answer["model"], answer["model_version"], answer["step"]) == (
        session,
        "classes",
        "1",
        3,
    )
    for found in answer["outputs"]:
        assert found["label"] == ["x", "y", "z"][int(np.argmax(found["probabilities"]))]
    assert "state_token" not in answer
    shown = client.get(f"/v1/sessions/{session}").json()
    assert shown["step"] == 3
    assert shown["last"] == answer["outputs"][-1]
    assert 0 <= shown["idle_seconds"] <= shown["age_seconds"] < 60
    closed = client.delete(f"/v1/sessions/{session}")
    assert closed.json() == {"session_id": session, "step": 3, "closed": True}
    for answer in (
        step(client, session),
        client.get(f"/v1/sessions/{session}"),
        client.delete(f"/v1/sessions/{session}"),
    ):
        assert assert_refused(answer, 404, "unknown_session") == (
            f"The session '{session}' was closed; begin a new one with POST /v1/sessions, with a state_token if you "
            "have one."
        )


def test_a_session_shows_its_states_against_their_balls(client: httpx.Client, classes: ServedModel) -> None:
    session = opened(client)
    x = samples(classes, 4)
    step(client, session, plain(x))
    states = {state["state"]: state for state in client.get(f"/v1/sessions/{session}").json()["states"]}
    whole = classes.next_state(classes.run_sequence(x[None]))
    assert states.keys() == whole.keys()
    balls = classes.guard.balls
    assert balls
    for name, value in whole.items():
        shown = states[name]
        if name in balls:
            assert shown["radius"] == balls[name].radius
            assert shown["ratio"] == shown["size"] / shown["radius"] <= 1
            assert shown["size"] == pytest.approx(float(balls[name].distances(value)[0]))
        else:
            assert (shown["radius"], shown["ratio"]) == (None, None)
            assert shown["size"] == pytest.approx(float(np.linalg.norm(value)))


def test_a_session_goes_on_from_a_token(client: httpx.Client, classes: ServedModel) -> None:
    x = samples(classes, 5)
    first = opened(client)
    step(client, first, plain(x[:2]))
    token = client.get(f"/v1/sessions/{first}", params={"token": "true"}).json()["state_token"]
    asked = step(client, first, plain(x[2:]), token=True).json()
    begun = client.post("/v1/sessions", json={"state_token": token}).json()
    assert begun["step"] == 2
    answer = step(client, begun["session_id"], plain(x[2:]), sequence=3).json()
    assert answer["outputs"] == asked["outputs"]
    assert_same_bits(stacked(answer["outputs"]), {name: value[2:] for name, value in offline(classes, x).items()})
    goes_on = client.post("/v1/step", json={"state_token": asked["state_token"], "values": X}).json()
    assert goes_on["step"] == 6


def test_what_was_taken_is_not_taken_again(client: httpx.Client) -> None:
    session = opened(client)
    first = step(client, session, sequence=1).json()
    assert assert_refused(step(client, session, sequence=1), 409, "duplicate_step") == (
        "The stream has taken 1 samples, sample 1 among them; it was not taken again. Continue with sequence 2."
    )
    assert assert_refused(step(client, session, sequence=4), 409, "skipped_step") == (
        "The stream has taken 1 samples, so sequence must be 2, got 4: send the samples between first, with null "
        "values where there are none."
    )
    shown = client.get(f"/v1/sessions/{session}").json()
    assert (shown["step"], shown["last"]) == (1, first["outputs"][0])
    assert step(client, session, sequence=2).json()["step"] == 2


def test_what_fails_leaves_the_stream_where_it_was(client: httpx.Client) -> None:
    session = opened(client)
    step(client, session)
    expected = step(client, opened(client), [X, X]).json()["outputs"][1]
    assert "infinite" in assert_refused(step(client, session, [3e38, 1e39]), 400, "bad_input")
    assert step(client, session).json()["outputs"][0] == expected
