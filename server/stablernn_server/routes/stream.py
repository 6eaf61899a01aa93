"""``WS /v1/stream``: one or many streams over one WebSocket, as text or as binary frames."""

from __future__ import annotations

import asyncio
import logging

from fastapi import APIRouter
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from stablernn_server.errors import InputError, ServerError, cut
from stablernn_server.handlers.stream_connection import StreamConnection
from stablernn_server.http.app_context import AppContext, get_context
from stablernn_server.http.asgi import Receive, Scope, Send
from stablernn_server.http.request import ActiveRequest, get_request
from stablernn_server.http.responses import error_response, refuse_websocket
from stablernn_server.http.websocket import Socket

logger = logging.getLogger(__name__)

SUBPROTOCOL = "stablernn"
"""The subprotocol that the server agrees to; browsers offer it together with the one that carries their token."""


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
