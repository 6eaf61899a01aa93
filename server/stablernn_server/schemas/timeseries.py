"""Bodies of ``/v1/timeseries``; field names are those of KServe's time-series API.

Series are left to :mod:`stablernn_server.handlers.timeseries`: a pydantic check of every number would cost more than
inference.
"""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from stablernn_runtime.calendar import describe_unix_time

UNIVARIATE = "univariate_time_series"
MULTIVARIATE = "multivariate_time_series"

_NEAR = 0.8
"""Likeness from which on an unknown field is taken for a misspelled one; that of 'station' and 'static' is 0.77."""
_MOST_COMPARED = 32
_VALUE = {"anyOf": [{"type": "number"}, {"type": "null"}]}
Series = Annotated[
    Any,
    WithJsonSchema(
        {
            "description": "Numbers for one feature, or one array of numbers per time step; null is a missing value.",
            "anyOf": [
                {"type": "array", "items": _VALUE, "minItems": 1},
                {"type": "array", "items": {"type": "array", "items": _VALUE, "minItems": 1}, "minItems": 1},
            ],
        }
    ),
]


Known = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "description": "By name, numbers of the steps ahead; null is one that is not known.",
            "type": "object",
            "additionalProperties": {"type": "array", "items": _VALUE},
        }
    ),
]
Constants = Annotated[
    dict[str, Any],
    WithJsonSchema({"description": "By name, a number or null.", "type": "object", "additionalProperties": _VALUE}),
]


def _is_text(value: object) -> object:
    """``value``; of a Unix time the error says which timestamp it is."""
    if isinstance(value, int | float) and (text := describe_unix_time(value)):
        raise ValueError(f"must be ISO 8601 text, and the number is {text}; send that")
    return value


Timestamp = Annotated[str, BeforeValidator(_is_text)]


class _Request(BaseModel):
    """More fields than are known are allowed, as in KServe, unless their names are nearly those of known ones."""

    model_config = ConfigDict(extra="allow", strict=True)

    @model_validator(mode="after")
    def _spelled(self) -> Self:
        known = list(type(self).model_fields)
        # Comparing names takes time, and a body may hold any number of them.
        for name in islice(self.model_extra or {}, _MOST_COMPARED):
            if meant := get_close_matches(name.lower()[:64], known, n=1, cutoff=_NEAR):
                raise ValueError(
                    f"Unknown field '{name[:64]}'. Did you mean '{meant[0]}'? Known are {', '.join(known)}"
                )
        return self


class SeriesInput(_Request):
    """One observed series.

    Attributes:
        series: Its values, oldest first; without the features of the calendar, which follow from the time.
        type: Checked against the nesting of ``series`` when given.
        name: Comes back with the answer; default: its place among the inputs.
        frequency: Spacing of the time stamps; default: what the model was trained on.
        start_timestamp: ISO 8601 time of the first value; without it the answer has no time stamps. Needed by models
            that are told where each step lies in the calendar.
        dt: For models of irregular time: the time from the value before to each value, in the model's regular steps;
            the first one does not count. All 1 when left out.
        future: What is known of the steps ahead; what is left out is not known.
        static: What never changes within the series; likewise.
    """

    series: Series
    type: Literal["univariate_time_series", "multivariate_time_series"] | None = None
    name: str | None = Field(default=None, max_length=256)
    frequency: str | None = Field(default=None, max_length=32, examples=["W", "MS", "15min"])
    start_timestamp: Timestamp | None = Field(default=None, max_length=64, examples=["2024-01-06T00:00:00Z"])
    dt: list[float] | None = Field(default=None, examples=[None])
    future: Known | None = None
    static: Constants | None = None


class _SeriesRequest(_Request):
    model: str = Field(description="NAME, NAME@ALIAS or NAME:VERSION.")
    inputs: list[SeriesInput] = Field(min_length=1, max_length=4096)
    metadata: dict[str, Any] | None = Field(default=None, description="Anything of the client's own; not read.")


class ForecastOptions(_Request):
    """What to forecast.

    Attributes:
        horizon: Steps ahead; default: all that the model was trained for.
        quantiles: Levels among those trained; default: all of them.
    """

    horizon: int | None = Field(default=None, ge=1)
    quantiles: list[float] | None = Field(default=None, max_length=99, examples=[[0.1, 0.9]])


class ForecastRequest(_SeriesRequest):
    """Body of ``POST /v1/timeseries/forecast``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "co2",
                    "inputs": [
                        {
                            "type": UNIVARIATE,
                            "name": "mauna-loa",
                            "series": [369.1, None, 369.4, 369.6],
                            "frequency": "W",
                            "start_timestamp": "2024-01-06T00:00:00Z",
                        }
                    ],
                    "options": {"horizon": 3, "quantiles": [0.1, 0.9]},
                }
            ]
        }
    )

    options: ForecastOptions = Field(default_factory=ForecastOptions)


class ClassifyOptions(_Request):
    """How many classes to answer with.

    Attributes:
        top_k: The most probable classes only; default: all.
    """

    top_k: int | None = Field(default=None, ge=1)


class ClassifyRequest(_SeriesRequest):
    """Body of ``POST /v1/timeseries/classify``."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"model": "digits", "inputs": [{"series": [0, 0, 5, 13]}], "options": {"top_k": 3}}]
        }
    )

    options: ClassifyOptions = Field(default_factory=ClassifyOptions)


Values = list[float | None] | list[list[float | None]]


class Forecast(BaseModel):
    """The forecast of one series, in raw units.

    Attributes:
        type: Univariate for one target (flat arrays), else multivariate (arrays in the order of ``targets``).
        name: The series' name.
        mean_forecast: One value, or one array, per step ahead.
        quantiles: The same for each level, by the level as text.
        frequency: The frequency used, or null.
        start_timestamp: Time of the first forecast step, or null when the series had none.
        targets: Names of the forecast variables.
        context_used: Steps at the end of the series that the forecast rests on.
    """

    type: Literal["univariate_time_series", "multivariate_time_series"]
    name: str
    mean_forecast: Values
    quantiles: dict[str, Values]
    frequency: str | None
    start_timestamp: str | None
    targets: list[str]
    context_used: int


class ClassProbabilities(BaseModel):
    """The classes of one series.

    Attributes:
        name: The series' name.
        label: The most probable class.
        probabilities: By class, most probable first.
    """

    name: str
    label: str
    probabilities: dict[str, float]


class ForecastOutput(BaseModel):
    type: Literal["time_series_forecast"]
    id: str
    status: Literal["completed"]
    content: list[Forecast]
    error: None = None


class ClassifyOutput(BaseModel):
    type: Literal["time_series_classification"]
    id: str
    status: Literal["completed"]
    content: list[ClassProbabilities]
    error: None = None


class _Response(BaseModel):
    id: str
    created_at: int = Field(description="Unix time in seconds.")
    status: Literal["completed"]
    error: None = None
    model: str
    model_version: str
    states_outside_ball: list[str] = Field(
        default_factory=list,
        description="States that left the ball of the model's certificate; only there where one did.",
    )


class ForecastResponse(_Response):
    """Answer of ``POST /v1/timeseries/forecast``: one output for each input, in their order."""

    outputs: list[ForecastOutput]


class ClassifyResponse(_Response):
    """Answer of ``POST /v1/timeseries/classify``: one output for each input, in their order."""

    outputs: list[ClassifyOutput]
