"""Binary frames of ``/v1/stream``, their layout and their codec. All numbers are little-endian.

A request:

    u8        1, the version of this layout
    u8        flags, see below
    u16       0
    u32       S, streams
    u32       K, samples of each
    u32[S]    numbers of the streams, all different
    u64[S]    with SEQUENCE: number of the first sample of each, from 1
    f32[S, K]                   with DT: time since the previous sample, in regular steps
    S x (u32, ASCII)            with RESTORE: length and text of a state token each; length 0 leaves a stream as it is
    f32 or i64 [S, K, *sample]  the samples; NaN is a missing value

Its reply:

    u8, u8, u16                 1, the flags of the request, 0
    u32, u32                    S, and R, the rows of each output: K, or 1 with LAST. Of a model of patches as many as
                                the stream of the frame that filled the most patches, or at most 1 with LAST
    u64[S]    samples that each stream has taken
    f32[S, R, *shape]           each output of the ready message, in its order; the rows of a stream that filled
                                fewer patches come first, and NaN behind them
    S x (u32, ASCII)            with TOKENS: length and text of the state token of each
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stablernn_server.codecs.json_values import parse_object
from stablernn_server.errors import BadTokenError, InputError

Array = NDArray[Any]

VERSION = 1
TOKENS, LAST, SEQUENCE, DT, RESTORE = 1, 2, 4, 8, 16
_KNOWN_FLAGS = TOKENS | LAST | SEQUENCE | DT | RESTORE
_HEAD = struct.Struct("<BBHII")
HEAD_BYTES = _HEAD.size


@dataclass(slots=True)
class Frame:
    """A parsed request.

    Attributes:
        flags: Sum of ``TOKENS``, ``LAST``, ...
        streams: S, the number of streams.
        steps: K, the number of samples of each.
        numbers: Numbers of the streams.
        sequence: Numbers of their first samples, ``(S,)``; None without ``SEQUENCE``.
        dt: Times since the previous samples, ``(S, K, ...)``; None without ``DT``.
        tokens: State tokens to restore from, an empty text for none; None without ``RESTORE``.
        samples: Samples, ``(S, K, *sample)``.
    """

    flags: int
    streams: int
    steps: int
    numbers: list[int]
    sequence: Array | None
    dt: Array | None
    tokens: list[str] | None
    samples: Array

    def select(self, rows: Sequence[int]) -> Frame:
        """Return the part of a request for some of its streams, by their positions in it; without tokens."""
        return Frame(
            self.flags,
            len(rows),
            self.steps,
            [self.numbers[row] for row in rows],
            None if self.sequence is None else self.sequence[rows],
            None if self.dt is None else self.dt[rows],
            None,
            self.samples[rows],
        )


class Layout:
    """Parser of the requests of one model, by the shape and the type of its samples."""

    def __init__(self, sample: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Create the parser.

        Args:
            sample: Shape of one sample.
            dtype: Type of its values, float32 or int64.
        """
        self._sample = sample
        self._dtype = dtype.newbyteorder("<")
        self._native_dtype = dtype
        self._values_per_sample = prod(sample)

    def head(self, content: bytes) -> tuple[int, int, int]:
        """Return flags, number of streams and samples of each, before the rest of the request is parsed.

        Raises:
            InputError: If it does not begin with the head of this layout.
        """
        if len(content) < HEAD_BYTES:
            raise InputError(f"A binary frame begins with a head of {HEAD_BYTES} bytes, got {len(content)} in all.")
        version, flags, zero, streams, steps = _HEAD.unpack_from(content)
        if version != VERSION or zero or flags & ~_KNOWN_FLAGS:
            raise InputError(
                f"A binary frame begins with the version {VERSION}, flags of {_KNOWN_FLAGS} and a u16 of 0, got "
                f"{version}, {flags} and {zero}."
            )
        if not streams or not steps:
            raise InputError(f"A binary frame has at least 1 stream and 1 sample of each, got {streams} and {steps}.")
        return flags, streams, steps

    def tokens(self, content: bytes, flags: int, streams: int, steps: int) -> list[str]:
        """Return the state tokens of a request with ``RESTORE``, before the rest of it is checked.

        Args:
            content: The bytes of the frame.
            flags: From :meth:`head`.
            streams: From :meth:`head`.
            steps: From :meth:`head`.

        Raises:
            InputError: If a token is cut off.
            BadTokenError: If a token is not ASCII.
        """
        return _unpack_texts(content, self._tokens_offset(flags, streams, steps), streams)[0]

    def _tokens_offset(self, flags: int, streams: int, steps: int) -> int:
        offset = HEAD_BYTES + 4 * streams + (8 * streams if flags & SEQUENCE else 0)
        return offset + (4 * streams * steps if flags & DT else 0)

    def read(self, content: bytes, flags: int, streams: int, steps: int) -> Frame:
        """Parse a whole request.

        Args:
            content: The bytes of the frame.
            flags: From :meth:`head`.
            streams: From :meth:`head`.
            steps: From :meth:`head`.

        Raises:
            InputError: If a part is cut off, bytes are left over, or a stream is named twice.
            BadTokenError: If a token is not ASCII.
        """
        values = streams * steps * self._values_per_sample
        size = values * self._dtype.itemsize
        sequence_offset = HEAD_BYTES + 4 * streams
        dt_offset = sequence_offset + (8 * streams if flags & SEQUENCE else 0)
        offset = self._tokens_offset(flags, streams, steps)
        tokens = None
        # A frame that ends before its tokens is refused below, with the size that it must have without them.
        if flags & RESTORE and offset <= len(content):
            tokens, offset = _unpack_texts(content, offset, streams)
        if len(content) != offset + size:
            raise InputError(f"By its head, the binary frame must have {offset + size} bytes, got {len(content)}.")
        sequence = np.frombuffer(content, "<u8", streams, sequence_offset) if flags & SEQUENCE else None
        dt = None
        if flags & DT:
            dt = np.frombuffer(content, "<f4", streams * steps, dt_offset).reshape(streams, steps)
        samples = np.frombuffer(content, self._dtype, values, offset).reshape(streams, steps, *self._sample)
        # They may begin at any byte; the runtime's C code needs them aligned, and in the machine's byte order.
        if not samples.flags.aligned or self._dtype != self._native_dtype:
            samples = samples.astype(self._native_dtype)
        return Frame(flags, streams, steps, stream_numbers(content, streams), sequence, dt, tokens, samples)


def encode(flags: int, steps: Sequence[int], outputs: Sequence[Array], tokens: Sequence[str] | None) -> bytes:
    """Return the bytes of a reply.

    Args:
        flags: Flags of the request.
        steps: Samples that each stream has taken.
        outputs: Outputs in the order of the ready message, ``(S, K, ...)``.
        tokens: State token of each stream, with ``TOKENS``.
    """
    streams = len(steps)
    head = _HEAD.pack(VERSION, flags, 0, streams, outputs[0].shape[1])
    parts = [head, struct.pack(f"<{streams}Q", *steps)]
    parts += [output.astype("<f4", copy=False).tobytes() for output in outputs]
    for token in tokens or ():
        parts.append(len(token).to_bytes(4, "little") + token.encode("ascii"))
    return b"".join(parts)


def stream_numbers(content: bytes, streams: int) -> list[int]:
    """Return the numbers of the streams of a request.

    Raises:
        InputError: If they are cut off, or one is named twice.
    """
    if len(content) < HEAD_BYTES + 4 * streams:
        raise InputError(
            f"The binary frame must have at least {HEAD_BYTES + 4 * streams} bytes for the numbers of {streams} "
            f"streams, got {len(content)}."
        )
    if streams == 1:
        return [int.from_bytes(content[HEAD_BYTES : HEAD_BYTES + 4], "little")]
    numbers: list[int] = np.frombuffer(content, "<u4", streams, HEAD_BYTES).tolist()
    if len(set(numbers)) < streams:
        duplicate = next(number for number, following in pairwise(sorted(numbers)) if number == following)
        raise InputError(f"The stream {duplicate} is named twice in one binary frame; send its samples in one row.")
    return numbers


def _unpack_texts(content: bytes, offset: int, count: int) -> tuple[list[str], int]:
    """Return ``count`` texts, each after its length, and the offset of their end."""
    texts = []
    for index in range(count):
        end = offset + 4 + int.from_bytes(content[offset : offset + 4], "little")
        if offset + 4 > len(content) or end > len(content):
            raise InputError(
                f"The binary frame ends within token {index} of {count}; each token is its length and its text."
            )
        try:
            texts.append(content[offset + 4 : end].decode("ascii"))
        except UnicodeDecodeError as error:
            raise BadTokenError(f"Token {index} of the binary frame is not ASCII; send it as you got it.") from error
        offset = end
    return texts, offset


def parse_frame(text: str) -> dict[str, Any]:
    """Parse a text frame.

    Raises:
        InputError: If it is not JSON, or not an object.
    """
    return parse_object(text.encode())
