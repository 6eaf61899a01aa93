"""The client, written once as coroutines: :class:`AsyncClient` awaits them, :class:`Client` runs them to their end."""

from __future__ import annotations

import functools
import math
import ssl
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar
from urllib.parse import quote

import httpx

from stablernn_client.arrays import Array, Numbers
from stablernn_client.bodies import (
    JSON_LENGTH_HEADER,
    FutureCovariates,
    Series,
    StartTime,
    StaticCovariates,
    decode_classifications,
    decode_forecasts,
    decode_json,
    decode_reply,
    encode_request,
    encode_series,
)
from stablernn_client.channel import TOKEN_EVERY, Channel
from stablernn_client.errors import (
    BadRequest,
    Busy,
    ClientError,
    ConnectionFailed,
    ConnectionLost,
    Timeout,
    error_from_reply,
)
from stablernn_client.frames import Moment, StreamInfo, encode_text_fields, single_sample, split_samples
from stablernn_client.results import Classification, Forecast, StepResult, StepsResult
from stablernn_client.transport import Address, AsyncTransport, RetryPolicy, SyncTransport, run

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
StreamType = TypeVar("StreamType")
StreamsType = TypeVar("StreamsType")


def _blocking(
    method: Callable[Concatenate[Any, Parameters], Coroutine[Any, Any, Result]],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """Return a method of the blocking client that runs one of the client for asyncio to its end."""

    @functools.wraps(method)
    def call(self: Any, /, *args: Parameters.args, **options: Parameters.kwargs) -> Result:
        return run(method(self, *args, **options))

    call.__qualname__ = method.__qualname__.removeprefix("Async")
    return call


class _BaseStream:
    """One or several streams over one channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def about(self) -> StreamInfo:
        """Model, version, shape of a sample and outputs.

        Raises:
            ClientError: If the stream was never opened.
        """
        return self._channel.info


class _AsyncStreamBase(_BaseStream):
    async def __aenter__(self) -> Self:
        await self._channel.open()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; the server drops the state, which a token taken before still holds."""
        await self._channel.close()


class AsyncStream(_AsyncStreamBase):
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
        """Take the next sample, and return the outputs.

        Args:
            sample: A number for each feature, or a single number if there is one feature; NaN is a missing value.
            dt: For models of irregular time: the time since the previous sample, in regular steps.
            time: Time of the sample, ISO 8601 or a number of regular steps.
            future: Future covariates by name.
            horizon: Steps ahead, for models with a recursive head.

        Returns:
            The outputs; of a model of patches without any while a patch is not full.

        Raises:
            StreamLost: If the connection was lost and the stream cannot be restored.
            ClientError: If the server does not reply in time, or with an error. The step was not taken then, nor if it
                was cancelled, and may be repeated.
        """
        info = await self._channel.open()
        values, spacing = single_sample(sample, dt, info.sample_shape)
        result = await self._channel.step(values, spacing, text_fields=encode_text_fields(time, future, horizon))
        # Without outputs while a patch is not full.
        return next(iter(result.of(0)), StepResult(int(result.steps[0]), {}))

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
        """Return a state token of the stream as it is now; any server with the same key and model can resume it."""
        [token] = await self._channel.tokens()
        return token


class AsyncStreams(_AsyncStreamBase):
    """Several streams; from :meth:`AsyncClient.streams`."""

    async def step(self, values: Numbers, *, dt: Numbers | None = None, every: bool = True) -> StepsResult:
        """Take one or several steps of every stream.

        Args:
            values: ``(streams, steps, *sample_shape)``; NaN is a missing value.
            dt: ``(streams, steps)``, for models of irregular time.
            every: True to return the outputs of every step, False for those of the last step only.

        Raises:
            StreamLost: If the connection was lost and the streams cannot be restored.
            ClientError: If the server does not reply in time, or with an error; the steps were not taken then.
        """
        return await self._channel.step(values, dt, every)

    async def tokens(self) -> list[str]:
        """Return a state token of each stream as it is now."""
        return await self._channel.tokens()


class _SyncStreamBase(_BaseStream):
    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        run(channel.open())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    close = _blocking(_AsyncStreamBase.close)


class Stream(_SyncStreamBase):
    """One stream; from :meth:`Client.stream`."""

    step = _blocking(AsyncStream.step)
    token = _blocking(AsyncStream.token)

    def steps(self, samples: Numbers | Iterable[Numbers], *, dt: Numbers | None = None) -> Iterator[StepResult]:
        """Take several samples, and yield the outputs after each; for models of patches, after each patch.

        Args:
            samples: An array or a list, which is sent several steps at a time, or an iterable, whose samples are sent
                one by one as they come.
            dt: One number for each sample of an array or a list.

        Raises:
            ClientError: As :meth:`step`.
        """
        for values, spacing in split_samples(samples, dt, self.about.sample_shape):
            yield from run(self._channel.step(values, spacing)).of(0)


class Streams(_SyncStreamBase):
    """Several streams; from :meth:`Client.streams`."""

    step = _blocking(AsyncStreams.step)
    tokens = _blocking(AsyncStreams.tokens)


class _BaseClient(Generic[StreamType, StreamsType]):
    """A client of one server.

    Args:
        url: URL of the server.
        token: Bearer token, if the server requires one.
        timeout: Seconds that one call may take, including retries.
        ssl_context: Verifies the server's certificate; None for the default certificate authorities.

    Raises:
        BadRequest: If an argument is invalid.
    """

    _transport_class: type[AsyncTransport | SyncTransport]
    _stream_class: Callable[[Channel], StreamType]
    _streams_class: Callable[[Channel], StreamsType]

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        token: str | None = None,
        timeout: float = 30.0,
        *,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        address = Address.parse(url, token, ssl_context)
        if not 0 < timeout < math.inf:
            raise BadRequest(f"timeout must be a finite number of seconds above 0, got {timeout}.")
        self._transport = self._transport_class(address)
        self._timeout = timeout

    def stream(
        self,
        model: str,
        *,
        token: str | None = None,
        static: StaticCovariates | None = None,
        token_every: int = TOKEN_EVERY,
    ) -> StreamType:
        """Return a stream, which survives lost connections and restarts of the server with unchanged outputs.

        That of :class:`Client` connects at once, that of :class:`AsyncClient` on ``async with``, or with the first
        step.

        Args:
            model: Any model.
            token: State token of an earlier stream to resume. Default: start a new stream.
            static: Static covariates by name, of a new stream.
            token_every: Steps between requests for a state token, which bounds the samples that the client buffers.

        Raises:
            ClientError: If the server cannot be reached, or refuses.
        """
        tokens = None if token is None else [token]
        return self._stream_class(Channel(self._transport, model, 1, tokens, static, self._timeout, token_every))

    def streams(
        self, model: str, count: int, *, tokens: Sequence[str] | None = None, token_every: int = TOKEN_EVERY
    ) -> StreamsType:
        """Return several streams of one model, which take their steps together over one WebSocket.

        They connect as :meth:`stream` does.

        Args:
            model: Any model.
            count: Number of streams.
            tokens: State tokens to resume, one for each stream.
            token_every: As in :meth:`stream`.

        Raises:
            ClientError: If the server cannot be reached, or refuses.
        """
        return self._streams_class(Channel(self._transport, model, count, tokens, None, self._timeout, token_every))

    async def _send(
        self,
        method: str,
        path: str,
        decode: Callable[[httpx.Response], Result],
        content: bytes | None = None,
        headers: Mapping[str, str] = {"Content-Type": "application/json"},
    ) -> Result:
        """Send a request, again where that can help, and return what ``decode`` reads in its reply.

        Every request is idempotent, so that it may be sent again after a failure.

        Raises:
            ClientError: If there is no reply with status 200 after all attempts.
        """
        retry = RetryPolicy(self._timeout)
        has_lost_connection = False
        while True:
            error: ClientError
            try:
                reply = await self._transport.request(method, path, content, headers, retry.seconds_left)
                if reply.status_code == 200:
                    return decode(reply)
                error = error_from_reply(reply.status_code, reply.headers, reply.content)
                # A busy server that names no time to come back is left alone.
                if not isinstance(error, Busy) or error.retry_after is None:
                    raise error
            except ConnectionLost as failure:
                # Servers close idle keep-alive connections, which is worth one retry; twice in a row has another cause.
                if has_lost_connection:
                    raise
                has_lost_connection, error = True, failure
            await self._transport.sleep(retry.next_delay(error))


class AsyncClient(_BaseClient[AsyncStream, AsyncStreams]):
    """Client of one server for asyncio, as :class:`.Client`; tasks may share a client, but not a stream.

    Example:
        >>> async with AsyncClient("http://127.0.0.1:8080") as client:  # doctest: +SKIP
        ...     async with client.stream("digits") as stream:
        ...         print((await stream.step(13)).label)
    """

    _transport_class = AsyncTransport
    _stream_class = AsyncStream
    _streams_class = AsyncStreams

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the HTTP connections; each stream has a connection of its own."""
        await self._transport.close()

    async def models(self) -> list[str]:
        """Return the names of the served models."""
        return await self._send("GET", "/v1/timeseries/models", lambda reply: decode_json(reply.content, list))

    async def metadata(self, model: str) -> dict[str, Any]:
        """Return the tensors and properties of a model, as the server describes them.

        Args:
            model: NAME, NAME:VERSION or NAME@ALIAS, here and in every other method.
        """
        return await self._send("GET", _model_path(model), lambda reply: decode_json(reply.content, dict))

    async def statistics(self, model: str) -> list[dict[str, Any]]:
        """Return counts and times of a model since the server started, of every served version if it has no version.

        The keys are those of Triton's statistics extension, see ``docs/reference/http.md``.
        """

        def decode(reply: httpx.Response) -> list[dict[str, Any]]:
            # The name is that of Triton's extension.
            return decode_json(reply.content, list, "model_stats")

        return await self._send("GET", f"{_model_path(model)}/stats", decode)

    async def ready(self) -> bool:
        """Return True if the server can be reached and accepts requests; there is one attempt only.

        Raises:
            ClientError: If the reply has another status than 200 and 503.
        """
        try:
            reply = await self._transport.request("GET", "/v2/health/ready", None, {}, self._timeout)
        except (ConnectionFailed, Timeout):
            return False
        if reply.status_code in (200, 503):
            return reply.status_code == 200
        raise error_from_reply(reply.status_code, reply.headers, reply.content)

    async def classify(
        self, model: str, series: Series, *, dt: Series | None = None, top_k: int | None = None
    ) -> list[Classification]:
        """Classify series, and return one result for each.

        Args:
            model: A classifier.
            series: One or several series of any lengths; ``None`` and NaN are missing values. A flat list or array is
                one series of one feature, an array ``(time, features)`` one series of several features, an array
                ``(series, time, features)`` and a list of lists or arrays are several series.
            dt: For models of irregular time: the time since the previous value, for each value of every series.
            top_k: Number of classes to return. Default: all.

        Raises:
            ClientError: If there is no reply, or it is an error.
        """
        body = encode_series(model, series, dt, {"top_k": top_k})
        return await self._send(
            "POST", "/v1/timeseries/classify", lambda reply: decode_classifications(reply.content), body
        )

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
        """Forecast series, and return one result for each.

        Args:
            model: A forecaster.
            series: As in :meth:`classify`.
            horizon: Steps ahead. Default: the horizon of training.
            quantiles: Quantile levels, a subset of the trained ones. Default: all of them.
            frequency: Frequency of the values, such as ``"D"`` or ``"15min"``. Default: that of training.
            start: Time of the first value, ISO 8601; one for all series or one for each, as the next two.
            future: Future covariates by name: values that are known for the steps ahead.
            static: Static covariates by name: values that never change within a series.
            dt: As in :meth:`classify`.

        Raises:
            ClientError: If there is no reply, or it is an error.
        """
        levels = None if quantiles is None else [float(level) for level in quantiles]
        options = {"horizon": horizon, "quantiles": levels}
        body = encode_series(model, series, dt, options, start=start, future=future, static=static, frequency=frequency)
        return await self._send("POST", "/v1/timeseries/forecast", lambda reply: decode_forecasts(reply.content), body)

    async def infer(
        self, model: str, inputs: Mapping[str, Numbers], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Run a model on tensors, sent and received as raw bytes.

        Args:
            model: Any model.
            inputs: Arrays by name, such as ``x`` ``(batch, time, features)`` and ``lengths`` ``(batch,)``.
            outputs: Names of the outputs to return. Default: all.

        Raises:
            ClientError: If there is no reply, or it is an error.
        """
        body, json_length = encode_request(inputs, outputs)

        def decode(reply: httpx.Response) -> dict[str, Array]:
            return decode_reply(reply.content, reply.headers.get(JSON_LENGTH_HEADER))

        headers = {"Content-Type": "application/octet-stream", JSON_LENGTH_HEADER: str(json_length)}
        return await self._send("POST", f"{_model_path(model)}/infer", decode, body, headers)


class Client(_BaseClient[Stream, Streams]):
    """Blocking client of one server; threads may share a client, but not a stream.

    Args:
        url: URL of the server.
        token: Bearer token, if the server requires one.
        timeout: Seconds that one call may take, including retries.
        ssl_context: Verifies the server's certificate; None for the default certificate authorities.

    Raises:
        BadRequest: If an argument is invalid.

    Example:
        >>> with Client("http://127.0.0.1:8080") as client:  # doctest: +SKIP
        ...     [result] = client.classify("digits", [0, 0, 5, 13, 9, 1, 0, 0])
    """

    _transport_class = SyncTransport
    _stream_class = Stream
    _streams_class = Streams

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    close = _blocking(AsyncClient.close)
    models = _blocking(AsyncClient.models)
    metadata = _blocking(AsyncClient.metadata)
    statistics = _blocking(AsyncClient.statistics)
    ready = _blocking(AsyncClient.ready)
    classify = _blocking(AsyncClient.classify)
    forecast = _blocking(AsyncClient.forecast)
    infer = _blocking(AsyncClient.infer)


def _model_path(model: str) -> str:
    # `@` and `:` separate alias and version, and are legal in a path.
    return f"/v2/models/{quote(model, safe='@:')}"
