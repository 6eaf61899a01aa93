"""One server process: the application behind uvicorn, with the options that it is meant to run with."""

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
from stablernn_server.process.log_writer import drain_stderr, dropped_lines
from stablernn_server.security.tls import tls_context
from stablernn_server.settings import Settings
from stablernn_server.transport.connections import (
    CONNECTION_SHARE,
    IDLE_SHARE,
    MAX_FILES,
    ConnectionTable,
    raise_file_limit,
)
from stablernn_server.transport.http_protocol import HttpProtocol
from stablernn_server.transport.tls_protocol import TlsProtocol
from stablernn_server.transport.websocket_protocol import WebSocketProtocol

if TYPE_CHECKING:
    from ssl import SSLContext

    from fastapi import FastAPI

logger = logging.getLogger(__name__)

GRACE_SECONDS = 8.0
"""How long requests may take after the server was told to stop; `docker stop` kills after 10 s."""
SWITCH_SECONDS = 2e-5
"""How long a thread keeps the interpreter while another wants it. A run needs it before and after its graph, and would
wait for the event loop as long as it takes itself: with .5 ms here, it was almost 1 ms until one of 3 ms began."""
GARBAGE = 10_000
"""Objects that may come to be before circles among the young are looked for. With Python's 700, the collector looked
through what thousands of frames had in hand again and again, a fifth of the time; the server itself leaves no circles
behind, unless it fails."""


TICKS_PER_LOOK = 5
"""Between two looks at the number of connections, in ticks of uvicorn of 0.1 s."""


class Server(uvicorn.Server):
    """uvicorn, which tells when it is ready and drains before it closes connections."""

    def __init__(self, app: FastAPI, settings: Settings, *, quiet: bool, on_ready: Callable[[], None]) -> None:
        """Configure the server.

        Args:
            app: From :func:`~stablernn_server.create_app`.
            settings: The same settings.
            quiet: Whether only warnings are logged.
            on_ready: Called once when requests are answered.

        Raises:
            SettingsError: If the TLS files cannot be used.
        """
        tls = tls_context(settings)
        self._context = app.state.context
        self._on_ready = on_ready
        self._head_seconds = settings.head_timeout_seconds
        quieten_uvicorn()
        self._connections = connection_table(settings)
        shared = {"context": self._context, "table": self._connections}
        super().__init__(
            uvicorn.Config(
                app,
                # uvicorn only calls them, as it would the classes.
                http=cast("Any", partial(HttpProtocol, **shared)),
                ws=cast("Any", partial(WebSocketProtocol, **shared)),
                loop="auto" if sys.platform == "win32" else "uvloop",
                log_level="warning" if quiet else "info",
                log_config=None,
                # The front writes its own lines.
                access_log=False,
                server_header=False,
                # By default it believes the X-Forwarded-For of whoever asks from this machine.
                proxy_headers=bool(settings.forwarded_allow_ips),
                forwarded_allow_ips=list(settings.forwarded_allow_ips),
                # Numbers do not shrink enough to be worth the time of every frame.
                ws_per_message_deflate=False,
                # A little more, so that a frame that is too long gets our sentence and not only a code.
                ws_max_size=settings.max_body_bytes + 2**16,
                ssl_context_factory=None if tls is None else lambda config, default: tls,
                # It would answer 503 to every request as long as there are many connections, idle ones included.
                limit_concurrency=None,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        create_server = loop.create_server

        def create_counted(factory: Callable[[], Any], *args: Any, ssl: SSLContext | None, **options: Any) -> Any:
            if ssl is not None:
                factory = partial(TlsProtocol, factory, ssl, self._connections, handshake_seconds=self._head_seconds)
            return create_server(factory, *args, **options)

        # uvicorn has no option for it.
        loop.create_server = create_counted  # type: ignore[assignment]
        try:
            await super().startup(sockets)
        finally:
            loop.create_server = create_server  # type: ignore[method-assign]
        if self.started:
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Look at what changes without a request; uvicorn calls this every 0.1 s."""
        if counter % TICKS_PER_LOOK == 0:
            self._context.telemetry.server(len(self._connections), self._connections.idle, dropped_lines())
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain: no new connections, a goodbye to every WebSocket, and answers to what is in hand."""
        loop = asyncio.get_running_loop()
        ended = loop.time() + GRACE_SECONDS
        for server in self.servers:
            server.close()
        self._context.drain(GRACE_SECONDS)
        # uvicorn would close them at once, without a word.
        await self._context.sockets.drain(GRACE_SECONDS)
        # Requests end by themselves before that.
        self.config.timeout_graceful_shutdown = max(1, math.ceil(ended - loop.time()) + 1)
        await super().shutdown(sockets)

    async def _serve(self, sockets: list[socket.socket] | None = None) -> None:
        await super()._serve(sockets)
        # uvicorn raises the signal that stopped it once more, which ends a worker process on the spot.
        drain_stderr()

    def serve_on(self, listener: socket.socket) -> None:
        """Answer on a bound socket until told to stop."""
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.set_threshold(GARBAGE, *gc.get_threshold()[1:])
        self.run(sockets=[listener])


def connection_table(settings: Settings) -> ConnectionTable:
    """Return the table with the limits that the settings and the system's limit on open files give."""
    share = CONNECTION_SHARE
    wanted = settings.max_connections
    files = raise_file_limit(MAX_FILES if wanted is None else max(MAX_FILES, math.ceil(wanted / share)))
    limit = max(1, int(share * files))
    if wanted is not None and wanted > limit:
        logger.warning(
            "max_connections is %d, but the process may open %d files, which allow %d connections; raise the limit "
            "on open files (ulimit -n).",
            wanted,
            files,
            limit,
        )
    elif wanted is not None:
        limit = wanted
    idle = settings.max_idle_connections or max(1, int(IDLE_SHARE * limit))
    return ConnectionTable(limit, idle, settings.forwarded_allow_ips)
