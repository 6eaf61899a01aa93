"""The time of a stream: its last reading, and the distance of the readings that follow."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stablernn_runtime.calendar import describe_unix_time, step_seconds, step_times, unix_seconds
from stablernn_runtime.errors import InputError, MissingStepsError, TimeOrderError, cut

_MAX_COUNTED_STEPS = 2**20
"""Steps up to which a gap is counted; beyond it the error says only that there is one."""

_CHUNK = 4096
"""Times that are compared with the calendar at a time."""

Moment = str | float
"""A time as a client writes it: ISO 8601, or a number of regular steps from wherever it counts."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The time of the last reading that a stream has taken.

    Attributes:
        origin: A time that the client gave; None while it has given none.
        steps: Regular steps from there to the last reading; a fraction in irregular time.
    """

    origin: Moment | None = None
    steps: float = 0.0

    @property
    def text(self) -> str:
        """The time as errors name it."""
        if isinstance(self.origin, str):
            offset = f", and {self.steps:g} steps" if self.steps else ""
            return f"'{self.origin}'{offset}"
        return f"{(self.origin or 0.0) + self.steps:.17g}"

    def advance_regular(self, moments: Sequence[Moment], count: int, frequency: str | None) -> Clock:
        """Return the clock after ``count`` samples of regular steps, if the times that came with them are right.

        Args:
            moments: The time of the first sample, or of each; empty if the client gave none.
            count: Samples.
            frequency: Frequency of the regular steps; None without a calendar.

        Raises:
            MissingStepsError: If steps are left out.
            TimeOrderError: If a time does not lie one step after the reading before it.
            InputError: If a time cannot be read.
        """
        if not moments:
            return self if self.origin is None else Clock(self.origin, self.steps + count)
        # The first time of a stream is right whatever it is: the clock starts one step before it.
        position, start = (1, Clock(moments[0], -1.0)) if self.origin is None else (0, self)
        if self.origin is None:
            _check_no_unix_time(moments[0], frequency)
        _check_kinds(moments, start)
        instants = np.array([parse_moment(moment, frequency) for moment in moments])
        while position < len(moments):
            before = Clock(start.origin, start.steps + position)
            position += before._count_on_time(instants[position : position + _CHUNK], frequency)
            if position < len(moments):
                Clock(start.origin, start.steps + position)._check_next(moments[position], frequency)
                position += 1
        return Clock(start.origin, start.steps + count)

    def advance_irregular(
        self, moments: Sequence[Moment], is_first: bool, frequency: str | None
    ) -> tuple[NDArray[np.float32], Clock]:
        """Return the times between readings in regular steps, for models that take them, and the clock after them.

        Args:
            moments: The time of each reading, at least one.
            is_first: Whether the stream begins with them: then the first of these distances does not count and is 1.
            frequency: Length of a regular step, for times that are ISO 8601.

        Raises:
            TimeOrderError: If a time does not lie after the one before.
            InputError: If a time cannot be read or measured.
        """
        if self.origin is None and not is_first:
            raise InputError(
                "The time of the sample before is not known: the stream began without times. Give dt, the time since "
                "then in regular steps, or begin a new stream with time."
            )
        if self.origin is None:
            _check_no_unix_time(moments[0], frequency)
        _check_kinds(moments, Clock(moments[0]) if self.origin is None else self)
        instants = np.array([parse_moment(moment, frequency) for moment in moments])
        dt = np.ones(len(moments), np.float32)
        # The first reading of a stream has none before it.
        measured = len(moments) - (self.origin is None)
        if measured:
            unit, previous = _unit(moments[0], frequency), instants[:-1]
            if self.origin is not None:
                previous = np.concatenate([[parse_moment(self.origin, frequency) + self.steps * unit], previous])
            gaps = instants[-measured:] - previous
            if (gaps <= 0).any():
                position = len(moments) - measured + int(np.argmax(gaps <= 0))
                raise (Clock(moments[position - 1]) if position else self)._not_after(moments[position])
            dt[-measured:] = gaps / unit
        return dt, Clock(moments[-1])

    def seconds(self, first: int, count: int, frequency: str | None) -> NDArray[np.float64]:
        """Return the times of regular steps in seconds since 1970-01-01T00:00Z, ``(count,)``.

        Args:
            first: Steps from the last reading to the first of them; negative before it.
            count: Number of steps.
            frequency: Frequency of the steps.

        Raises:
            InputError: If the origin is not ISO 8601, there is no frequency, or a step lies outside of the years that
                can be counted.
        """
        if not isinstance(self.origin, str) or frequency is None:
            raise InputError(
                "The calendar of this model needs ISO 8601 times such as '2024-01-31T06:00:00Z'; begin a new stream "
                "with one as time."
            )
        return step_times(self.origin, int(self.steps) + first, count, frequency)

    def _count_on_time(self, instants: NDArray[np.float64], frequency: str | None) -> int:
        """Return how many of ``instants`` are right, from the front: each one step after the other.

        The first that is not may be right after all: :meth:`_check_next` decides, and has the error.
        """
        count = len(instants)
        if isinstance(self.origin, str):
            try:
                due = self.seconds(1, count, frequency)
            except InputError:
                # Beyond the years that are counted, but the first of them may lie within.
                return self._count_on_time(instants[: count // 2], frequency) if count > 1 else 0
            is_right = np.abs(instants - due) < 1e-5
        else:
            assert self.origin is not None
            ahead = instants - self.origin - (self.steps + np.arange(count))
            is_right = (np.rint(ahead) == 1) & (np.abs(ahead - 1) <= 1e-6 * np.maximum(1.0, np.abs(instants)))
        # argmin: the first that is False.
        return count if is_right.all() else int(np.argmin(is_right))

    def _check_next(self, moment: Moment, frequency: str | None) -> None:
        """Raise unless ``moment`` is one regular step on.

        Raises:
            MissingStepsError: If it lies several steps on.
            TimeOrderError: If it lies on no regular step, or not after the last reading.
        """
        if not isinstance(moment, str):
            assert isinstance(self.origin, float)
            ahead = moment - self.origin - self.steps
            # Relative: the rounding of a large number of steps may be larger than a part of one.
            is_on_grid = abs(ahead - round(ahead)) <= 1e-6 * max(1.0, abs(moment))
            steps = round(ahead) if is_on_grid else None
            if not is_on_grid and ahead > 0:
                raise self._off_grid(moment, "steps of 1")
        else:
            target = parse_moment(moment, frequency)
            now = self.seconds(0, 1, frequency)[0]
            steps = 0 if target <= now else self._count_steps_to(target, frequency)
            if steps is None:
                raise self._off_grid(moment, f"steps of '{frequency}'")
        if steps is None or steps < 1:
            raise self._not_after(moment)
        if steps > 1:
            missing = "1 step is" if steps == 2 else f"{steps - 1} steps are"
            raise MissingStepsError(
                f"The time {_quote(moment)} lies {steps} regular steps after {self.text}: {missing} missing. Send null "
                "values for each of them first, or the model takes the times that follow for earlier ones."
            )

    def _count_steps_to(self, target: float, frequency: str | None) -> int | None:
        """Return the steps from the last reading to ``target``; None where it lies on none of the next million."""

        def lies_before(steps: int) -> bool:
            try:
                return bool(self.seconds(steps, 1, frequency)[0] < target - 1e-5)
            except InputError:
                # Beyond the years that are counted, and so beyond the target.
                return False

        # Steps may differ in length, as months do: the number is found by doubling and bisection.
        low, high = 1, 1
        while high < _MAX_COUNTED_STEPS and lies_before(high):
            low, high = high, high * 2
        low = low + bisect_left(range(low, high), True, key=lambda steps: not lies_before(steps))
        return low if abs(self.seconds(low, 1, frequency)[0] - target) < 1e-5 else None

    def _not_after(self, moment: Moment) -> TimeOrderError:
        return TimeOrderError(
            f"The time {_quote(moment)} does not lie after {self.text}, the time of the reading before it; samples "
            "must come in the order of their times, each time once."
        )

    def _off_grid(self, moment: Moment, steps: str) -> TimeOrderError:
        return TimeOrderError(
            f"The time {_quote(moment)} lies on none of the model's regular {steps} after {self.text}. Give the times "
            "of regular steps, with null values where there is none."
        )


def parse_moment(moment: Moment, frequency: str | None) -> float:
    """Return a time as seconds since 1970, or as the number that it is.

    Args:
        moment: The time.
        frequency: Frequency of the model's regular steps, without which text cannot be counted in steps.

    Raises:
        InputError: If it is neither ISO 8601 nor a finite number, or the model's steps cannot be counted by it.
    """
    if not isinstance(moment, str):
        if not abs(moment) <= 2.0**52:
            raise InputError(f"time must be a finite number of regular steps below 2**52, got {moment:g}.")
        return moment
    if frequency is None:
        raise InputError(
            f"The time '{cut(moment)}' cannot be counted in steps: the model was trained without a frequency of the "
            "calendar. Give time as a number of regular steps, or dt where the model takes it."
        )
    try:
        return unix_seconds(moment)
    except (ValueError, OverflowError) as error:
        raise InputError(f"time must be ISO 8601, such as '2024-01-31T06:00:00Z', got '{cut(moment)}'.") from error


def as_moments(value: object, limit: int, label: str = "time") -> list[Moment]:
    """Return the times in ``value`` of a request, which is one time or an array of them.

    Args:
        value: From JSON; an array of numbers may be one of numpy.
        limit: How many there may be.
        label: Name of the field, for errors.

    Raises:
        InputError: If it is anything else, an empty array, or more than ``limit`` times.
    """
    entries = value if isinstance(value, list | np.ndarray) else [value]
    if len(entries) > limit:
        raise InputError(f"{label} must hold at most one time for each reading, {limit}, got {len(entries)}.")
    if isinstance(entries, np.ndarray):
        entries = entries.tolist()
    moments: list[Moment] = []
    for entry in entries:
        # In Python, a bool is an int.
        if isinstance(entry, bool) or not isinstance(entry, str | int | float):
            raise InputError(
                f"{label} must be ISO 8601 text or a number of regular steps, or an array of these, got {entry!r:.60}."
            )
        if isinstance(entry, str) and len(entry) > 64:
            raise InputError(f"{label} must be ISO 8601, such as '2024-01-31T06:00:00Z', got '{cut(entry, 64)}'.")
        moments.append(entry if isinstance(entry, str) else float(entry))
    if not moments:
        raise InputError(f"{label} is an empty array; leave it out, or give the time of each sample.")
    return moments


def _check_no_unix_time(moment: Moment, frequency: str | None) -> None:
    """Refuse a Unix time as the first time of a stream, which would be taken for a number of steps.

    Steps of a second may well be counted from 1970, and without a frequency the unit is the client's.
    """
    if isinstance(moment, str) or frequency is None or step_seconds(frequency) == 1:
        return
    if date := describe_unix_time(moment):
        raise InputError(
            f"time must be ISO 8601 or a number of regular steps of '{frequency}', got {moment:.17g}, which is {date}. "
            "Send that, or count the steps from another number."
        )


def _unit(moment: Moment, frequency: str | None) -> float:
    """Return the length of a regular step in the unit of :func:`parse_moment`: seconds, or steps."""
    if not isinstance(moment, str) or frequency is None:
        return 1.0
    length = step_seconds(frequency)
    if length is None:
        raise InputError(
            f"The model's steps of '{frequency}' differ in length, so that the time between two stamps is no number of "
            "them. Give dt, or time as a number of regular steps."
        )
    return length


def _check_kinds(moments: Sequence[Moment], clock: Clock) -> None:
    """Raise unless all times are text, or all are numbers, as that of the clock is."""
    is_text = isinstance(clock.origin, str)
    for position, moment in enumerate(moments):
        if isinstance(moment, str) != is_text:
            before = Clock(moments[position - 1]) if position else clock
            raise InputError(
                f"The times of a stream are all ISO 8601 or all numbers of regular steps, got {_quote(moment)} after "
                f"{before.text}."
            )


def _quote(moment: Moment) -> str:
    return f"'{cut(moment)}'" if isinstance(moment, str) else f"{moment:.17g}"
