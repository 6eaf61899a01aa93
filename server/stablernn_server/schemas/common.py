"""What every route shares."""

from __future__ import annotations

from typing import Any

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


# Read from the path by hand: as an argument, it would be a query parameter of the routes without it.
VERSION_DOCS: dict[str, Any] = {
    "parameters": [
        {
            "name": "version",
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": "^[1-9][0-9]{0,8}$", "examples": ["1"]},
        }
    ]
}


def json_request(schema: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """What a route says in the OpenAPI document of a JSON body that it reads itself."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema.__name__}"}}}
    return {"requestBody": {"required": required, "content": content}}


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "Bad input"},
    401: {"model": ErrorBody, "description": "No token, or one that is not known"},
    403: {"model": ErrorBody, "description": "Not for this token, or not for a page of another host"},
    404: {"model": ErrorBody, "description": "Not served here"},
    405: {"model": ErrorBody, "description": "Not by this method"},
    408: {"model": ErrorBody, "description": "The body arrived too slowly"},
    409: {"model": ErrorBody, "description": "It does not fit the state that it meets"},
    413: {"model": ErrorBody, "description": "Too large"},
    429: {"model": ErrorBody, "description": "More at a time than this client may have"},
    503: {"model": ErrorBody, "description": "Starting, shutting down, or too busy"},
    504: {"model": ErrorBody, "description": "Not answered within its time"},
}
"""What any route may answer with instead, for the documentation."""
