"""Ends runs that the event loop makes itself and that take far longer than expected.

A graph can choose from the values of a request how often it repeats a node, so that no earlier run says how long the
next one takes. On the event loop such a run would stop every answer, all timeouts and the end of the server.
"""

from __future__ import annotations

import threading
import time

from stablernn_runtime.engines.session import CancellationToken

LIMIT_SECONDS = 1.0
"""Far beyond the 2 ms that such runs are expected to take, since those of a busy or suspended machine take longer."""


class LoopWatch:
    """A thread that looks several times a second at how long the run on the event loop has taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop = CancellationToken()
        self._since: float | None = None
        self._has_ended = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._has_ended = threading.Event()
        threading.Thread(target=self._watch, args=(self._has_ended,), name="loop watch", daemon=True).start()

    def stop(self) -> None:
        """Let the thread end, without waiting for it."""
        self._has_ended.set()

    def begin(self) -> CancellationToken:
        """Return what ends the run that begins now if it takes longer than :data:`LIMIT_SECONDS`."""
        with self._lock:
            self._since = time.monotonic()
            return self._stop

    def end(self) -> bool:
        """Return whether the run that is over was told to end."""
        with self._lock:
            self._since = None
            was_stopped = self._stop.is_set
            if was_stopped:
                self._stop = CancellationToken()
            return was_stopped

    def _watch(self, has_ended: threading.Event) -> None:
        while not has_ended.wait(LIMIT_SECONDS / 4):
            with self._lock:
                if self._since is not None and time.monotonic() - self._since > LIMIT_SECONDS:
                    self._stop.set()
