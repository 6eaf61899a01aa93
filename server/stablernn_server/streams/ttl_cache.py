"""A bounded table of what clients come back to: it forgets what lies idle, and gives way in the order of last use.

Everything happens on the event loop, so there are no locks but the turns that requests take. What has expired goes when
the table is next asked for anything; the application asks how long it is several times a second.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from stablernn_server.batching.types import Caller
from stablernn_server.streams.keyed_lock import KeyedLock

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


@dataclass(slots=True, eq=False)
class Entry(Generic[Value]):
    """One thing that is kept.

    Attributes:
        value: The thing.
        created: When it was put in, on the monotonic clock.
        used: When it was last asked for or worked on.
    """

    value: Value
    created: float
    used: float


class TtlCache(Generic[Key, Value]):
    """Entries by key.

    Attributes:
        ttl_seconds: How long an entry may lie idle.
        most: Entries kept; the longest idle one gives way.
        turns: Who works on which key, whether there is an entry of it or not.
    """

    def __init__(self, ttl_seconds: float, most: int, queue: int) -> None:
        """Keep nothing yet.

        Args:
            ttl_seconds: How long an entry may lie idle.
            most: Entries kept.
            queue: Requests that may wait for their turn with one key.
        """
        self.ttl_seconds = ttl_seconds
        self.most = most
        self.turns: KeyedLock[Key] = KeyedLock(queue)
        self._entries: OrderedDict[Key, Entry[Value]] = OrderedDict()
        # Why an entry is not there any more, for the sentence that says so.
        self._gone: OrderedDict[Key, str] = OrderedDict()

    def __len__(self) -> int:
        self.sweep()
        return len(self._entries)

    def values(self) -> list[Value]:
        """Everything that is kept."""
        self.sweep()
        return [entry.value for entry in self._entries.values()]

    def put(self, key: Key, value: Value) -> Entry[Value]:
        """Keep ``value``, in place of what was there; the longest idle entry gives way if the table is full."""
        self.sweep()
        now = time.monotonic()
        self._entries.pop(key, None)
        while len(self._entries) >= self.most:
            # One that is being worked on is not idle; where all are, the oldest of them goes.
            idle = next((key for key in self._entries if not self.turns.is_taken(key)), None)
            self.drop(
                next(iter(self._entries)) if idle is None else idle, f"gave way to a newer one, {self.most} are kept"
            )
        entry = self._entries[key] = Entry(value, now, now)
        self._gone.pop(key, None)
        return entry

    def get(self, key: Key) -> Entry[Value] | None:
        """The entry of ``key``, which counts as used now; None if there is none."""
        self.sweep()
        entry = self._entries.get(key)
        if entry is not None:
            self._touch(key, entry)
        return entry

    def peek(self, key: Key) -> Entry[Value] | None:
        """As :meth:`get`, without counting as use."""
        self.sweep()
        return self._entries.get(key)

    def drop(self, key: Key, why: str) -> None:
        """Forget the entry of ``key``, if there is one; ``why`` ends a sentence that begins with what it was."""
        self._entries.pop(key, None)
        self._gone.pop(key, None)
        self._gone[key] = why
        while len(self._gone) > self.most:
            self._gone.popitem(last=False)

    def why_gone(self, key: Key) -> str | None:
        """Why there is no entry any more; None if it is not known that there was one."""
        return self._gone.get(key)

    @asynccontextmanager
    async def turn(self, key: Key, what: str, caller: Caller) -> AsyncIterator[None]:
        """Have ``key`` alone for this block; its entry does not expire meanwhile.

        Args:
            key: The key.
            what: What to call an entry in errors, such as ``"session"``.
            caller: Who waits.

        Raises:
            TooManyError: If too many wait for it already.
            DeadlineError: If the caller's deadline passes before its turn comes.
            ClientGoneError: If the caller goes away before.
        """
        async with self.turns.turn(key, what, caller):
            try:
                yield
            finally:
                if (entry := self._entries.get(key)) is not None:
                    self._touch(key, entry)

    def sweep(self) -> None:
        """Forget what has lain idle for too long."""
        oldest_use = time.monotonic() - self.ttl_seconds
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.used > oldest_use:
                break
            if self.turns.is_taken(key):
                self._touch(key, entry)
            else:
                self.drop(key, f"expired after {self.ttl_seconds:g} s without a request")

    def _touch(self, key: Key, entry: Entry[Value]) -> None:
        entry.used = time.monotonic()
        self._entries.move_to_end(key)
