"""A request in flight, and the memory that the bodies of all of them may take together."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.requests import HTTPConnection

from stablernn_runtime.served_model import ServedModel
from stablernn_server.batching.types import InferenceResult
from stablernn_server.errors import BusyError, ServerError
from stablernn_server.http.asgi import Receive
from stablernn_server.http.write_coalescing import has_disconnected
from stablernn_server.security.auth import NOBODY, Identity

SCOPE_KEY = "stablernn"
"""Key of the ASGI scope under which the middleware leaves the request for the routes."""


@dataclass(eq=False, slots=True)
class ActiveRequest:
    """One request or WebSocket from its first byte to its response, with what the access log and the metrics report.

    Attributes:
        receive: The receive function of the ASGI call.
        task: The task that answers it.
        arrived_at: When it arrived, on the clock of ``time.perf_counter``.
        request_id: For logs, and for the client.
        identity: Who sent it.
        client: What tells its client from others, for limits.
        is_read: Whether the whole body has arrived.
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

    receive: Receive
    task: asyncio.Task[Any] | None
    arrived_at: float
    request_id: str = ""
    identity: Identity = NOBODY
    client: str = ""
    is_read: bool = False
    body_read_at: float | None = None
    held_bytes: int = 0
    abort_reason: ServerError | None = None
    model: ServedModel | None = None
    error_code: str | None = None
    rows: int = 0
    queue_ns: int = 0
    compute_ns: int = 0
    batch_rows: int = 0

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
    """

    __slots__ = ("held_bytes", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held_bytes = 0

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


def get_request(connection: HTTPConnection) -> ActiveRequest:
    """Return the request that the middleware put into the scope."""
    request: ActiveRequest = connection.scope[SCOPE_KEY]
    return request
