"""Threads that run work of the event loop, and a watchdog for the runs on the event loop itself."""

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

from stablernn_runtime.graph import CancellationToken

T = TypeVar("T")

END_SECONDS = 1.0
"""Time to wait for runs that were cancelled; ONNX Runtime looks for that between two nodes of a graph."""
MAX_LOOP_SECONDS = 1.0
"""Time after which a run on the event loop is cancelled: far beyond the 2 ms that such runs are expected to take, since
a busy or suspended machine takes longer."""


class WorkerThreads(Generic[T]):
    """Worker threads, and one piece of work that is prefetched for the first of them to end.

    An executor would hold the GIL for longer around each run than the event loop can spare, and would have to be given
    the next run before anybody knows what that should be. Every method is for the event loop's thread.

    Attributes:
        prefetched: Prefetched work that is not known to have begun; None without any.
    """

    def __init__(self, run: Callable[[T], object], on_end: Callable[[], object], count: int) -> None:
        """Prepare the threads; :meth:`start` starts them.

        Args:
            run: Runs one piece of work on a thread; must not raise.
            on_end: Called on the event loop when work has ended; calls :meth:`collect_ended`.
            count: Number of threads.
        """
        self.prefetched: T | None = None
        self._run = run
        self._on_end = on_end
        self._count = count
        self._threads: list[tuple[SimpleQueue[T | None], threading.Thread]] = []
        self._idle: list[SimpleQueue[T | None]] = []
        # The inbox of the thread that runs each piece of work.
        self._running: dict[T, SimpleQueue[T | None]] = {}
        # Both deques are shared with the threads, which take from the first and append to the second.
        self._next: deque[T] = deque()
        self._ended: deque[tuple[T, T | None]] = deque()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the threads, which report to ``loop``."""
        # Threads of an earlier start may still run: they keep the deques that they were started with.
        self.prefetched, self._running, self._next, self._ended = None, {}, deque(), deque()
        self._threads = [self._start_thread(loop) for _ in range(self._count)]
        # Last in, first out: the thread of the last run is awake, and its caches are full.
        self._idle = [inbox for inbox, _ in self._threads]

    def stop(self) -> Callable[[], None]:
        """Take no more work, and drop what is prefetched.

        Returns:
            A function for another thread that waits until the running work has ended, for :data:`END_SECONDS` at most.
            A process that exits in the middle of a run may be aborted.
        """
        self.take_back()
        threads, self._threads, self._idle = self._threads, [], []
        for inbox, _ in threads:
            inbox.put(None)
        return partial(_join, [thread for _, thread in threads])

    @property
    def is_started(self) -> bool:
        """True between :meth:`start` and :meth:`stop`."""
        return bool(self._threads)

    @property
    def running(self) -> KeysView[T]:
        """Work that runs, or has ended and was not yet returned by :meth:`collect_ended`."""
        return self._running.keys()

    @property
    def has_idle(self) -> bool:
        """True if a thread is idle."""
        return bool(self._idle)

    def begin(self, work: T) -> None:
        """Run ``work`` on an idle thread."""
        inbox = self._idle.pop()
        self._running[work] = inbox
        inbox.put(work)

    def prefetch(self, work: T) -> None:
        """Let the first thread that ends go on with ``work``, without the event loop; one piece of work at a time."""
        self.prefetched = work
        self._next.append(work)

    def take_back(self) -> T | None:
        """Return the prefetched work for another decision; None if there is none, or a thread has taken it."""
        try:
            work = self._next.pop()
        except IndexError:
            return None
        self.prefetched = None
        return work

    def collect_ended(self) -> Sequence[T]:
        """Return the work that has ended since the last call; prefetched work that a thread took counts as running."""
        ended: list[T] = []
        while self._ended:
            work, follower = self._ended.popleft()
            inbox = self._running.pop(work)
            ended.append(work)
            if follower is not None:
                self.prefetched = None
                self._running[follower] = inbox
            elif self._threads:
                self._idle.append(inbox)
        return ended

    def _start_thread(self, loop: asyncio.AbstractEventLoop) -> tuple[SimpleQueue[T | None], threading.Thread]:
        inbox: SimpleQueue[T | None] = SimpleQueue()
        arguments = (inbox, self._next, self._ended, loop)
        thread = threading.Thread(target=self._serve, args=arguments, name="worker", daemon=True)
        thread.start()
        return inbox, thread

    def _serve(
        self,
        inbox: SimpleQueue[T | None],
        prefetched: deque[T],
        ended: deque[tuple[T, T | None]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Run work on a thread until its inbox holds None."""
        follower: T | None = None
        while (work := inbox.get() if follower is None else follower) is not None:
            self._run(work)
            # The event loop and all threads pop from this deque, which is atomic: nothing is taken twice or lost.
            try:
                follower = prefetched.pop()
            except IndexError:
                follower = None
            ended.append((work, follower))
            # The local would keep the work alive, with its model, until the next comes.
            del work
            # RuntimeError: the loop was closed while this ran, and nobody waits for the result.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._on_end)


def _join(threads: Sequence[threading.Thread]) -> None:
    deadline = time.monotonic() + END_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


class LoopWatchdog:
    """A thread that ends runs on the event loop which take far longer than expected.

    A graph can choose from the values of a request how often it repeats a node, so that no earlier run says how long
    the next one takes. On the event loop such a run would stop every response, all timeouts and the shutdown of the
    server.
    """

    def __init__(self) -> None:
        # Guards the token and the start of the run: else a run that has just begun could be ended for the one before.
        self._lock = threading.Lock()
        self._cancellation = CancellationToken()
        self._started: float | None = None
        self._should_stop = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        # An event of its own for each thread: that of an earlier start may not have seen its own yet.
        self._should_stop = threading.Event()
        threading.Thread(target=self._watch, args=(self._should_stop,), name="loop watchdog", daemon=True).start()

    def stop(self) -> None:
        """Let the thread end, without waiting for it."""
        self._should_stop.set()

    def begin(self) -> CancellationToken:
        """Begin to watch a run; the token ends it once it takes longer than :data:`MAX_LOOP_SECONDS`."""
        with self._lock:
            self._started = time.monotonic()
            return self._cancellation

    def end(self) -> bool:
        """Stop watching a run that is over; return whether it was cancelled."""
        with self._lock:
            self._started = None
            was_cancelled = self._cancellation.is_set
            # A token that is set would end every later run as well.
            if was_cancelled:
                self._cancellation = CancellationToken()
            return was_cancelled

    def _watch(self, should_stop: threading.Event) -> None:
        while not should_stop.wait(MAX_LOOP_SECONDS / 4):
            with self._lock:
                if self._started is not None and time.monotonic() - self._started > MAX_LOOP_SECONDS:
                    self._cancellation.set()
