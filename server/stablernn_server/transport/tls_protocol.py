"""TLS on one connection, which counts as open from the moment it was accepted.

An event loop that does TLS itself tells the protocol of a connection only after the handshake. Clients that never
complete theirs could use up all file descriptors unnoticed.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.utils import get_remote_addr

from stablernn_server.errors import BusyError
from stablernn_server.transport.connections import ConnectionTable, Turn
from stablernn_server.transport.http_protocol import HttpProtocol
from stablernn_server.transport.write_coalescing import UNSENT_BYTES

READ_BYTES = 2**15
"""Bytes of the read buffer; 256 KiB by default."""
UNREAD_BYTES = 2**14
"""Bytes that a connection may hold encrypted while the server does not read from it; 256 KiB by default."""


class TlsProtocol(SSLProtocol):
    """TLS below an :class:`HttpProtocol`; the table of connections has it as idle until the handshake is complete.

    :meth:`asyncio.loop.start_tls` would be enough with plain asyncio; with uvloop it loses bytes that have arrived by
    then.
    """

    max_size = READ_BYTES
    _shared_buffer = memoryview(bytearray(READ_BYTES))

    def __init__(
        self,
        make_protocol: Callable[[], HttpProtocol],
        context: ssl.SSLContext,
        table: ConnectionTable,
        *,
        handshake_seconds: float,
    ) -> None:
        """Create the protocol of one connection.

        Args:
            make_protocol: Returns the protocol of the decrypted data.
            context: Certificate and key.
            table: The table of open connections.
            handshake_seconds: Time for the handshake.
        """
        http = make_protocol()
        # It takes over the entry in the table when the handshake is complete.
        http.handshake = self
        loop = asyncio.get_running_loop()
        # Typed Any: typeshed requires a waiter, and whole seconds.
        options: dict[str, Any] = {"waiter": None, "ssl_handshake_timeout": handshake_seconds}
        super().__init__(loop, http, context, server_side=True, **options)
        # Each read passes its bytes on before the next one, so that all connections share one buffer.
        self._ssl_buffer = bytearray()
        self._ssl_buffer_view = self._shared_buffer
        self._set_read_buffer_limits(high=UNREAD_BYTES)  # type: ignore[attr-defined]
        self._table = table
        self._encrypted_transport: asyncio.Transport | None = None
        # A step of the handshake waits for its turn.
        self._has_turn = False

    def get_buffer(self, n: int) -> memoryview:
        """Return the buffer for the next read."""
        return self._shared_buffer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, or close the connection if there are too many."""
        self._encrypted_transport = cast("asyncio.Transport", transport)
        self._encrypted_transport.set_write_buffer_limits(high=UNSENT_BYTES)
        client = get_remote_addr(self._encrypted_transport)
        try:
            self._table.add(self, client[0] if client else "")
        except BusyError:
            # Without an error message, which the client could read only after a handshake.
            self._encrypted_transport.abort()
        else:
            super().connection_made(self._encrypted_transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Remove the connection from the table."""
        self._table.remove(self)
        super().connection_lost(exc)

    def _do_handshake(self) -> None:
        """Do a step of the handshake when it is the connection's turn, and read nothing until then.

        One takes about a millisecond, and a thousand clients may begin theirs in the same turn of the event loop.
        """
        assert self._encrypted_transport is not None, "a handshake without a connection"
        if not self._incoming.pending:  # type: ignore[attr-defined]
            super()._do_handshake()  # type: ignore[misc]
        elif not self._has_turn:
            self._has_turn = True
            self._encrypted_transport.pause_reading()
            self._table.take_turn(self._go_on, Turn.HANDSHAKE)

    def _go_on(self) -> None:
        self._has_turn = False
        assert self._encrypted_transport is not None, "a handshake without a connection"
        if self._sslobj is None or self._encrypted_transport.is_closing():  # type: ignore[attr-defined]
            return
        self._encrypted_transport.resume_reading()
        super()._do_handshake()  # type: ignore[misc]

    def close_idle(self) -> None:
        """Close the connection, whose handshake is not complete."""
        assert self._encrypted_transport is not None, "closed before it was counted"
        self._encrypted_transport.abort()

    def end_stalled(self, now: float, seconds: float) -> None:
        """Do nothing: the handshake has a time limit of its own."""
