"""Per-key locks: requests for one thing run one after another, in the order that they came.

Everything happens on the event loop. A request that waits does so no longer than its deadline, and its place is free
again as soon as its client is found gone.
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
    called: asyncio.Future[None]


class KeyedLock(Generic[Key]):
    """Who may work on what, and who is next."""

    def __init__(self, most: int) -> None:
        """Nobody waits yet.

        Args:
            most: Requests that may wait for one thing.
        """
        self._most = most
        # What has a queue, be it empty, is being worked on. It belongs to the key: what a key stands for may end and
        # begin again while requests wait, and they keep their order.
        self._queues: dict[Key, deque[_Waiter]] = {}

    def is_taken(self, key: Key) -> bool:
        """Whether a request works on ``key``."""
        return key in self._queues

    @asynccontextmanager
    async def turn(self, key: Key, what: str, caller: Caller) -> AsyncIterator[None]:
        """Have ``key`` alone for this block.

        Args:
            key: What to work on.
            what: What to call it in errors, such as ``"session"``.
            caller: Who waits.

        Raises:
            TooManyError: If too many wait for it already.
            DeadlineError: If the caller's deadline passes before its turn comes.
            ClientGoneError: If the caller goes away before.
        """
        queue = self._queues.get(key)
        if queue is None:
            self._queues[key] = deque()
        else:
            await self._wait(key, queue, what, caller)
        try:
            yield
        finally:
            self._call_next(key)

    def drop_gone(self) -> None:
        """Let those go whose clients are gone; called now and then, for nothing else looks while they wait."""
        for queue in self._queues.values():
            _drop_gone(queue)

    async def _wait(self, key: Key, queue: deque[_Waiter], what: str, caller: Caller) -> None:
        if len(queue) >= self._most:
            _drop_gone(queue)
        if len(queue) >= self._most:
            raise TooManyError(
                f"{self._most} requests of this {what} wait for their turn already, its limit; wait for their answers, "
                "or send several samples in one request."
            )
        loop = asyncio.get_running_loop()
        waiter = _Waiter(caller, loop.create_future())
        queue.append(waiter)
        timer = None
        if caller.deadline is not None:
            late = DeadlineError(
                f"The deadline passed while other requests of this {what} were worked on; give more time, or wait for "
                "their answers first."
            )
            timer = loop.call_at(caller.deadline, _let_go, queue, waiter, late)
        try:
            await waiter.called
        except BaseException:
            if waiter in queue:
                queue.remove(waiter)
            elif waiter.called.done() and not waiter.called.cancelled() and waiter.called.exception() is None:
                # It was cancelled in the moment when its turn came.
                self._call_next(key)
            raise
        finally:
            if timer is not None:
                timer.cancel()

    def _call_next(self, key: Key) -> None:
        queue = self._queues[key]
        while queue:
            waiter = queue.popleft()
            if waiter.called.done():
                continue
            if _is_gone(waiter):
                waiter.called.set_exception(_gone())
                continue
            waiter.called.set_result(None)
            return
        del self._queues[key]


def _drop_gone(queue: deque[_Waiter]) -> None:
    for waiter in [waiter for waiter in queue if _is_gone(waiter)]:
        _let_go(queue, waiter, _gone())


def _is_gone(waiter: _Waiter) -> bool:
    return waiter.caller.is_gone is not None and waiter.caller.is_gone()


def _gone() -> ClientGoneError:
    return ClientGoneError("The client closed the connection before its turn came.")


def _let_go(queue: deque[_Waiter], waiter: _Waiter, reason: ServerError) -> None:
    if not waiter.called.done():
        queue.remove(waiter)
        waiter.called.set_exception(reason)
