"""``/v2/models``: what the models are, by the Open Inference Protocol v2."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from stablernn_registry import TensorSignature
from stablernn_registry.documents.certificates import current_certificate
from stablernn_runtime.engines.loaded_graphs import ONNX
from stablernn_runtime.served_model import ServedModel
from stablernn_server.codecs.open_inference import DATATYPES
from stablernn_server.http.app_context import context_of, in_hand_of
from stablernn_server.schemas.common import ERRORS, VERSION_DOCS
from stablernn_server.schemas.open_inference import InferAnswer, ModelMetadata, ModelReady, TensorMetadata

router = APIRouter(prefix="/v2/models", tags=["models"])
documented = APIRouter(prefix="/v2/models", tags=["models"], responses=ERRORS)
"""Routes that :mod:`stablernn_server.http.middleware` answers: here for the OpenAPI document alone."""

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
    "description": "Bytes of JSON before raw tensors; 0: no JSON, only the bytes of the one input. Left out: all JSON.",
    "schema": {"type": "string", "pattern": "^[0-9]{1,18}$", "examples": ["134"]},
}
INFER_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "content": RAW_CONTENT,
        "description": "JSON; with raw tensors behind it where they were asked for, and its length in the header",
        "headers": {LENGTH_HEADER: {"description": "Bytes of JSON", "schema": {"type": "string"}}},
    }
}
# What an optional input is when it is left out.
DEFAULTS = {"lengths": "the full length", "dt": "1", "static": "not known", "future": "not known"}


@router.get("/{model}")
@router.get("/{model}/versions/{version}", openapi_extra=VERSION_DOCS)
async def model_metadata(request: Request, model: str) -> ModelMetadata:
    """Inputs, outputs and facts of a model."""
    models = context_of(request).models
    found = await _find(request, model)
    manifest = found.manifest
    return ModelMetadata(
        name=found.name,
        versions=[str(number) for number in models.versions(found.name)],
        platform="onnx_onnxv1" if found.engine == ONNX else found.engine,
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
            "certificate": current_certificate(manifest.certificate),
            "metrics": manifest.metrics,
            "preprocessing": manifest.preprocessing,
            "state_guard": {
                "states": sorted(found.guard.balls),
                "exits": found.guard.violation_count,
                "note": "inputs of these states outside their certified balls are refused"
                if found.guard.balls
                else "none: the certificate knows no ball for any state",
            },
            "engine": found.engine,
            "engine_note": found.engine_reason,
            "device": found.placement.device,
            "device_note": found.placement.reason,
        },
    )


@router.get("/{model}/ready")
@router.get("/{model}/versions/{version}/ready", openapi_extra=VERSION_DOCS)
async def model_ready(request: Request, model: str) -> ModelReady:
    """Answers 200 when the model is open; one that is not served is a 404."""
    return ModelReady(name=(await _find(request, model)).name, ready=True)


@router.get("/{model}/config")
@router.get("/{model}/versions/{version}/config", openapi_extra=VERSION_DOCS)
async def model_config(request: Request, model: str) -> dict[str, Any]:
    """The model in the words of Triton's model configuration; ``max_batch_size`` 0: shapes include the batch."""
    found = await _find(request, model)
    return {
        "name": found.name,
        "platform": "onnxruntime_onnx" if found.engine == ONNX else found.engine,
        "backend": "onnxruntime" if found.engine == ONNX else found.engine,
        "version_policy": {"specific": {"versions": context_of(request).models.versions(found.name)}},
        "max_batch_size": 0,
        "input": [{**_config_tensor(spec), "optional": spec.optional} for spec in found.sequence.inputs.values()],
        "output": [_config_tensor(spec) for spec in found.sequence.outputs.values()],
        "instance_group": [{"kind": "KIND_GPU" if found.placement.device == "cuda" else "KIND_CPU", "count": 1}],
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


async def _find(request: Request, model: str) -> ServedModel:
    context, item = context_of(request), in_hand_of(request)
    version, deadline = request.path_params.get("version"), context.caller(item).deadline
    item.model = found = await context.models.find_open(model, version, deadline)
    return found


def _shape(spec: TensorSignature) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in spec.shape]


def _tensor(spec: TensorSignature) -> TensorMetadata:
    parameters = {"optional": True, "default": DEFAULTS.get(spec.name, "zeros")} if spec.optional else {}
    return TensorMetadata(name=spec.name, datatype=DATATYPES[spec.dtype], shape=_shape(spec), parameters=parameters)


def _config_tensor(spec: TensorSignature) -> dict[str, Any]:
    return {"name": spec.name, "data_type": f"TYPE_{DATATYPES[spec.dtype]}", "dims": _shape(spec)}
