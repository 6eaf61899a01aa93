"""A real server with a version of every kind of stream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from server_helpers import Published, Running
from stream_helpers import serving


@pytest.fixture(scope="module")
def running(stream_models: Published) -> Iterator[Running]:
    yield from serving(stream_models, max_streams=8, max_steps=1000, max_json_bytes=2**20)


@pytest.fixture
def alone(stream_models: Published) -> Iterator[Running]:
    yield from serving(stream_models, models=("deep",))
