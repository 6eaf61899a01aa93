"""A process of an engine that tests kill, and that a supervisor starts again after a known error of the engine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

MAX_RESTARTS = 3
# Of Quix Streams 3.28.1, after its state folder was deleted: a rebalance during the recovery takes the changelog topic
# out of a table, from which the recovery then takes it, too.
QUIX_RECOVERY_ERROR = re.compile(
    r"""^  File "[^"\n]*/quixstreams/[^"\n]*", line \d+, in .*\n(?:    .*\n)+KeyError: 'changelog__[^'\n]*'$""",
    re.MULTILINE,
)


class SupervisedEngine:
    """A process of an engine, in a process group of its own.

    Args:
        command: The command.
        log: File that its output is appended to.
        environment: Its environment variables.
        folder: Its working directory; None for that of this process.
        known_error: Pattern of the end of a traceback after which it is started again; None for none.

    Attributes:
        restarts: How often it was started again, since it ended by the known error.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        folder: Path | None = None,
        known_error: re.Pattern[str] | None = None,
    ) -> None:
        self.restarts = 0
        self._command = command
        self._log = log
        self._environment = environment
        self._folder = folder
        self._known_error = known_error

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self._folder,
            )

    def check(self) -> None:
        """Start the process again if it ended by the known error; fail if it ended in any other way, or too often."""
        status = self._process.poll()
        if status is None:
            return
        output = self._log.read_bytes()[self._log_start :].decode(errors="replace")
        # Of errors that were raised while others were handled, the last one ended the process.
        _, begin, traceback = output.rpartition("Traceback (most recent call last):\n")
        is_known = status == 1 and begin and self._known_error is not None and self._known_error.search(traceback)
        end = f"status {status}, after {self.restarts} restarts"
        assert is_known, f"The engine ended by itself with {end}:\n{output[-2000:]}"
        assert self.restarts < MAX_RESTARTS, f"The engine ended by its known error again, {end}:\n{output[-2000:]}"
        self.kill()
        self.restarts += 1
        self.start()

    def kill(self) -> None:
        """Kill the process and those that it started, which are in its group."""
        # A process that ended by itself may have left none behind.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
