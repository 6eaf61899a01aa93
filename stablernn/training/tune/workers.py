"""Processes that train the trials of a study, one thread each. One that dies costs its trial the epoch it was in."""

from __future__ import annotations

import logging
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

import filelock

from stablernn.training.tune.objective import Order, Outcome, Scores, run_trial

READY = "ready"
"""Message of a process that waits for an order."""
STARTED = "started"
"""Message of a process that holds the lock of its run."""
Message = str | Scores | Outcome

_STOP_SECONDS = 30.0
"""Time for a training to end its step and to save a checkpoint, after which its process is killed."""


def run_lock(directory: Path) -> filelock.BaseFileLock:
    """Return the lock that a process holds while it trains a run; the operating system frees it however that ends.

    The file lies next to the run directory: a file in it would be taken for one of the run's.
    """
    return filelock.FileLock(directory.with_name(f"{directory.name}.lock"))


def is_locked(directory: Path) -> bool:
    """Return True if a process trains the run."""
    lock = run_lock(directory)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout:
        return True
    lock.release()
    return False


class Worker:
    """A process that trains one run after another."""

    def __init__(self) -> None:
        # A new interpreter instead of a fork, which the threads of torch would not survive.
        context = multiprocessing.get_context("spawn")
        self.connection, remote = context.Pipe()
        self.process = context.Process(target=_serve, args=(remote,), name="stablernn-tune")
        self.process.start()
        # The process must hold the only other end, so that its death closes the connection.
        remote.close()

    def send(self, message: Order | bool) -> None:
        """Send an order, or whether a trial goes on. A process that is dead is noticed where it is read from."""
        with suppress(OSError):
            self.connection.send(message)

    def receive(self) -> Message | None:
        """Return the next message, for which it waits; None if the process is dead."""
        try:
            message: Message = self.connection.recv()
        except (EOFError, OSError):
            return None
        return message

    def kill(self) -> None:
        """End the process at once; its trial goes on from its last checkpoint."""
        self.process.kill()
        self.process.join()
        self.connection.close()


def receive_all(workers: Sequence[Worker], timeout: float) -> Iterator[tuple[Worker, Message | None]]:
    """Yield the messages that arrive within a time, in seconds; None is the death of a process."""
    by_connection = {worker.connection: worker for worker in workers}
    for ready in wait(list(by_connection), timeout):
        assert isinstance(ready, Connection)
        worker = by_connection[ready]
        yield worker, worker.receive()


def interrupt(workers: Sequence[Worker]) -> Iterator[tuple[Worker, Message | None]]:
    """Let trainings save their state and end, and yield their last messages.

    Args:
        workers: Processes that train.
    """
    for worker in workers:
        # The training ends after the step, as after Ctrl-C; outside of its steps the process ends at once.
        worker.process.terminate()
    waiting, deadline = list(workers), time.monotonic() + _STOP_SECONDS
    while waiting and (left := deadline - time.monotonic()) > 0:
        for worker, message in receive_all(waiting, left):
            if message is None or isinstance(message, Outcome):
                waiting.remove(worker)
            yield worker, message


@contextmanager
def open_workers() -> Iterator[list[Worker]]:
    """Give a list for workers, whose processes end with the block."""
    workers: list[Worker] = []
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def _serve(connection: Connection) -> None:
    if hasattr(os, "setsid"):
        # A session of its own: Ctrl-C reaches every process of a terminal, and the parent ends this one itself.
        os.setsid()
    # Warnings of a run are in its summary; from several processes at once they would say nothing.
    logging.getLogger("stablernn").addHandler(logging.NullHandler())
    logging.getLogger("stablernn").propagate = False

    def exchange(scores: Scores) -> bool:
        connection.send(scores)
        is_to_go_on: bool = connection.recv()
        return is_to_go_on

    # The parent is gone, or was told to stop: there is nobody to report to, and the next one resumes the run.
    with suppress(EOFError, OSError):
        connection.send(READY)
        while True:
            order: Order = connection.recv()
            order.directory.parent.mkdir(parents=True, exist_ok=True)
            with run_lock(order.directory):
                connection.send(STARTED)
                outcome = run_trial(order, exchange)
            connection.send(outcome)
