"""Streams that continue, bit for bit, after a lost connection.

The server holds the state only as long as the WebSocket is open. The client holds what is needed to rebuild it: the
last state tokens, and the samples sent since. Both are sent over a new connection before the streams continue, so that
no step is lost or taken twice.
"""

from __future__ import annotations

import base64
import struct
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import numpy as np
import orjson

from stablernn_client.arrays import Array, Numbers
from stablernn_client.bodies import StaticCovariates, encode_static
from stablernn_client.errors import (
    BadRequest,
    Busy,
    ClientError,
    Conflict,
    ConnectionFailed,
    ConnectionLost,
    Deadline,
    NotFound,
    ProtocolError,
    StreamLost,
    error_from_message,
)
from stablernn_client.frames import (
    StreamInfo,
    StreamReply,
    StreamRequest,
    count_answers,
    decode_frame,
    decode_text,
    encode_frame,
    encode_text,
    merge_requests,
)
from stablernn_client.results import StepsResult
from stablernn_client.transport import RetryPolicy, Transport, WebSocket

TOKEN_EVERY = 32
"""Steps between requests for state tokens; at most that many are sent again after a lost connection."""

TOKEN_MAX_AGE_SECONDS = 600.0
"""Age at which state tokens are renewed even after fewer steps, because they expire."""

NO_FIELDS: Mapping[str, Any] = MappingProxyType({})
Result = TypeVar("Result")

# Magic bytes and length of the name, which follows; what comes after it, state and signature, is not read.
_TOKEN_PREFIX = struct.Struct("<5sH")
# NAME:VERSION has at most 74 bytes; four characters hold three bytes.
_TOKEN_PREFIX_CHARACTERS = 112
_CODES_OF_LOST_STREAMS = {"bad_token", "expired_token", "version_gone"}


class Channel:
    """The streams 0 to ``count - 1`` of one WebSocket at a time, which take their steps together.

    Args:
        transport: Makes the connections to the server.
        model: NAME, NAME:VERSION or NAME@ALIAS.
        count: Number of streams.
        tokens: State tokens to resume, one for each stream; None to start from zero states.
        static: Static covariates of a single new stream, by name.
        timeout: Seconds that one call may take, including reconnection.
        token_every: Steps between requests for state tokens.

    Raises:
        BadRequest: If an argument is invalid.
    """

    def __init__(
        self,
        transport: Transport,
        model: str,
        count: int,
        tokens: Sequence[str] | None,
        static: StaticCovariates | None,
        timeout: float,
        token_every: int,
    ) -> None:
        if count < 1:
            raise BadRequest(f"count must be at least 1, got {count}.")
        if token_every < 1:
            raise BadRequest(f"token_every must be at least 1, got {token_every}.")
        if tokens is not None and len(tokens) != count:
            raise BadRequest(f"tokens must hold one for each of the {count} streams, got {len(tokens)}.")
        if tokens is not None and static is not None:
            raise BadRequest("static belongs to a new stream, and a state token already holds it; pass only one.")
        self._transport = transport
        self._model = model if tokens is None else _pin_version(model, _common_version(tokens))
        self._count = count
        self._timeout = timeout
        self._token_every = token_every
        # Sent with the first message of the stream; every state token after it holds them.
        self._static = NO_FIELDS if static is None else {"static": encode_static(static, "static")}
        self._info: StreamInfo | None = None
        self._labels: Array | None = None
        # A new connection starts from these tokens and steps, and repeats the requests since. The number of steps
        # that a token from elsewhere stands for is unknown.
        self._tokens = None if tokens is None else list(tokens)
        self._steps: Array | None = np.zeros(count, np.int64) if tokens is None else None
        self._requests_since_tokens: list[StreamRequest] = []
        self._tokens_time = time.monotonic()
        # Token of the zero state. Streams without a later one restart from it once their version is no longer served
        # to new streams.
        self._initial_token: str | None = None
        # The current connection, and the requests that it has still to repeat.
        self._connection: _StreamConnection | None = None
        self._requests_to_repeat: list[StreamRequest] = []
        self._is_busy = False

    @property
    def info(self) -> StreamInfo:
        """The server's description of the model.

        Raises:
            ClientError: If the stream was never opened.
        """
        if self._info is None:
            raise ClientError("The stream is not open yet; enter it with `async with`, or take a step first.")
        return self._info

    async def open(self) -> StreamInfo:
        """Connect unless it was done before, so that a wrong model or address shows before the first step."""
        if self._info is None:
            await self._retry(self._ensure_connection)
        return self.info

    async def step(
        self,
        values: Numbers,
        dt: Numbers | None = None,
        every: bool = True,
        text_fields: Mapping[str, Any] = NO_FIELDS,
    ) -> StepsResult:
        """Take one or several steps of all streams.

        Args:
            values: ``(streams, steps, *sample_shape)``; NaN is a missing value.
            dt: ``(streams, steps)``, for models of irregular time.
            every: True to return the outputs of every step, False for those of the last step.
            text_fields: Fields that only a text message can carry; for a single stream only.
        """
        info = await self.open()
        is_first = self._tokens is None and not self._requests_since_tokens
        fields = {**text_fields, **self._static} if is_first else text_fields
        request = StreamRequest.check(values, dt, info, self._count, fields)
        steps = request.steps + sum(sent.steps for sent in self._requests_since_tokens)
        age = time.monotonic() - self._tokens_time
        want_tokens = steps >= self._token_every or age >= TOKEN_MAX_AGE_SECONDS

        async def send(retry: RetryPolicy) -> StepsResult:
            connection = await self._ensure_connection(retry)
            reply = await connection.send(request, retry, want_tokens=want_tokens, every=every)
            # Only a step with a reply counts as taken; if sending failed, the caller may repeat it.
            self._requests_since_tokens.append(request)
            if reply.tokens is not None:
                self._store_tokens(reply.tokens, reply.steps)
            answers = count_answers(reply.steps, request.steps, info.patch_stride, last_only=not every)
            labels = self._predicted_labels(reply.outputs)
            return StepsResult(reply.steps, reply.outputs, labels, answers, info.patch_stride)

        return await self._retry(send)

    async def tokens(self) -> list[str]:
        """Return the state tokens of the streams as they are now."""

        async def request(retry: RetryPolicy) -> list[str]:
            connection = await self._ensure_connection(retry)
            tokens = [await connection.request_token(stream, retry) for stream in range(self._count)]
            # Known: it started at zero, or a reply since then has reported it.
            assert connection.steps is not None
            self._store_tokens(tokens, connection.steps)
            return tokens

        if self._tokens is not None and not self._requests_since_tokens:
            return list(self._tokens)
        return await self._retry(request)

    async def close(self) -> None:
        """Close the connection; the server drops the states."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _store_tokens(self, tokens: list[str], steps: Array) -> None:
        """Make these tokens the state from which a new connection starts."""
        self._tokens, self._steps, self._requests_since_tokens = tokens, steps, []
        self._tokens_time = time.monotonic()

    def _predicted_labels(self, outputs: Mapping[str, Array]) -> Array | None:
        if self._labels is None or "probabilities" not in outputs:
            return None
        probabilities = outputs["probabilities"]
        # (streams, steps, classes) -> (streams, steps), no text behind the answers of a stream.
        labels: Array = np.where(np.isnan(probabilities[..., 0]), "", self._labels[probabilities.argmax(-1)])
        return labels

    async def _retry(self, attempt: Callable[[RetryPolicy], Awaitable[Result]]) -> Result:
        """Return the result of ``attempt``, which is repeated after failures that may pass until the timeout."""
        # Two tasks would interleave their messages, and each would read the other's reply.
        if self._is_busy:
            raise ClientError("A stream takes one step at a time; wait for the previous one, or open another stream.")
        self._is_busy = True
        retry = RetryPolicy(self._timeout)
        try:
            while True:
                try:
                    return await attempt(retry)
                except ConnectionFailed as error:
                    # An address that never answered is more likely wrong than a server that is restarting. One that
                    # accepted the connection and lost it did answer.
                    if self._info is None and not isinstance(error, ConnectionLost):
                        raise
                    await self.close()
                    await self._transport.sleep(retry.next_delay(error))
                except (Busy, Deadline) as error:
                    await self._transport.sleep(retry.next_delay(error))
                except Conflict as error:
                    if error.code not in ("duplicate_step", "skipped_step"):
                        raise
                    # After a failure it may be unknown whether a step was taken; a new connection starts from a state
                    # that is known.
                    await self.close()
                    await self._transport.sleep(retry.next_delay(error))
        finally:
            self._is_busy = False

    async def _ensure_connection(self, retry: RetryPolicy) -> _StreamConnection:
        """Return an open connection whose streams have taken the same steps as here."""
        # An earlier call gave up before the reply, which would be read as that of the next message.
        if self._connection is not None and self._connection.is_awaiting_reply:
            await self.close()
        if self._connection is None:
            self._connection = await self._connect(retry)
            self._requests_to_repeat = merge_requests(self._requests_since_tokens)
        # Removed one by one after their replies, so that a retry on the same connection continues with the next.
        while self._requests_to_repeat:
            await self._connection.send(self._requests_to_repeat[0], retry, want_tokens=False, every=False)
            del self._requests_to_repeat[0]
        return self._connection

    async def _connect(self, retry: RetryPolicy) -> _StreamConnection:
        first_info = self._info
        if first_info is None:
            return await self._connect_first(retry)
        # A stream keeps the version that it started with, wherever an alias points by now.
        try:
            websocket, info = await _open_websocket(self._transport, f"{first_info.model}:{first_info.version}", retry)
        except NotFound as error:
            raise _stream_lost(error) from error
        # The same number with another digest is another model: the registry was replaced.
        if info.digest != first_info.digest:
            await websocket.close()
            raise StreamLost(
                f"The stream cannot be resumed: {info.model}:{info.version} now has the digest {info.digest}, "
                f"not {first_info.digest}. Start a new stream."
            )
        tokens = self._tokens
        if tokens is None and not info.has_new_streams and self._initial_token is not None:
            tokens = [self._initial_token] * self._count
        return _StreamConnection(websocket, info, tokens, self._steps)

    async def _connect_first(self, retry: RetryPolicy) -> _StreamConnection:
        websocket, info = await _open_websocket(self._transport, self._model, retry)
        try:
            if self._count > info.max_streams:
                raise BadRequest(f"count must be at most {info.max_streams} on this server, got {self._count}.")
            if self._tokens is None and not info.has_new_streams:
                raise NotFound(
                    f"The server no longer serves version {info.version} of '{info.model}'; streams can only resume "
                    f"from their state tokens. Start with '{info.model}', or pass the token of a stream.",
                    status=404,
                    code="unknown_model",
                )
            connection = _StreamConnection(websocket, info, self._tokens, self._steps)
            if self._tokens is None:
                self._initial_token = await connection.request_token(0, retry)
        except BaseException:
            await websocket.close()
            raise
        # Set last: until here the stream counts as never opened, and a connection that is refused is not retried.
        self._labels = None if info.labels is None else np.array(info.labels)
        self._info = info
        return connection


class _StreamConnection:
    """A WebSocket whose streams start from zero states, or resume from tokens that go out with the first samples.

    Args:
        websocket: The open WebSocket.
        info: The server's first message.
        tokens: State tokens, one for each stream; None for zero states.
        steps: ``(streams,)``, int64: number of steps that the streams have taken; None if unknown.

    Attributes:
        info: As the argument.
        steps: As the argument, then updated with every reply.
        is_awaiting_reply: True from sending a message to receiving its reply. If the caller gave up in between, the
            reply may still arrive and would be taken for the next one, so that the connection must be closed.
    """

    def __init__(
        self, websocket: WebSocket, info: StreamInfo, tokens: Sequence[str] | None, steps: Array | None
    ) -> None:
        self._websocket = websocket
        self._tokens = tokens
        self.info = info
        self.steps = steps
        self.is_awaiting_reply = False

    async def send(self, request: StreamRequest, retry: RetryPolicy, *, want_tokens: bool, every: bool) -> StreamReply:
        """Send the next samples of the streams, and return the reply.

        Args:
            request: The samples.
            retry: Limits the wait for the reply.
            want_tokens: True to request state tokens.
            every: True to request the outputs of every step, False for those of the last step.

        Raises:
            StreamLost: If the server rejects the tokens.
            ConnectionLost: If the connection is closed.
            Timeout: If there is no reply in time.
            ClientError: If the server replies with another error.
        """
        if request.text_fields:
            await self._restore_by_text(retry)
            # Text messages number the samples of a stream from 1, as frames do.
            sequence = None if self.steps is None else int(self.steps[0]) + 1
            text = encode_text(request, sequence=sequence, want_token=want_tokens, last_only=not every)
            reply = decode_text(await self._exchange_text(text, retry), self.info)
        else:
            frame = encode_frame(
                request,
                sequence=None if self.steps is None else self.steps + 1,
                restore=self._tokens,
                want_tokens=want_tokens,
                last_only=not every,
            )
            message = await self._exchange(frame, retry)
            if not isinstance(message, bytes):
                raise ProtocolError("The server replied to a binary frame with a text message.")
            reply = decode_frame(message, self.info, len(request.values), request.steps, last_only=not every)
        expected = None if self.steps is None else self.steps + request.steps
        if expected is not None and not np.array_equal(reply.steps, expected):
            raise ProtocolError(f"The server counts {reply.steps.tolist()} steps, expected {expected.tolist()}.")
        # The server holds the state from here on, so the tokens are not sent a second time.
        self._tokens = None
        self.steps = reply.steps
        return reply

    async def request_token(self, stream: int, retry: RetryPolicy) -> str:
        """Return the state token of a stream as it is now; raises as :meth:`send`."""
        reply = await self._exchange_text(orjson.dumps({"stream": stream, "token": True}).decode(), retry)
        token = reply.get("state_token")
        if not isinstance(token, str):
            raise ProtocolError("The server did not return the requested state token.")
        return token

    async def close(self) -> None:
        await self._websocket.close()

    async def _restore_by_text(self, retry: RetryPolicy) -> None:
        """Resume from the tokens, in messages of their own ahead of a text message with samples."""
        steps = []
        for stream, token in enumerate(self._tokens or ()):
            text = orjson.dumps({"stream": stream, "state_token": token}).decode()
            steps.append((await self._exchange_text(text, retry)).get("step"))
        if steps:
            self.steps = np.array(steps, np.int64)
            self._tokens = None

    async def _exchange_text(self, text: str, retry: RetryPolicy) -> Mapping[str, Any]:
        reply = await self._exchange(text, retry)
        if isinstance(reply, bytes):
            raise ProtocolError("The server replied to a text message with a binary frame.")
        return reply

    async def _exchange(self, message: str | bytes, retry: RetryPolicy) -> Mapping[str, Any] | bytes:
        self.is_awaiting_reply = True
        await self._websocket.send(message)
        # Not in a `finally`: after a timeout or a cancellation the reply is still to come.
        reply = await _receive(self._websocket, retry)
        self.is_awaiting_reply = False
        if isinstance(reply, bytes) or "error" not in reply:
            return reply
        error = error_from_message(reply)
        if error.code in _CODES_OF_LOST_STREAMS:
            raise _stream_lost(error) from error
        raise error


async def _open_websocket(transport: Transport, model: str, retry: RetryPolicy) -> tuple[WebSocket, StreamInfo]:
    """Open a WebSocket to the streams of a model, and return it with the server's description of the model.

    Raises:
        ConnectionFailed: If there is no connection.
        Timeout: If there is none in time.
        ClientError: If the server refuses.
    """
    path = f"/v1/stream?{urlencode({'model': model}, quote_via=quote)}"
    websocket = await transport.open_websocket(path, retry.seconds_left)
    try:
        first = await _receive(websocket, retry)
        if isinstance(first, bytes):
            raise ProtocolError("The server's first message is not text; check the address.")
        if "error" in first:
            raise error_from_message(first)
        return websocket, StreamInfo.parse(first)
    except BaseException:
        # Also if the task is cancelled: nobody else has a reference to close it by.
        await websocket.close()
        raise


def _stream_lost(error: ClientError) -> StreamLost:
    """Return the error for a stream whose state the server rejects, or whose version it does not have."""
    return StreamLost(
        f"The stream cannot be resumed: {error} Start a new stream.", status=error.status, code=error.code
    )


async def _receive(websocket: WebSocket, retry: RetryPolicy) -> Mapping[str, Any] | bytes:
    message = await websocket.receive(retry.seconds_left)
    if isinstance(message, bytes):
        return message
    try:
        value = orjson.loads(message)
    except orjson.JSONDecodeError as error:
        raise ProtocolError("The server sent a text message that is not JSON; check the address.") from error
    if not isinstance(value, dict):
        raise ProtocolError("The server sent a text message that is not an object; check the address.")
    if value.get("closing"):
        # The tokens in it may include a step whose reply was never read; the client's own tokens suffice.
        raise ConnectionLost("The server is shutting down.")
    return value


def _common_version(tokens: Sequence[str]) -> str | None:
    """Return the ``NAME:VERSION`` that all tokens belong to; None if they are not readable as state tokens.

    Raises:
        BadRequest: If one is not ASCII text, or they belong to several versions.
    """
    if not all(token and token.isascii() for token in tokens):
        raise BadRequest("A state token must be the text returned by an earlier stream, got something else.")
    versions = {version_of(token) for token in tokens}
    if len(versions) > 1:
        names = ", ".join(sorted(version or "an unknown version" for version in versions))
        raise BadRequest(
            f"tokens must all be of one version, got {names}; open the streams of each version separately."
        )
    return versions.pop()


def _pin_version(model: str, version: str | None) -> str:
    """Return the version of the state tokens if it is one of the requested model, else the model as requested."""
    name = model.partition("@")[0]
    return version if version is not None and version.rpartition(":")[0] == name else model


def version_of(token: str) -> str | None:
    """Return ``NAME:VERSION`` of a state token; None for any other text, which the server will reject.

    The layout is that of :mod:`stablernn_runtime.state_token`. Only the first bytes are decoded: a token may be long.
    """
    text = token[:_TOKEN_PREFIX_CHARACTERS]
    try:
        prefix = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        magic, length = _TOKEN_PREFIX.unpack_from(prefix)
        name = prefix[_TOKEN_PREFIX.size :][:length]
        return name.decode() if magic == b"SRNT\x01" and len(name) == length else None
    except (ValueError, struct.error):
        return None
