"""Sockets and clocks: the one part of the client that is written twice, for threads and for asyncio.

Everything else is written once, as coroutines over :class:`Transport`. The methods of :class:`ThreadTransport` never
suspend, so that :func:`run` can drive such a coroutine to its end in one go.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import httpx
import websockets.asyncio.client
import websockets.exceptions
import websockets.sync.client

from stablernn_client.errors import (
    BadRequest,
    ConnectionFailed,
    ConnectionLost,
    ProtocolError,
    Timeout,
    error_of_answer,
)

Result = TypeVar("Result")

CLOSE_SECONDS = 2.0
"""How long a socket that is closed waits for the other side to say so, too."""


@dataclass(frozen=True)
class Reply:
    """An HTTP answer.

    Attributes:
        status: Its status.
        headers: By name in lower case.
        content: Its body.
    """

    status: int
    headers: Mapping[str, str]
    content: bytes


class Link(Protocol):
    """An open WebSocket; ``send`` and ``receive`` raise ConnectionLost when it is not open any more."""

    async def send(self, data: str | bytes) -> None: ...

    async def receive(self, seconds: float) -> str | bytes:
        """The next message.

        Raises:
            Timeout: If there is none after so many seconds.
        """
        ...

    async def close(self) -> None: ...


class Transport(Protocol):
    """How to reach one server."""

    async def request(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> Reply:
        """One HTTP exchange.

        Raises:
            ConnectionFailed: If there is no connection; ConnectionLost if it ended before the answer.
            Timeout: If there is no answer after so many seconds.
        """
        ...

    async def open(self, path: str, seconds: float) -> Link:
        """A WebSocket.

        Raises:
            ConnectionFailed: As above.
            Timeout: As above.
            ClientError: If the server refuses it.
        """
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine that only awaits a :class:`ThreadTransport`."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    raise AssertionError("a coroutine of the blocking client was suspended")


@dataclass(frozen=True)
class Address:
    """Where a server is, and who asks.

    Attributes:
        url: ``http://HOST:PORT`` or ``https://...``, without a slash at the end.
        token: Bearer token, or None.
        context: What TLS connections are checked by; None for the usual certificates.
    """

    url: str
    token: str | None
    context: ssl.SSLContext | None

    @classmethod
    def of(cls, url: str, token: str | None, context: ssl.SSLContext | None) -> Address:
        """The address that a user gave.

        Raises:
            BadRequest: If it is none, or the token cannot be one.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise BadRequest(f"The address must look like http://127.0.0.1:8080, got '{url}'.")
        if token is not None and (not token.isascii() or not token.isprintable() or not token or " " in token):
            raise BadRequest("The token must be one word of printable ASCII characters, got something else.")
        return cls(url.rstrip("/"), token, context)

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    @property
    def socket_url(self) -> str:
        return "ws" + self.url.removeprefix("http")

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith("https:")

    @property
    def verify(self) -> ssl.SSLContext | bool:
        return True if self.context is None else self.context

    def socket_options(self, seconds: float) -> dict[str, Any]:
        """Arguments of both ``connect`` functions. Raw numbers do not shrink: compression would only cost time."""
        options: dict[str, Any] = {
            "additional_headers": self.headers,
            "open_timeout": seconds,
            "close_timeout": CLOSE_SECONDS,
            "compression": None,
            "max_size": None,
        }
        return options if self.context is None else {**options, "ssl": self.context}


class ThreadTransport:
    """For the caller's thread, which waits."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._http = httpx.Client(base_url=address.url, headers=address.headers, verify=address.verify)

    async def request(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> Reply:
        with _explained(self._address.url, seconds):
            answer = self._http.request(method, path, content=content, headers=headers, timeout=seconds)
        return Reply(answer.status_code, answer.headers, answer.content)

    async def open(self, path: str, seconds: float) -> Link:
        if self._address.is_encrypted:
            return BesideLink(self._address, path, seconds)
        with _explained(self._address.url, seconds):
            connect = websockets.sync.client.connect(
                self._address.socket_url + path, **self._address.socket_options(seconds)
            )
            return ThreadLink(connect.__enter__(), self._address.url)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def close(self) -> None:
        self._http.close()


class ThreadLink:
    def __init__(self, socket: websockets.sync.client.ClientConnection, url: str) -> None:
        self._socket = socket
        self._url = url

    async def send(self, data: str | bytes) -> None:
        with _explained(self._url, 0):
            self._socket.send(data)

    async def receive(self, seconds: float) -> str | bytes:
        with _explained(self._url, seconds):
            return self._socket.recv(seconds)

    async def close(self) -> None:
        self._socket.close()


class BesideLink:
    """A WebSocket over TLS, on an event loop in a thread beside the caller's.

    The connection that the library has for threads reads in one of them and writes in another. OpenSSL does not allow
    that for one connection: now and then both wait for ever, past every timeout.
    """

    def __init__(self, address: Address, path: str, seconds: float) -> None:
        self._url = address.url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stablernn stream", daemon=True)
        self._thread.start()
        try:
            self._link = self._wait(open_link(address, path, seconds))
        except BaseException:
            self._end()
            raise

    async def send(self, data: str | bytes) -> None:
        self._wait(self._link.send(data))

    async def receive(self, seconds: float) -> str | bytes:
        return self._wait(self._link.receive(seconds))

    async def close(self) -> None:
        if not self._loop.is_closed():
            try:
                self._wait(self._link.close())
            finally:
                self._end()

    def _wait(self, coroutine: Coroutine[Any, Any, Result]) -> Result:
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError as error:
            coroutine.close()
            raise _lost(self._url, error) from error
        try:
            return future.result()
        finally:
            # Of a caller who was interrupted nothing goes on that would take the next message.
            future.cancel()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class TaskTransport:
    """For a task of asyncio, which lets others run."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._http = httpx.AsyncClient(base_url=address.url, headers=address.headers, verify=address.verify)

    async def request(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], seconds: float
    ) -> Reply:
        with _explained(self._address.url, seconds):
            answer = await self._http.request(method, path, content=content, headers=headers, timeout=seconds)
        return Reply(answer.status_code, answer.headers, answer.content)

    async def open(self, path: str, seconds: float) -> TaskLink:
        return await open_link(self._address, path, seconds)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._http.aclose()


class TaskLink:
    def __init__(self, socket: websockets.asyncio.client.ClientConnection, url: str) -> None:
        self._socket = socket
        self._url = url

    async def send(self, data: str | bytes) -> None:
        with _explained(self._url, 0):
            await self._socket.send(data)

    async def receive(self, seconds: float) -> str | bytes:
        with _explained(self._url, seconds):
            async with asyncio.timeout(seconds):
                return await self._socket.recv()

    async def close(self) -> None:
        await self._socket.close()


async def open_link(address: Address, path: str, seconds: float) -> TaskLink:
    """A WebSocket of the running event loop; raises as :meth:`Transport.open`."""
    with _explained(address.url, seconds):
        connect = websockets.asyncio.client.connect(address.socket_url + path, **address.socket_options(seconds))
        return TaskLink(await connect.__aenter__(), address.url)


@contextmanager
def _explained(url: str, seconds: float) -> Iterator[None]:
    """Errors of the libraries below as those of the client."""
    try:
        yield
    except websockets.exceptions.InvalidStatus as error:
        answer = error.response
        headers = {name.lower(): value for name, value in answer.headers.raw_items()}
        raise error_of_answer(answer.status_code, headers, bytes(answer.body or b"")) from error
    except (httpx.TimeoutException, TimeoutError) as error:
        raise Timeout(f"No answer from {url} within {seconds:.3g} s; try again, or with a longer timeout.") from error
    except (httpx.ConnectError, OSError) as error:
        distrust = _distrust(error)
        if distrust is not None:
            raise ConnectionFailed(
                f"The certificate of {url} is not trusted ({distrust.verify_message}); give an ssl_context that does."
            ) from error
        raise ConnectionFailed(
            f"Cannot connect to {url} ({error}); check the address and whether the server runs."
        ) from error
    except (httpx.TransportError, websockets.exceptions.ConnectionClosed) as error:
        raise _lost(url, error) from error
    except websockets.exceptions.InvalidMessage as error:
        # A server that is killed during the handshake leaves half a message.
        if isinstance(error.__cause__, EOFError):
            raise _lost(url, error) from error
        raise _strange(url, error) from error
    except (httpx.HTTPError, websockets.exceptions.WebSocketException) as error:
        raise _strange(url, error) from error


def _distrust(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Why a connection was refused, if it was for the server's certificate."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error


def _lost(url: str, error: Exception) -> ConnectionLost:
    return ConnectionLost(f"The connection to {url} was lost before the answer was there ({error}).")


def _strange(url: str, error: Exception) -> ProtocolError:
    return ProtocolError(f"{url} does not answer as this service does ({error}); check the address.")
