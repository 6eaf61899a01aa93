"""Bodies of ``/v2/repository``: Triton's model repository extension."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from stablernn_server.errors import cut


class IndexRequest(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    ready: bool = Field(default=False, description="List only what is served.")


class ControlParameters(BaseModel):
    """No parameter changes what is loaded: that lies in the registry."""

    model_config = ConfigDict(extra="forbid", strict=True)

    unload_dependents: bool = Field(default=False, description="No model depends on another here.")

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        if isinstance(given, dict) and (strange := sorted(map(str, given.keys() - cls.model_fields.keys()))):
            raise ValueError(
                f"The parameter '{cut(strange[0])}' is not supported: what is served lies in the registry. Publish a "
                "version there and load it"
            )
        return given


class ControlRequest(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True)

    parameters: ControlParameters = Field(default_factory=ControlParameters)


class IndexEntry(BaseModel):
    """A version of the registry; ``reason`` says why one that is not served is not."""

    name: str
    version: str
    state: str = Field(description="READY or UNAVAILABLE.")
    reason: str
