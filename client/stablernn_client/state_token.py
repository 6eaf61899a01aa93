"""Reads from a state token the version that it belongs to, by the layout in :mod:`stablernn_runtime.state_token`."""

from __future__ import annotations

import base64
import binascii
import struct

_MAGIC = b"SRNT\x01"
_LENGTH = struct.Struct("<H")
_NAME_AT = len(_MAGIC) + _LENGTH.size


def version_of(token: str) -> str | None:
    """Return ``NAME:VERSION`` of a token; None for a text that is no token, which the server will refuse."""
    head = _decoded(token, _NAME_AT)
    if len(head) < _NAME_AT or not head.startswith(_MAGIC):
        return None
    (size,) = _LENGTH.unpack_from(head, len(_MAGIC))
    name = _decoded(token, _NAME_AT + size)[_NAME_AT:]
    try:
        return name.decode() if len(name) == size else None
    except UnicodeDecodeError:
        return None


def _decoded(token: str, count: int) -> bytes:
    """The first ``count`` bytes of a token; fewer if it is shorter or not base64url."""
    text = token[: 4 * (count // 3 + 1)]
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)[:count]
    except (binascii.Error, ValueError):
        return b""
