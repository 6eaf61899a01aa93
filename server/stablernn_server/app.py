"""Puts the application together. Nothing happens at import time."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException

from stablernn_server.context import Context, json_response
from stablernn_server.errors import CODE_OF_STATUS, STATUS_AND_CODE, InputError, ServerError, cut, sentence_of
from stablernn_server.routes import health, timeseries, v2
from stablernn_server.runtime.table import ModelTable
from stablernn_server.schemas.common import ErrorBody
from stablernn_server.schemas.timeseries import ClassifyRequest, ForecastRequest
from stablernn_server.schemas.v2 import InferBody
from stablernn_server.settings import Settings

logger = logging.getLogger(__name__)

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "Bad input"},
    404: {"model": ErrorBody, "description": "Not served here"},
    413: {"model": ErrorBody, "description": "Too large"},
    408: {"model": ErrorBody, "description": "The body arrived too slowly"},
    503: {"model": ErrorBody, "description": "Starting, shutting down, or too busy"},
}

RETRY_AFTER_SECONDS = 5


def create_app(settings: Settings) -> FastAPI:
    """The REST service over the models that ``settings`` names.

    The models are opened here and not at start-up, so that whoever calls gets a plain exception when one cannot be
    served, and no port is open before all of them are.

    Raises:
        ModelLoadError: If a version cannot be served, or there is none to serve.
        DeviceError: If the device that was asked for is not there.
        stablernn_registry.RegistryError: If a reference names nothing, or the registry cannot be read.
    """
    context = Context(settings, ModelTable.open(settings))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        context.start()
        yield
        context.stop()

    app = FastAPI(
        title="stablernn",
        version=health.package_version(),
        summary="Classification and forecasting with stable recurrent networks.",
        lifespan=lifespan,
        redirect_slashes=False,
        # FastAPI's pages load their scripts from another host, which a server without a way out cannot.
        docs_url=None,
        redoc_url=None,
        responses=ERRORS,
    )
    app.state.context = context
    for router in (health.router, v2.router, timeseries.router):
        app.include_router(router)
    app.add_exception_handler(ServerError, _server_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _internal_error)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def error_response(error: Exception) -> Response:
    """The one shape of an error, with the status and the code word that its class has in the table."""
    for kind in type(error).__mro__:
        if kind in STATUS_AND_CODE:
            status, code = STATUS_AND_CODE[kind]
            response = json_response({"error": str(error), "code": code}, status)
            if status in (408, 413, 503):
                # Whatever is left of the body would be taken for the next request.
                response.headers["Connection"] = "close"
            if status == 503:
                response.headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
            return response
    return json_response({"error": "The server failed to answer; its log says why.", "code": "internal"}, 500)


async def _server_error(request: Request, error: Exception) -> Response:
    if type(error) not in STATUS_AND_CODE:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return error_response(error)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return error_response(InputError(sentence_of(error.errors(), "the request")))


async def _http_error(request: Request, error: Exception) -> Response:
    """What the framework itself refuses: unknown paths and methods."""
    assert isinstance(error, HTTPException)
    code = CODE_OF_STATUS.get(error.status_code, "refused")
    asked = f"{request.method} {cut(request.url.path)}"
    sentence = f"{error.detail}: {asked} is nothing that this server answers."
    response = json_response({"error": sentence, "code": code}, error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _internal_error(request: Request, error: Exception) -> Response:
    # The framework logs the traceback after this answer.
    return error_response(error)


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The document of all routes, with the request bodies that the routes read themselves."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        _, bodies = models_json_schema(
            [(model, "validation") for model in (InferBody, ForecastRequest, ClassifyRequest)],
            ref_template="#/components/schemas/{model}",
        )
        schemas = document["components"]["schemas"]
        schemas.update(bodies["$defs"])
        # The framework documents its own shape of a failed check, which no route of ours answers with.
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        app.openapi_schema = document
    return app.openapi_schema
