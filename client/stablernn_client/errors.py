"""What the client raises, and how an answer of the server becomes one of these.

ClientError
├── ConnectionFailed   (ConnectionError)   the server cannot be reached
│   └── ConnectionLost                     a connection ended before the answer was there
├── Timeout            (TimeoutError)      no answer within the client's timeout
├── ProtocolError      (RuntimeError)      an answer that is not one of this service
├── StreamLost         (RuntimeError)      a stream that cannot be restored after a lost connection
├── BadRequest         (ValueError)        400, or found wrong before it was sent
├── Unauthorized       (PermissionError)   401: no token, or one that the server does not know
├── Forbidden          (PermissionError)   403: the token's role does not suffice
├── NotFound           (LookupError)       404: no such model, version or path
├── Conflict           (RuntimeError)      409: the request does not fit the state that it meets
├── TooLarge           (ValueError)        413: above a limit of one request
├── Busy               (RuntimeError)      429 or 503: full, starting or shutting down; ``retry_after`` says when to try
├── Deadline           (TimeoutError)      408 or 504: the server gave up on the request
└── ServerFault        (RuntimeError)      500: a fault of the server
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson


class ClientError(Exception):
    """Base of everything that the client raises on purpose.

    Attributes:
        status: HTTP status of the answer; None where there was none.
        code: The server's code word, such as ``"bad_input"``; None where there was none.
    """

    def __init__(self, sentence: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.code = code


class ConnectionFailed(ClientError, ConnectionError):
    pass


class ConnectionLost(ConnectionFailed):
    pass


class Timeout(ClientError, TimeoutError):
    pass


class ProtocolError(ClientError, RuntimeError):
    pass


class StreamLost(ClientError, RuntimeError):
    pass


class BadRequest(ClientError, ValueError):
    pass


class Unauthorized(ClientError, PermissionError):
    pass


class Forbidden(ClientError, PermissionError):
    pass


class NotFound(ClientError, LookupError):
    pass


class Conflict(ClientError, RuntimeError):
    pass


class TooLarge(ClientError, ValueError):
    pass


class Busy(ClientError, RuntimeError):
    """The server takes no more at the moment.

    Attributes:
        retry_after: Seconds after which the server asks to be tried again; None where it did not say.
    """

    def __init__(
        self, sentence: str, *, status: int | None = None, code: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(sentence, status=status, code=code)
        self.retry_after = retry_after


class Deadline(ClientError, TimeoutError):
    pass


class ServerFault(ClientError, RuntimeError):
    pass


_OF_STATUS: dict[int, type[ClientError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    408: Deadline,
    409: Conflict,
    413: TooLarge,
    504: Deadline,
}


def error_of(status: int, sentence: str, code: str | None, retry_after: str | None = None) -> ClientError:
    """The exception for an answer that is an error.

    Args:
        status: HTTP status, or the ``status`` of an error on a socket.
        sentence: The server's sentence.
        code: The server's code word.
        retry_after: The header ``Retry-After``.
    """
    if status in (429, 503):
        return Busy(sentence, status=status, code=code, retry_after=_seconds(retry_after))
    kind = _OF_STATUS.get(status, BadRequest if status < 500 else ServerFault)
    return kind(sentence, status=status, code=code)


def error_of_answer(status: int, headers: Mapping[str, str], content: bytes) -> ClientError:
    """The exception for an HTTP answer that is not a success."""
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("error"), str):
        sentence = f"The server answered with status {status} and no error of this service; check the address."
        if status in (429, 503):
            return error_of(status, sentence, None, headers.get("retry-after"))
        return ProtocolError(sentence, status=status)
    return error_of(status, body["error"], body.get("code"), headers.get("retry-after"))


def error_of_frame(frame: Mapping[str, Any]) -> ClientError:
    """The exception for an error that came over a socket as ``{"error", "code", "status"}``."""
    status = frame.get("status")
    if type(status) is not int:
        return ProtocolError(f"The server sent an error without a status: {frame['error']}")
    retry_after = frame.get("retry_after")
    return error_of(status, str(frame["error"]), frame.get("code"), None if retry_after is None else str(retry_after))


def _seconds(text: str | None) -> float | None:
    """A number of seconds; the header's other form, a date, is one that this service never sends."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
