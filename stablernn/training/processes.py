"""Jobs in parallel processes, which all end when the user stops the command."""

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
from stablernn.training.loop.launch import refuse_several_processes
from stablernn.training.loop.stop_signals import stop_signals

_POLL_SECONDS = 0.2
"""Interval at which a stop by the user is checked for."""


@dataclass(frozen=True)
class Job:
    """A function of a module and its arguments, which can be sent to another process.

    Attributes:
        name: Name in messages.
        function: The function, which stores its results in files.
        arguments: Its arguments.
    """

    name: str
    function: Callable[..., None]
    arguments: tuple[Any, ...]


def run_jobs(jobs: Sequence[Job], max_processes: int, on_done: Callable[[Job], None]) -> None:
    """Run all jobs in order; with one process, in the current one.

    Args:
        jobs: The jobs.
        max_processes: Maximum number of parallel processes, 1 or more.
        on_done: Function that is called after each job.

    Raises:
        StableRNNError: The first error of a job; the other running jobs are terminated.
        TrainingError: If a process died.
        InterruptedRun: If the user stopped it (SIGINT, SIGTERM).
        ConfigError: If torchrun has started this process as one of several.
    """
    refuse_several_processes("A series of jobs", "Run it without torchrun; it starts its own processes.")
    if max_processes == 1 or len(jobs) <= 1:
        for job in jobs:
            try:
                job.function(*job.arguments)
            except (InterruptedRun, KeyboardInterrupt):
                raise _interrupted([job]) from None
            on_done(job)
        return
    running: dict[Connection, tuple[Job, BaseProcess]] = {}
    waiting = deque(jobs)
    with stop_signals() as stop:
        try:
            while waiting or running:
                while waiting and len(running) < max_processes:
                    job = waiting.popleft()
                    connection, process = _start(job)
                    running[connection] = (job, process)
                # A connection becomes readable when its process sends its result or dies.
                for ready in wait(list(running), _POLL_SECONDS):
                    assert isinstance(ready, Connection)
                    job, process = running.pop(ready)
                    _finish(job, ready, process)
                    on_done(job)
                if stop.is_set():
                    raise _interrupted([job for job, _ in running.values()])
        finally:
            for _, process in running.values():
                process.terminate()
            for _, process in running.values():
                process.join()


def _interrupted(jobs: Sequence[Job]) -> InterruptedRun:
    names = "; ".join(job.name for job in jobs)
    return InterruptedRun(f"Stopped at {names}. Run the same command again to go on; finished work is kept.")


def _start(job: Job) -> tuple[Connection, BaseProcess]:
    # A new interpreter instead of a fork, which the threads of torch would not survive.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_job, args=(sender, job.function, job.arguments), name=job.name)
    process.start()
    # The child must hold the only sender, so that its death closes the pipe.
    sender.close()
    return receiver, process


def _run_job(connection: Connection, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    if hasattr(os, "setsid"):
        # A session of its own: Ctrl-C reaches every process of a terminal, and the parent terminates this one itself.
        os.setsid()
    try:
        function(*arguments)
    except (StableRNNError, OSError) as error:
        # Raised again in the parent; other errors end the process with a traceback.
        connection.send(error)
    else:
        connection.send(None)


def _finish(job: Job, connection: Connection, process: BaseProcess) -> None:
    try:
        error = connection.recv()
    except EOFError:
        process.join()
        raise TrainingError(
            f"The process of {job.name} ended with exit code {process.exitcode} and no result; -9 usually means that "
            "memory ran out. Run the same command again to go on; finished work is kept."
        ) from None
    process.join()
    if error is not None:
        raise error
