"""The policy for requests of web pages: the server's own pages may call it, and those whose origins the settings list.

A page is identified by its ``Origin``. A browser leaves that out if it takes the page and the server for one origin, as
it does when the name of the page's host was made to resolve to this machine (DNS rebinding); such a page is identified
by the ``Host`` that it asks for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from stablernn_server.errors import ForbiddenError, SettingsError, cut
from stablernn_server.http.asgi import Headers, Scope
from stablernn_server.http.request import header_fields

METHODS = b"GET, HEAD, POST, DELETE"
ALLOWED_HEADERS = (
    b"authorization, content-type, content-encoding, inference-header-content-length, traceparent, x-request-id"
)
EXPOSED_HEADERS = b"inference-header-content-length, retry-after, x-request-id"
PREFLIGHT_SECONDS = b"600"
DEFAULT_PORTS = {"http": 80, "https": 443}
_ADDRESS = re.compile(rb"([0-9.]+|\[[0-9a-f:.]+\])(:[0-9]+)?")
_PORT = re.compile(rb":[0-9]*$")


class OriginPolicy:
    """The check of the headers ``Origin`` and ``Host``, and the CORS headers for pages of other hosts that pass it."""

    def __init__(self, allowed: Iterable[str] = (), *, is_local: bool = False, name: str = "localhost") -> None:
        """Create the policy.

        Args:
            allowed: Origins such as ``https://app.example``.
            is_local: Whether nothing but the loopback address keeps others out. Then requests must ask for an address,
                for ``name``, or for the host of a listed origin: the owner of any other name can make it point here.
            name: The name or address that the server listens on.

        Raises:
            SettingsError: If an entry is not an origin.
        """
        self._allowed = frozenset(_normalize_origin(origin) for origin in allowed)
        self._is_local = is_local
        self._names = {b"localhost", name.lower().encode()}
        self._hosts = frozenset(host for origin in self._allowed for host in _host_headers(origin))

    def check(self, scope: Scope) -> Headers:
        """Return the CORS headers for the response, none for most requests.

        A request without an ``Origin`` does not come from a page, or its browser takes it for one of the same origin.

        Raises:
            ForbiddenError: If a page of another host asks, or the request is for a name that may not be this server's.
        """
        fields = header_fields(scope)
        origin, host = fields.get(b"origin"), fields.get(b"host", b"").lower()
        if origin is not None and origin.lower() in self._allowed:
            return (
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", EXPOSED_HEADERS),
                # Caches must not give this response to pages of other origins.
                (b"vary", b"Origin"),
            )
        # A page of this very server: what follows the scheme is the host that it asks for.
        if origin is not None and (not host or origin.lower().partition(b"://")[2] != host):
            raise ForbiddenError(
                f"Pages of {cut(origin.decode('latin-1'))!r} may not call this server; "
                "its operator can list them in allowed_origins."
            )
        if self._is_local and host and not self._is_own_host(host):
            raise ForbiddenError(
                f"This server requires no token and answers under the address of its machine only, got the host "
                f"{cut(host.decode('latin-1'))!r}; ask for 127.0.0.1 or localhost. Its operator can list the "
                "origins of other names in allowed_origins, or configure tokens."
            )
        return ()

    def _is_own_host(self, host: bytes) -> bool:
        return _ADDRESS.fullmatch(host) is not None or host in self._hosts or _PORT.sub(b"", host) in self._names

    def preflight_headers(self, scope: Scope) -> Headers | None:
        """Return the headers of the response (204, no body) to a preflight request; None for any other request.

        No token is required: browsers send none with a preflight request.

        Raises:
            ForbiddenError: If a page of another host asks.
        """
        if scope["type"] != "http" or scope["method"] != "OPTIONS":
            return None
        if b"access-control-request-method" not in header_fields(scope):
            return None
        cors_headers = self.check(scope)
        if not cors_headers:
            return None
        return (
            *cors_headers,
            (b"access-control-allow-methods", METHODS),
            (b"access-control-allow-headers", ALLOWED_HEADERS),
            (b"access-control-max-age", PREFLIGHT_SECONDS),
        )


def _host_headers(origin: bytes) -> tuple[bytes, ...]:
    """Return the values of ``Host`` in requests to an origin: some clients add the default port."""
    scheme, _, host = origin.partition(b"://")
    return (host, host + b":%d" % DEFAULT_PORTS[scheme.decode()])


def _normalize_origin(origin: str) -> bytes:
    """Return an origin as browsers spell it: scheme and host in lower case, no path, no default port.

    Raises:
        SettingsError: If it is not an origin.
    """
    try:
        parts = urlsplit(origin)
        host, port = parts.netloc.lower(), parts.port
    except ValueError:
        # The port is not a number, or an IPv6 address lacks its bracket.
        parts, host, port = urlsplit(""), "", None
    plain = f"{parts.scheme}://{host}"
    if parts.scheme not in DEFAULT_PORTS or not host or origin.rstrip("/").lower() != plain or not plain.isascii():
        raise SettingsError(
            f"allowed_origins takes origins such as 'https://app.example' or 'http://localhost:3000', got '{origin}'."
        )
    if port == DEFAULT_PORTS[parts.scheme]:
        plain = plain.removesuffix(f":{port}")
    return plain.encode()
