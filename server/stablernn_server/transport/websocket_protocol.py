"""The WebSocket end of one connection: uvicorn's protocol, with everything that it buffers counted and bounded."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, cast

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.protocol import State

from stablernn_server.errors import BusyError
from stablernn_server.http.write_coalescing import CoalescingTransport
from stablernn_server.transport.connections import ConnectionTable

if TYPE_CHECKING:
    from stablernn_server.http.app_context import AppContext

MAX_EMPTY_FRAGMENTS = 100
"""Fragments without content in one frame. They cost the client 6 bytes each and count in no limit on bytes."""
ARRIVING_ALLOWANCE_BYTES = 2**14
"""A frame of which no more than this has arrived is waited for however much others hold: it may be short, and split
by the network."""
MESSAGE_BYTES = 512
"""Memory of a queued message besides its content."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket.

    What has arrived of a frame lies in the buffer of the WebSocket library, its earlier fragments and whole messages
    that the application has not taken yet lie here. All of it counts in ``max_held_bytes``.
    """

    def __init__(self, *args: Any, context: AppContext, table: ConnectionTable, **options: Any) -> None:
        """Take what the connections of one server share.

        Args:
            args: As uvicorn gives them.
            context: Of the application.
            table: Every open connection.
            options: As uvicorn gives them.
        """
        super().__init__(*args, **options)
        self._context = context
        self._table = table
        self._held_bytes = 0
        self._queued_bytes = 0
        self._empty_fragments = 0
        self._frame_seconds = context.settings.read_timeout_seconds
        self._frame_timer: asyncio.TimerHandle | None = None

    @property
    def _gathered(self) -> CoalescingTransport:
        return cast("CoalescingTransport", self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection and what it has sent."""
        self._table.remove(self)
        self._cancel_frame_timer()
        self._context.count_held(-self._held_bytes)
        self._held_bytes = 0
        super().connection_lost(exc)

    def close_idle(self) -> None:
        """Close the connection; a WebSocket is never idle."""
        self._gathered.close_at_once()

    def shutdown(self) -> None:
        """End the connection; the application has said goodbye before."""
        # Once the library has ended its side it takes no goodbye any more; the client may just not have read all.
        if self._gathered.is_lingering or self.conn.handshake_exc is not None or self.conn.eof_sent:
            self._gathered.close_at_once()
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Take what has arrived."""
        if self._gathered.is_lingering:
            self._gathered.discard_input()
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None:
            # The library answers such a handshake only in part, or not at all, and the application never hears of it.
            self.transport.abort()
            return
        self._count_held()
        if not (self.frames or self.conn.reader.buffer):
            self._cancel_frame_timer()
        elif self._frame_timer is None and not self.close_sent:
            self._start_frame_timer()

    def handle_text(self, event: Frame) -> None:
        """Take a text frame or its first fragment."""
        self._begin_message("text", event)

    def handle_bytes(self, event: Frame) -> None:
        """Take a binary frame or its first fragment."""
        self._begin_message("bytes", event)

    def handle_cont(self, event: Frame) -> None:
        """Take a further fragment."""
        if self.close_sent:
            return
        if event.data:
            # One buffer for all fragments: as objects of their own, those of a byte would take a hundred bytes each.
            frames = cast("list[bytes | bytearray]", self.frames)
            if not isinstance(frames[0], bytearray):
                frames[0] = bytearray(frames[0])
            frames[0] += event.data
        self._end_fragment(event)

    def send_receive_event_to_app(self) -> None:
        """Queue a whole message, and read no further until the application has taken it."""
        data, self.frames = self.frames[0], []
        if self.close_sent:
            return
        message: ASGIReceiveEvent
        if self.curr_msg_data_type == "text":
            try:
                message = {"type": "websocket.receive", "text": data.decode()}
            except UnicodeDecodeError:
                self._fail(CloseCode.INVALID_DATA, "The text frame is not UTF-8.")
                return
        else:
            message = {"type": "websocket.receive", "bytes": bytes(data)}
        self.queue.put_nowait(message)
        self._queued_bytes += _message_bytes(message)
        if not self.read_paused:
            self.read_paused = True
            self.transport.pause_reading()

    async def receive(self) -> ASGIReceiveEvent:
        """Return the next message, which is the application's to count from now on."""
        message = await self.queue.get()
        self._queued_bytes -= _message_bytes(message)
        self._count_held()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if self._frame_timer is not None:
                # The client could not send while nothing was read.
                self._cancel_frame_timer()
                self._start_frame_timer()
            # A client that does not read its answers is not read from either: its pings would be answered into memory.
            if self.writable.is_set():
                self.transport.resume_reading()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message; raise what tells the application that the client has left once the connection was failed."""
        await self.writable.wait()
        # With a frame in hand the application cannot know yet, and uvicorn would call its answer a mistake.
        if self.close_sent and message["type"] in ("websocket.send", "websocket.close"):
            raise ClientDisconnected
        await super().send(message)

    def pause_writing(self) -> None:
        """Read no further while the client does not read."""
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on when it does."""
        super().resume_writing()
        if not self.read_paused:
            self.transport.resume_reading()

    def handle_parser_exception(self) -> None:
        """Close after a frame that cannot be read, of which more may be on its way."""
        self._gathered.is_receiving = True
        self.frames = []
        super().handle_parser_exception()

    def _begin_message(self, kind: str, event: Frame) -> None:
        if self.close_sent:
            return
        self.curr_msg_data_type = "text" if kind == "text" else "bytes"
        self.frames = [event.data]  # type: ignore[list-item]
        self._empty_fragments = 0
        self._end_fragment(event)

    def _end_fragment(self, event: Frame) -> None:
        if event.fin:
            self.send_receive_event_to_app()
        elif not event.data:
            self._empty_fragments += 1
            if self._empty_fragments > MAX_EMPTY_FRAGMENTS:
                self._fail(
                    CloseCode.POLICY_VIOLATION, f"The frame has more than {MAX_EMPTY_FRAGMENTS} empty fragments."
                )

    def _count_held(self) -> None:
        """Count what is buffered now, and close if all connections together hold too much."""
        if self.disconnected:
            return
        arriving = len(self.conn.reader.buffer) + sum(map(len, self.frames))
        total = arriving + self._queued_bytes
        change, self._held_bytes = total - self._held_bytes, total
        try:
            self._context.count_held(change)
        except BusyError:
            # A whole frame is answered by the application, which counts it once more.
            if arriving > ARRIVING_ALLOWANCE_BYTES:
                # The reason of a close frame has at most 123 bytes.
                self._fail(CloseCode.TRY_AGAIN_LATER, "The server holds too many bytes of requests; try again later.")

    def _fail(self, code: CloseCode, reason: str) -> None:
        """Close at once, with what has arrived thrown away."""
        if self.close_sent or self.conn.state is not State.OPEN:
            self.transport.abort()
            return
        self.conn.fail(code, reason)
        self.handle_parser_exception()
        self._count_held()

    def _start_frame_timer(self) -> None:
        self._frame_timer = self.loop.call_later(self._frame_seconds, self._end_slow_frame)

    def _cancel_frame_timer(self) -> None:
        if self._frame_timer is not None:
            self._frame_timer.cancel()
            self._frame_timer = None

    def _end_slow_frame(self) -> None:
        self._frame_timer = None
        if self.read_paused or not self.writable.is_set():
            self._start_frame_timer()
        else:
            self._fail(CloseCode.POLICY_VIOLATION, f"The frame did not arrive within {self._frame_seconds:g} s.")


def _message_bytes(message: ASGIReceiveEvent) -> int:
    if message["type"] != "websocket.receive":
        return 0
    content = message.get("text")
    return MESSAGE_BYTES + sys.getsizeof(message.get("bytes") if content is None else content)
