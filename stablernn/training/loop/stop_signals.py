"""Stopping a run by a signal, after a step from which it can be resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Turn the first SIGINT or SIGTERM into an event; a second one does what it always does.

    Python handles signals in the main thread only, so a run in another thread cannot be stopped this way.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        stop.set()
        # The user need not wait for a step that hangs: the next signal ends the process.
        restore_handlers()

    def restore_handlers() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    try:
        for number in handlers:
            signal.signal(number, ask_to_stop)
        yield stop
    finally:
        restore_handlers()
