"""Detection of dead processes: a thread that exchanges heartbeats, and ends this process when another one is gone.

A process learns of the death of another from its next collective operation. The first process may validate, certify or
write for minutes before that, and handles no SIGTERM of torchrun meanwhile, which takes 30 seconds to kill it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist

from stablernn.errors import InterruptedRun, TrainingError
from stablernn.training.loop.launch import Launch
from stablernn.training.loop.rendezvous import first_line

HEARTBEAT_SECONDS = 1.0
GRACE_SECONDS = 1.0
"""Time for an error of this process itself: when all stop for one reason, some connections close before others."""
EXIT_SECONDS = 3.0
"""Time in which Python must reach the exception; a kernel or a system call that takes longer is cut off."""
INTERRUPTED_SECONDS = 25.0
"""Longest wait for the callbacks of the first process after an interruption; torchrun kills all after 30 seconds."""

_LOG = logging.getLogger("stablernn.training")


class PeerLostError(BaseException):
    """Raised in the thread that trains. No ``Exception``, so that no handler takes it for an error of its own."""

    def __str__(self) -> str:
        return "Another process of the training ended."


class PeerMonitor:
    """A thread that learns of the death of another process within a second or two.

    Args:
        launch: The place of this process.
        timeout: Longest wait for the heartbeat of a process that is suspended.
    """

    def __init__(self, launch: Launch, timeout: timedelta) -> None:
        self._launch = launch
        # A group of its own, since the threads of one group must call its operations in the same order.
        self._group = cast("dist.ProcessGroup | None", dist.new_group(backend="gloo", timeout=timeout))
        self._trainer = threading.get_ident()
        self._is_stopped = threading.Event()
        self._has_ended = threading.Event()
        self._lock = threading.Lock()
        """Guards the decision to interrupt against a stop."""
        self._has_failed = False
        self._reason = ""
        self._thread = threading.Thread(target=self._run, name="stablernn-peer-monitor", daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Watch the other processes inside the ``with`` block, and wait at its end for them to end it too.

        A block that fails waits for nothing. A run that is interrupted is so in all processes, of which torchrun would
        terminate the others once one has ended.

        Raises:
            TrainingError: If another process ended first.
        """
        self._thread.start()
        wait_seconds: float | None = None
        try:
            try:
                yield
            except InterruptedRun:
                wait_seconds = INTERRUPTED_SECONDS
                raise
            except BaseException:
                self._has_failed, wait_seconds = True, 2 * HEARTBEAT_SECONDS
                raise
            finally:
                self.stop()
                self._has_ended.set()
                self._thread.join(wait_seconds)
        except PeerLostError:
            self.stop()
            raise TrainingError(lost_peer_message(self._launch, self._reason)) from None

    def stop(self) -> None:
        """Do not interrupt this process from now on: it needs the others no more."""
        with self._lock:
            self._is_stopped.set()
            # Of an interruption that has not reached this thread yet.
            _raise_in_thread(self._trainer, None)

    def _run(self) -> None:
        try:
            self._exchange_heartbeats()
        except RuntimeError as error:
            if not self._is_stopped.is_set():
                self._reason = first_line(error)
                # From the list of torch. With the last reference the connections close, so that processes that wait for
                # this one's heartbeat learn of the death now.
                dist.destroy_process_group(self._group)
        self._group = None
        if self._reason:
            self._interrupt()

    def _interrupt(self) -> None:
        self._is_stopped.wait(GRACE_SECONDS)
        with self._lock:
            if self._is_stopped.is_set():
                return
            _raise_in_thread(self._trainer, PeerLostError)
        if not self._is_stopped.wait(EXIT_SECONDS):
            _LOG.error(lost_peer_message(self._launch, self._reason))
            # Files are replaced in one move, so that none is half written.
            os._exit(1)

    def _exchange_heartbeats(self) -> None:
        """Return when all processes have ended, or this one has failed; raise RuntimeError at a closed connection."""
        ended = torch.zeros(1)
        while ended.item() < self._launch.world_size and not self._has_failed:
            # A process that has ended waits for the others in the exchange.
            ended[0] = float(self._has_ended.wait(HEARTBEAT_SECONDS))
            dist.all_reduce(ended, group=self._group)


def lost_peer_message(launch: Launch, reason: str) -> str:
    """Return the sentence for a process whose connection to another one has closed."""
    return (
        f"Process {launch.rank} of {launch.world_size} lost the connection to another one ({reason}). The message of "
        "the process that ended first says why; continue from the last checkpoint with --resume."
    )


def _raise_in_thread(thread: int, error: type[BaseException] | None) -> None:
    """Raise an exception in a thread at its next Python instruction; None takes back one that was not raised yet.

    Signals would need a number that no program and no batch system uses, and the main thread.
    """
    exception = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), exception)
