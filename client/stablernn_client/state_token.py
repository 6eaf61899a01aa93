"""The version in a state token, read by the layout in :mod:`stablernn_runtime.state_token`."""

from __future__ import annotations

import base64
import binascii
import struct

# Magic bytes, length of the name, name; what follows, state and signature, is not read.
_MAGIC = b"SRNT\x01"
_NAME_LENGTH = struct.Struct("<H")
_NAME_OFFSET = len(_MAGIC) + _NAME_LENGTH.size


def version_of(token: str) -> str | None:
    """Return ``NAME:VERSION`` of a state token; None for any other text, which the server will reject."""
    header = _decode_prefix(token, _NAME_OFFSET)
    if len(header) < _NAME_OFFSET or not header.startswith(_MAGIC):
        return None
    (length,) = _NAME_LENGTH.unpack_from(header, len(_MAGIC))
    name = _decode_prefix(token, _NAME_OFFSET + length)[_NAME_OFFSET:]
    try:
        return name.decode() if len(name) == length else None
    except UnicodeDecodeError:
        return None


def _decode_prefix(token: str, count: int) -> bytes:
    """Return the first ``count`` bytes of a token; fewer if it is shorter or not base64url."""
    # Four characters hold three bytes, and only as many as needed are decoded: a token may be long.
    text = token[: 4 * (count // 3 + 1)]
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)[:count]
    except (binascii.Error, ValueError):
        return b""
