"""Client of the stablernn server, blocking and for asyncio: classify, forecast, infer, and streams that reconnect.

>>> from stablernn_client import Client
>>> with Client("http://127.0.0.1:8080") as client:  # doctest: +SKIP
...     [result] = client.classify("digits", [0, 0, 5, 13, 9, 1, 0, 0])
...     print(result.label)

It imports nothing of the server; its only dependencies are numpy, httpx, websockets and orjson.
"""

from __future__ import annotations

from stablernn_client.client import AsyncClient, AsyncStream, AsyncStreams, Client, Stream, Streams
from stablernn_client.errors import (
    BadRequest,
    Busy,
    ClientError,
    Conflict,
    ConnectionFailed,
    ConnectionLost,
    Deadline,
    Forbidden,
    NotFound,
    ProtocolError,
    ServerFault,
    StreamLost,
    Timeout,
    TooLarge,
    Unauthorized,
)
from stablernn_client.frames import StreamInfo
from stablernn_client.results import Classification, Forecast, StepResult, StepsResult

__all__ = [
    "AsyncClient",
    "AsyncStream",
    "AsyncStreams",
    "BadRequest",
    "Busy",
    "Classification",
    "Client",
    "ClientError",
    "Conflict",
    "ConnectionFailed",
    "ConnectionLost",
    "Deadline",
    "Forbidden",
    "Forecast",
    "NotFound",
    "ProtocolError",
    "ServerFault",
    "StepResult",
    "StepsResult",
    "Stream",
    "StreamInfo",
    "StreamLost",
    "Streams",
    "Timeout",
    "TooLarge",
    "Unauthorized",
]
