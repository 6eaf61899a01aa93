"""WebSocket on one connection: uvicorn's protocol, with everything that it buffers counted and bounded."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Literal, cast

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame
from websockets.protocol import State

from stablernn_server.errors import BusyError
from stablernn_server.transport.connections import ConnectionTable, Turn
from stablernn_server.transport.write_coalescing import CoalescingTransport

if TYPE_CHECKING:
    from stablernn_server.http.app_context import AppContext

MAX_EMPTY_FRAGMENTS = 100
"""Fragments without content in one frame. They cost the client 6 bytes each and do not count in any limit on bytes."""
ARRIVING_ALLOWANCE_BYTES = 2**14
"""A frame of which at most this much has arrived is not refused, however much others hold: it may be short, and split
by the network."""
FRAMES_PER_TURN = 16
"""Frames that are parsed before other connections go on; a whole message ends the turn earlier."""
MESSAGE_BYTES = 512
"""Memory of a queued message without its content."""


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One WebSocket.

    The part of a frame that has arrived is in the buffer of the WebSocket library; its earlier fragments, and a whole
    message that the application has not taken yet, are held here. Frames behind that one stay as they arrived, and no
    more is read. All of it counts in ``max_held_bytes``.
    """

    def __init__(self, *args: Any, context: AppContext, table: ConnectionTable, **options: Any) -> None:
        """Create the protocol of one connection.

        Args:
            args: Positional arguments of uvicorn's protocol.
            context: The application's context.
            table: The table of open connections.
            options: Keyword arguments of uvicorn's protocol.
        """
        super().__init__(*args, **options)
        self._budget = context.budget
        self._table = table
        # Buffered here and in the library, as counted in the budget.
        self._held_bytes = 0
        # Of it, messages in the queue to the application.
        self._queued_bytes = 0
        # Frames that are not parsed, and how much of the frame before them is still to come.
        self._unparsed = b""
        self._unparsed_start = 0
        self._frame_bytes = 0
        self._empty_fragments = 0
        self._frame_seconds = context.settings.read_timeout_seconds
        self._frame_timer: asyncio.TimerHandle | None = None

    @property
    def _coalescing(self) -> CoalescingTransport:
        # HttpProtocol handed its transport over.
        return cast("CoalescingTransport", self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the table, and release the memory of what it has sent."""
        self._table.remove(self)
        self._cancel_frame_timer()
        self._budget.count(-self._held_bytes)
        self._held_bytes = 0
        super().connection_lost(exc)

    def close_idle(self) -> None:
        """Close the connection; a WebSocket is never idle."""
        self._coalescing.close_at_once()

    def end_stalled(self, now: float, seconds: float) -> None:
        """Abort if the client has taken nothing of what was sent for ``seconds``."""
        self._coalescing.end_stalled(now, seconds)

    def shutdown(self) -> None:
        """Close the connection; the application has sent its drain message before."""
        # Once the library has ended its side, it sends no close frame any more; the client may just not have read all.
        if self._coalescing.is_lingering or self.conn.handshake_exc is not None or self.conn.eof_sent:
            self._coalescing.close_at_once()
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Parse the data that has arrived."""
        if self._coalescing.is_lingering:
            self._coalescing.discard_input()
            return
        if self.handshake_initiated:
            self._parse(self._unparsed[self._unparsed_start :] + data)
            return
        super().data_received(data)
        if self.conn.handshake_exc is not None:
            # The library answers a failed handshake only in part, or not at all, and the application never sees it.
            self.transport.abort()

    def _parse(self, data: bytes, start: int = 0) -> None:
        """Parse frames from ``start`` on up to a whole message, and keep the rest."""
        end, is_incomplete = len(data), False
        for _ in range(FRAMES_PER_TURN):
            if start == end or not self._is_ready():
                break
            if not self._frame_bytes:
                self._frame_bytes = frame_size(data, start)
                is_incomplete = not self._frame_bytes
                if is_incomplete:
                    break
            stop = min(end, start + self._frame_bytes)
            self._frame_bytes -= stop - start
            super().data_received(data[start:stop])
            start = stop
        if start == end or self.transport.is_closing():
            data, start = b"", 0
        self._unparsed, self._unparsed_start = data, start
        self._count_held()
        if data and not is_incomplete:
            self.transport.pause_reading()
            if self._is_ready():
                self._table.take_turn(self._go_on, Turn.NEXT)
        elif self._is_ready():
            self.transport.resume_reading()
        if not (self.frames or self.conn.reader.buffer or is_incomplete):
            self._cancel_frame_timer()
        elif self._frame_timer is None and not self.close_sent:
            self._start_frame_timer()

    def _is_ready(self) -> bool:
        """Return whether another frame may be parsed.

        Not before the handshake is answered, for which a frame may be too early, nor while a message waits for the
        application, nor from a client that does not read its replies: answers to its pings would fill the memory.
        """
        is_open = self.handshake_complete and not self.transport.is_closing()
        return is_open and not self.read_paused and self.writable.is_set()

    def _go_on(self) -> None:
        if self._is_ready():
            self._parse(self._unparsed, self._unparsed_start)

    def _resume(self) -> None:
        """Take further frames: those that are kept when it is their turn, or else read more."""
        if self._unparsed:
            self._table.take_turn(self._go_on, Turn.NEXT)
        elif self._is_ready():
            self.transport.resume_reading()

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
            # One buffer for all fragments: as separate objects, fragments of one byte would take 100 bytes each.
            frames = cast("list[bytes | bytearray]", self.frames)
            if not isinstance(frames[0], bytearray):
                frames[0] = bytearray(frames[0])
            frames[0] += event.data
        self._end_fragment(event)

    def send_receive_event_to_app(self) -> None:
        """Queue a whole message, and pause reading until the application has taken it."""
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
        """Return the next message; from now on the application counts its bytes."""
        message = await self.queue.get()
        self._queued_bytes -= _message_bytes(message)
        self._count_held()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            if self._frame_timer is not None:
                # The client could not send while reading was paused.
                self._cancel_frame_timer()
                self._start_frame_timer()
            self._resume()
        return message

    async def send(self, message: ASGISendEvent) -> None:
        """Send a message.

        Raises:
            ClientDisconnected: If the connection was failed, which the application takes as the end of the client.
        """
        await self.writable.wait()
        # While it answers a frame the application cannot know yet, and uvicorn would treat its reply as an error.
        if self.close_sent and message["type"] in ("websocket.send", "websocket.close"):
            raise ClientDisconnected
        await super().send(message)
        if message["type"] == "websocket.accept":
            self._resume()

    def pause_writing(self) -> None:
        """Pause reading while the client does not read."""
        super().pause_writing()
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading, unless a message is waiting for the application."""
        super().resume_writing()
        self._resume()

    def handle_parser_exception(self) -> None:
        """Close after a frame that cannot be parsed."""
        # More of it may be on its way: linger, so that the client can read the close frame.
        self._coalescing.is_receiving = True
        self.frames = []
        super().handle_parser_exception()

    def _begin_message(self, data_type: Literal["text", "bytes"], event: Frame) -> None:
        if self.close_sent:
            return
        self.curr_msg_data_type = data_type
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
        """Count the bytes that are buffered now, and close if all connections together hold too many."""
        if self.disconnected:
            return
        arriving = len(self.conn.reader.buffer) + sum(map(len, self.frames)) + len(self._unparsed)
        total = arriving + self._queued_bytes
        change, self._held_bytes = total - self._held_bytes, total
        try:
            self._budget.count(change)
        except BusyError:
            # A whole frame is refused by the application, which counts it again.
            if arriving > ARRIVING_ALLOWANCE_BYTES:
                # The reason of a close frame has at most 123 bytes.
                self._fail(CloseCode.TRY_AGAIN_LATER, "The server holds too many bytes of requests; try again later.")

    def _fail(self, code: CloseCode, reason: str) -> None:
        """Close at once, and discard what has arrived."""
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
            # It is the server that does not read.
            self._start_frame_timer()
        else:
            self._fail(CloseCode.POLICY_VIOLATION, f"The frame did not arrive within {self._frame_seconds:g} s.")


def frame_size(data: bytes, start: int) -> int:
    """Return the bytes of the frame at ``start`` by its head (RFC 6455, section 5.2); 0 if more of it must come."""
    head = data[start : start + 10]
    if len(head) < 2:
        return 0
    mask, size = 4 * (head[1] >> 7), head[1] & 127
    # 126 and 127 say that the size follows, in two or eight bytes.
    length_bytes = {126: 2, 127: 8}.get(size, 0)
    if len(head) < 2 + length_bytes:
        return 0
    if length_bytes:
        size = int.from_bytes(head[2 : 2 + length_bytes], "big")
    return 2 + length_bytes + mask + size


def _message_bytes(message: ASGIReceiveEvent) -> int:
    if message["type"] != "websocket.receive":
        return 0
    content = message.get("text")
    return MESSAGE_BYTES + sys.getsizeof(message.get("bytes") if content is None else content)
