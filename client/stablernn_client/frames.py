"""Messages of ``/v1/stream``, binary frames and text, in the layout of ``docs/http.md``."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import orjson

from stablernn_client.arrays import Array
from stablernn_client.errors import ProtocolError
from stablernn_client.stream_info import StreamInfo
from stablernn_client.stream_request import StreamRequest

VERSION = 1
TOKENS, LAST_ONLY, SEQUENCE, SPACING, RESTORE = 1, 2, 4, 8, 16
"""Flags of a frame."""

# Version, flags, reserved, streams, steps.
_HEADER = struct.Struct("<BBHII")
_TOKEN_LENGTH = struct.Struct("<I")
_STEP_DTYPE = np.dtype("<u8")
_VALUE_DTYPE = np.dtype("<f4")


@dataclass(frozen=True, eq=False)
class StreamReply:
    """A decoded reply to one message with samples.

    Attributes:
        steps: ``(streams,)``, int64: number of steps each stream has taken.
        outputs: Arrays by name, each ``(streams, steps, ...)``; of a model of patches with a step for each patch, NaN
            behind those of a stream that filled fewer than another.
        tokens: State tokens, one for each stream; None if they were not requested.
    """

    steps: Array
    outputs: dict[str, Array]
    tokens: list[str] | None


def encode_frame(
    request: StreamRequest,
    *,
    sequence: Array | None,
    restore: Sequence[str] | None,
    want_tokens: bool,
    last_only: bool,
) -> bytes:
    """Return a binary frame with one or several steps of the streams 0, 1, ...

    Args:
        request: The samples.
        sequence: ``(streams,)``: number of the first of these samples in its stream, from 1; None if unknown.
        restore: State tokens from which the streams resume; None to continue from their current states.
        want_tokens: True to request state tokens.
        last_only: True to request the outputs of the last step only.
    """
    streams, steps = request.values.shape[:2]
    flags = TOKENS * want_tokens | LAST_ONLY * last_only
    # The order of the sections is that of docs/http.md: stream numbers, sequence, dt, tokens, values.
    sections = [np.arange(streams, dtype="<u4").tobytes()]
    if sequence is not None:
        flags |= SEQUENCE
        sections.append(sequence.astype(_STEP_DTYPE).tobytes())
    if request.dt is not None:
        flags |= SPACING
        sections.append(request.dt.astype(_VALUE_DTYPE).tobytes())
    if restore is not None:
        flags |= RESTORE
        for token in restore:
            sections += [_TOKEN_LENGTH.pack(len(token)), token.encode("ascii")]
    # float32 or int64, little-endian on every machine.
    values = request.values.astype(request.values.dtype.newbyteorder("<"), copy=False)
    return b"".join([_HEADER.pack(VERSION, flags, 0, streams, steps), *sections, values.tobytes()])


def decode_frame(content: bytes, info: StreamInfo, streams: int, samples: int, *, last_only: bool) -> StreamReply:
    """Return the reply to a binary frame.

    Args:
        content: The frame.
        info: The server's description of the model, with the shapes of its outputs.
        streams: Expected number of streams.
        samples: Samples of each stream in the request.
        last_only: True if the outputs of the last step only were requested.

    Raises:
        ProtocolError: If the frame is not that reply.
    """
    try:
        version, flags, _, got_streams, steps = _HEADER.unpack_from(content)
        if (version, got_streams) != (VERSION, streams):
            raise ValueError(f"version {version} with {got_streams} streams")
        offset = _HEADER.size
        stream_steps = np.frombuffer(content, _STEP_DTYPE, streams, offset).astype(np.int64)
        expected = int(count_answers(stream_steps, samples, info.patch_stride, last_only=last_only).max())
        if steps != expected:
            raise ValueError(f"{steps} steps where {expected} are expected")
        offset += stream_steps.nbytes
        outputs = {}
        for name, shape in info.outputs.items():
            array = np.frombuffer(content, _VALUE_DTYPE, streams * steps * prod(shape), offset)
            # Copied, because an array over `bytes` is read-only.
            outputs[name] = array.reshape(streams, steps, *shape).copy()
            offset += array.nbytes
        tokens: list[str] | None = None
        if flags & TOKENS:
            tokens = []
            for _ in range(streams):
                (length,) = _TOKEN_LENGTH.unpack_from(content, offset)
                offset += _TOKEN_LENGTH.size
                tokens.append(content[offset : offset + length].decode("ascii"))
                offset += length
        if offset != len(content):
            raise ValueError(f"{len(content)} bytes where {offset} are needed")
    except (ValueError, struct.error) as error:
        # ValueError covers too few bytes for an array and a token that is not ASCII.
        raise ProtocolError(f"The server replied with an unreadable frame: {error}.") from error
    return StreamReply(stream_steps, outputs, tokens)


def count_answers(steps: Array, samples: int, patch_stride: int, *, last_only: bool) -> Array:
    """Return how many outputs streams have for their last samples, ``(streams,)``.

    Args:
        steps: Samples that each stream has taken, ``(streams,)``.
        samples: The last of them.
        patch_stride: Samples after which a stream has outputs.
        last_only: True if only the last outputs count.
    """
    counts: Array = steps // patch_stride - (steps - samples) // patch_stride
    return np.minimum(counts, 1) if last_only else counts


def encode_text(request: StreamRequest, *, sequence: int | None, want_token: bool, last_only: bool) -> str:
    """Return a text message with one or several steps of stream 0, the only stream; see :func:`encode_frame`."""
    message = {
        "stream": 0,
        "values": request.values[0],
        "token": want_token,
        "every": not last_only,
        **request.text_fields,
    }
    if sequence is not None:
        message["sequence"] = sequence
    if request.dt is not None:
        message["dt"] = request.dt[0]
    return orjson.dumps(message, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def decode_text(message: Mapping[str, Any], info: StreamInfo) -> StreamReply:
    """Return the reply to a text message with samples, for one stream.

    Raises:
        ProtocolError: If the message is not such a reply.
    """
    try:
        rows = message["outputs"]
        # (1, steps, ...), without any while a patch is not full.
        outputs = {
            name: np.array([[row[name] for row in rows]] if rows else np.zeros((1, 0, *shape)), np.float32)
            for name, shape in info.outputs.items()
        }
        token = message.get("state_token")
        steps = np.array([message["step"]], np.int64)
        return StreamReply(steps, outputs, None if token is None else [str(token)])
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError(f"The server replied with an unreadable message ({error!r}).") from error
