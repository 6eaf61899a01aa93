"""What the routes of one application share: models, workers, and the requests in hand."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

import anyio
import anyio.to_thread
import orjson
from anyio import CancelScope, CapacityLimiter
from fastapi import Request, Response

from stablernn_server.body import body_chunks
from stablernn_server.errors import (
    BusyError,
    InputError,
    NotReadyError,
    ReadTimeoutError,
    TooLargeError,
)
from stablernn_server.runtime.cpus import available_cpus
from stablernn_server.runtime.session import Stop
from stablernn_server.runtime.table import ModelTable
from stablernn_server.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")

NOT_READY = "The server is starting or shutting down; try again later."
READ_GRACE_SECONDS = 2.0
"""How long a body may still arrive after the server was told to stop; its request has not been worked on yet."""


@dataclass(eq=False)
class InHand:
    """One request with a body, from its first byte to its answer.

    Attributes:
        request: The request.
        scope: Ends it when the server stops.
        is_read: Whether the whole body is here.
        held_bytes: Bytes of its body.
    """

    request: Request
    scope: CancelScope = field(default_factory=CancelScope)
    is_read: bool = False
    held_bytes: int = 0


@dataclass(eq=False)
class Context:
    """One application's models and the workers that run them.

    Attributes:
        settings: What the server was told.
        models: The open models.
        workers: Bounds the inferences at a time; None before start-up and after shutdown.
        in_hand: The requests with a body that are not answered yet.
        held_bytes: Bytes of the bodies in hand.
        drained_at: When the last request is ended, on the clock of the event loop; None until the server is told to
            stop.
    """

    settings: Settings
    models: ModelTable
    workers: CapacityLimiter | None = None
    in_hand: set[InHand] = field(default_factory=set)
    held_bytes: int = 0
    drained_at: float | None = None

    def start(self) -> None:
        """Let requests in."""
        self.workers = CapacityLimiter(self.settings.workers or available_cpus())

    def stop(self) -> None:
        """Let no request in any more."""
        self.workers = None

    def drain(self, grace_seconds: float) -> None:
        """Refuse what is new, and end what is in hand after ``grace_seconds``; called on the event loop.

        A request that is ended answers 503, and its inference is stopped.
        """
        self.drained_at = anyio.current_time() + grace_seconds
        for item in self.in_hand:
            self._limit(item)

    def check_ready(self) -> None:
        """Raise unless requests are let in.

        Raises:
            NotReadyError: Before start-up, while draining and after shutdown.
        """
        if self.workers is None or self.drained_at is not None:
            raise NotReadyError(NOT_READY)

    @asynccontextmanager
    async def take(self, request: Request) -> AsyncIterator[InHand]:
        """Has a request in hand for as long as the block runs.

        Raises:
            NotReadyError: If the server is not ready, or stops before the block has ended.
        """
        self.check_ready()
        item = InHand(request)
        self.in_hand.add(item)
        try:
            with item.scope:
                yield item
        finally:
            self.in_hand.discard(item)
            self.held_bytes -= item.held_bytes
        if item.scope.cancelled_caught:
            raise NotReadyError("The server is shutting down and did not finish this request; send it again.")

    async def read(self, item: InHand, limit: int) -> bytes:
        """The whole body, unless it is longer than ``limit`` bytes, which is noticed before it is held.

        Raises:
            TooLargeError: As soon as the length is known to be above the limit.
            BusyError: If the bodies in hand would hold more than ``max_held_bytes``.
            ReadTimeoutError: If it does not arrive in time.
            InputError: If it is compressed, or the client went away.
        """
        chunks = []
        seconds = self.settings.read_timeout_seconds
        with anyio.move_on_after(seconds) as timer:
            async for chunk in body_chunks(item.request, limit):
                item.held_bytes += len(chunk)
                self.held_bytes += len(chunk)
                if self.held_bytes > self.settings.max_held_bytes:
                    raise BusyError(
                        f"The server holds {self.settings.max_held_bytes} bytes of other requests; try again later."
                    )
                chunks.append(chunk)
        if timer.cancelled_caught:
            raise ReadTimeoutError(f"The body did not arrive within {seconds:g} s; send it faster or in smaller parts.")
        item.is_read = True
        self._limit(item)
        return b"".join(chunks)

    async def work(
        self, item: InHand, function: Callable[Concatenate[Stop, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run ``function`` on a worker thread; decoding, inference and encoding would stop the event loop.

        Args:
            item: The request that it is for.
            function: What to run; its first argument stops an inference from elsewhere.
            args: Its other arguments.
            kwargs: Likewise.

        Raises:
            NotReadyError: After shutdown.
            InputError: If the client went away while the request waited for a worker.
            TooLargeError: If there is not enough memory.
        """
        if self.workers is None:
            raise NotReadyError(NOT_READY)
        stop = Stop()
        async with self.workers:
            if await item.request.is_disconnected():
                raise InputError("The client closed the connection before its turn came.")
            try:
                # The thread is left behind when the request is ended; Stop sees to it that it comes to an end soon.
                return await anyio.to_thread.run_sync(
                    lambda: function(stop, *args, **kwargs), abandon_on_cancel=True, limiter=CapacityLimiter(math.inf)
                )
            except MemoryError as error:
                raise TooLargeError(
                    "The request needs more memory than this server has left; send fewer or shorter series at a time."
                ) from error
            finally:
                stop.set()

    def _limit(self, item: InHand) -> None:
        """While draining, ends a request when the grace is over, or sooner if its body is not even here."""
        if self.drained_at is not None:
            sooner = math.inf if item.is_read else anyio.current_time() + READ_GRACE_SECONDS
            item.scope.deadline = min(self.drained_at, sooner)


def context_of(request: Request) -> Context:
    """The context that :func:`stablernn_server.create_app` put into the application."""
    context: Context = request.app.state.context
    return context


def json_response(content: Any, status: int = 200) -> Response:
    """``content``, numpy arrays included, as a JSON answer; NaN becomes null."""
    return Response(orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY), status, media_type="application/json")
