"""Jobs in parallel processes, which all end when the user stops the command, and on machines that share a folder."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from stablernn.errors import InterruptedRun, StableRNNError, TrainingError
from stablernn.training.jobs.locks import AbandonedJob, JobLocks, LostLock, Report
from stablernn.training.jobs.stages import named_stages, send_stages, show_stage
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
        key: Name of its lock, which no other job of the folder has.
        is_done: Returns True if the results are there; another machine may have made them. It is sent too.
        checkpoint: File from which another process goes on, if there is one.
    """

    name: str
    function: Callable[..., None]
    arguments: tuple[Any, ...]
    key: str
    is_done: Callable[[], bool]
    checkpoint: Path | None = None


def run_jobs(
    jobs: Sequence[Job],
    max_processes: int,
    locks: JobLocks,
    on_done: Callable[[Job], None],
    report: Report | None = None,
) -> None:
    """Run all jobs in order that no other process runs, and wait until those of others are done too.

    The jobs of a process that died are taken over. With one process jobs run in the current one.

    Args:
        jobs: The jobs.
        max_processes: Maximum number of parallel processes of this command, 1 or more.
        locks: Locks of the folder.
        on_done: Function that is called after each job, also after those that others have done.
        report: Function that is called with sentences about jobs of other processes.

    Raises:
        StableRNNError: The first error of a job; the other running jobs of this command are terminated, and all are
            given back.
        TrainingError: If a process of this command died; also, after all other jobs, if too many died in one job.
        InterruptedRun: If the user stopped it (SIGINT, SIGTERM).
        ConfigError: If torchrun has started this process as one of several, or the folder cannot be written to.
    """
    refuse_several_processes("A series of jobs", "Run it without torchrun; it starts its own processes.")
    series = _Series(jobs, locks, on_done, report or (lambda _: None))
    if max_processes == 1 or len(jobs) <= 1:
        series.run_here()
    else:
        series.run_in_processes(max_processes)
    if series.abandoned is not None:
        raise series.abandoned


class _Series:
    """Jobs of which some are not done yet.

    Attributes:
        abandoned: The error of a job whose owners died too often.
    """

    def __init__(self, jobs: Sequence[Job], locks: JobLocks, on_done: Callable[[Job], None], report: Report) -> None:
        self.abandoned: AbandonedJob | None = None
        self._waiting = list(jobs)
        self._locks = locks
        self._on_done = on_done
        self._report = report
        self._reported: set[tuple[str, str]] = set()
        self._next_look = 0.0

    def run_here(self) -> None:
        """Run the jobs in this process."""
        while self._waiting:
            for job in list(self._waiting):
                try:
                    result: object = _run_claimed(job, self._locks, self._report)
                except (InterruptedRun, KeyboardInterrupt):
                    raise _interrupted([job]) from None
                except AbandonedJob as error:
                    result = error
                self._close(job, result)
            if self._waiting:
                self._report_owners()
                try:
                    time.sleep(self._locks.poll_seconds)
                except KeyboardInterrupt:
                    raise _interrupted(self._waiting) from None

    def run_in_processes(self, max_processes: int) -> None:
        """Run the jobs in processes that this one starts."""
        running: dict[Connection, tuple[Job, BaseProcess]] = {}
        with stop_signals() as stop:
            try:
                while self._waiting or running:
                    while len(running) < max_processes and (job := self._next_free(running)) is not None:
                        connection, process = _start(job, self._locks)
                        running[connection] = (job, process)
                    # A connection becomes readable when its process sends its result or dies.
                    for ready in wait(list(running), _POLL_SECONDS):
                        assert isinstance(ready, Connection)
                        job, process = running[ready]
                        result = _receive(job, ready, process)
                        if isinstance(result, str):
                            self._report(result)
                            continue
                        if isinstance(result, logging.LogRecord):
                            show_stage(result)
                            continue
                        del running[ready]
                        process.join()
                        self._close(job, result)
                    if stop.is_set():
                        raise _interrupted([job for job, _ in running.values()] or self._waiting)
                    if not running and self._waiting:
                        stop.wait(_POLL_SECONDS)
            finally:
                for _, process in running.values():
                    process.terminate()
                for _, process in running.values():
                    process.join()

    def _close(self, job: Job, result: object) -> None:
        """Take note of what came of a job: True if it is done, False if another process has it, or an error."""
        if isinstance(result, AbandonedJob):
            self.abandoned = self.abandoned or result
            self._waiting.remove(job)
        elif isinstance(result, Exception):
            raise result
        elif result:
            self._waiting.remove(job)
            self._on_done(job)

    def _next_free(self, running: dict[Connection, tuple[Job, BaseProcess]]) -> Job | None:
        """Return the first job that nobody runs."""
        if time.monotonic() < self._next_look:
            return None
        ours = {job.key for job, _ in running.values()}
        for job in list(self._waiting):
            # A process takes seconds to start, so that it is started only where it will probably get the lock.
            if job.key in ours or self._locks.owner(job.key) is not None:
                continue
            if not job.is_done():
                return job
            self._close(job, True)
        if not running:
            self._report_owners()
        self._next_look = time.monotonic() + self._locks.poll_seconds
        return None

    def _report_owners(self) -> None:
        for job in self._waiting:
            owner = self._locks.owner(job.key)
            if owner is not None and (job.key, owner) not in self._reported:
                self._reported.add((job.key, owner))
                self._report(f"Waiting for {owner}, which runs {job.name}.")


def _interrupted(jobs: Sequence[Job]) -> InterruptedRun:
    names = "; ".join(job.name for job in jobs)
    return InterruptedRun(f"Stopped at {names}. Run the same command again to go on; finished work is kept.")


def _run_claimed(job: Job, locks: JobLocks, report: Report) -> bool:
    """Run a job unless another process does; return True if it is done.

    Raises:
        AbandonedJob: If its owners died too often.
    """
    try:
        lock = locks.claim(job.key, job.checkpoint, report)
    except AbandonedJob:
        # The last owner may have died after it wrote the result.
        if job.is_done():
            return True
        raise
    if lock is None:
        return False
    try:
        with lock.held():
            # Looked at under the lock, since another process may just have finished it.
            if not job.is_done():
                try:
                    with named_stages(job.name):
                        job.function(*job.arguments)
                # Files that another process has begun to write may be the cause.
                except (StableRNNError, OSError):
                    lock.check()
                    raise
    except LostLock:
        report(f"Dropping {job.name}: another process has taken it over, since this one gave no sign for too long.")
        return False
    return True


def _start(job: Job, locks: JobLocks) -> tuple[Connection, BaseProcess]:
    # A new interpreter instead of a fork, which the threads of torch would not survive.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run_job, args=(sender, job, locks), name=job.name)
    process.start()
    # The child must hold the only sender, so that its death closes the pipe.
    sender.close()
    return receiver, process


def _run_job(connection: Connection, job: Job, locks: JobLocks) -> None:
    """Run a job and send its stages and the sentences about it, then its result, as of :meth:`_Series._close`."""
    if hasattr(os, "setsid"):
        # A session of its own: Ctrl-C reaches every process of a terminal, and the parent terminates this one itself.
        os.setsid()
    # The parent ends this process by SIGTERM; the default would leave the lock behind, as after a death.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))

    def send(message: object) -> None:
        # A killed parent reads no more, and the job goes on: its results are in files.
        with suppress(BrokenPipeError):
            connection.send(message)

    send_stages(send)
    try:
        is_done = _run_claimed(job, locks, send)
    except (StableRNNError, OSError) as error:
        # Raised again in the parent; other errors end the process with a traceback, as this one does without a parent.
        connection.send(error)
    else:
        send(is_done)


def _receive(job: Job, connection: Connection, process: BaseProcess) -> object:
    """Return what a process has sent."""
    try:
        return connection.recv()
    except EOFError:
        process.join()
        raise TrainingError(
            f"The process of {job.name} ended with exit code {process.exitcode} and no result; -9 usually means that "
            "memory ran out. Run the same command again to go on; finished work is kept."
        ) from None
