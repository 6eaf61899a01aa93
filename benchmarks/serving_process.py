"""Server processes on Linux: started, waited for, watched and ended with everything that they started."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving_load import split

ROOT = Path(__file__).parents[1]
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Server:
    """A program that serves HTTP on :attr:`port`, in a session of its own.

    Attributes:
        port: On 127.0.0.1; the two above it are free as well when it starts.
        ready_seconds: From the start of the process to the first 200 of ``ready``.
    """

    def __init__(
        self, words: list[str], ready: str, log: Path, environment: dict[str, str], timeout: float = 120, port: int = 0
    ) -> None:
        self.port = port or free_port()
        self.log = log
        words = [word.replace("{port}", str(self.port)) for word in words]
        began = time.perf_counter()
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                words,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        self._wait(ready, began + timeout)
        self.ready_seconds = time.perf_counter() - began

    def _wait(self, ready: str, deadline: float) -> None:
        while get(self.port, ready) != 200:
            if self.process.poll() is not None or time.perf_counter() > deadline:
                self.stop()
                raise ServerFailed(f"did not start: {last_words(self.log)}")
            time.sleep(0.01)

    @property
    def rss_mb(self) -> float:
        """Resident memory of the first process, MB of 10^6 bytes."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * PAGE_BYTES / 1e6

    def kill(self) -> None:
        """End the process at once, without a chance to tidy up."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, timeout: float = 15) -> None:
        """End the process in order, and whatever is left of its session afterwards."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
        self.kill()
        for pid in session_members(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class ServerFailed(RuntimeError):
    """A server that did not start, with the last words of its log."""


def stablernn(
    scratch: Path, registry: Path, *words: str, port: int = 0, environment: dict[str, str] | None = None
) -> Server:
    """``stablernn serve`` on a free port, from this checkout."""
    folders = [ROOT, *(ROOT / name for name in ("cli", "client", "registry", "runtime", "server"))]
    variables = {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "STABLERNN_REGISTRY": str(registry),
        **(environment or {}),
    }
    command = [sys.executable, "-m", "stablernn_cli", "--quiet", "serve", "--device", "cpu", "--port", "{port}", *words]
    return Server(command, "/v2/health/ready", scratch / "stablernn.log", variables, port=port)


def get(port: int, path: str, timeout: float = 2) -> int | None:
    """Status of a GET; None when there is no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def exchange(port: int, request: bytes, timeout: float = 10) -> bytes | None:
    """What a new connection brings back for one request; None when nothing does, or not in time.

    Answers are read to their end as HTTP states it, not to the end of the connection.
    """
    data = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout) as sock:
            sock.sendall(request)
            while split(data) is None:
                part = sock.recv(1 << 16)
                if not part:
                    return data or None
                data += part
    except OSError:
        return None
    return data


def free_port() -> int:
    """A port that is free with the two above it, which some servers take for gRPC and metrics.

    Not one of those that the system gives to connections: Ray opens so many that one may have it before it is bound.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        if all(_is_free(port + more) for more in range(3)):
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def session_members(leader: int) -> list[int]:
    """Processes of the session that ``leader`` began: also those that left its process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader:
                    found.append(int(entry.name))
    return found


def last_words(log: Path) -> str:
    """The end of a log on one line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-2:])[-300:]


@contextlib.contextmanager
def running(server: Server) -> Iterator[Server]:
    """Ends the server at the end of the block."""
    try:
        yield server
    finally:
        server.stop()


class Memory:
    """Resident memory of a server, ten times a second, while the block runs."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.samples: list[tuple[float, float]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._end.wait(0.1):
            with contextlib.suppress(OSError):
                self.samples.append((time.perf_counter(), self.server.rss_mb))

    def facts(self) -> dict[str, float]:
        """First, largest and last MB; the last quarter against the second; the last half's slope (least squares)."""
        half = self.samples[len(self.samples) // 2 :]
        times = [at for at, _ in half]
        middle = sum(times) / len(times)
        level = sum(size for _, size in half) / len(half)
        spread = sum((at - middle) ** 2 for at in times)
        slope = sum((at - middle) * (size - level) for at, size in half) / spread if spread else 0.0
        sizes = [size for _, size in self.samples]
        quarter = max(len(sizes) // 4, 1)
        grown = sum(sizes[-quarter:]) / quarter - sum(sizes[quarter : 2 * quarter]) / quarter
        return {
            "first_mb": sizes[0],
            "max_mb": max(sizes),
            "last_mb": sizes[-1],
            "grown_mb": grown,
            "slope_mb_per_minute": 60 * slope,
        }
