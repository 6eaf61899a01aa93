"""``/v2/repository``: Triton's model repository extension over the registry."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError

from stablernn_server.codecs.json_values import parse_object
from stablernn_server.errors import InputError, sentence_of
from stablernn_server.http.app_context import context_of, in_hand_of
from stablernn_server.schemas.common import json_request
from stablernn_server.schemas.repository import ControlRequest, IndexEntry, IndexRequest

Body = TypeVar("Body", bound=BaseModel)

router = APIRouter(prefix="/v2/repository", tags=["repository"])


EMPTY: dict[int | str, dict[str, Any]] = {200: {"description": "Done; the body is empty", "content": {}}}


@router.post("/index", openapi_extra=json_request(IndexRequest, required=False))
async def index(request: Request) -> list[IndexEntry]:
    """Every version of the registry, and whether it is served."""
    asked = await _body(request, IndexRequest)
    entries = await context_of(request).models.index()
    return [IndexEntry(**entry) for entry in entries if not asked.ready or entry["state"] == "READY"]


@router.post(
    "/models/{model}/load",
    response_class=Response,
    responses=EMPTY,
    openapi_extra=json_request(ControlRequest, required=False),
)
async def load(request: Request, model: str) -> Response:
    """Opens a version, or opens it anew; what answered before goes on until the new one is warm."""
    await _body(request, ControlRequest)
    in_hand_of(request).model = await context_of(request).models.load(model)
    return Response(status_code=200)


@router.post(
    "/models/{model}/unload",
    response_class=Response,
    responses=EMPTY,
    openapi_extra=json_request(ControlRequest, required=False),
)
async def unload(request: Request, model: str) -> Response:
    """Serves a version, or every version of a name, no more."""
    await _body(request, ControlRequest)
    await context_of(request).models.unload(model)
    return Response(status_code=200)


async def _body(request: Request, schema: type[Body]) -> Body:
    context = context_of(request)
    content = await context.read(in_hand_of(request), request.scope, context.settings.json_limit)
    try:
        return schema.model_validate(parse_object(content) if content else {})
    except ValidationError as error:
        raise InputError(sentence_of(error, "the body")) from error
