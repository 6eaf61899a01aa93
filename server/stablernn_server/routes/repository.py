"""``/v2/repository``: Triton's model repository extension over the registry."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError

from stablernn_server.codecs.json_values import parse_object
from stablernn_server.errors import InputError, format_validation_error
from stablernn_server.http.app_context import get_context
from stablernn_server.http.request import get_request
from stablernn_server.schemas.common import json_request
from stablernn_server.schemas.repository import ControlRequest, IndexEntry, IndexRequest

Body = TypeVar("Body", bound=BaseModel)

router = APIRouter(prefix="/v2/repository", tags=["repository"])

EMPTY: dict[int | str, dict[str, Any]] = {200: {"description": "Done; the body is empty", "content": {}}}


@router.post("/index", openapi_extra=json_request(IndexRequest, required=False))
async def index(request: Request) -> list[IndexEntry]:
    """Every version of the registry, and whether it is served."""
    body = await _read_body(request, IndexRequest)
    entries = await get_context(request).models.index()
    return [IndexEntry(**entry) for entry in entries if not body.ready or entry["state"] == "READY"]


@router.post(
    "/models/{model}/load",
    response_class=Response,
    responses=EMPTY,
    openapi_extra=json_request(ControlRequest, required=False),
)
async def load(request: Request, model: str) -> Response:
    """Opens a version, or reopens it; the model that answered before continues until the new one is warm."""
    await _read_body(request, ControlRequest)
    get_request(request).model = await get_context(request).models.load(model)
    return Response(status_code=200)


@router.post(
    "/models/{model}/unload",
    response_class=Response,
    responses=EMPTY,
    openapi_extra=json_request(ControlRequest, required=False),
)
async def unload(request: Request, model: str) -> Response:
    """Stops serving a version, or every version of a name."""
    await _read_body(request, ControlRequest)
    await get_context(request).models.unload(model)
    return Response(status_code=200)


async def _read_body(request: Request, schema: type[Body]) -> Body:
    context, active_request = get_context(request), get_request(request)
    content = await context.read_body(active_request, request.scope, context.settings.json_limit)
    try:
        # The body is optional in Triton's extension.
        return await context.decode(
            active_request, content, lambda: schema.model_validate(parse_object(content) if content else {})
        )
    except ValidationError as error:
        raise InputError(format_validation_error(error, "the body")) from error
