"""HTTP/1.1 on one connection: uvicorn's protocol with limits on heads, and with error responses that clients can read.

The limits hold before any request reaches the application, and so before any token is checked. No request is parsed
before the response to the one before is complete: what has arrived of it stays as it is, and no more is read.

Below it lies TLS, where a connection counts as open from the moment it was accepted: an event loop that does TLS itself
tells the protocol of a connection only after the handshake, and clients that never complete theirs could use up all
file descriptors unnoticed.

A request may offer another protocol, such as HTTP/2 without TLS, which the server does not take up and by RFC 9110 may
ignore. httptools stops at the head of such a request, before its body, which would then be read as the next request.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.utils import get_remote_addr
from websockets.http11 import MAX_LINE_LENGTH, MAX_NUM_HEADERS

from stablernn_server.errors import BusyError, HeadTooLargeError, InputError, ReadTimeoutError, ServerError
from stablernn_server.http.request import ActiveRequest, Scope
from stablernn_server.http.responses import error_response
from stablernn_server.transport.connections import Connection, ConnectionTable, Turn
from stablernn_server.transport.direct_exchange import (
    CheckedHeads,
    DirectExchange,
    HeadCache,
    closing_response,
    is_direct_target,
)
from stablernn_server.transport.write_coalescing import UNSENT_BYTES, CoalescingTransport

if TYPE_CHECKING:
    from stablernn_server.http.app_context import AppContext
    from stablernn_server.http.middleware import RequestMiddleware

_OFFER_FIELDS = frozenset({b"connection", b"http2-settings", b"upgrade"})
UNREAD_ROUTE = "unread"
"""Route in the metrics of requests that are refused before their path is known."""
FIELD_OVERHEAD = 4
"""Bytes of ``: `` and the line break of a header field."""
MESSAGE_END = b"\r\n\r\n"
"""Ends every head, and every body in chunks with its trailers: the parser accepts no other line breaks."""
_LINE_BREAKS = re.compile(rb"[\r\n]*+")
_SIZE = re.compile(rb"[0-9A-Fa-f]*+")
FIRST_READ_BYTES = 2**14
"""Bytes that are read at a time before the first request."""
NEXT_READ_BYTES = 2**16
"""Bytes that are read at a time between requests."""
BODY_READ_BYTES = 2**18
"""Bytes that are read at a time of a body."""
URGENT = (b"GET /v2/health/", b"HEAD /v2/health/")
"""Beginnings of first requests that wait for nobody: many new connections do not make the server look dead."""
READ_BYTES = 2**15
"""Bytes of the read buffer; 256 KiB by default."""
UNREAD_BYTES = 2**14
"""Bytes that a connection may hold encrypted while the server does not read from it; 256 KiB by default."""


def check_handshake(method: str, target: bytes, headers: Sequence[tuple[bytes, bytes]]) -> None:
    """Raise unless a handshake can be handed over to the WebSocket library.

    Args:
        method: Method of the request.
        target: Its target.
        headers: Its header fields, with names in lower case.

    Raises:
        InputError: If it is no GET request, or has a body.
        HeadTooLargeError: If a line is too long, or there are too many.
    """
    if method != "GET":
        raise InputError("A WebSocket handshake must be a GET request.")
    if any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers):
        raise InputError("A WebSocket handshake must not have a body; send it without one.")
    request_line = b"GET " + target + b" HTTP/1.1"
    longest = max(map(len, (request_line, *(name + b": " + value for name, value in headers))))
    if longest + 2 > MAX_LINE_LENGTH:
        raise HeadTooLargeError(
            f"A line of the WebSocket handshake is longer than {MAX_LINE_LENGTH} bytes; send a shorter one."
        )
    if len(headers) > MAX_NUM_HEADERS:
        raise HeadTooLargeError(f"The WebSocket handshake has more than {MAX_NUM_HEADERS} fields; send fewer headers.")


def can_ignore_upgrade(parser: httptools.HttpRequestParser) -> bool:
    """Return whether the request, of which the head has been read, offers another protocol than HTTP/1.1.

    The tunnel that ``CONNECT`` asks for is none: what follows its head is not a body.
    """
    return parser.should_upgrade() and parser.get_method() != b"CONNECT"


def head_without_upgrade(
    parser: httptools.HttpRequestParser, target: bytes, headers: Sequence[tuple[bytes, bytes]]
) -> bytes:
    """Return the head of a request without its offer.

    Args:
        parser: The parser that has read the head.
        target: The target of the request.
        headers: Its fields, with names in lower case.
    """
    options = b",".join(value for name, value in headers if name == b"connection").lower().split(b",")
    other_options = [option for option in map(bytes.strip, options) if option and option not in _OFFER_FIELDS]
    fields = [(name, value) for name, value in headers if name not in _OFFER_FIELDS]
    if other_options:
        fields.append((b"connection", b", ".join(other_options)))
    first = b"%b %b HTTP/%b" % (parser.get_method(), target, parser.get_http_version().encode())
    return b"\r\n".join([first, *(b"%b: %b" % field for field in fields), b"", b""])


class InputFlow(FlowControl):
    """Flow control that resumes reading only when all that has been read is parsed.

    Attributes:
        is_held: Whether input is waiting to be parsed.
    """

    is_held = False

    def resume_reading(self) -> None:
        """Resume reading, unless input is waiting."""
        if not self.is_held:
            super().resume_reading()


class BoundedReads(asyncio.BufferedProtocol):
    """Passes on what arrives in pieces: short ones before the first request, longer ones between others and of bodies.

    An event loop reads 256 kB at a time, so that a thousand clients that send ahead would have it copy 256 MB in one
    turn, before the first of them is asked to wait.
    """

    def __init__(self, make_protocol: Callable[[], HttpProtocol], buffer: memoryview) -> None:
        """Create the protocol of one connection.

        Args:
            make_protocol: Returns the protocol that takes what arrives.
            buffer: A buffer of :data:`BODY_READ_BYTES` for all connections of an event loop, as each read is passed on
                before the next.
        """
        self._buffer = buffer
        self._http = http = make_protocol()
        self.connection_made = http.connection_made  # type: ignore[assignment]
        self.connection_lost = http.connection_lost  # type: ignore[method-assign]
        self.pause_writing = http.pause_writing  # type: ignore[method-assign]
        self.resume_writing = http.resume_writing  # type: ignore[method-assign]
        self.eof_received = http.eof_received  # type: ignore[method-assign]

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read."""
        if self._http.is_in_message:
            return self._buffer
        return self._buffer[: FIRST_READ_BYTES if self._http.cycle is None else NEXT_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on what was read."""
        self._http.data_received(bytes(self._buffer[:nbytes]))


class HttpProtocol(HttpToolsProtocol):
    """One connection, until it becomes a WebSocket or ends.

    Attributes:
        handshake: The TLS handshake that the connection began with, which is in the table already; None without TLS.
        is_in_message: Whether a request has begun and not ended.
    """

    # The same for all connections.
    _default_fields: ClassVar[list[tuple[bytes, bytes]] | None] = None
    _default_lines: ClassVar[bytes] = b""

    def __init__(
        self,
        *args: Any,
        context: AppContext,
        table: ConnectionTable,
        middleware: RequestMiddleware,
        **options: Any,
    ) -> None:
        """Create the protocol of one connection.

        Args:
            args: Positional arguments of uvicorn's protocol.
            context: The application's context.
            table: The table of open connections.
            middleware: Answers the requests that bypass ASGI.
            options: Keyword arguments of uvicorn's protocol.
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
        self._has_advanced = self._has_ended = False
        self._refusal: ServerError | None = None
        # Of the head that is being read.
        self._hosts = self._content_length = 0
        self._is_chunked = False
        # A message has begun and not ended; of its body, this much is to come if its length is known.
        self.is_in_message = False
        self._body_bytes = 0
        # In a body in chunks, before its last one: what is to come of a chunk, or has arrived of the line before it.
        self._is_in_chunks = False
        self._chunk_bytes = 0
        self._chunk_line = b""
        # The last bytes of what was parsed, of which the next ones may make the end of a message.
        self._seam = b""
        # Input behind the request in flight, from `_unparsed_start` on.
        self._unparsed = b""
        self._unparsed_start = 0
        # Further input is not read any more; a response may still be on its way.
        self._is_discarding = False
        # uvicorn reads the headers of proxies in an ASGI application, so that behind a proxy every request is for ASGI.
        self._middleware = None if self.config.proxy_headers else middleware
        # Its head has arrived in the data that is being parsed.
        self._arriving: DirectExchange | None = None
        self._checked_heads = CheckedHeads()
        self._head_cache = HeadCache(settings.max_head_bytes)
        # Since when no request is in flight, on the clock of the event loop; None while one is.
        self._idle_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a new connection, or refuse it if there are too many."""
        self._coalescing = CoalescingTransport(transport, self.loop)
        super().connection_made(cast("asyncio.Transport", self._coalescing))
        self.flow = self._input_flow = InputFlow(self.transport)
        # After a TLS handshake the connection is in the table already, and only changes hands.
        if self.handshake is not None:
            self._table.replace(self.handshake, self)
            self._table.mark_idle(self)
            self.handshake = None
            self._start_head_timer()
            return
        try:
            self._table.add(self, self.client[0] if self.client else "")
        except BusyError as error:
            if self._table.refuse(self):
                self._refuse(error)
            else:
                # Too many are being refused already.
                self.transport.abort()
        else:
            self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from the table, and tell the request in flight."""
        self._table.remove(self)
        self._cancel_head_timer()
        self._unset_keepalive_if_required()
        self._keep_unparsed(b"")
        super().connection_lost(exc)

    def close_idle(self) -> None:
        """Close the connection, on which no request is in flight."""
        self._coalescing.close_at_once()

    def end_stalled(self, now: float, seconds: float) -> None:
        """Abort if the client has taken nothing of a response for ``seconds``."""
        self._coalescing.end_stalled(now, seconds)

    def data_received(self, data: bytes) -> None:
        """Parse the data that has arrived, or keep it behind the request in flight."""
        if self._is_discarding or self._coalescing.is_lingering:
            self._coalescing.discard_input()
            return
        self._idle_since = None
        # The first request of a connection waits for its turn, further ones for the response to the one before.
        is_waiting = self._is_answering() if self.cycle is not None else self._can_wait(data)
        if self._unparsed or (is_waiting and not self.is_in_message):
            self._keep_unparsed(self._unparsed[self._unparsed_start :] + data)
            return
        if not self.is_in_message and (request := self._head_cache.find(data)) is not None:
            self._begin_cached(*request)
        else:
            self._parse(data)

    def _parse(self, data: bytes, start: int = 0) -> None:
        """Parse ``data`` from ``start`` on up to the end of a message, and keep the rest."""
        begin, end = start, len(data)
        is_between, cycle = not self.is_in_message, self.cycle
        self._has_advanced = self._has_ended = False
        try:
            while start < end and not self._has_ended:
                stop = self._part_end(data, start)
                is_websocket = self._feed(data if stop - start == end else memoryview(data)[start:stop])
                self._seam = (self._seam + data[max(start, stop - 3) : stop])[-3:]
                start = stop
                if is_websocket:
                    self._hand_over(data[stop:])
                    return
        except httptools.HttpParserError:
            # Also when a callback of ours has raised: see _end_parser.
            self._refuse(
                self._refusal or InputError("The request is not valid HTTP/1.1; correct it and send it again.")
            )
            return
        finally:
            if self._arriving is not None:
                # Whether it may be answered does not depend on its body, of which more is to come.
                self._start_arriving()
        # The parser joins the chunks of an element in quadratic time, whatever the element is: a field of the head or
        # of the trailers, the method, or the extension of a chunk of the body.
        self._pending_bytes = 0 if self._has_advanced else self._pending_bytes + start - begin
        if self._pending_bytes > self._max_bytes:
            self._refuse(self._head_too_large())
        elif start < end:
            self._keep_unparsed(data, start)
        elif self._head_timer is None and not self._is_answering() and not self.transport.is_closing():
            self._start_head_timer()
        new = self.cycle if is_between and begin == 0 and self.cycle is not cycle else None
        if isinstance(new, DirectExchange) and self._head_cache.is_useful:
            self._head_cache.keep(data, new)

    def _part_end(self, data: bytes, start: int) -> int:
        """Return the end of a part of ``data`` in which at most one head or body ends, at the end of the part.

        What clients choose, such as short chunks or line breaks, does not make parts short: each costs a call of the
        parser.
        """
        first = start
        if not self.is_in_message:
            match = _LINE_BREAKS.match(data, start)
            assert match is not None
            first, self._seam = match.end(), b""
        elif self._is_in_chunks:
            first = self._skip_chunks(data, start)
            if self._is_in_chunks:
                return len(data)
        elif self._body_bytes:
            return min(len(data), start + self._body_bytes)
        index = (self._seam + data[start : start + 3]).find(MESSAGE_END) if first == start else -1
        if index >= 0:
            return start + index + len(MESSAGE_END) - len(self._seam)
        index = data.find(MESSAGE_END, first)
        return len(data) if index < 0 else index + len(MESSAGE_END)

    def _skip_chunks(self, data: bytes, start: int) -> int:
        """Return where the line break of the last chunk's size begins in ``data``, or its end before that chunk."""
        position, end = start, len(data)
        while position + self._chunk_bytes < end:
            position, self._chunk_bytes = position + self._chunk_bytes, 0
            stop = data.find(b"\n", position)
            self._chunk_line += data[position : end if stop < 0 else stop]
            if stop < 0:
                return end
            match = _SIZE.match(self._chunk_line)
            assert match is not None
            size, self._chunk_line = int(match[0] or b"0", 16), b""
            if not size:
                # Or no number, which the parser refuses.
                self._is_in_chunks = False
                return max(start, stop - 1)
            # With the line break behind the chunk.
            position, self._chunk_bytes = stop + 1, size + 2
        self._chunk_bytes -= end - position
        return end

    def _feed(self, part: bytes | memoryview) -> bool:
        """Pass a part to the parser; return whether it ends the handshake of a WebSocket.

        Raises:
            httptools.HttpParserError: If it is not valid, or is refused.
        """
        assert self.parser is not None, "data after the connection was lost"
        try:
            self.parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                return True
            if can_ignore_upgrade(self.parser):
                head = head_without_upgrade(self.parser, self.url, self.headers)
                self.parser = httptools.HttpRequestParser(self)
                self.parser.feed_data(head)
        return False

    def _can_wait(self, data: bytes) -> bool:
        return not data.startswith(URGENT) and self._context.budget.has_room_behind

    def _keep_unparsed(self, data: bytes, start: int = 0) -> None:
        """Keep ``data`` from ``start`` on until the request in flight is answered, and read no more.

        Without room for it the connection is closed after that response: its client sends the rest again, as after any
        response that ends a connection (RFC 9112, section 9.3.2).
        """
        change = len(data) - len(self._unparsed)
        self._unparsed, self._unparsed_start = data, start
        self._input_flow.is_held = bool(data)
        is_kept = True
        try:
            self._context.budget.count_unparsed(change)
        except BusyError:
            is_kept = False
        if not data:
            return
        self.flow.pause_reading()
        # A connection that is closed with unread input is reset.
        self._coalescing.is_receiving = True
        cycle = self.cycle
        if cycle is None or (is_kept and cycle.keep_alive):
            if not self._is_answering():
                self._take_turn()
            return
        self._is_discarding = True
        self._keep_unparsed(b"")
        if self._is_answering():
            cycle.keep_alive = False
        else:
            self.transport.close()

    def _take_turn(self) -> None:
        # It may have become idle before it was known that more has arrived.
        self._table.mark_busy(self)
        self._idle_since = None
        self._table.take_turn(self._parse_next, Turn.FIRST_REQUEST if self.cycle is None else Turn.NEXT)

    def _parse_next(self) -> None:
        """Parse the next one of the requests that have arrived."""
        data, start = self._unparsed, self._unparsed_start
        if not data or self._is_answering() or self.transport.is_closing():
            return
        self._keep_unparsed(b"")
        self._parse(data, start)
        if self._unparsed:
            return
        if not self._is_answering():
            self._table.mark_idle(self)
        # Of a body, the application reads more when it is ready.
        if not (self.is_in_message and self._is_answering()):
            self.flow.resume_reading()

    def on_message_begin(self) -> None:
        """Start with the next request."""
        assert not self._has_ended, "a part in which more than one message ends"
        self.is_in_message = True
        self._hosts = self._content_length = self._chunk_bytes = 0
        self._is_chunked, self._chunk_line = False, b""
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._has_advanced = self._is_in_head = True
        self._fields = self._head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the request target."""
        self._has_advanced = True
        self._head_bytes += len(url)
        if self._head_bytes > self._max_bytes:
            self._end_parser(self._head_too_large())
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head; trailers count in the limits and are dropped."""
        self._has_advanced = True
        self._fields += 1
        self._head_bytes += len(name) + len(value) + FIELD_OVERHEAD
        if self._head_bytes > self._max_bytes or self._fields > self._max_fields:
            self._end_parser(self._head_too_large())
        # Trailers come after the token was checked: the application must not see them as fields of the head.
        if self._is_in_head:
            name = name.lower()
            if name == b"host":
                self._hosts += 1
            elif name == b"content-length":
                self._content_length = int(value)
            elif name == b"transfer-encoding":
                # In chunks: the parser refuses any other one.
                self._is_chunked = True
            elif name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Start to answer the request."""
        self._is_in_head = False
        self._has_advanced = True
        assert self.parser is not None
        if self._hosts != 1 and (self._hosts or self.parser.get_http_version() > "1.0"):
            self._end_parser(
                InputError(f"A request in HTTP/1.1 has one Host header, got {self._hosts}; send it with one.")
            )
        if self.parser.should_upgrade() and self._should_upgrade():
            # The connection stays idle, and its timer for the head runs on, until it is handed over to WebSockets.
            self._create_scope()
            super().on_headers_complete()
            self._check_handshake()
            return
        if can_ignore_upgrade(self.parser):
            return
        self._body_bytes, self._is_in_chunks = self._content_length, self._is_chunked
        self._cancel_head_timer()
        self._table.mark_busy(self)
        self._coalescing.is_receiving = True
        if self._middleware is not None and self.parser.get_method() == b"POST" and is_direct_target(self.url):
            self._begin_direct()
        else:
            self._create_scope()
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._has_advanced = True
        # Not below 0 where the body comes in chunks.
        self._body_bytes = max(0, self._body_bytes - len(body))
        cycle = self.cycle
        if not isinstance(cycle, DirectExchange):
            super().on_body(body)
        elif not cycle.response_complete:
            cycle.feed(body)

    def on_message_complete(self) -> None:
        """End a request."""
        assert self.parser is not None
        if can_ignore_upgrade(self.parser):
            return
        self.is_in_message, self._has_ended = False, True
        self._coalescing.is_receiving = False
        if self._arriving is None:
            super().on_message_complete()
        else:
            self._arriving.more_body = False
            self._start_arriving()

    def on_response_complete(self) -> None:
        """Continue with the next request of this connection."""
        # If other requests wait for the event loop, a client that wakes up now would take a CPU from it. Otherwise
        # nobody gains from delaying the response until this request is logged. An open WebSocket counts as a request.
        if len(self.tasks) <= 1:
            self._coalescing.flush()
        self.continue_connection()

    def continue_connection(self) -> None:
        """Continue with the next request of this connection, or wait for one."""
        self.server_state.total_requests += 1
        if self._unparsed and not self.transport.is_closing():
            self._take_turn()
            return
        self._table.mark_idle(self)
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        # One timer for many requests: it is not stopped and started again between them.
        if self.timeout_keep_alive_task is None:
            self._start_keep_alive_timer(self.timeout_keep_alive)

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection if it has been idle for long enough; uvicorn stops the timer whenever data arrives."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return
        seconds_left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if seconds_left > 0:
            self._start_keep_alive_timer(seconds_left)
        else:
            super().timeout_keep_alive_handler()

    def write_whole(self, response: bytes) -> None:
        """Send a whole response."""
        self._coalescing.write_whole(response)

    def _start_keep_alive_timer(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _hand_over(self, frames: bytes) -> None:
        """Hand the connection over to the WebSocket protocol, with the frames that have arrived."""
        make_protocol = self.ws_protocol_class

        def make_counted(**options: Any) -> asyncio.Protocol:
            protocol = make_protocol(**options)  # type: ignore[misc]
            self._table.replace(self, protocol)  # type: ignore[arg-type]
            return protocol

        self.ws_protocol_class = make_counted  # type: ignore[assignment]
        self.handle_websocket_upgrade()
        self._cancel_head_timer()
        self.flow.resume_reading()
        if frames:
            cast("asyncio.Protocol", self.transport.get_protocol()).data_received(frames)

    def shutdown(self) -> None:
        """Close the connection after the response that is on its way, if there is one."""
        self._cancel_head_timer()
        if self._coalescing.is_lingering:
            self._coalescing.close_at_once()
        else:
            super().shutdown()

    def default_lines(self) -> bytes:
        """Return the header fields of every response, the date among them."""
        fields = self.server_state.default_headers
        # uvicorn makes a new list once a second, when the date changes.
        if fields is not HttpProtocol._default_fields:
            HttpProtocol._default_fields = fields
            HttpProtocol._default_lines = b"".join(b"%b: %b\r\n" % field for field in fields)
        return HttpProtocol._default_lines

    def _create_scope(self) -> None:
        """Create the scope of a request for ASGI."""
        head = self.url, self.expect_100_continue, self.headers
        super().on_message_begin()
        self.url, self.expect_100_continue, self.headers = head
        self.scope["headers"] = self.headers

    def _begin_direct(self) -> None:
        """Make an exchange of the request whose head is complete, which starts with its body."""
        assert self.parser is not None
        version = self.parser.get_http_version()
        scope = self._checked_heads.create_scope(self.url, self.headers, self.client)
        keep_alive = version != "1.0" and self.parser.should_keep_alive()
        self.cycle = self._arriving = DirectExchange(
            self, scope, keep_alive=keep_alive, expects_continue=self.expect_100_continue
        )

    def _begin_cached(self, scope: Scope, body: bytes) -> None:
        """Answer a request that has arrived as a whole, with a head that was parsed and checked before."""
        self._cancel_head_timer()
        self._pending_bytes = 0
        self._table.mark_busy(self)
        exchange = DirectExchange(self, scope, keep_alive=True, expects_continue=False)
        exchange.more_body = False
        self.cycle = exchange
        self._start_direct(exchange, body)

    def _start_arriving(self) -> None:
        """Start the exchange whose head has just arrived, if there is one."""
        exchange, self._arriving = self._arriving, None
        if exchange is not None:
            self._start_direct(exchange)

    def _start_direct(self, exchange: DirectExchange, body: bytes | None = None) -> None:
        middleware = self._middleware
        assert middleware is not None, "without it there are no exchanges"
        scope = cast("Scope", exchange.scope)
        request = ActiveRequest(exchange.receive, exchange, time.perf_counter(), whole_body=body)
        if body is None:
            request.whole_body = exchange.take_body()
        else:
            request.content_length = len(body)
        exchange.start(middleware.answer(scope, request, exchange, middleware.match_direct(scope)))

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

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
            # No request has begun, so that there is nothing to answer.
            self.transport.close()

    def _check_handshake(self) -> None:
        """Refuse a WebSocket handshake that the WebSocket library would leave without an answer."""
        try:
            check_handshake(self.scope["method"], self.url, self.headers)
        except ServerError as error:
            self._end_parser(error)

    def _end_parser(self, error: ServerError) -> NoReturn:
        """Stop the parser from within a callback."""
        # The parser only reports that a callback has failed; `data_received` answers with this error.
        self._refusal = error
        raise error

    def _head_too_large(self) -> HeadTooLargeError:
        return HeadTooLargeError(
            f"The head of the request is larger than the limit of {self._max_bytes} bytes and {self._max_fields} "
            "fields; send fewer or shorter headers."
        )

    def _refuse(self, error: ServerError) -> None:
        """Answer with an error, if a response can still be written, and read no further."""
        self._is_discarding = True
        self._cancel_head_timer()
        response = error_response(error)
        self._context.telemetry.record_request(None, UNREAD_ROUTE, response.status, response.code, 0.0)
        cycle = self.cycle
        if self._is_answering():
            # The body of the erroneous request does not come, so the application must not wait for it.
            cycle.disconnected = True
            cycle.message_event.set()
        # After the head of another response, an error response would be read as a part of its body.
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(closing_response(response, self.server_state.default_headers))
        self._table.mark_idle(self)
        self._coalescing.is_receiving = True
        self.transport.close()


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
