"""Requests of stream sessions."""

from __future__ import annotations

from typing import Any

import httpx

from stream_helpers import X


def opened(client: httpx.Client, model: str = "classes", **body: Any) -> str:
    answer = client.post("/v1/sessions", json={"model": model, **body})
    assert answer.status_code == 200, answer.text
    found: str = answer.json()["session_id"]
    return found


def step(client: httpx.Client, session: str, values: Any = X, **body: Any) -> httpx.Response:
    return client.post(f"/v1/sessions/{session}/step", json={"values": values, **body})


def assert_refused(answer: httpx.Response, status: int, code: str) -> str:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    found: str = answer.json()["error"]
    return found
