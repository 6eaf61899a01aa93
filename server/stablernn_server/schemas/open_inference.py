"""Bodies of the Open Inference Protocol v2, for the documentation.

:mod:`stablernn_server.codecs.open_inference` reads them.

Those of Triton's statistics and model repository extensions are here, too.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stablernn_server.errors import cut


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


class Duration(BaseModel):
    count: int
    ns: int = Field(description="Total time in nanoseconds.")


class InferenceStatistics(BaseModel):
    """Statistics by request. ``compute_infer`` includes gathering inputs and splitting outputs; nothing is cached."""

    success: Duration = Field(description="Answered requests, from the head to the end of the response.")
    fail: Duration = Field(description="Requests that were refused or failed.")
    queue: Duration = Field(description="Wait until the run began.")
    compute_input: Duration
    compute_infer: Duration = Field(description="Time of the run, counted once for each request in it.")
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class BatchStatistics(BaseModel):
    """Statistics by run."""

    batch_size: int = Field(description="Number of rows; above 1024, the next power of two.")
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class ModelStatistic(BaseModel):
    name: str
    version: str
    last_inference: int = Field(description="End of the last run, in milliseconds of Unix time; 0 for never.")
    inference_count: int = Field(description="Number of sequences and streams in all runs.")
    execution_count: int = Field(description="Number of runs.")
    inference_stats: InferenceStatistics
    batch_stats: list[BatchStatistics]


class StatisticsAnswer(BaseModel):
    model_stats: list[ModelStatistic]


class IndexRequest(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    ready: bool = Field(default=False, description="List only versions that are served.")


class ControlParameters(BaseModel):
    """Parameters of loading and unloading; none of them changes what is loaded, which is in the registry."""

    model_config = ConfigDict(extra="forbid", strict=True)

    unload_dependents: bool = Field(default=False, description="No model depends on another here.")

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, fields: Any) -> Any:
        # Triton takes configurations and files of a model here; pydantic would only call them extra inputs.
        if isinstance(fields, dict) and (unknown := sorted(map(str, fields.keys() - cls.model_fields.keys()))):
            raise ValueError(
                f"The parameter '{cut(unknown[0])}' is not supported: models come from the registry. Publish a version "
                "there and load it"
            )
        return fields


class ControlRequest(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    parameters: ControlParameters = Field(default_factory=ControlParameters)


class IndexEntry(BaseModel):
    """A version of the registry; ``reason`` says why a version is not served."""

    name: str
    version: str
    state: str = Field(description="READY or UNAVAILABLE.")
    reason: str
