"""Events of streams: a sample each, checked one by one, so that a wrong one costs no other its answer."""

from __future__ import annotations

import itertools
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stablernn_runtime.covariates import observed_features
from stablernn_runtime.errors import InputError
from stablernn_runtime.served_model import ServedModel
from stablernn_runtime.stream_spec import stream_spec

Array = NDArray[Any]

MAX_NUMBER = 2**62
"""Numbers of events lie below it, so that one more is an int64 too."""


_ARRAYS = (list, tuple, np.ndarray)
Key = str | bytes | int
"""The name of a stream."""


class WaitingEvent(NamedTuple):
    """An event that came before its turn.

    Attributes:
        sample: Its sample; zeros where there is an error.
        dt: Time from the sample before; None for models without.
        error: Why the sample cannot be taken.
    """

    sample: Array
    dt: Array | None
    error: str | None


@dataclass
class Events:
    """Events in the order in which they are processed.

    Attributes:
        rows: Row of the stream of each event in the shard's arrays, ``(events,)``.
        numbers: Number of each event within its stream, ``(events,)``.
        gaps: Numbers that are skipped right before it, ``(events,)``.
        samples: One of each event, ``(events, ...)``.
        dt: Time from the sample before, ``(events,)``; None for models without.
        errors: Why a sample cannot be taken, by the position of its event.
    """

    rows: Array
    numbers: Array
    gaps: Array
    samples: Array
    dt: Array | None
    errors: dict[int, str]

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, positions: Array) -> Events:
        """Return the events at some positions, in their order."""
        errors = {}
        if self.errors:
            errors = {
                index: self.errors[position]
                for index, position in enumerate(positions.tolist())
                if position in self.errors
            }
        dt = None if self.dt is None else self.dt[positions]
        return Events(
            self.rows[positions], self.numbers[positions], self.gaps[positions], self.samples[positions], dt, errors
        )

    def waiting_event(self, position: int) -> WaitingEvent:
        """Return a copy of an event that does not keep the others alive."""
        dt = None if self.dt is None else self.dt[position].copy()
        return WaitingEvent(np.array(self.samples[position]), dt, self.errors.get(position))

    @classmethod
    def of_waiting(cls, events: Sequence[tuple[int, int, int, WaitingEvent]]) -> Events:
        """Return events that have waited: row, number, gap and event of each."""
        rows, numbers, gaps, waiting = zip(*events, strict=True)
        times = [event.dt for event in waiting if event.dt is not None]
        return cls(
            np.array(rows, np.int64),
            np.array(numbers, np.int64),
            np.array(gaps, np.int64),
            np.stack([event.sample for event in waiting]),
            np.stack(times) if times else None,
            {position: event.error for position, event in enumerate(waiting) if event.error is not None},
        )


def check_model(model: ServedModel) -> None:
    """Refuse a model whose streams need more than samples, ``dt`` and static values.

    Raises:
        NoStreamsError: If it needs complete sequences.
        InputError: If it reads values of later steps or the calendar, or answers more steps than its graph.
    """
    reasons = ["future values"] if "future" in model.step.inputs else []
    if len(observed_features(model.manifest)) < len(model.manifest.features or ()):
        reasons.append("the calendar")
    if reasons:
        raise InputError(
            f"{model.label} reads {' and '.join(reasons)} beside its samples, which a shard does not fill in: use the "
            "streams of a server."
        )
    if model.rollout is not None:
        raise InputError(
            f"{model.label} has a recursive head, which runs its own forecasts through the model after each sample; a "
            "shard does not. Train it with model.head=direct, or use the streams of a server."
        )


class SampleReader:
    """Reads the samples of events for one model.

    Attributes:
        shape: Shape of a sample.
        dtype: Type of samples.
        takes_dt: Whether samples have times, ``dt``.
    """

    def __init__(self, model: ServedModel) -> None:
        spec = stream_spec(model)
        self.shape: tuple[int, ...] = spec.graph_shape
        self.dtype: np.dtype[Any] = spec.dtype
        self.takes_dt = spec.takes_dt
        self._label = model.label
        self._features = list(model.manifest.features or ())
        # In float32 a dt may lie just above the number that it was written as.
        self._max_dt = np.inf if model.max_dt is None else model.max_dt * (1 + 1e-6)

    def sample_count(self, sample: Any) -> int | None:
        """Return how many samples an event has that is an array of samples; None for one that is a sample."""
        inner = sample
        for _ in self.shape:
            if not isinstance(inner, _ARRAYS) or not len(inner):
                return None
            inner = inner[0]
        return len(sample) if isinstance(inner, _ARRAYS) and np.ndim(inner) else None

    def read(self, samples: Any, dt: Any, count: int) -> tuple[Array, Array | None, dict[int, str]]:
        """Return samples as the step graph takes them, their times, and the errors by position.

        Args:
            samples: ``(count, ...)``, an array or nested lists; None is a missing value.
            dt: ``(count,)``, 1 where it is None.
            count: Number of events.

        Raises:
            InputError: If there are not ``count`` samples, or ``dt`` does not fit the model.
        """
        if len(samples) != count:
            raise InputError(f"There are {count} keys and {len(samples)} samples; each event has one of both.")
        errors: dict[int, str] = {}
        values = self._as_array(samples)
        if values is None:
            values = self._read_one_by_one(samples, errors)
        x = self._check_values(values, errors)
        return x, self._read_dt(dt, count, errors), errors

    def _as_array(self, samples: Any) -> Array | None:
        """Return samples that all have the right shape and kind; None otherwise."""
        try:
            values = np.asarray(samples)
            is_typed = isinstance(samples, np.ndarray) and values.dtype.kind != "O"
            if not is_typed and not _holds_numbers(samples, len(self.shape)):
                return None
            if values.dtype.kind == "O" and self.dtype.kind == "f":
                values = np.array(samples, np.float64)
        except (ValueError, TypeError, OverflowError):
            # Of different shapes, no numbers, or beyond float64.
            return None
        kinds = "iu" if self.dtype.kind == "i" else "iuf"
        is_right = values.shape[1:] == self.shape and values.dtype.kind in kinds
        return values if is_right or len(values) == 0 else None

    def _read_one_by_one(self, samples: Any, errors: dict[int, str]) -> Array:
        x = np.zeros((len(samples), *self.shape), np.int64 if self.dtype.kind == "i" else np.float64)
        for position, sample in enumerate(samples):
            value = self._as_array([sample])
            if value is not None:
                x[position] = value[0]
                continue
            kind = "whole numbers" if self.dtype.kind == "i" else "numbers"
            errors[position] = (
                f"The sample must hold {kind} in the shape {self.shape} for {self._label}, got {reprlib.repr(sample)}."
            )
        return x

    def _check_values(self, values: Array, errors: dict[int, str]) -> Array:
        if self.dtype.kind == "i":
            is_unknown = (values < 0) | (values >= len(self._features))
            for position in np.flatnonzero(is_unknown):
                errors[int(position)] = (
                    f"The token must be from 0 to {len(self._features) - 1} for {self._label}, got {values[position]}."
                )
            # Tokens that are not taken must not reach the graph.
            return np.where(is_unknown, 0, values).astype(self.dtype)
        values = values.reshape(len(values), *self.shape)
        # float64 beyond float32 becomes infinite.
        with np.errstate(over="ignore"):
            x = values.astype(self.dtype)
        is_infinite = np.isinf(x)
        if is_infinite.any():
            for position in np.flatnonzero(is_infinite.reshape(len(x), -1).any(axis=1)):
                feature = self._features[int(np.argwhere(is_infinite[position])[0][-1])]
                errors[int(position)] = f"{feature} is infinite or beyond float32."
        return x

    def _read_dt(self, dt: Any, count: int, errors: dict[int, str]) -> Array | None:
        if not self.takes_dt:
            if dt is not None:
                raise InputError(f"{self._label} takes no dt; its samples are one regular step apart.")
            return None
        shape = (count,)
        if dt is None:
            return np.ones(shape, np.float32)
        values = np.asarray(dt)
        if values.shape != shape or values.dtype.kind not in "iuf":
            raise InputError(f"dt must hold numbers in the shape {shape} for {self._label}, got {values.shape}.")
        times = values.astype(np.float32)
        # NaN compares as false.
        is_wrong = ~((times >= 0) & (times <= self._max_dt) & np.isfinite(times))
        for position in np.flatnonzero(is_wrong):
            limit = "" if np.isinf(self._max_dt) else f" and at most {self._max_dt:g}"
            errors.setdefault(int(position), f"dt must be 0 or more{limit}, got {times[position].tolist()}.")
        return np.where(is_wrong, np.float32(1), times)


def split_events(
    reader: SampleReader, keys: list[Any], numbers: Array, samples: Any, dt: Any, static: Any
) -> tuple[list[Any], Array, Any, Any, Any]:
    """Return events of one sample each in place of those that have several, whose numbers are those of their first.

    Args:
        reader: Reader of the samples.
        keys: Key of each event.
        numbers: Number of each event.
        samples: A sample of each event, or an array of samples.
        dt: A number for each event, or an array of one for each of its samples; may be None.
        static: Values that do not change, ``(events, names)``; may be None.

    Raises:
        InputError: If an event of several samples has not as many ``dt``.
    """
    if len(samples) != len(keys):
        # Refused where samples are read.
        return keys, numbers, samples, dt, static
    if isinstance(samples, np.ndarray) and samples.ndim <= 1 + len(reader.shape):
        return keys, numbers, samples, dt, static
    sizes = list(map(reader.sample_count, samples))
    if not any(sizes):
        return keys, numbers, samples, dt, static
    if dt is not None:
        times = [[time] if size is None else list(np.atleast_1d(time)) for time, size in zip(dt, sizes, strict=True)]
        for time, size, key in zip(times, sizes, keys, strict=True):
            if len(time) != (size or 1):
                raise InputError(f"An event of {key!r} has {size} samples and {len(time)} dt; each sample has one.")
        dt = list(itertools.chain.from_iterable(times))
    counts = np.array([size or 1 for size in sizes])
    events = np.repeat(np.arange(len(keys)), counts)
    places = np.arange(len(events)) - np.repeat(np.cumsum(counts) - counts, counts)
    flat = [
        part for sample, size in zip(samples, sizes, strict=True) for part in ([sample] if size is None else sample)
    ]
    return (
        [keys[event] for event in events.tolist()],
        read_numbers(numbers[events] + places, len(events)),
        flat,
        dt,
        None if static is None else np.asarray(static)[events],
    )


def _holds_numbers(samples: Any, depth: int) -> bool:
    """Return whether nested lists hold numbers and None only.

    NumPy turns bools beside numbers, and text beside None, into numbers. Whether a sample is taken would then depend on
    the other samples of the call.
    """
    for _ in range(depth):
        samples = itertools.chain.from_iterable(samples)
    kinds = set(map(type, samples)) - {int, float, type(None)}
    return bool not in kinds and all(issubclass(kind, Real) for kind in kinds)


def read_numbers(numbers: Any, count: int) -> Array:
    """Return the numbers of events as int64.

    Raises:
        InputError: If they are not ``count`` whole numbers from 0 on.
    """
    values = np.asarray(numbers)
    if values.size == 0 and count == 0:
        return np.zeros(0, np.int64)
    if values.shape != (count,) or values.dtype.kind not in "iu":
        raise InputError(
            f"numbers must hold {count} whole numbers, one for each key, got {values.dtype} of the shape "
            f"{values.shape}."
        )
    if values.min() < 0 or values.max() >= MAX_NUMBER:
        raise InputError(f"Numbers of events are from 0 to 2**62 - 1, got {values.min()} to {values.max()}.")
    return values.astype(np.int64)


def read_keys(keys: Any) -> list[Any]:
    """Return keys as a list.

    Raises:
        InputError: If one is not text, bytes or a whole number.
    """
    values = keys.tolist() if isinstance(keys, np.ndarray) else list(keys)
    # In Python, True is 1, and would be the same key.
    wrong = set(map(type, values)) - {str, bytes, int}
    if wrong:
        names = ", ".join(sorted(kind.__name__ for kind in wrong))
        raise InputError(f"Keys are str, bytes or int, got {names}.")
    return values


def split_rounds(rows: Array, numbers: Array) -> list[Array]:
    """Return positions of events in rounds, each with at most one event of a stream, in the order of their numbers."""
    count = len(rows)
    if count == 0:
        return []
    order = np.lexsort((numbers, rows))
    sorted_rows = rows[order]
    begins = np.flatnonzero(np.concatenate([[True], sorted_rows[1:] != sorted_rows[:-1]]))
    if len(begins) == count:
        return [np.arange(count)]
    # Place of each event among those of its stream.
    places = np.arange(count) - np.repeat(begins, np.diff(np.append(begins, count)))
    by_place = order[np.argsort(places, kind="stable")]
    return [np.sort(part) for part in np.split(by_place, np.cumsum(np.bincount(places))[:-1])]


@dataclass
class StreamCounts:
    """Counts of the events of a shard since it began, restarts from checkpoints included.

    Attributes:
        events: Events that came, repeated and late ones included.
        answered_again: Events that repeated the last one of their key, and got its answer.
        duplicates: Events that repeated one which was still waiting for its turn; the first of them is answered.
        late: Events older than the last of their key, which were dropped.
        gaps: Numbers that were skipped because their events did not come in time.
        errors: Events whose answer is an error.
    """

    events: int = 0
    answered_again: int = 0
    duplicates: int = 0
    late: int = 0
    gaps: int = 0
    errors: int = 0


@dataclass(frozen=True)
class StreamAnswers:
    """Answers to events, a row each; those of one key are in the order of their numbers.

    Attributes:
        keys: The key of each event.
        numbers: Its number within the key, ``(answers,)``.
        outputs: Outputs of the model by name, ``(answers, ...)``; NaN where there is an error.
        gaps: How many numbers were skipped since the answer before, ``(answers,)``.
        is_again: True where the event had been answered before, ``(answers,)``.
        errors: Why there is no answer; None where there is one.
    """

    keys: list[Key]
    numbers: Array
    outputs: dict[str, Array]
    gaps: Array
    is_again: Array
    errors: list[str | None]

    def __len__(self) -> int:
        return len(self.keys)

    def columns(self) -> dict[str, Any]:
        """Return the answers as columns: ``key``, ``number``, the outputs by name, ``gap``, ``again``, ``error``."""
        return {
            "key": self.keys,
            "number": self.numbers,
            **self.outputs,
            "gap": self.gaps,
            "again": self.is_again,
            "error": self.errors,
        }

    @classmethod
    def concatenate(cls, parts: Sequence[StreamAnswers]) -> StreamAnswers:
        """Return the answers of one part after the other; there is at least one."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            [key for part in parts for key in part.keys],
            np.concatenate([part.numbers for part in parts]),
            {name: np.concatenate([part.outputs[name] for part in parts]) for name in parts[0].outputs},
            np.concatenate([part.gaps for part in parts]),
            np.concatenate([part.is_again for part in parts]),
            [error for part in parts for error in part.errors],
        )
