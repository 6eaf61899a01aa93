"""Transport for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import httpx
import websockets.asyncio.client

from stablernn_client.transport.address import Address
from stablernn_client.transport.protocols import HttpReply, translate_errors


class AsyncTransport:
    """HTTP and WebSocket connections of the running event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._http = httpx.AsyncClient(**address.http_options())

    async def request(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str], timeout: float
    ) -> HttpReply:
        with translate_errors(self._address.url, timeout):
            response = await self._http.request(method, path, content=content, headers=headers, timeout=timeout)
        return HttpReply.of_httpx(response)

    async def open_websocket(self, path: str, timeout: float) -> AsyncWebSocket:
        return await open_websocket(self._address, path, timeout)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._http.aclose()


class AsyncWebSocket:
    """A WebSocket of the running event loop."""

    def __init__(self, connection: websockets.asyncio.client.ClientConnection, url: str) -> None:
        self._connection = connection
        self._url = url

    async def send(self, data: str | bytes) -> None:
        with translate_errors(self._url, 0):
            await self._connection.send(data)

    async def receive(self, timeout: float) -> str | bytes:
        with translate_errors(self._url, timeout):
            async with asyncio.timeout(timeout):
                return await self._connection.recv()

    async def close(self) -> None:
        await self._connection.close()


async def open_websocket(address: Address, path: str, timeout: float) -> AsyncWebSocket:
    """Open a WebSocket of the running event loop; raises as :meth:`.Transport.open_websocket`."""
    with translate_errors(address.url, timeout):
        connect = websockets.asyncio.client.connect(address.websocket_url + path, **address.websocket_options(timeout))
        # Entered and never exited: AsyncWebSocket.close closes the connection.
        return AsyncWebSocket(await connect.__aenter__(), address.url)
