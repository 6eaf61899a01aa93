"""Binary frames of ``/v1/stream``, as bytes and as arrays. All numbers are little-endian.

A request:

    u8        1, the version of this layout
    u8        flags, see below
    u16       0
    u32       S, streams
    u32       K, samples of each
    u32[S]    numbers of the streams, all different
    u64[S]    with SEQUENCE: number of the first sample of each, from 1
    f32[S, K, *sample[:-1]]     with DT: from the reading before to each, in regular steps
    S x (u32, ASCII)            with RESTORE: length and text of a state token each; length 0 leaves a stream as it is
    f32 or i64 [S, K, *sample]  the samples; NaN is a missing value

Its answer:

    u8, u8, u16                 1, the flags of the request, 0
    u32, u32                    S, and K, or 1 with LAST
    u64[S]    samples that each stream has taken
    f32[S, K, *shape]           each output of the hello, in its order
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
    """A request that was read.

    Attributes:
        flags: ``TOKENS``, ``LAST``, ... together.
        streams: S.
        steps: K.
        numbers: Of the streams.
        sequence: Numbers of their first samples; None where they are not given.
        dt: ``(S, K, ...)``; None where it is not given.
        tokens: To restore from, an empty text for none; None where none are given.
        samples: ``(S, K, *sample)``.
    """

    flags: int
    streams: int
    steps: int
    numbers: list[int]
    sequence: Array | None
    dt: Array | None
    tokens: list[str] | None
    samples: Array

    def of(self, places: Sequence[int]) -> Frame:
        """The part of a request that is about some of its streams, by their places in it; without tokens."""
        return Frame(
            self.flags,
            len(places),
            self.steps,
            [self.numbers[place] for place in places],
            None if self.sequence is None else self.sequence[places],
            None if self.dt is None else self.dt[places],
            None,
            self.samples[places],
        )


class Layout:
    """Reads the requests of one model."""

    def __init__(self, sample: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Take the shape of one sample and its type, float32 or int64."""
        self._sample = sample
        self._dtype = dtype.newbyteorder("<")
        self._native = dtype
        self._numbers = prod(sample)
        self._readings = prod(sample[:-1])

    def head(self, content: bytes) -> tuple[int, int, int]:
        """Flags, streams and samples of a request, before the rest of it is looked at.

        Raises:
            InputError: If it does not begin as a frame of this layout does.
        """
        if len(content) < HEAD_BYTES:
            raise InputError(f"A binary frame begins with {HEAD_BYTES} bytes of head, got {len(content)} in all.")
        version, flags, zero, streams, steps = _HEAD.unpack_from(content)
        if version != VERSION or zero or flags & ~_KNOWN_FLAGS:
            raise InputError(
                f"A binary frame begins with the version {VERSION}, flags of {_KNOWN_FLAGS} and a u16 of 0, got "
                f"{version}, {flags} and {zero}."
            )
        if not streams or not steps:
            raise InputError(f"A binary frame has at least 1 stream and 1 sample of it, got {streams} and {steps}.")
        return flags, streams, steps

    def tokens(self, content: bytes, flags: int, streams: int, steps: int) -> list[str]:
        """The state tokens of a request with ``RESTORE``, before the rest of it is checked.

        Args:
            content: The bytes of the frame.
            flags: From :meth:`head`.
            streams: Likewise.
            steps: Likewise.

        Raises:
            InputError: If a token is cut off.
            BadTokenError: If a token is not ASCII.
        """
        return _texts(content, self._tokens_at(flags, streams, steps), streams)[0]

    def _tokens_at(self, flags: int, streams: int, steps: int) -> int:
        at = HEAD_BYTES + 4 * streams + (8 * streams if flags & SEQUENCE else 0)
        return at + (4 * streams * steps * self._readings if flags & DT else 0)

    def read(self, content: bytes, flags: int, streams: int, steps: int) -> Frame:
        """The whole of a request.

        Args:
            content: The bytes of the frame.
            flags: From :meth:`head`.
            streams: Likewise.
            steps: Likewise.

        Raises:
            InputError: If a part is cut off, bytes are left over, or a stream is named twice.
            BadTokenError: If a token is not ASCII.
        """
        count, readings = streams * steps * self._numbers, streams * steps * self._readings
        size = count * self._dtype.itemsize
        sequence_at = HEAD_BYTES + 4 * streams
        dt_at = sequence_at + (8 * streams if flags & SEQUENCE else 0)
        at = self._tokens_at(flags, streams, steps)
        tokens = None
        if flags & RESTORE and at <= len(content):
            tokens, at = _texts(content, at, streams)
        if len(content) != at + size:
            raise InputError(f"The binary frame must have {at + size} bytes as its head says, got {len(content)}.")
        sequence = np.frombuffer(content, "<u8", streams, sequence_at) if flags & SEQUENCE else None
        dt = None
        if flags & DT:
            dt = np.frombuffer(content, "<f4", readings, dt_at).reshape(streams, steps, *self._sample[:-1])
        samples = np.frombuffer(content, self._dtype, count, at).reshape(streams, steps, *self._sample)
        # They may lie on any byte; the runtime's C code needs them aligned, and in the machine's order.
        if not samples.flags.aligned or self._dtype != self._native:
            samples = samples.astype(self._native)
        return Frame(flags, streams, steps, stream_numbers(content, streams), sequence, dt, tokens, samples)


def encode(flags: int, steps: Sequence[int], outputs: Sequence[Array], tokens: Sequence[str] | None) -> bytes:
    """Write an answer.

    Args:
        flags: Of the request.
        steps: Samples that each stream has taken.
        outputs: In the order of the hello, ``(S, K, ...)``.
        tokens: Of each stream, with ``TOKENS``.
    """
    streams = len(steps)
    head = _HEAD.pack(VERSION, flags, 0, streams, outputs[0].shape[1])
    parts = [head, struct.pack(f"<{streams}Q", *steps)]
    parts += [output.astype("<f4", copy=False).tobytes() for output in outputs]
    for token in tokens or ():
        parts.append(len(token).to_bytes(4, "little") + token.encode("ascii"))
    return b"".join(parts)


def stream_numbers(content: bytes, streams: int) -> list[int]:
    """The numbers of the streams of a request.

    Raises:
        InputError: If they are cut off, or one is named twice.
    """
    if len(content) < HEAD_BYTES + 4 * streams:
        raise InputError(
            f"The binary frame must have {HEAD_BYTES + 4 * streams} bytes for the numbers of {streams} streams alone, "
            f"got {len(content)}."
        )
    if streams == 1:
        return [int.from_bytes(content[HEAD_BYTES : HEAD_BYTES + 4], "little")]
    numbers: list[int] = np.frombuffer(content, "<u4", streams, HEAD_BYTES).tolist()
    if len(set(numbers)) < streams:
        ordered = sorted(numbers)
        twice = next(number for number, following in pairwise(ordered) if number == following)
        raise InputError(f"The stream {twice} is named twice in one binary frame; give its samples in one row.")
    return numbers


def _texts(content: bytes, at: int, count: int) -> tuple[list[str], int]:
    """As many texts, each after its length, and where they end."""
    texts = []
    for place in range(count):
        end = at + 4 + int.from_bytes(content[at : at + 4], "little")
        if at + 4 > len(content) or end > len(content):
            raise InputError(f"The binary frame ends within token {place} of {count}; each is its length and its text.")
        try:
            texts.append(content[at + 4 : end].decode("ascii"))
        except UnicodeDecodeError as error:
            raise BadTokenError(f"Token {place} of the binary frame is not ASCII; send it as it was given.") from error
        at = end
    return texts, at


def parse_frame(text: str) -> dict[str, Any]:
    """A text frame as JSON.

    Raises:
        InputError: If it is none, or no object.
    """
    return parse_object(text.encode())
