"""What is written in one turn of the event loop goes out as one: the head and the body of an answer, or many frames.

The HTTP server writes the head of an answer and its body one after the other. Each would be a system call of its own
and would wake the client: a tenth of the time of a short answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle


class GatheredTransport:
    """A transport that keeps what is written until the event loop comes round; all else is the transport's own."""

    __slots__ = ("_loop", "_pieces", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send ``data`` soon, together with what else is written until then."""
        if not self._pieces:
            self._loop.call_soon(self.flush)
        self._pieces.append(data)

    def writelines(self, pieces: list[bytes]) -> None:
        """As :meth:`write` for each."""
        for piece in pieces:
            self.write(piece)

    def flush(self) -> None:
        """Send what was written so far."""
        pieces, self._pieces = self._pieces, []
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        elif pieces:
            self._transport.writelines(pieces)

    def close(self) -> None:
        """Send what is left and close."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close at once, and send nothing more."""
        self._pieces = []
        self._transport.abort()


def is_closed(receive: Callable[..., Any]) -> bool | None:
    """Whether the client of a request that is not answered yet has closed the connection.

    Args:
        receive: Of the ASGI call.

    Returns:
        None where another HTTP server answers, of which this is only known by asking for the next message.
    """
    cycle = getattr(receive, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle):
        return None
    # Nothing is read behind a large body whose end came at once, and a connection that is not read is not seen to end.
    cycle.flow.resume_reading()
    return cycle.disconnected


class GatheringProtocol(HttpToolsProtocol):
    """HTTP/1.1 over such a transport."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection."""
        super().connection_made(cast("asyncio.Transport", GatheredTransport(transport, self.loop)))

    def on_response_complete(self) -> None:
        """Go on with the next request of this connection."""
        # Where others wait for the event loop, clients that wake up now would take a CPU from it; else nobody gains by
        # the wait until this request is written down. An open WebSocket is one of the others.
        if len(self.tasks) <= 1:
            cast("GatheredTransport", self.transport).flush()
        super().on_response_complete()
