"""A watchdog that ends runs on the event loop which take far longer than expected.

A graph can choose from the values of a request how often it repeats a node, so that no earlier run says how long the
next one takes. On the event loop such a run would stop every response, all timeouts and the shutdown of the server.
"""

from __future__ import annotations

import threading
import time

from stablernn_runtime.engines.session import CancellationToken

LIMIT_SECONDS = 1.0
"""Far beyond the 2 ms that such runs are expected to take, since those of a busy or suspended machine take longer."""


class LoopWatchdog:
    """A thread that looks several times a second at how long the run on the event loop has taken."""

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
        """Begin to watch a run; the token ends it once it takes longer than :data:`LIMIT_SECONDS`."""
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
        while not should_stop.wait(LIMIT_SECONDS / 4):
            with self._lock:
                if self._started is not None and time.monotonic() - self._started > LIMIT_SECONDS:
                    self._cancellation.set()
