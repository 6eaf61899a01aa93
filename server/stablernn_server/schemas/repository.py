"""Bodies of ``/v2/repository``: Triton's model repository extension."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stablernn_server.errors import cut


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
