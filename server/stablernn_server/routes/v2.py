"""``/v2/models``: metadata and inference by the Open Inference Protocol v2."""

from __future__ import annotations

import logging
import time
from typing import Any

from fastapi import APIRouter, Request, Response

from stablernn_registry import TensorSignature
from stablernn_server.body import too_large
from stablernn_server.codec import DATATYPES, decode_request, encode_response, json_bytes
from stablernn_server.context import context_of
from stablernn_server.runtime.onnx_model import OnnxModel
from stablernn_server.runtime.session import Stop
from stablernn_server.schemas.v2 import InferAnswer, ModelMetadata, ModelReady, TensorMetadata
from stablernn_server.series import check_size
from stablernn_server.settings import Settings

logger = logging.getLogger(__name__)

router = APIRouter(prefix="/v2/models", tags=["models"])

INFER_DOCS: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/InferBody"}}},
    }
}
# Read from the path by hand: as an argument, it would be a query parameter of the routes without it.
VERSION_DOCS: dict[str, Any] = {
    "parameters": [{"name": "version", "in": "path", "required": True, "schema": {"type": "string", "examples": ["1"]}}]
}
# What an optional input is when it is left out.
DEFAULTS = {"lengths": "the full length", "dt": "1", "static": "not known", "future": "not known"}


@router.get("/{model}")
@router.get("/{model}/versions/{version}", openapi_extra=VERSION_DOCS)
async def model_metadata(request: Request, model: str) -> ModelMetadata:
    """Inputs, outputs and facts of a model."""
    models = context_of(request).models
    found = _find(request, model)
    manifest = found.manifest
    return ModelMetadata(
        name=found.name,
        versions=[str(number) for number in models.versions(found.name)],
        platform="onnx_onnxv1",
        inputs=[_tensor(spec) for spec in found.sequence.inputs.values()],
        outputs=[_tensor(spec) for spec in found.sequence.outputs.values()],
        parameters={
            "version": str(found.version),
            "aliases": list(found.aliases),
            "digest": found.digest,
            "task": manifest.task,
            "cell": manifest.cell,
            "output": manifest.output,
            "labels": manifest.labels,
            "features": manifest.features,
            "targets": manifest.targets,
            "horizon": manifest.horizon,
            "context_length": manifest.context_length,
            "frequency": manifest.frequency,
            "quantiles": manifest.quantiles,
            "head": manifest.head,
            "future": manifest.future,
            "static": manifest.static,
            "calendar": None if manifest.calendar is None else [period.model_dump() for period in manifest.calendar],
            "states": [state.model_dump() for state in found.states],
            "certificate": manifest.certificate,
            "state_guard": {
                "states": sorted(found.guard.balls),
                "exits": found.guard.exits,
                "note": "inputs of these states outside their certified balls are refused"
                if found.guard.balls
                else "none: the certificate knows no ball for any state",
            },
            "engine": "onnx",
            "device": found.placement.device,
            "device_note": found.placement.note,
        },
    )


@router.get("/{model}/ready")
@router.get("/{model}/versions/{version}/ready", openapi_extra=VERSION_DOCS)
async def model_ready(request: Request, model: str) -> ModelReady:
    """Answers 200 when the model is open; one that is not served is a 404."""
    return ModelReady(name=_find(request, model).name, ready=True)


@router.get("/{model}/config")
@router.get("/{model}/versions/{version}/config", openapi_extra=VERSION_DOCS)
async def model_config(request: Request, model: str) -> dict[str, Any]:
    """The model in the words of Triton's model configuration; ``max_batch_size`` 0: shapes include the batch."""
    found = _find(request, model)
    return {
        "name": found.name,
        "platform": "onnxruntime_onnx",
        "backend": "onnxruntime",
        "version_policy": {"specific": {"versions": context_of(request).models.versions(found.name)}},
        "max_batch_size": 0,
        "input": [{**_config_tensor(spec), "optional": spec.optional} for spec in found.sequence.inputs.values()],
        "output": [_config_tensor(spec) for spec in found.sequence.outputs.values()],
        "instance_group": [{"kind": "KIND_GPU" if found.placement.device == "cuda" else "KIND_CPU", "count": 1}],
        "default_model_filename": "sequence.onnx",
    }


@router.post("/{model}/infer", response_model=InferAnswer, openapi_extra=INFER_DOCS)
@router.post(
    "/{model}/versions/{version}/infer", response_model=InferAnswer, openapi_extra={**INFER_DOCS, **VERSION_DOCS}
)
async def infer(request: Request, model: str) -> Response:
    """Runs whole sequences; JSON or raw tensors, both ways."""
    context = context_of(request)
    found = _find(request, model)
    header = request.headers.get("inference-header-content-length")
    settings = context.settings
    async with context.take(request) as item:
        body = await context.read(item, settings.json_limit if header is None else settings.max_body_bytes)
        started = time.perf_counter()
        content, json_length = await context.work(item, _infer, found, body, header, settings)
    logger.info("infer %s:%d %.2f ms", found.name, found.version, 1e3 * (time.perf_counter() - started))
    if json_length is None:
        return Response(content, media_type="application/json")
    headers = {"Inference-Header-Content-Length": str(json_length)}
    return Response(content, headers=headers, media_type="application/octet-stream")


def _find(request: Request, model: str) -> OnnxModel:
    return context_of(request).models.find(model, request.path_params.get("version"))


def _infer(
    stop: Stop, model: OnnxModel, body: bytes, header: str | None, settings: Settings
) -> tuple[bytes, int | None]:
    """Decode, run, encode: everything about one request that takes time."""
    head = json_bytes(body, header)
    if head > settings.json_limit:
        raise too_large(settings.json_limit)
    request = decode_request(body, head)
    x = request.inputs.get(model.input_name)
    if x is not None and x.ndim == len(model.sequence.inputs[model.input_name].shape):
        check_size(model, x.shape[0], x.shape[1], settings)
    names = None if request.outputs is None else [output.name for output in request.outputs]
    outside: set[str] = set()
    answers = model.run(model.sequence, request.inputs, names, stop, from_client=True, outside=outside)
    about: dict[str, Any] = {"model_name": model.name, "model_version": str(model.version)}
    if outside:
        about["parameters"] = {"states_outside_ball": ", ".join(sorted(outside))}
    return encode_response(about, request, answers, model.manifest.labels)


def _shape(spec: TensorSignature) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in spec.shape]


def _tensor(spec: TensorSignature) -> TensorMetadata:
    parameters = {"optional": True, "default": DEFAULTS.get(spec.name, "zeros")} if spec.optional else {}
    return TensorMetadata(name=spec.name, datatype=DATATYPES[spec.dtype], shape=_shape(spec), parameters=parameters)


def _config_tensor(spec: TensorSignature) -> dict[str, Any]:
    return {"name": spec.name, "data_type": f"TYPE_{DATATYPES[spec.dtype]}", "dims": _shape(spec)}
