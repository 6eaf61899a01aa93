"""``WS /v1/stream``: one or many streams over one WebSocket, as text or as binary frames.

Frames are answered one after another, and the next one is read once the reply to the one before has been taken: the
server stops reading from a client that sends without reading, so that neither side's memory grows. While a frame takes
long, one more message is read ahead, for it may say that the client has gone.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from stablernn_server.codecs.json_values import DECODED_FACTOR, OFFLOAD_BYTES, json_body, run_in_thread_if_large
from stablernn_server.codecs.stream_frames import parse_frame
from stablernn_server.errors import BusyError, InputError, NotReadyError, ServerError, TooLargeError, cut
from stablernn_server.handlers.stream_connection import StreamConnection
from stablernn_server.http.app_context import UNFINISHED, AppContext, get_context
from stablernn_server.http.request import ActiveRequest, Message, Receive, Scope, Send, get_request
from stablernn_server.http.responses import error_response, refuse_websocket

GOING_AWAY = 1001
READ_AHEAD_AFTER_SECONDS = 0.1
"""Time in a frame after which the client is checked for having gone: most frames are answered long before."""
CLIENT_GONE = "client_gone"
logger = logging.getLogger(__name__)

SUBPROTOCOL = "stablernn"
"""The subprotocol that the server agrees to; browsers offer it together with the one that carries their token."""


@dataclass(slots=True)
class _ReceivedFrame:
    """A frame as it was received.

    Attributes:
        content: Text, or the bytes of a binary frame; None if it was refused at once.
        size: Bytes of the content and of what it is parsed to, which are held until the reply has been sent.
        received_at: When it was received, on the clock of the event loop.
        refusal: Why it is refused without being parsed; None if it is not.
    """

    content: str | bytes | None
    size: int
    received_at: float
    refusal: ServerError | None = None


class Socket:
    """One open WebSocket.

    Attributes:
        connection: Its streams.
    """

    def __init__(
        self, connection: StreamConnection, context: AppContext, request: ActiveRequest, receive: Receive, send: Send
    ) -> None:
        """Create the socket of a handshake that was accepted.

        Args:
            connection: The streams that answer its frames.
            context: The application's context.
            request: The request of the handshake.
            receive: The receive function of the ASGI call.
            send: Its send function.
        """
        self.connection = connection
        self._context = context
        self._budget = context.budget
        self._request = request
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._frame_received_at = 0.0
        self._is_busy = True
        self._is_draining = False
        self._has_left = False
        self._is_over = asyncio.Event()
        # Read ahead while the frame before was in flight.
        self._next_frame: _ReceivedFrame | None = None

    @property
    def streams(self) -> int:
        """Number of streams that it carries."""
        return len(self.connection)

    async def run(self) -> None:
        """Send the ready message, and answer frames until the client or the server closes."""
        caller, seconds = self.connection.caller, self._context.settings.request_timeout_seconds
        caller.is_gone = self.is_gone
        try:
            await self._send_message({"type": "websocket.send", "text": self.connection.ready_message().decode()})
            # The handshake may have ended while the server was already draining the other sockets.
            self._is_draining = self._is_draining or not self._context.is_ready
            self._is_busy = False
            if self._is_draining:
                await self._send_drain_message()
            while not self._has_left:
                frame = self._next_frame or self._accept_frame(await self._receive())
                self._next_frame = None
                if frame is None:
                    return
                if self._is_draining:
                    # The drain message with the tokens is sent or on its way; later frames are dropped.
                    self._budget.release(self._request, frame.size)
                    continue
                self._is_busy, self._frame_received_at = True, frame.received_at
                caller.deadline = frame.received_at + seconds
                reply = await self._reply(frame)
                if not self._has_left:
                    await self._send_message(reply)
                self._budget.release(self._request, frame.size)
                self._is_busy = False
                if self._is_draining:
                    await self._send_drain_message()
        finally:
            # Break the reference cycle between caller and socket, so that the model is freed now.
            caller.is_gone = None
            self._budget.release(self._request, self._request.held_bytes)
            self._is_over.set()

    async def leave(self) -> None:
        """Send the client the tokens of its streams and close, after the frame in flight."""
        self._is_draining = True
        if self._is_busy:
            # `run` sends the message once the frame is answered.
            await self._is_over.wait()
        else:
            await self._send_drain_message()

    def end(self) -> None:
        """Answer the frame in flight with an error, however far it is; called again, give the client up."""
        if self._request.abort_reason is None:
            self._request.abort(NotReadyError(UNFINISHED))
        elif self._request.task is not None:
            self._request.task.cancel()

    def is_gone(self) -> bool:
        """Return whether the client has closed the connection; called while a frame is in flight.

        As in :meth:`ActiveRequest.is_gone`, the server's ``receive`` is run up to the point where it would wait. If it
        returns another frame, that one is kept, and from then on nothing more is known: no second one is read ahead.
        """
        if (
            self._next_frame is not None
            or self._has_left
            or self._loop.time() - self._frame_received_at < READ_AHEAD_AFTER_SECONDS
        ):
            return self._has_left
        waiting = self._receive()
        try:
            waiting.send(None)  # type: ignore[attr-defined]
        except StopIteration as message:
            self._next_frame = self._accept_frame(message.value)
        else:
            waiting.close()  # type: ignore[attr-defined]
        return self._has_left

    def _accept_frame(self, message: Message) -> _ReceivedFrame | None:
        """Return a message as a frame, whose bytes count as held from now on; None for the end of the connection."""
        received_at = self._loop.time()
        if message["type"] != "websocket.receive":
            self._has_left = True
            return None
        content: str | bytes = message["text"] if message.get("bytes") is None else message["bytes"]
        settings, size = self._context.settings, len(content)
        limit = settings.json_limit if isinstance(content, str) else settings.max_body_bytes
        try:
            if size > limit:
                raise TooLargeError(
                    f"The frame is longer than the limit of {limit} bytes, got {size}; send fewer samples."
                )
            if isinstance(content, str) and size > OFFLOAD_BYTES:
                # The arrays that it is parsed to.
                size *= 1 + DECODED_FACTOR
            self._budget.check_alone(size)
        except TooLargeError as error:
            return _ReceivedFrame(None, 0, received_at, error)
        try:
            self._budget.hold(self._request, size)
        except BusyError as error:
            self._budget.release(self._request, size)
            return _ReceivedFrame(None, 0, received_at, error)
        return _ReceivedFrame(content, size, received_at)

    async def _send_drain_message(self) -> None:
        try:
            text = await self.connection.drain_message()
            await self._send_message({"type": "websocket.send", "text": text})
            await self._send_message(
                {"type": "websocket.close", "code": GOING_AWAY, "reason": "The server is shutting down."}
            )
        finally:
            self._is_over.set()

    async def _send_message(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except OSError:
            # As ASGI has it: the client has left, or the connection was failed while this frame was in flight.
            self._has_left = True

    async def _reply(self, frame: _ReceivedFrame) -> dict[str, Any]:
        echo: dict[str, Any] = {}
        try:
            if frame.refusal is not None:
                raise frame.refusal
            content = frame.content
            if isinstance(content, bytes):
                return {"type": "websocket.send", "bytes": await self.connection.binary(content)}
            assert content is not None
            fields = await run_in_thread_if_large(len(content), lambda: parse_frame(content))
            # An error says which stream and frame it is about, as far as the frame could be parsed.
            echo = {name: fields[name] for name in ("stream", "id") if isinstance(fields.get(name), int | str | float)}
            return {"type": "websocket.send", "text": await self.connection.text(fields, len(content))}
        except asyncio.CancelledError:
            request = self._request
            # Without a reason, nobody aborted this frame: the socket's task itself was cancelled.
            if request.abort_reason is None or request.task is None:
                raise
            request.task.uncancel()
            return self._error_reply(request.abort_reason, echo)
        except Exception as error:
            return self._error_reply(error, echo)

    def _error_reply(self, error: Exception, echo: dict[str, Any]) -> dict[str, Any]:
        response, model = error_response(error), self.connection.model
        if response.code == "internal":
            logger.error("a frame of %s failed", "a socket" if model is None else model.ref, exc_info=error)
        self._context.telemetry.record_failure(model, CLIENT_GONE if self._has_left else response.code or "internal")
        body = orjson.loads(response.body) | {"status": response.status} | echo
        return {"type": "websocket.send", "text": json_body(body).decode()}


class StreamRoute:
    """The ASGI application of the route."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        websocket = WebSocket(scope, receive, send)
        context: AppContext = get_context(websocket)
        request: ActiveRequest = get_request(websocket)
        # The message websocket.connect.
        await receive()
        try:
            connection = await self._begin(websocket, context, request)
            # Opening a model takes a while, in which the server may have been told to stop.
            context.check_ready()
        except ServerError as error:
            response = error_response(error)
            request.error_code = response.code
            await refuse_websocket(scope, send, response, request.request_id)
            return
        subprotocol = SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None
        headers = [(b"x-request-id", request.request_id.encode())]
        await send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": headers})
        socket = Socket(connection, context, request, receive, send)
        context.sockets.add(socket)
        # A task of its own, or each frame would wake a dozen coroutines of the framework on its way here.
        request.task = asyncio.create_task(socket.run())
        try:
            await request.task
        except asyncio.CancelledError:
            # The server stops, and the client does not read what it was sent.
            if request.abort_reason is None:
                raise
        finally:
            # A failed task references its exception, whose traceback references this frame; break the cycle.
            request.task = None
            context.sockets.remove(socket)

    async def _begin(self, websocket: WebSocket, context: AppContext, request: ActiveRequest) -> StreamConnection:
        query = websocket.query_params
        unknown = [name for name in query if name not in ("model", "outputs")]
        if unknown:
            raise InputError(f"Unknown query parameter '{cut(unknown[0])}'; /v1/stream takes model and outputs.")
        if not query.get("model"):
            raise InputError("The query parameter model is missing: /v1/stream?model=NAME.")
        source = await context.models.find_for_streams(query["model"], context.create_caller(request).deadline)
        outputs = query["outputs"].split(",") if "outputs" in query else None
        connection = StreamConnection(source, query["model"], outputs, context, request.client)
        request.model = connection.model
        return connection


router = APIRouter()
router.routes.append(WebSocketRoute("/v1/stream", StreamRoute()))
