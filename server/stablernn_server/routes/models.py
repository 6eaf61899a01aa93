"""``/v2/models`` and ``/v2/repository``: the models, by the Open Inference Protocol and Triton's extensions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from stablernn_registry import RefError, TensorSignature, parse_ref
from stablernn_registry.certificates import current_certificate
from stablernn_runtime.engines.loaded_graphs import ONNX
from stablernn_runtime.served_model import ServedModel
from stablernn_server.codecs.open_inference import DATATYPES
from stablernn_server.errors import NoExampleError
from stablernn_server.http.app_context import get_context
from stablernn_server.http.request import get_request
from stablernn_server.observability.triton_statistics import Key, ModelStatistics
from stablernn_server.schemas.common import ERRORS, VERSION_DOCS, json_request
from stablernn_server.schemas.open_inference import (
    BatchStatistics,
    ControlRequest,
    Duration,
    IndexEntry,
    IndexRequest,
    InferAnswer,
    InferenceStatistics,
    ModelMetadata,
    ModelReady,
    ModelStatistic,
    StatisticsAnswer,
    TensorMetadata,
)
from stablernn_server.schemas.timeseries import ModelExample

router = APIRouter(prefix="/v2/models", tags=["models"])
documented = APIRouter(prefix="/v2/models", tags=["models"], responses=ERRORS)
"""Routes that :mod:`stablernn_server.http.middleware` answers; here for the OpenAPI document only."""

LENGTH_HEADER = "Inference-Header-Content-Length"
RAW_CONTENT: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
INFER_REQUEST: dict[str, Any] = {
    "required": True,
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/InferBody"}}, **RAW_CONTENT},
}
INFER_HEADER: dict[str, Any] = {
    "name": LENGTH_HEADER,
    "in": "header",
    "required": False,
    "description": "Bytes of JSON before raw tensors; 0: no JSON, only the bytes of the one input. Without it, the "
    "whole body is JSON.",
    "schema": {"type": "string", "pattern": "^[0-9]{1,18}$", "examples": ["134"]},
}
INFER_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": RAW_CONTENT,
        "description": "JSON; if raw tensors were requested, they follow it, and the header holds its length",
        "headers": {LENGTH_HEADER: {"description": "Bytes of JSON", "schema": {"type": "string"}}},
    }
}
# Default values of optional inputs, for the metadata; those of states are zeros.
MANIFEST_FIELDS = (
    *("task", "cell", "output", "labels", "features", "targets", "horizon", "context_length", "frequency"),
    *("quantiles", "head", "future", "static", "metrics", "preprocessing"),
)
"""Fields of the manifest that the metadata have as they are."""
DEFAULTS = {"lengths": "the full length", "dt": "1", "static": "not known", "future": "not known"}

repository_router = APIRouter(prefix="/v2/repository", tags=["repository"])

EMPTY: dict[int | str, dict[str, Any]] = {200: {"description": "Done; the body is empty", "content": {}}}


@router.get("/stats")
async def all_statistics(request: Request) -> StatisticsAnswer:
    """Counts and times of every served version since the server started."""
    return await _respond(request, get_context(request).models.keys())


@router.get("/{model}/stats")
@router.get("/{model}/versions/{version}/stats", openapi_extra=VERSION_DOCS)
async def model_statistics(request: Request, model: str) -> StatisticsAnswer:
    """Counts and times of one version; of every served version, if only the name is given."""
    models = get_context(request).models
    version = request.path_params.get("version")
    key = models.resolve(model, version)
    if version is None and _is_name(model):
        name = key[0]
        return await _respond(request, [(name, number) for number in models.versions(name)])
    return await _respond(request, [key])


def _is_name(reference: str) -> bool:
    """Return whether a reference is a name without an alias or a version."""
    try:
        ref = parse_ref(reference)
    except RefError:
        return False
    return ref.alias is None and ref.version is None


async def _respond(request: Request, keys: Sequence[Key]) -> StatisticsAnswer:
    # With several workers, there are files to read.
    totals = await asyncio.to_thread(get_context(request).telemetry.statistics.totals, keys)
    return StatisticsAnswer(model_stats=[_describe(name, version, counts) for (name, version), counts in totals])


def _describe(name: str, version: int, counts: ModelStatistics) -> ModelStatistic:
    # Gathering inputs and splitting outputs are not timed apart from the run, and nothing is cached.
    zero = Duration(count=0, ns=0)
    return ModelStatistic(
        name=name,
        version=str(version),
        last_inference=counts.last_ms,
        inference_count=counts.rows,
        execution_count=counts.executions,
        inference_stats=InferenceStatistics(
            success=_duration(counts.success),
            fail=_duration(counts.fail),
            queue=_duration(counts.queue),
            compute_input=_zero_duration(counts.compute),
            compute_infer=_duration(counts.compute),
            compute_output=_zero_duration(counts.compute),
            cache_hit=zero,
            cache_miss=zero,
        ),
        batch_stats=[
            BatchStatistics(
                batch_size=size,
                compute_input=_zero_duration(runs),
                compute_infer=_duration(runs),
                compute_output=_zero_duration(runs),
            )
            for size, runs in sorted(counts.sizes.items())
        ],
    )


def _duration(count_and_ns: list[int]) -> Duration:
    return Duration(count=count_and_ns[0], ns=count_and_ns[1])


def _zero_duration(count_and_ns: list[int]) -> Duration:
    """Return a duration of the same count that took no time of its own."""
    return Duration(count=count_and_ns[0], ns=0)


@router.get("/{model}")
@router.get("/{model}/versions/{version}", openapi_extra=VERSION_DOCS)
async def model_metadata(request: Request, model: str) -> ModelMetadata:
    """Inputs, outputs and facts of a model."""
    context = get_context(request)
    served = await _find_model(request, model)
    manifest = served.manifest
    return ModelMetadata(
        name=served.name,
        versions=[str(number) for number in context.models.versions(served.name)],
        platform="onnx_onnxv1" if served.engine == ONNX else served.engine,
        inputs=[_tensor(spec) for spec in served.sequence.inputs.values()],
        outputs=[_tensor(spec) for spec in served.sequence.outputs.values()],
        parameters={
            "version": str(served.version),
            "aliases": list(served.aliases),
            "stale_aliases": context.models.stale_aliases(served.name, served.version),
            "digest": served.digest,
            **{name: getattr(manifest, name) for name in MANIFEST_FIELDS},
            "calendar": None if manifest.calendar is None else [period.model_dump() for period in manifest.calendar],
            "states": [state.model_dump() for state in served.states],
            "resample_steps": served.resample_steps,
            "certificate": current_certificate(manifest.certificate),
            "example": served.example is not None,
            "state_guard": {
                "states": sorted(served.guard.balls),
                "exits": served.guard.violation_count,
                "note": "inputs of these states outside their certified balls are refused"
                if served.guard.balls
                else "none: the certificate has no ball for any state",
            },
            "input_guard": {
                "ranges": served.guard.inputs.ranges,
                "outside": served.guard.inputs.outside_count,
                "note": _input_guard_note(served, is_refused=context.settings.refuse_inputs_outside),
            },
            "engine": served.engine,
            "engine_note": served.engine_reason,
            "device": served.placement.device,
            "device_note": served.placement.reason,
            "device_id": served.placement.device_id if served.placement.device == "cuda" else None,
            "device_by_work": served.placement.by_work or None,
            "measured_ms": served.placement.measured_ms or None,
        },
    )


@router.get("/{model}/example", response_model_exclude_none=True)
@router.get("/{model}/versions/{version}/example", openapi_extra=VERSION_DOCS, response_model_exclude_none=True)
async def model_example(request: Request, model: str) -> ModelExample:
    """A sample that the model was not fitted on, as an input of ``/v1/timeseries``, with its true answer."""
    served = await _find_model(request, model)
    if served.example is None:
        raise NoExampleError(f"'{served.ref}' stores no example; send a series of your own to /v1/timeseries.")
    try:
        return ModelExample.model_validate_json(served.example)
    except ValidationError:
        # Any publisher may have written the file.
        raise NoExampleError(f"The example that '{served.ref}' stores cannot be read; publish a new version.") from None


@router.get("/{model}/ready")
@router.get("/{model}/versions/{version}/ready", openapi_extra=VERSION_DOCS)
async def model_ready(request: Request, model: str) -> ModelReady:
    """Answers 200 if the model is open, 404 if it is not served."""
    return ModelReady(name=(await _find_model(request, model)).name, ready=True)


@router.get("/{model}/config")
@router.get("/{model}/versions/{version}/config", openapi_extra=VERSION_DOCS)
async def model_config(request: Request, model: str) -> dict[str, Any]:
    """The model as a Triton model configuration; ``max_batch_size`` 0: shapes include the batch."""
    served = await _find_model(request, model)
    return {
        "name": served.name,
        "platform": "onnxruntime_onnx" if served.engine == ONNX else served.engine,
        "backend": "onnxruntime" if served.engine == ONNX else served.engine,
        "version_policy": {"specific": {"versions": get_context(request).models.versions(served.name)}},
        "max_batch_size": 0,
        "input": [{**_config_tensor(spec), "optional": spec.optional} for spec in served.sequence.inputs.values()],
        "output": [_config_tensor(spec) for spec in served.sequence.outputs.values()],
        "instance_group": [{"kind": "KIND_GPU" if served.placement.device == "cuda" else "KIND_CPU", "count": 1}],
        "default_model_filename": "sequence.onnx",
    }


@documented.post(
    "/{model}/infer",
    response_model=InferAnswer,
    responses=INFER_RESPONSES,
    openapi_extra={"requestBody": INFER_REQUEST, "parameters": [INFER_HEADER]},
)
@documented.post(
    "/{model}/versions/{version}/infer",
    response_model=InferAnswer,
    responses=INFER_RESPONSES,
    openapi_extra={"requestBody": INFER_REQUEST, "parameters": [*VERSION_DOCS["parameters"], INFER_HEADER]},
)
async def infer(model: str) -> None:
    """Runs whole sequences; JSON or raw tensors, both ways."""


async def _find_model(request: Request, model: str) -> ServedModel:
    context, active_request = get_context(request), get_request(request)
    version, deadline = request.path_params.get("version"), context.create_caller(active_request).deadline
    active_request.model = served = await context.models.find_open(model, version, deadline)
    return served


def _shape(spec: TensorSignature) -> list[int]:
    # Named axes, such as batch and time, are free.
    return [size if isinstance(size, int) else -1 for size in spec.shape]


def _tensor(spec: TensorSignature) -> TensorMetadata:
    parameters = {"optional": True, "default": DEFAULTS.get(spec.name, "zeros")} if spec.optional else {}
    return TensorMetadata(name=spec.name, datatype=DATATYPES[spec.dtype], shape=_shape(spec), parameters=parameters)


def _config_tensor(spec: TensorSignature) -> dict[str, Any]:
    return {"name": spec.name, "data_type": f"TYPE_{DATATYPES[spec.dtype]}", "dims": _shape(spec)}


def _input_guard_note(served: ServedModel, *, is_refused: bool) -> str:
    if served.guard.inputs.ranges is None:
        return "none: the certificate has no range of inputs"
    return "samples outside are refused" if is_refused else "samples outside are counted and named in the response"


@repository_router.post("/index", openapi_extra=json_request(IndexRequest, required=False))
async def index(request: Request) -> list[IndexEntry]:
    """Every version of the registry, and whether it is served."""
    context = get_context(request)
    body, _ = await context.read_json(get_request(request), request.scope, IndexRequest, is_optional=True)
    entries = await context.models.index()
    return [IndexEntry(**entry) for entry in entries if not body.ready or entry["state"] == "READY"]


@repository_router.post(
    "/models/{model}/load",
    response_class=Response,
    responses=EMPTY,
    openapi_extra=json_request(ControlRequest, required=False),
)
async def load(request: Request, model: str) -> Response:
    """Opens a version, or reopens it; the model that answered before continues until the new one is warm."""
    context, active_request = get_context(request), get_request(request)
    await context.read_json(active_request, request.scope, ControlRequest, is_optional=True)
    active_request.model = await context.models.load(model)
    return Response(status_code=200)


@repository_router.post(
    "/models/{model}/unload",
    response_class=Response,
    responses=EMPTY,
    openapi_extra=json_request(ControlRequest, required=False),
)
async def unload(request: Request, model: str) -> Response:
    """Stops serving a version, or every version of a name."""
    context = get_context(request)
    await context.read_json(get_request(request), request.scope, ControlRequest, is_optional=True)
    await context.models.unload(model)
    return Response(status_code=200)
