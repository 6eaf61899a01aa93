"""Bodies of the Open Inference Protocol v2, for the documentation.

:mod:`stablernn_server.codecs.open_inference` reads them.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Live(BaseModel):
    live: bool


class Ready(BaseModel):
    """Servers of this protocol answer with one key or the other, so that both are here."""

    ready: bool
    live: bool


class ModelReady(BaseModel):
    name: str
    ready: bool


class ServerMetadata(BaseModel):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """A tensor of a model; -1 in ``shape`` is a free size, ``parameters.optional`` marks an optional input."""

    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any]


class ModelMetadata(BaseModel):
    """Metadata of a model; ``parameters`` has what the protocol has no field for: task, labels, device, ..."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: dict[str, Any]


class InferTensor(BaseModel):
    name: str
    shape: list[int]
    datatype: str = Field(examples=["FP32"])
    data: list[Any] | None = Field(
        default=None, description="Flat in row-major order, or nested; null is a missing value."
    )
    parameters: dict[str, Any] | None = Field(default=None, description="binary_data_size, if the data is raw bytes.")


class InferOutput(BaseModel):
    name: str
    parameters: dict[str, Any] | None = Field(default=None, description="binary_data, classification.")


class InferBody(BaseModel):
    """Body of ``POST .../infer``; raw tensors may follow it, see ``Inference-Header-Content-Length``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "42",
                    "inputs": [{"name": "x", "shape": [1, 4, 1], "datatype": "FP32", "data": [0.0, None, 5.0, 13.0]}],
                    "outputs": [{"name": "probabilities"}],
                }
            ]
        }
    )

    id: str | None = None
    inputs: list[InferTensor] = Field(min_length=1)
    outputs: list[InferOutput] | None = Field(default=None, description="Default: every output of the model.")
    parameters: dict[str, Any] | None = Field(
        default=None,
        description="binary_data_output, sequence_id, sequence_start, sequence_end, timeout (microseconds), priority.",
    )


class InferAnswer(BaseModel):
    model_name: str
    model_version: str
    id: str | None = None
    parameters: dict[str, Any] | None = Field(
        default=None,
        description="sequence_id, sequence_start, sequence_end; states_outside_ball, samples_outside_range.",
    )
    outputs: list[InferTensor]
