"""What the clients for threads and for asyncio have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence

from stablernn_client.calls import Calls
from stablernn_client.channel import Channel
from stablernn_client.errors import BadRequest
from stablernn_client.series import Constants
from stablernn_client.stream_info import StreamInfo
from stablernn_client.transport import Transport


class BaseClient:
    """One server.

    Args:
        transport: How to reach it.
        timeout: Seconds that one call may take, with all its attempts.

    Raises:
        BadRequest: If the timeout cannot be waited for.
    """

    def __init__(self, transport: Transport, timeout: float) -> None:
        if not 0 < timeout < math.inf:
            raise BadRequest(f"timeout must be a finite number of seconds above 0, got {timeout}.")
        self._transport = transport
        self._timeout = timeout
        self._calls = Calls(transport, timeout)

    def _channel(
        self, model: str, count: int, tokens: Sequence[str] | None, static: Constants | None, token_every: int
    ) -> Channel:
        return Channel(
            self._transport,
            model,
            count=count,
            tokens=tokens,
            static=static,
            timeout=self._timeout,
            token_every=token_every,
        )


class BaseStream:
    """One or several streams."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    @property
    def about(self) -> StreamInfo:
        """Model, version, shape of a sample and outputs.

        Raises:
            ClientError: If the stream was never open.
        """
        return self._channel.info
