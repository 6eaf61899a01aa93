"""``WS /v1/stream``: one or many streams over one WebSocket, as text or as binary frames."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from fastapi import APIRouter
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from stablernn_server.errors import InputError, ServerError, cut
from stablernn_server.handlers.stream_connection import StreamConnection
from stablernn_server.http.app_context import ActiveRequest, AppContext, Receive, Scope, context_of
from stablernn_server.http.responses import error_answer, refuse_websocket
from stablernn_server.http.websocket import Socket

logger = logging.getLogger(__name__)

SUBPROTOCOL = "stablernn"
"""The one that is agreed to; browsers name it beside the one that carries their token."""


class StreamRoute:
    """The ASGI application of the route."""

    async def __call__(self, scope: Scope, receive: Receive, send: Any) -> None:
        websocket = WebSocket(scope, receive, send)
        context: AppContext = context_of(websocket)
        item: ActiveRequest = scope["stablernn"]
        await receive()
        try:
            conversation = await self._begin(websocket, context, item)
            # To open a model takes a while, in which the server may have been told to stop.
            context.check_ready()
        except ServerError as error:
            answer = error_answer(error)
            item.code = answer.code
            await refuse_websocket(scope, send, answer, item.request_id)
            return
        subprotocol = SUBPROTOCOL if SUBPROTOCOL in scope["subprotocols"] else None
        headers = [(b"x-request-id", item.request_id.encode())]
        await send({"type": "websocket.accept", "subprotocol": subprotocol, "headers": headers})
        socket = Socket(conversation, context, item, receive, send)
        context.sockets.add(socket)
        # A task of its own, or each frame would wake a dozen coroutines of the framework on its way here.
        item.task = asyncio.create_task(socket.run())
        try:
            await item.task
        except asyncio.CancelledError:
            # The server stops, and the client does not take what it was sent.
            if item.reason is None:
                raise
        finally:
            # A task keeps what it failed with, which keeps this frame.
            item.task = None
            context.sockets.remove(socket)

    async def _begin(self, websocket: WebSocket, context: AppContext, item: ActiveRequest) -> StreamConnection:
        query = websocket.query_params
        strange = [name for name in query if name not in ("model", "outputs")]
        if strange:
            raise InputError(f"Unknown query parameter '{cut(strange[0])}'; /v1/stream takes model and outputs.")
        if not query.get("model"):
            raise InputError("The query parameter model is missing: /v1/stream?model=NAME.")
        source = await context.models.find_for_streams(query["model"], context.caller(item).deadline)
        outputs = query["outputs"].split(",") if "outputs" in query else None
        conversation = StreamConnection(source, query["model"], outputs, context, item.client)
        item.model = conversation.model
        return conversation


router = APIRouter()
router.routes.append(WebSocketRoute("/v1/stream", StreamRoute()))
