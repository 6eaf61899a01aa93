"""Several jobs at a time, a process for each, all of which end when the user stops the command."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from stablernn.errors import InterruptedRun, StableRNNError, TrainingError
from stablernn.training.loop.stop_signals import stop_signals

_LOOK_SECONDS = 0.2
"""Time after which a stop by the user is noticed."""


@dataclass(frozen=True)
class Job:
    """A function of a module with arguments that another process can be given.

    Attributes:
        name: What it is called in messages.
        work: What is called; what it leaves is in files.
        arguments: With these.
    """

    name: str
    work: Callable[..., None]
    arguments: tuple[Any, ...]


def run_jobs(jobs: Sequence[Job], at_once: int, done: Callable[[Job], None]) -> None:
    """Do all jobs, in order; with one at a time in this process.

    Args:
        jobs: What is to be done.
        at_once: How many at a time, 1 or more.
        done: Called after each.

    Raises:
        StableRNNError: The first that a job raises; those that run beside it are stopped.
        TrainingError: If a process died.
        InterruptedRun: If the user stopped it (SIGINT, SIGTERM).
    """
    if at_once == 1 or len(jobs) <= 1:
        for job in jobs:
            try:
                job.work(*job.arguments)
            except (InterruptedRun, KeyboardInterrupt):
                raise _stopped([job]) from None
            done(job)
        return
    running: dict[Connection, tuple[Job, BaseProcess]] = {}
    waiting = deque(jobs)
    with stop_signals() as stop:
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    started = _start(waiting[0])
                    running[started[0]] = (waiting.popleft(), started[1])
                for connection in wait(list(running), _LOOK_SECONDS):
                    assert isinstance(connection, Connection)
                    job, process = running.pop(connection)
                    _finish(job, connection, process)
                    done(job)
                if stop.is_set():
                    raise _stopped([job for job, _ in running.values()])
        finally:
            for _, process in running.values():
                process.terminate()
            for _, process in running.values():
                process.join()


def _stopped(jobs: Sequence[Job]) -> InterruptedRun:
    names = "; ".join(job.name for job in jobs)
    return InterruptedRun(f"Stopped at {names}. Give the same command again to go on; what is done is kept.")


def _start(job: Job) -> tuple[Connection, BaseProcess]:
    # A new interpreter and no copy of this one: threads of torch do not outlive a fork.
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(there, job.work, job.arguments), name=job.name)
    process.start()
    there.close()
    return here, process


def _work(connection: Connection, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    if hasattr(os, "setsid"):
        # Ctrl-C reaches all processes of a terminal; the one that started this one passes it on once.
        os.setsid()
    try:
        work(*arguments)
    except (StableRNNError, OSError) as error:
        connection.send(error)
    else:
        connection.send(None)


def _finish(job: Job, connection: Connection, process: BaseProcess) -> None:
    try:
        error = connection.recv()
    except EOFError:
        process.join()
        raise TrainingError(
            f"The process of {job.name} ended with exit code {process.exitcode} and no answer; -9 is what a lack of "
            "memory looks like. Give the same command again to go on; what is done is kept."
        ) from None
    process.join()
    if error is not None:
        raise error
