"""A bounded cache of state that clients come back to: entries expire when idle, and the longest idle is evicted first.

Everything happens on the event loop, so there are no locks but those that requests hold by key. Expired entries go at
the next access; the application asks for the length several times a second.

Requests that work on one key run one after another, in the order in which they arrived.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from stablernn_server.batching.types import Caller
from stablernn_server.errors import ClientGoneError, DeadlineError, ServerError, TooManyError

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


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


@dataclass(slots=True, eq=False)
class Entry(Generic[Value]):
    """One entry of the cache.

    Attributes:
        value: The cached value.
        created: When it was put in, on the monotonic clock.
        used: When it was last asked for or worked on, on the same clock.
    """

    value: Value
    created: float
    used: float


class TtlCache(Generic[Key, Value]):
    """Entries by key, in the order of their last use.

    Attributes:
        ttl_seconds: Idle time after which an entry expires.
        max_entries: Number of entries beyond which the longest idle one is evicted.
        locks: The locks of the keys, whether there is an entry or not.
    """

    def __init__(self, ttl_seconds: float, max_entries: int, max_waiters: int) -> None:
        """Begin without entries.

        Args:
            ttl_seconds: Idle time after which an entry expires.
            max_entries: Number of entries beyond which the longest idle one is evicted.
            max_waiters: Requests that may wait for the lock of one key.
        """
        self.ttl_seconds = ttl_seconds
        self.max_entries = max_entries
        self.locks: KeyedLock[Key] = KeyedLock(max_waiters)
        # Least recently used first.
        self._entries: OrderedDict[Key, Entry[Value]] = OrderedDict()
        # Why entries were removed, for error messages; bounded as the entries are.
        self._removal_reasons: OrderedDict[Key, str] = OrderedDict()

    def __len__(self) -> int:
        self.sweep()
        return len(self._entries)

    def values(self) -> list[Value]:
        """Return all values."""
        self.sweep()
        return [entry.value for entry in self._entries.values()]

    def put(self, key: Key, value: Value) -> Entry[Value]:
        """Store ``value`` under ``key``, replacing its entry; a full cache evicts the longest idle entry."""
        self.sweep()
        now = time.monotonic()
        self._entries.pop(key, None)
        while len(self._entries) >= self.max_entries:
            # An entry whose lock is held is not idle; where all are held, the least recently used one goes.
            idle_key = next((key for key in self._entries if not self.locks.is_held(key)), None)
            self.drop(
                next(iter(self._entries)) if idle_key is None else idle_key,
                f"was evicted for a newer one, at most {self.max_entries} are kept",
            )
        entry = self._entries[key] = Entry(value, now, now)
        self._removal_reasons.pop(key, None)
        return entry

    def get(self, key: Key) -> Entry[Value] | None:
        """Return the entry of ``key`` and count this as use; None if there is none."""
        self.sweep()
        entry = self._entries.get(key)
        if entry is not None:
            self._touch(key, entry)
        return entry

    def peek(self, key: Key) -> Entry[Value] | None:
        """Return the entry of ``key`` as :meth:`get` does, without counting it as use."""
        self.sweep()
        return self._entries.get(key)

    def drop(self, key: Key, reason: str) -> None:
        """Remove the entry of ``key``, if there is one.

        Args:
            key: The key.
            reason: End of a sentence that begins with the entry, such as ``"was closed"``.
        """
        self._entries.pop(key, None)
        # Removed first, so that the newest reason is the last to be forgotten.
        self._removal_reasons.pop(key, None)
        self._removal_reasons[key] = reason
        while len(self._removal_reasons) > self.max_entries:
            self._removal_reasons.popitem(last=False)

    def removal_reason(self, key: Key) -> str | None:
        """Return why there is no entry any more; None if it is not known that there was one."""
        return self._removal_reasons.get(key)

    @asynccontextmanager
    async def hold(self, key: Key, noun: str, caller: Caller) -> AsyncIterator[None]:
        """Hold the lock of ``key`` for the block, during which its entry does not expire.

        Args:
            key: The key.
            noun: Noun for an entry in errors, such as ``"session"``.
            caller: The client that waits.

        Raises:
            TooManyError: If too many requests wait for it already.
            DeadlineError: If the caller's deadline passes first.
            ClientGoneError: If the client disconnects first.
        """
        async with self.locks.hold(key, noun, caller):
            try:
                yield
            finally:
                # Idle time counts from the end of the block.
                if (entry := self._entries.get(key)) is not None:
                    self._touch(key, entry)

    def sweep(self) -> None:
        """Remove the entries that have been idle for too long."""
        oldest_use = time.monotonic() - self.ttl_seconds
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.used > oldest_use:
                break
            # A request has worked on it for longer than the time to live: it is not idle.
            if self.locks.is_held(key):
                self._touch(key, entry)
            else:
                self.drop(key, f"expired after {self.ttl_seconds:g} s without a request")

    def _touch(self, key: Key, entry: Entry[Value]) -> None:
        entry.used = time.monotonic()
        self._entries.move_to_end(key)
