"""Fixtures of the tests of the server."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from served_models import _certificates_read_once, server
from server_helpers import Published, Running
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
