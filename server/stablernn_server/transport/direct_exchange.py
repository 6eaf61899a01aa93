"""Requests that are answered without ASGI: the head, which is parsed once, the body as it arrives, and the response.

Between uvicorn's protocol and an ASGI application lie a task, an event and several messages for each request, which
costs more than inference on a short sequence. Here the coroutine that answers runs at once, without a task, and head
and body of the response are written as one piece.

Clients send the same head again and again, and only the length of the body differs. To parse and check a head costs
about as much as to decode a short sequence, so that one equal to the last is neither parsed nor checked again.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import re
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, cast

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from stablernn_server.http.middleware import CHECKS_KEY
from stablernn_server.http.request import FIELDS_KEY, Headers, Message, Scope, header_fields
from stablernn_server.http.responses import RawResponse

MAX_CACHED_HEAD_BYTES = 2048
"""Longer heads are not kept."""
MAX_LENGTH_DIGITS = 9
MAX_MISSES = 16
"""Heads kept in vain after which a connection keeps no more: its client sends something else each time, as an id."""
HEAD_END = b"\r\n\r\n"

_find_length = re.compile(rb"\r\nContent-Length: *(\d+)\r\n", re.IGNORECASE).search
_UNUSUAL_FIELDS = frozenset({b"expect", b"transfer-encoding", b"upgrade"})
"""Fields that change how the body is read, or what becomes of the connection."""
logger = logging.getLogger(__name__)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
FAILED = RawResponse(500, b"Internal Server Error", "text/plain; charset=utf-8", {"Connection": "close"})
"""The response where even the middleware has failed, as uvicorn has it."""


is_direct_target = re.compile(
    rb"/v2/models/[\w.@:~-]+(?:/versions/[\w.-]+)?/infer|/v1/step|/v1/sessions/[\w-]+/step"
).fullmatch
"""Matches the targets of requests that bypass ASGI, as clients usually write them; others go the longer way."""


class HeadCache:
    """The last head of one connection that was answered without ASGI, apart from the length of its body.

    Bytes that the parser has accepted once, at the beginning of a message, it accepts again with the same result.
    """

    __slots__ = ("_heads", "_length_start", "_max_bytes", "_misses")

    def __init__(self, max_head_bytes: int) -> None:
        """Begin without a head.

        Args:
            max_head_bytes: The limit on heads of requests.
        """
        self._max_bytes = min(MAX_CACHED_HEAD_BYTES, max_head_bytes) - MAX_LENGTH_DIGITS
        # At most one. It is looked up by its hash: the time that a comparison takes says how far two tokens are equal,
        # and a proxy may send the requests of several clients over one connection.
        self._heads: dict[tuple[bytes, bytes], Scope] = {}
        self._length_start = 0
        self._misses = 0

    @property
    def is_useful(self) -> bool:
        """True while heads are kept."""
        return self._misses < MAX_MISSES

    def find(self, data: bytes) -> tuple[Scope, bytes] | None:
        """Return scope and body of a request, if ``data`` is all of it and has the head that is kept.

        Args:
            data: What has arrived after the message before.
        """
        if not self._heads:
            return None
        start = self._length_start
        length_end, head_end = data.find(b"\r", start), data.find(HEAD_END, start) + len(HEAD_END)
        scope = self._heads.get((data[:start], data[length_end:head_end]))
        if scope is None:
            return None
        digits = data[start:length_end]
        if len(digits) > MAX_LENGTH_DIGITS or not digits.isdigit() or int(digits) != len(data) - head_end:
            return None
        self._misses = 0
        return scope, data[head_end:]

    def keep(self, data: bytes, exchange: DirectExchange) -> None:
        """Keep the head of a request in place of the one before, if ``data`` is all of the request.

        Args:
            data: What has arrived after the message before.
            exchange: The request that was parsed last, after its checks.
        """
        self._misses += 1
        self._heads.clear()
        scope = cast("Scope", exchange.scope)
        # Without their result it was refused, and the next one may not be.
        if not exchange.keep_alive or CHECKS_KEY not in scope:
            return
        head = data[: data.find(HEAD_END) + len(HEAD_END)]
        headers = scope["headers"]
        names = {name for name, _ in headers}
        length = _find_length(head)
        if (
            length is not None
            and len(head) <= self._max_bytes
            # Nothing else is in the data, of which the scope might be.
            and int(length[1]) == len(data) - len(head)
            # The parser has seen the same lines: one for the target, one for each field, and the empty one.
            and head.count(b"\r\n") == head.count(b"\n") == len(headers) + 2
            and len(names) == len(headers)
            and names.isdisjoint(_UNUSUAL_FIELDS)
        ):
            self._length_start = length.start(1)
            others = [field for field in headers if field[0] != b"content-length"]
            key = head[: length.start(1)], head[length.end(1) :]
            self._heads[key] = {**scope, "headers": others}
            self._heads[key].pop(FIELDS_KEY, None)


class CheckedHeads:
    """The checks of the heads of one connection that bypass ASGI.

    A request that equals the one before in all that the checks of origin and token depend on takes over their result.
    """

    __slots__ = ("_previous", "_target")

    def __init__(self) -> None:
        self._previous: Scope | None = None
        self._target = b""

    def create_scope(self, target: bytes, headers: list[tuple[bytes, bytes]], client: tuple[str, int] | None) -> Scope:
        """Return what ASGI says of a request, as far as its answer depends on it, with the checks if they are known."""
        scope: Scope = {"type": "http", "method": "POST", "headers": headers, "client": client}
        previous = self._previous
        if previous is not None and target == self._target and CHECKS_KEY in previous and _is_alike(scope, previous):
            scope["path"], scope[CHECKS_KEY] = previous["path"], previous[CHECKS_KEY]
        else:
            scope["path"] = target.decode("ascii")
        self._previous, self._target = scope, target
        return scope


def _is_alike(scope: Scope, previous: Scope) -> bool:
    """Return whether two requests for one target are equal in what the checks of origin and token depend on."""
    fields, others = header_fields(scope), header_fields(previous)
    return (
        # Of several fields with one name, only the first is compared here.
        len(fields) == len(scope["headers"])
        and len(others) == len(previous["headers"])
        and fields.get(b"host") == others.get(b"host")
        and fields.get(b"origin") == others.get(b"origin")
        # The time says nothing about the token of the other request, which a proxy may have sent for somebody else.
        and hmac.compare_digest(fields.get(b"authorization", b""), others.get(b"authorization", b""))
    )


class DirectConnection(Protocol):
    """The connection of an exchange, as far as it needs to know it; see :class:`.HttpProtocol`."""

    @property
    def transport(self) -> asyncio.Transport: ...
    @property
    def flow(self) -> FlowControl: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def tasks(self) -> set[asyncio.Task[None]]: ...

    def default_lines(self) -> bytes: ...

    def write_whole(self, response: bytes) -> None: ...

    def continue_connection(self) -> None: ...


class DirectExchange(RequestResponseCycle):
    """One request and its response, in the place of uvicorn's cycle, which hands them to an ASGI application.

    To the middleware it is the receive function of the request, its sender and its task in one.

    Attributes:
        status: Status of the response; 0 before it has begun.
        headers: Headers added to the response.
        request_id: The id that the response carries.
        sent_bytes: Bytes of its body.
    """

    # Defaults of the class: most requests change few of them.
    disconnected = response_started = response_complete = False
    more_body = True
    status = sent_bytes = 0
    headers: Headers = ()
    request_id = ""
    _protocol: DirectConnection | None
    _chunks: list[bytes]
    _chunk_bytes = 0
    # What the coroutine waits for: more of the body, or anything else.
    _arrival: asyncio.Future[None] | None = None
    _awaited: asyncio.Future[Any] | None = None
    _coroutine: Coroutine[Any, Any, None] | None = None
    _is_cancelled = False

    def __init__(self, protocol: DirectConnection, scope: Scope, *, keep_alive: bool, expects_continue: bool) -> None:
        """Create the exchange when the head of its request has arrived.

        Args:
            protocol: The connection.
            scope: What ASGI says of the request.
            keep_alive: Whether the connection may go on after the response.
            expects_continue: Whether the client waits for a response of the status 100 before it sends the body.
        """
        # Without the constructor of the base class, which asks for what only ASGI needs.
        self.scope = scope  # type: ignore[assignment]
        self.flow = protocol.flow
        self.keep_alive = keep_alive
        self.waiting_for_100_continue = expects_continue
        self._protocol = protocol
        self._chunks = []

    @property
    def message_event(self) -> asyncio.Event:  # type: ignore[override]
        """Something whose ``set`` tells the exchange to look again, for uvicorn."""
        return cast("asyncio.Event", self)

    def set(self) -> None:
        """Note that the body has gone on, or that the client has left."""
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def feed(self, chunk: bytes) -> None:
        """Take a part of the body."""
        self._chunks.append(chunk)
        self._chunk_bytes += len(chunk)
        if self._chunk_bytes > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        self.set()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Answer the request by a coroutine, which is run up to where it has to wait before this returns."""
        assert self._protocol is not None, "an exchange is started once"
        self._coroutine = coroutine
        self._protocol.tasks.add(cast("asyncio.Task[None]", self))
        self._continue(None)

    def cancel(self, msg: object = None) -> bool:
        """Cancel the coroutine, as a task does it; return whether it had not ended."""
        if self._coroutine is None:
            return False
        if self._awaited is None or not self._awaited.cancel():
            # It is about to go on, or runs right now.
            self._is_cancelled = True
        return True

    def uncancel(self) -> int:
        """Return 0: a cancellation that the coroutine has caught is over, as with a task."""
        return 0

    def take_body(self) -> bytes | None:
        """Return the whole body if it has arrived, which happens once; None if more is to come."""
        chunks = self._chunks
        if self.more_body or self.disconnected or len(chunks) > 1:
            return None
        self._chunks = []
        return chunks[0] if chunks else b""

    async def receive(self) -> Message:  # type: ignore[override]
        """Return the part of the body that has arrived, once there is one, as ASGI has it."""
        protocol = self._protocol
        assert protocol is not None, "the body is read before the exchange ends"
        if self.waiting_for_100_continue and not protocol.transport.is_closing():
            protocol.transport.write(CONTINUE)
        self.waiting_for_100_continue = False
        if self.more_body and not self._chunks and not self.disconnected:
            self.flow.resume_reading()
            self._arrival = protocol.loop.create_future()
            try:
                await self._arrival
            finally:
                self._arrival = None
        if self.disconnected or self.response_complete:
            return {"type": "http.disconnect"}
        chunks = self._chunks
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._chunks, self._chunk_bytes = [], 0
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send_response(self, response: RawResponse) -> None:
        """Write a whole response; called once."""
        self.status, self.sent_bytes = response.status, len(response.body)
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if not self.disconnected:
            self._write(response)

    def _write(self, response: RawResponse) -> None:
        protocol = self._protocol
        assert protocol is not None, "a response is written before the exchange ends"
        self.response_started = True
        if response.headers.get("Connection") == "close":
            self.keep_alive = False
        elif not self.keep_alive:
            response = response._replace(headers={**response.headers, "Connection": "close"})
        lines = b""
        for field in self.headers:
            lines += b"%b: %b\r\n" % field
        for name, value in response.headers.items():
            lines += f"{name.lower()}: {value}\r\n".encode()
        protocol.write_whole(
            b"%bcontent-length: %d\r\nx-request-id: %b\r\ncontent-type: %b\r\n%b%b\r\n%b"
            % (
                STATUS_LINE[response.status],
                len(response.body),
                self.request_id.encode(),
                response.media_type.encode(),
                protocol.default_lines(),
                lines,
                response.body,
            )
        )
        self.response_complete = True
        if not self.keep_alive:
            protocol.transport.close()
        protocol.continue_connection()

    def _continue(self, future: asyncio.Future[Any] | None) -> None:
        """Run the coroutine up to where it has to wait again; what it has waited for is done."""
        coroutine = self._coroutine
        assert coroutine is not None, "the coroutine has ended"
        self._awaited = None
        try:
            if self._is_cancelled:
                self._is_cancelled = False
                awaited = coroutine.throw(asyncio.CancelledError())
            else:
                # The future itself, as which the coroutine waits, returns its result or raises its exception.
                awaited = coroutine.send(None)
        except StopIteration:
            self._end()
        except BaseException as error:
            self._fail(error)
            self._end()
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
        else:
            if awaited is None:
                # asyncio.sleep(0).
                asyncio.get_running_loop().call_soon(self._continue, None)
                return
            awaited._asyncio_future_blocking = False
            awaited.add_done_callback(self._continue)
            self._awaited = awaited
            if self._is_cancelled and awaited.cancel():
                self._is_cancelled = False

    def _end(self) -> None:
        assert self._protocol is not None, "an exchange ends once"
        self._protocol.tasks.discard(cast("asyncio.Task[None]", self))
        # The protocol references its last exchange; break the reference cycles.
        self._coroutine = self._protocol = None

    def _fail(self, error: BaseException) -> None:
        """Answer where the coroutine has raised, which it only does if it was cancelled or has an error."""
        if not isinstance(error, asyncio.CancelledError):
            logger.error("a request could not be answered", exc_info=error)
        if self.response_started:
            assert self._protocol is not None, "it has not ended"
            self._protocol.transport.close()
        elif not self.disconnected:
            self._write(FAILED)


def closing_response(response: RawResponse, default_headers: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return the bytes of a response that ends its connection."""
    headers = {
        "Content-Type": response.media_type,
        "Content-Length": str(len(response.body)),
        **response.headers,
        "Connection": "close",
    }
    fields = [*default_headers, *((name.encode(), value.encode()) for name, value in headers.items())]
    lines = (b"%b: %b\r\n" % field for field in fields)
    return b"".join((STATUS_LINE[response.status], *lines, b"\r\n", response.body))
