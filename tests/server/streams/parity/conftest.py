"""A server and its models, opened outside it too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from server_helpers import Published, Running, serve
from stablernn_runtime import ServedModel
from stablernn_server import create_app
from stream_helpers import (
    stream_settings,
)


@pytest.fixture(scope="package")
def opened(stream_models: Published) -> dict[str, ServedModel]:
    return {name: ServedModel.load(stream_models.registry.get(name), "cpu") for name in stream_models.torch_models}


@pytest.fixture(scope="package")
def running(stream_models: Published) -> Iterator[Running]:
    yield from serve(create_app(stream_settings(stream_models)))
