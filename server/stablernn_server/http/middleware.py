"""The outermost layer: who asks, what becomes of it, and what is written down about it.

A plain ASGI application around the framework. Inference by tensors goes past the framework, whose price for a request
can be as high as that of the inference.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from typing import Any, NamedTuple

from starlette.routing import BaseRoute, Match

from stablernn_server.errors import STATUS_AND_CODE, ServerError
from stablernn_server.http.access_log import AccessLog, shown_path
from stablernn_server.http.app_context import ActiveRequest, AppContext, Receive, Scope
from stablernn_server.http.origin_policy import Origins
from stablernn_server.http.responses import RawResponse, Send, error_answer, refuse_websocket

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Application = Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_BODIES = frozenset({"DELETE", "PATCH", "POST", "PUT"})
WORKING_PATHS = ("/v1/", "/v2/")


class DirectRoute(NamedTuple):
    """A route that bypasses the framework, whose overhead can exceed the inference itself.

    Attributes:
        pattern: Matches the whole path.
        path: The path as metrics name it.
        handle: Answers a request whose path matches.
    """

    pattern: re.Pattern[str]
    path: str
    handle: Callable[[AppContext, ActiveRequest, Scope, re.Match[str]], Awaitable[RawResponse]]


class RequestMiddleware:
    """Wraps the framework's application."""

    def __init__(
        self, context: AppContext, framework: Application, routes: Sequence[BaseRoute], direct: DirectRoute
    ) -> None:
        """Take the parts.

        Args:
            context: Of the application.
            framework: What answers everything but inference by tensors.
            routes: Of the framework, by which requests are counted.
            direct: The route that bypasses the framework.

        Raises:
            SettingsError: If an allowed origin is none.
        """
        self._context = context
        self._framework = framework
        self._routes = routes
        self._direct = direct
        settings = context.settings
        is_local = not context.auth.is_on and settings.auth == "auto"
        self._origins = Origins(settings.allowed_origins, is_local=is_local, name=settings.host)
        self._log = AccessLog(context.settings.access_log)
        # Two processes that share a port must not give one id twice.
        self._prefix = os.urandom(4).hex()
        self._numbers = itertools.count(1)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        if scope["type"] == "http":
            return self._http(scope, receive, send)
        if scope["type"] == "websocket":
            return self._websocket(scope, receive, send)
        return self._framework(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = self._context
        item = ActiveRequest(receive, asyncio.current_task(self._context.loop), time.perf_counter())
        item.request_id = self._request_id(scope)
        scope["stablernn"] = item
        sender = ResponseSender(send, item.request_id)
        route = ""
        span = None if context.tracing is None else context.tracing.begin(scope["method"], scope["headers"])
        try:
            preflight = self._origins.preflight(scope)
            if preflight is not None:
                sender.headers = preflight
                await sender.answer(RawResponse(204, b"", ""))
                return
            sender.headers = self._origins.check(scope)
            self._identify(item, scope)
            if scope["method"] in _BODIES and scope["path"].startswith(WORKING_PATHS):
                context.take(item)
            match = self._direct.pattern.fullmatch(scope["path"])
            if match is not None:
                route = self._direct.path
                await sender.answer(await self._direct.handle(context, item, scope, match))
            else:
                await self._framework(scope, receive, sender)
                route = self._route(scope)
        except asyncio.CancelledError:
            if item.reason is None or sender.status:
                raise
            if item.task is not None:
                item.task.uncancel()
            await sender.answer(self._answer(item, item.reason, scope))
        except Exception as error:
            if sender.status:
                # The framework has answered and logged it; the connection is all that is left to close.
                if not isinstance(error, ServerError):
                    _log_failure(scope, error)
            else:
                await sender.answer(self._answer(item, error, scope))
        finally:
            context.leave(item)
            seconds = time.perf_counter() - item.since
            status = sender.status
            if not status:
                # What nginx calls it when the client did not wait for the answer.
                status, item.code = 499, "client_gone"
            route = route or self._route(scope)
            context.telemetry.finished(item.model, route, status, item.code, seconds)
            if span is not None:
                if item.model is not None and item.rows:
                    model = item.model
                    span.ran(model.name, model.version, item.rows, item.batch_rows, item.queue_ns, item.compute_ns)
                span.end(route, status, item.code)
            self._log.http(item, scope, status, sender.sent_bytes, seconds)
            # The server's receive knows the scope: a circle, which would keep a model until the collector comes by.
            del scope["stablernn"]

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        item = ActiveRequest(receive, asyncio.current_task(self._context.loop), time.perf_counter())
        item.request_id = self._request_id(scope)
        scope["stablernn"] = item
        try:
            self._origins.check(scope)
            self._identify(item, scope)
            self._context.check_ready()
        except ServerError as error:
            answer = self._answer(item, error, scope)
            await refuse_websocket(scope, send, answer, item.request_id)
            self._context.telemetry.finished(None, self._route(scope), answer.status, answer.code, 0.0)
            self._log.websocket(item, scope, answer.status, 0.0)
            return
        status = 499

        async def watched(message: Message) -> None:
            nonlocal status
            status = _handshake_status(message, status)
            await send(message)

        try:
            await self._framework(scope, receive, watched)
        finally:
            seconds = time.perf_counter() - item.since
            self._context.telemetry.finished(item.model, self._route(scope), status, item.code, seconds)
            self._log.websocket(item, scope, status, seconds)
            del scope["stablernn"]

    def _route(self, scope: Scope) -> str:
        """Return the pattern of a path; paths that no route has go by one name.

        The framework notes the pattern of a request that it has answered, but neither that of a WebSocket nor that of
        a request that was refused before.
        """
        route = scope.get("route") or next(
            (route for route in self._routes if route.matches(scope)[0] is not Match.NONE), None
        )
        return getattr(route, "path", None) or "unknown"

    def _identify(self, item: ActiveRequest, scope: Scope) -> None:
        item.identity = identity = self._context.auth.check(scope)
        address = scope.get("client")
        item.client = identity.name if identity.name != "anonymous" else address[0] if address else ""

    def _request_id(self, scope: Scope) -> str:
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                if _REQUEST_ID.fullmatch(value):
                    return str(value, "ascii")
                break
        return f"{self._prefix}-{next(self._numbers):x}"

    def _answer(self, item: ActiveRequest, error: Exception, scope: Scope) -> RawResponse:
        if not any(kind in STATUS_AND_CODE for kind in type(error).__mro__):
            _log_failure(scope, error)
        answer = error_answer(error, is_read=item.is_read)
        item.code = answer.code
        return answer


class ResponseSender:
    """Sends an answer, or passes one of the framework on, and remembers what was sent.

    Attributes:
        status: Of the answer; 0 before it has begun.
        headers: Added to every answer.
        sent_bytes: Of its body.
    """

    __slots__ = ("_request_id", "_send", "headers", "sent_bytes", "status")

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id.encode()
        self.status = 0
        self.headers: tuple[tuple[bytes, bytes], ...] = ()
        self.sent_bytes = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self._request_id), *self.headers]
        elif message["type"] == "http.response.body":
            self.sent_bytes += len(message.get("body", b""))
        await self._send(message)

    async def answer(self, answer: RawResponse) -> None:
        self.status, self.sent_bytes = answer.status, len(answer.body)
        headers = [
            (b"content-length", b"%d" % len(answer.body)),
            (b"x-request-id", self._request_id),
            *self.headers,
            *((name.lower().encode(), value.encode()) for name, value in answer.headers.items()),
        ]
        if answer.media:
            headers.append((b"content-type", answer.media.encode()))
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": answer.body})


def _handshake_status(message: Message, before: int) -> int:
    """How a handshake was answered, once ``message`` is sent."""
    kind = message["type"]
    if kind == "websocket.accept":
        return 101
    if kind == "websocket.http.response.start":
        return int(message["status"])
    # Closed before it was accepted, for which HTTP libraries answer 403.
    return 403 if kind == "websocket.close" and before == 499 else before


def _log_failure(scope: Scope, error: Exception) -> None:
    logger.error("%s %s failed", scope.get("method", "WEBSOCKET"), shown_path(scope["path"]), exc_info=error)
