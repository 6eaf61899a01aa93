"""The client for asyncio, which lets other tasks run while it waits: method by method that of :mod:`.blocking`."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Self

from stablernn_client.base import BaseClient, BaseStream
from stablernn_client.channel import TOKEN_EVERY
from stablernn_client.parts import Moment, beside, chunks, single
from stablernn_client.results import Array, Classification, Forecast, StepResult, StepsResult
from stablernn_client.series import Constants, Known, Series
from stablernn_client.tensors import Numbers
from stablernn_client.transport import Address, TaskTransport


class AsyncClient(BaseClient):
    """As :class:`.Client`, awaited; tasks may share a client, but not a stream.

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
        super().__init__(TaskTransport(Address.of(url, token, ssl_context)), timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """As :meth:`.Client.close`."""
        await self._transport.close()

    async def models(self) -> list[str]:
        """As :meth:`.Client.models`."""
        return await self._calls.models()

    async def metadata(self, model: str) -> dict[str, Any]:
        """As :meth:`.Client.metadata`."""
        return await self._calls.metadata(model)

    async def ready(self) -> bool:
        """As :meth:`.Client.ready`."""
        return await self._calls.ready()

    async def classify(
        self, model: str, series: Series, *, dt: Series | None = None, top_k: int | None = None
    ) -> list[Classification]:
        """As :meth:`.Client.classify`."""
        return await self._calls.classify(model, series, dt, top_k)

    async def forecast(
        self,
        model: str,
        series: Series,
        *,
        horizon: int | None = None,
        quantiles: Sequence[float] | None = None,
        frequency: str | None = None,
        start: str | datetime | Sequence[str | datetime] | None = None,
        future: Known | Sequence[Known] | None = None,
        static: Constants | Sequence[Constants] | None = None,
        dt: Series | None = None,
    ) -> list[Forecast]:
        """As :meth:`.Client.forecast`."""
        return await self._calls.forecast(
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

    async def infer(
        self, model: str, inputs: Mapping[str, Numbers], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """As :meth:`.Client.infer`."""
        return await self._calls.infer(model, inputs, outputs)

    def stream(
        self,
        model: str,
        *,
        token: str | None = None,
        static: Constants | None = None,
        token_every: int = TOKEN_EVERY,
    ) -> AsyncStream:
        """As :meth:`.Client.stream`; connects when it is entered with ``async with``, or with its first step."""
        return AsyncStream(self._channel(model, 1, None if token is None else [token], static, token_every))

    def streams(
        self, model: str, count: int, *, tokens: Sequence[str] | None = None, token_every: int = TOKEN_EVERY
    ) -> AsyncStreams:
        """As :meth:`.Client.streams`; connects as :meth:`stream` does."""
        return AsyncStreams(self._channel(model, count, tokens, None, token_every))


class _Open(BaseStream):
    async def __aenter__(self) -> Self:
        await self._channel.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """As :meth:`.Stream.close`."""
        await self._channel.close()


class AsyncStream(_Open):
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
        """As :meth:`.Stream.step`; a step that was cancelled was not taken, and may be given again."""
        values, spacing = single(sample, dt, (await self._channel.open()).sample_shape)
        return (await self._channel.step(values, spacing, beside=beside(time, future, horizon))).of(0)[0]

    async def steps(
        self, samples: Numbers | Iterable[Numbers] | AsyncIterable[Numbers], *, dt: Numbers | None = None
    ) -> AsyncIterator[StepResult]:
        """As :meth:`.Stream.steps`; samples may also come from an asynchronous iterable."""
        if isinstance(samples, AsyncIterable):
            async for sample in samples:
                async for result in self.steps(iter([sample]), dt=dt):
                    yield result
            return
        for values, spacing in chunks(samples, dt, (await self._channel.open()).sample_shape):
            for result in (await self._channel.step(values, spacing)).of(0):
                yield result

    async def token(self) -> str:
        """As :meth:`.Stream.token`."""
        [token] = await self._channel.tokens()
        return token


class AsyncStreams(_Open):
    """Several streams; from :meth:`AsyncClient.streams`."""

    async def step(self, values: Numbers, *, dt: Numbers | None = None, every: bool = True) -> StepsResult:
        """As :meth:`.Streams.step`."""
        return await self._channel.step(values, dt, every)

    async def tokens(self) -> list[str]:
        """As :meth:`.Streams.tokens`."""
        return await self._channel.tokens()
