"""Transport for the calling thread, which blocks until a reply is there.

Its methods are coroutines only in form: they block, and never suspend. :func:`run` therefore drives any coroutine over
it to its end in one step, without an event loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import httpx
import websockets.sync.client

from stablernn_client.transport.address import Address
from stablernn_client.transport.asynchronous import open_websocket
from stablernn_client.transport.protocols import HttpReply, WebSocket, connection_lost, translate_errors

Result = TypeVar("Result")


def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of a coroutine that awaits nothing but a :class:`SyncTransport`."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: Result = stop.value
        return result
    raise AssertionError("a coroutine of the blocking client was suspended")


class SyncTransport:
    """Blocking HTTP and WebSocket connections."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._http = httpx.Client(**address.http_options())

    async def request(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], timeout: float
    ) -> HttpReply:
        with translate_errors(self._address.url, timeout):
            response = self._http.request(method, path, content=content, headers=headers, timeout=timeout)
        return HttpReply.of_httpx(response)

    async def open_websocket(self, path: str, timeout: float) -> WebSocket:
        address = self._address
        if address.is_encrypted:
            return BackgroundWebSocket(address, path, timeout)
        with translate_errors(address.url, timeout):
            url, options = address.websocket_url + path, address.websocket_options(timeout)
            # Entered and never exited: SyncWebSocket.close closes the connection.
            return SyncWebSocket(websockets.sync.client.connect(url, **options).__enter__(), address.url)

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
        with translate_errors(self._url, 0):
            self._connection.send(data)

    async def receive(self, timeout: float) -> str | bytes:
        with translate_errors(self._url, timeout):
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
            self._websocket = self._run(open_websocket(address, path, timeout))
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
            raise connection_lost(self._url, error) from error
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
