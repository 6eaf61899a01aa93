"""``/v1/timeseries``: series in, forecasts or classes out, with KServe's field names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastapi import APIRouter, Request, Response

from stablernn_runtime.served_model import ServedModel
from stablernn_server.codecs.json_values import json_body, run_in_thread_if_large
from stablernn_server.handlers.timeseries import PreparedRequest, prepare_classify, prepare_forecast
from stablernn_server.http.app_context import get_context
from stablernn_server.http.request import get_request
from stablernn_server.http.responses import JSON, compress_if_accepted
from stablernn_server.schemas.common import json_request
from stablernn_server.schemas.timeseries import ClassifyRequest, ClassifyResponse, ForecastRequest, ForecastResponse
from stablernn_server.settings import Settings

router = APIRouter(prefix="/v1/timeseries", tags=["time series"])

Body = TypeVar("Body", ForecastRequest, ClassifyRequest)


@router.get("/models")
async def list_models(request: Request) -> list[str]:
    """Names of the served models."""
    return get_context(request).models.names()


@router.post("/forecast", response_model=ForecastResponse, openapi_extra=json_request(ForecastRequest))
async def post_forecast(request: Request) -> Response:
    """Forecasts each series up to the horizon that the model was trained for."""
    return await _respond(request, ForecastRequest, prepare_forecast)


@router.post("/classify", response_model=ClassifyResponse, openapi_extra=json_request(ClassifyRequest))
async def post_classify(request: Request) -> Response:
    """Returns the probability of each class for each series."""
    return await _respond(request, ClassifyRequest, prepare_classify)


async def _respond(
    request: Request, schema: type[Body], prepare: Callable[[ServedModel, Body, Settings], PreparedRequest]
) -> Response:
    context, active_request = get_context(request), get_request(request)
    body, body_bytes = await context.read_json(active_request, request.scope, schema)
    caller = context.create_caller(active_request)
    active_request.model = model = await context.models.find_open(body.model, deadline=caller.deadline)
    prepared = await run_in_thread_if_large(body_bytes, lambda: prepare(model, body, context.settings))
    if model.rollout is None:
        result = await context.scheduler.run(model, prepared.inputs, prepared.outputs, caller=caller)
    else:
        # A recursive head: one run for the observed series, then one for each step ahead.
        result = await context.scheduler.call(model, prepared.roll_out, prepared.rows, caller=caller)
    active_request.record_result(result, prepared.rows)
    size = sum(value.nbytes for value in result.outputs.values())
    accept_encoding = request.headers.get("accept-encoding", "")
    response_body, encoding = await run_in_thread_if_large(
        size,
        lambda: compress_if_accepted(json_body(prepared.finish(result.outputs, result.violations)), accept_encoding),
    )
    headers = {} if encoding is None else {"Content-Encoding": encoding, "Vary": "Accept-Encoding"}
    return Response(response_body, headers=headers, media_type=JSON)
