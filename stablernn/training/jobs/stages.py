"""Stages of jobs, as the library logs them to ``stablernn.progress``, with the name of the job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PROGRESS = logging.getLogger("stablernn.progress")


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
    """A handler that passes records to a function."""

    def __init__(self, send: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(record)


def send_stages(send: Callable[[logging.LogRecord], None]) -> None:
    """Send the stages of this process from now on to another one, for :func:`show_stage`."""
    _PROGRESS.addHandler(_Sender(send))
    _PROGRESS.setLevel(logging.INFO)
    _PROGRESS.propagate = False


def show_stage(record: logging.LogRecord) -> None:
    """Log a stage of another process as one of this process."""
    if _PROGRESS.isEnabledFor(record.levelno):
        _PROGRESS.handle(record)
