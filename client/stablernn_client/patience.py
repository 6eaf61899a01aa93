"""How long a call goes on, and how long it waits between its attempts."""

from __future__ import annotations

import random
import time

from stablernn_client.errors import Busy, ClientError

SHORTEST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0


class Patience:
    """How long one call still goes on, and how long it pauses before the next attempt.

    Args:
        seconds: For the whole call.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds
        self._pause = SHORTEST_PAUSE_SECONDS

    @property
    def left(self) -> float:
        """Seconds, never quite 0: what is there already may still be taken."""
        return max(self._end - time.monotonic(), 0.001)

    def pause(self, error: ClientError) -> float:
        """Seconds to wait before the next attempt: what the server asks for, else longer each time.

        Raises:
            ClientError: ``error`` itself, if there is not that much time left.
        """
        asked = error.retry_after if isinstance(error, Busy) else None
        # Clients that failed together must not come back together.
        seconds = random.uniform(0.5, 1.0) * self._pause if asked is None else asked
        self._pause = min(2 * self._pause, LONGEST_PAUSE_SECONDS)
        if time.monotonic() + seconds >= self._end:
            raise error
        return seconds
