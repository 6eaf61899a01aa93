"""``/v1/timeseries``: series in, forecasts or classes out, with KServe's field names."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ValidationError

from stablernn_server.body import parse_object
from stablernn_server.context import context_of
from stablernn_server.errors import InputError, sentence_of
from stablernn_server.runtime.session import Stop
from stablernn_server.runtime.table import ModelTable
from stablernn_server.schemas.timeseries import ClassifyRequest, ClassifyResponse, ForecastRequest, ForecastResponse
from stablernn_server.series import classify, forecast
from stablernn_server.settings import Settings

logger = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/timeseries", tags=["time series"])

Body = TypeVar("Body", ForecastRequest, ClassifyRequest)


def _body_docs(schema: type[BaseModel]) -> dict[str, Any]:
    reference = {"$ref": f"#/components/schemas/{schema.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": reference}}}}


@router.get("/models")
async def list_models(request: Request) -> list[str]:
    """Names of the served models."""
    return context_of(request).models.names()


@router.post("/forecast", response_model=ForecastResponse, openapi_extra=_body_docs(ForecastRequest))
async def post_forecast(request: Request) -> Response:
    """Forecasts each series up to the horizon that the model was trained for."""
    return await _answer(request, ForecastRequest, forecast)


@router.post("/classify", response_model=ClassifyResponse, openapi_extra=_body_docs(ClassifyRequest))
async def post_classify(request: Request) -> Response:
    """Gives the probability of each class for each series."""
    return await _answer(request, ClassifyRequest, classify)


async def _answer(request: Request, schema: type[Body], task: Callable[..., dict[str, Any]]) -> Response:
    context = context_of(request)
    async with context.take(request) as item:
        body = await context.read(item, context.settings.json_limit)
        content = await context.work(item, _run, context.models, body, schema, task, context.settings)
    return Response(content, media_type="application/json")


def _run(
    stop: Stop,
    models: ModelTable,
    body: bytes,
    schema: type[Body],
    task: Callable[..., dict[str, Any]],
    settings: Settings,
) -> bytes:
    """Decode, run, encode: everything about one request that takes time."""
    started = time.perf_counter()
    try:
        checked = schema.model_validate(parse_object(body))
    except ValidationError as error:
        raise InputError(sentence_of(error, "the body")) from error
    model = models.find(checked.model)
    answer = task(model, checked, settings, stop)
    content = orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)
    elapsed_ms = 1e3 * (time.perf_counter() - started)
    logger.info("%s %s:%d %.2f ms", task.__name__, model.name, model.version, elapsed_ms)
    return content
