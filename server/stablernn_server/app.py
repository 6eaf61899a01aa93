"""Puts the application together. Nothing happens at import time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from stablernn_server.codecs.json_values import json_body
from stablernn_server.errors import CODE_OF_STATUS, InputError, MethodError, ServerError, cut, sentence_of
from stablernn_server.http.access_log import shown_path
from stablernn_server.http.app_context import AppContext, in_hand_of
from stablernn_server.http.middleware import RequestMiddleware
from stablernn_server.http.responses import JSON, error_answer
from stablernn_server.openapi import document
from stablernn_server.routes import health, metrics, page, repository, sessions, statistics, stream, timeseries
from stablernn_server.routes import models as v2
from stablernn_server.routes.infer import INFER
from stablernn_server.schemas.common import ERRORS
from stablernn_server.settings import Settings
from stablernn_server.version import package_version

logger = logging.getLogger(__name__)

# The statistics come before the models, one of which could be called stats.
ROUTERS = (
    health.router,
    metrics.router,
    statistics.router,
    v2.router,
    repository.router,
    timeseries.router,
    sessions.router,
    stream.router,
    page.router,
)


class Application(FastAPI):
    """The framework's application behind the front, which every request comes through first."""

    front: RequestMiddleware

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.front(scope, receive, send)

    async def framework(self, scope: Any, receive: Any, send: Any) -> None:
        """What the front passes on."""
        await super().__call__(scope, receive, send)


def create_app(settings: Settings) -> FastAPI:
    """The REST service over the models that ``settings`` names.

    The models are opened here and not at start-up, so that whoever calls gets a plain exception when one cannot be
    served, and no port is open before all of them are.

    Raises:
        ModelLoadError: If a version cannot be served, or there is none to serve.
        DeviceError: If the device that was asked for is not there.
        SettingsError: If a setting cannot be taken.
        stablernn_registry.RegistryError: If a reference names nothing, or the registry cannot be read.
    """
    context = AppContext.open(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        context.start()
        yield
        await context.stop()

    app = Application(
        title="stablernn",
        version=package_version(),
        summary="Classification and forecasting with stable recurrent networks.",
        lifespan=lifespan,
        redirect_slashes=False,
        # FastAPI's pages load their scripts from another host, which a server without a way out cannot.
        docs_url=None,
        redoc_url=None,
        responses=ERRORS,
    )
    app.state.context = context
    routes = [*app.router.routes, *(route for router in ROUTERS for route in router.routes)]
    app.front = RequestMiddleware(context, app.framework, routes, INFER)
    for router in ROUTERS:
        app.include_router(router)
    app.add_exception_handler(ServerError, _server_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _server_error)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


async def _server_error(request: Request, error: Exception) -> Response:
    item = in_hand_of(request)
    answer = error_answer(error, is_read=item.is_read)
    item.code = answer.code
    if answer.code == "internal":
        logger.error("%s %s failed", request.method, shown_path(request.url.path), exc_info=error)
    return Response(answer.body, answer.status, answer.headers, answer.media)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await _server_error(request, InputError(sentence_of(error.errors(), "the request")))


async def _http_error(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return await _server_error(request, MethodError(request.method, request.url.path, _methods(request, error)))
    code = CODE_OF_STATUS.get(error.status_code, "refused")
    in_hand_of(request).code = code
    asked = f"{request.method} {cut(request.url.path)}"
    sentence = f"{error.detail}: {asked} is nothing that this server answers."
    return Response(json_body({"error": sentence, "code": code}), error.status_code, dict(error.headers or {}), JSON)


def _methods(request: Request, error: HTTPException) -> list[str]:
    """Methods that the path answers; the framework names those of one route alone."""
    found = set(dict(error.headers or {})["Allow"].split(", "))
    for router in ROUTERS:
        for route in router.routes:
            if route.matches(request.scope)[0] == Match.PARTIAL:
                found |= getattr(route, "methods", set())
    return sorted(found)


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = document(app, needs_token=app.state.context.auth.is_on)
    return app.openapi_schema
