"""A request in flight: its body, and the memory that the bodies of all of them may take together.

The types of ASGI are here, too: scopes, messages, and the functions that pass messages.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, MutableMapping
from typing import Any, Protocol

from starlette.requests import HTTPConnection
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from stablernn_runtime.served_model import ServedModel
from stablernn_server.auth import NOBODY, Identity
from stablernn_server.batching.types import InferenceResult
from stablernn_server.codecs.json_values import whole_number
from stablernn_server.errors import BusyError, ClientGoneError, InputError, ServerError, TooLargeError, cut

FIELDS_KEY = "stablernn.fields"
"""Key of the scope under which :func:`header_fields` leaves the fields."""
DECOMPRESSED_BYTES = 4 * 2**20
"""Bytes of a compressed body that come out at a time, and are counted before more do."""
UNPARSED_SHARE = 0.125
"""Share of ``max_held_bytes`` for requests behind those in flight."""
SCOPE_KEY = "stablernn"
"""Key of the ASGI scope under which the middleware leaves the request for the routes."""
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = tuple[tuple[bytes, bytes], ...]
ASGIApplication = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]


class Cancellable(Protocol):
    """A task that answers a request, or a coroutine that runs without one."""

    def cancel(self) -> bool: ...

    def uncancel(self) -> int: ...


class Sender(Protocol):
    """The sender of the response to a request, as the request sees it."""

    @property
    def status(self) -> int:
        """Status of the response; 0 before it has begun."""
        ...


class ActiveRequest:
    """One request or WebSocket from its first byte to its response, with what the access log and the metrics report.

    Attributes:
        receive: The receive function of the ASGI call.
        task: The task, or the like, that answers it.
        arrived_at: When it arrived, on the clock of ``time.perf_counter``.
        whole_body: The body, if it had arrived when the work on the request began, until it is read.
        request_id: For logs, and for the client.
        identity: Who sent it.
        client: What tells its client from others, for limits.
        forwarded_for: The address for which it counts as in flight; empty if it counts for none.
        sender: Sends the response; None where the request is not a plain one.
        is_read: Whether the whole body has arrived.
        content_length: Bytes of the body; None where only the head says how many.
        body_read_at: When the whole body had arrived and work could begin, on the clock of :attr:`arrived_at`.
        held_bytes: Bytes of its body in memory.
        abort_reason: Why the server aborted it; None if it did not.
        model: The model that answers.
        error_code: Code of the error that it was answered with.
        rows: Sequences or streams in it.
        queue_ns: Nanoseconds that it waited for a run.
        compute_ns: Nanoseconds of the run.
        batch_rows: Sequences or streams in the run, those of other requests included.
    """

    # Defaults of the class: most requests change few of them.
    request_id = client = forwarded_for = ""
    identity: Identity = NOBODY
    sender: Sender | None = None
    is_read = False
    content_length: int | None = None
    body_read_at: float | None = None
    abort_reason: ServerError | None = None
    model: ServedModel | None = None
    error_code: str | None = None
    held_bytes = rows = queue_ns = compute_ns = batch_rows = 0

    def __init__(
        self, receive: Receive, task: Cancellable | None, arrived_at: float, whole_body: bytes | None = None
    ) -> None:
        self.receive = receive
        self.task = task
        self.arrived_at = arrived_at
        self.whole_body = whole_body

    @property
    def needs_body(self) -> bool:
        """Return whether more of the body must arrive: the response has not begun, and may depend on it."""
        return not self.is_read and not (self.sender is not None and self.sender.status)

    def abort(self, reason: ServerError) -> None:
        """Cancel the task, so that the request is answered with ``reason``; the first reason counts."""
        if self.abort_reason is None and self.task is not None:
            # Set before the cancellation: by it, the middleware tells an abort from a cancellation by somebody else.
            self.abort_reason = reason
            self.task.cancel()

    def is_gone(self) -> bool:
        """Return whether the client has closed the connection; must not be called before the body is read.

        For an HTTP server that does not tell, ``receive`` is run up to the point where it would wait, which costs less
        than a task that waits for it.
        """
        try:
            is_closed = has_disconnected(self.receive)
            if is_closed is not None:
                return is_closed
            waiting = self.receive()
            waiting.send(None)  # type: ignore[attr-defined]
        except StopIteration as message:
            # The coroutine returned a message without waiting.
            return bool(message.value["type"] == "http.disconnect")
        except Exception:
            # Whatever is wrong with the connection, its own request will meet it; here it would stop all others' work.
            return False
        waiting.close()  # type: ignore[attr-defined]
        return False

    def record_result(self, result: InferenceResult, rows: int) -> None:
        """Note the times and the batch of its inference for the log and the metrics."""
        self.queue_ns, self.compute_ns = result.queue_ns, result.compute_ns
        self.rows, self.batch_rows = rows, result.batch_rows


class RequestBudget:
    """Bytes of request bodies and frames in memory, with a limit for all of them together. For the event loop alone.

    Attributes:
        limit: Bytes above which more is refused.
        held_bytes: Bytes of the bodies and frames in flight and still arriving.
        unparsed_bytes: Of these, bytes of requests behind one in flight.
    """

    __slots__ = ("held_bytes", "limit", "unparsed_bytes")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held_bytes = self.unparsed_bytes = 0

    def hold(self, request: ActiveRequest, count: int) -> None:
        """Count ``count`` more bytes for a request.

        Raises:
            BusyError: If that makes more than the limit; the bytes are counted all the same.
        """
        request.held_bytes += count
        self.count(count)

    def release(self, request: ActiveRequest, count: int) -> None:
        """Take ``count`` bytes off what :meth:`hold` counted for a request."""
        request.held_bytes -= count
        self.held_bytes -= count

    def count(self, change: int) -> None:
        """Count bytes that a connection holds before they are a request, such as a frame that is still arriving.

        Args:
            change: Bytes more than before; negative for fewer.

        Raises:
            BusyError: If that makes more than the limit; the bytes are counted all the same.
        """
        self.held_bytes += change
        if change > 0 and self.held_bytes > self.limit:
            raise BusyError(f"The server holds {self.limit} bytes of other requests; try again later.")

    def check_alone(self, size: int) -> None:
        """Raise if one body or frame is above the limit whatever others hold.

        Args:
            size: Its bytes, with those of the arrays that it is read into.

        Raises:
            TooLargeError: If it is.
        """
        if size > self.limit:
            raise TooLargeError(
                f"The request needs {size} bytes, with the arrays that its JSON is read into, and max_held_bytes is "
                f"{self.limit}; send fewer or shorter series at a time, or raise this setting of the server."
            )

    def count_unparsed(self, change: int) -> None:
        """Count bytes of requests behind one in flight, as :meth:`count` does; they have a share of the limit."""
        self.unparsed_bytes += change
        self.count(change)
        if change > 0 and not self.has_room_behind:
            raise BusyError("The server holds too many bytes of requests that were sent ahead; try again later.")

    @property
    def has_room_behind(self) -> bool:
        """True while requests behind those in flight take no more than their share."""
        return self.unparsed_bytes <= UNPARSED_SHARE * self.limit


def get_request(connection: HTTPConnection) -> ActiveRequest:
    """Return the request that the middleware put into the scope."""
    request: ActiveRequest = connection.scope[SCOPE_KEY]
    return request


def has_disconnected(receive: Callable[..., Any]) -> bool | None:
    """Return whether the client of a request that is not answered yet has closed the connection.

    Args:
        receive: The receive function of the ASGI call.

    Returns:
        None if it is not one of uvicorn: then only the next message can tell.
    """
    cycle = getattr(receive, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle):
        return None
    # Nothing is read behind a large body whose end came at once, and a connection that is not read is not seen to end.
    cycle.flow.resume_reading()
    return cycle.disconnected


def header_fields(scope: Scope) -> Mapping[bytes, bytes]:
    """Return the header fields of a request by their names in lower case; of several with one name, the first."""
    fields: Mapping[bytes, bytes] | None = scope.get(FIELDS_KEY)
    if fields is None:
        fields = scope[FIELDS_KEY] = dict(reversed(scope["headers"]))
    return fields


def receive_at_once(body: bytes) -> Receive:
    """Return a receive function that returns ``body`` as a whole."""

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    return receive


async def read_body(scope: Scope, receive: Receive, limit: int, hold: Callable[[int], None]) -> bytes:
    """Return the whole body, decompressed.

    Args:
        scope: The scope of the ASGI call.
        receive: Its receive function.
        limit: Bytes that the body may have, compressed or not; more is refused before it is held.
        hold: Called with the size of each chunk; may raise.

    Raises:
        TooLargeError: As soon as the length is known to be above the limit.
        InputError: If its Content-Encoding is not supported, or its data is not in it.
        ClientGoneError: If the client closed the connection.
    """
    fields = header_fields(scope)
    length_field, encoding_field = fields.get(b"content-length"), fields.get(b"content-encoding")
    content_length = None if length_field is None else whole_number(length_field.decode("latin-1"))
    encoding = "identity" if encoding_field is None else encoding_field.decode("latin-1").strip().lower()
    if encoding not in ("identity", "gzip", "x-gzip", "deflate"):
        raise InputError(
            f"The Content-Encoding '{cut(encoding)}' is not supported; send gzip, deflate or an uncompressed body."
        )
    if content_length is not None and content_length > limit:
        raise body_too_large(limit)
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGoneError("The client closed the connection before the body was complete.")
        chunk = message.get("body", b"")
        if chunk:
            size += len(chunk)
            # Content-Length may be missing (a body in chunks), so that the limit counts what has arrived.
            if size > limit:
                raise body_too_large(limit)
            hold(len(chunk))
            chunks.append(chunk)
        if not message.get("more_body", False):
            break
    body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
    if encoding == "identity":
        return body
    chunks, pieces = [], decompress(body, encoding, limit)
    while (chunk := await asyncio.to_thread(next, pieces, None)) is not None:
        hold(len(chunk))
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def decompress(body: bytes, encoding: str, limit: int) -> Iterator[bytes]:
    """Yield a compressed body as it was before, in pieces.

    Args:
        body: The compressed bytes.
        encoding: ``gzip``, ``x-gzip`` or ``deflate``; the last with its header (RFC 9110) or without, as some send it.
        limit: Bytes that may come out; nothing beyond them is produced.

    Yields:
        At most :data:`DECOMPRESSED_BYTES` at a time.

    Raises:
        TooLargeError: If more would come out.
        InputError: If it is not in this encoding, ends too early, or goes on after the end.
    """
    if encoding != "deflate":
        # 16 asks zlib for the header and the checksum of gzip.
        window = 16 + zlib.MAX_WBITS
    else:
        # The header of zlib: 8 for the method, and two bytes that are a multiple of 31. A negative window: no header.
        has_header = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0
        window = zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS
    stream = zlib.decompressobj(window)
    size, remaining = 0, body
    while True:
        try:
            # One byte beyond the limit is enough to tell that there is more.
            piece = stream.decompress(remaining, min(DECOMPRESSED_BYTES, limit + 1 - size))
        except zlib.error as error:
            raise InputError(
                f"The body is not {encoding} data ({error}); send it as its Content-Encoding says."
            ) from error
        size += len(piece)
        if size > limit:
            raise body_too_large(limit)
        if not piece:
            break
        yield piece
        remaining = stream.unconsumed_tail
    if body and (not stream.eof or stream.unused_data):
        relation = "goes on after" if stream.eof else "ends before"
        raise InputError(f"The body {relation} the end of its {encoding} data; send exactly one complete stream.")


def body_too_large(limit: int) -> TooLargeError:
    """Return the error for a body, or its JSON, above ``limit`` bytes."""
    return TooLargeError(f"The body is longer than the limit of {limit} bytes; send fewer or shorter series at a time.")
