"""Bodies of ``/v1/timeseries``; field names are those of KServe's time-series API.

Series are checked by :mod:`stablernn_server.handlers.timeseries`: a pydantic validation of every number would take
longer than inference.
"""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from stablernn_runtime.calendar import describe_unix_time

UNIVARIATE = "univariate_time_series"
MULTIVARIATE = "multivariate_time_series"

_MISSPELLED_RATIO = 0.8
"""Similarity from which an unknown field counts as a misspelled one; that of 'station' and 'static' is 0.77."""
_MAX_COMPARED_FIELDS = 32
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


Distances = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "null"}]})
]
FutureValues = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "description": "Numbers of the steps ahead, by name; null is an unknown one.",
            "type": "object",
            "additionalProperties": {"type": "array", "items": _VALUE},
        }
    ),
]
Constants = Annotated[
    dict[str, Any],
    WithJsonSchema({"description": "Numbers or null, by name.", "type": "object", "additionalProperties": _VALUE}),
]


def _refuse_unix_time(value: object) -> object:
    """Return ``value``; for a Unix time, the error gives the timestamp as text."""
    if isinstance(value, int | float) and (text := describe_unix_time(value)):
        raise ValueError(f"must be ISO 8601 text, and the number is {text}; send that")
    return value


Timestamp = Annotated[str, BeforeValidator(_refuse_unix_time)]


class _Request(BaseModel):
    """A body or a part of one, with any further fields, as in KServe, unless they look like misspelled ones."""

    model_config = ConfigDict(extra="allow", strict=True)

    @model_validator(mode="after")
    def _check_spelling(self) -> Self:
        known_names = list(type(self).model_fields)
        # Comparing names takes time, and a body may hold any number of them.
        for name in islice(self.model_extra or {}, _MAX_COMPARED_FIELDS):
            if matches := get_close_matches(name.lower()[:64], known_names, n=1, cutoff=_MISSPELLED_RATIO):
                raise ValueError(
                    f"Unknown field '{name[:64]}'. Did you mean '{matches[0]}'? Known fields: {', '.join(known_names)}"
                )
        return self


class SeriesInput(_Request):
    """One observed series.

    Attributes:
        series: Its values, oldest first; without the calendar features, which the server computes from the time.
        type: Checked against the nesting of ``series`` if present.
        name: Returned with the response; default: its position among the inputs.
        frequency: Spacing of the timestamps; default: that of the training data.
        start_timestamp: ISO 8601 time of the first value; without it the response has no timestamps. Required by models
            with calendar features. A time without a zone is in that of the training data, or in UTC.
        dt: For models of irregular time: the time from the previous value to each value, in the model's regular steps;
            the first one is ignored. Default: all 1.
        future: For each covariate that is known ahead, by its name, a value for each step ahead; null where one is
            unknown.
        static: For each covariate by its name, its value in this series; those that are left out are unknown.
    """

    series: Series
    type: Literal["univariate_time_series", "multivariate_time_series"] | None = None
    name: str | None = Field(default=None, max_length=256)
    frequency: str | None = Field(default=None, max_length=32, examples=["W", "MS", "15min"])
    start_timestamp: Timestamp | None = Field(default=None, max_length=64, examples=["2024-01-06T00:00:00Z"])
    dt: Distances = Field(default=None, examples=[None])
    future: FutureValues | None = None
    static: Constants | None = None


class ModelExample(BaseModel):
    """A sample that the model was not fitted on.

    Attributes:
        split: The split that it comes from.
        input: One of the ``inputs`` of a request.
        label: Its class, of a classifier.
        actual: What followed it, one list for each target, of a forecaster; null where it is not known.
    """

    split: str
    input: SeriesInput
    label: str | None = None
    actual: list[list[float | None]] | None = None


class _SeriesRequest(_Request):
    model: str = Field(description="NAME, NAME@ALIAS or NAME:VERSION.")
    inputs: list[SeriesInput] = Field(min_length=1, max_length=4096)
    metadata: dict[str, Any] | None = Field(default=None, description="Data of the client; not read.")


class ForecastOptions(_Request):
    """Options of a forecast.

    Attributes:
        horizon: Steps ahead; default: as many as the model was trained for.
        quantiles: Levels among the trained ones; default: all of them.
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
    """Options of a classification.

    Attributes:
        top_k: Number of classes to return, the most probable first; default: all.
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
        name: Name of the series.
        mean_forecast: One value, or one array, per step ahead.
        quantiles: Values like those of ``mean_forecast``, by level as text.
        frequency: The frequency used, or null.
        start_timestamp: Time of the first forecast step; null if the series had no timestamp.
        targets: Names of the forecast variables.
        context_used: Number of steps at the end of the series that the forecast is based on.
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
        name: Name of the series.
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
        description="States that left the ball of the model's certificate; only present if one did.",
    )
    samples_outside_range: int = Field(
        default=0,
        description="Samples outside the range of inputs that the model is certified for; only present if any is.",
    )


class ForecastResponse(_Response):
    """Response of ``POST /v1/timeseries/forecast``: one output for each input, in their order."""

    outputs: list[ForecastOutput]


class ClassifyResponse(_Response):
    """Response of ``POST /v1/timeseries/classify``: one output for each input, in their order."""

    outputs: list[ClassifyOutput]
