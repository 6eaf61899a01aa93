"""Samples of one message of a stream, checked, split into messages and merged again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, cast

import numpy as np

from stablernn_client.arrays import Array, Numbers, number_array
from stablernn_client.errors import BadRequest
from stablernn_client.stream_info import StreamInfo

Moment: TypeAlias = str | float | datetime
"""A time: ISO 8601, or a number of regular steps from any origin."""

MAX_STEPS_PER_MESSAGE = 32
"""Steps in one message, of samples that are all available at once."""
MAX_MERGED_NUMBERS = 2**14
"""Numbers in one merged message, far below any server's limit of one message."""


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
