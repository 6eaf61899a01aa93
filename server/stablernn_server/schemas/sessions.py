"""Bodies of ``/v1/sessions`` and ``/v1/step``, and the text frames of ``/v1/stream``.

Samples are left to :mod:`stablernn_server.handlers.stream_inputs`: a pydantic check of every number would cost more
than a step.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from stablernn_registry.errors import did_you_mean

_VALUE: dict[str, Any] = {"anyOf": [{"type": "number"}, {"type": "null"}]}
_TIME: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "number"}]}
_KNOWN: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "array", "items": _VALUE}}

Values = Annotated[
    Any,
    WithJsonSchema(
        {
            "description": "One sample, an array of its numbers (a number alone of models that follow tokens); or "
            "several, one level more. null is a missing value.",
            "anyOf": [{"type": "integer"}, {"type": "array", "minItems": 1, "items": {}}],
        }
    ),
]
Times = Annotated[
    Any,
    WithJsonSchema(
        {
            "description": "ISO 8601, or a number of regular steps: of the first reading, or of each sample.",
            "anyOf": [*_TIME["anyOf"], {"type": "array", "minItems": 1, "items": _TIME}],
        }
    ),
]
Distances = Annotated[
    Any,
    WithJsonSchema(
        {
            "description": "Of models of irregular time: from the reading before to each, in regular steps; that of a "
            "stream's first reading does not count.",
            "anyOf": [{"type": "number"}, {"type": "array", "minItems": 1, "items": {}}],
        }
    ),
]
Future = Annotated[
    Any,
    WithJsonSchema(
        {
            "description": "By name, numbers of the steps ahead; for several samples, an array of such objects.",
            "anyOf": [_KNOWN, {"type": "array", "minItems": 1, "items": {"anyOf": [_KNOWN, {"type": "null"}]}}],
        }
    ),
]
Static = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "description": "By name, what never changes within the stream; null or left out is not known.",
            "type": "object",
            "additionalProperties": _VALUE,
        }
    ),
]


class _Body(BaseModel):
    """A body whose fields are all known: one that is misspelled would change what a stream remembers."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _spelled(cls, given: Any) -> Any:
        if isinstance(given, dict) and not given.keys() <= cls.model_fields.keys():
            known = list(cls.model_fields)
            name = str(next(name for name in given if name not in cls.model_fields))[:64]
            raise ValueError(f"Unknown field '{name}'.{did_you_mean(name, known)} Known are {', '.join(known)}")
        return given


class OpenSession(_Body):
    """Body of ``POST /v1/sessions``.

    Attributes:
        model: NAME, NAME@ALIAS or NAME:VERSION; may be left out where a token says it.
        static: What never changes within the stream.
        state_token: Go on from here instead of from the beginning.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "co2"}]})

    model: str | None = None
    static: Static | None = None
    state_token: str | None = None


class Samples(_Body):
    """One or several samples of a stream.

    Attributes:
        values: The samples.
        time: When they were.
        dt: Likewise, as distances.
        sequence: Number of the first of them in the stream, from 1; another one than is due is an error.
        future: What is known of the steps ahead.
        every: Whether each sample has an answer, or the last alone.
        token: Whether the answer has a state token.
        horizon: Steps ahead of a forecast; a recursive head answers one where it is left out.
    """

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"values": [369.1], "sequence": 1}, {"values": [[369.1], [None]]}]}
    )

    values: Values = None
    time: Times = None
    dt: Distances = None
    sequence: int | None = Field(default=None, ge=1)
    future: Future = None
    every: bool = True
    token: bool = False
    horizon: int | None = Field(default=None, ge=1)


class TokenStep(Samples):
    """Body of ``POST /v1/step``.

    Attributes:
        state_token: Where the stream is.
        model: Of a stream that begins.
        static: What never changes within a stream that begins.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "co2", "values": [369.1]}]})

    state_token: str | None = None
    model: str | None = None
    static: Static | None = None


class TextFrame(Samples):
    """A text frame of ``/v1/stream``.

    Attributes:
        stream: Number of the stream.
        id: Anything; comes back with the answer.
        state_token: Without ``values``: the stream goes on from here.
        static: Of a stream that begins.
        close: Forget the stream, after its values are taken and its token is given.
    """

    stream: int = Field(default=0, ge=0, lt=2**32)
    id: str | int | float | None = None
    state_token: str | None = None
    static: Static | None = None
    close: bool = False


class SessionOpened(BaseModel):
    """A session: ``sample_shape`` is what one sample looks like, ``outputs`` names what each step answers with."""

    session_id: str
    model: str
    model_version: str
    digest: str
    step: int
    expires_in_seconds: float
    sample_shape: list[int]
    outputs: list[str]


class Stepped(BaseModel):
    """The outputs of each step, and how many samples the stream has taken with them."""

    session_id: str | None = None
    model: str
    model_version: str
    step: int
    outputs: list[dict[str, Any]]
    state_token: str | None = None
    states_outside_ball: list[str] = Field(
        default_factory=list,
        description="States that left the ball of the model's certificate; only there where one did.",
    )


class StateNorm(BaseModel):
    """Size of one state, and of the ball that its certificate says it stays in; null where there is none."""

    state: str
    norm: str
    size: float
    radius: float | None
    ratio: float | None


class SessionDetails(SessionOpened):
    """A session as it is now; ``last`` holds the outputs of its last step."""

    age_seconds: float
    idle_seconds: float
    states: list[StateNorm]
    last: dict[str, Any] | None = None
    state_token: str | None = None


class SessionClosed(BaseModel):
    session_id: str
    step: int
    closed: bool
