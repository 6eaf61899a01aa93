"""One open WebSocket of ``/v1/stream``, and the streams on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import orjson

from stablernn_client import frames
from stablernn_client.arrays import Array
from stablernn_client.errors import (
    ClientError,
    ConnectionLost,
    ProtocolError,
    StreamLost,
    error_from_message,
)
from stablernn_client.frames import StreamReply
from stablernn_client.retry import RetryPolicy
from stablernn_client.stream_info import StreamInfo
from stablernn_client.stream_request import StreamRequest
from stablernn_client.transport.protocols import Transport, WebSocket

_CODES_OF_LOST_STREAMS = {"bad_token", "expired_token", "version_gone"}


class StreamConnection:
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
            text = frames.encode_text(request, sequence=sequence, want_token=want_tokens, last_only=not every)
            reply = frames.decode_text(await self._exchange_text(text, retry), self.info)
        else:
            frame = frames.encode_frame(
                request,
                sequence=None if self.steps is None else self.steps + 1,
                restore=self._tokens,
                want_tokens=want_tokens,
                last_only=not every,
            )
            message = await self._exchange(frame, retry)
            if not isinstance(message, bytes):
                raise ProtocolError("The server replied to a binary frame with a text message.")
            reply = frames.decode_frame(message, self.info, len(request.values), request.steps, last_only=not every)
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
            raise stream_lost(error) from error
        raise error


async def open_stream_websocket(transport: Transport, model: str, retry: RetryPolicy) -> tuple[WebSocket, StreamInfo]:
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


def stream_lost(error: ClientError) -> StreamLost:
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
