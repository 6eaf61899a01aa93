"""State that the routes of one application share: settings, models, scheduler, sessions and the requests in flight.

The open WebSockets are here, too, which a server that stops closes with a drain message to each client.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import HTTPConnection

from stablernn_runtime.state_token import StateTokens
from stablernn_server.auth import Auth
from stablernn_server.batching.scheduler import Scheduler
from stablernn_server.batching.types import DEFAULT_PRIORITY, Caller
from stablernn_server.codecs.json_values import DECODED_FACTOR, OFFLOAD_BYTES, parse_object
from stablernn_server.errors import (
    NOT_READY,
    BusyError,
    InputError,
    NotReadyError,
    ReadTimeoutError,
    format_validation_error,
)
from stablernn_server.http.request import (
    ActiveRequest,
    RequestBudget,
    Scope,
    body_too_large,
    header_fields,
    read_body,
    receive_at_once,
)
from stablernn_server.key_files import create_state_tokens
from stablernn_server.model_repository import ModelRepository
from stablernn_server.observability.telemetry import Telemetry
from stablernn_server.observability.tracing import Tracing
from stablernn_server.settings import Settings
from stablernn_server.streams.sessions import SessionTable
from stablernn_server.streams.triton_sequences import SequenceTable

logger = logging.getLogger(__name__)

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)

UNFINISHED = "The server is shutting down and did not finish this request; send it again."
READ_GRACE_SECONDS = 2.0
"""Time that a body may still arrive after the server was asked to stop; its request is not in work yet."""
SWEEP_SECONDS = 0.25
"""Interval at which requests whose body does not arrive, and runs whose clients have gone, are looked for."""


class RegisteredWebSocket(Protocol):
    """The part of a WebSocket that the registry needs."""

    @property
    def streams(self) -> int:
        """Number of its streams."""
        ...

    async def leave(self) -> None:
        """Send the drain message and close, after the frame in flight."""
        ...

    def end(self) -> None:
        """Answer the frame in flight with an error; called again, give the client up."""
        ...


DRAIN_MESSAGE_SECONDS = 0.5
"""Time for the drain messages of sockets whose frame was ended."""


class WebSocketRegistry:
    """The open WebSockets of one application."""

    def __init__(self) -> None:
        self._open: set[RegisteredWebSocket] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def streams(self) -> int:
        """Number of streams on all WebSockets."""
        return sum(socket.streams for socket in self._open)

    def add(self, socket: RegisteredWebSocket) -> None:
        """Register an open WebSocket."""
        self._open.add(socket)

    def remove(self, socket: RegisteredWebSocket) -> None:
        """Forget a WebSocket; does nothing if it is not registered."""
        self._open.discard(socket)

    async def drain(self, grace_seconds: float) -> None:
        """Send every client the tokens of its streams and close its WebSocket, after the frame in flight.

        Args:
            grace_seconds: Time for a frame in flight, and for the client to read its answer. After it the frame is
                ended, and a client that still does not read half a second later is left behind.
        """
        tasks = {asyncio.create_task(socket.leave()): socket for socket in self._open}
        if not tasks:
            return
        late = set(tasks)
        # The first `end` answers the frame with an error, after which the drain message follows; the second gives up.
        for seconds in (grace_seconds, DRAIN_MESSAGE_SECONDS):
            if late:
                _, late = await asyncio.wait(late, timeout=seconds)
            for task in late:
                tasks[task].end()
        for task in late:
            task.cancel()
        # Exceptions are those of clients that have disconnected, which is no error here.
        await asyncio.gather(*tasks, return_exceptions=True)


class AddressLimit(Protocol):
    """A limit on the requests in flight of each address; see :class:`.ConnectionTable`."""

    def add_request(self, address: str) -> None: ...

    def remove_request(self, address: str) -> None: ...


@dataclass(eq=False)
class AppContext:
    """Models of one application, and everything that works on them.

    Attributes:
        settings: The server's settings.
        models: The open models.
        auth: Checks who may ask for what.
        telemetry: Metrics and statistics.
        scheduler: Runs inference.
        sessions: Streams whose state the server keeps, by session.
        sequences: Streams of the v2 protocol, by sequence.
        state_keys: Signs state tokens, and verifies those that come back.
        budget: Memory of the bodies and frames in flight.
        tracing: Spans of requests; None if traces are off.
        sockets: The open WebSockets.
        in_flight: Requests that are not answered yet.
        forwarded: Limit on the requests that trusted proxies forward for one address; None without such proxies.
        is_started: Whether :meth:`start` was called, and :meth:`stop` was not.
        loop: The event loop of the application; None before it starts.
        drain_deadline: When the last request is aborted, on the clock of the event loop; None until the server is told
            to stop.
    """

    settings: Settings
    models: ModelRepository
    auth: Auth
    telemetry: Telemetry
    scheduler: Scheduler
    sessions: SessionTable
    sequences: SequenceTable
    state_keys: StateTokens
    budget: RequestBudget
    tracing: Tracing | None = None
    sockets: WebSocketRegistry = field(default_factory=WebSocketRegistry)
    in_flight: set[ActiveRequest] = field(default_factory=set)
    forwarded: AddressLimit | None = None
    is_started: bool = False
    loop: asyncio.AbstractEventLoop | None = None
    drain_deadline: float | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @classmethod
    def open(cls, settings: Settings, answering: Mapping[str, int] | None = None) -> AppContext:
        """Read the tokens and keys, and open the models, as :meth:`.ModelRepository.open` does.

        Raises:
            ServerError: If a setting is not valid, or a model cannot be served.
            stablernn_registry.RegistryError: If a reference names nothing, or the registry cannot be read.
        """
        # Tokens, key and collector first: opening models takes long, and a mistake in these is found at once.
        auth, state_keys, tracing = Auth.from_settings(settings), create_state_tokens(settings), Tracing.open(settings)
        telemetry = Telemetry(settings)
        return cls(
            settings,
            ModelRepository.open(settings, telemetry, answering),
            auth,
            telemetry,
            Scheduler(settings, telemetry),
            SessionTable(settings),
            SequenceTable(settings),
            state_keys,
            RequestBudget(settings.max_held_bytes),
            tracing,
        )

    def start(self) -> None:
        """Start the background tasks and admit requests; must be called on the event loop."""
        self.loop = asyncio.get_running_loop()
        self.models.start_trials()
        self.scheduler.start()
        self._tasks = [asyncio.create_task(self._sweep_forever())]
        if self.settings.reload_seconds:
            self._tasks.append(asyncio.create_task(self._follow_aliases()))
        self.is_started = True

    async def stop(self) -> None:
        """Admit no more requests, and stop the background tasks and the scheduler."""
        self.is_started = False
        self.models.stop_trials()
        for task in self._tasks:
            task.cancel()
        # Joins threads.
        await asyncio.to_thread(self.scheduler.stop())
        self.telemetry.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    def drain(self, grace_seconds: float) -> None:
        """Refuse new requests, and abort those in flight after ``grace_seconds``; must be called on the event loop.

        An aborted request is answered with 503, and its inference is stopped. First openings in other processes are
        stopped at once: the threads that wait for them would keep this process from ending.
        """
        self.models.stop_trials()
        loop = asyncio.get_running_loop()
        self.drain_deadline = loop.time() + grace_seconds
        loop.call_later(min(READ_GRACE_SECONDS, grace_seconds), self._abort_requests, True)
        loop.call_at(self.drain_deadline, self._abort_requests, False)

    def _abort_requests(self, unread_only: bool) -> None:
        for request in list(self.in_flight):
            if request.needs_body or not unread_only:
                request.abort(NotReadyError(UNFINISHED))

    @property
    def is_ready(self) -> bool:
        """Return whether requests are admitted."""
        return self.is_started and self.drain_deadline is None

    def check_ready(self) -> None:
        """Raise unless requests are admitted.

        Raises:
            NotReadyError: Before start-up, while draining and after shutdown.
        """
        if not self.is_ready:
            raise NotReadyError(NOT_READY)

    def count_forwarded(self, request: ActiveRequest, scope: Scope) -> None:
        """Count a request for the address that a trusted proxy names until :meth:`finish`.

        Raises:
            BusyError: If the address has too many in flight.
        """
        client = scope.get("client")
        if self.forwarded is not None and client:
            self.forwarded.add_request(client[0])
            request.forwarded_for = client[0]

    def admit(self, request: ActiveRequest) -> None:
        """Count a request as in flight until :meth:`finish`.

        Raises:
            NotReadyError: If the server is not ready.
        """
        self.check_ready()
        self.in_flight.add(request)

    def finish(self, request: ActiveRequest) -> None:
        """Note that a request is answered, and release the memory of its body."""
        self.in_flight.discard(request)
        if self.forwarded is not None and request.forwarded_for:
            self.forwarded.remove_request(request.forwarded_for)
        if request.held_bytes:
            self.budget.release(request, request.held_bytes)

    async def read_body(self, request: ActiveRequest, scope: Scope, limit: int) -> bytes:
        """Return the whole body, decompressed; a body above ``limit`` bytes is refused before it is held.

        Raises:
            TooLargeError: As soon as the length is known to be above the limit, or ``max_held_bytes``.
            BusyError: If the bodies in flight would hold more than ``max_held_bytes``.
            ReadTimeoutError: If it does not arrive in time.
            InputError: If its Content-Encoding is not supported.
            ClientGoneError: If the client closed the connection.
        """
        body, request.whole_body = request.whole_body, None
        if body is None or b"content-encoding" in header_fields(scope):
            receive = request.receive if body is None else receive_at_once(body)
            body = await read_body(scope, receive, limit, partial(self._hold, request))
        elif len(body) > limit:
            raise body_too_large(limit)
        else:
            self._hold(request, len(body))
        request.is_read, request.body_read_at = True, time.perf_counter()
        return body

    async def decode(
        self, request: ActiveRequest, body: bytes, decode: Callable[[], T], json_length: int | None = None
    ) -> T:
        """Return ``decode()``, on a thread if the body is large; the arrays of a large JSON count as held.

        Args:
            request: The request.
            body: Its body.
            decode: Parses it.
            json_length: Bytes of JSON at the beginning of the body; default: all.

        Raises:
            BusyError: If that makes more than ``max_held_bytes``.
            TooLargeError: If it does so without other requests.
        """
        if len(body) <= OFFLOAD_BYTES:
            return decode()
        json_length = len(body) if json_length is None else json_length
        if json_length > OFFLOAD_BYTES:
            self._hold(request, DECODED_FACTOR * json_length)
        return await asyncio.to_thread(decode)

    async def read_json(
        self, request: ActiveRequest, scope: Scope, schema: type[Body], *, is_optional: bool = False
    ) -> tuple[Body, int]:
        """Return a checked JSON body, and its size in bytes.

        Args:
            request: The request.
            scope: The scope of the ASGI call.
            schema: The model of the body.
            is_optional: Whether a body that is empty stands for an empty object.

        Raises:
            InputError: If the body is not JSON, or not of the schema.
            ServerError: As :meth:`read_body` and :meth:`decode`.
        """
        content = await self.read_body(request, scope, self.settings.json_limit)
        text = b"{}" if is_optional and not content else content
        return await self.decode(request, content, lambda: parse_body(text, schema)), len(content)

    def _hold(self, request: ActiveRequest, count: int) -> None:
        try:
            self.budget.hold(request, count)
        except BusyError:
            # It would be refused however often it is sent again.
            self.budget.check_alone(request.held_bytes)
            raise

    def create_caller(
        self, request: ActiveRequest, timeout_us: int | None = None, priority: int | None = None
    ) -> Caller:
        """Return what the scheduler must know of the client; its time counts from the arrival of the whole body.

        Args:
            request: The request.
            timeout_us: Microseconds that it gives the server; None, 0 or more than the server's own limit: that limit.
            priority: 1 is served first; None or 0: the default.
        """
        seconds = self.settings.request_timeout_seconds
        if timeout_us:
            seconds = min(seconds, timeout_us / 1e6)
        seconds -= time.perf_counter() - (request.body_read_at or request.arrived_at)
        # Asking asyncio for the loop is a system call.
        now = (self.loop or asyncio.get_running_loop()).time()
        return Caller(request.client, now + seconds, request.is_gone, priority or DEFAULT_PRIORITY)

    async def _follow_aliases(self) -> None:
        while True:
            await asyncio.sleep(self.settings.reload_seconds)
            try:
                await self.models.follow_aliases()
            except Exception:
                # Whatever it is, served models go on answering, and the next attempt may find it gone.
                logger.exception("the served aliases could not be looked up")

    async def _sweep_forever(self) -> None:
        seconds = self.settings.read_timeout_seconds
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, seconds / 4))
            self.scheduler.drop_abandoned()
            self.sessions.drop_gone_clients()
            self.sequences.drop_gone_clients()
            self.models.close_unused()
            self.telemetry.flush()
            sessions = len(self.sessions) + len(self.sequences)
            self.telemetry.set_load(self.scheduler.pending, sessions, self.sockets.streams)
            # In a function of its own: a request that a variable of this loop names would keep its model alive until
            # the next one, for hours on a quiet server.
            self._abort_slow_bodies(seconds)

    def _abort_slow_bodies(self, seconds: float) -> None:
        now = time.perf_counter()
        for request in list(self.in_flight):
            if request.needs_body and now - request.arrived_at > seconds:
                request.abort(
                    ReadTimeoutError(
                        f"The body did not arrive within {seconds:g} s; send it faster or in smaller parts."
                    )
                )


def parse_body(content: bytes, schema: type[Body]) -> Body:
    """Return a checked JSON body.

    Raises:
        InputError: If it is not JSON, or not of the schema.
    """
    try:
        return schema.model_validate(parse_object(content))
    except ValidationError as error:
        raise InputError(format_validation_error(error, "the body")) from error


def get_context(connection: HTTPConnection) -> AppContext:
    """Return the context that :func:`stablernn_server.create_app` put into the application."""
    context: AppContext = connection.app.state.context
    return context
