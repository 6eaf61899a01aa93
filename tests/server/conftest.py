"""Real models, exported and published to a real registry, behind a real server on a free port."""

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
    """Share httpx's usual TLS context: to read what everyone trusts takes each new client 20 ms of processor time."""
    make, usual = transports.create_ssl_context, httpx.create_ssl_context()

    def create(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
        return usual if verify is True and cert is None else make(verify, cert, trust_env)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transports, "create_ssl_context", create)
        yield


@pytest.fixture(scope="session")
def server(published: Published) -> Iterator[Running]:
    models = ("animals@production", "animals:2", "flow", "co2:1")
    settings = Settings(registry=published.root, models=models, max_body_bytes=2**20, max_elements=2**16)
    yield from serve(create_app(settings))


@pytest.fixture(scope="session")
def client(server: Running) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url) as client:
        yield client
