"""Per-key FIFO locks: requests that work on one key run one after another, in the order in which they arrived.

Everything happens on the event loop. A request waits no longer than its deadline, and its place in the queue is free
again as soon as its client is found to have gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from stablernn_server.batching.types import Caller
from stablernn_server.errors import ClientGoneError, DeadlineError, ServerError, TooManyError

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True, eq=False)
class _Waiter:
    caller: Caller
    # Resolves when the waiter holds the lock.
    granted: asyncio.Future[None]


class KeyedLock(Generic[Key]):
    """A FIFO lock for each key."""

    def __init__(self, max_waiters: int) -> None:
        """Begin with all keys free.

        Args:
            max_waiters: Requests that may wait for one key.
        """
        self._max_waiters = max_waiters
        # A key with a queue, even an empty one, is held. The queue belongs to the key, not to what is stored under it:
        # that may end and begin again while requests wait, and they keep their order.
        self._queues: dict[Key, deque[_Waiter]] = {}

    def is_held(self, key: Key) -> bool:
        """Return whether a request works on ``key``."""
        return key in self._queues

    @asynccontextmanager
    async def hold(self, key: Key, noun: str, caller: Caller) -> AsyncIterator[None]:
        """Hold the lock of ``key`` for the block.

        Args:
            key: The key to work on.
            noun: Noun for it in errors, such as ``"session"``.
            caller: The client that waits.

        Raises:
            TooManyError: If too many requests wait for it already.
            DeadlineError: If the caller's deadline passes first.
            ClientGoneError: If the client disconnects first.
        """
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = deque()
        else:
            await self._wait(key, queue, noun, caller)
        try:
            yield
        finally:
            self._grant_next(key)

    def drop_gone_clients(self) -> None:
        """Fail the waiters whose clients have gone.

        Called at intervals: nothing else looks while they wait.
        """
        for queue in self._queues.values():
            _drop_gone_clients(queue)

    async def _wait(self, key: Key, queue: deque[_Waiter], noun: str, caller: Caller) -> None:
        if len(queue) >= self._max_waiters:
            _drop_gone_clients(queue)
        if len(queue) >= self._max_waiters:
            raise TooManyError(
                f"{self._max_waiters} requests of this {noun} are already waiting, its limit; wait for their answers, "
                "or send several samples in one request."
            )
        loop = asyncio.get_running_loop()
        waiter = _Waiter(caller, loop.create_future())
        queue.append(waiter)
        timer = None
        if caller.deadline is not None:
            late = DeadlineError(
                f"The deadline passed while other requests of this {noun} were processed; give more time, or wait for "
                "their answers first."
            )
            timer = loop.call_at(caller.deadline, _fail, queue, waiter, late)
        try:
            await waiter.granted
        except BaseException:
            if waiter in queue:
                queue.remove(waiter)
            elif waiter.granted.done() and not waiter.granted.cancelled() and waiter.granted.exception() is None:
                # The task was cancelled after the lock was granted and before it could run: pass the lock on.
                self._grant_next(key)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _grant_next(self, key: Key) -> None:
        queue = self._queues[key]
        while queue:
            waiter = queue.popleft()
            if waiter.granted.done():
                continue
            if _is_gone(waiter):
                waiter.granted.set_exception(_client_gone())
                continue
            waiter.granted.set_result(None)
            return
        del self._queues[key]


def _drop_gone_clients(queue: deque[_Waiter]) -> None:
    # A list first: the loop removes from the queue.
    for waiter in [waiter for waiter in queue if _is_gone(waiter)]:
        _fail(queue, waiter, _client_gone())


def _is_gone(waiter: _Waiter) -> bool:
    return waiter.caller.is_gone is not None and waiter.caller.is_gone()


def _client_gone() -> ClientGoneError:
    return ClientGoneError("The client closed the connection before its request was processed.")


def _fail(queue: deque[_Waiter], waiter: _Waiter, error: ServerError) -> None:
    if not waiter.granted.done():
        queue.remove(waiter)
        waiter.granted.set_exception(error)
