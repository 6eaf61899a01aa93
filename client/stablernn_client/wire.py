"""One open socket of ``/v1/stream``, and the streams that live in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
import orjson

from stablernn_client import frames
from stablernn_client.errors import (
    ClientError,
    ConnectionLost,
    ProtocolError,
    StreamLost,
    error_of_frame,
)
from stablernn_client.parts import Part
from stablernn_client.patience import Patience
from stablernn_client.results import Array
from stablernn_client.stream_info import StreamInfo
from stablernn_client.transport import Link, Transport

_CANNOT_RESTORE = {"bad_token", "expired_token", "version_gone"}


class Wire:
    """A socket whose streams are at zeros, or go on from tokens that are sent with the first samples.

    Args:
        link: The socket.
        info: The server's first message.
        tokens: One for each stream; None for zeros.
        steps: ``(streams,)``, int64: steps that the streams have taken; None where not known.

    Attributes:
        info: As given.
        steps: As given, then kept up to date.
        is_in_flight: Whether a message is not answered yet. It may still be, which would be taken for the answer to
            the next one: a socket that was given up on in this state is of no more use.
    """

    def __init__(self, link: Link, info: StreamInfo, tokens: Sequence[str] | None, steps: Array | None) -> None:
        self._link = link
        self._tokens = tokens
        self.info = info
        self.steps = steps
        self.is_in_flight = False

    async def send(self, part: Part, patience: Patience, *, want_tokens: bool, every: bool) -> frames.Answer:
        """The streams' next samples.

        Raises:
            StreamLost: If the tokens cannot be gone on from.
            ConnectionLost: If the socket is not open any more.
            Timeout: If there is no answer in time.
            ClientError: What else the server answers.
        """
        if part.beside:
            await self._restore_by_text(patience)
            sequence = None if self.steps is None else int(self.steps[0]) + 1
            text = frames.encode_text(part, sequence=sequence, want_token=want_tokens, last_only=not every)
            answer = frames.decode_text(await self._ask(text, patience), self.info)
        else:
            content = frames.encode(
                part,
                sequence=None if self.steps is None else self.steps + 1,
                restore=self._tokens,
                want_tokens=want_tokens,
                last_only=not every,
            )
            reply = await self._exchange(content, patience)
            if not isinstance(reply, bytes):
                raise ProtocolError("The server answered to a binary frame with a text message.")
            answer = frames.decode(reply, self.info, len(part.values), part.steps if every else 1)
        due = None if self.steps is None else self.steps + part.steps
        if due is not None and not np.array_equal(answer.steps, due):
            raise ProtocolError(f"The server counts {answer.steps.tolist()} steps, where {due.tolist()} were sent.")
        self._tokens = None
        self.steps = answer.steps
        return answer

    async def token_of(self, stream: int, patience: Patience) -> str:
        """The state token of a stream as it is now; raises as :meth:`send`."""
        answer = await self._ask(orjson.dumps({"stream": stream, "token": True}).decode(), patience)
        token = answer.get("state_token")
        if not isinstance(token, str):
            raise ProtocolError("The server was asked for a state token and answered without one.")
        return token

    async def close(self) -> None:
        await self._link.close()

    async def _restore_by_text(self, patience: Patience) -> None:
        """Go on from the tokens before a text message, which carries no others."""
        steps = []
        for stream, token in enumerate(self._tokens or ()):
            answer = await self._ask(orjson.dumps({"stream": stream, "state_token": token}).decode(), patience)
            steps.append(answer.get("step"))
        if steps:
            self.steps = np.array(steps, np.int64)
            self._tokens = None

    async def _ask(self, text: str, patience: Patience) -> Mapping[str, Any]:
        answer = await self._exchange(text, patience)
        if isinstance(answer, bytes):
            raise ProtocolError("The server answered to a text message with a binary frame.")
        return answer

    async def _exchange(self, message: str | bytes, patience: Patience) -> Mapping[str, Any] | bytes:
        self.is_in_flight = True
        await self._link.send(message)
        reply = await _received(self._link, patience)
        self.is_in_flight = False
        if isinstance(reply, bytes) or "error" not in reply:
            return reply
        error = error_of_frame(reply)
        if error.code in _CANNOT_RESTORE:
            raise lost(error) from error
        raise error


async def open_wire(transport: Transport, model: str, patience: Patience) -> tuple[Link, StreamInfo]:
    """A socket to the streams of a model, and what the server says of it.

    Raises:
        ConnectionFailed: If there is no connection.
        Timeout: If there is none in time.
        ClientError: If the server refuses.
    """
    link = await transport.open(f"/v1/stream?{urlencode({'model': model}, quote_via=quote)}", patience.left)
    try:
        first = await _received(link, patience)
        if isinstance(first, bytes):
            raise ProtocolError("The server's first message is not text; check the address.")
        if "error" in first:
            raise error_of_frame(first)
        return link, StreamInfo.read(first)
    except BaseException:
        await link.close()
        raise


def lost(error: ClientError) -> StreamLost:
    """What it means for a stream that its state is refused, or its version is not there."""
    return StreamLost(
        f"The stream cannot go on where it was: {error} Begin a new stream.", status=error.status, code=error.code
    )


async def _received(link: Link, patience: Patience) -> Mapping[str, Any] | bytes:
    message = await link.receive(patience.left)
    if isinstance(message, bytes):
        return message
    try:
        value = orjson.loads(message)
    except orjson.JSONDecodeError as error:
        raise ProtocolError("The server sent a text message that is not JSON; check the address.") from error
    if not isinstance(value, dict):
        raise ProtocolError("The server sent a text message that is not an object; check the address.")
    if value.get("closing"):
        # What it offers tokens of may have taken a step that was never answered; our own tokens are enough.
        raise ConnectionLost("The server is shutting down.")
    return value
