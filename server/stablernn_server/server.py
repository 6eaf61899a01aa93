"""One server process: the application behind uvicorn, with the options that it is built for."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import uvicorn

from stablernn_server.http.access_log import quieten_uvicorn
from stablernn_server.key_files import tls_context
from stablernn_server.log_writer import drain_stderr, dropped_lines
from stablernn_server.settings import Settings
from stablernn_server.transport.connections import (
    ADDRESS_SHARE,
    CONNECTION_SHARE,
    MAX_FILES,
    ConnectionTable,
    raise_file_limit,
)
from stablernn_server.transport.http_protocol import BODY_READ_BYTES, BoundedReads, HttpProtocol, TlsProtocol
from stablernn_server.transport.websocket_protocol import WebSocketProtocol

if TYPE_CHECKING:
    from ssl import SSLContext

    from fastapi import FastAPI

logger = logging.getLogger(__name__)

GRACE_SECONDS = 8.0
"""Time that requests may take after the server was asked to stop; `docker stop` kills after 10 s."""
GIL_SWITCH_INTERVAL_SECONDS = 2e-5
"""Time that a thread holds the GIL while another waits for it. A run needs it before and after its graph, and would
wait for the event loop as long as it takes itself: with 0.5 ms here, it took almost 1 ms until a run of 3 ms began."""
GC_GENERATION0_THRESHOLD = 10_000
"""Number of allocations before the garbage collector scans generation 0. With Python's 700, it scanned the objects of
thousands of frames in flight again and again, a fifth of the time; the server itself leaves no reference cycles behind,
unless it fails."""
TICKS_PER_REPORT = 5
"""Ticks of uvicorn, 0.1 s each, between two updates of the connection metrics."""
TICKS_PER_STALL_CHECK = 50
"""Ticks between two checks for clients that do not read; fewer where they have less time."""


class Server(uvicorn.Server):
    """uvicorn's server, which reports when it is ready and drains before it closes connections."""

    def __init__(self, app: FastAPI, settings: Settings, *, quiet: bool, on_ready: Callable[[], None]) -> None:
        """Configure the server.

        Args:
            app: From :func:`~stablernn_server.create_app`.
            settings: The settings that it was created with.
            quiet: Whether only warnings are logged.
            on_ready: Called once when requests are answered.

        Raises:
            SettingsError: If the TLS files cannot be used.
        """
        tls = tls_context(settings)
        self._context = app.state.context
        self._build_document = app.openapi
        self._on_ready = on_ready
        self._head_seconds = settings.head_timeout_seconds
        self._write_seconds = settings.write_timeout_seconds
        quieten_uvicorn()
        self._connections = create_connection_table(settings)
        if settings.forwarded_allow_ips:
            self._context.forwarded = self._connections
        shared = {"context": self._context, "table": self._connections}
        super().__init__(
            uvicorn.Config(
                app,
                # Instead of classes: uvicorn only calls them.
                http=cast("Any", partial(HttpProtocol, middleware=app.state.middleware, **shared)),
                ws=cast("Any", partial(WebSocketProtocol, **shared)),
                loop="auto" if sys.platform == "win32" else "uvloop",
                log_level="warning" if quiet else "info",
                log_config=None,
                # The middleware writes its own lines.
                access_log=False,
                server_header=False,
                # By default it trusts the X-Forwarded-For of any client on this machine.
                proxy_headers=bool(settings.forwarded_allow_ips),
                forwarded_allow_ips=list(settings.forwarded_allow_ips),
                # Numbers do not shrink enough to be worth the time for every frame.
                ws_per_message_deflate=False,
                # A little more than the limit, so that a frame above it gets an error message, not only a close code.
                ws_max_size=settings.max_body_bytes + 2**16,
                ssl_context_factory=None if tls is None else lambda config, default: tls,
                # With a limit it would answer 503 to every request while there are many connections, even idle ones.
                limit_concurrency=None,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, with connections counted from the TLS handshake on."""
        # The first request for it would hold the event loop for a sixth of a second.
        self._build_document()
        loop = asyncio.get_running_loop()
        create_server = loop.create_server

        def create_counted(factory: Callable[[], Any], *args: Any, ssl: SSLContext | None, **options: Any) -> Any:
            if ssl is None:
                factory = partial(BoundedReads, factory, memoryview(bytearray(BODY_READ_BYTES)))
            else:
                factory = partial(TlsProtocol, factory, ssl, self._connections, handshake_seconds=self._head_seconds)
            return create_server(factory, *args, **options)

        # uvicorn has no option for the protocol below its own, and passes TLS to the loop, which tells of a connection
        # only after the handshake.
        loop.create_server = create_counted  # type: ignore[assignment]
        try:
            await super().startup(sockets)
        finally:
            loop.create_server = create_server  # type: ignore[method-assign]
        if self.started:
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Update the metrics that change without a request; uvicorn calls this every 0.1 s."""
        if counter % TICKS_PER_REPORT == 0:
            self._context.telemetry.set_connections(len(self._connections), self._connections.idle, dropped_lines())
        seconds = self._write_seconds
        if counter % min(TICKS_PER_STALL_CHECK, math.ceil(seconds)) == 0:
            self._connections.end_stalled(asyncio.get_running_loop().time(), seconds)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain: accept no connections, send every WebSocket its state tokens, and answer the requests in flight."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + GRACE_SECONDS
        for server in self.servers:
            server.close()
        self._context.drain(GRACE_SECONDS)
        # uvicorn would close them at once, without the tokens.
        await self._context.sockets.drain(GRACE_SECONDS)
        # The context aborts requests before that.
        self.config.timeout_graceful_shutdown = max(1, math.ceil(deadline - loop.time()) + 1)
        await super().shutdown(sockets)

    async def _serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super()._serve(sockets)
        # uvicorn then raises the signal that stopped it once more, which ends a worker process immediately.
        drain_stderr()

    def serve_on(self, listener: socket.socket) -> None:
        """Serve on a bound socket until told to stop."""
        sys.setswitchinterval(GIL_SWITCH_INTERVAL_SECONDS)
        gc.set_threshold(GC_GENERATION0_THRESHOLD, *gc.get_threshold()[1:])
        self.run(sockets=[listener])


def create_connection_table(settings: Settings) -> ConnectionTable:
    """Return the table with the limits that follow from the settings and the system's limit on open files."""
    share = CONNECTION_SHARE
    requested = settings.max_connections
    files = raise_file_limit(MAX_FILES if requested is None else max(MAX_FILES, math.ceil(requested / share)))
    limit = max(1, int(share * files))
    if requested is not None and requested > limit:
        logger.warning(
            "max_connections is %d, but the process may open %d files, which allow %d connections; raise the limit "
            "on open files (ulimit -n).",
            requested,
            files,
            limit,
        )
    elif requested is not None:
        limit = requested
    per_address = settings.max_address_connections or max(1, int(ADDRESS_SHARE * limit))
    return ConnectionTable(limit, per_address, settings.forwarded_allow_ips)
