"""Which pages in a browser may call this server: its own, and those that the settings list.

A page is told by its ``Origin``, which a browser leaves out where it takes page and server for one, as it does when the
name of the page's host has been made to resolve to this machine; such a page is told by the ``Host`` that it asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from stablernn_server.errors import ForbiddenError, SettingsError, cut
from stablernn_server.security.auth import Scope

Headers = tuple[tuple[bytes, bytes], ...]

METHODS = b"GET, HEAD, POST, DELETE"
SENT = b"authorization, content-type, content-encoding, inference-header-content-length, traceparent, x-request-id"
READABLE = b"inference-header-content-length, retry-after, x-request-id"
PREFLIGHT_SECONDS = b"600"
DEFAULT_PORTS = {"http": 80, "https": 443}
_ADDRESS = re.compile(rb"([0-9.]+|\[[0-9a-f:.]+\])(:[0-9]+)?")
_PORT = re.compile(rb":[0-9]*$")


class Origins:
    """The check of the headers ``Origin`` and ``Host``, and the CORS headers for pages that pass it from elsewhere."""

    def __init__(self, allowed: Iterable[str] = (), *, is_local: bool = False, name: str = "localhost") -> None:
        """Take the listed origins.

        Args:
            allowed: Such as ``https://app.example``.
            is_local: Whether nothing but the address of this machine keeps others out. Then requests must ask for an
                address, for ``name``, or for the host of a listed origin: any other name can be made to point here by
                whoever owns it.
            name: That the server listens on.

        Raises:
            SettingsError: If one is no origin.
        """
        self._allowed = frozenset(_checked(origin) for origin in allowed)
        self._is_local = is_local
        self._names = {b"localhost", name.lower().encode()}
        self._hosts = frozenset(host for origin in self._allowed for host in _hosts(origin))

    def check(self, scope: Scope) -> Headers:
        """The headers that the answer gets, none for most.

        A request without an ``Origin`` is no page's, or one that its browser lets through for itself.

        Raises:
            ForbiddenError: If a page of another host asks, or somebody for a name that may not be this server's.
        """
        origin, host = _header(scope, b"origin"), (_header(scope, b"host") or b"").lower()
        if origin is not None and origin.lower() in self._allowed:
            return (
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", READABLE),
                (b"vary", b"Origin"),
            )
        if origin is not None and (not host or origin.lower().partition(b"://")[2] != host):
            raise ForbiddenError(
                f"Pages of {cut(origin.decode('latin-1'))!r} may not call this server; "
                "whoever runs it can list them in allowed_origins."
            )
        if self._is_local and host and not self._is_known(host):
            raise ForbiddenError(
                f"This server asks for no token and answers under the address of its machine alone, got the host "
                f"{cut(host.decode('latin-1'))!r}; ask for 127.0.0.1 or localhost. Whoever runs it can list the "
                "origins of other names in allowed_origins, or configure tokens."
            )
        return ()

    def _is_known(self, host: bytes) -> bool:
        return _ADDRESS.fullmatch(host) is not None or host in self._hosts or _PORT.sub(b"", host) in self._names

    def preflight(self, scope: Scope) -> Headers | None:
        """The headers of the answer (204, no body, no token asked for) to a preflight request; None if it is none.

        Raises:
            ForbiddenError: If a page of another host asks.
        """
        if scope["type"] != "http" or scope["method"] != "OPTIONS":
            return None
        if _header(scope, b"access-control-request-method") is None:
            return None
        allowed = self.check(scope)
        if not allowed:
            return None
        return (
            *allowed,
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", SENT),
            (b"access-control-max-age", PREFLIGHT_SECONDS),
        )


def _header(scope: Scope, wanted: bytes) -> bytes | None:
    for name, value in scope["headers"]:
        if name == wanted:
            return bytes(value)
    return None


def _hosts(origin: bytes) -> tuple[bytes, ...]:
    """What stands in ``Host`` when this origin is asked: some name the default port, too."""
    scheme, _, host = origin.partition(b"://")
    return (host, host + b":%d" % DEFAULT_PORTS[scheme.decode()])


def _checked(origin: str) -> bytes:
    """A browser's spelling of an origin: scheme and host in lower case, no path, no default port."""
    try:
        parts = urlsplit(origin)
        host, port = parts.netloc.lower(), parts.port
    except ValueError:
        parts, host, port = urlsplit(""), "", None
    plain = f"{parts.scheme}://{host}"
    if parts.scheme not in DEFAULT_PORTS or not host or origin.rstrip("/").lower() != plain or not plain.isascii():
        raise SettingsError(
            f"allowed_origins takes origins such as 'https://app.example' or 'http://localhost:3000', got '{origin}'."
        )
    if port == DEFAULT_PORTS[parts.scheme]:
        plain = plain.removesuffix(f":{port}")
    return plain.encode()
