"""Base classes of the blocking client and the one for asyncio: sending with retries, and the steps of a stream."""

from __future__ import annotations

import math
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from stablernn_client.arrays import Numbers
from stablernn_client.channel import Channel
from stablernn_client.endpoints import READY_PATH, Request
from stablernn_client.errors import (
    BadRequest,
    Busy,
    ClientError,
    ConnectionFailed,
    ConnectionLost,
    Timeout,
    error_from_reply,
)
from stablernn_client.results import StepResult
from stablernn_client.retry import RetryPolicy
from stablernn_client.stream_info import StreamInfo
from stablernn_client.stream_request import Moment, encode_text_fields, single_sample
from stablernn_client.timeseries import StaticCovariates
from stablernn_client.transport.address import Address
from stablernn_client.transport.protocols import Transport

Result = TypeVar("Result")


class BaseClient:
    """A client of one server.

    Args:
        transport_class: Makes the connections to the server.
        url: URL of the server.
        token: Bearer token, if the server requires one.
        timeout: Seconds that one call may take, including retries.
        ssl_context: Verifies the server's certificate; None for the default certificate authorities.

    Raises:
        BadRequest: If an argument is invalid.
    """

    def __init__(
        self,
        transport_class: Callable[[Address], Transport],
        url: str,
        token: str | None,
        timeout: float,
        ssl_context: ssl.SSLContext | None,
    ) -> None:
        address = Address.parse(url, token, ssl_context)
        if not 0 < timeout < math.inf:
            raise BadRequest(f"timeout must be a finite number of seconds above 0, got {timeout}.")
        self._transport = transport_class(address)
        self._timeout = timeout

    async def _send(self, request: Request[Result]) -> Result:
        """Send a request, again where that can help, and return its decoded reply.

        Raises:
            ClientError: If there is no reply with status 200 after all attempts.
        """
        retry = RetryPolicy(self._timeout)
        has_lost_connection = False
        while True:
            error: ClientError
            try:
                reply = await self._transport.request(
                    request.method, request.path, request.content, request.headers, retry.seconds_left
                )
                if reply.status == 200:
                    return request.decode(reply)
                error = error_from_reply(reply.status, reply.headers, reply.content)
                # A busy server that names no time to come back is left alone.
                if not isinstance(error, Busy) or error.retry_after is None:
                    raise error
            except ConnectionLost as failure:
                # Servers close idle keep-alive connections, which is worth one retry; twice in a row has another cause.
                if has_lost_connection:
                    raise
                has_lost_connection, error = True, failure
            await self._transport.sleep(retry.next_delay(error))

    async def _is_ready(self) -> bool:
        """Return True if the server can be reached and accepts requests; there is one attempt only.

        Raises:
            ClientError: If the reply has another status than 200 and 503.
        """
        try:
            reply = await self._transport.request("GET", READY_PATH, None, {}, self._timeout)
        except (ConnectionFailed, Timeout):
            return False
        if reply.status in (200, 503):
            return reply.status == 200
        raise error_from_reply(reply.status, reply.headers, reply.content)

    def _new_channel(
        self,
        model: str,
        count: int,
        tokens: Sequence[str] | None,
        static: StaticCovariates | None,
        token_every: int,
    ) -> Channel:
        return Channel(
            self._transport,
            model,
            count=count,
            tokens=tokens,
            static=static,
            timeout=self._timeout,
            token_every=token_every,
        )

    def _new_single_channel(
        self, model: str, token: str | None, static: StaticCovariates | None, token_every: int
    ) -> Channel:
        return self._new_channel(model, 1, None if token is None else [token], static, token_every)


class BaseStream:
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

    async def _step(
        self,
        sample: Numbers,
        dt: Numbers | None,
        time: Moment | None,
        future: Mapping[str, Any] | None,
        horizon: int | None,
    ) -> StepResult:
        info = await self._channel.open()
        values, spacing = single_sample(sample, dt, info.sample_shape)
        result = await self._channel.step(values, spacing, text_fields=encode_text_fields(time, future, horizon))
        # Without outputs while a patch is not full.
        return next(iter(result.of(0)), StepResult(int(result.steps[0]), {}))

    async def _single_token(self) -> str:
        [token] = await self._channel.tokens()
        return token
