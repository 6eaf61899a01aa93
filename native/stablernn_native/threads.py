"""Calls of a kernel at a time, on the threads of torch where they can be used."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

MIN_THREAD_WORK = 10_000_000
"""Multiplications for which a thread is started: some two milliseconds, against 50 microseconds for the thread."""

_Part = TypeVar("_Part")
_TeamBody = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def run_parts(kernel: Callable[[_Part], int], parts: Sequence[_Part]) -> list[int]:
    """Call a kernel for each part, every part on a thread.

    The threads are those of torch's OpenMP runtime where it is GNU's and loaded: between two products they wait
    actively, so that other threads would have to share the processors with them. Elsewhere they are started for the
    call; a pool would not survive a fork.

    Args:
        kernel: Releases the GIL, and returns a status.
        parts: What it is called with.

    Returns:
        The status of each part, in order.

    Raises:
        RuntimeError: If a thread cannot be started; those that were have ended.
    """
    statuses = [0] * len(parts)
    waiting = iter(range(len(parts)))

    def work() -> None:
        # A team may have fewer threads than parts.
        for part in waiting:
            statuses[part] = kernel(parts[part])

    team = _openmp_team() if "torch" in sys.modules else None
    if team is not None:
        _run_on_team(team, work, len(parts))
        return statuses
    started: list[threading.Thread] = []
    try:
        for _ in parts[1:]:
            thread = threading.Thread(target=work)
            thread.start()
            started.append(thread)
        work()
    finally:
        # Also where a thread could not be started: the others still write into the arrays of the call.
        for thread in started:
            thread.join()
    return statuses


def _run_on_team(team: Callable[..., None], work: Callable[[], None], count: int) -> None:
    """Call a function on each thread of a team; an interrupt, which ctypes would drop, is raised after the call."""
    errors: list[BaseException] = []

    def body(_: int | None) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    team(_TeamBody(body), None, count, 0)
    if errors:
        raise errors[0]


@functools.cache
def _openmp_team() -> Callable[..., None] | None:
    """Return ``GOMP_parallel`` of the OpenMP runtime that the process has loaded, or None without one."""
    try:
        team = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    team.argtypes = [_TeamBody, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    team.restype = None
    return team
