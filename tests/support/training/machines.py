"""Processes that take themselves for different machines with one shared folder.

As a script: ``machines.py NAME jobs FOLDER COUNT SECONDS PROCESSES`` runs jobs of :mod:`process_jobs`,
``NAME reproduce FOLDER`` makes a small table, and ``NAME cli WORD...`` is a command line.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HEARTBEAT = 0.3
STALE = 6 * HEARTBEAT


class Machine:
    """A process of this script.

    Args:
        name: Name of the machine; None for processes of this machine.
        words: The other arguments.
    """

    def __init__(self, name: str | None, *words: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, name or "", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "STABLERNN_HEARTBEAT_SECONDS": str(HEARTBEAT)},
        )
        self.pid = self._process.pid

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self) -> str:
        """Return what it has printed, once it has ended without an error."""
        printed, _ = self._process.communicate(timeout=300)
        assert self._process.returncode == 0, printed
        return printed

    def end(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.closed:
            self._process.kill()
            self._process.communicate()


@contextmanager
def machines() -> Iterator[list[Machine]]:
    """Give a list for machines, which end with the block."""
    started: list[Machine] = []
    try:
        yield started
    finally:
        for machine in started:
            machine.end()


def stop_until_lost(machine: Machine, lock: Path) -> None:
    """Suspend a machine until another one has taken its lock."""
    machine.signal(signal.SIGSTOP)
    end = time.monotonic() + 240
    while lock.exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def main(name: str, action: str, *words: str) -> None:
    from stablernn.training import jobs

    if name:
        jobs._machine = lambda: name  # type: ignore[assignment]
    if action == "jobs":
        run_light_jobs(Path(words[0]), int(words[1]), float(words[2]), int(words[3]))
    elif action == "reproduce":
        reproduce_small_table(Path(words[0]))
    else:
        run_command_line(words)


def run_command_line(words: tuple[str, ...]) -> None:
    from stablernn.compare import run_comparison
    from stablernn_cli.main import main

    # It exports a model, which takes longer than the small trainings do.
    run_comparison.step_milliseconds = lambda model: 1.0
    sys.argv[1:] = words
    main()


def run_light_jobs(folder: Path, count: int, seconds: float, processes: int) -> None:
    from functools import partial

    from process_jobs import write_owner
    from stablernn.training.jobs import Job, JobLocks, run_jobs

    paths = [folder / str(number) for number in range(count)]
    jobs = [
        Job(path.name, write_owner, (path, folder / "log", seconds), key=path.name, is_done=path.is_file)
        for path in paths
    ]
    # So that no machine is through before the other one has begun.
    (folder / f"ready-{os.getpid()}").touch()
    while len(list(folder.glob("ready-*"))) < 2:
        time.sleep(0.01)
    show = partial(print, flush=True)
    run_jobs(jobs, processes, JobLocks(folder / ".locks"), lambda job: show(f"done {job.name}"), show)


def reproduce_small_table(folder: Path) -> None:
    import pytest

    from reproduce_helpers import on_digits
    from stablernn_papers.reproduction import reproduce
    from stablernn_papers.table import FULL

    with pytest.MonkeyPatch.context() as patch:
        on_digits(patch, "spectra", ("lipschitz-0.75", "lstm"), epochs=4)
        reproduce("spectra", FULL, folder, report=lambda sentence: print(sentence, flush=True))


if __name__ == "__main__":
    main(*sys.argv[1:])
