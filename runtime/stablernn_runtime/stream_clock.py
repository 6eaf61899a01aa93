"""Where in time a stream is, and how far on its next readings lie."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stablernn_runtime.calendar import instant, step_seconds, times, unix_time
from stablernn_runtime.errors import InputError, MissingStepsError, TimeOrderError, cut

_MOST_MISSING = 2**20
"""Steps up to which a gap is counted; beyond it the sentence says only that there is one."""

_AT_ONCE = 4096
"""Times that are compared with their calendar at once."""

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
        """The time in words, for errors."""
        if isinstance(self.origin, str):
            after = f", and {self.steps:g} steps" if self.steps else ""
            return f"'{self.origin}'{after}"
        return f"{(self.origin or 0.0) + self.steps:.17g}"

    def regular(self, given: Sequence[Moment], stride: int, count: int, frequency: str | None) -> Clock:
        """The clock after ``count`` samples of regular steps, where the times that came with them are right.

        Args:
            given: The time of the first sample, or of each; none when the client gave none.
            stride: Readings in a sample.
            count: Samples.
            frequency: Steps to count by.

        Raises:
            MissingStepsError: If steps are left out.
            TimeOrderError: If a time does not lie one step after the reading before it.
            InputError: If a time cannot be read.
        """
        if not given:
            return self if self.origin is None else Clock(self.origin, self.steps + stride * count)
        place, start = (1, Clock(given[0], -1.0)) if self.origin is None else (0, self)
        if self.origin is None:
            _check_no_unix_time(given[0], frequency)
        _check_kinds(given, start)
        instants = np.array([checked(moment, frequency) for moment in given])
        while place < len(given):
            before = Clock(start.origin, start.steps + stride * place)
            place += before._on_time(instants[place : place + _AT_ONCE], stride, frequency)
            if place < len(given):
                Clock(start.origin, start.steps + stride * place)._check_next(given[place], frequency)
                place += 1
        return Clock(start.origin, start.steps + stride * count)

    def elapsed(
        self, given: Sequence[Moment], is_first: bool, frequency: str | None
    ) -> tuple[NDArray[np.float32], Clock]:
        """The time between readings in regular steps, for models that are told it.

        Args:
            given: The time of each reading, at least one.
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
            _check_no_unix_time(given[0], frequency)
        _check_kinds(given, Clock(given[0]) if self.origin is None else self)
        instants = np.array([checked(moment, frequency) for moment in given])
        dt = np.ones(len(given), np.float32)
        # The first reading of all has none before it.
        measured = len(given) - (self.origin is None)
        if measured:
            unit, befores = _unit(given[0], frequency), instants[:-1]
            if self.origin is not None:
                befores = np.concatenate([[checked(self.origin, frequency) + self.steps * unit], befores])
            gaps = instants[-measured:] - befores
            if (gaps <= 0).any():
                place = len(given) - measured + int(np.argmax(gaps <= 0))
                raise (Clock(given[place - 1]) if place else self)._not_after(given[place])
            dt[-measured:] = gaps / unit
        return dt, Clock(given[-1])

    def seconds(self, first: int, count: int, frequency: str | None) -> NDArray[np.float64]:
        """The times of regular steps in seconds since 1970-01-01T00:00Z; ISO 8601 origins only.

        Args:
            first: Steps from the last reading to the first one that is wanted.
            count: Steps wanted.
            frequency: Steps to count by.

        Raises:
            InputError: If one lies outside of the years that can be counted.
        """
        if not isinstance(self.origin, str) or frequency is None:
            raise InputError(
                "The calendar of this model needs ISO 8601 times such as '2024-01-31T06:00:00Z'; begin a new stream "
                "with one as time."
            )
        return times(self.origin, int(self.steps) + first, count, frequency)

    def _on_time(self, instants: NDArray[np.float64], stride: int, frequency: str | None) -> int:
        """How many of ``instants`` are right, from the front: one step on, and each ``stride`` steps after the other.

        The first that is not may still be; :meth:`_check_next` knows, and has the sentence.
        """
        count = len(instants)
        if isinstance(self.origin, str):
            try:
                due = self.seconds(1, (count - 1) * stride + 1, frequency)[::stride]
            except InputError:  # beyond the years that are counted, which the first of them may not be
                return self._on_time(instants[: count // 2], stride, frequency) if count > 1 else 0
            right = np.abs(instants - due) < 1e-5
        else:
            assert self.origin is not None
            ahead = instants - self.origin - (self.steps + stride * np.arange(count))
            right = (np.rint(ahead) == 1) & (np.abs(ahead - 1) <= 1e-6 * np.maximum(1.0, np.abs(instants)))
        return count if right.all() else int(np.argmin(right))

    def _check_next(self, moment: Moment, frequency: str | None) -> None:
        """Raise unless ``moment`` is one regular step on."""
        if not isinstance(moment, str):
            assert isinstance(self.origin, float)
            ahead = moment - self.origin - self.steps
            on_grid = abs(ahead - round(ahead)) <= 1e-6 * max(1.0, abs(moment))
            steps = round(ahead) if on_grid else None
            if not on_grid and ahead > 0:
                raise self._off_grid(moment, "steps of 1")
        else:
            target = checked(moment, frequency)
            now = self.seconds(0, 1, frequency)[0]
            steps = 0 if target <= now else self._steps_to(target, frequency)
            if steps is None:
                raise self._off_grid(moment, f"steps of '{frequency}'")
        if steps is None or steps < 1:
            raise self._not_after(moment)
        if steps > 1:
            missing = "1 step is" if steps == 2 else f"{steps - 1} steps are"
            raise MissingStepsError(
                f"The time {_words(moment)} lies {steps} regular steps after {self.text}: {missing} missing. Send null "
                "values for each of them first, or the model takes the times that follow for earlier ones."
            )

    def _steps_to(self, target: float, frequency: str | None) -> int | None:
        """Regular steps from the last reading to ``target``; None where it lies on none of the next million."""

        def lies_before(steps: int) -> bool:
            try:
                return bool(self.seconds(steps, 1, frequency)[0] < target - 1e-5)
            except InputError:  # beyond the years that are counted, so beyond the target
                return False

        low, high = 1, 1
        while high < _MOST_MISSING and lies_before(high):
            low, high = high, high * 2
        low = low + bisect_left(range(low, high), True, key=lambda steps: not lies_before(steps))
        return low if abs(self.seconds(low, 1, frequency)[0] - target) < 1e-5 else None

    def _not_after(self, moment: Moment) -> TimeOrderError:
        return TimeOrderError(
            f"The time {_words(moment)} does not lie after {self.text}, the time of the reading before it; samples "
            "must come in the order of their times, each time once."
        )

    def _off_grid(self, moment: Moment, steps: str) -> TimeOrderError:
        return TimeOrderError(
            f"The time {_words(moment)} lies on none of the model's regular {steps} after {self.text}. Give the times "
            "of regular steps, with null values where there is none."
        )


def checked(moment: Moment, frequency: str | None) -> float:
    """A time as seconds since 1970, or as the number that it is.

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
        return instant(moment)
    except (ValueError, OverflowError) as error:
        raise InputError(f"time must be ISO 8601, such as '2024-01-31T06:00:00Z', got '{cut(moment)}'.") from error


def as_moments(value: object, most: int, what: str = "time") -> list[Moment]:
    """``value`` of a request as times: one, or an array of them.

    Raises:
        InputError: If it is anything else, or more than ``most`` of them.
    """
    items = value if isinstance(value, list) else [value]
    if len(items) > most:
        raise InputError(f"{what} must hold at most one time for each reading, {most}, got {len(items)}.")
    found: list[Moment] = []
    for item in items:
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise InputError(
                f"{what} must be ISO 8601 text or a number of regular steps, or an array of these, got {item!r:.60}."
            )
        if isinstance(item, str) and len(item) > 64:
            raise InputError(f"{what} must be ISO 8601, such as '2024-01-31T06:00:00Z', got '{cut(item, 64)}'.")
        found.append(item if isinstance(item, str) else float(item))
    if not found:
        raise InputError(f"{what} is an empty array; leave it out, or give the time of each sample.")
    return found


def _check_no_unix_time(moment: Moment, frequency: str | None) -> None:
    """Refuse a Unix time as the first time of a stream, which would be taken for a number of steps.

    Steps of a second may well be counted from 1970, and without a frequency the unit is the client's.
    """
    if isinstance(moment, str) or frequency is None or step_seconds(frequency) == 1:
        return
    if date := unix_time(moment):
        raise InputError(
            f"time must be ISO 8601 or a number of regular steps of '{frequency}', got {moment:.17g}, which is {date}. "
            "Send that, or count the steps from another number."
        )


def _unit(moment: Moment, frequency: str | None) -> float:
    """The length of a regular step, in what :func:`checked` gives."""
    if not isinstance(moment, str) or frequency is None:
        return 1.0
    length = step_seconds(frequency)
    if length is None:
        raise InputError(
            f"The model's steps of '{frequency}' differ in length, so that the time between two stamps is no number of "
            "them. Give dt, or time as a number of regular steps."
        )
    return length


def _check_kinds(given: Sequence[Moment], clock: Clock) -> None:
    is_text = isinstance(clock.origin, str)
    for place, moment in enumerate(given):
        if isinstance(moment, str) != is_text:
            before = Clock(given[place - 1]) if place else clock
            raise InputError(
                f"The times of a stream are all ISO 8601 or all numbers of regular steps, got {_words(moment)} after "
                f"{before.text}."
            )


def _words(moment: Moment) -> str:
    return f"'{cut(moment)}'" if isinstance(moment, str) else f"{moment:.17g}"
