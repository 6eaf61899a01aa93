"""``/v1/timeseries``: series in, forecasts or classes out, with KServe's field names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from stablernn_runtime.served_model import ServedModel
from stablernn_server.codecs.json_values import json_body, parse_object
from stablernn_server.errors import InputError, sentence_of
from stablernn_server.handlers.timeseries import PreparedRequest, prepare_classify, prepare_forecast
from stablernn_server.http.app_context import context_of, in_hand_of
from stablernn_server.http.offload import offload
from stablernn_server.http.responses import JSON, compressed
from stablernn_server.schemas.common import json_request
from stablernn_server.schemas.timeseries import ClassifyRequest, ClassifyResponse, ForecastRequest, ForecastResponse
from stablernn_server.settings import Settings

router = APIRouter(prefix="/v1/timeseries", tags=["time series"])

Body = TypeVar("Body", ForecastRequest, ClassifyRequest)


@router.get("/models")
async def list_models(request: Request) -> list[str]:
    """Names of the served models."""
    return context_of(request).models.names()


@router.post("/forecast", response_model=ForecastResponse, openapi_extra=json_request(ForecastRequest))
async def post_forecast(request: Request) -> Response:
    """Forecasts each series up to the horizon that the model was trained for."""
    return await _answer(request, ForecastRequest, prepare_forecast)


@router.post("/classify", response_model=ClassifyResponse, openapi_extra=json_request(ClassifyRequest))
async def post_classify(request: Request) -> Response:
    """Gives the probability of each class for each series."""
    return await _answer(request, ClassifyRequest, prepare_classify)


async def _answer(
    request: Request, schema: type[Body], prepare: Callable[[ServedModel, Body, Settings], PreparedRequest]
) -> Response:
    context, item = context_of(request), in_hand_of(request)
    body = await context.read(item, request.scope, context.settings.json_limit)
    checked = await offload(len(body), lambda: _checked(body, schema))
    caller = context.caller(item)
    item.model = model = await context.models.find_open(checked.model, deadline=caller.deadline)
    prepared = await offload(len(body), lambda: prepare(model, checked, context.settings))
    if model.rollout is None:
        answer = await context.scheduler.run(model, prepared.inputs, prepared.outputs, caller=caller)
    else:
        answer = await context.scheduler.call(model, prepared.roll_out, prepared.rows, caller=caller)
    item.answered(answer, prepared.rows)
    size = sum(value.nbytes for value in answer.outputs.values())
    accepted = request.headers.get("accept-encoding", "")
    content, encoding = await offload(
        size, lambda: compressed(json_body(prepared.finish(answer.outputs, answer.violations)), accepted)
    )
    headers = {} if encoding is None else {"Content-Encoding": encoding, "Vary": "Accept-Encoding"}
    return Response(content, headers=headers, media_type=JSON)


def _checked(body: bytes, schema: type[Body]) -> Body:
    try:
        return schema.model_validate(parse_object(body))
    except ValidationError as error:
        raise InputError(sentence_of(error, "the body")) from error
