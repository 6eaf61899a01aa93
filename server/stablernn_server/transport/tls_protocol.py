"""TLS on one connection, which counts from the moment it was accepted.

Event loops that do TLS themselves tell the protocol above them of a connection only after the handshake. Clients that
never complete theirs would take every file descriptor unnoticed.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.utils import get_remote_addr

from stablernn_server.transport.connections import ConnectionTable
from stablernn_server.transport.http_protocol import HttpProtocol


class TlsProtocol(SSLProtocol):
    """Encrypts for an :class:`HttpProtocol`, and is idle in the table of connections until the handshake is complete.

    :meth:`asyncio.loop.start_tls` would do for plain asyncio; with uvloop it loses bytes that have arrived by then.
    """

    max_size = 2**16
    """Bytes of the read buffer of each connection; 256 KiB by default."""

    def __init__(
        self,
        make_protocol: Callable[[], HttpProtocol],
        context: ssl.SSLContext,
        table: ConnectionTable,
        *,
        handshake_seconds: float,
    ) -> None:
        """Begin a connection.

        Args:
            make_protocol: Returns the protocol of what is decrypted.
            context: Certificate and key.
            table: Every open connection.
            handshake_seconds: Time for the handshake.
        """
        http = make_protocol()
        http.handshake = self
        loop = asyncio.get_running_loop()
        # typeshed asks for a waiter, and for whole seconds.
        options: dict[str, Any] = {"waiter": None, "ssl_handshake_timeout": handshake_seconds}
        super().__init__(loop, http, context, server_side=True, **options)
        self._table = table
        self._raw: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, or close the connection where there are too many."""
        self._raw = cast("asyncio.Transport", transport)
        client = get_remote_addr(self._raw)
        if self._table.add(self, client[0] if client else ""):
            super().connection_made(self._raw)
        else:
            # The client could be told why only after a handshake.
            self._raw.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self._table.remove(self)
        super().connection_lost(exc)

    def close_idle(self) -> None:
        """Close the connection, whose handshake is not complete."""
        assert self._raw is not None, "closed before it was counted"
        self._raw.abort()
