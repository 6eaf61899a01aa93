"""Reading and writing of large bodies on a thread, so that the event loop can go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

OFFLOAD_BYTES = 64 * 2**10
"""Bodies above it are read and written on a thread: on the event loop they would make every other request wait."""


async def run_in_thread_if_large(size: int, function: Callable[[], T]) -> T:
    """Return ``function()``, called at once if it handles at most :data:`OFFLOAD_BYTES`, else on a thread.

    Args:
        size: Bytes that it reads or writes.
        function: The work; must be safe to run on another thread.
    """
    return function() if size <= OFFLOAD_BYTES else await asyncio.to_thread(function)
