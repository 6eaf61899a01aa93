"""The outermost layer: identifies each request, answers it or passes it on, turns errors into responses, and logs.

A plain ASGI application around the framework's. Inference by tensors bypasses the framework, whose overhead for a
request can be as high as the inference itself.

Web pages of other hosts may call the server only if the settings list their origins. A page is identified by its
``Origin``; a client that is no browser sends none.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

from fastapi import FastAPI
from starlette.routing import BaseRoute, Match

from stablernn_server.auth import Identity
from stablernn_server.errors import STATUS_AND_CODE, ForbiddenError, ServerError, SettingsError, cut
from stablernn_server.http.access_log import AccessLog, redact_path
from stablernn_server.http.app_context import AppContext
from stablernn_server.http.request import (
    SCOPE_KEY,
    ActiveRequest,
    ASGIApplication,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    header_fields,
)
from stablernn_server.http.responses import RawResponse, error_response, refuse_websocket
from stablernn_server.observability.tracing import RequestSpan

METHODS = b"GET, HEAD, POST, DELETE"
ALLOWED_HEADERS = (
    b"authorization, content-type, content-encoding, inference-header-content-length, traceparent, x-request-id"
)
EXPOSED_HEADERS = b"inference-header-content-length, retry-after, x-request-id"
PREFLIGHT_SECONDS = b"600"
DEFAULT_PORTS = {"http": 80, "https": 443}
_ADDRESS = re.compile(rb"([0-9.]+|\[[0-9a-f:.]+\])(:[0-9]+)?")
_PORT = re.compile(rb":[0-9]*$")
logger = logging.getLogger(__name__)

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")
_METHODS_WITH_BODY = frozenset({"DELETE", "PATCH", "POST", "PUT"})
WORK_PATHS = ("/v1/", "/v2/")
"""Beginnings of the paths whose requests count as in flight: they are refused while the server drains."""
NO_RESPONSE = 499
"""Status in the log and in metrics of a request whose client did not wait for the response, as nginx has it."""


CHECKS_KEY = "stablernn.checks"
"""Key of the scope under which the checks of an earlier request stand that was equal in all that they depend on; after
the checks, their result."""
_MATCH_KEY = "stablernn.match"
"""Key of the scope under which :meth:`RequestMiddleware.match_direct` leaves its result."""


class OriginPolicy:
    """The check of the headers ``Origin`` and ``Host``, and the CORS headers for pages of other hosts that pass it."""

    def __init__(self, allowed: Iterable[str] = (), *, is_local: bool = False, name: str = "localhost") -> None:
        """Create the policy.

        Args:
            allowed: Origins such as ``https://app.example``.
            is_local: Whether nothing but the loopback address keeps others out. Then requests must ask for an address,
                for ``name``, or for the host of a listed origin: the owner of any other name can make it point here.
            name: The name or address that the server listens on.

        Raises:
            SettingsError: If an entry is not an origin.
        """
        self._allowed = frozenset(_normalize_origin(origin) for origin in allowed)
        self._is_local = is_local
        self._names = {b"localhost", name.lower().encode()}
        self._hosts = frozenset(host for origin in self._allowed for host in _host_headers(origin))

    def check(self, scope: Scope) -> Headers:
        """Return the CORS headers for the response, none for most requests.

        A request without an ``Origin`` does not come from a page, or its browser takes it for one of the same origin.

        Raises:
            ForbiddenError: If a page of another host asks, or the request is for a name that may not be this server's.
        """
        fields = header_fields(scope)
        origin, host = fields.get(b"origin"), fields.get(b"host", b"").lower()
        if origin is not None and origin.lower() in self._allowed:
            return (
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", EXPOSED_HEADERS),
                # Caches must not give this response to pages of other origins.
                (b"vary", b"Origin"),
            )
        # A page of this very server: what follows the scheme is the host that it asks for.
        if origin is not None and (not host or origin.lower().partition(b"://")[2] != host):
            raise ForbiddenError(
                f"Pages of {cut(origin.decode('latin-1'))!r} may not call this server; "
                "its operator can list them in allowed_origins."
            )
        if self._is_local and host and not self._is_own_host(host):
            raise ForbiddenError(
                f"This server requires no token and answers under the address of its machine only, got the host "
                f"{cut(host.decode('latin-1'))!r}; ask for 127.0.0.1 or localhost. Its operator can list the "
                "origins of other names in allowed_origins, or configure tokens."
            )
        return ()

    def _is_own_host(self, host: bytes) -> bool:
        return _ADDRESS.fullmatch(host) is not None or host in self._hosts or _PORT.sub(b"", host) in self._names

    def preflight_headers(self, scope: Scope) -> Headers | None:
        """Return the headers of the response (204, no body) to a preflight request; None for any other request.

        No token is required: browsers send none with a preflight request.

        Raises:
            ForbiddenError: If a page of another host asks.
        """
        if scope["type"] != "http" or scope["method"] != "OPTIONS":
            return None
        if b"access-control-request-method" not in header_fields(scope):
            return None
        cors_headers = self.check(scope)
        if not cors_headers:
            return None
        return (
            *cors_headers,
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", ALLOWED_HEADERS),
            (b"access-control-max-age", PREFLIGHT_SECONDS),
        )


def _host_headers(origin: bytes) -> tuple[bytes, ...]:
    """Return the values of ``Host`` in requests to an origin: some clients add the default port."""
    scheme, _, host = origin.partition(b"://")
    return (host, host + b":%d" % DEFAULT_PORTS[scheme.decode()])


def _normalize_origin(origin: str) -> bytes:
    """Return an origin as browsers spell it: scheme and host in lower case, no path, no default port.

    Raises:
        SettingsError: If it is not an origin.
    """
    try:
        parts = urlsplit(origin)
        host, port = parts.netloc.lower(), parts.port
    except ValueError:
        # The port is not a number, or an IPv6 address lacks its bracket.
        parts, host, port = urlsplit(""), "", None
    plain = f"{parts.scheme}://{host}"
    if parts.scheme not in DEFAULT_PORTS or not host or origin.rstrip("/").lower() != plain or not plain.isascii():
        raise SettingsError(
            f"allowed_origins takes origins such as 'https://app.example' or 'http://localhost:3000', got '{origin}'."
        )
    if port == DEFAULT_PORTS[parts.scheme]:
        plain = plain.removesuffix(f":{port}")
    return plain.encode()


class DirectRoute(NamedTuple):
    """A route that bypasses the framework, whose overhead can exceed the inference itself.

    Attributes:
        pattern: Matches the whole path.
        path: The path as metrics name it.
        handle: Answers a request whose path matches.
        is_in_framework: Whether the framework has the route as well, and answers it where a request comes by ASGI.
    """

    pattern: re.Pattern[str]
    path: str
    handle: Callable[[AppContext, ActiveRequest, Scope, re.Match[str]], Awaitable[RawResponse]]
    is_in_framework: bool = False


class DirectMatch(NamedTuple):
    """A route that bypasses the framework, and the match of a path with its pattern."""

    route: DirectRoute
    match: re.Match[str]


class HeadChecks(NamedTuple):
    """Result of the checks of origin and token.

    Attributes:
        headers: CORS headers of the response.
        identity: Who sends the request.
        client: What tells the client from others, for limits.
    """

    headers: Headers
    identity: Identity
    client: str


class Sender(Protocol):
    """Sends the response to one request, and notes what was sent; see :class:`ResponseSender`."""

    status: int
    headers: Headers
    request_id: str
    sent_bytes: int

    async def send_response(self, response: RawResponse) -> None: ...


class RequestMiddleware:
    """The ASGI application that wraps the framework's."""

    def __init__(
        self,
        context: AppContext,
        framework: ASGIApplication,
        routes: Sequence[BaseRoute],
        direct: Sequence[DirectRoute],
    ) -> None:
        """Create the middleware.

        Args:
            context: The application's context.
            framework: Answers everything that no direct route does.
            routes: Routes of the framework, by whose patterns requests are counted.
            direct: The routes that bypass the framework.

        Raises:
            SettingsError: If an allowed origin is not an origin.
        """
        self._context = context
        self._framework = framework
        self._routes = routes
        self._direct = direct
        settings = context.settings
        # With auth on "auto" and no tokens, `serve` listens on this machine only (Auth.check_address).
        is_local = not context.auth.is_on and settings.auth == "auto"
        self._origins = OriginPolicy(settings.allowed_origins, is_local=is_local, name=settings.host)
        self._log = AccessLog(context.settings.access_log)
        # Two processes that share a port must not give one id twice.
        self._id_prefix = os.urandom(4).hex()
        self._id_numbers = itertools.count(1)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        if scope["type"] == "http":
            return self._http(scope, receive, send)
        if scope["type"] == "websocket":
            return self._websocket(scope, receive, send)
        return self._framework(scope, receive, send)

    def _check(self, scope: Scope, sender: Sender | None = None) -> HeadChecks:
        """Check origin and token of a request; the sender gets the CORS headers also where the token is refused.

        The result depends on the path, on the address of the client, and on the fields ``host``, ``origin`` and
        ``authorization``.

        Raises:
            ForbiddenError: If a page of another host asks, or the token's role may not do this.
            UnauthorizedError: If the token is missing or not known.
        """
        headers = self._origins.check(scope)
        if sender is not None:
            sender.headers = headers
        identity = self._context.auth.check(scope)
        address = scope.get("client")
        # Limits hold for a token, wherever it is used; without tokens, for an address.
        client = identity.name if identity.name != "anonymous" else address[0] if address else ""
        return HeadChecks(headers, identity, client)

    def match_direct(self, scope: Scope) -> DirectMatch | None:
        """Return the route that bypasses the framework and answers a request; None without one."""
        direct: DirectMatch | None = scope.get(_MATCH_KEY)
        if direct is None:
            for route in self._direct:
                match = route.pattern.fullmatch(scope["path"])
                if match is not None:
                    direct = scope[_MATCH_KEY] = DirectMatch(route, match)
                    break
        return direct

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = ActiveRequest(receive, asyncio.current_task(self._context.loop), time.perf_counter())
        scope[SCOPE_KEY] = request
        direct = self.match_direct(scope)
        if direct is not None and direct.route.is_in_framework:
            direct = None
        try:
            await self.answer(scope, request, ResponseSender(send), direct)
        finally:
            # `receive` references the scope; break the reference cycle, so that a model is freed now.
            del scope[SCOPE_KEY]

    async def answer(self, scope: Scope, request: ActiveRequest, sender: Sender, direct: DirectMatch | None) -> None:
        """Answer an HTTP request, count it and log it.

        Args:
            scope: The scope of the ASGI call, or as much of it as the direct route reads.
            request: The request.
            sender: Sends the response.
            direct: From :meth:`match_direct`; None for a request that goes through the framework.
        """
        context = self._context
        request.sender = sender
        sender.request_id = request.request_id = self._request_id(scope)
        route = ""
        span = None if context.tracing is None else context.tracing.begin(scope["method"], scope["headers"])
        try:
            context.count_forwarded(request, scope)
            checks: HeadChecks | None = scope.get(CHECKS_KEY)
            if checks is None:
                preflight = self._origins.preflight_headers(scope)
                if preflight is not None:
                    sender.headers = preflight
                    await sender.send_response(RawResponse(204, b"", ""))
                    return
                checks = scope[CHECKS_KEY] = self._check(scope, sender)
            sender.headers, request.identity, request.client = checks
            if scope["method"] in _METHODS_WITH_BODY and scope["path"].startswith(WORK_PATHS):
                context.admit(request)
            if direct is not None:
                route = direct.route.path
                await sender.send_response(await direct.route.handle(context, request, scope, direct.match))
            else:
                await self._framework(scope, request.receive, cast("ResponseSender", sender))
                route = self._route(scope)
        except asyncio.CancelledError:
            # Without a reason somebody else has cancelled the task; with a status the response has begun.
            if request.abort_reason is None or sender.status:
                raise
            if request.task is not None:
                request.task.uncancel()
            await sender.send_response(self._error_response(request, request.abort_reason, scope))
        except Exception as error:
            if sender.status:
                # The framework has answered and logged it; the connection is all that is left to close.
                if not isinstance(error, ServerError):
                    _log_failure(scope, error)
            else:
                await sender.send_response(self._error_response(request, error, scope))
        finally:
            context.finish(request)
            seconds = time.perf_counter() - request.arrived_at
            status = sender.status
            if not status:
                status, request.error_code = NO_RESPONSE, "client_gone"
            route = route or self._route(scope)
            context.telemetry.record_request(request.model, route, status, request.error_code, seconds)
            if span is not None:
                _end_span(span, request, route, status)
            self._log.log_request(request, scope, status, sender.sent_bytes, seconds)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = ActiveRequest(receive, asyncio.current_task(self._context.loop), time.perf_counter())
        request.request_id = self._request_id(scope)
        scope[SCOPE_KEY] = request
        try:
            _, request.identity, request.client = self._check(scope)
            self._context.check_ready()
            self._context.count_forwarded(request, scope)
        except ServerError as error:
            response = self._error_response(request, error, scope)
            await refuse_websocket(scope, send, response, request.request_id)
            self._context.telemetry.record_request(None, self._route(scope), response.status, response.code, 0.0)
            self._log.log_websocket(request, scope, response.status, 0.0)
            return
        status = NO_RESPONSE

        async def send_and_note_status(message: Message) -> None:
            nonlocal status
            status = _handshake_status(message, status)
            await send(message)

        try:
            await self._framework(scope, receive, send_and_note_status)
        finally:
            seconds = time.perf_counter() - request.arrived_at
            route = self._route(scope)
            self._context.telemetry.record_request(request.model, route, status, request.error_code, seconds)
            self._log.log_websocket(request, scope, status, seconds)
            self._context.finish(request)
            del scope[SCOPE_KEY]

    def _route(self, scope: Scope) -> str:
        """Return the pattern of a path; paths without a route share one name.

        The framework puts the pattern of a request that it has answered into the scope, but neither that of a WebSocket
        nor that of a request that was refused before.
        """
        route = scope.get("route") or next(
            (route for route in self._routes if route.matches(scope)[0] is not Match.NONE), None
        )
        return getattr(route, "path", None) or "unknown"

    def _request_id(self, scope: Scope) -> str:
        value = header_fields(scope).get(b"x-request-id")
        if value is not None and _REQUEST_ID.fullmatch(value):
            return str(value, "ascii")
        return f"{self._id_prefix}-{next(self._id_numbers):x}"

    def _error_response(self, request: ActiveRequest, error: Exception, scope: Scope) -> RawResponse:
        # Errors that the table does not know are bugs: the log alone says what happened.
        if not any(error_class in STATUS_AND_CODE for error_class in type(error).__mro__):
            _log_failure(scope, error)
        response = error_response(error, is_read=request.is_read)
        request.error_code = response.code
        return response


class Application(FastAPI):
    """A FastAPI application whose requests all pass the middleware first."""

    request_middleware: RequestMiddleware

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.request_middleware(scope, receive, send)

    async def framework(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what the middleware passes on."""
        await super().__call__(scope, receive, send)


class ResponseSender:
    """Sends a response, or passes one of the framework on, and notes what was sent.

    Attributes:
        status: Status of the response; 0 before it has begun.
        headers: Headers added to every response.
        request_id: The id that every response carries.
        sent_bytes: Bytes of its body.
    """

    __slots__ = ("_send", "headers", "request_id", "sent_bytes", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.request_id = ""
        self.status = 0
        self.headers: Headers = ()
        self.sent_bytes = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message["headers"], (b"x-request-id", self.request_id.encode()), *self.headers]
        elif message["type"] == "http.response.body":
            self.sent_bytes += len(message.get("body", b""))
        await self._send(message)

    async def send_response(self, response: RawResponse) -> None:
        """Send a whole response."""
        self.status, self.sent_bytes = response.status, len(response.body)
        headers = [
            (b"content-length", b"%d" % len(response.body)),
            (b"x-request-id", self.request_id.encode()),
            *self.headers,
            *((name.lower().encode(), value.encode()) for name, value in response.headers.items()),
        ]
        if response.media_type:
            headers.append((b"content-type", response.media_type.encode()))
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": response.body})


def _handshake_status(message: Message, status: int) -> int:
    """Return the status of a handshake once ``message`` is sent, given the one before."""
    message_type = message["type"]
    if message_type == "websocket.accept":
        return 101
    if message_type == "websocket.http.response.start":
        return int(message["status"])
    # Closed before it was accepted, for which HTTP libraries answer 403.
    return 403 if message_type == "websocket.close" and status == NO_RESPONSE else status


def _end_span(span: RequestSpan, request: ActiveRequest, route: str, status: int) -> None:
    model = request.model
    if model is not None and request.rows:
        span.record_run(
            model.name, model.version, request.rows, request.batch_rows, request.queue_ns, request.compute_ns
        )
    span.end(route, status, request.error_code)


def _log_failure(scope: Scope, error: Exception) -> None:
    logger.error("%s %s failed", scope.get("method", "WEBSOCKET"), redact_path(scope["path"]), exc_info=error)
