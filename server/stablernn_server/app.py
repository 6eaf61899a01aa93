"""Assembly of the application: :func:`create_app` and the list of routers. Nothing happens at import time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from stablernn_server.codecs.json_values import json_body
from stablernn_server.errors import (
    CODE_BY_STATUS,
    InputError,
    MethodError,
    ServerError,
    cut,
    format_validation_error,
)
from stablernn_server.http.access_log import redact_path
from stablernn_server.http.app_context import AppContext
from stablernn_server.http.middleware import Application, RequestMiddleware
from stablernn_server.http.request import get_request
from stablernn_server.http.responses import JSON, error_response
from stablernn_server.openapi import build_document
from stablernn_server.routes import health, metrics, page, repository, sessions, statistics, stream, timeseries
from stablernn_server.routes import models as v2
from stablernn_server.routes.infer import INFER_ROUTE
from stablernn_server.routes.sessions import STEP_ROUTES
from stablernn_server.schemas.common import ERRORS
from stablernn_server.settings import Settings
from stablernn_server.version import package_version

logger = logging.getLogger(__name__)

# The statistics come before the models, one of which could be called "stats".
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


def create_app(settings: Settings, *, answering: Mapping[str, int] | None = None) -> FastAPI:
    """Create the REST service over the models that ``settings`` names.

    The models are opened here and not at start-up, so that the caller gets a plain exception if one cannot be served,
    and no port is open before all of them are.

    Args:
        settings: Settings of the server.
        answering: The versions that other processes of the same server answer with, by reference; see
            :meth:`.ModelRepository.open`.

    Raises:
        ModelLoadError: If a version cannot be served, or there is none to serve.
        DeviceError: If the requested device is not available.
        SettingsError: If a setting is not valid.
        stablernn_registry.RegistryError: If a reference names nothing, or the registry cannot be read.
    """
    context = AppContext.open(settings, answering)

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
        # FastAPI's pages load their scripts from another host, which fails without access to the internet.
        docs_url=None,
        redoc_url=None,
        responses=ERRORS,
    )
    app.state.context = context
    routes = [*app.router.routes, *(route for router in ROUTERS for route in router.routes)]
    app.request_middleware = app.state.middleware = RequestMiddleware(
        context, app.framework, routes, (INFER_ROUTE, *STEP_ROUTES)
    )
    for router in ROUTERS:
        app.include_router(router)
    app.add_exception_handler(ServerError, _server_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _server_error)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


async def _server_error(request: Request, error: Exception) -> Response:
    active_request = get_request(request)
    response = error_response(error, is_read=active_request.is_read)
    active_request.error_code = response.code
    if response.code == "internal":
        logger.error("%s %s failed", request.method, redact_path(request.url.path), exc_info=error)
    return Response(response.body, response.status, response.headers, response.media_type)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return await _server_error(request, InputError(format_validation_error(error.errors(), "the request")))


async def _http_error(request: Request, error: Exception) -> Response:
    """Answer an error of the framework itself: an unknown path or method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        return await _server_error(request, MethodError(request.method, request.url.path, _methods(request, error)))
    code = CODE_BY_STATUS.get(error.status_code, "refused")
    get_request(request).error_code = code
    target = f"{request.method} {cut(request.url.path)}"
    sentence = f"{error.detail}: {target} is not a route of this server; see /docs."
    return Response(json_body({"error": sentence, "code": code}), error.status_code, dict(error.headers or {}), JSON)


def _methods(request: Request, error: HTTPException) -> list[str]:
    """Return the methods that the path answers; the framework names those of one of its routes only."""
    methods = set(dict(error.headers or {})["Allow"].split(", "))
    for router in ROUTERS:
        for route in router.routes:
            # PARTIAL: the path matches, the method does not.
            if route.matches(request.scope)[0] == Match.PARTIAL:
                methods |= getattr(route, "methods", set())
    return sorted(methods)


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = build_document(app, needs_token=app.state.context.auth.is_on)
    return app.openapi_schema
