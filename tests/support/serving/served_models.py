"""Fixtures of the tests of server and client: the published models behind a real server on a free port."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from httpx._transports import default as transports

from published_models import Published
from server_helpers import Running, serve
from stablernn_server import Settings, create_app


@pytest.fixture(autouse=True, scope="package")
def _certificates_read_once() -> Iterator[None]:
    """Share httpx's usual TLS context: reading the certificates costs each new client 20 ms of processor time."""
    create_context, shared_context = transports.create_ssl_context, httpx.create_ssl_context()

    def create(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        return shared_context if verify is True and cert is None else create_context(verify, cert, trust_env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transports, "create_ssl_context", create)
        yield


@pytest.fixture(scope="session")
def server(published: Published) -> Iterator[Running]:
    models = ("animals@production", "animals:2", "flow", "co2:1")
    settings = Settings(registry=published.root, models=models, max_body_bytes=2**20, max_elements=2**16)
    yield from serve(create_app(settings))
