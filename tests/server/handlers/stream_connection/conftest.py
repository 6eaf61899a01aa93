"""A real server with a version of every kind of stream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from server_helpers import Published, Running
from stablernn_runtime import ServedModel
from stream_helpers import serving


@pytest.fixture(scope="module")
def published(stream_models: Published) -> Published:
    return stream_models


@pytest.fixture(scope="module")
def classes(published: Published) -> ServedModel:
    return ServedModel.load(published.registry.get("classes"), "cpu")


@pytest.fixture(scope="module")
def running(published: Published) -> Iterator[Running]:
    yield from serving(published, max_streams=8, max_steps=1000, max_json_bytes=2**20)


@pytest.fixture
def alone(published: Published) -> Iterator[Running]:
    yield from serving(published, models=("deep",))
