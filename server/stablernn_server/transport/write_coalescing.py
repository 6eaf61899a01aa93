"""Coalesced writes: all that is written within one iteration of the event loop goes out in one system call.

The HTTP server writes the head of a response and its body one after the other. Each would be a system call of its own
and would wake the client: a tenth of the time of a short response.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

LINGER_IDLE_SECONDS = 2.0
"""Silence after which a connection that was closed while its client was still sending is closed for good."""
LINGER_SECONDS = 10.0
"""Time after which it is closed for good although its client goes on sending."""
UNSENT_BYTES = 2**14
"""Bytes that wait for a client to read before the next response to it does. A response in one piece may be longer."""


class CoalescingTransport:
    """A transport that buffers writes until the next iteration of the event loop; all else is the transport's own.

    A socket that is closed with unread input is reset, and the client may lose a response that it has not read yet. So
    :meth:`close` lingers where more input is expected: it ends the server's side, discards what arrives, and closes
    when the client does or after a short while.

    Attributes:
        is_receiving: Whether the client is in the middle of a request, so that input may be unread.
        is_lingering: Whether :meth:`close` was called and only waits for the client.
    """

    __slots__ = (
        "_chunks",
        "_has_input",
        "_linger_deadline",
        "_loop",
        "_progress",
        "_transport",
        "_written",
        "is_lingering",
        "is_receiving",
    )

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self._transport = transport
        self._written = 0
        # Bytes that the client had taken at some time, on the clock of the event loop.
        self._progress = 0, 0.0
        self._loop = loop
        self._chunks: list[bytes] = []
        self.is_receiving = False
        self.is_lingering = False
        self._has_input = False
        self._linger_deadline = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send ``data`` soon, together with all that is written until then; drop it once the connection is closed."""
        if self.is_lingering:
            return
        # One flush for all chunks: it runs when the callbacks of this iteration are through.
        if not self._chunks:
            self._loop.call_soon(self.flush)
        self._chunks.append(data)

    def write_whole(self, data: bytes) -> None:
        """Send ``data``, a whole response, without waiting for more to send together with it."""
        if self._chunks:
            self.write(data)
            self.flush()
        elif not self.is_lingering:
            self._written += len(data)
            self._transport.write(data)

    def writelines(self, chunks: list[bytes]) -> None:
        """Write each of ``chunks`` as :meth:`write` does."""
        for chunk in chunks:
            self.write(chunk)

    def flush(self) -> None:
        """Send what was written so far."""
        chunks, self._chunks = self._chunks, []
        # The client may have reset the connection since; uvloop raises where asyncio drops what is written.
        if self._transport.is_closing():
            return
        self._written += sum(map(len, chunks))
        if len(chunks) == 1:
            self._transport.write(chunks[0])
        elif chunks:
            self._transport.writelines(chunks)

    def is_closing(self) -> bool:
        """Return whether the connection is closed or about to be."""
        return self.is_lingering or self._transport.is_closing()

    def close(self) -> None:
        """Send what is left and close; where more input is expected, only after the client had time to read it."""
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
        self._linger_deadline = self._loop.time() + LINGER_SECONDS
        self._loop.call_later(LINGER_IDLE_SECONDS, self._end_linger)

    def close_at_once(self) -> None:
        """Send what is left and close; a client that does not read it within a short while does not get it."""
        self.flush()
        self._close_once()
        self._loop.call_later(LINGER_IDLE_SECONDS, self._transport.abort)

    def discard_input(self) -> None:
        """Note that something arrived on a lingering connection, where it is not read."""
        self._has_input = True

    def _end_linger(self) -> None:
        if self._has_input and self._loop.time() < self._linger_deadline and not self._transport.is_closing():
            self._has_input = False
            self._loop.call_later(LINGER_IDLE_SECONDS, self._end_linger)
        else:
            self._close_once()

    def _close_once(self) -> None:
        # After a second close(), asyncio's TLS transport has let go of the connection, and abort() does nothing.
        if not self._transport.is_closing():
            self._transport.close()

    def end_stalled(self, now: float, seconds: float) -> None:
        """Abort if nothing was sent for ``seconds`` although something is left to send; to be called again and again.

        Args:
            now: The time, on the clock of the event loop.
            seconds: How long output may wait.
        """
        unsent = self._transport.get_write_buffer_size()
        taken = self._written - unsent
        if unsent:
            # The system takes more only when a third of its buffer, megabytes of a slow client, is free again.
            taken -= unacknowledged_bytes(self._transport.get_extra_info("socket"))
        if not unsent or taken != self._progress[0]:
            self._progress = taken, now
        elif now - self._progress[1] >= seconds:
            self.abort()

    def abort(self) -> None:
        """Close at once, without sending what is left."""
        self._chunks = []
        self._transport.abort()


def unacknowledged_bytes(socket: Any) -> int:
    """Return the bytes in the system's buffer that the client has not acknowledged; 0 if the system does not tell."""
    if sys.platform == "win32":
        return 0
    import fcntl
    import termios

    try:
        return int.from_bytes(fcntl.ioctl(socket.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:
        return 0
