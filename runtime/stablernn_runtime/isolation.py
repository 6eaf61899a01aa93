"""Work on files that are not trusted, in a process of its own that has a deadline and a bound on memory.

ONNX Runtime can be kept busy for years by a graph of a few hundred bytes, in a call that no thread can be taken out of,
and its memory is that of the process. So whatever opens a version for the first time does it here first: when the
process does not answer in time, it is killed, and nothing else has come to harm.

A process does one piece of work after another and is ended when there was none for a while. Both sides speak JSON, one
document a line: nothing that the other process says is run.
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
"""After which a process without work is ended; most work comes in bursts, and starting one takes half a second."""
_ORPHANED_SECONDS = 60.0
"""After which a process without work ends by itself: whoever should have ended it is gone."""
_START_SECONDS = 120.0
"""For an interpreter and its imports, which take half a second where nothing else runs."""
_END_SECONDS = 10.0
"""For a process to end that has closed its output."""
_MAX_ANSWER_BYTES = 2**24
# It has no use for what the server is configured with, which includes keys, tokens and passwords. The server reads its
# settings from variables in upper and lower case.
_PREFIXES_KEPT_BACK = ("STABLERNN_", "OTEL_")


class IsolationError(RuntimeError):
    """Work that did not come to its end; the message says why, as the end of a sentence."""


class AbortedError(IsolationError):
    """Work that an :class:`Abort` ended, or kept from beginning."""

    def __init__(self) -> None:
        super().__init__("whoever asked for it is shutting down")


class Abort:
    """Ends work in other processes from any thread, without waiting for it; once set, nothing more begins.

    Attributes:
        is_set: Whether :meth:`set` was called.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[bytes]] = set()

    def set(self) -> None:
        """Kill the processes that are at work; their callers get an :class:`AbortedError`."""
        with self._lock:
            self.is_set = True
            for process in self._processes:
                process.kill()

    def check(self) -> None:
        """Raise if it is set.

        Raises:
            AbortedError: If it is.
        """
        if self.is_set:
            raise AbortedError

    @contextmanager
    def covering(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """Let :meth:`set` kill a process until the block ends; whoever waits for its end does so afterwards.

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
    """A process that runs one module, which calls :func:`answer_requests`; safe to use from several threads.

    Threads that ask at the same time get a process each, so that none waits for the work of another. A process without
    work is used again.

    Args:
        module: Name of the module.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        # Guards what follows; never held while a process works.
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._since: dict[subprocess.Popen[bytes], float] = {}
        self._timer: threading.Timer | None = None
        self._owner = 0

    @property
    def idle(self) -> tuple[subprocess.Popen[bytes], ...]:
        """The processes that wait for work."""
        with self._lock:
            return tuple(self._idle)

    def ask(
        self, request: Mapping[str, Any], seconds: float, memory_bytes: int, abort: Abort | None = None
    ) -> dict[str, Any]:
        """Have one piece of work done.

        Args:
            request: What to do, as JSON types.
            seconds: How long it may take, from when the process begins with it.
            memory_bytes: How much memory it may take.
            abort: Ends the work from another thread.

        Raises:
            IsolationError: If it takes longer or more, or the process dies of it.
            AbortedError: If ``abort`` is set.
        """
        line = json.dumps({"seconds": seconds, "memory_bytes": memory_bytes, "work": request}).encode() + b"\n"
        abort = abort or Abort()
        answer, code = self._answer(line, seconds, abort)
        if answer is None and code == 0:
            # It had been idle, and was about to end.
            answer, code = self._answer(line, seconds, abort)
        if answer is None:
            raise IsolationError(_end(code))
        document: dict[str, Any] = json.loads(answer)
        if "failed" in document:
            raise IsolationError(str(document["failed"]))
        result: dict[str, Any] = document["result"]
        return result

    def close(self) -> None:
        """End the processes that wait for work."""
        with self._lock:
            processes, self._idle = self._idle, []
            self._since.clear()
        for process in processes:
            self._dispose(process)

    def _answer(self, line: bytes, seconds: float, abort: Abort) -> tuple[bytes | None, int]:
        """Return what a process says to a request, or None and its exit code if it ends instead."""
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
                    # Its own exit code says more than that of a process that is killed.
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_END_SECONDS)
        except TimeoutError:
            raise IsolationError(f"it takes longer than {seconds:g} s") from None
        finally:
            if answer is None:
                self._dispose(process)
                # Any other error follows from the abort.
                abort.check()
            else:
                self._put_back(process)
        return answer, process.returncode or 0

    def _take(self) -> subprocess.Popen[bytes] | None:
        """Return a process without work that takes more; None where there is none."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                process = self._idle.pop()
                del self._since[process]
            # After a fork, the process is that of the parent, which goes on to use it.
            if self._owner == os.getpid() and _is_ready(process):
                return process
            self._dispose(process)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {
            name: value for name, value in os.environ.items() if not name.upper().startswith(_PREFIXES_KEPT_BACK)
        }
        environment.setdefault("OMP_NUM_THREADS", "1")
        try:
            process = subprocess.Popen(
                # -P: whatever lies in the working directory is not imported.
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
            if self._owner != os.getpid():
                self._owner = os.getpid()
                atexit.register(self.close)
        return process

    def _put_back(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._idle.append(process)
            self._since[process] = time.monotonic()
            if self._timer is None or not self._timer.is_alive():
                self._set_timer(IDLE_SECONDS)

    def _set_timer(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._end_idle)
        self._timer.daemon = True
        self._timer.start()

    def _end_idle(self) -> None:
        """End the processes that have been idle for long; one that ends by itself would stay as a zombie."""
        with self._lock:
            self._timer = None
            now = time.monotonic()
            expired = [process for process in self._idle if now - self._since[process] >= IDLE_SECONDS]
            self._idle = [process for process in self._idle if process not in expired]
            for process in expired:
                del self._since[process]
            if self._idle:
                self._set_timer(max(0.1, min(self._since.values()) + IDLE_SECONDS - now))
        for process in expired:
            self._dispose(process)

    def _dispose(self, process: subprocess.Popen[bytes]) -> None:
        """End a process, unless it is that of a parent, and close its pipes."""
        if self._owner == os.getpid():
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
        work: Turns one request into its answer. What it raises ends as the reason of an :class:`IsolationError`.
        prepare: Imports what the work needs; its memory does not count.
    """
    requests, answers = os.dup(0), os.dup(1)
    # Nothing that work prints must come between the answers.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    # The parent asks the group of a terminal to stop; this process ends when the parent does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _be_the_first_to_go()
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
                document = json.dumps(_bounded(work, prepare, json.loads(line))).encode() + b"\n"
                while document:
                    document = document[os.write(answers, document) :]


def _bounded(
    work: Callable[[dict[str, Any]], dict[str, Any]],
    prepare: Callable[[dict[str, Any]], None],
    request: dict[str, Any],
) -> dict[str, Any]:
    # The parent kills what takes longer. Where the parent is gone, the alarm ends the process.
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + 5)
    try:
        prepare(request["work"])
        with _limited_memory(request["memory_bytes"]):
            return {"result": work(request["work"])}
    except MemoryError:
        return {"failed": f"it takes more than {request['memory_bytes']} bytes of memory"}
    except Exception as error:
        return {"failed": f"it fails with {type(error).__name__}: {' '.join(str(error).split())}"}
    finally:
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error is a failed allocation, for which ONNX Runtime has no class of its own."""
    text = str(error)
    return isinstance(error, MemoryError) or "bad_alloc" in text or "Failed to allocate memory" in text


@contextmanager
def _limited_memory(size: int) -> Iterator[None]:
    """Let the process grow by so many bytes of address space; as it likes where the system has no such limit."""
    try:
        import resource

        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError):
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    limits = [limit for limit in before if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([pages * resource.getpagesize() + size, *limits]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _be_the_first_to_go() -> None:
    """Ask the kernel to end this process, not the server, where memory runs out."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write("1000")


def _is_ready(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process without work takes more; its output is readable only where it has ended."""
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
        return None
    answer = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not answer.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise TimeoutError
            received = process.stdout.read(2**16)
            if not received:
                return None
            answer += received
            if len(answer) > _MAX_ANSWER_BYTES:
                raise IsolationError("it says more than it may")
    return answer


def _end(code: int) -> str:
    """Return how a process ended, from its exit code."""
    if code >= 0:
        return f"the process ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    # The kernel sends it where memory runs out.
    reason = ", as where memory runs out" if name == "SIGKILL" else ""
    return f"the process was ended by {name}{reason}"
