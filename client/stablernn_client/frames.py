"""Messages of ``/v1/stream``, as ``docs/http.md`` lays them out: binary frames, and text messages."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import orjson

from stablernn_client.errors import ProtocolError
from stablernn_client.parts import Part
from stablernn_client.results import Array
from stablernn_client.stream_info import StreamInfo

VERSION = 1
TOKENS, LAST_ONLY, SEQUENCE, SPACING, RESTORE = 1, 2, 4, 8, 16
"""Flags of a frame."""

_HEAD = struct.Struct("<BBHII")
_LENGTH = struct.Struct("<I")
_STEP = np.dtype("<u8")
_VALUE = np.dtype("<f4")


@dataclass(frozen=True, eq=False)
class Answer:
    """A decoded answer.

    Attributes:
        steps: ``(streams,)``, int64: steps that each stream has taken.
        outputs: By name, each ``(streams, steps, ...)``.
        tokens: One for each stream; None where they were not asked for.
    """

    steps: Array
    outputs: dict[str, Array]
    tokens: list[str] | None


def encode(
    part: Part, *, sequence: Array | None, restore: Sequence[str] | None, want_tokens: bool, last_only: bool
) -> bytes:
    """A binary frame with one or several steps of the streams 0, 1, ...

    Args:
        part: The samples.
        sequence: ``(streams,)``: number of the first of these samples in its stream, from 1; None where not known.
        restore: State tokens that the streams go on from; None for as they are.
        want_tokens: Whether tokens come back.
        last_only: Whether only the last step's outputs come back.
    """
    streams, steps = part.values.shape[:2]
    flags = TOKENS * want_tokens | LAST_ONLY * last_only
    parts = [np.arange(streams, dtype="<u4").tobytes()]
    if sequence is not None:
        flags |= SEQUENCE
        parts.append(sequence.astype(_STEP).tobytes())
    if part.dt is not None:
        flags |= SPACING
        parts.append(part.dt.astype(_VALUE).tobytes())
    if restore is not None:
        flags |= RESTORE
        for token in restore:
            parts += [_LENGTH.pack(len(token)), token.encode("ascii")]
    values = part.values.astype(part.values.dtype.newbyteorder("<"), copy=False)
    return b"".join([_HEAD.pack(VERSION, flags, 0, streams, steps), *parts, values.tobytes()])


def decode(content: bytes, info: StreamInfo, streams: int, steps: int) -> Answer:
    """The answer to a frame with so many streams, and so many steps of outputs.

    Raises:
        ProtocolError: If it is not that.
    """
    try:
        version, flags, _, got_streams, got_steps = _HEAD.unpack_from(content)
        if (version, got_streams, got_steps) != (VERSION, streams, steps):
            raise ValueError(f"version {version} with {got_streams} streams and {got_steps} steps")
        at = _HEAD.size
        taken = np.frombuffer(content, _STEP, streams, at).astype(np.int64)
        at += taken.nbytes
        outputs = {}
        for name, shape in info.outputs.items():
            array = np.frombuffer(content, _VALUE, streams * steps * prod(shape), at)
            outputs[name] = array.reshape(streams, steps, *shape).copy()
            at += array.nbytes
        tokens: list[str] | None = None
        if flags & TOKENS:
            tokens = []
            for _ in range(streams):
                (length,) = _LENGTH.unpack_from(content, at)
                at += _LENGTH.size
                tokens.append(content[at : at + length].decode("ascii"))
                at += length
        if at != len(content):
            raise ValueError(f"{len(content)} bytes where {at} are needed")
    except (ValueError, struct.error) as error:
        raise ProtocolError(f"The server answered with a frame that cannot be read: {error}.") from error
    return Answer(taken, outputs, tokens)


def encode_text(part: Part, *, sequence: int | None, want_token: bool, last_only: bool) -> str:
    """A text message with one or several steps of stream 0, which is the only one; arguments as of :func:`encode`."""
    message = {"stream": 0, "values": part.values[0], "token": want_token, "every": not last_only, **part.beside}
    if sequence is not None:
        message["sequence"] = sequence
    if part.dt is not None:
        message["dt"] = part.dt[0]
    return orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def decode_text(message: Mapping[str, Any], info: StreamInfo) -> Answer:
    """The answer to a text message with samples.

    Raises:
        ProtocolError: If it is not that.
    """
    try:
        rows = message["outputs"]
        outputs = {name: np.array([[row[name] for row in rows]], np.float32) for name in info.outputs}
        token = message.get("state_token")
        steps = np.array([message["step"]], np.int64)
        return Answer(steps, outputs, None if token is None else [str(token)])
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"The server answered with a message that cannot be read ({error!r}).") from error
