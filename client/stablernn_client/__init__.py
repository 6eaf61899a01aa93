"""A client of the service, for threads and for asyncio: classify, forecast, infer, and streams that survive restarts.

>>> from stablernn_client import Client
>>> with Client("http://127.0.0.1:8080") as client:  # doctest: +SKIP
...     [answer] = client.classify("digits", [0, 0, 5, 13, 9, 1, 0, 0])
...     print(answer.label)

None of the server's own parts is imported: numpy, httpx, websockets and orjson are enough.
"""

from __future__ import annotations

from stablernn_client.blocking import Client, Stream, Streams
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
from stablernn_client.results import Classification, Forecast, StepResult, StepsResult
from stablernn_client.stream_info import StreamInfo
from stablernn_client.tasks import AsyncClient, AsyncStream, AsyncStreams

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
