"""Where the reading and writing of large bodies happens: on a thread, so that the event loop can go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

OFFLOAD_BYTES = 64 * 2**10
"""Bodies above it are read and written on a thread: on the event loop they would make every other request wait."""


async def offload(size: int, function: Callable[[], T]) -> T:
    """``function`` at once where it reads or writes ``size`` bytes that are few, else on a thread."""
    return function() if size <= OFFLOAD_BYTES else await asyncio.to_thread(function)
