"""What every route shares."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class ErrorBody(BaseModel):
    """The body of every answer that is not 200."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"error": "Unknown model 'digts'. Did you mean 'digits'?", "code": "unknown_model"}]
        }
    )

    error: str = Field(description="One sentence: what was wrong, what was given, what is allowed.")
    code: str = Field(description="A word for programs.")
