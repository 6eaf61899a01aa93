"""HTTP endpoints of the server: each function returns a request, with the function that decodes its reply.

Nothing here does I/O, so that the blocking client and the one for asyncio share all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import orjson

from stablernn_client import open_inference, timeseries
from stablernn_client.arrays import Array, Numbers
from stablernn_client.errors import ProtocolError
from stablernn_client.results import Classification, Forecast
from stablernn_client.timeseries import FutureCovariates, Series, StartTime, StaticCovariates
from stablernn_client.transport.protocols import HttpReply

Result = TypeVar("Result")

READY_PATH = "/v2/health/ready"


@dataclass(frozen=True)
class Request(Generic[Result]):
    """An HTTP request, and how its reply is read.

    Every request is idempotent, so that it may be sent again after a failure.

    Attributes:
        method: HTTP method.
        path: Path with the parameters in it quoted.
        decode: Returns the result from a reply with status 200, and raises ProtocolError if it cannot.
        content: Body, or None.
        headers: Headers of this request alone.
    """

    method: str
    path: str
    decode: Callable[[HttpReply], Result]
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def models() -> Request[list[str]]:
    def decode(reply: HttpReply) -> list[str]:
        names = _decode_json(reply)
        if not isinstance(names, list):
            raise ProtocolError("The list of models is not an array; check the address.")
        return names

    return Request("GET", "/v1/timeseries/models", decode)


def metadata(model: str) -> Request[dict[str, Any]]:
    def decode(reply: HttpReply) -> dict[str, Any]:
        value = _decode_json(reply)
        if not isinstance(value, dict):
            raise ProtocolError(f"The metadata of '{model}' is not an object; check the address.")
        return value

    return Request("GET", _model_path(model), decode)


def statistics(model: str) -> Request[list[dict[str, Any]]]:
    def decode(reply: HttpReply) -> list[dict[str, Any]]:
        value = _decode_json(reply)
        # The name is that of Triton's extension.
        rows = value.get("model_stats") if isinstance(value, dict) else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ProtocolError(f"The statistics of '{model}' are not a list of objects; check the address.")
        return rows

    return Request("GET", f"{_model_path(model)}/stats", decode)


def classify(model: str, series: Series, dt: Series | None, top_k: int | None) -> Request[list[Classification]]:
    body = timeseries.encode_classify(model, series, dt, top_k)
    return _post_json("/v1/timeseries/classify", body, lambda reply: timeseries.decode_classifications(reply.content))


def forecast(
    model: str,
    series: Series,
    *,
    horizon: int | None,
    quantiles: Sequence[float] | None,
    frequency: str | None,
    start: StartTime | Sequence[StartTime] | None,
    future: FutureCovariates | Sequence[FutureCovariates] | None,
    static: StaticCovariates | Sequence[StaticCovariates] | None,
    dt: Series | None,
) -> Request[list[Forecast]]:
    body = timeseries.encode_forecast(
        model,
        series,
        horizon=horizon,
        quantiles=quantiles,
        frequency=frequency,
        start=start,
        future=future,
        static=static,
        dt=dt,
    )
    return _post_json("/v1/timeseries/forecast", body, lambda reply: timeseries.decode_forecasts(reply.content))


def infer(model: str, inputs: Mapping[str, Numbers], outputs: Sequence[str] | None) -> Request[dict[str, Array]]:
    body, json_length = open_inference.encode_request(inputs, outputs)
    header = open_inference.JSON_LENGTH_HEADER

    def decode(reply: HttpReply) -> dict[str, Array]:
        return open_inference.decode_reply(reply.content, reply.headers.get(header))

    headers = {"Content-Type": "application/octet-stream", header: str(json_length)}
    return Request("POST", f"{_model_path(model)}/infer", decode, body, headers)


def _model_path(model: str) -> str:
    # `@` and `:` separate alias and version, and are legal in a path.
    return f"/v2/models/{quote(model, safe='@:')}"


def _post_json(path: str, body: bytes, decode: Callable[[HttpReply], Result]) -> Request[Result]:
    return Request("POST", path, decode, body, {"Content-Type": "application/json"})


def _decode_json(reply: HttpReply) -> Any:
    try:
        return orjson.loads(reply.content)
    except orjson.JSONDecodeError as error:
        raise ProtocolError("The reply is not JSON; check the address.") from error
