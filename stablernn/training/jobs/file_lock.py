"""Locks of open files by the operating system, which end with their process."""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows, where a dead owner is known by its missing heartbeats alone.
    fcntl = None  # type: ignore[assignment]


def lock_file(descriptor: int) -> bool:
    """Lock an open file for this process until it closes it or ends; return False if that is not possible."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_unlocked(path: Path) -> bool:
    """Return True if no process of this machine has locked a file."""
    try:
        # Network file systems lock exclusively only what is open for writing.
        descriptor = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return lock_file(descriptor)
    finally:
        os.close(descriptor)
