"""The open WebSockets, which a server that stops closes with a drain message to each client."""

from __future__ import annotations

import asyncio
from typing import Protocol


class RegisteredWebSocket(Protocol):
    """The part of a WebSocket that the registry needs."""

    @property
    def streams(self) -> int:
        """Number of its streams."""
        ...

    async def leave(self) -> None:
        """Send the drain message and close, after the frame in flight."""
        ...

    def end(self) -> None:
        """Answer the frame in flight with an error; called again, give the client up."""
        ...


DRAIN_MESSAGE_SECONDS = 0.5
"""Time for the drain messages of sockets whose frame was ended."""


class WebSocketRegistry:
    """The open WebSockets of one application."""

    def __init__(self) -> None:
        self._open: set[RegisteredWebSocket] = set()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def streams(self) -> int:
        """Number of streams on all WebSockets."""
        return sum(socket.streams for socket in self._open)

    def add(self, socket: RegisteredWebSocket) -> None:
        """Register an open WebSocket."""
        self._open.add(socket)

    def remove(self, socket: RegisteredWebSocket) -> None:
        """Forget a WebSocket; does nothing if it is not registered."""
        self._open.discard(socket)

    async def drain(self, grace_seconds: float) -> None:
        """Send every client the tokens of its streams and close its WebSocket, after the frame in flight.

        Args:
            grace_seconds: Time for a frame in flight, and for the client to read its answer. After it the frame is
                ended, and a client that still does not read half a second later is left behind.
        """
        tasks = {asyncio.create_task(socket.leave()): socket for socket in self._open}
        if not tasks:
            return
        late = set(tasks)
        # The first `end` answers the frame with an error, after which the drain message follows; the second gives up.
        for seconds in (grace_seconds, DRAIN_MESSAGE_SECONDS):
            if late:
                _, late = await asyncio.wait(late, timeout=seconds)
            for task in late:
                tasks[task].end()
        for task in late:
            task.cancel()
        # Exceptions are those of clients that have disconnected, which is no error here.
        await asyncio.gather(*tasks, return_exceptions=True)
