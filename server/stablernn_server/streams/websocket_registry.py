"""The WebSockets that are open, so that a server that stops can take leave of their clients."""

from __future__ import annotations

import asyncio
from typing import Protocol


class RegisteredWebSocket(Protocol):
    @property
    def streams(self) -> int: ...

    async def leave(self) -> None: ...

    def end(self) -> None: ...


LAST_WORD_SECONDS = 0.5
"""How long the goodbyes may take of sockets whose frame was ended."""


class WebSocketRegistry:
    """The open WebSockets of one application."""

    def __init__(self) -> None:
        self._open: set[RegisteredWebSocket] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def streams(self) -> int:
        """How many streams all of them carry."""
        return sum(socket.streams for socket in self._open)

    def add(self, socket: RegisteredWebSocket) -> None:
        self._open.add(socket)

    def remove(self, socket: RegisteredWebSocket) -> None:
        self._open.discard(socket)

    async def leave(self, grace_seconds: float) -> None:
        """Hand every client the tokens of its streams and close, each after the frame in hand.

        Args:
            grace_seconds: How long a frame may take, and a client to read its answer; then the frame is ended, and who
                still does not read half a second later is left behind.
        """
        leaving = {asyncio.create_task(socket.leave()): socket for socket in self._open}
        if not leaving:
            return
        late = set(leaving)
        for seconds in (grace_seconds, LAST_WORD_SECONDS):
            if late:
                _, late = await asyncio.wait(late, timeout=seconds)
            for task in late:
                leaving[task].end()
        for task in late:
            task.cancel()
        # A client that has gone meanwhile is no failure of ours.
        await asyncio.gather(*leaving, return_exceptions=True)
