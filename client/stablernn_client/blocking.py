"""The client for threads, which waits for each answer."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Self

from stablernn_client.base import BaseClient, BaseStream
from stablernn_client.channel import TOKEN_EVERY, Channel
from stablernn_client.parts import Moment, beside, chunks, single
from stablernn_client.results import Array, Classification, Forecast, StepResult, StepsResult
from stablernn_client.series import Constants, Known, Series
from stablernn_client.tensors import Numbers
from stablernn_client.transport import Address, ThreadTransport, run


class Client(BaseClient):
    """One server, as a thread talks to it; several threads may share a client, but not a stream.

    Args:
        url: Where the server is.
        token: Bearer token, where the server wants one.
        timeout: Seconds that one call may take, with all its attempts.
        ssl_context: What certificates are checked by, for servers with one of their own.

    Raises:
        BadRequest: If an argument cannot be what it should be.

    Example:
        >>> with Client("http://127.0.0.1:8080") as client:  # doctest: +SKIP
        ...     [answer] = client.classify("digits", [0, 0, 5, 13, 9, 1, 0, 0])
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        token: str | None = None,
        timeout: float = 30.0,
        *,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        super().__init__(ThreadTransport(Address.of(url, token, ssl_context)), timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; streams have their own."""
        run(self._transport.close())

    def models(self) -> list[str]:
        """Names of the served models."""
        return run(self._calls.models())

    def metadata(self, model: str) -> dict[str, Any]:
        """Tensors and facts of a model, as the server gives them.

        Args:
            model: NAME, NAME:VERSION or NAME@ALIAS, here and everywhere.
        """
        return run(self._calls.metadata(model))

    def ready(self) -> bool:
        """Whether the server is there and takes requests."""
        return run(self._calls.ready())

    def classify(
        self, model: str, series: Series, *, dt: Series | None = None, top_k: int | None = None
    ) -> list[Classification]:
        """The classes of series, one result for each.

        Args:
            model: What classifies.
            series: One or several, of any lengths; ``None`` and NaN are missing values. A flat list or array is one
                series of one feature, an array ``(time, features)`` one of several, an array ``(series, time,
                features)`` and a list of lists or arrays are several series.
            dt: For models of irregular time, the time from the value before to each value, of every series.
            top_k: How many classes to answer with; default: all.

        Raises:
            ClientError: If there is no answer, or it is an error.
        """
        return run(self._calls.classify(model, series, dt, top_k))

    def forecast(
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
        """The forecasts of series, one result for each.

        Args:
            model: What forecasts.
            series: As of :meth:`classify`.
            horizon: Steps ahead; default: all that the model was trained for.
            quantiles: Levels among those trained; default: all of them.
            frequency: Spacing of the values, such as ``"D"`` or ``"15min"``; default: that of the training.
            start: Time of the first value, ISO 8601; one for all series or one for each, as of the next two.
            future: What is known of the steps ahead, by name.
            static: What never changes within a series, by name.
            dt: As of :meth:`classify`.

        Raises:
            ClientError: If there is no answer, or it is an error.
        """
        return run(
            self._calls.forecast(
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
        )

    def infer(
        self, model: str, inputs: Mapping[str, Numbers], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Tensors in, tensors out, as raw bytes both ways.

        Args:
            model: What answers.
            inputs: By name, such as ``x`` ``(batch, time, features)`` and ``lengths`` ``(batch,)``.
            outputs: Names of what to answer with; default: everything.

        Raises:
            ClientError: If there is no answer, or it is an error.
        """
        return run(self._calls.infer(model, inputs, outputs))

    def stream(
        self,
        model: str,
        *,
        token: str | None = None,
        static: Constants | None = None,
        token_every: int = TOKEN_EVERY,
    ) -> Stream:
        """A stream, which goes on after a lost connection or a restart of the server as if nothing had happened.

        Args:
            model: What reads it.
            token: State token of an earlier stream to go on from; default: begin anew.
            static: What never changes within a stream that begins, by name.
            token_every: Steps after which the client asks for a state token; up to that many samples are held.

        Raises:
            ClientError: If the server cannot be reached, or refuses.
        """
        return Stream(self._channel(model, 1, None if token is None else [token], static, token_every))

    def streams(
        self, model: str, count: int, *, tokens: Sequence[str] | None = None, token_every: int = TOKEN_EVERY
    ) -> Streams:
        """Several streams of one model over one socket, which take their steps together.

        Args:
            model: What reads them.
            count: How many.
            tokens: State tokens to go on from, one for each.
            token_every: As of :meth:`stream`.

        Raises:
            ClientError: If the server cannot be reached, or refuses.
        """
        return Streams(self._channel(model, count, tokens, None, token_every))


class _Open(BaseStream):
    def __init__(self, channel: Channel) -> None:
        super().__init__(channel)
        run(channel.open())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket; the server forgets the state, a token taken before still holds it."""
        run(self._channel.close())


class Stream(_Open):
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
        """Take the next sample, and say what is known now.

        Args:
            sample: A number for each feature, or one number where there is one; NaN is a missing value.
            dt: For models of irregular time, the time since the sample before, in regular steps; a number for each
                reading, of models of patches.
            time: When the sample was, ISO 8601 or a number of regular steps.
            future: What is known of the steps ahead, by name.
            horizon: Steps ahead, of models with a recursive head.

        Raises:
            StreamLost: If the connection was lost and the stream cannot be restored.
            ClientError: If the server does not answer in time, or with an error; the step was not taken then, and may
                be given again.
        """
        values, spacing = single(sample, dt, self.about.sample_shape)
        return run(self._channel.step(values, spacing, beside=beside(time, future, horizon))).of(0)[0]

    def steps(self, samples: Numbers | Iterable[Numbers], *, dt: Numbers | None = None) -> Iterator[StepResult]:
        """Take several samples, and say what was known after each.

        Args:
            samples: An array or a list, which is sent several steps at a time, or an iterable, each sample of which is
                sent as it comes.
            dt: One number for each sample of an array or a list.

        Raises:
            ClientError: As of :meth:`step`.
        """
        for values, spacing in chunks(samples, dt, self.about.sample_shape):
            yield from run(self._channel.step(values, spacing)).of(0)

    def token(self) -> str:
        """A state token of the stream as it is now, with which any server that has the key and the model goes on."""
        [token] = run(self._channel.tokens())
        return token


class Streams(_Open):
    """Several streams; from :meth:`Client.streams`."""

    def step(self, values: Numbers, *, dt: Numbers | None = None, every: bool = True) -> StepsResult:
        """Take one or several steps of every stream.

        Args:
            values: ``(streams, steps, features)``; NaN is a missing value.
            dt: ``(streams, steps)``, for models of irregular time.
            every: Whether the outputs of every step come back, or only those of the last.

        Raises:
            StreamLost: If the connection was lost and the streams cannot be restored.
            ClientError: If the server does not answer in time, or with an error; the steps were not taken then.
        """
        return run(self._channel.step(values, dt, every))

    def tokens(self) -> list[str]:
        """A state token of each stream as it is now."""
        return run(self._channel.tokens())
