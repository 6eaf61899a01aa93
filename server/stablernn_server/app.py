"""Assembly of the application: :func:`create_app` and the list of routers. Nothing happens at import time.

The OpenAPI document is what the framework knows of the routes, and the bodies that they read without it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.routing import Match

from stablernn_server.auth import required_access
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
from stablernn_server.routes import health, page, sessions, stream, timeseries
from stablernn_server.routes import models as v2
from stablernn_server.routes.infer import INFER_ROUTE
from stablernn_server.routes.sessions import STEP_ROUTES
from stablernn_server.schemas.common import ERRORS
from stablernn_server.schemas.open_inference import ControlRequest, IndexRequest, InferBody
from stablernn_server.schemas.sessions import OpenSession, Samples, TokenStep
from stablernn_server.schemas.timeseries import ClassifyRequest, ForecastRequest
from stablernn_server.settings import Settings
from stablernn_server.version import package_version

logger = logging.getLogger(__name__)

ROUTERS = (
    health.router,
    health.metrics_router,
    v2.router,
    v2.repository_router,
    timeseries.router,
    sessions.router,
    stream.router,
    page.router,
)
Node = dict[str, Any]

BODIES: tuple[type[BaseModel], ...] = (
    ClassifyRequest,
    ControlRequest,
    ForecastRequest,
    IndexRequest,
    InferBody,
    OpenSession,
    Samples,
    TokenStep,
)
"""Bodies that routes parse themselves."""
RETRY_AFTER = {"description": "Seconds to wait before the next attempt", "schema": {"type": "string"}}


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


def build_document(app: FastAPI, *, needs_token: bool) -> Node:
    """Return the OpenAPI document of all routes.

    Args:
        app: The application.
        needs_token: Whether requests to this server need a token.
    """
    document: Node = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        description="Streams over a WebSocket, GET /v1/stream, cannot be described here: docs/reference/http.md does.",
        routes=[*app.routes, *v2.documented.routes],
    )
    _, bodies = models_json_schema(
        [(model, "validation") for model in BODIES], ref_template="#/components/schemas/{model}"
    )
    schemas = document["components"]["schemas"]
    schemas.update(bodies["$defs"])
    # The framework documents its own body of a failed validation, with which no route of ours answers.
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    if needs_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            for status in operation["responses"].keys() & {"429", "503"}:
                operation["responses"][status]["headers"] = {"Retry-After": RETRY_AFTER}
            if needs_token and required_access(path) == "open":
                # An empty list overrides the document's default.
                operation["security"] = []
    return document
