"""The blocking client, for threads."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from stablernn_client import endpoints
from stablernn_client.arrays import Array, Numbers
from stablernn_client.base import BaseClient, BaseStream
from stablernn_client.channel import TOKEN_EVERY, Channel
from stablernn_client.results import Classification, Forecast, StepResult, StepsResult
from stablernn_client.stream_request import Moment, split_samples
from stablernn_client.timeseries import FutureCovariates, Series, StartTime, StaticCovariates
from stablernn_client.transport.blocking import SyncTransport, run


class Client(BaseClient):
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

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        token: str | None = None,
        timeout: float = 30.0,
        *,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(SyncTransport, url, token, timeout, ssl_context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the HTTP connections; each stream has a connection of its own."""
        run(self._transport.close())

    def models(self) -> list[str]:
        """Return the names of the served models."""
        return run(self._send(endpoints.models()))

    def metadata(self, model: str) -> dict[str, Any]:
        """Return the tensors and properties of a model, as the server describes them.

        Args:
            model: NAME, NAME:VERSION or NAME@ALIAS, here and in every other method.
        """
        return run(self._send(endpoints.metadata(model)))

    def statistics(self, model: str) -> list[dict[str, Any]]:
        """Return counts and times of a model since the server started, of every served version if it has no version.

        The keys are those of Triton's statistics extension, see ``docs/http.md``.
        """
        return run(self._send(endpoints.statistics(model)))

    def ready(self) -> bool:
        """Return True if the server can be reached and accepts requests."""
        return run(self._is_ready())

    def classify(
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
        return run(self._send(endpoints.classify(model, series, dt, top_k)))

    def forecast(
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
        return run(self._send(request))

    def infer(
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
        return run(self._send(endpoints.infer(model, inputs, outputs)))

    def stream(
        self,
        model: str,
        *,
        token: str | None = None,
        static: StaticCovariates | None = None,
        token_every: int = TOKEN_EVERY,
    ) -> Stream:
        """Open a stream, which survives lost connections and restarts of the server with unchanged outputs.

        Args:
            model: Any model.
            token: State token of an earlier stream to resume. Default: start a new stream.
            static: Static covariates by name, of a new stream.
            token_every: Steps between requests for a state token, which bounds the samples that the client buffers.

        Raises:
            ClientError: If the server cannot be reached, or refuses.
        """
        return Stream(self._new_single_channel(model, token, static, token_every))

    def streams(
        self, model: str, count: int, *, tokens: Sequence[str] | None = None, token_every: int = TOKEN_EVERY
    ) -> Streams:
        """Open several streams of one model, which take their steps together over one WebSocket.

        Args:
            model: Any model.
            count: Number of streams.
            tokens: State tokens to resume, one for each stream.
            token_every: As in :meth:`stream`.

        Raises:
            ClientError: If the server cannot be reached, or refuses.
        """
        return Streams(self._new_channel(model, count, tokens, None, token_every))


class _OpenStream(BaseStream):
    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        run(channel.open())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the server drops the state, which a token taken before still holds."""
        run(self._channel.close())


class Stream(_OpenStream):
    """One stream; from :meth:`Client.stream`."""

    def step(
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
            ClientError: If the server does not reply in time, or with an error; the step was not taken then and may be
                repeated.
        """
        return run(self._step(sample, dt, time, future, horizon))

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

    def token(self) -> str:
        """Return a state token of the stream as it is now; any server with the same key and model can resume it."""
        return run(self._single_token())


class Streams(_OpenStream):
    """Several streams; from :meth:`Client.streams`."""

    def step(self, values: Numbers, *, dt: Numbers | None = None, every: bool = True) -> StepsResult:
        """Take one or several steps of every stream.

        Args:
            values: ``(streams, steps, *sample_shape)``; NaN is a missing value.
            dt: ``(streams, steps)``, for models of irregular time.
            every: True to return the outputs of every step, False for those of the last step only.

        Raises:
            StreamLost: If the connection was lost and the streams cannot be restored.
            ClientError: If the server does not reply in time, or with an error; the steps were not taken then.
        """
        return run(self._channel.step(values, dt, every))

    def tokens(self) -> list[str]:
        """Return a state token of each stream as it is now."""
        return run(self._channel.tokens())
