"""Address of a server and the credentials for it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from stablernn_client.errors import BadRequest

CLOSE_TIMEOUT_SECONDS = 2.0
"""Maximum wait for the server's side of the WebSocket closing handshake."""


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

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}

    @property
    def websocket_url(self) -> str:
        # http -> ws, https -> wss
        return "ws" + self.url.removeprefix("http")

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith("https:")

    def http_options(self) -> dict[str, Any]:
        """Return the arguments shared by ``httpx.Client`` and ``httpx.AsyncClient``."""
        verify = True if self.ssl_context is None else self.ssl_context
        return {"base_url": self.url, "headers": self.headers, "verify": verify}

    def websocket_options(self, timeout: float) -> dict[str, Any]:
        """Return the arguments shared by both ``connect`` functions of websockets."""
        options: dict[str, Any] = {
            "additional_headers": self.headers,
            "open_timeout": timeout,
            "close_timeout": CLOSE_TIMEOUT_SECONDS,
            # Raw floats do not shrink: compression would only cost time.
            "compression": None,
            # The outputs of many streams exceed the default limit of 1 MiB.
            "max_size": None,
        }
        # Left out rather than None: the `connect` for asyncio rejects ssl=None with a wss:// URL.
        return options if self.ssl_context is None else {**options, "ssl": self.ssl_context}
