"""`stablernn serve` as a process of its own, for tests of what only a process has: signals, workers, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class ServeProcess:
    """A running server.

    Attributes:
        process: The command.
        ready: The document that it printed.
        log: Its stderr.
    """

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    log: Path

    @property
    def url(self) -> str:
        return str(self.ready["url"])

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def read_log(self) -> str:
        """Return what the process has written to stderr."""
        return self.log.read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; its exit code."""
        self.process.send_signal(number)
        return self.process.wait(30)

    def kill(self) -> None:
        """End it and its workers, whatever they do."""
        end_all(self.process)
        # It may have ended in the test already.
        if self.process.stdout is not None and not self.process.stdout.closed:
            self.process.communicate()


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "stablernn_cli", "serve", "--json", "--port", "0", *map(str, words)]


def start_serve(
    registry: Path, log: Path, *words: object, environment: Mapping[str, str] | None = None
) -> ServeProcess:
    """The server, once it is ready; its last words if it does not come to that."""
    with log.open("w") as stderr:
        process = subprocess.Popen(
            command(*words),
            # What a killed server leaves behind goes with the folders of the tests.
            env=os.environ | {"STABLERNN_REGISTRY": str(registry), "TMPDIR": str(log.parent), **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    text = ""
    # A server that hangs ends here, with its last words below.
    with giving_up(process):
        for line in process.stdout:
            text += line
            if line == "}\n":
                return ServeProcess(process, json.loads(text), log)
    raise AssertionError(f"the server ended with {process.wait(30)}: {log.read_text()[-2000:]}")


def end_all(process: subprocess.Popen[str]) -> None:
    """Kill a process that leads a session, and all that it has started there: also those that nobody knows of."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def giving_up(process: subprocess.Popen[str], seconds: float = 60) -> Iterator[None]:
    """Kill such a process if this block takes longer."""
    timer = threading.Timer(seconds, end_all, [process])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def failed_serve(
    registry: Path, *words: object, environment: Mapping[str, str] | None = None
) -> tuple[int, str, list[str]]:
    """Exit code, stdout, and the lines of stderr of a server that is not to come up."""
    result = subprocess.run(
        command(*words),
        env=os.environ | {"STABLERNN_REGISTRY": str(registry), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )
    return result.returncode, result.stdout, result.stderr.splitlines()


def until(condition: Callable[[], Any], seconds: float = 20, pause: float = 0.02) -> Any:
    """Return the first true value of ``condition``; fail if there is none in time."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(pause)


def is_alive(pid: int) -> bool:
    """Return True if there is such a process and it has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    """Processes that any thread of a process has started and not waited for."""
    lists = [tasks.read_text() for tasks in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for text in lists for child in text.split()]


def rss_mb(pid: int) -> float:
    """Resident memory, MB of 10^6 bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES / 1e6
