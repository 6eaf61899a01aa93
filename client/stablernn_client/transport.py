"""The I/O of a client: HTTP and WebSockets, awaited or blocking, and how often a call tries again.

Everything above this level is written once, as coroutines over a :data:`Transport`. Those of the blocking transport are
coroutines only in form: they block, and never suspend. :func:`run` therefore drives any coroutine over it to its end in
one step, without an event loop.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit

import httpx
import websockets.asyncio.client
import websockets.exceptions
import websockets.sync.client

from stablernn_client.errors import (
    BadRequest,
    Busy,
    ClientError,
    ConnectionFailed,
    ConnectionLost,
    ProtocolError,
    Timeout,
    error_from_reply,
)

Result = TypeVar("Result")

CLOSE_TIMEOUT_SECONDS = 2.0
"""Maximum wait for the server's side of the WebSocket closing handshake."""
MIN_BACKOFF_SECONDS = 0.05
MAX_BACKOFF_SECONDS = 2.0
_LEAST_SHARE = 0.1
"""Share of the timeout that is left to an attempt, up to a tenth of a second."""


@dataclass(frozen=True)
class Address:
    """URL of a server, and the token and TLS context used for it.

    Attributes:
        url: ``http://HOST:PORT`` or ``https://...``, without a trailing slash.
        token: Bearer token, or None.
        ssl_context: Verifies the server's certificate; None for the default certificate authorities.
    """

    url: str
    token: str | None
    ssl_context: ssl.SSLContext | None

    @classmethod
    def parse(cls, url: str, token: str | None, ssl_context: ssl.SSLContext | None) -> Address:
        """Check the arguments of a client.

        Raises:
            BadRequest: If the URL is not an HTTP address, or the token cannot be sent in a header.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise BadRequest(f"The address must look like http://127.0.0.1:8080, got '{url}'.")
        if token is not None and (not token.isascii() or not token.isprintable() or not token or " " in token):
            # The message must not show the token, which is a secret.
            raise BadRequest("The token must be one word of printable ASCII characters, got something else.")
        return cls(url.rstrip("/"), token, ssl_context)

    def http_options(self) -> dict[str, Any]:
        """Return the arguments shared by ``httpx.Client`` and ``httpx.AsyncClient``."""
        verify = True if self.ssl_context is None else self.ssl_context
        return {"base_url": self.url, "headers": self._headers, "verify": verify}

    def websocket_options(self, path: str, timeout: float) -> dict[str, Any]:
        """Return the arguments shared by both ``connect`` functions of websockets."""
        options: dict[str, Any] = {
            # http -> ws, https -> wss
            "uri": "ws" + self.url.removeprefix("http") + path,
            "additional_headers": self._headers,
            "open_timeout": timeout,
            "close_timeout": CLOSE_TIMEOUT_SECONDS,
            # Raw floats do not shrink: compression would only cost time.
            "compression": None,
            # The outputs of many streams exceed the default limit of 1 MiB.
            "max_size": None,
        }
        # Left out rather than None: the `connect` for asyncio rejects ssl=None with a wss:// URL.
        return options if self.ssl_context is None else {**options, "ssl": self.ssl_context}

    @property
    def _headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


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


class AsyncTransport:
    """HTTP and WebSocket connections of the running event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._http = httpx.AsyncClient(**address.http_options())

    async def request(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], timeout: float
    ) -> httpx.Response:
        """Send one HTTP request and return the reply.

        Raises:
            ConnectionFailed: If there is no connection; ConnectionLost if it closed before the reply.
            Timeout: If there is no reply within ``timeout`` seconds.
        """
        with _translate_errors(self._address.url, timeout):
            return await self._http.request(method, path, content=content, headers=headers, timeout=timeout)

    async def open_websocket(self, path: str, timeout: float) -> WebSocket:
        """Open a WebSocket.

        Raises:
            ConnectionFailed: As :meth:`request`.
            Timeout: As :meth:`request`.
            ClientError: If the server refuses it.
        """
        return await AsyncWebSocket.open(self._address, path, timeout)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._http.aclose()


class AsyncWebSocket:
    """A WebSocket of the running event loop; ``send`` and ``receive`` raise ConnectionLost once it is closed."""

    def __init__(self, connection: websockets.asyncio.client.ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url

    @classmethod
    async def open(cls, address: Address, path: str, timeout: float) -> Self:
        """Open a WebSocket; raises as :meth:`.AsyncTransport.open_websocket`."""
        with _translate_errors(address.url, timeout):
            connect = websockets.asyncio.client.connect(**address.websocket_options(path, timeout))
            # Entered and never exited: `close` closes the connection.
            return cls(await connect.__aenter__(), address.url)

    async def send(self, data: str | bytes) -> None:
        with _translate_errors(self._url, 0):
            await self._connection.send(data)

    async def receive(self, timeout: float) -> str | bytes:
        """Return the next message.

        Raises:
            Timeout: If there is none within ``timeout`` seconds.
        """
        with _translate_errors(self._url, timeout):
            async with asyncio.timeout(timeout):
                return await self._connection.recv()

    async def close(self) -> None:
        await self._connection.close()


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that awaits nothing but a :class:`SyncTransport`."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    raise AssertionError("a coroutine of the blocking client was suspended")


class SyncTransport:
    """Blocking HTTP and WebSocket connections; the methods are those of :class:`AsyncTransport`."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._http = httpx.Client(**address.http_options())

    async def request(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], timeout: float
    ) -> httpx.Response:
        with _translate_errors(self._address.url, timeout):
            return self._http.request(method, path, content=content, headers=headers, timeout=timeout)

    async def open_websocket(self, path: str, timeout: float) -> WebSocket:
        address = self._address
        if address.url.startswith("https:"):
            return BackgroundWebSocket(address, path, timeout)
        with _translate_errors(address.url, timeout):
            # Entered and never exited: SyncWebSocket.close closes the connection.
            connect = websockets.sync.client.connect(**address.websocket_options(path, timeout))
            return SyncWebSocket(connect.__enter__(), address.url)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def close(self) -> None:
        self._http.close()


class SyncWebSocket:
    """A blocking WebSocket without TLS."""

    def __init__(self, connection: websockets.sync.client.ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url

    async def send(self, data: str | bytes) -> None:
        with _translate_errors(self._url, 0):
            self._connection.send(data)

    async def receive(self, timeout: float) -> str | bytes:
        with _translate_errors(self._url, timeout):
            return self._connection.recv(timeout)

    async def close(self) -> None:
        self._connection.close()


class BackgroundWebSocket:
    """A blocking WebSocket over TLS, on an event loop in a background thread.

    The blocking connection of websockets reads in one thread and writes in another. OpenSSL does not allow that for one
    TLS connection: about one in 3,000 connections hangs, past every timeout.
    """

    def __init__(self, address: Address, path: str, timeout: float) -> None:
        self._url = address.url
        self._loop = asyncio.new_event_loop()
        # A daemon thread does not keep a program alive that never closed its streams.
        self._thread = threading.Thread(target=self._loop.run_forever, name="stablernn stream", daemon=True)
        self._thread.start()
        try:
            self._websocket = self._run(AsyncWebSocket.open(address, path, timeout))
        except BaseException:
            self._stop_loop()
            raise

    async def send(self, data: str | bytes) -> None:
        self._run(self._websocket.send(data))

    async def receive(self, timeout: float) -> str | bytes:
        return self._run(self._websocket.receive(timeout))

    async def close(self) -> None:
        if not self._loop.is_closed():
            try:
                self._run(self._websocket.close())
            finally:
                self._stop_loop()

    def _run(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine on the event loop of the background thread, and wait for its result."""
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:
            # The loop is closed. An unawaited coroutine would warn when it is collected.
            coroutine.close()
            raise _connection_lost(self._url, error) from error
        try:
            return future.result()
        finally:
            # If the caller was interrupted, nothing may go on that would read the next message.
            future.cancel()

    def _stop_loop(self) -> None:
        # `stop` is not thread-safe by itself.
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


Transport: TypeAlias = AsyncTransport | SyncTransport
WebSocket: TypeAlias = AsyncWebSocket | SyncWebSocket | BackgroundWebSocket


@contextmanager
def _translate_errors(url: str, timeout: float) -> Iterator[None]:
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
        raise _connection_lost(url, error) from error
    except websockets.exceptions.InvalidMessage as error:
        # A server that is killed during the handshake leaves half a message.
        if isinstance(error.__cause__, EOFError):
            raise _connection_lost(url, error) from error
        raise _unexpected_reply(url, error) from error
    except (httpx.HTTPError, websockets.exceptions.WebSocketException) as error:
        raise _unexpected_reply(url, error) from error


def _connection_lost(url: str, error: Exception) -> ConnectionLost:
    return ConnectionLost(f"The connection to {url} was lost before the reply arrived ({error}).")


def _unexpected_reply(url: str, error: Exception) -> ProtocolError:
    return ProtocolError(f"{url} does not reply as this service does ({error}); check the address.")


def _find_verification_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return the failed verification of a certificate from the causes of an error, if there is one."""
    # httpx and httpcore wrap the error of the ssl module.
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error
