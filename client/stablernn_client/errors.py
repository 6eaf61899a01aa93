"""Exceptions of the client, and the conversion of error replies into them.

ClientError
├── ConnectionFailed   (ConnectionError)   the server cannot be reached
│   └── ConnectionLost                     the connection closed before the reply arrived
├── Timeout            (TimeoutError)      no reply within the client's timeout
├── ProtocolError      (RuntimeError)      a reply that does not come from this service
├── StreamLost         (RuntimeError)      a stream that cannot be restored after a lost connection
├── BadRequest         (ValueError)        400, or rejected before it was sent
├── Unauthorized       (PermissionError)   401: no token, or one unknown to the server
├── Forbidden          (PermissionError)   403: the token's role does not suffice
├── NotFound           (LookupError)       404: no such model, version or path
├── Conflict           (RuntimeError)      409: the request conflicts with the current state
├── TooLarge           (ValueError)        413: the request exceeds a size limit
├── Busy               (RuntimeError)      429 or 503: overloaded, starting or shutting down; see ``retry_after``
├── Deadline           (TimeoutError)      408 or 504: the server gave up on the request
└── ServerFault        (RuntimeError)      500: a bug or failure in the server
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import orjson


class ClientError(Exception):
    """Base class of the client's exceptions.

    Attributes:
        status: HTTP status of the reply; None if there was no reply.
        code: Error code of the server, such as ``"bad_input"``; None if there was no reply.
    """

    def __init__(self, message: str, *, status: int | None = None, code: str | None = None) -> None:
        super().__init__(message)
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
    """The server accepts no more requests at the moment.

    Attributes:
        retry_after: Seconds after which the server asks for another attempt; None if it gave no number.
    """

    def __init__(
        self, message: str, *, status: int | None = None, code: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, status=status, code=code)
        self.retry_after = retry_after


class Deadline(ClientError, TimeoutError):
    pass


class ServerFault(ClientError, RuntimeError):
    pass


_CLASS_BY_STATUS: dict[int, type[ClientError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    408: Deadline,
    409: Conflict,
    413: TooLarge,
    504: Deadline,
}


def error_from_reply(status: int, headers: Mapping[str, str], content: bytes) -> ClientError:
    """Return the exception for an HTTP reply that is not a success.

    Args:
        status: HTTP status.
        headers: Headers by name in lower case.
        content: Body.
    """
    try:
        body = orjson.loads(content)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict) or not isinstance(body.get("error"), str):
        message = f"The server replied with status {status} and no error of this service; check the address."
        # A proxy in front of the service may be the one that is busy, and may also say when to retry.
        if status in (429, 503):
            return _error_for_status(status, message, None, headers.get("retry-after"))
        return ProtocolError(message, status=status)
    return _error_for_status(status, body["error"], body.get("code"), headers.get("retry-after"))


def error_from_message(message: Mapping[str, Any]) -> ClientError:
    """Return the exception for an error that came over a WebSocket as ``{"error", "code", "status"}``."""
    status = message.get("status")
    if type(status) is not int:
        return ProtocolError(f"The server sent an error without a status: {message['error']}")
    retry_after = message.get("retry_after")
    return _error_for_status(
        status, str(message["error"]), message.get("code"), None if retry_after is None else str(retry_after)
    )


def _error_for_status(status: int, message: str, code: str | None, retry_after: str | None) -> ClientError:
    if status in (429, 503):
        return Busy(message, status=status, code=code, retry_after=_parse_seconds(retry_after))
    error_class = _CLASS_BY_STATUS.get(status, BadRequest if status < 500 else ServerFault)
    return error_class(message, status=status, code=code)


def _parse_seconds(text: str | None) -> float | None:
    """Return the seconds of ``Retry-After``, or None if there are none.

    The header may also be a date, which this service never sends.
    """
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
