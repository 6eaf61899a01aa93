"""Threads that run what the event loop gives them, one thing at a time each."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, KeysView, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")

END_SECONDS = 1.0
"""How long runs that were told to end are waited for; ONNX Runtime looks for that between two nodes of a graph."""


class WorkerThreads(Generic[T]):
    """Runner threads, and the one thing that the first of them to end goes on with.

    An executor would keep the interpreter busy for longer around each run than the event loop can spare, and would have
    to be given what it runs next before anybody knows what that should be. Every method is for the event loop's thread.

    Attributes:
        lined_up: What was lined up and is not known to have begun.
    """

    def __init__(self, run: Callable[[T], object], on_end: Callable[[], object], count: int) -> None:
        """Prepare; :meth:`start` begins.

        Args:
            run: Runs one thing on a thread; must not raise.
            on_end: Called on the event loop when something has ended; calls :meth:`ended`.
            count: Threads.
        """
        self.lined_up: T | None = None
        self._run = run
        self._on_end = on_end
        self._count = count
        self._threads: list[tuple[SimpleQueue[T | None], threading.Thread]] = []
        self._idle: list[SimpleQueue[T | None]] = []
        self._running: dict[T, SimpleQueue[T | None]] = {}
        self._next: deque[T] = deque()
        self._ended: deque[tuple[T, T | None]] = deque()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads, which report to ``loop``."""
        # Threads of a loop before may still end what they run; they keep what belongs to it.
        self.lined_up, self._running, self._next, self._ended = None, {}, deque(), deque()
        self._threads = [self._start_thread(loop) for _ in range(self._count)]
        # The last comes first: the thread of the last run is awake, and its caches are full.
        self._idle = [work for work, _ in self._threads]

    def stop(self) -> Callable[[], None]:
        """Take nothing more; what was lined up is not run.

        Returns:
            Waits until what runs has ended, for :data:`END_SECONDS` at most; for another thread. A process that ends in
            the middle of it may be aborted.
        """
        self.recall()
        threads, self._threads, self._idle = self._threads, [], []
        for work, _ in threads:
            work.put(None)
        return partial(_join, [thread for _, thread in threads])

    @property
    def is_started(self) -> bool:
        return bool(self._threads)

    @property
    def running(self) -> KeysView[T]:
        """What runs, or has ended and was not yet returned by :meth:`ended`."""
        return self._running.keys()

    @property
    def is_one_idle(self) -> bool:
        return bool(self._idle)

    def begin(self, thing: T) -> None:
        """Run ``thing`` on an idle thread."""
        thread = self._idle.pop()
        self._running[thing] = thread
        thread.put(thing)

    def line_up(self, thing: T) -> None:
        """Let the first thread that ends go on with ``thing``, without the event loop; one thing at a time."""
        self.lined_up = thing
        self._next.append(thing)

    def recall(self) -> T | None:
        """What was lined up, for another decision; None if a thread has taken it."""
        try:
            thing = self._next.pop()
        except IndexError:
            return None
        self.lined_up = None
        return thing

    def ended(self) -> Sequence[T]:
        """What has ended since the last call; what a thread went on with runs now."""
        things: list[T] = []
        while self._ended:
            thing, follower = self._ended.popleft()
            thread = self._running.pop(thing)
            things.append(thing)
            if follower is not None:
                self.lined_up = None
                self._running[follower] = thread
            elif self._threads:
                self._idle.append(thread)
        return things

    def _start_thread(self, loop: asyncio.AbstractEventLoop) -> tuple[SimpleQueue[T | None], threading.Thread]:
        work: SimpleQueue[T | None] = SimpleQueue()
        arguments = (work, self._next, self._ended, loop)
        thread = threading.Thread(target=self._serve, args=arguments, name="runner", daemon=True)
        thread.start()
        return work, thread

    def _serve(
        self,
        work: SimpleQueue[T | None],
        lined_up: deque[T],
        ended: deque[tuple[T, T | None]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """What a thread does until it is given None."""
        follower: T | None = None
        while (thing := work.get() if follower is None else follower) is not None:
            self._run(thing)
            # Taken and put by both threads in single steps of the interpreter: nothing is taken twice or lost.
            try:
                follower = lined_up.pop()
            except IndexError:
                follower = None
            ended.append((thing, follower))
            # It would be kept, with the model that it needs, until the next comes.
            del thing
            # Of a loop that was closed meanwhile nobody waits.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_end)


def _join(threads: Sequence[threading.Thread]) -> None:
    ended = time.monotonic() + END_SECONDS
    for thread in threads:
        thread.join(max(0.0, ended - time.monotonic()))
