"""``/v2/models``: metadata of the models, by the Open Inference Protocol v2."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from pydantic import ValidationError

from stablernn_registry import TensorSignature
from stablernn_registry.certificates import current_certificate
from stablernn_runtime.engines.loaded_graphs import ONNX
from stablernn_runtime.served_model import ServedModel
from stablernn_server.codecs.open_inference import DATATYPES
from stablernn_server.errors import NoExampleError
from stablernn_server.http.app_context import get_context
from stablernn_server.http.request import get_request
from stablernn_server.schemas.common import ERRORS, VERSION_DOCS
from stablernn_server.schemas.open_inference import InferAnswer, ModelMetadata, ModelReady, TensorMetadata
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
DEFAULTS = {"lengths": "the full length", "dt": "1", "static": "not known", "future": "not known"}


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
            "states": [state.model_dump() for state in served.states],
            "resample_steps": served.resample_steps,
            "certificate": current_certificate(manifest.certificate),
            "example": served.example is not None,
            "metrics": manifest.metrics,
            "preprocessing": manifest.preprocessing,
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
