"""Jobs that tests have done in other processes, which import this module; it imports little for that reason."""

from __future__ import annotations

import logging
import os
import signal
import time
from pathlib import Path

from stablernn.atomic_files import write_json
from stablernn.errors import ConfigError


def leave_a_file(path: Path) -> None:
    path.write_text("done", encoding="utf-8")


def refuse(path: Path) -> None:
    raise ConfigError(f"No {path.name} today.")


def log_a_stage(path: Path) -> None:
    logging.getLogger("stablernn.progress").info("Stage of %s%% ...", 100)
    leave_a_file(path)


def read_data(path: Path) -> None:
    source = path.name[0]
    logging.getLogger("stablernn.progress").info("Reading %s ...", source, extra={"source": source})
    leave_a_file(path)


def die(path: Path) -> None:
    signal.raise_signal(signal.SIGKILL)


class Unwinding:
    """Waits in its destructor, where an exception is ignored, until it is interrupted or half a minute is over."""

    def __init__(self, begun: Path) -> None:
        self.begun = begun

    def __del__(self) -> None:
        self.begun.write_text("begun", encoding="utf-8")
        time.sleep(30)


def lose_the_exit(path: Path) -> None:
    Unwinding(path.with_name("begun"))
    leave_a_file(path)


def refuse_after(path: Path) -> None:
    wait_for(path, path.with_name("begun"))
    raise ConfigError(f"No {path.name} today.")


def wait_long(path: Path) -> None:
    path.write_text("begun", encoding="utf-8")
    time.sleep(600)


def ctrl_c(path: Path) -> None:
    signal.raise_signal(signal.SIGINT)


def write_owner(path: Path, log: Path, seconds: float) -> None:
    """Note the beginning in a log, work for some seconds, and write this process as the result."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{path.name} {os.getpid()}\n")
    time.sleep(seconds)
    write_json(path, os.getpid())
    with log.open("a", encoding="utf-8") as file:
        file.write(f"{path.name} {os.getpid()} done\n")


def wait_for(path: Path, other: Path) -> None:
    """Leave a file when there is another one, or after a minute."""
    end = time.monotonic() + 60
    while not other.exists() and time.monotonic() < end:
        time.sleep(0.02)
    leave_a_file(path)
