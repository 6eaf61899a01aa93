"""What the routes of one application share: models, scheduler, sessions, and the requests in hand."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import HTTPConnection

from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.state_token import StateTokens
from stablernn_server.batching.scheduler import Scheduler
from stablernn_server.batching.types import DEFAULT_PRIORITY, Caller, InferenceResult
from stablernn_server.errors import BusyError, NotReadyError, ReadTimeoutError, ServerError
from stablernn_server.http.body import body_of
from stablernn_server.http.write_coalescing import is_closed
from stablernn_server.observability.telemetry import Telemetry
from stablernn_server.observability.tracing import Tracing
from stablernn_server.repository.model_repository import ModelRepository
from stablernn_server.security.auth import NOBODY, Auth, Identity
from stablernn_server.security.state_key import create_state_tokens
from stablernn_server.settings import Settings
from stablernn_server.streams.sessions import SessionTable
from stablernn_server.streams.triton_sequences import SequenceTable
from stablernn_server.streams.websocket_registry import WebSocketRegistry

logger = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

NOT_READY = "The server is starting or shutting down; try again later."
UNFINISHED = "The server is shutting down and did not finish this request; send it again."
READ_GRACE_SECONDS = 2.0
"""How long a body may still arrive after the server was told to stop; its request has not been worked on yet."""
SWEEP_SECONDS = 0.25
"""How often requests whose body does not arrive, and runs whose clients have gone, are looked for."""


@dataclass(eq=False, slots=True)
class ActiveRequest:
    """One request, from its first byte to its answer; what the access log and the metrics tell of it.

    Attributes:
        receive: Of the ASGI call.
        task: That answers it.
        since: When it came, on the clock of ``time.perf_counter``.
        request_id: For logs, and for the client.
        identity: Who sent it.
        client: What tells its client from others, for limits.
        is_read: Whether the whole body is here.
        work_since: When the server could begin with it, on the clock of :attr:`since`: its body had arrived.
        held_bytes: Bytes of its body.
        reason: Why the server ended it; None where it did not.
        model: That answered.
        code: The code word of its error.
        rows: Sequences or streams in it.
        queue_ns: Nanoseconds that it waited for a run.
        compute_ns: Nanoseconds of the run.
        batch_rows: Sequences or streams in the run, those of others included.
    """

    receive: Receive
    task: asyncio.Task[Any] | None
    since: float
    request_id: str = ""
    identity: Identity = NOBODY
    client: str = ""
    is_read: bool = False
    work_since: float | None = None
    held_bytes: int = 0
    reason: ServerError | None = None
    model: ServedModel | None = None
    code: str | None = None
    rows: int = 0
    queue_ns: int = 0
    compute_ns: int = 0
    batch_rows: int = 0

    def end(self, reason: ServerError) -> None:
        """Answer with ``reason`` instead of what it is waiting for."""
        if self.reason is None and self.task is not None:
            self.reason = reason
            self.task.cancel()

    def is_gone(self) -> bool:
        """Whether the client has closed the connection; only to be asked once the body is read.

        A server that does not tell has its ``receive`` run up to where it would wait, which costs less than a task that
        waits for it.
        """
        try:
            closed = is_closed(self.receive)
            if closed is not None:
                return closed
            waiting = self.receive()
            waiting.send(None)  # type: ignore[attr-defined]
        except StopIteration as message:
            return bool(message.value["type"] == "http.disconnect")
        except Exception:
            # Whatever ails the connection, its own request will meet it; here it would stop the work of all others.
            return False
        waiting.close()  # type: ignore[attr-defined]
        return False

    def answered(self, answer: InferenceResult, rows: int) -> None:
        """Note what came of its work."""
        self.queue_ns, self.compute_ns = answer.queue_ns, answer.compute_ns
        self.rows, self.batch_rows = rows, answer.batch_rows


@dataclass(eq=False)
class AppContext:
    """One application's models and everything that works on them.

    Attributes:
        settings: What the server was told.
        models: The open models.
        auth: Who may ask for what.
        telemetry: What is counted.
        scheduler: Runs the work.
        sessions: The streams whose state is kept here.
        sequences: Likewise, of the v2 protocol.
        state_keys: Signs the states that clients take away, and knows them again.
        tracing: Spans of requests; None where nobody collects them.
        sockets: The open WebSockets.
        in_hand: The requests that are not answered yet.
        held_bytes: Bytes of the bodies and frames in hand and still arriving.
        is_started: Whether requests are let in.
        loop: The event loop that it runs on; None before it starts.
        drained_at: When the last request is ended, on the clock of the event loop; None until the server is told to
            stop.
    """

    settings: Settings
    models: ModelRepository
    auth: Auth
    telemetry: Telemetry
    scheduler: Scheduler
    sessions: SessionTable
    sequences: SequenceTable
    state_keys: StateTokens
    tracing: Tracing | None = None
    sockets: WebSocketRegistry = field(default_factory=WebSocketRegistry)
    in_hand: set[ActiveRequest] = field(default_factory=set)
    held_bytes: int = 0
    is_started: bool = False
    loop: asyncio.AbstractEventLoop | None = None
    drained_at: float | None = None
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @classmethod
    def open(cls, settings: Settings) -> AppContext:
        """Read the tokens and keys, and open the models.

        Raises:
            ServerError: If a setting cannot be taken, or a model cannot be served.
            stablernn_registry.RegistryError: If a reference names nothing, or the registry cannot be read.
        """
        auth, state_keys, tracing = Auth.from_settings(settings), create_state_tokens(settings), Tracing.open(settings)
        telemetry = Telemetry(settings)
        return cls(
            settings,
            ModelRepository.open(settings, telemetry),
            auth,
            telemetry,
            Scheduler(settings, telemetry),
            SessionTable(settings),
            SequenceTable(settings),
            state_keys,
            tracing,
        )

    def start(self) -> None:
        """Let requests in; called on the event loop."""
        self.loop = asyncio.get_running_loop()
        self.models.start_trials()
        self.scheduler.start()
        self._tasks = [asyncio.create_task(self._sweep())]
        if self.settings.reload_seconds:
            self._tasks.append(asyncio.create_task(self._follow()))
        self.is_started = True

    async def stop(self) -> None:
        """Let no request in any more, and end what runs."""
        self.is_started = False
        self.models.stop_trials()
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self.scheduler.stop())
        self.telemetry.close()
        if self.tracing is not None:
            await asyncio.to_thread(self.tracing.close)

    def drain(self, grace_seconds: float) -> None:
        """Refuse what is new, and end what is in hand after ``grace_seconds``; called on the event loop.

        A request that is ended answers 503, and its inference is stopped. First openings in other processes are stopped
        at once: the threads that wait for them would keep this process from ending.
        """
        self.models.stop_trials()
        loop = asyncio.get_running_loop()
        self.drained_at = loop.time() + grace_seconds
        loop.call_later(min(READ_GRACE_SECONDS, grace_seconds), self._end, True)
        loop.call_at(self.drained_at, self._end, False)

    def _end(self, unread_only: bool) -> None:
        for item in list(self.in_hand):
            if not (unread_only and item.is_read):
                item.end(NotReadyError(UNFINISHED))

    @property
    def is_ready(self) -> bool:
        """Whether requests are let in."""
        return self.is_started and self.drained_at is None

    def check_ready(self) -> None:
        """Raise unless requests are let in.

        Raises:
            NotReadyError: Before start-up, while draining and after shutdown.
        """
        if not self.is_ready:
            raise NotReadyError(NOT_READY)

    def take(self, item: ActiveRequest) -> None:
        """Have a request in hand until :meth:`leave`.

        Raises:
            NotReadyError: If the server is not ready.
        """
        self.check_ready()
        self.in_hand.add(item)

    def leave(self, item: ActiveRequest) -> None:
        """The request is answered."""
        self.in_hand.discard(item)
        self.held_bytes -= item.held_bytes
        item.held_bytes = 0

    def hold(self, item: ActiveRequest, count: int) -> None:
        """Count ``count`` more bytes that a request makes the server hold.

        Raises:
            BusyError: If all of them together were more than ``max_held_bytes``.
        """
        item.held_bytes += count
        self.count_held(count)

    def count_held(self, change: int) -> None:
        """Count bytes that a connection holds before they are a request, such as a frame that is still arriving.

        Args:
            change: Bytes more than before, or fewer where it is negative.

        Raises:
            BusyError: If all together are more than ``max_held_bytes``; they are counted all the same.
        """
        self.held_bytes += change
        if change > 0 and self.held_bytes > self.settings.max_held_bytes:
            raise BusyError(
                f"The server holds {self.settings.max_held_bytes} bytes of other requests; try again later."
            )

    def release(self, item: ActiveRequest, count: int) -> None:
        """Of what :meth:`hold` counted, ``count`` bytes are held no more."""
        item.held_bytes -= count
        self.held_bytes -= count

    async def read(self, item: ActiveRequest, scope: Scope, limit: int) -> bytes:
        """The whole body, decompressed, unless it is longer than ``limit`` bytes, which is noticed before it is held.

        Raises:
            TooLargeError: As soon as the length is known to be above the limit.
            BusyError: If the bodies in hand would hold more than ``max_held_bytes``.
            ReadTimeoutError: If it does not arrive in time.
            InputError: If its compression is not understood.
            ClientGoneError: If the client went away.
        """
        body = await body_of(scope, item.receive, limit, lambda count: self.hold(item, count))
        item.is_read, item.work_since = True, time.perf_counter()
        return body

    def caller(self, item: ActiveRequest, timeout_us: int | None = None, priority: int | None = None) -> Caller:
        """Who waits for the work of a request; its time began when its body had arrived.

        Args:
            item: The request.
            timeout_us: Microseconds that it gives the server; None, 0 or more than the server's own limit: that limit.
            priority: 1 is served first; None or 0: the default.
        """
        seconds = self.settings.request_timeout_seconds
        if timeout_us:
            seconds = min(seconds, timeout_us / 1e6)
        seconds -= time.perf_counter() - (item.work_since or item.since)
        # Asking asyncio for the loop is a system call.
        now = (self.loop or asyncio.get_running_loop()).time()
        return Caller(item.client, now + seconds, item.is_gone, priority or DEFAULT_PRIORITY)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(self.settings.reload_seconds)
            try:
                await self.models.follow()
            except Exception:
                # Whatever it is, what is served goes on, and the next look may find it gone.
                logger.exception("the served aliases could not be looked up")

    async def _sweep(self) -> None:
        seconds = self.settings.read_timeout_seconds
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, seconds / 4))
            self.scheduler.drop_abandoned()
            self.sessions.drop_gone_clients()
            self.sequences.drop_gone_clients()
            self.models.close_unused()
            self.telemetry.pending(self.scheduler.pending)
            self.telemetry.sessions(len(self.sessions) + len(self.sequences))
            self.telemetry.streams(self.sockets.streams)
            # Not here: a request that a variable of this loop names would keep its model, for hours on a quiet server.
            self._end_unread(seconds)

    def _end_unread(self, seconds: float) -> None:
        now = time.perf_counter()
        for item in list(self.in_hand):
            if not item.is_read and now - item.since > seconds:
                item.end(
                    ReadTimeoutError(
                        f"The body did not arrive within {seconds:g} s; send it faster or in smaller parts."
                    )
                )


def context_of(connection: HTTPConnection) -> AppContext:
    """The context that :func:`stablernn_server.create_app` put into the application."""
    context: AppContext = connection.app.state.context
    return context


def in_hand_of(connection: HTTPConnection) -> ActiveRequest:
    """The request as the front took it."""
    item: ActiveRequest = connection.scope["stablernn"]
    return item
