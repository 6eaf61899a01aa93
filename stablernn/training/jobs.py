"""Jobs in parallel processes, which all end when the user stops the command, and on machines that share a folder.

The lock of a job is the file ``KEY.N.lock``. It is created exclusively, names its owner, and is touched by a thread of
the owner at an interval, the heartbeat. A lock whose heartbeats are missing is taken over by creating the file with the
next N, which one process alone can do, and by removing the old one: renaming the old file could hit a new one of the
same name. An owner that was suspended, and is not dead, looks for its own file before each write, see
:func:`stablernn_registry.atomic_io.checked_writes`.

Heartbeats are missing when a process has watched the file for some time, by its own clock, and the time of the file has
not changed, as in the leader election of Kubernetes. That time is not compared with any clock: on some file systems it
is that of the machine that touches the file.

The soft locks of filelock are not used: they do not keep an owner that lost its lock from writing.
"""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import re
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from stablernn.environment_variables import read_positive_number
from stablernn.errors import ConfigError, InterruptedRun, StableRNNError, TrainingError
from stablernn.terms import Terms, set_terms, terms
from stablernn.training.loop.launch import refuse_several_processes, stop_signals
from stablernn_registry.atomic_io import checked_writes, lock_is_free, lock_open_file

_PROGRESS = logging.getLogger("stablernn.progress")

_POLL_SECONDS = 0.2
"""Interval at which a stop by the user is checked for."""
_END_SECONDS = 5.0
"""Longest time that a process takes to end after it has closed its connection."""


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
        with stop_signals() as stop, open_workers("stablernn-job", _send_stages) as workers:
            running: dict[Worker, Job] = {}
            try:
                while self._waiting or running:
                    while len(running) < max_processes and (job := self._next_free(running)) is not None:
                        running[workers.call(_run_job, job, self._locks)] = job
                    for worker, message in workers.receive(_POLL_SECONDS):
                        if isinstance(message, str):
                            self._report(message)
                        elif isinstance(message, logging.LogRecord):
                            if _PROGRESS.isEnabledFor(message.levelno):
                                _PROGRESS.handle(message)
                        elif isinstance(message, Answer):
                            self._close(running.pop(worker), message.error or message.value)
                        elif message is None:
                            raise _died(running.pop(worker), worker)
                    if stop.is_set():
                        raise _interrupted(list(running.values()) or self._waiting)
                    if not running and self._waiting:
                        stop.wait(_POLL_SECONDS)
            finally:
                # Not killed: they give their jobs back.
                for worker in running:
                    worker.process.terminate()
                for worker in running:
                    worker.process.join()

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

    def _next_free(self, running: Mapping[Worker, Job]) -> Job | None:
        """Return the first job that nobody runs."""
        if time.monotonic() < self._next_look:
            return None
        ours = {job.key for job in running.values()}
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
        with ExitStack() as held:
            with _late_end():
                lock = locks.claim(job.key, job.checkpoint, report)
                if lock is None:
                    return False
                held.enter_context(lock.held())
            # Looked at under the lock, since another process may just have finished it.
            if not job.is_done():
                try:
                    with named_stages(job.name):
                        job.function(*job.arguments)
                # Files that another process has begun to write may be the cause.
                except (StableRNNError, OSError):
                    lock.check()
                    raise
    except AbandonedJob:
        # The last owner may have died after it wrote the result.
        if job.is_done():
            return True
        raise
    except LostLock:
        report(f"Dropping {job.name}: another process has taken it over, since this one gave no sign for too long.")
        return False
    return True


@contextmanager
def _late_end() -> Iterator[None]:
    """Let signals that end the process wait for the end of the block: a lock that is taken must be given back."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run_job(connection: Connection, job: Job, locks: JobLocks) -> bool:
    """Run a job in a process of its own; as :func:`_run_claimed`."""

    def report(sentence: str) -> None:
        # A killed parent reads no more, and the job goes on: its results are in files.
        with suppress(OSError):
            connection.send(sentence)

    return _run_claimed(job, locks, report)


def _died(job: Job, worker: Worker) -> TrainingError:
    return TrainingError(
        f"The process of {job.name} ended with exit code {worker.process.exitcode} and no result; -9 usually means "
        "that memory ran out. Run the same command again to go on; finished work is kept."
    )


@dataclass(frozen=True)
class Ready:
    """Message of a process that has started, and waits for its first call."""


@dataclass(frozen=True)
class Answer:
    """Message of a process at the end of a call, after which it waits for the next one.

    Attributes:
        value: What the function returned.
        error: The error that it raised: one of ours, or of the file system. Others end the process with a traceback.
    """

    value: Any = None
    error: Exception | None = None


class Worker:
    """A process that runs one call after another.

    Attributes:
        process: The process.
    """

    def __init__(self, name: str, prepare: Callable[[Connection], None] | None) -> None:
        # A new interpreter instead of a fork, which the threads of torch would not survive.
        context = multiprocessing.get_context("spawn")
        self.connection, remote = context.Pipe()
        self.process = context.Process(target=_serve, args=(remote, terms(), prepare), name=name)
        self._has_started = self._is_called = False
        with _without_main_module():
            self.process.start()
        # The process must hold the only other end, so that its death closes the connection.
        remote.close()

    @property
    def is_idle(self) -> bool:
        """True if it has started, and waits for a call."""
        return self._has_started and not self._is_called

    def send(self, message: object) -> None:
        """Answer a message of a call. A process that is dead is noticed where it is read from."""
        with suppress(OSError):
            self.connection.send(message)

    def call(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Let the process call a function of a module with its end of the connection and arguments.

        The function may send messages of its own, and receive what :meth:`send` answers.
        """
        self._is_called = True
        self.send((function, arguments))

    def receive(self) -> Any:
        """Return the next message, for which it waits; None if the process is dead."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            return None
        if isinstance(message, Ready):
            # It may have been called before it had started.
            self._has_started = True
        elif isinstance(message, Answer):
            self._is_called = False
        return message

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class Workers:
    """The processes of a command.

    Args:
        name: Name of each process.
        prepare: Function of a module that each process calls first, with its end of the connection.
    """

    def __init__(self, name: str, prepare: Callable[[Connection], None] | None = None) -> None:
        self._name = name
        self._prepare = prepare
        self._workers: list[Worker] = []

    def __len__(self) -> int:
        return len(self._workers)

    @property
    def idle(self) -> list[Worker]:
        """Processes that have started, and wait for a call."""
        return [worker for worker in self._workers if worker.is_idle]

    def start(self) -> Worker:
        """Start a process."""
        worker = Worker(self._name, self._prepare)
        self._workers.append(worker)
        return worker

    def call(self, function: Callable[..., Any], *arguments: Any) -> Worker:
        """Let a process that waits, or else a new one, call a function; see :meth:`Worker.call`."""
        worker = self.idle[0] if self.idle else self.start()
        worker.call(function, *arguments)
        return worker

    def receive(self, timeout: float) -> Iterator[tuple[Worker, Any]]:
        """Yield the messages that arrive within a time, in seconds; None is the death of a process."""
        by_connection = {worker.connection: worker for worker in self._workers}
        for connection in wait(list(by_connection), timeout):
            assert isinstance(connection, Connection)
            worker = by_connection[connection]
            yield worker, self.receive_from(worker)

    def receive_from(self, worker: Worker) -> Any:
        """Return the next message of a process, for which it waits; as :meth:`receive`."""
        message = worker.receive()
        if message is None:
            self._workers.remove(worker)
            # It may still be about to end, by an exit code of its own.
            worker.process.join(_END_SECONDS)
            worker.kill()
        return message

    def kill(self) -> None:
        """End all processes at once."""
        for worker in self._workers:
            worker.kill()


@contextmanager
def open_workers(name: str, prepare: Callable[[Connection], None] | None = None) -> Iterator[Workers]:
    """Give processes as of :class:`Workers`, none of them started, which end with the block."""
    workers = Workers(name, prepare)
    try:
        yield workers
    finally:
        workers.kill()


@contextmanager
def _without_main_module() -> Iterator[None]:
    """Keep a new process from running the user's script again, which it would do to import it.

    No call needs anything of it, and a script that calls ``fit`` at its top level would start all again in each
    process, which multiprocessing refuses.
    """
    main: MutableMapping[str, Any] = vars(sys.modules["__main__"])
    names = {name: main[name] for name in ("__file__", "__spec__") if name in main}
    try:
        # multiprocessing looks for the script under these names when it starts a process.
        main.pop("__file__", None)
        main["__spec__"] = None
        yield
    finally:
        main.update(names)


def _serve(connection: Connection, parent_terms: Terms, prepare: Callable[[Connection], None] | None) -> None:
    """Run the calls that the parent sends."""
    if hasattr(os, "setsid"):
        # A session of its own: Ctrl-C reaches every process of a terminal, and the parent ends this one itself.
        os.setsid()
    is_ending = False

    def end(number: int, frame: object) -> None:
        nonlocal is_ending
        is_ending = True
        sys.exit(128 + number)

    # The parent may end this process by SIGTERM; the default would leave locks behind, as after a death.
    signal.signal(signal.SIGTERM, end)
    set_terms(parent_terms)
    if prepare is not None:
        prepare(connection)
    with suppress(OSError):
        connection.send(Ready())
    # The parent is gone: there is nobody to answer to.
    with suppress(EOFError, OSError):
        # An exit that is raised in a callback of C code is lost, and the call goes on to its end.
        while not is_ending:
            function, arguments = connection.recv()
            try:
                answer = Answer(function(connection, *arguments))
            except (StableRNNError, OSError) as error:
                answer = Answer(error=error)
                # A training takes the signal itself, and saves its state.
                is_ending = is_ending or isinstance(error, InterruptedRun)
            connection.send(answer)


HEARTBEAT_VARIABLE = "STABLERNN_HEARTBEAT_SECONDS"
HEARTBEAT_SECONDS = 10.0
"""Default interval at which an owner touches its lock."""
MISSED_HEARTBEATS = 6
"""Heartbeats that must be missing in a row: with the default, a machine or file server may be away for a minute."""
MAX_DEATHS = 3
"""Owners of a job that may die in a row without a new checkpoint: too little memory for a run kills each of them."""
_MOST_POLL_SECONDS = 2.0
"""Longest interval at which a lock of another process is looked at."""
_MAX_RECORD_BYTES = 4096

Report = Callable[[str], None]
Result = TypeVar("Result")


class LostLock(Exception):
    """The lock of a job was taken over; its work must be dropped. Users never see it."""


class AbandonedJob(TrainingError):
    """A job whose owners died too often."""


@dataclass(frozen=True)
class Owner:
    """The owner of a lock, as its file names it.

    Attributes:
        host: Name of its machine.
        pid: Process id on it.
        machine: Id of its machine since the last boot, if the operating system locks the file for it; else None.
        token: Random name of this ownership.
        seconds: Interval of its heartbeat.
        deaths: Owners before it that died in a row without a new checkpoint.
        checkpoint: Time of the last checkpoint when it began, in nanoseconds; None if there was none.
    """

    host: str
    pid: int
    machine: str | None
    token: str
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    deaths: int
    checkpoint: int | None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @classmethod
    def parse(cls, content: bytes) -> Owner | None:
        """Return the owner that a file names; None if the file is damaged, or not written yet."""
        try:
            return TypeAdapter(cls).validate_json(content)
        except ValidationError:
            return None

    def document(self) -> bytes:
        return (json.dumps(vars(self)) + "\n").encode()


@dataclass(frozen=True)
class _File:
    """A lock file.

    Attributes:
        path: Its path.
        number: N in its name.
        owner: The owner; None if the file is damaged.
        touched: Time at which it was touched in nanoseconds, by an unknown clock.
    """

    path: Path
    number: int
    owner: Owner | None
    touched: int


@dataclass
class _Watch:
    """The time for which a process has seen a lock file unchanged.

    Attributes:
        file: The file when it last changed.
        silent_seconds: The time since then. A pause between two looks counts as one heartbeat at most: this process may
            have been suspended, or the file server away.
        looked_at: The last look, by the monotonic clock, which all processes of a machine share.
    """

    file: _File
    silent_seconds: float
    looked_at: float


class JobLock:
    """A lock that this process owns.

    Args:
        path: The lock file.
        owner: This process.
        descriptor: The open lock file, with a lock of the operating system where there are such.
    """

    def __init__(self, path: Path, owner: Owner, descriptor: int) -> None:
        self._path = path
        self._owner = owner
        self._descriptor: int | None = descriptor
        self._is_lost = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="stablernn-heartbeat", daemon=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Touch the lock in the ``with`` block, refuse its writes once the lock is lost, and release it at the end."""
        self._thread.start()
        try:
            with checked_writes(self.check):
                yield
        finally:
            self.release()

    def check(self) -> None:
        """Check that the lock is still that of this process.

        Raises:
            LostLock: If it is not.
        """
        if self.is_lost():
            raise LostLock

    def is_lost(self) -> bool:
        """Return True if another process has taken over the lock."""
        if not self._is_lost:
            try:
                # Opening a file asks the server of a network file system; its attributes may be cached for a minute.
                owner = Owner.parse(self._path.read_bytes())
            except OSError as error:
                if not _is_missing(error):
                    raise
                owner = None
            self._is_lost = owner is None or owner.token != self._owner.token
        return self._is_lost

    def release(self) -> None:
        """Give the job back."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        with suppress(OSError):
            # A process that is suspended in between can remove the first lock of a later owner, after the job was taken
            # over and released. That one notices before it writes, and drops its work.
            if not self.is_lost():
                self._path.unlink()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _beat(self) -> None:
        while not self._stop.wait(self._owner.seconds):
            # A file server that is away for a moment costs a heartbeat and not the job.
            with suppress(OSError):
                if self.is_lost():
                    return
                # Without times, so that the clock of the file system gives them.
                os.utime(self._path)


@dataclass(frozen=True)
class JobLocks:
    """The locks of the jobs of a folder.

    Attributes:
        folder: The folder of the lock files.
        seconds: Interval of the heartbeat. Processes of one folder may differ: each lock has that of its owner.
    """

    folder: Path
    seconds: float = field(default_factory=lambda: heartbeat_seconds())
    _watches: dict[str, _Watch] = field(default_factory=dict, repr=False, compare=False)

    @property
    def poll_seconds(self) -> float:
        """Interval at which locks of other processes are looked at."""
        return min(_MOST_POLL_SECONDS, self.seconds / 2)

    def owner(self, key: str) -> str | None:
        """Return the process that runs a job, in words; None if a claim may succeed."""
        with self._writable():
            last = self._last(key)
            if last is None or self._is_abandoned(last):
                return None
        return str(last.owner or "an unknown process")

    def claim(self, key: str, checkpoint: Path | None = None, report: Report | None = None) -> JobLock | None:
        """Take the lock of a job, also that of an owner that is dead.

        Args:
            key: Name of the job, which is part of the file's name.
            checkpoint: File that shows that an owner made progress before it died.
            report: Called with a sentence if the job is taken over.

        Returns:
            The lock, or None if another process has it.

        Raises:
            AbandonedJob: If too many owners died in a row.
            ConfigError: If the folder cannot be written to.
        """
        with self._writable():
            last = self._last(key)
            if last is not None and not self._is_abandoned(last):
                return None
            saved = _saved_at(checkpoint)
            deaths = 0 if last is None else self._count_deaths(key, last, saved)
            number = 0 if last is None else last.number + 1
            lock = self._create(key, number, deaths, saved)
            if lock is None:
                return None
            files = {file.number: file for file in self._files(key)}
            previous = None if last is None else files.get(last.number)
            # In the meantime others may have taken over or done the job, or its owner may be awake again.
            if max(files, default=-1) > number or previous != last:
                lock.release()
                return None
            for file in files.values():
                if file.number < number:
                    file.path.unlink(missing_ok=True)
        if last is not None and report is not None:
            report(f"Taking over {key} from {last.owner or 'an unknown process'}, which is dead or suspended.")
        return lock

    def exclusively(self, key: str, function: Callable[[], Result], report: Report | None = None) -> Result:
        """Call a function that one process at a time may run, and wait for others that do.

        Args:
            key: Name of the lock.
            function: The function. It is called again if its lock was lost, which stops its writes.
            report: Called with a sentence while others are waited for.
        """
        waits_for = None
        while True:
            lock = self.claim(key)
            if lock is not None:
                try:
                    with lock.held():
                        return function()
                except LostLock:
                    continue
            owner = self.owner(key)
            if owner is not None and owner != waits_for and report is not None:
                report(f"Waiting for {owner}, which has the lock '{key}'.")
            waits_for = owner
            time.sleep(self.poll_seconds)

    def _files(self, key: str) -> list[_File]:
        """Return the lock files of a job by their numbers: several while one is taken over."""
        pattern = re.compile(re.escape(key) + r"\.(\d+)\.lock")
        matches = [match for name in os.listdir(self.folder) if (match := pattern.fullmatch(name))]
        files = []
        for match in matches:
            path = self.folder / match[0]
            try:
                with path.open("rb") as file:
                    touched = os.fstat(file.fileno()).st_mtime_ns
                    owner = Owner.parse(file.read(_MAX_RECORD_BYTES))
            except OSError as error:
                # Another process may remove it at any moment.
                if not _is_missing(error):
                    raise
                continue
            files.append(_File(path, int(match[1]), owner, touched))
        return sorted(files, key=lambda file: file.number)

    def _last(self, key: str) -> _File | None:
        files = self._files(key)
        return files[-1] if files else None

    def _is_abandoned(self, file: _File) -> bool:
        """Return True if the owner of a lock is dead, or has not touched it for too long."""
        is_here = file.owner is not None and file.owner.machine == _machine() is not None
        if is_here and lock_is_free(file.path, os.O_RDWR):
            return True
        seconds = self.seconds if file.owner is None else file.owner.seconds
        return self._silent_seconds(file, seconds) > MISSED_HEARTBEATS * seconds

    def _silent_seconds(self, file: _File, heartbeat: float) -> float:
        """Return the time for which this process has seen a lock file unchanged."""
        now = time.monotonic()
        watch = self._watches.get(file.path.name)
        if watch is None or watch.file != file:
            watch = self._watches[file.path.name] = _Watch(file, 0.0, now)
        watch.silent_seconds += min(now - watch.looked_at, max(heartbeat, self.seconds))
        watch.looked_at = now
        return watch.silent_seconds

    def _count_deaths(self, key: str, last: _File, saved: int | None) -> int:
        """Return the deaths in a row with that of the last owner.

        Raises:
            AbandonedJob: If there are too many.
        """
        deaths = 1
        if last.owner is not None and last.owner.checkpoint == saved:
            deaths += last.owner.deaths
        if deaths >= MAX_DEATHS:
            raise AbandonedJob(
                f"The processes that ran {key} died {deaths} times in a row without a new checkpoint, the last one as "
                f"{last.owner or 'an unknown process'}. Look for the reason, such as memory that ran out, remove "
                f"'{last.path}', and run the same command again."
            )
        return deaths

    def _create(self, key: str, number: int, deaths: int, saved: int | None) -> JobLock | None:
        """Create a lock file; None if it exists."""
        path = self.folder / f"{key}.{number}.lock"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return None
        try:
            # Before the owner is named: others take a named owner without this lock for dead.
            machine = _machine() if lock_open_file(descriptor) else None
            token = secrets.token_hex(16)
            owner = Owner(socket.gethostname(), os.getpid(), machine, token, self.seconds, deaths, saved)
            os.write(descriptor, owner.document())
            os.fsync(descriptor)
        except BaseException:
            os.close(descriptor)
            path.unlink(missing_ok=True)
            raise
        return JobLock(path, owner, descriptor)

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            self.folder.mkdir(exist_ok=True)
            yield
        except OSError as error:
            raise ConfigError(
                f"Cannot write to the folder '{self.folder.parent}': {error.strerror}. Each machine that shares it "
                "must be able to write to it; change its permissions, or name another folder with --output."
            ) from error


def heartbeat_seconds() -> float:
    """Return the interval of the heartbeat, from ``STABLERNN_HEARTBEAT_SECONDS`` or the default.

    Raises:
        ConfigError: If it is not a number of seconds from 0.1 to 3,600.
    """
    return read_positive_number(HEARTBEAT_VARIABLE, HEARTBEAT_SECONDS, (0.1, 3600))


@cache
def _machine() -> str | None:
    """Return an id that the processes of one running system share, containers among them; None where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip() or None
    except (OSError, ValueError):
        return None


def _is_missing(error: OSError) -> bool:
    """Return True if a file was removed, which network file systems report of an open one in their own way."""
    return isinstance(error, FileNotFoundError) or error.errno == errno.ESTALE


def _saved_at(checkpoint: Path | None) -> int | None:
    """Return the time at which a checkpoint was written, in nanoseconds; None if there is none."""
    if checkpoint is None:
        return None
    try:
        return checkpoint.stat().st_mtime_ns
    except OSError:
        return None


@contextmanager
def named_stages(name: str) -> Iterator[None]:
    """Put the name of a job before each stage that this process logs."""

    def add_name(record: logging.LogRecord) -> bool:
        record.msg, record.args = f"{name}: {record.getMessage()}", None
        return True

    _PROGRESS.addFilter(add_name)
    try:
        yield
    finally:
        _PROGRESS.removeFilter(add_name)


@contextmanager
def unique_readings() -> Iterator[None]:
    """Log once that a data set is read, however often this process and its jobs read it."""
    logged: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        source: str | None = getattr(record, "source", None)
        if source is None:
            return True
        if source in logged:
            return False
        logged.add(source)
        return True

    _PROGRESS.addFilter(is_new)
    try:
        yield
    finally:
        _PROGRESS.removeFilter(is_new)


class _Sender(logging.Handler):
    """A handler that sends records to the parent of this process."""

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        # A killed parent reads no more.
        with suppress(OSError):
            self._connection.send(record)


def _send_stages(connection: Connection) -> None:
    """Send the stages of this process from now on to its parent, which logs them as its own."""
    _PROGRESS.addHandler(_Sender(connection))
    _PROGRESS.setLevel(logging.INFO)
    _PROGRESS.propagate = False
