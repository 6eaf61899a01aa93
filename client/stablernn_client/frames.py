"""Messages of ``/v1/stream``, binary frames and text, in the layout of ``docs/reference/http.md``."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import prod
from typing import Any, TypeAlias, cast

import numpy as np
import orjson

from stablernn_client.arrays import Array, Numbers, number_array
from stablernn_client.errors import BadRequest, ProtocolError

Moment: TypeAlias = str | float | datetime
"""A time: ISO 8601, or a number of regular steps from any origin."""

MAX_STEPS_PER_MESSAGE = 32
"""Steps in one message, of samples that are all available at once."""
MAX_MERGED_NUMBERS = 2**14
"""Numbers in one merged message, far below any server's limit of one message."""

_VERSION = 1
# Flags of a frame.
_TOKENS, _LAST_ONLY, _SEQUENCE, _SPACING, _RESTORE = 1, 2, 4, 8, 16

# Version, flags, reserved, streams, steps.
_HEADER = struct.Struct("<BBHII")
_TOKEN_LENGTH = struct.Struct("<I")
_STEP_DTYPE = np.dtype("<u8")
_VALUE_DTYPE = np.dtype("<f4")
_DTYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype(np.float32), "INT64": np.dtype(np.int64)}


@dataclass(frozen=True)
class StreamInfo:
    """The first message of a WebSocket.

    Attributes:
        model: Name of the model.
        version: Its version.
        digest: Digest of the version.
        sample_shape: Shape of one sample.
        patch_stride: Samples after which a stream has outputs; 1 for models without patches.
        dtype: Data type of the samples: float32, or int64 for models of text tokens.
        outputs: Shapes of the outputs after a sample, by name.
        labels: Class labels of a classifier; None for other models.
        max_streams: Maximum number of streams on one WebSocket.
        has_new_streams: True if new streams can start with this version; if False, streams can only resume from state
            tokens.
    """

    model: str
    version: str
    digest: str
    sample_shape: tuple[int, ...]
    patch_stride: int
    dtype: np.dtype[Any]
    outputs: dict[str, tuple[int, ...]]
    labels: tuple[str, ...] | None
    max_streams: int
    has_new_streams: bool

    @classmethod
    def parse(cls, message: Mapping[str, Any]) -> StreamInfo:
        """Parse the server's first message.

        Raises:
            ProtocolError: If it is not such a message.
        """
        try:
            return cls(
                model=str(message["model"]),
                version=str(message["model_version"]),
                digest=str(message["digest"]),
                sample_shape=tuple(int(size) for size in message["sample_shape"]),
                patch_stride=int(message["patch_stride"]),
                dtype=_DTYPES[message["datatype"]],
                outputs={output["name"]: tuple(int(size) for size in output["shape"]) for output in message["outputs"]},
                labels=None if message["labels"] is None else tuple(message["labels"]),
                max_streams=int(message["max_streams"]),
                has_new_streams=bool(message["new_streams"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            # Also another service's message, which has none of these fields.
            raise ProtocolError(f"The server's first message does not describe its streams ({error!r}).") from error


@dataclass(frozen=True, eq=False)
class StreamRequest:
    """Checked samples of one or several steps of all streams of a channel.

    Attributes:
        values: ``(streams, steps, *sample_shape)``.
        dt: ``(streams, steps)``, or None.
        text_fields: ``time``, ``future``, ``horizon`` and ``static``, which only a text message can carry.
    """

    values: Array
    dt: Array | None
    text_fields: Mapping[str, Any]

    @property
    def steps(self) -> int:
        return int(self.values.shape[1])

    @classmethod
    def check(
        cls, values: Numbers, dt: Numbers | None, info: StreamInfo, count: int, text_fields: Mapping[str, Any]
    ) -> StreamRequest:
        """Return the request for samples that fit the model.

        Args:
            values: ``(streams, steps, *sample_shape)``.
            dt: ``(streams, steps)``, or None.
            info: The server's description of the model.
            count: Number of streams.
            text_fields: As the attribute.

        Raises:
            BadRequest: If they do not fit.
        """
        array = number_array(values, "values")
        expected = ", ".join(["streams", "steps", *map(str, info.sample_shape)])
        if array.ndim < 2 or array.shape[0] != count or array.shape[1] == 0 or array.shape[2:] != info.sample_shape:
            raise BadRequest(
                f"The samples must have the shape ({expected}) with {count} streams and at least 1 step, "
                f"got {tuple(array.shape)}."
            )
        if info.dtype.kind == "i" and array.dtype.kind not in "iu":
            raise BadRequest(f"{info.model} takes tokens, which must be integers, got {array.dtype.name}.")
        # A float64 beyond float32 becomes infinite, which is reported below.
        with np.errstate(over="ignore"):
            # A copy: the caller may fill the same array with the next samples before these are sent again.
            samples = np.array(array, info.dtype, order="C")
        if info.dtype.kind == "f" and np.isinf(samples).any():
            raise BadRequest(
                "The samples hold an infinite number, or one beyond float32; values must be finite, and a missing one "
                "is NaN."
            )
        spacing = None if dt is None else np.array(number_array(dt, "dt"), np.float32)
        if spacing is not None and spacing.shape != array.shape[:2]:
            raise BadRequest(
                f"dt must hold a number for each sample, {array.shape[:2]}, got the shape {spacing.shape}."
            )
        return cls(samples, spacing, text_fields)


def merge_requests(requests: Sequence[StreamRequest]) -> list[StreamRequest]:
    """Return the same samples in fewer messages of limited length: over a slow line each one costs a round trip."""
    merged: list[StreamRequest] = []
    for request in requests:
        last = merged[-1] if merged else None
        # Text fields belong to the samples of their own message, and a message has dt for all of its steps or for none.
        if (
            last is None
            or last.text_fields
            or request.text_fields
            or (last.dt is None) != (request.dt is None)
            or last.steps + request.steps > MAX_STEPS_PER_MESSAGE
            or last.values.size + request.values.size > MAX_MERGED_NUMBERS
        ):
            merged.append(request)
            continue
        dt = None if last.dt is None or request.dt is None else np.concatenate([last.dt, request.dt], axis=1)
        merged[-1] = StreamRequest(np.concatenate([last.values, request.values], axis=1), dt, {})
    return merged


def encode_text_fields(
    time: Moment | Sequence[Moment] | None, future: Mapping[str, Any] | None, horizon: int | None
) -> dict[str, Any]:
    """Return the arguments that are not None as fields of a text message."""
    fields: dict[str, Any] = {}
    if time is not None:
        if isinstance(time, str | float | int | datetime):
            fields["time"] = _encode_moment(time)
        else:
            fields["time"] = [_encode_moment(moment) for moment in time]
    if future is not None:
        fields["future"] = dict(future)
    if horizon is not None:
        fields["horizon"] = horizon
    return fields


def _encode_moment(moment: Moment) -> str | float:
    return moment.isoformat() if isinstance(moment, datetime) else moment


def single_sample(sample: Numbers, dt: Numbers | None, shape: tuple[int, ...]) -> tuple[Array, Array | None]:
    """Return one sample of one stream as ``(1, 1, *shape)``, and its ``dt`` with the same two leading axes.

    A number is a sample of one feature.

    Raises:
        BadRequest: If the sample holds anything but numbers.
    """
    values = number_array(sample, "The sample")
    if shape == (1,) and values.ndim == 0:
        values = values[None]
    return values[None, None], None if dt is None else number_array(dt, "dt")[None, None]


def split_samples(
    samples: Numbers | Iterable[Numbers], dt: Numbers | None, shape: tuple[int, ...]
) -> Iterator[tuple[Array, Array | None]]:
    """Yield the samples ``(1, steps, *shape)`` and ``dt`` ``(1, steps)`` of each message of a single stream.

    Args:
        samples: An array or a list, which is split into messages of several steps, or an iterable, each sample of which
            is a message of its own, sent as it comes.
        dt: One number for each sample; only with an array or a list.
        shape: Shape of one sample; numbers are samples of one feature.

    Raises:
        BadRequest: If there is not one ``dt`` for each sample, or the samples hold anything but numbers.
    """
    if not isinstance(samples, np.ndarray | list | tuple):
        if dt is not None:
            raise BadRequest("dt needs an array or a list of samples; otherwise pass it to step() with each sample.")
        for sample in cast(Iterable[Numbers], samples):
            yield single_sample(sample, None, shape)
        return
    values = number_array(samples, "The samples")
    if shape == (1,) and values.ndim == 1:
        values = values[:, None]  # (steps, 1)
    spacing = None if dt is None else number_array(dt, "dt")
    if spacing is not None and spacing.shape[:1] != values.shape[:1]:
        raise BadRequest(f"dt must hold a number for each of the {len(values)} samples, got the shape {spacing.shape}.")
    for start in range(0, len(values), MAX_STEPS_PER_MESSAGE):
        steps = slice(start, start + MAX_STEPS_PER_MESSAGE)
        yield values[None, steps], None if spacing is None else spacing[None, steps]


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
    flags = _TOKENS * want_tokens | _LAST_ONLY * last_only
    # The order of the sections is that of docs/reference/http.md: stream numbers, sequence, dt, tokens, values.
    sections = [np.arange(streams, dtype="<u4").tobytes()]
    if sequence is not None:
        flags |= _SEQUENCE
        sections.append(sequence.astype(_STEP_DTYPE).tobytes())
    if request.dt is not None:
        flags |= _SPACING
        sections.append(request.dt.astype(_VALUE_DTYPE).tobytes())
    if restore is not None:
        flags |= _RESTORE
        for token in restore:
            sections += [_TOKEN_LENGTH.pack(len(token)), token.encode("ascii")]
    # float32 or int64, little-endian on every machine.
    values = request.values.astype(request.values.dtype.newbyteorder("<"), copy=False)
    return b"".join([_HEADER.pack(_VERSION, flags, 0, streams, steps), *sections, values.tobytes()])


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
        if (version, got_streams) != (_VERSION, streams):
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
        if flags & _TOKENS:
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
