"""One open WebSocket: frames in, replies out, and the close handshake.

Frames are answered one after another, and the next is read when the answer to the one before has been taken: a client
that sends without reading is not read from any more, so that neither side's memory grows. While a frame takes long, one
more message is looked at, for it may say that the client has gone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

import orjson

from stablernn_runtime.served_model import ServedModel
from stablernn_server.batching.types import Caller
from stablernn_server.codecs.json_values import json_body
from stablernn_server.codecs.stream_frames import parse_frame
from stablernn_server.errors import NotReadyError, ServerError, TooLargeError
from stablernn_server.http.app_context import UNFINISHED, ActiveRequest, AppContext, Receive
from stablernn_server.http.offload import offload
from stablernn_server.http.responses import error_answer

logger = logging.getLogger(__name__)

GOING_AWAY = 1001
LOOK_AFTER_SECONDS = 0.1
"""Whether the client has gone is looked for only then: most frames are answered long before."""
CLIENT_GONE = "client_gone"


class Connection(Protocol):
    """What answers the frames of a socket."""

    caller: Caller

    @property
    def model(self) -> ServedModel | None: ...

    def __len__(self) -> int: ...

    def ready_message(self) -> bytes: ...

    async def drain_message(self) -> str: ...

    async def text(self, content: dict[str, Any], size: int, /) -> str: ...

    async def binary(self, content: bytes) -> bytes: ...


@dataclass(slots=True)
class _Read:
    """A frame that was read.

    Attributes:
        content: Text, or the bytes of a binary frame; None where it was refused at once.
        size: Of the content, which is held until the answer has been sent.
        since: When it was read, on the clock of the event loop.
        refusal: Why it is not even looked at.
    """

    content: str | bytes | None
    size: int
    since: float
    refusal: ServerError | None = None


class Socket:
    """One open WebSocket.

    Attributes:
        conversation: Its streams.
    """

    def __init__(
        self, conversation: Connection, context: AppContext, item: ActiveRequest, receive: Receive, send: Any
    ) -> None:
        self.conversation = conversation
        self._context = context
        self._item = item
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._since = 0.0
        self._is_busy = True
        self._is_leaving = False
        self._has_left = False
        self._is_over = asyncio.Event()
        # Read while the frame before was in hand.
        self._next: _Read | None = None

    @property
    def streams(self) -> int:
        """How many it carries."""
        return len(self.conversation)

    async def run(self) -> None:
        """Say hello, and answer frames until the client or the server closes."""
        caller, seconds = self.conversation.caller, self._context.settings.request_timeout_seconds
        caller.is_gone = self.is_gone
        try:
            await self._say({"type": "websocket.send", "text": self.conversation.ready_message().decode()})
            # The handshake may have ended in the middle of the goodbyes.
            self._is_leaving = self._is_leaving or not self._context.is_ready
            self._is_busy = False
            if self._is_leaving:
                await self._say_goodbye()
            while not self._has_left:
                frame = self._next or self._taken(await self._receive())
                self._next = None
                if frame is None:
                    return
                if self._is_leaving:
                    self._context.release(self._item, frame.size)
                    continue
                self._is_busy, self._since = True, frame.since
                caller.deadline = frame.since + seconds
                answer = await self._answer(frame)
                if not self._has_left:
                    await self._say(answer)
                self._context.release(self._item, frame.size)
                self._is_busy = False
                if self._is_leaving:
                    await self._say_goodbye()
        finally:
            # A circle, which would keep the model until the collector comes by.
            caller.is_gone = None
            self._context.release(self._item, self._item.held_bytes)
            self._is_over.set()

    async def leave(self) -> None:
        """Hand the client the tokens of its streams and close, after the frame in hand."""
        self._is_leaving = True
        if self._is_busy:
            await self._is_over.wait()
        else:
            await self._say_goodbye()

    def end(self) -> None:
        """Answer the frame in hand with an error, whatever it has come to; called again, give the client up."""
        if self._item.reason is None:
            self._item.end(NotReadyError(UNFINISHED))
        elif self._item.task is not None:
            self._item.task.cancel()

    def is_gone(self) -> bool:
        """Whether the client has closed the connection; asked while a frame is in hand.

        As :meth:`ActiveRequest.is_gone`, it lets the server's ``receive`` run up to where it would wait. What it finds
        beside is kept, one message at most, and then there is no telling: the client is not read from any further.
        """
        if self._next is not None or self._has_left or self._loop.time() - self._since < LOOK_AFTER_SECONDS:
            return self._has_left
        waiting = self._receive()
        try:
            waiting.send(None)  # type: ignore[attr-defined]
        except StopIteration as message:
            self._next = self._taken(message.value)
        else:
            waiting.close()  # type: ignore[attr-defined]
        return self._has_left

    def _taken(self, message: MutableMapping[str, Any]) -> _Read | None:
        """A message as a frame whose bytes count; None of the one that ends the connection."""
        since = self._loop.time()
        if message["type"] != "websocket.receive":
            self._has_left = True
            return None
        content: str | bytes = message["text"] if message.get("bytes") is None else message["bytes"]
        settings, size = self._context.settings, len(content)
        limit = settings.json_limit if isinstance(content, str) else settings.max_body_bytes
        if size > limit:
            return _Read(
                None,
                0,
                since,
                TooLargeError(f"The frame is longer than the limit of {limit} bytes, got {size}; send fewer samples."),
            )
        try:
            self._context.hold(self._item, size)
        except ServerError as error:
            self._context.release(self._item, size)
            return _Read(None, 0, since, error)
        return _Read(content, size, since)

    async def _say_goodbye(self) -> None:
        try:
            text = await self.conversation.drain_message()
            await self._say({"type": "websocket.send", "text": text})
            await self._say({"type": "websocket.close", "code": GOING_AWAY, "reason": "The server is shutting down."})
        finally:
            self._is_over.set()

    async def _say(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except OSError:
            # By ASGI's rules: the client has left, or the connection was failed with this frame in hand.
            self._has_left = True

    async def _answer(self, frame: _Read) -> dict[str, Any]:
        about: dict[str, Any] = {}
        try:
            if frame.refusal is not None:
                raise frame.refusal
            content = frame.content
            if isinstance(content, bytes):
                return {"type": "websocket.send", "bytes": await self.conversation.binary(content)}
            assert content is not None
            given = await offload(len(content), lambda: parse_frame(content))
            about = {name: given[name] for name in ("stream", "id") if isinstance(given.get(name), int | str | float)}
            return {"type": "websocket.send", "text": await self.conversation.text(given, len(content))}
        except asyncio.CancelledError:
            item = self._item
            if item.reason is None or item.task is None:
                raise
            item.task.uncancel()
            return self._refusal(item.reason, about)
        except Exception as error:
            return self._refusal(error, about)

    def _refusal(self, error: Exception, about: dict[str, Any]) -> dict[str, Any]:
        refusal, model = error_answer(error), self.conversation.model
        if refusal.code == "internal":
            logger.error("a frame of %s failed", "a socket" if model is None else model.ref, exc_info=error)
        self._context.telemetry.failed(model, CLIENT_GONE if self._has_left else refusal.code or "internal")
        body = orjson.loads(refusal.body) | {"status": refusal.status} | about
        return {"type": "websocket.send", "text": json_body(body).decode()}
