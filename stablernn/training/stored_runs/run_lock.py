"""A mark on the directory of a run that is being trained: a lock, which ends with its process however that ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where nothing is marked.
    fcntl = None  # type: ignore[assignment]


@contextmanager
def mark_running(path: Path) -> Iterator[None]:
    """Mark a run directory for :func:`is_running` inside the ``with`` block."""
    if fcntl is None:
        yield
        return
    # The directory itself, and no file in it: resuming replaces the files, and a lock stays with the replaced one.
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Some network file systems have no locks. The run then counts as stopped until it is done.
        with suppress(OSError):
            # Shared: training waits for no other training, and for `is_running` microseconds at most.
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def is_running(path: Path) -> bool:
    """Return True if a process on this machine trains the run; False also where the file system has no locks."""
    if fcntl is None:
        return False
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
