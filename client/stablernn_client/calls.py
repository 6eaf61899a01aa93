"""The calls over plain HTTP, and when one of them is tried again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote

import orjson

from stablernn_client import series as time_series
from stablernn_client import tensors
from stablernn_client.errors import (
    Busy,
    ClientError,
    ConnectionFailed,
    ConnectionLost,
    ProtocolError,
    Timeout,
    error_of_answer,
)
from stablernn_client.patience import Patience
from stablernn_client.results import Array, Classification, Forecast
from stablernn_client.series import Constants, Known, Series
from stablernn_client.tensors import Numbers
from stablernn_client.transport import Reply, Transport


class Calls:
    """Every call that needs no socket. All of them are idempotent, so that each may be tried again.

    Args:
        transport: How to reach the server.
        timeout: Seconds that a call may take, with all its attempts.
    """

    def __init__(self, transport: Transport, timeout: float) -> None:
        self._transport = transport
        self._timeout = timeout

    async def models(self) -> list[str]:
        names = _json(await self._call("GET", "/v1/timeseries/models"))
        if not isinstance(names, list):
            raise ProtocolError("The list of models is not an array; check the address.")
        return names

    async def metadata(self, model: str) -> dict[str, Any]:
        facts = _json(await self._call("GET", f"/v2/models/{quote(model, safe='@:')}"))
        if not isinstance(facts, dict):
            raise ProtocolError(f"The metadata of '{model}' is not an object; check the address.")
        return facts

    async def ready(self) -> bool:
        try:
            reply = await self._transport.request("GET", "/v2/health/ready", None, {}, self._timeout)
        except (ConnectionFailed, Timeout):
            return False
        if reply.status in (200, 503):
            return reply.status == 200
        raise error_of_answer(reply.status, reply.headers, reply.content)

    async def classify(self, model: str, series: Series, dt: Series | None, top_k: int | None) -> list[Classification]:
        body = time_series.classify_body(model, series, dt, top_k)
        return time_series.classifications((await self._post_json("/v1/timeseries/classify", body)).content)

    async def forecast(
        self,
        model: str,
        series: Series,
        *,
        horizon: int | None,
        quantiles: Sequence[float] | None,
        frequency: str | None,
        start: str | datetime | Sequence[str | datetime] | None,
        future: Known | Sequence[Known] | None,
        static: Constants | Sequence[Constants] | None,
        dt: Series | None,
    ) -> list[Forecast]:
        body = time_series.forecast_body(
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
        return time_series.forecasts((await self._post_json("/v1/timeseries/forecast", body)).content)

    async def infer(self, model: str, inputs: Mapping[str, Numbers], outputs: Sequence[str] | None) -> dict[str, Array]:
        body, json_length = tensors.encode_request(inputs, outputs)
        headers = {"Content-Type": "application/octet-stream", tensors.HEADER: str(json_length)}
        reply = await self._call("POST", f"/v2/models/{quote(model, safe='@:')}/infer", body, headers)
        return tensors.decode_answer(reply.content, reply.headers.get(tensors.HEADER))

    async def _post_json(self, path: str, body: bytes) -> Reply:
        return await self._call("POST", path, body, {"Content-Type": "application/json"})

    async def _call(
        self, method: str, path: str, content: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """An answer with status 200.

        Raises:
            ClientError: If there is none, after all attempts.
        """
        patience = Patience(self._timeout)
        lost = False
        while True:
            error: ClientError
            try:
                reply = await self._transport.request(method, path, content, headers or {}, patience.left)
                if reply.status == 200:
                    return reply
                error = error_of_answer(reply.status, reply.headers, reply.content)
                if not isinstance(error, Busy) or error.retry_after is None:
                    raise error
            except ConnectionLost as failure:
                # Servers end connections that were quiet for long; twice in a row is something else.
                if lost:
                    raise
                lost, error = True, failure
            await self._transport.sleep(patience.pause(error))


def _json(reply: Reply) -> Any:
    try:
        return orjson.loads(reply.content)
    except orjson.JSONDecodeError as error:
        raise ProtocolError("The answer is not JSON; check the address.") from error
