"""The launch of a process as one of several by torchrun, and its stop by a signal, after a step to resume from."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from stablernn.errors import ConfigError


@dataclass(frozen=True)
class Launch:
    """The place of a process among those that train one model; by default it is the only one.

    Attributes:
        rank: Number of the process, from 0.
        world_size: Number of processes on all machines.
        local_rank: Number of the process on its machine, which is that of its GPU.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def is_main(self) -> bool:
        """True for the process that writes files and prints."""
        return self.rank == 0


def read_launch() -> Launch:
    """Return the place that torchrun has set in ``WORLD_SIZE``, ``RANK`` and ``LOCAL_RANK``.

    Raises:
        ConfigError: If ``WORLD_SIZE`` says that there are several processes, and another variable is missing or is not
            a whole number.
    """
    size = _read_number("WORLD_SIZE", os.environ.get("WORLD_SIZE") or "1")
    if size <= 1:
        return Launch()
    missing = [name for name in ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE={size} says that {size} processes train one model, and {missing[0]} is not set. Start them by "
            "torchrun, which sets both, or unset WORLD_SIZE."
        )
    return Launch(_read_number("RANK", os.environ["RANK"]), size, _read_number("LOCAL_RANK", os.environ["LOCAL_RANK"]))


def refuse_several_processes(subject: str, advice: str) -> None:
    """Refuse work that cannot be shared by the processes of torchrun.

    Args:
        subject: The work, the subject of a sentence.
        advice: A full sentence that says what to do instead.

    Raises:
        ConfigError: If there are several processes.
    """
    size = read_launch().world_size
    if size > 1:
        raise ConfigError(f"{subject} takes one process, and torchrun has started {size}. {advice}")


def _read_number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"{name} must be a whole number, got {text!r}. torchrun sets it; unset it to train in one process."
        ) from None


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
