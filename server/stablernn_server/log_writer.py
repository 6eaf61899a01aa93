"""Standard error of a server process, written by a thread of its own.

The reader of the log may stall: a pipe that nobody reads is full after 64 KiB, and a write to it blocks until somebody
does. On the event loop that would stop every response. So while :func:`queued_stderr` is active, ``sys.stderr`` is a
bounded queue, and lines that do not fit into it are counted and dropped.
"""

from __future__ import annotations

import io
import logging
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

MAX_QUEUED_BYTES = 4 * 2**20
"""Enough for about 30,000 lines of the access log, or some hundred tracebacks."""
ATOMIC_BYTES = 4096
"""A write of at most this many bytes to a pipe (``PIPE_BUF``) is not mixed with those of other worker processes."""
BATCH_SECONDS = 0.02
"""Pause between two rounds of writing. A thread that woke up for each line would take the GIL from the event loop as
often as there are requests."""
FLUSH_SECONDS = 1.0
"""Time that a terminating process waits for a reader that may have stalled."""
RETRY_SECONDS = 1.0
"""Interval at which a stalled target is tried again, with a report of the lines that were dropped."""


class QueuedStderr(io.TextIOBase):
    """A text stream whose writes never block; a daemon thread passes them on to the target.

    Attributes:
        dropped: Lines that were dropped because the queue was full or the target refused them.
    """

    def __init__(self, target: TextIO) -> None:
        """Start the thread.

        Args:
            target: The stream to write to; if it has a file descriptor, writes go there unbuffered.
        """
        self.dropped = 0
        self._target = target
        try:
            self._descriptor: int | None = target.fileno()
        except (OSError, ValueError):
            # An in-memory stream, as in tests, or a closed one.
            self._descriptor = None
        # Guards all that follows. Reentrant: a signal handler may print while the same thread is inside ``write``.
        self._lock = threading.RLock()
        self._chunks: deque[str] = deque()
        self._queued_size = 0
        self._reported = 0
        self._has_work = threading.Event()
        self._is_idle = threading.Event()
        self._is_idle.set()
        self._is_closed = False
        self._has_stalled = False
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the target."""
        return getattr(self._target, "encoding", None) or "utf-8"

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return whether the target is a terminal."""
        return self._target.isatty()

    def fileno(self) -> int:
        """Return the descriptor of the target."""
        return self._target.fileno()

    def write(self, text: str) -> int:
        """Queue ``text``, or drop it where too much is queued."""
        with self._lock:
            if self._queued_size + len(text) > MAX_QUEUED_BYTES:
                self.dropped += max(1, text.count("\n"))
                return len(text)
            self._chunks.append(text)
            self._queued_size += len(text)
            if not self._has_work.is_set():
                self._is_idle.clear()
                self._has_work.set()
        return len(text)

    def flush(self) -> None:
        """Do nothing: every logging handler calls this after each record. See :meth:`drain`."""

    def drain(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until everything queued is written, but not longer than ``seconds``; return whether it is.

        A process that ends drains more than once: after one timeout, further calls do not wait until the target takes
        something again.
        """
        is_idle = self._is_idle.wait(0 if self._has_stalled else seconds)
        self._has_stalled = not is_idle
        return is_idle

    def stop(self, seconds: float = FLUSH_SECONDS) -> None:
        """Drain, and end the thread unless its target has stalled."""
        self.drain(seconds)
        self._is_closed = True
        self._has_work.set()
        self._thread.join(BATCH_SECONDS + 0.1)

    def _run(self) -> None:
        while True:
            # With lines to report, try again from time to time: nothing may be logged any more once the target is back.
            self._has_work.wait(RETRY_SECONDS if self._reported != self.dropped else None)
            if self._is_closed:
                return
            with self._lock:
                self._has_work.clear()
                text = "".join(self._chunks)
                self._chunks.clear()
            # Without the lock: this blocks for as long as the target does.
            self._write_chunks(text)
            with self._lock:
                self._queued_size -= len(text)
                if not self._chunks:
                    self._is_idle.set()
                    self._has_stalled = False
            time.sleep(BATCH_SECONDS)

    def _write_chunks(self, text: str) -> None:
        """Write whole lines in chunks of at most :data:`ATOMIC_BYTES`, longer lines alone."""
        if self._reported != self.dropped:
            dropped = self.dropped
            count = dropped - self._reported
            lines = "line of the log was" if count == 1 else "lines of the log were"
            if self._write(f"WARNING: {count} {lines} dropped: standard error was not read fast enough.\n"):
                self._reported = dropped
        chunk: list[bytes] = []
        size = 0
        for line in text.splitlines(keepends=True):
            encoded = line.encode(self.encoding, "backslashreplace")
            if size + len(encoded) > ATOMIC_BYTES:
                self._write_lines(chunk)
                chunk, size = [], 0
            chunk.append(encoded)
            size += len(encoded)
        self._write_lines(chunk)

    def _write_lines(self, lines: list[bytes]) -> None:
        if lines and not self._write(b"".join(lines)):
            with self._lock:
                self.dropped += len(lines)

    def _write(self, text: str | bytes) -> bool:
        """Write to the target, for as long as it takes; return False if it fails, as with a full disk."""
        content = text.encode(self.encoding, "backslashreplace") if isinstance(text, str) else text
        try:
            if self._descriptor is None:
                self._target.write(content.decode(self.encoding, "replace"))
                self._target.flush()
                return True
            while content:
                try:
                    content = content[os.write(self._descriptor, content) :]
                except BlockingIOError:
                    # Another process that shares the terminal or pipe made it non-blocking.
                    select.select((), (self._descriptor,), (), RETRY_SECONDS)
        except (OSError, ValueError):
            # ENOSPC, EPIPE, or closed by the process that started the server: nothing that should stop it.
            return False
        return True


@contextmanager
def queued_stderr() -> Iterator[QueuedStderr]:
    """Replace ``sys.stderr``, also in the logging handlers that write to it, until the block ends."""
    before = sys.stderr
    # Python has no stderr where descriptor 2 was closed at start.
    with open(os.devnull, "w") as null_device:
        queued = QueuedStderr(before or null_device)
        stream = cast("TextIO", queued)
        sys.stderr = stream
        _redirect_handlers(before, stream)
        try:
            yield queued
        finally:
            queued.stop()
            sys.stderr = before
            _redirect_handlers(stream, before)


def drain_stderr() -> None:
    """Write out what is queued, before a process ends without unwinding."""
    if isinstance(sys.stderr, QueuedStderr):
        sys.stderr.drain()


def dropped_lines() -> int:
    """Return how many lines of the log this process has dropped."""
    return sys.stderr.dropped if isinstance(sys.stderr, QueuedStderr) else 0


def _redirect_handlers(before: object, after: TextIO) -> None:
    loggers = [logging.getLogger(name) for name in list(logging.Logger.manager.loggerDict)]
    for logger in (logging.getLogger(), *loggers):
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is before:
                # Not ``setStream``, which flushes the stream that may not take anything.
                handler.stream = after
