"""Heads that a connection has sent before are recognized, and nothing else is."""

from __future__ import annotations

from typing import Any, cast

import pytest

from stablernn_server.auth import NOBODY
from stablernn_server.http.middleware import CHECKS_KEY, HeadChecks
from stablernn_server.transport.direct_exchange import (
    MAX_CACHED_HEAD_BYTES,
    MAX_MISSES,
    DirectConnection,
    DirectExchange,
    HeadCache,
)

CHECKS = HeadChecks((), NOBODY, "127.0.0.1")


class Connection:
    flow = loop = transport = None


def request(
    body: bytes, *fields: str, length: str | None = None, name: str = "Content-Length", end: str = "\r\n"
) -> bytes:
    stated = str(len(body)) if length is None else length
    lines = ["POST /v2/models/animals/infer HTTP/1.1", "Host: here", f"{name}: {stated}", *fields, "", ""]
    return end.join(lines).encode() + body


def parsed(data: bytes, *, keep_alive: bool = True, is_checked: bool = True) -> DirectExchange:
    """The exchange of a request, its head parsed as by the parser."""
    head = data.split(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(b":") for line in head)]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/v2/models/animals/infer", "headers": headers}
    if is_checked:
        scope[CHECKS_KEY] = CHECKS
    connection = cast("DirectConnection", Connection())
    return DirectExchange(connection, scope, keep_alive=keep_alive, expects_continue=False)


def filled(data: bytes, **options: Any) -> HeadCache:
    cache = HeadCache(2**16)
    cache.keep(data, parsed(data, **options))
    return cache


@pytest.mark.parametrize("name", ["Content-Length", "content-length"])
@pytest.mark.parametrize("body", [b"", b"a", b"ten bytes..", b"{\r\n\r\n}" * 30])
def test_an_equal_head_is_found_whatever_the_length_of_the_body(name: str, body: bytes) -> None:
    cache = filled(request(b"{}", "X-Other: a", name=name))
    found = cache.find(request(body, "X-Other: a", name=name))
    assert found is not None
    scope, found_body = found
    assert found_body == body
    assert scope[CHECKS_KEY] is CHECKS
    assert scope["headers"] == [(b"host", b"here"), (b"x-other", b"a")]


WHOLE = request(b"{}", "Authorization: Bearer a")
OTHERS = {
    "another token": request(b"{}", "Authorization: Bearer b"),
    "no token": request(b"{}"),
    "one more field": request(b"{}", "Authorization: Bearer a", "X-Other: a"),
    "another path": WHOLE.replace(b"animals", b"flowers"),
    "another method": WHOLE.replace(b"POST", b"GET "),
    "a body that goes on": WHOLE[:-1],
    "two requests": WHOLE + WHOLE,
    "a head that goes on": WHOLE[:40],
    "a length that is too short": request(b"{}", "Authorization: Bearer a", length="1"),
    "a signed length": request(b"{}", "Authorization: Bearer a", length="+2"),
    "no length": request(b"{}", "Authorization: Bearer a", length=""),
    "two lengths": request(b"{}", "Authorization: Bearer a", length="2\r\nContent-Length: 2"),
    "a list of lengths": request(b"{}", "Authorization: Bearer a", length="2, 2"),
    "a length of many digits": request(b"{}", "Authorization: Bearer a", length="2".zfill(20)),
    "nothing": b"",
}


@pytest.mark.parametrize("data", OTHERS.values(), ids=OTHERS)
def test_another_request_is_not_found(data: bytes) -> None:
    cache = filled(WHOLE)
    assert cache.find(data) is None
    assert cache.find(WHOLE) is not None


UNKEPT = {
    "chunks": WHOLE.replace(b"Host: here", b"Transfer-Encoding: chunked"),
    "an expectation": WHOLE.replace(b"Host: here", b"Expect: 100-continue"),
    "an upgrade": WHOLE.replace(b"Host: here", b"Upgrade: h2c"),
    "a field twice": WHOLE.replace(b"Host: here", b"Host: here\r\nHost: there"),
    "bare line feeds": request(b"\r\n\r\n", end="\n"),
    "half a body": WHOLE[:-1],
    "two requests": WHOLE + WHOLE,
    "no length": WHOLE.replace(b"Content-Length: 2", b"X-Other: 2"),
    "a long head": WHOLE.replace(b"Bearer a", b"Bearer " + b"a" * MAX_CACHED_HEAD_BYTES),
}


@pytest.mark.parametrize("data", UNKEPT.values(), ids=UNKEPT)
def test_an_unusual_head_is_not_kept(data: bytes) -> None:
    assert filled(data).find(data) is None


def test_the_head_of_a_request_that_was_refused_or_ends_the_connection_is_not_kept() -> None:
    assert filled(WHOLE, is_checked=False).find(WHOLE) is None
    assert filled(WHOLE, keep_alive=False).find(WHOLE) is None


def test_one_head_is_kept_and_none_of_a_client_that_repeats_none() -> None:
    cache = HeadCache(2**16)
    for number in range(MAX_MISSES):
        assert cache.is_useful
        data = request(b"{}", f"X-Request-Id: {number}")
        cache.keep(data, parsed(data))
        assert len(cache._heads) == 1
    assert not cache.is_useful
    assert cache.find(data) is not None
    assert cache.is_useful


def test_a_head_is_kept_below_the_limit_on_heads_whatever_the_length_of_its_body() -> None:
    size = len(WHOLE) - 2
    for limit, is_kept in ((size, False), (size + 8, False), (size + 9, True)):
        cache = HeadCache(limit)
        cache.keep(WHOLE, parsed(WHOLE))
        assert (cache.find(WHOLE) is not None) == is_kept
