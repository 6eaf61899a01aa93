"""Fixtures of the tests of the server."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from served_models import _certificates_read_once, server
from server_helpers import Published, Running
from stablernn_runtime import ServedModel
from stream_helpers import publish

__all__ = ["_certificates_read_once", "client", "server"]


@pytest.fixture(scope="session")
def client(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as client:
        yield client


@pytest.fixture(scope="session")
def stream_models(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """A version of every kind that streams; not to be changed."""
    return publish(tmp_path_factory.mktemp("registry"), tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="session")
def classes(stream_models: Published) -> ServedModel:
    """The classifier among them, opened outside a server, for the outputs that one has to give."""
    return ServedModel.load(stream_models.registry.get("classes"), "cpu")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Tests that are coroutines run on the event loop of the server."""
    return "asyncio"
