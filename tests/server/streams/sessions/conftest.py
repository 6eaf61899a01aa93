"""A real server with a version of every kind of stream."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from server_helpers import Published, Running
from stream_helpers import serving


@pytest.fixture(scope="module")
def running(stream_models: Published) -> Iterator[Running]:
    yield from serving(stream_models, max_steps=1000)


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url) as client:
        yield client
