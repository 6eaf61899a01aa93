"""The client for asyncio: the methods of :mod:`.sync_client`, awaited."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Self

from stablernn_client import endpoints
from stablernn_client.arrays import Array, Numbers
from stablernn_client.base import BaseClient, BaseStream
from stablernn_client.channel import TOKEN_EVERY
from stablernn_client.results import Classification, Forecast, StepResult, StepsResult
from stablernn_client.stream_request import Moment, split_samples
from stablernn_client.timeseries import FutureCovariates, Series, StartTime, StaticCovariates
from stablernn_client.transport.asynchronous import AsyncTransport


class AsyncClient(BaseClient):
    """Client of one server for asyncio, as :class:`.Client`; tasks may share a client, but not a stream.

    Example:
        >>> async with AsyncClient("http://127.0.0.1:8080") as client:  # doctest: +SKIP
        ...     async with client.stream("digits") as stream:
        ...         print((await stream.step(13)).label)
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        token: str | None = None,
        timeout: float = 30.0,
        *,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(AsyncTransport, url, token, timeout, ssl_context)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """As :meth:`.Client.close`."""
        await self._transport.close()

    async def models(self) -> list[str]:
        """As :meth:`.Client.models`."""
        return await self._send(endpoints.models())

    async def metadata(self, model: str) -> dict[str, Any]:
        """As :meth:`.Client.metadata`."""
        return await self._send(endpoints.metadata(model))

    async def statistics(self, model: str) -> list[dict[str, Any]]:
        """As :meth:`.Client.statistics`."""
        return await self._send(endpoints.statistics(model))

    async def ready(self) -> bool:
        """As :meth:`.Client.ready`."""
        return await self._is_ready()

    async def classify(
        self, model: str, series: Series, *, dt: Series | None = None, top_k: int | None = None
    ) -> list[Classification]:
        """As :meth:`.Client.classify`."""
        return await self._send(endpoints.classify(model, series, dt, top_k))

    async def forecast(
        self,
        model: str,
        series: Series,
        *,
        horizon: int | None = None,
        quantiles: Sequence[float] | None = None,
        frequency: str | None = None,
        start: StartTime | Sequence[StartTime] | None = None,
        future: FutureCovariates | Sequence[FutureCovariates] | None = None,
        static: StaticCovariates | Sequence[StaticCovariates] | None = None,
        dt: Series | None = None,
    ) -> list[Forecast]:
        """As :meth:`.Client.forecast`."""
        request = endpoints.forecast(
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
        return await self._send(request)

    async def infer(
        self, model: str, inputs: Mapping[str, Numbers], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """As :meth:`.Client.infer`."""
        return await self._send(endpoints.infer(model, inputs, outputs))

    def stream(
        self,
        model: str,
        *,
        token: str | None = None,
        static: StaticCovariates | None = None,
        token_every: int = TOKEN_EVERY,
    ) -> AsyncStream:
        """As :meth:`.Client.stream`; connects on ``async with``, or with the first step."""
        return AsyncStream(self._new_single_channel(model, token, static, token_every))

    def streams(
        self, model: str, count: int, *, tokens: Sequence[str] | None = None, token_every: int = TOKEN_EVERY
    ) -> AsyncStreams:
        """As :meth:`.Client.streams`; connects as :meth:`stream` does."""
        return AsyncStreams(self._new_channel(model, count, tokens, None, token_every))


class _OpenStream(BaseStream):
    async def __aenter__(self) -> Self:
        await self._channel.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """As :meth:`.Stream.close`."""
        await self._channel.close()


class AsyncStream(_OpenStream):
    """One stream; from :meth:`AsyncClient.stream`."""

    async def step(
        self,
        sample: Numbers,
        *,
        dt: Numbers | None = None,
        time: Moment | None = None,
        future: Mapping[str, Any] | None = None,
        horizon: int | None = None,
    ) -> StepResult:
        """As :meth:`.Stream.step`; a step that was cancelled was not taken, and may be repeated."""
        return await self._step(sample, dt, time, future, horizon)

    async def steps(
        self, samples: Numbers | Iterable[Numbers] | AsyncIterable[Numbers], *, dt: Numbers | None = None
    ) -> AsyncIterator[StepResult]:
        """As :meth:`.Stream.steps`; samples may also come from an asynchronous iterable."""
        if isinstance(samples, AsyncIterable):
            async for sample in samples:
                # An iterator of one, so that `dt` is refused as with any other iterable.
                async for result in self.steps(iter([sample]), dt=dt):
                    yield result
            return
        info = await self._channel.open()
        for values, spacing in split_samples(samples, dt, info.sample_shape):
            for result in (await self._channel.step(values, spacing)).of(0):
                yield result

    async def token(self) -> str:
        """As :meth:`.Stream.token`."""
        return await self._single_token()


class AsyncStreams(_OpenStream):
    """Several streams; from :meth:`AsyncClient.streams`."""

    async def step(self, values: Numbers, *, dt: Numbers | None = None, every: bool = True) -> StepsResult:
        """As :meth:`.Streams.step`."""
        return await self._channel.step(values, dt, every)

    async def tokens(self) -> list[str]:
        """As :meth:`.Streams.tokens`."""
        return await self._channel.tokens()
