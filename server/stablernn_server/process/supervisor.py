"""Several server processes that share one port, one state key and one folder of metrics."""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from pydantic import SecretStr

from stablernn_registry import RegistryError
from stablernn_server.errors import ServerError
from stablernn_server.observability.multiprocess import forget_worker, prepare_metrics_dir
from stablernn_server.settings import Settings

logger = logging.getLogger(__name__)

STOP_SECONDS = 12.0
"""After which a process that was told to stop is killed: its own grace, and a little."""
RESTART_SECONDS = 1.0
"""Between the end of a process that ended early and the beginning of the next in its place; doubled each time."""
MAX_RESTART_SECONDS = 32.0
EARLY_SECONDS = 30.0
"""A process that ends sooner will most likely do so again."""
LOOK_SECONDS = 0.5
"""How long the supervisor waits at most before it looks whether it was told to stop."""


class WorkerFailedError(ServerError, RuntimeError):
    """A process ended before it was ready, and could not say why itself."""


@dataclass
class Place:
    """One of the places of a server's processes, which each have their own pause.

    Attributes:
        pause_seconds: What the last process that ended here was followed by.
        due: When the next one begins, on the monotonic clock.
    """

    pause_seconds: float = 0.0
    due: float = 0.0

    def vacate(self, now: float, *, was_well: bool) -> None:
        """A process has ended.

        Args:
            now: On the monotonic clock.
            was_well: Whether it answered for long enough that another can follow at once.
        """
        longer = min(max(RESTART_SECONDS, 2 * self.pause_seconds), MAX_RESTART_SECONDS)
        self.pause_seconds = 0.0 if was_well else longer
        self.due = now + self.pause_seconds


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    since: float
    is_ready: bool = False

    def said(self) -> tuple[list[str], Exception | None]:
        """What it serves, or why it cannot; an end without a word is an error, too."""
        try:
            served, error = self.pipe.recv()
        except EOFError:
            self.process.join(1)
            return [], WorkerFailedError(
                f"A server process ended with exit code {self.process.exitcode} before it was ready; the lines above "
                "say why."
            )
        self.is_ready = error is None
        return served, error

    def was_well(self, now: float) -> bool:
        """Whether it was ready, and did not end early."""
        return self.is_ready and now - self.since > EARLY_SECONDS


class Supervisor:
    """Starts the processes, puts another in the place of one that ends, and stops them all."""

    def __init__(self, settings: Settings, listener: socket.socket, *, quiet: bool) -> None:
        """Prepare; nothing is started yet.

        Args:
            settings: Of every process.
            listener: The bound socket that they share.
            quiet: Whether only warnings are logged.
        """
        self._own_folder = None if settings.metrics_dir else Path(tempfile.mkdtemp(prefix="stablernn-metrics-"))
        self._metrics_dir = settings.metrics_dir or self._own_folder
        assert self._metrics_dir is not None
        prepare_metrics_dir(self._metrics_dir)
        fields: dict[str, object] = {"metrics_dir": self._metrics_dir}
        if settings.state_key is None and settings.state_key_file is None:
            logger.warning(
                "No state key is set, so a random one is used by all processes: state tokens die with this server. "
                "Give --state-key-file or STABLERNN_STATE_KEY to continue streams after a restart or on another server."
            )
            fields["state_key"] = SecretStr(secrets.token_hex(32))
        self._settings = settings.model_copy(update=fields)
        self._listener = listener
        self._quiet = quiet
        self._context = multiprocessing.get_context("spawn")
        self._places = [Place() for _ in range(settings.workers)]
        # By place; none between the end of one and the beginning of the next.
        self._workers: dict[int, _Worker] = {}
        self._is_stopping = False

    def run(self, on_ready: Callable[[list[str], list[int]], None]) -> None:
        """Serve until SIGTERM or SIGINT.

        Args:
            on_ready: Called once, with what is served and the numbers of the processes, when all of them answer.

        Raises:
            ServerError: If one of the first processes cannot start; its own error where it has one.
            stablernn_registry.RegistryError: Likewise.
        """
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._fill_places()
            served: list[str] = []
            for worker in self._workers.values():
                served = self._first_word(worker)
                if self._is_stopping:
                    return
            on_ready(served, [worker.process.pid or 0 for worker in self._workers.values()])
            while not self._is_stopping:
                self._wait()
                if not self._is_stopping:
                    self._clear_ended()
                    self._fill_places()
        finally:
            self._end_all()
            for number, handler in before.items():
                signal.signal(number, handler)
            if self._own_folder is not None:
                shutil.rmtree(self._own_folder, ignore_errors=True)

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=work, args=(self._settings, self._listener, self._quiet, theirs), daemon=True
        )
        process.start()
        theirs.close()
        return _Worker(process, ours, time.monotonic())

    def _first_word(self, worker: _Worker) -> list[str]:
        """What a process serves; raises why it cannot."""
        while not self._is_stopping:
            if worker.pipe.poll(0.2):
                served, error = worker.said()
                if error is not None:
                    raise error
                return served
        return []

    def _wait(self) -> None:
        """Until a process ends or another is due, but not for long."""
        now = time.monotonic()
        due = [place.due - now for number, place in enumerate(self._places) if number not in self._workers]
        seconds = max(0.0, min([LOOK_SECONDS, *due]))
        if self._workers:
            wait([worker.process.sentinel for worker in self._workers.values()], timeout=seconds)
        else:
            time.sleep(seconds)

    def _clear_ended(self) -> None:
        for number, worker in list(self._workers.items()):
            process, place = worker.process, self._places[number]
            if process.is_alive():
                continue
            # What it says of itself, if it is one that took the place of another.
            _, error = worker.said() if not worker.is_ready and worker.pipe.poll() else ([], None)
            why = "" if error is None or isinstance(error, WorkerFailedError) else f" ({error})"
            now = time.monotonic()
            place.vacate(now, was_well=worker.was_well(now))
            logger.error(
                "server process %s ended with exit code %s%s; another takes its place %s",
                process.pid,
                process.exitcode,
                why,
                f"in {place.pause_seconds:g} s" if place.pause_seconds else "now",
            )
            worker.pipe.close()
            assert self._metrics_dir is not None
            forget_worker(self._metrics_dir, process.pid or 0)
            del self._workers[number]

    def _fill_places(self) -> None:
        now = time.monotonic()
        for number, place in enumerate(self._places):
            if number not in self._workers and place.due <= now:
                self._workers[number] = self._start()

    def _end_all(self) -> None:
        for worker in self._workers.values():
            if worker.process.is_alive():
                worker.process.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for worker in self._workers.values():
            process = worker.process
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                logger.error("server process %s did not stop in time and is killed", process.pid)
                process.kill()
                process.join()
            worker.pipe.close()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._is_stopping = True


def work(settings: Settings, listener: socket.socket, quiet: bool, pipe: Connection) -> None:
    """One of the processes."""
    # Ctrl-C reaches every process of the terminal; the supervisor passes on what is meant for this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    from stablernn_server.process.log_writer import queued_stderr

    with queued_stderr():
        log_to_stderr(quiet)
        from stablernn_server.app import create_app
        from stablernn_server.process.server import Server

        try:
            app = create_app(settings)
        except (ServerError, RegistryError) as error:
            pipe.send(([], error))
            return
        served = app.state.context.models.served_refs()
        listener.listen(1024)
        Server(app, settings, quiet=quiet, on_ready=lambda: pipe.send((served, None))).serve_on(listener)


def _end_with_parent() -> None:
    """Stop when the supervisor was killed: nobody else would tell this process to, and it would keep the port."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def log_to_stderr(quiet: bool) -> None:
    """Have the lines of this process where those of its parent go."""
    from stablernn_server.http.access_log import write_to_stderr

    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    for package in ("stablernn_server", "stablernn_runtime"):
        logging.getLogger(package).setLevel(logging.WARNING if quiet else logging.INFO)
    if not quiet:
        write_to_stderr()
