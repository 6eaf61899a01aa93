"""The OpenAPI document: what the framework knows of the routes, and the bodies that they read without it."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from stablernn_server.routes import models as v2
from stablernn_server.schemas.open_inference import InferBody
from stablernn_server.schemas.repository import ControlRequest, IndexRequest
from stablernn_server.schemas.sessions import OpenSession, Samples, TokenStep
from stablernn_server.schemas.timeseries import ClassifyRequest, ForecastRequest
from stablernn_server.security.auth import required_access

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
        description="Streams over a WebSocket, GET /v1/stream, cannot be described here: docs/http.md does.",
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
            operation["responses"]["503"]["headers"] = {"Retry-After": RETRY_AFTER}
            if needs_token and required_access(path) == "open":
                # An empty list overrides the document's default.
                operation["security"] = []
    return document
