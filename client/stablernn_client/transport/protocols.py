"""The I/O that a client needs, as protocols, and the translation of errors of the libraries that do it.

Everything above this level is written once, as coroutines over :class:`Transport`. Only the I/O itself exists twice,
in ``sync_transport.py`` and ``async_transport.py``.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import httpx
import websockets.exceptions

from stablernn_client.errors import (
    ConnectionFailed,
    ConnectionLost,
    ProtocolError,
    Timeout,
    error_from_reply,
)


@dataclass(frozen=True)
class HttpReply:
    """An HTTP response.

    Attributes:
        status: Status code.
        headers: Headers by name in lower case.
        content: Body.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes

    @classmethod
    def of_httpx(cls, response: httpx.Response) -> HttpReply:
        return cls(response.status_code, response.headers, response.content)


class WebSocket(Protocol):
    """An open WebSocket; ``send`` and ``receive`` raise ConnectionLost once it is closed."""

    async def send(self, data: str | bytes) -> None: ...

    async def receive(self, timeout: float) -> str | bytes:
        """Return the next message.

        Raises:
            Timeout: If there is none within ``timeout`` seconds.
        """
        ...

    async def close(self) -> None: ...


class Transport(Protocol):
    """Connections to one server."""

    async def request(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], timeout: float
    ) -> HttpReply:
        """Send one HTTP request and return the reply.

        Raises:
            ConnectionFailed: If there is no connection; ConnectionLost if it closed before the reply.
            Timeout: If there is no reply within ``timeout`` seconds.
        """
        ...

    async def open_websocket(self, path: str, timeout: float) -> WebSocket:
        """Open a WebSocket.

        Raises:
            ConnectionFailed: As :meth:`request`.
            Timeout: As :meth:`request`.
            ClientError: If the server refuses it.
        """
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


@contextmanager
def translate_errors(url: str, timeout: float) -> Iterator[None]:
    """Raise errors of httpx, websockets and the operating system as those of the client."""
    # The order matters: Python's TimeoutError is an OSError, and the last clause has the base classes.
    try:
        yield
    except websockets.exceptions.InvalidStatus as error:
        # The server refused the upgrade with an ordinary HTTP reply.
        response = error.response
        headers = {name.lower(): value for name, value in response.headers.raw_items()}
        raise error_from_reply(response.status_code, headers, bytes(response.body or b"")) from error
    except (httpx.TimeoutException, TimeoutError) as error:
        raise Timeout(f"No reply from {url} within {timeout:.3g} s; try again, or with a longer timeout.") from error
    except (httpx.ConnectError, OSError) as error:
        verification_error = _find_verification_error(error)
        if verification_error is not None:
            raise ConnectionFailed(
                f"The certificate of {url} is not trusted ({verification_error.verify_message}); pass an ssl_context "
                "that trusts it."
            ) from error
        raise ConnectionFailed(
            f"Cannot connect to {url} ({error}); check the address and whether the server is running."
        ) from error
    except (httpx.TransportError, websockets.exceptions.ConnectionClosed) as error:
        raise connection_lost(url, error) from error
    except websockets.exceptions.InvalidMessage as error:
        # A server that is killed during the handshake leaves half a message.
        if isinstance(error.__cause__, EOFError):
            raise connection_lost(url, error) from error
        raise _unexpected_reply(url, error) from error
    except (httpx.HTTPError, websockets.exceptions.WebSocketException) as error:
        raise _unexpected_reply(url, error) from error


def connection_lost(url: str, error: Exception) -> ConnectionLost:
    return ConnectionLost(f"The connection to {url} was lost before the reply arrived ({error}).")


def _unexpected_reply(url: str, error: Exception) -> ProtocolError:
    return ProtocolError(f"{url} does not reply as this service does ({error}); check the address.")


def _find_verification_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return the failed verification of a certificate from the causes of an error, if there is one."""
    # httpx and httpcore wrap the error of the ssl module.
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error
