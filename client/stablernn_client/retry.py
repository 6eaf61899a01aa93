"""Retry policy: how long a call may take in total, and how long it waits between attempts."""

from __future__ import annotations

import random
import time

from stablernn_client.errors import Busy, ClientError

MIN_BACKOFF_SECONDS = 0.05
MAX_BACKOFF_SECONDS = 2.0
_LEAST_SHARE = 0.1
"""Share of the timeout that is left to an attempt, up to a tenth of a second."""


class RetryPolicy:
    """The deadline of one call, and exponential backoff with jitter between its attempts.

    Args:
        timeout: Seconds for the whole call.
    """

    def __init__(self, timeout: float) -> None:
        self._deadline = time.monotonic() + timeout
        self._least_attempt = min(0.1, _LEAST_SHARE * timeout)
        self._backoff = MIN_BACKOFF_SECONDS

    @property
    def seconds_left(self) -> float:
        """Time left until the deadline, at least 1 ms, so that a reply that has already arrived is still read."""
        return max(self._deadline - time.monotonic(), 0.001)

    def next_delay(self, error: ClientError) -> float:
        """Return the seconds to wait before the next attempt: as the server asks, else twice as long each time.

        Raises:
            ClientError: ``error`` itself, if the next attempt would have no time before the deadline.
        """
        requested = error.retry_after if isinstance(error, Busy) else None
        # Jitter: clients that failed together must not come back together.
        seconds = random.uniform(0.5, 1.0) * self._backoff if requested is None else requested
        self._backoff = min(2 * self._backoff, MAX_BACKOFF_SECONDS)
        # An attempt that is cut off at once would end the call with a less telling error.
        if time.monotonic() + seconds + self._least_attempt >= self._deadline:
            raise error
        return seconds
