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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import SecretStr

from stablernn_registry import RegistryError
from stablernn_runtime.engines.devices import count_gpus, read_driver
from stablernn_runtime.engines.loaded_graphs import ONNX
from stablernn_runtime.engines.plugins import AUTO, TORCH
from stablernn_server.errors import NotReadyError, ServerError
from stablernn_server.http.responses import error_response
from stablernn_server.key_files import tls_context
from stablernn_server.observability.multiprocess import prepare_metrics_dir, remove_worker_gauges
from stablernn_server.settings import Settings

logger = logging.getLogger(__name__)

STOP_SECONDS = 12.0
"""Time after which a process that was told to stop is killed: its own grace period, and a little more."""
RESTART_SECONDS = 1.0
"""Delay before a process that ended early is restarted; doubled each time."""
MAX_RESTART_SECONDS = 32.0
EARLY_SECONDS = 30.0
"""A process that ends sooner will most likely do so again."""
REFUSAL_SECONDS = 2.0
"""Time that a client has to send its request and to take its refusal."""
MAX_REFUSALS = 64
"""Connections that are refused at a time; further ones are closed."""
POLL_SECONDS = 0.5
"""Longest wait of the supervisor before it checks whether it was told to stop."""


class WorkerFailedError(ServerError, RuntimeError):
    """A worker process that ended before it was ready, without reporting an error."""


@dataclass
class WorkerSlot:
    """A slot for one worker process at a time, with the delay before the next one starts.

    Attributes:
        delay_seconds: Delay after the last process that ended in this slot.
        start_at: When the next one starts, on the monotonic clock.
    """

    delay_seconds: float = 0.0
    start_at: float = 0.0

    def schedule_restart(self, now: float, *, was_healthy: bool) -> None:
        """Set when the next process starts, after one has ended.

        Args:
            now: Time on the monotonic clock.
            was_healthy: Whether it served for long enough that another can follow at once.
        """
        doubled = min(max(RESTART_SECONDS, 2 * self.delay_seconds), MAX_RESTART_SECONDS)
        self.delay_seconds = 0.0 if was_healthy else doubled
        self.start_at = now + self.delay_seconds


@dataclass
class _Worker:
    """A worker process.

    Attributes:
        process: The process.
        pipe: Its reports.
        started_at: When it was started, on the monotonic clock.
        is_ready: Whether it serves.
        served: The models that it serves.
        error: The error that kept it from serving; None if there is none.
        answering: The versions that it answers with, by reference.
    """

    process: BaseProcess
    pipe: Connection
    started_at: float
    is_ready: bool = False
    served: list[str] = field(default_factory=list)
    error: Exception | None = None
    answering: Mapping[str, int] = field(default_factory=dict)

    def read_reports(self) -> None:
        """Read what it has reported since the last call; the first report is that of :func:`run_worker`."""
        while self.pipe.poll():
            try:
                report = self.pipe.recv()
            except (EOFError, OSError):
                if not self.is_ready and self.error is None:
                    # The process ended without a report, such as by a signal.
                    self.process.join(1)
                    self.error = WorkerFailedError(
                        f"A server process ended with exit code {self.process.exitcode} before it was ready; the lines "
                        "above say why."
                    )
                return
            if isinstance(report, Exception):
                self.error = report
            else:
                self.served, self.answering = report
                self.is_ready = True

    def was_healthy(self, now: float) -> bool:
        """Return whether it became ready, and did not end early."""
        return self.is_ready and now - self.started_at > EARLY_SECONDS


def place_worker(settings: Settings, number: int, gpu_count: int) -> Settings:
    """Return the settings of one process: process i takes GPU i modulo their number, unless a GPU is named.

    Args:
        settings: Settings of all processes.
        number: Number of the process, from 0.
        gpu_count: Number of GPUs; 0 without any.
    """
    is_named = settings.device == "cpu" or settings.device_id is not None
    # Engines of packages choose their GPU themselves.
    if is_named or gpu_count < 2 or settings.engine not in (ONNX, TORCH, AUTO):
        return settings
    return settings.model_copy(update={"device_id": number % gpu_count})


def _log_gpus(settings: Settings) -> None:
    """Log how the processes are spread over the GPUs, and warn if those differ."""
    driver = read_driver()
    if driver is None or place_worker(settings, 0, len(driver.gpus)) is settings:
        return
    names = ", ".join(str(gpu) for gpu in driver.gpus)
    logger.info("%d processes are spread over %s.", settings.workers, names)
    if len({(gpu.name, gpu.memory_bytes) for gpu in driver.gpus}) > 1:
        logger.warning(
            "The GPUs differ (%s): processes differ in speed, and a stream that continues in another process may "
            "differ in its last bits. Give --device-id or CUDA_VISIBLE_DEVICES to use one kind.",
            names,
        )


class Supervisor:
    """Starts the worker processes, restarts those that end, and stops them all."""

    def __init__(self, settings: Settings, listener: socket.socket, *, quiet: bool) -> None:
        """Prepare; nothing is started yet.

        Args:
            settings: Settings of every process.
            listener: The bound socket that they share.
            quiet: Whether only warnings are logged.
        """
        self._temporary_dir = None if settings.metrics_dir else Path(tempfile.mkdtemp(prefix="stablernn-metrics-"))
        self._metrics_dir = settings.metrics_dir or self._temporary_dir
        assert self._metrics_dir is not None
        prepare_metrics_dir(self._metrics_dir)
        fields: dict[str, object] = {"metrics_dir": self._metrics_dir}
        if settings.state_key is None and settings.state_key_file is None:
            logger.warning(
                "No state key is set, so a random one is used by all processes: state tokens expire with this server. "
                "Give --state-key-file or STABLERNN_STATE_KEY to continue streams after a restart or on another server."
            )
            # Any process must accept the tokens of the others.
            fields["state_key"] = SecretStr(secrets.token_hex(32))
        self._settings = settings.model_copy(update=fields)
        self._listener = listener
        self._quiet = quiet
        self._gpu_count = count_gpus() or 0
        _log_gpus(settings)
        self._multiprocessing = multiprocessing.get_context("spawn")
        self._slots = [WorkerSlot() for _ in range(settings.workers)]
        # By number of the slot; a slot between two processes has no entry.
        self._workers: dict[int, _Worker] = {}
        # What the processes answered with last.
        self._answering: Mapping[str, int] = {}
        self._tls = tls_context(settings)
        self._refusals = threading.Semaphore(MAX_REFUSALS)
        self._is_stopping = False

    def run(self, on_ready: Callable[[list[str], list[int]], None]) -> None:
        """Serve until SIGTERM or SIGINT.

        Args:
            on_ready: Called once, with the served models and the process ids, when all processes answer.

        Raises:
            ServerError: If one of the first processes cannot start; its own error if it reported one.
            stablernn_registry.RegistryError: If that is the error that it reported.
        """
        handlers = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._start_workers()
            served: list[str] = []
            for worker in self._workers.values():
                served = self._wait_until_ready(worker)
                if self._is_stopping:
                    return
            on_ready(served, [worker.process.pid or 0 for worker in self._workers.values()])
            while not self._is_stopping:
                self._wait()
                if not self._is_stopping:
                    self._remove_ended()
                    self._start_workers()
        finally:
            self._stop_workers()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            if self._temporary_dir is not None:
                shutil.rmtree(self._temporary_dir, ignore_errors=True)

    def _start_worker(self, settings: Settings) -> _Worker:
        receiver, sender = self._multiprocessing.Pipe(duplex=False)
        process = self._multiprocessing.Process(
            target=run_worker, args=(settings, self._listener, self._quiet, sender, self._answering), daemon=True
        )
        process.start()
        # With the process's end alone open, the receiver sees EOF when the process ends.
        sender.close()
        return _Worker(process, receiver, time.monotonic())

    def _wait_until_ready(self, worker: _Worker) -> list[str]:
        """Return the models that a process serves; raise the error that keeps it from serving."""
        while not self._is_stopping:
            if worker.pipe.poll(0.2):
                self._read_reports(worker)
                if worker.error is not None:
                    raise worker.error
                if worker.is_ready:
                    return worker.served
        return []

    def _read_reports(self, worker: _Worker) -> None:
        worker.read_reports()
        if worker.answering:
            # What a process that starts later answers with.
            self._answering = worker.answering

    def _wait(self) -> None:
        """Wait until a process reports, ends or is to be started, but at most :data:`POLL_SECONDS`.

        While no process answers, requests are refused here.
        """
        now = time.monotonic()
        delays = [slot.start_at - now for number, slot in enumerate(self._slots) if number not in self._workers]
        seconds = max(0.0, min([POLL_SECONDS, *delays]))
        workers = list(self._workers.values())
        sources: list[Any] = [worker.process.sentinel for worker in workers]
        sources += [worker.pipe for worker in workers if worker.process.is_alive()]
        if not any(worker.is_ready for worker in workers):
            sources.append(self._listener)
        ready = wait(sources, timeout=seconds)
        if self._listener in ready:
            self._refuse()
        for worker in workers:
            self._read_reports(worker)

    def _refuse(self) -> None:
        """Accept a connection, and answer it with 503 on a thread."""
        with suppress(OSError):
            connection, _ = self._listener.accept()
            if self._refusals.acquire(blocking=False):
                threading.Thread(target=self._answer_refusal, args=(connection,), daemon=True).start()
            else:
                connection.close()

    def _answer_refusal(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(REFUSAL_SECONDS)
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            # Closed with unread bytes, the connection would be reset, and the client might not see the response.
            connection.recv(2**16)
            connection.sendall(_refusal())
            connection.shutdown(socket.SHUT_WR)
            connection.recv(2**16)
        except OSError:
            # The client has gone, or sends nothing.
            pass
        finally:
            connection.close()
            self._refusals.release()

    def _remove_ended(self) -> None:
        for number, worker in list(self._workers.items()):
            process, slot = worker.process, self._slots[number]
            if process.is_alive():
                continue
            self._read_reports(worker)
            error = worker.error
            reason = "" if error is None or isinstance(error, WorkerFailedError) else f" ({error})"
            now = time.monotonic()
            slot.schedule_restart(now, was_healthy=worker.was_healthy(now))
            logger.error(
                "server process %s ended with exit code %s%s; starting another %s",
                process.pid,
                process.exitcode,
                reason,
                f"in {slot.delay_seconds:g} s" if slot.delay_seconds else "now",
            )
            worker.pipe.close()
            assert self._metrics_dir is not None
            remove_worker_gauges(self._metrics_dir, process.pid or 0)
            del self._workers[number]

    def _start_workers(self) -> None:
        now = time.monotonic()
        for number, slot in enumerate(self._slots):
            if number not in self._workers and slot.start_at <= now:
                self._workers[number] = self._start_worker(place_worker(self._settings, number, self._gpu_count))

    def _stop_workers(self) -> None:
        for worker in self._workers.values():
            if worker.process.is_alive():
                worker.process.terminate()
        # One deadline for all: they stop at the same time.
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


def _refusal() -> bytes:
    """Return the response while no process answers."""
    response = error_response(NotReadyError("No server process is running; they are restarted, try again later."))
    headers = {
        "Content-Type": response.media_type,
        "Content-Length": str(len(response.body)),
        "X-Request-Id": f"{secrets.token_hex(4)}-1",
        **response.headers,
    }
    head = f"HTTP/1.1 {response.status} Service Unavailable\r\n"
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{head}\r\n".encode() + response.body


def run_worker(
    settings: Settings, listener: socket.socket, quiet: bool, pipe: Connection, answering: Mapping[str, int]
) -> None:
    """Serve in a worker process until it is told to stop.

    Args:
        settings: Settings of the server.
        listener: The bound socket that the processes share.
        quiet: Whether only warnings are logged.
        pipe: Takes reports: the error that keeps it from serving; or the served models and the versions that answer,
            by reference, when it serves and when an alias has moved.
        answering: The versions that the other processes answer with, by reference.
    """
    # Ctrl-C reaches every process of the terminal; the supervisor stops this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_stop_with_parent, name="parent", daemon=True).start()
    from stablernn_server.http.access_log import log_to_stderr
    from stablernn_server.log_writer import queued_stderr

    with queued_stderr():
        log_to_stderr(settings.access_log, quiet=quiet)
        from stablernn_server.app import create_app
        from stablernn_server.server import Server

        try:
            app = create_app(settings, answering=answering)
        except (ServerError, RegistryError) as error:
            pipe.send(error)
            return
        models = app.state.context.models

        def report() -> None:
            # Without the supervisor, this process is about to stop.
            with suppress(OSError):
                pipe.send((models.served_refs(), models.answering()))

        models.on_move = report
        listener.listen(1024)
        Server(app, settings, quiet=quiet, on_ready=report).serve_on(listener)


def _stop_with_parent() -> None:
    """Stop this process when the supervisor was killed: nobody else would, and it would keep the port."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
