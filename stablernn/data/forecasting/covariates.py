"""What is known of a series beside its past: columns known in advance, columns that never change, the calendar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Float32Array, Timestamps
from stablernn.data.types import Series

_DAY = 86_400.0
#: Length and beginning of each period in seconds since 1970-01-01T00:00Z, a Thursday: weeks begin on Monday.
_PERIODS = {"day": (_DAY, 0.0), "week": (7 * _DAY, 4 * _DAY), "year": (365.2425 * _DAY, 0.0)}
PERIODS = tuple(_PERIODS)


def calendar_channels(periods: Sequence[str]) -> tuple[str, ...]:
    """Names of the channels that tell where in these periods a step lies."""
    return tuple(f"calendar_{period}_{wave}" for period in periods for wave in ("sin", "cos"))


def calendar_periods(periods: Sequence[str]) -> list[dict[str, str | float]]:
    """Name, length (``period``) and beginning (``phase``) of these periods in seconds."""
    return [{"name": name, "period": _PERIODS[name][0], "phase": _PERIODS[name][1]} for name in periods]


def calendar_values(ds: Timestamps, periods: Sequence[str]) -> Float32Array:
    r"""Sine and cosine of :math:`2 \pi t / p` for each period, (time, 2 * periods)."""
    seconds = ds.astype("datetime64[ns]").astype(np.int64) * 1e-9
    waves = []
    for period in periods:
        length, beginning = _PERIODS[period]
        angle = 2 * np.pi * np.mod(seconds - beginning, length) / length
        waves += [np.sin(angle), np.cos(angle)]
    return np.stack(waves, axis=1).astype(np.float32)


@dataclass(frozen=True)
class Covariates:
    """What a forecast may use besides its targets' past.

    Attributes:
        columns: Columns of the file that are known in advance; the model sees their past, too.
        static: Columns of the file with one value for each series.
        calendar: Periods of which the model is told where each step lies.
    """

    columns: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    calendar: tuple[str, ...] = ()

    @classmethod
    def of(cls, future: Sequence[str], static: Sequence[str], calendar: Sequence[str]) -> Covariates:
        """From what was asked for.

        Raises:
            UnknownNameError: If a period is none.
            ConfigError: If a name comes twice.
        """
        for period in calendar:
            if period not in PERIODS:
                raise errors.unknown("period", period, PERIODS, f"calendar takes {', '.join(PERIODS)}.")
        made = calendar_channels(calendar)
        columns = tuple(name for name in future if name not in made)
        for word, names in (("future", columns), ("static", static), ("calendar", calendar)):
            if len(set(names)) < len(names):
                raise errors.ConfigError(f"{word} must name each once, got {', '.join(names)}.")
        both = [name for name in columns if name in static]
        if both:
            raise errors.ConfigError(f"'{both[0]}' stands in future and in static; what never changes is static.")
        return cls(columns, tuple(static), tuple(calendar))

    @property
    def future(self) -> tuple[str, ...]:
        """The channels that are known in advance: columns, then those of the calendar."""
        return (*self.columns, *calendar_channels(self.calendar))

    def to_read(self, columns: Sequence[str], channels: Sequence[str] | None) -> list[str]:
        """The columns of a file that become channels, of those it has; all but the static ones where none are named."""
        made = calendar_channels(self.calendar)
        every = [name for name in columns if name not in self.static]
        named = every if channels is None else [name for name in channels if name not in made]
        for name in named:
            if name in self.static:
                raise errors.ConfigError(f"'{name}' stands in channels and in static; leave it out of channels.")
        return [*named, *(name for name in self.columns if name not in named)]

    def check_targets(self, targets: Sequence[str]) -> None:
        """Refuse targets that are known already.

        Raises:
            ConfigError: If one of them is said to be known already.
        """
        known = [name for name in targets if name in self.future]
        if known:
            raise errors.ConfigError(
                f"'{known[0]}' is a target and stands in future; what is to be forecast is not known in advance. "
                "Leave it out of future."
            )

    def with_calendar(
        self, name: str, channels: Sequence[str], series: Sequence[Series], order: Sequence[str] | None = None
    ) -> tuple[tuple[str, ...], tuple[Series, ...]]:
        """The channels and series with those of the calendar behind them, or in an order that names them all.

        Raises:
            ConfigError: If time stamps are integers, or a column has the name of such a channel.
        """
        if not self.calendar:
            return tuple(channels), tuple(series)
        if series[0].ds.dtype.kind != "M":
            raise errors.ConfigError(f"calendar needs dates, and '{name}' has integers as time stamps. Leave it out.")
        made = calendar_channels(self.calendar)
        taken = [channel for channel in made if channel in channels]
        if taken:
            raise errors.ConfigError(f"'{name}' has a column '{taken[0]}', as calendar would make it. Rename it.")
        every = (*channels, *made)
        wanted = tuple(order) if order is not None and sorted(order) == sorted(every) else every
        places = [every.index(channel) for channel in wanted]
        return wanted, tuple(
            replace(one, values=np.concatenate([one.values, calendar_values(one.ds, self.calendar)], axis=1)[:, places])
            for one in series
        )
