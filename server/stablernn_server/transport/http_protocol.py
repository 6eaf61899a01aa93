"""HTTP/1.1 on one connection: uvicorn's protocol with limits on heads, and with answers that a client gets to see.

The limits hold before any request reaches the application, and so before any token is asked for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NoReturn, cast

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from websockets.http11 import MAX_LINE_LENGTH, MAX_NUM_HEADERS

from stablernn_server.errors import BusyError, HeadTooLargeError, InputError, ReadTimeoutError, ServerError
from stablernn_server.http.responses import error_answer
from stablernn_server.http.write_coalescing import CoalescingTransport
from stablernn_server.transport.connections import Connection, ConnectionTable

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

    from stablernn_server.http.app_context import AppContext

UNREAD = "unread"
"""Counted as the route of requests that are refused before their path is known."""
FIELD_OVERHEAD = 4
"""Bytes of ``: `` and the line break of a field."""


class HttpProtocol(HttpToolsProtocol):
    """One connection, until it becomes a WebSocket or ends.

    Attributes:
        handshake: The TLS handshake that the connection began with; it has a place in the table already.
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
        self.handshake: Connection | None = None
        settings = context.settings
        self._context = context
        self._table = table
        self._max_bytes = settings.max_head_bytes
        self._max_fields = settings.max_head_fields
        self._head_seconds = settings.head_timeout_seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self._is_in_head = False
        # Of the message that is being read, its trailers included.
        self._fields = 0
        self._head_bytes = 0
        # Received since the parser last completed an element of a message.
        self._pending_bytes = 0
        self._has_advanced = False
        self._refusal: ServerError | None = None
        # Requests are answered one by one; uvicorn's ``cycle`` is the newest, which may still wait in its ``pipeline``.
        self._answering: RequestResponseCycle | None = None
        # What follows on the connection is not read any more; an answer may still be on its way.
        self._is_discarding = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a new connection, or refuse it where there are too many."""
        self._gathered = CoalescingTransport(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", self._gathered))
        if self.handshake is not None:
            self._table.replace(self.handshake, self)
            self._table.mark_idle(self)
            self.handshake = None
            self._start_head_timer()
        elif self._table.add(self, self.client[0] if self.client else ""):
            self._start_head_timer()
        elif self._table.refuse(self):
            self._refuse(BusyError("The server has as many connections as it can take; try again later.", 1))
        else:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._table.remove(self)
        self._cancel_head_timer()
        super().connection_lost(exc)
        # uvicorn tells the newest request alone.
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def close_idle(self) -> None:
        """Close the connection, on which no request is in flight."""
        self._gathered.close_at_once()

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived."""
        if self._is_discarding or self._gathered.is_lingering:
            self._gathered.discard_input()
            return
        self._unset_keepalive_if_required()
        self._has_advanced = False
        assert self.parser is not None, "data after the connection was lost"
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            return
        except httptools.HttpParserError:
            self._refuse(self._refusal or InputError("The request is not valid HTTP/1.1; send it again."))
            return
        # The parser puts an element together from its pieces in quadratic time, whatever the element is: a field of
        # the head or of the trailers, the method, or the extension of a chunk.
        self._pending_bytes = 0 if self._has_advanced else self._pending_bytes + len(data)
        if self._pending_bytes > self._max_bytes:
            self._refuse(self._head_too_large())
        elif self._head_timer is None and self._is_awaiting_head():
            self._start_head_timer()

    def on_message_begin(self) -> None:
        """Begin with the next request."""
        super().on_message_begin()
        self._has_advanced = self._is_in_head = True
        self._fields = self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        self._count_head(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head; trailers count as fields and are dropped."""
        self._fields += 1
        self._count_head(len(name) + len(value) + FIELD_OVERHEAD)
        # Trailers come after the token was checked: the application must not see them as fields of the head.
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        self._is_in_head = False
        self._has_advanced = True
        assert self.parser is not None
        if self.parser.should_upgrade() and self._should_upgrade():
            # The connection stays idle, and its time for the head runs on, until the handshake is handed over.
            super().on_headers_complete()
            self._check_handshake()
            return
        self._cancel_head_timer()
        self._table.mark_busy(self)
        self._gathered.is_receiving = True
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._has_advanced = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End a request."""
        self._gathered.is_receiving = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on with the next request of this connection."""
        # Where others wait for the event loop, clients that wake up now would take a CPU from it; else nobody gains by
        # the wait until this request is written down. An open WebSocket is one of the others.
        if len(self.tasks) <= 1:
            self._gathered.flush()
        if not self.pipeline:
            self._table.mark_idle(self)
        super().on_response_complete()

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the protocol of WebSockets."""
        make_protocol = self.ws_protocol_class

        def make_counted(**options: Any) -> asyncio.Protocol:
            protocol = make_protocol(**options)  # type: ignore[misc]
            self._table.replace(self, protocol)  # type: ignore[arg-type]
            return protocol

        self.ws_protocol_class = make_counted  # type: ignore[assignment]
        super().handle_websocket_upgrade()
        self._cancel_head_timer()

    def shutdown(self) -> None:
        """End the connection after the answer that is on its way, if there is one."""
        self._cancel_head_timer()
        if self._gathered.is_lingering:
            self._gathered.close_at_once()
        else:
            super().shutdown()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _is_awaiting_head(self) -> bool:
        return not self.transport.is_closing() and not self._is_answering()

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self._head_seconds, self._end_slow_head)

    def _cancel_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _end_slow_head(self) -> None:
        self._head_timer = None
        if self._is_in_head:
            self._refuse(ReadTimeoutError(f"The head of the request did not arrive within {self._head_seconds:g} s."))
        else:
            # Nobody has asked for anything.
            self.transport.close()

    def _count_head(self, count: int) -> None:
        self._has_advanced = True
        self._head_bytes += count
        if self._head_bytes > self._max_bytes or self._fields > self._max_fields:
            self._end_parser(self._head_too_large())

    def _check_handshake(self) -> None:
        """Refuse a WebSocket handshake that the WebSocket library would leave without an answer."""
        target = b"GET " + self.url + b" HTTP/1.1"
        longest = max(map(len, (target, *(name + b": " + value for name, value in self.headers))))
        if self._is_answering():
            # The answer would be written into the WebSocket.
            self._end_parser(InputError("A WebSocket handshake must not follow a request before its answer."))
        if self.scope["method"] != "GET":
            self._end_parser(InputError("A WebSocket handshake must be a GET request."))
        if any(
            name == b"transfer-encoding" or (name == b"content-length" and value != b"0")
            for name, value in self.headers
        ):
            self._end_parser(InputError("A WebSocket handshake must not have a body; send it without one."))
        if longest + 2 > MAX_LINE_LENGTH:
            sentence = f"A line of the WebSocket handshake is longer than {MAX_LINE_LENGTH} bytes; send a shorter one."
            self._end_parser(HeadTooLargeError(sentence))
        if len(self.headers) > MAX_NUM_HEADERS:
            sentence = f"The WebSocket handshake has more than {MAX_NUM_HEADERS} fields; send fewer headers."
            self._end_parser(HeadTooLargeError(sentence))

    def _end_parser(self, error: ServerError) -> NoReturn:
        """End the parser from within a callback; it reports no more than that a callback has failed."""
        self._refusal = error
        raise error

    def _head_too_large(self) -> HeadTooLargeError:
        return HeadTooLargeError(
            f"The head of the request is larger than the limit of {self._max_bytes} bytes and {self._max_fields} "
            "fields; send fewer or shorter headers."
        )

    def _refuse(self, error: ServerError) -> None:
        """Answer with an error, where an answer can be placed, and read no further.

        Whole requests before the fault are answered, and the last of these answers closes the connection.
        """
        self._is_discarding = True
        self._cancel_head_timer()
        answer = error_answer(error)
        self._context.telemetry.finished(None, UNREAD, answer.status, answer.code, 0.0)
        if self.pipeline and self.cycle.more_body:
            # The fault lies in a request that the application has not seen yet.
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else cast("RequestResponseCycle", self._answering)
        cycle = self.cycle
        if self._is_answering():
            if not cycle.more_body:
                cycle.keep_alive = False
                self._gathered.is_receiving = True
                return
            cycle.disconnected = True
            cycle.message_event.set()
        if cycle is None or cycle.response_complete or not cycle.response_started:
            headers = {"Content-Type": answer.media, "Content-Length": str(len(answer.body)), **answer.headers}
            headers["Connection"] = "close"
            lines = [name.encode() + b": " + value.encode() + b"\r\n" for name, value in headers.items()]
            dated = [name + b": " + value + b"\r\n" for name, value in self.server_state.default_headers]
            self.transport.write(b"".join((STATUS_LINE[answer.status], *dated, *lines, b"\r\n", answer.body)))
        self._table.mark_idle(self)
        self._gathered.is_receiving = True
        self.transport.close()
