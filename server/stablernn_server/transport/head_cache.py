"""Heads of requests that a connection has sent before: an equal one is neither parsed nor checked again.

Clients send the same head again and again, and only the length of the body differs. To parse and check a head costs
about as much as to decode a short sequence.
"""

from __future__ import annotations

import hmac
import re
from typing import cast

from stablernn_server.http.asgi import Scope
from stablernn_server.http.middleware import CHECKS_KEY
from stablernn_server.http.request import FIELDS_KEY, header_fields
from stablernn_server.transport.direct_exchange import DirectExchange

MAX_CACHED_HEAD_BYTES = 2048
"""Longer heads are not kept."""
MAX_LENGTH_DIGITS = 9
MAX_MISSES = 16
"""Heads kept in vain after which a connection keeps no more: its client sends something else each time, as an id."""
HEAD_END = b"\r\n\r\n"

_find_length = re.compile(rb"\r\nContent-Length: *(\d+)\r\n", re.IGNORECASE).search
_UNUSUAL_FIELDS = frozenset({b"expect", b"transfer-encoding", b"upgrade"})
"""Fields that change how the body is read, or what becomes of the connection."""


class HeadCache:
    """The last head of one connection that was answered without ASGI, apart from the length of its body.

    Bytes that the parser has accepted once, at the beginning of a message, it accepts again with the same result.
    """

    __slots__ = ("_heads", "_length_start", "_max_bytes", "_misses")

    def __init__(self, max_head_bytes: int) -> None:
        """Begin without a head.

        Args:
            max_head_bytes: The limit on heads of requests.
        """
        self._max_bytes = min(MAX_CACHED_HEAD_BYTES, max_head_bytes) - MAX_LENGTH_DIGITS
        # At most one. It is looked up by its hash: the time that a comparison takes says how far two tokens are equal,
        # and a proxy may send the requests of several clients over one connection.
        self._heads: dict[tuple[bytes, bytes], Scope] = {}
        self._length_start = 0
        self._misses = 0

    @property
    def is_useful(self) -> bool:
        """True while heads are kept."""
        return self._misses < MAX_MISSES

    def find(self, data: bytes) -> tuple[Scope, bytes] | None:
        """Return scope and body of a request, if ``data`` is all of it and has the head that is kept.

        Args:
            data: What has arrived after the message before.
        """
        if not self._heads:
            return None
        start = self._length_start
        length_end, head_end = data.find(b"\r", start), data.find(HEAD_END, start) + len(HEAD_END)
        scope = self._heads.get((data[:start], data[length_end:head_end]))
        if scope is None:
            return None
        digits = data[start:length_end]
        if len(digits) > MAX_LENGTH_DIGITS or not digits.isdigit() or int(digits) != len(data) - head_end:
            return None
        self._misses = 0
        return scope, data[head_end:]

    def keep(self, data: bytes, exchange: DirectExchange) -> None:
        """Keep the head of a request in place of the one before, if ``data`` is all of the request.

        Args:
            data: What has arrived after the message before.
            exchange: The request that was parsed last, after its checks.
        """
        self._misses += 1
        self._heads.clear()
        scope = cast("Scope", exchange.scope)
        # Without their result it was refused, and the next one may not be.
        if not exchange.keep_alive or CHECKS_KEY not in scope:
            return
        head = data[: data.find(HEAD_END) + len(HEAD_END)]
        headers = scope["headers"]
        names = {name for name, _ in headers}
        length = _find_length(head)
        if (
            length is not None
            and len(head) <= self._max_bytes
            # Nothing else is in the data, of which the scope might be.
            and int(length[1]) == len(data) - len(head)
            # The parser has seen the same lines: one for the target, one for each field, and the empty one.
            and head.count(b"\r\n") == head.count(b"\n") == len(headers) + 2
            and len(names) == len(headers)
            and names.isdisjoint(_UNUSUAL_FIELDS)
        ):
            self._length_start = length.start(1)
            others = [field for field in headers if field[0] != b"content-length"]
            key = head[: length.start(1)], head[length.end(1) :]
            self._heads[key] = {**scope, "headers": others}
            self._heads[key].pop(FIELDS_KEY, None)


class CheckedHeads:
    """The checks of the heads of one connection that bypass ASGI.

    A request that equals the one before in all that the checks of origin and token depend on takes over their result.
    """

    __slots__ = ("_previous", "_target")

    def __init__(self) -> None:
        self._previous: Scope | None = None
        self._target = b""

    def create_scope(self, target: bytes, headers: list[tuple[bytes, bytes]], client: tuple[str, int] | None) -> Scope:
        """Return what ASGI says of a request, as far as its answer depends on it, with the checks if they are known."""
        scope: Scope = {"type": "http", "method": "POST", "headers": headers, "client": client}
        previous = self._previous
        if previous is not None and target == self._target and CHECKS_KEY in previous and _is_alike(scope, previous):
            scope["path"], scope[CHECKS_KEY] = previous["path"], previous[CHECKS_KEY]
        else:
            scope["path"] = target.decode("ascii")
        self._previous, self._target = scope, target
        return scope


def _is_alike(scope: Scope, previous: Scope) -> bool:
    """Return whether two requests for one target are equal in what the checks of origin and token depend on."""
    fields, others = header_fields(scope), header_fields(previous)
    return (
        # Of several fields with one name, only the first is compared here.
        len(fields) == len(scope["headers"])
        and len(others) == len(previous["headers"])
        and fields.get(b"host") == others.get(b"host")
        and fields.get(b"origin") == others.get(b"origin")
        # The time says nothing about the token of the other request, which a proxy may have sent for somebody else.
        and hmac.compare_digest(fields.get(b"authorization", b""), others.get(b"authorization", b""))
    )
