"""Parts of the OpenAPI document that all routes share."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class ErrorBody(BaseModel):
    """Body of every response that is not 200."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"error": "Unknown model 'digts'. Did you mean 'digits'?", "code": "unknown_model"}]
        }
    )

    error: str = Field(description="One sentence: what was wrong, what was given, what is allowed.")
    code: str = Field(description="Error code for programs.")


# The routes read it from the path: as a function argument, it would be a query parameter of the routes without it.
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
    """Return the part of the OpenAPI document for a JSON body that the route parses itself."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema.__name__}"}}}
    return {"requestBody": {"required": required, "content": content}}


ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "Bad input"},
    401: {"model": ErrorBody, "description": "No token, or an unknown one"},
    403: {"model": ErrorBody, "description": "Not allowed for this token, or for a page of another host"},
    404: {"model": ErrorBody, "description": "Not served here"},
    405: {"model": ErrorBody, "description": "Method not supported by this path"},
    408: {"model": ErrorBody, "description": "The body arrived too slowly"},
    409: {"model": ErrorBody, "description": "In conflict with the state of the stream, session or model"},
    413: {"model": ErrorBody, "description": "Too large"},
    429: {"model": ErrorBody, "description": "Too many requests at a time from this client"},
    503: {"model": ErrorBody, "description": "Starting, shutting down, or too busy"},
    504: {"model": ErrorBody, "description": "Not answered before the deadline"},
}
"""Error responses of any route, for the documentation."""
