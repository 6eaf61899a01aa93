"""Work on untrusted files in a separate process with a deadline and a memory limit.

A graph of a few hundred bytes can keep ONNX Runtime busy for years, in a call that cannot be interrupted, and its
memory is that of the process. So a version is opened in such a process first: if that does not answer in time, it is
killed, and nothing else is harmed.

A process does one piece of work after another, and ends when it was idle for a while. Both sides speak JSON, one
document a line: nothing that the other process sends is executed.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

IDLE_SECONDS = 20.0
"""Idle time after which a process is ended; most work comes in bursts, and starting one takes half a second."""
_ORPHANED_SECONDS = 60.0
"""Idle time after which a process ends by itself: the parent that should have ended it is gone."""
_START_SECONDS = 120.0
"""Time for an interpreter and its imports, which take half a second where nothing else runs."""
_END_SECONDS = 10.0
"""Time for a process to end that has closed its output."""
_MAX_ANSWER_BYTES = 2**24
# The process needs nothing of the server's configuration, which includes keys, tokens and passwords. The server reads
# its settings from variables in upper and lower case.
_WITHHELD_PREFIXES = ("STABLERNN_", "OTEL_")


class IsolationError(RuntimeError):
    """Work that was not finished; the message gives the reason, as the end of a sentence."""


class AbortedError(IsolationError):
    """Work that an :class:`Abort` ended, or did not let begin."""

    def __init__(self) -> None:
        super().__init__("the process that asked for it is shutting down")


class Abort:
    """A signal that ends work in other processes, from any thread and without waiting; once set, no more begins.

    Attributes:
        is_set: Whether :meth:`set` was called.
    """

    def __init__(self) -> None:
        self.is_set = False
        # Guards both: no process is added after the others were killed.
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()

    def set(self) -> None:
        """Kill the working processes; their callers get an :class:`AbortedError`."""
        with self._lock:
            self.is_set = True
            for process in self._processes:
                process.kill()

    def check(self) -> None:
        """Raise if it is set.

        Raises:
            AbortedError: If so.
        """
        if self.is_set:
            raise AbortedError

    @contextmanager
    def covering(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Let :meth:`set` kill a process until the block ends; the caller waits for its end afterwards.

        Raises:
            AbortedError: If it is set already.
        """
        with self._lock:
            self.check()
            self._processes.add(process)
        try:
            yield
        finally:
            with self._lock:
                self._processes.discard(process)


class IsolatedProcess:
    """A pool of processes that run one module, which calls :func:`answer_requests`; safe to use from several threads.

    Threads that ask at the same time get a process each, so that none waits for the work of another. Idle processes are
    used again.

    Args:
        module: Name of the module.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        # Guards the idle processes and the timer; never held while a process works.
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        # Since when each is idle, on the monotonic clock.
        self._idle_since: dict[subprocess.Popen[bytes], float] = {}
        self._timer: threading.Timer | None = None
        # The process that started them, which a fork of it must not use.
        self._owner_pid = 0

    @property
    def idle(self) -> tuple[subprocess.Popen[bytes], ...]:
        """The idle processes."""
        with self._lock:
            return tuple(self._idle)

    def ask(
        self, request: Mapping[str, Any], seconds: float, memory_bytes: int, abort: Abort | None = None
    ) -> dict[str, Any]:
        """Have one piece of work done, and return its result.

        Args:
            request: The work, as JSON types.
            seconds: Time limit, from when the process begins with it.
            memory_bytes: Memory limit.
            abort: Ends the work from another thread.

        Raises:
            IsolationError: If it exceeds a limit, or the process dies of it.
            AbortedError: If ``abort`` is set.
        """
        line = json.dumps({"seconds": seconds, "memory_bytes": memory_bytes, "work": request}).encode() + b"\n"
        abort = abort or Abort()
        answer, code = self._answer(line, seconds, abort)
        if answer is None and code == 0:
            # The process had been idle for long, and was about to end by itself.
            answer, code = self._answer(line, seconds, abort)
        if answer is None:
            raise IsolationError(_describe_end(code))
        document: dict[str, Any] = json.loads(answer)
        if "failed" in document:
            raise IsolationError(str(document["failed"]))
        result: dict[str, Any] = document["result"]
        return result

    def close(self) -> None:
        """End the idle processes."""
        with self._lock:
            processes, self._idle = self._idle, []
            self._idle_since.clear()
        for process in processes:
            self._dispose(process)

    def _answer(self, line: bytes, seconds: float, abort: Abort) -> tuple[bytes | None, int]:
        """Return the answer of a process to a request, or None and its exit code if it ends instead."""
        abort.check()
        process = self._take()
        is_new = process is None
        if process is None:
            process = self._start()
        answer: bytes | None = None
        try:
            with abort.covering(process):
                if is_new:
                    _await_ready(process)
                answer = _exchange(process, line, time.monotonic() + seconds)
                if answer is None:
                    # Its own exit code tells more than that of a killed process.
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_END_SECONDS)
        except TimeoutError:
            raise IsolationError(f"it takes longer than {seconds:g} s") from None
        finally:
            if answer is None:
                self._dispose(process)
                # An error of a process that was aborted follows from that.
                abort.check()
            else:
                self._put_back(process)
        return answer, process.returncode or 0

    def _take(self) -> subprocess.Popen[bytes] | None:
        """Return an idle process that takes work; None where there is none."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                process = self._idle.pop()
                del self._idle_since[process]
            # After a fork, the process belongs to the parent, which goes on using it.
            if self._owner_pid == os.getpid() and _is_ready(process):
                return process
            self._dispose(process)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {
            name: value for name, value in os.environ.items() if not name.upper().startswith(_WITHHELD_PREFIXES)
        }
        environment.setdefault("OMP_NUM_THREADS", "1")
        try:
            process = subprocess.Popen(
                # -P: no module of the working directory is imported.
                [sys.executable, "-P", "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                bufsize=0,
            )
        except OSError as error:
            raise IsolationError(f"the process for it does not start ({error.strerror})") from error
        with self._lock:
            if self._owner_pid != os.getpid():
                self._owner_pid = os.getpid()
                atexit.register(self.close)
        return process

    def _put_back(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._idle.append(process)
            self._idle_since[process] = time.monotonic()
            if self._timer is None or not self._timer.is_alive():
                self._set_timer(IDLE_SECONDS)

    def _set_timer(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._end_idle)
        self._timer.daemon = True
        self._timer.start()

    def _end_idle(self) -> None:
        """End the processes that have been idle for long; one that ended by itself would stay as a zombie."""
        with self._lock:
            self._timer = None
            now = time.monotonic()
            expired = [process for process in self._idle if now - self._idle_since[process] >= IDLE_SECONDS]
            self._idle = [process for process in self._idle if process not in expired]
            for process in expired:
                del self._idle_since[process]
            if self._idle:
                self._set_timer(max(0.1, min(self._idle_since.values()) + IDLE_SECONDS - now))
        for process in expired:
            self._dispose(process)

    def _dispose(self, process: subprocess.Popen[bytes]) -> None:
        """End a process, unless it belongs to the parent of a fork, and close its pipes."""
        if self._owner_pid == os.getpid():
            process.kill()
            process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


def answer_requests(
    work: Callable[[dict[str, Any]], dict[str, Any]], prepare: Callable[[dict[str, Any]], None] = lambda request: None
) -> None:
    """Do the work of an :class:`IsolatedProcess`, in that process, until there is no more.

    Args:
        work: Turns one request into its answer. An exception becomes the reason of an :class:`IsolationError`.
        prepare: Runs before each piece of work, to import what it needs; its memory does not count.
    """
    requests, answers = os.dup(0), os.dup(1)
    # Output of the work must not come between the answers.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    # Ctrl-C interrupts all processes of a terminal; this one is to end only when its parent does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _prefer_for_oom_killer()
    buffer = b""
    os.write(answers, b"ready\n")
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while selector.select(_ORPHANED_SECONDS):
            received = os.read(requests, 2**16)
            if not received:
                return
            buffer += received
            while b"\n" in buffer:
                line, _, buffer = buffer.partition(b"\n")
                document = json.dumps(_run_limited(work, prepare, json.loads(line))).encode() + b"\n"
                while document:
                    document = document[os.write(answers, document) :]


def _run_limited(
    work: Callable[[dict[str, Any]], dict[str, Any]],
    prepare: Callable[[dict[str, Any]], None],
    request: dict[str, Any],
) -> dict[str, Any]:
    # The parent kills a process that takes longer. Where the parent is gone, the alarm ends it.
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + 5)
    try:
        prepare(request["work"])
        with _limited_memory(request["memory_bytes"]):
            return {"result": work(request["work"])}
    except MemoryError:
        return {"failed": f"it takes more than {request['memory_bytes']} bytes of memory"}
    except Exception as error:
        # Whatever an untrusted file leads to, the process goes on with the next request.
        return {"failed": f"it fails with {type(error).__name__}: {' '.join(str(error).split())}"}
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


@contextmanager
def _limited_memory(size: int) -> Iterator[None]:
    """Let the process grow by ``size`` bytes of address space; without a limit where the system has none."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):
        # Not Linux.
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    limits = [limit for limit in before if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([pages * resource.getpagesize() + size, *limits]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _prefer_for_oom_killer() -> None:
    """Ask the kernel to end this process, not the server, when memory runs out."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _is_ready(process: subprocess.Popen[bytes]) -> bool:
    """Return whether an idle process takes work; its output is readable only if it has ended."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        return not selector.select(0)


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    """Wait until a new process takes work.

    Raises:
        IsolationError: If it ends instead, or is not ready in time.
    """
    with suppress(TimeoutError):
        if _exchange(process, b"", time.monotonic() + _START_SECONDS) == b"ready\n":
            return
    raise IsolationError("the process for it does not start")


def _exchange(process: subprocess.Popen[bytes], line: bytes, deadline: float) -> bytes | None:
    """Send a request and return its answer; None if the process ends instead.

    Raises:
        TimeoutError: If the deadline passes first.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        while line:
            line = line[process.stdin.write(line) :]
    except BrokenPipeError:
        # It has ended.
        return None
    answer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not answer.endswith(b"\n"):
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not selector.select(remaining):
                raise TimeoutError
            received = process.stdout.read(2**16)
            if not received:
                return None
            answer += received
            if len(answer) > _MAX_ANSWER_BYTES:
                raise IsolationError("its answer is longer than allowed")
    return answer


def _describe_end(code: int) -> str:
    """Describe how a process ended, from its exit code."""
    if code >= 0:
        return f"the process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    # The kernel sends it when memory runs out.
    reason = ", as where memory runs out" if name == "SIGKILL" else ""
    return f"the process was ended by {name}{reason}"
