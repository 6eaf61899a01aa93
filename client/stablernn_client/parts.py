"""What one message of a stream carries: samples of all its streams, and what is known beside them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias, cast

import numpy as np

from stablernn_client.errors import BadRequest
from stablernn_client.results import Array
from stablernn_client.stream_info import StreamInfo
from stablernn_client.tensors import Numbers, numbers

Moment: TypeAlias = str | float | datetime
"""A time: ISO 8601, or a number of regular steps from anywhere."""

STEPS_AT_A_TIME = 32
"""Steps of one message, of samples that are all there."""
MOST_MERGED = 2**14
"""Numbers up to which messages are sent again as one, far below any server's limit of one message."""


@dataclass(frozen=True, eq=False)
class Part:
    """Checked samples.

    Attributes:
        values: ``(streams, steps, *sample_shape)``.
        dt: ``(streams, steps, *sample_shape[:-1])``, or None.
        beside: What only a text message can carry: ``time``, ``future``, ``horizon``, ``static``.
    """

    values: Array
    dt: Array | None
    beside: Mapping[str, Any]

    @property
    def steps(self) -> int:
        return int(self.values.shape[1])

    @classmethod
    def checked(
        cls, values: Numbers, dt: Numbers | None, info: StreamInfo, count: int, beside: Mapping[str, Any]
    ) -> Part:
        """Samples that fit the model.

        Raises:
            BadRequest: If they do not.
        """
        array = numbers(values, "values")
        wanted = ", ".join(["streams", "steps", *map(str, info.sample_shape)])
        if array.ndim < 2 or array.shape[0] != count or array.shape[1] == 0 or array.shape[2:] != info.sample_shape:
            raise BadRequest(
                f"The samples must have the shape ({wanted}) with {count} streams and at least 1 step, "
                f"got {tuple(array.shape)}."
            )
        if info.dtype.kind == "i" and array.dtype.kind not in "iu":
            raise BadRequest(f"{info.model} takes tokens, which are whole numbers, got {array.dtype.name}.")
        with np.errstate(over="ignore"):
            # A copy: the caller may fill the same array with the next samples before these are sent again.
            sent = np.array(array, info.dtype, order="C")
        if info.dtype.kind == "f" and np.isinf(sent).any():
            raise BadRequest(
                "The samples hold an infinite number, or one beyond float32; values must be finite, and a missing one "
                "is NaN."
            )
        spacing = None if dt is None else np.array(numbers(dt, "dt"), np.float32)
        # A sample of a model of patches holds several readings.
        readings = array.shape[: max(array.ndim - 1, 2)]
        if spacing is not None and spacing.shape != readings:
            raise BadRequest(f"dt must hold a number for each reading, {readings}, got the shape {spacing.shape}.")
        return cls(sent, spacing, beside)


def merged(parts: Sequence[Part]) -> list[Part]:
    """The same samples in fewer messages, none of them long: over a slow line each costs a way there and back."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if (
            last is None
            or last.beside
            or part.beside
            or (last.dt is None) != (part.dt is None)
            or last.steps + part.steps > STEPS_AT_A_TIME
            or last.values.size + part.values.size > MOST_MERGED
        ):
            found.append(part)
            continue
        dt = None if last.dt is None or part.dt is None else np.concatenate([last.dt, part.dt], axis=1)
        found[-1] = Part(np.concatenate([last.values, part.values], axis=1), dt, {})
    return found


def beside(
    time: Moment | Sequence[Moment] | None, future: Mapping[str, Any] | None, horizon: int | None
) -> dict[str, Any]:
    """What goes with the samples in a text message, where it is given."""
    found: dict[str, Any] = {}
    if time is not None:
        if isinstance(time, str | float | int | datetime):
            found["time"] = _moment(time)
        else:
            found["time"] = [_moment(item) for item in time]
    if future is not None:
        found["future"] = dict(future)
    if horizon is not None:
        found["horizon"] = horizon
    return found


def _moment(value: Moment) -> str | float:
    return value.isoformat() if isinstance(value, datetime) else value


def single(sample: Numbers, dt: Numbers | None, shape: tuple[int, ...]) -> tuple[Array, Array | None]:
    """One sample of one stream as ``(1, 1, *shape)``, its ``dt`` likewise; a number is a sample of one feature.

    Raises:
        BadRequest: If the sample holds anything but numbers.
    """
    values = numbers(sample, "The sample")
    if shape == (1,) and values.ndim == 0:
        values = values[None]
    return values[None, None], None if dt is None else numbers(dt, "dt")[None, None]


def chunks(
    samples: Numbers | Iterable[Numbers], dt: Numbers | None, shape: tuple[int, ...]
) -> Iterator[tuple[Array, Array | None]]:
    """Samples ``(1, steps, *shape)`` and ``dt`` ``(1, steps)`` of one stream, for one message after the other.

    Args:
        samples: An array or a list, which is cut into messages of several steps, or an iterable, each sample of which
            goes out as it comes.
        dt: One number for each sample; of an array or a list only.
        shape: Of one sample; numbers are samples of one feature.

    Raises:
        BadRequest: If there is not one ``dt`` for each sample, or the samples hold anything but numbers.
    """
    if not isinstance(samples, np.ndarray | list | tuple):
        if dt is not None:
            raise BadRequest("dt goes with an array or a list of samples; give it to step() with each sample instead.")
        for sample in cast(Iterable[Numbers], samples):
            yield single(sample, None, shape)
        return
    values = numbers(samples, "The samples")
    if shape == (1,) and values.ndim == 1:
        values = values[:, None]
    spacing = None if dt is None else numbers(dt, "dt")
    if spacing is not None and spacing.shape[:1] != values.shape[:1]:
        raise BadRequest(f"dt must hold a number for each of the {len(values)} samples, got the shape {spacing.shape}.")
    for at in range(0, len(values), STEPS_AT_A_TIME):
        part = slice(at, at + STEPS_AT_A_TIME)
        yield values[None, part], None if spacing is None else spacing[None, part]
