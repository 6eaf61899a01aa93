"""Signed state tokens: a stream as text, which any server that has the key and the model can continue.

A token is base64url without padding (RFC 4648, section 5) of these bytes, all numbers little-endian:

    4 bytes   "SRNT"
    u8        1, the version of this layout
    u16 + n   NAME:VERSION of the model, UTF-8 after its length in bytes
    32 bytes  sha256 of the version's manifest, the model's digest
    u64       samples that the stream has taken
    u64       when the token expires, seconds since 1970-01-01T00:00Z
    u8        kind of the stream's clock: 0 none, 1 a number, 2 text
    f64       regular steps from the time that follows to the last reading
    f64 or u16 + n   that time: a number of regular steps (kind 1), or ISO 8601 (kind 2); nothing for kind 0
    u16       static values, then as many f32; NaN is one that is not known
    u8        states, then for each of them:
        u8 + n    name of the state input, UTF-8; those of estimates begin with "adaptive." or "drift.",
                  those of the samples of an unfinished patch with "patch."
        u8        type: 1 float32, 2 int64
        u8        sizes in the shape of one stream's state, without the batch; then as many u32
        ...       the numbers, row-major
    32 bytes  HMAC-SHA256 of everything before it

The numbers are those of the model's memory, bit for bit. A token is signed, not encrypted: its holder can read it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
import time
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_runtime.errors import BadTokenError, ExpiredTokenError, SettingsError
from stablernn_runtime.stream_clock import Clock

Array = NDArray[Any]

KEY_BYTES = 32
MAX_TOKEN_CHARACTERS = 2**24
_MAGIC = b"SRNT\x01"
_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 2: np.dtype("<i8")}
_CODES = {"float32": 1, "int64": 2}
_BAD_SIGNATURE = (
    "The state token was not signed by this server's key, or was changed on its way. Send it as it was given, to "
    "servers with one STABLERNN_STATE_KEY; without that key, tokens die with the process that gave them."
)


@dataclass(frozen=True)
class StreamSnapshot:
    """The content of a token: a stream after some samples.

    Attributes:
        model: ``NAME:VERSION``.
        digest: ``sha256:...`` of the version.
        step: Number of samples that the stream has taken.
        clock: The time of the last reading.
        static: Static values, ``(names,)``, float32, NaN where not known.
        states: By the name of the input, float32 or int64, without the axis over the batch.
    """

    model: str
    digest: str
    step: int
    clock: Clock
    static: Array
    states: Mapping[str, Array]


class StateTokens:
    """Issues tokens and reads them back.

    Attributes:
        key: The key that signs, 32 bytes.
        ttl_seconds: Seconds for which a stream can be continued from a token.
    """

    def __init__(self, key: bytes, ttl_seconds: float) -> None:
        """Keep the key.

        Args:
            key: 32 bytes, such as those of :func:`key_from_text`.
            ttl_seconds: Seconds for which a stream can be continued from a token.

        Raises:
            ValueError: If the key has another length.
        """
        if len(key) != KEY_BYTES:
            raise ValueError(f"The key of state tokens has {KEY_BYTES} bytes, got {len(key)}.")
        self.key = key
        self.ttl_seconds = ttl_seconds

    def issue(self, stream: StreamSnapshot) -> str:
        """Return the token of a stream as it is now."""
        name = stream.model.encode()
        parts = [_MAGIC, struct.pack("<H", len(name)), name, bytes.fromhex(stream.digest.removeprefix("sha256:"))]
        parts.append(struct.pack("<QQ", stream.step, int(time.time() + self.ttl_seconds)))
        origin = stream.clock.origin
        if isinstance(origin, str):
            text = origin.encode()
            parts.append(struct.pack("<BdH", 2, stream.clock.steps, len(text)) + text)
        else:
            parts.append(struct.pack("<Bd", 0 if origin is None else 1, stream.clock.steps))
            parts.append(b"" if origin is None else struct.pack("<d", origin))
        parts.append(struct.pack("<H", stream.static.size) + stream.static.astype("<f4").tobytes())
        parts.append(struct.pack("<B", len(stream.states)))
        for state, value in stream.states.items():
            label, code = state.encode(), _CODES[value.dtype.name]
            parts.append(struct.pack("<B", len(label)) + label)
            parts.append(struct.pack(f"<BB{value.ndim}I", code, value.ndim, *value.shape))
            parts.append(np.ascontiguousarray(value).astype(_DTYPES[code], copy=False).tobytes())
        content = b"".join(parts)
        return base64.urlsafe_b64encode(content + self._sign(content)).rstrip(b"=").decode()

    def read(self, token: str) -> StreamSnapshot:
        """Check the signature of a token, and return its content.

        Raises:
            BadTokenError: If it was not issued with this key, or was changed since.
            ExpiredTokenError: If it has expired.
        """
        content = _decode(token)
        signed, signature = content[:-32], content[-32:]
        # Before anything in it is read. compare_digest takes the same time wherever the two differ.
        if len(content) < 32 or not hmac.compare_digest(self._sign(signed), signature):
            raise BadTokenError(_BAD_SIGNATURE)
        # The version of the layout is the last of these bytes.
        if not signed.startswith(_MAGIC):
            raise BadTokenError("The state token has a layout that this server does not know; update the older server.")
        reader = _Reader(signed, len(_MAGIC))
        model = reader.text("<H")
        digest = "sha256:" + reader.take(32).hex()
        step, expires = reader.numbers("<QQ")
        clock = reader.clock()
        (count,) = reader.numbers("<H")
        static = reader.array(_DTYPES[1], (count,))
        (count,) = reader.numbers("<B")
        states = {}
        for _ in range(count):
            name = reader.text("<B")
            code, rank = reader.numbers("<BB")
            states[name] = reader.array(_DTYPES[code], reader.numbers(f"<{rank}I"))
        # In whole seconds, as tokens state it.
        if expires < time.time():
            raise ExpiredTokenError(
                f"The state token expired {int(time.time()) - expires} s ago; tokens last {self.ttl_seconds:g} s here "
                "(STABLERNN_TOKEN_TTL_SECONDS). Begin a new stream."
            )
        return StreamSnapshot(model, digest, step, clock, static, states)

    def _sign(self, content: bytes) -> bytes:
        return hmac.digest(self.key, content, hashlib.sha256)


def key_from_text(text: str, source: str) -> bytes:
    """Return the 32 bytes of a key: those that 64 hex digits stand for, else the SHA-256 of the text.

    Args:
        text: Hex digits or any text, of at least 32 bytes; spaces around it do not count.
        source: Source of the text, for errors; the key itself is never repeated.

    Raises:
        SettingsError: If it is too short.
    """
    text = text.strip()
    raw = text.encode()
    if len(text) % 2 == 0 and all(character in "0123456789abcdefABCDEF" for character in text):
        raw = bytes.fromhex(text)
    if len(raw) < KEY_BYTES:
        raise SettingsError(
            f"{source} must hold a key of at least {KEY_BYTES} bytes, as {2 * KEY_BYTES} hex digits or as text, got "
            f"{len(raw)} bytes; 'openssl rand -hex 32' makes one."
        )
    return raw if len(raw) == KEY_BYTES else hashlib.sha256(raw).digest()


def _decode(token: str) -> bytes:
    """Return the bytes of a token; they have one spelling only."""
    try:
        if len(token) <= MAX_TOKEN_CHARACTERS:
            content = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
            # The last character may hold bits that decoding drops.
            if base64.urlsafe_b64encode(content).rstrip(b"=").decode() == token:
                return content
    except (Base64Error, ValueError):
        # Characters outside of the alphabet, those outside of ASCII, or an impossible length: refused below.
        pass
    raise BadTokenError("The state token is not base64url text as this server gives it; send it unchanged.")


class _Reader:
    """Reads signed bytes from front to back; they need no checks, since a holder of the key wrote them."""

    def __init__(self, content: bytes, offset: int) -> None:
        self._content = content
        self._offset = offset

    def take(self, size: int) -> bytes:
        self._offset += size
        return self._content[self._offset - size : self._offset]

    def numbers(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self.take(struct.calcsize(form)))

    def text(self, length: str) -> str:
        (size,) = self.numbers(length)
        return self.take(size).decode()

    def clock(self) -> Clock:
        kind, steps = struct.unpack("<Bd", self.take(9))
        if kind == 2:
            return Clock(self.text("<H"), steps)
        return Clock(struct.unpack("<d", self.take(8))[0], steps) if kind else Clock()

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        content = self.take(prod(shape) * dtype.itemsize)
        # In the byte order of this machine. A copy, since an array on bytes is read-only.
        return np.frombuffer(content, dtype).reshape(shape).astype(dtype.newbyteorder("="))
