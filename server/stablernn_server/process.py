"""One server process: the application behind uvicorn, with the options that it is meant to run with."""

from __future__ import annotations

import asyncio
import gc
import math
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvicorn

from stablernn_server.access_log import quieten_uvicorn
from stablernn_server.gathered import GatheringProtocol
from stablernn_server.settings import Settings
from stablernn_server.tls import tls_context

if TYPE_CHECKING:
    from fastapi import FastAPI

GRACE_SECONDS = 8.0
"""How long requests may take after the server was told to stop; `docker stop` kills after 10 s."""
MAX_CONNECTIONS = 10_000
"""Connections at a time; above it, uvicorn answers 503 by itself."""
SWITCH_SECONDS = 2e-5
"""How long a thread keeps the interpreter while another wants it. A run needs it before and after its graph, and would
wait for the event loop as long as it takes itself: with .5 ms here, it was almost 1 ms until one of 3 ms began."""
GARBAGE = 10_000
"""Objects that may come to be before circles among the young are looked for. With Python's 700, the collector looked
through what thousands of frames had in hand again and again, a fifth of the time; the server itself leaves no circles
behind, unless it fails."""


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
        quieten_uvicorn()
        super().__init__(
            uvicorn.Config(
                app,
                http=GatheringProtocol,
                ws="websockets-sansio",
                loop="auto" if sys.platform == "win32" else "uvloop",
                log_level="warning" if quiet else "info",
                log_config=None,
                # The front writes its own lines.
                access_log=False,
                server_header=False,
                # By default it believes the X-Forwarded-For of whoever asks from this machine.
                proxy_headers=False,
                # Numbers do not shrink enough to be worth the time of every frame.
                ws_per_message_deflate=False,
                # A little more, so that a frame that is too long gets our sentence and not only a code.
                ws_max_size=settings.max_body_bytes + 2**16,
                ssl_context_factory=None if tls is None else lambda config, default: tls,
                limit_concurrency=MAX_CONNECTIONS,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain: no new connections, a goodbye to every WebSocket, and answers to what is in hand."""
        loop = asyncio.get_running_loop()
        ended = loop.time() + GRACE_SECONDS
        for server in self.servers:
            server.close()
        self._context.drain(GRACE_SECONDS)
        # uvicorn would close them at once, without a word.
        await self._context.sockets.leave(GRACE_SECONDS)
        # Requests end by themselves before that.
        self.config.timeout_graceful_shutdown = max(1, math.ceil(ended - loop.time()) + 1)
        await super().shutdown(sockets)

    def serve_on(self, listener: socket.socket) -> None:
        """Answer on a bound socket until told to stop."""
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.set_threshold(GARBAGE, *gc.get_threshold()[1:])
        raise_file_limit()
        self.run(sockets=[listener])


def raise_file_limit() -> None:
    """Let the process have as many connections as the system allows it; many begin with 1024."""
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_CONNECTIONS + 1000
    resource.setrlimit(resource.RLIMIT_NOFILE, (most if hard == resource.RLIM_INFINITY else min(hard, most), hard))
