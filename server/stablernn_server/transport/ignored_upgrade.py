"""Requests that offer another protocol, such as HTTP/2 without TLS, which the server does not take up.

By RFC 9110 a server may ignore the offer and answer in HTTP/1.1. httptools stops at the head of such a request, before
its body, which would then be read as the next request.
"""

from __future__ import annotations

from collections.abc import Sequence

import httptools

_OFFER_FIELDS = frozenset({b"connection", b"http2-settings", b"upgrade"})


def can_ignore_upgrade(parser: httptools.HttpRequestParser) -> bool:
    """Return whether the request, of which the head has been read, offers another protocol than HTTP/1.1.

    The tunnel that ``CONNECT`` asks for is none: what follows its head is not a body.
    """
    return parser.should_upgrade() and parser.get_method() != b"CONNECT"


def head_without_upgrade(
    parser: httptools.HttpRequestParser, target: bytes, headers: Sequence[tuple[bytes, bytes]]
) -> bytes:
    """Return the head of a request without its offer.

    Args:
        parser: The parser that has read the head.
        target: The target of the request.
        headers: Its fields, with names in lower case.
    """
    options = b",".join(value for name, value in headers if name == b"connection").lower().split(b",")
    other_options = [option for option in map(bytes.strip, options) if option and option not in _OFFER_FIELDS]
    fields = [(name, value) for name, value in headers if name not in _OFFER_FIELDS]
    if other_options:
        fields.append((b"connection", b", ".join(other_options)))
    first = b"%b %b HTTP/%b" % (parser.get_method(), target, parser.get_http_version().encode())
    return b"\r\n".join([first, *(b"%b: %b" % field for field in fields), b"", b""])
