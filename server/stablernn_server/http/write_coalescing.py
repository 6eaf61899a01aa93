"""What is written in one turn of the event loop goes out as one: the head and the body of an answer, or many frames.

The HTTP server writes the head of an answer and its body one after the other. Each would be a system call of its own
and would wake the client: a tenth of the time of a short answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

LINGER_IDLE_SECONDS = 2.0
"""A connection that is closed while its client still sends is closed for good once nothing arrives for so long."""
LINGER_SECONDS = 10.0
"""The same for a client that goes on sending."""


class CoalescingTransport:
    """A transport that keeps what is written until the event loop comes round; all else is the transport's own.

    A socket that is closed with unread input is reset, and the client may lose an answer that it has not read yet. So
    :meth:`close` lingers where more is expected: it ends the server's side, discards what arrives, and closes when the
    client does or after a short while.

    Attributes:
        is_receiving: Whether the client is in the middle of a request, so that input may lie unread.
        is_lingering: Whether the connection is closed for everybody but the client.
    """

    __slots__ = ("_has_input", "_linger_until", "_loop", "_pieces", "_transport", "is_lingering", "is_receiving")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._pieces: list[bytes] = []
        self.is_receiving = False
        self.is_lingering = False
        self._has_input = False
        self._linger_until = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send ``data`` soon, together with what else is written until then; nothing once the connection is closed."""
        if self.is_lingering:
            return
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

    def is_closing(self) -> bool:
        """Return whether the connection is closed or about to be."""
        return self.is_lingering or self._transport.is_closing()

    def close(self) -> None:
        """Send what is left and close, where more is expected once the client had time to read it."""
        if self.is_lingering:
            return
        self.flush()
        if not self.is_receiving or self._transport.is_closing():
            self._close_once()
            return
        self.is_lingering = True
        if self._transport.can_write_eof():
            self._transport.write_eof()
        # A large body was not read any further; the kernel's buffers hold more of it.
        self._transport.resume_reading()
        self._linger_until = self._loop.time() + LINGER_SECONDS
        self._loop.call_later(LINGER_IDLE_SECONDS, self._end_linger)

    def close_at_once(self) -> None:
        """Send what is left and close; a client that does not read it within a short while does not get it."""
        self.flush()
        self._close_once()
        self._loop.call_later(LINGER_IDLE_SECONDS, self._transport.abort)

    def discard_input(self) -> None:
        """Note that something arrived on a lingering connection, which nobody reads."""
        self._has_input = True

    def _end_linger(self) -> None:
        if self._has_input and self._loop.time() < self._linger_until and not self._transport.is_closing():
            self._has_input = False
            self._loop.call_later(LINGER_IDLE_SECONDS, self._end_linger)
        else:
            self._close_once()

    def _close_once(self) -> None:
        # After a second close(), asyncio's TLS transport has let go of the connection, and abort() does nothing.
        if not self._transport.is_closing():
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
