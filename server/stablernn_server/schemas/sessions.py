"""Bodies of ``/v1/sessions`` and ``/v1/step``, and the text frames of ``/v1/stream``.

Samples are checked by :mod:`stablernn_server.handlers.stream_inputs`: a pydantic validation of every number would take
longer than a step.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, model_validator

from stablernn_registry.errors import did_you_mean

_VALUE: dict[str, Any] = {"anyOf": [{"type": "number"}, {"type": "null"}]}
_TIME: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "number"}]}
_FUTURE: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "array", "items": _VALUE}}

Values = Annotated[
    Any,
    WithJsonSchema(
        {
            "description": "One sample, as an array of its numbers (for models of tokens, as a number); or an array of "
            "several samples. null is a missing value.",
            "anyOf": [{"type": "integer"}, {"type": "array", "minItems": 1, "items": {}}],
        }
    ),
]
Times = Annotated[
    Any,
    WithJsonSchema(
        {
            "description": "Time of the first sample, or of each: ISO 8601, or a number of regular steps.",
            "anyOf": [*_TIME["anyOf"], {"type": "array", "minItems": 1, "items": _TIME}],
        }
    ),
]
Distances = Annotated[
    Any,
    WithJsonSchema(
        {
            "description": "For models of irregular time: time from the previous sample to each, in regular steps; "
            "that of a stream's first sample is ignored.",
            "anyOf": [{"type": "number"}, {"type": "array", "minItems": 1, "items": {}}],
        }
    ),
]
Future = Annotated[
    Any,
    WithJsonSchema(
        {
            "description": "Numbers of the steps ahead, by name; for several samples, an array of such objects.",
            "anyOf": [_FUTURE, {"type": "array", "minItems": 1, "items": {"anyOf": [_FUTURE, {"type": "null"}]}}],
        }
    ),
]
Static = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "description": "Values that never change within the stream, by name; null or a missing name is unknown.",
            "type": "object",
            "additionalProperties": _VALUE,
        }
    ),
]


class _Body(BaseModel):
    """A body without unknown fields: a misspelled one would change the state of a stream."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, fields: Any) -> Any:
        # Before pydantic's own check, which names no alternatives.
        if isinstance(fields, dict) and not fields.keys() <= cls.model_fields.keys():
            known_names = list(cls.model_fields)
            name = str(next(name for name in fields if name not in cls.model_fields))[:64]
            hint = did_you_mean(name, known_names)
            raise ValueError(f"Unknown field '{name}'.{hint} Known fields: {', '.join(known_names)}")
        return fields


class OpenSession(_Body):
    """Body of ``POST /v1/sessions``.

    Attributes:
        model: NAME, NAME@ALIAS or NAME:VERSION; may be left out with a token, which names it.
        static: Values that never change within the stream.
        state_token: The state to continue from, instead of the beginning.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "co2"}]})

    model: str | None = None
    static: Static | None = None
    state_token: str | None = None


class Samples(_Body):
    """One or several samples of a stream.

    Attributes:
        values: The samples.
        time: Times of the samples.
        dt: Times of the samples, as distances.
        sequence: Number of the first sample in the stream, from 1; an error if it is not the next one.
        future: Values of the steps ahead that are known.
        every: Whether there are outputs for each sample, or only for the last.
        token: Whether the response has a state token.
        horizon: Steps ahead of a forecast; without it, a recursive head forecasts one.
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
        state_token: State of the stream; None for a new stream.
        model: Model of a new stream.
        static: Values that never change within a new stream.
    """

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "co2", "values": [369.1]}]})

    state_token: str | None = None
    model: str | None = None
    static: Static | None = None


class TextFrame(Samples):
    """A text frame of ``/v1/stream``.

    Attributes:
        stream: Number of the stream.
        id: Any value; returned with the reply.
        state_token: State to continue the stream from; without ``values``.
        static: Values that never change within a new stream.
        close: Whether the stream ends, after its values are taken and its token is returned.
    """

    stream: int = Field(default=0, ge=0, lt=2**32)
    id: str | int | float | None = None
    state_token: str | None = None
    static: Static | None = None
    close: bool = False


class SessionOpened(BaseModel):
    """A session: ``sample_shape`` is the shape of one sample, ``outputs`` names the outputs of each step.

    There are outputs after every ``patch_stride`` samples.
    """

    session_id: str
    model: str
    model_version: str
    digest: str
    step: int
    expires_in_seconds: float
    sample_shape: list[int]
    patch_stride: int
    outputs: list[str]


class Stepped(BaseModel):
    """The outputs of each step, none while a patch is not full, and the samples that the stream has taken so far."""

    session_id: str | None = None
    model: str
    model_version: str
    step: int
    outputs: list[dict[str, Any]]
    state_token: str | None = None
    states_outside_ball: list[str] = Field(
        default_factory=list,
        description="States that left the ball of the model's certificate; only present if one did.",
    )
    samples_outside_range: int = Field(
        default=0,
        description="Samples outside the range of inputs that the model is certified for; only present if any is.",
    )
    drift_alarms: int = Field(
        default=0,
        description="Alarms of the test for drift that these samples raised; only present if there is one.",
    )


class Coverage(BaseModel):
    """Coverage of the adaptive intervals of a stream: forecasts whose true values have arrived, and those covered."""

    nominal: float
    scored: int
    covered: int


class StateNorm(BaseModel):
    """Norm of one state, and radius of the ball in which it stays by the certificate; null if there is no ball."""

    state: str
    norm: str
    size: float
    radius: float | None
    ratio: float | None


class SessionDetails(SessionOpened):
    """The current state of a session; ``last`` holds the outputs of its last step."""

    age_seconds: float
    idle_seconds: float
    states: list[StateNorm]
    last: dict[str, Any] | None = None
    coverage: list[Coverage] | None = Field(
        default=None, description="Only present on a server with adaptive intervals, an entry for each pair of levels."
    )
    state_token: str | None = None


class SessionClosed(BaseModel):
    session_id: str
    step: int
    closed: bool
