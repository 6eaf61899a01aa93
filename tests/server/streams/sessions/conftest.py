"""A real server with a version of every kind of stream."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
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
    yield from serving(published, max_steps=1000)


@pytest.fixture(scope="module")
def client(running: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=running.url) as client:
        yield client
