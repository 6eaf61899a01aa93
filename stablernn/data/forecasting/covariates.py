"""Covariates of a series: columns known in advance, columns that never change, the calendar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Float32Array, Timestamps
from stablernn.data.repairs.categories import expand_names
from stablernn.data.types import Series
from stablernn.terms import terms

_DAY = 86_400.0
#: Length and beginning of each period in seconds since 1970-01-01T00:00Z, a Thursday: weeks begin on Monday.
_PERIODS = {"day": (_DAY, 0.0), "week": (7 * _DAY, 4 * _DAY), "year": (365.2425 * _DAY, 0.0)}
PERIODS = tuple(_PERIODS)


def calendar_channels(periods: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the channels that hold the position of a step in these periods."""
    return tuple(f"calendar_{period}_{wave}" for period in periods for wave in ("sin", "cos"))


def calendar_periods(periods: Sequence[str]) -> list[dict[str, str | float]]:
    """Return name, length (``period``) and beginning (``phase``) of these periods in seconds."""
    return [{"name": name, "period": _PERIODS[name][0], "phase": _PERIODS[name][1]} for name in periods]


def calendar_values(ds: Timestamps, periods: Sequence[str]) -> Float32Array:
    r"""Return sine and cosine of :math:`2 \pi t / p` for each period, (time, 2 * periods)."""
    seconds = ds.astype("datetime64[ns]").astype(np.int64) * 1e-9
    # float64 until the angle is taken: a second since 1970 needs more digits than float32 has.
    waves = []
    for period in periods:
        length, beginning = _PERIODS[period]
        angle = 2 * np.pi * np.mod(seconds - beginning, length) / length
        waves += [np.sin(angle), np.cos(angle)]
    return np.stack(waves, axis=1).astype(np.float32)


@dataclass(frozen=True)
class Covariates:
    """Inputs of a forecast besides the past of its targets.

    Attributes:
        columns: Columns of the file that are known in advance; the model sees their past, too.
        static: Columns of the file with one value for each series.
        calendar: Periods for which the model gets the position of each step.
    """

    columns: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    calendar: tuple[str, ...] = ()

    @classmethod
    def of(cls, future: Sequence[str], static: Sequence[str], calendar: Sequence[str]) -> Covariates:
        """Return the covariates that options name.

        Raises:
            UnknownNameError: If there is no such period.
            ConfigError: If a name is given twice.
        """
        for period in calendar:
            if period not in PERIODS:
                raise errors.unknown("period", period, PERIODS, f"calendar takes {', '.join(PERIODS)}.")
        # Of a trained model the names of calendar channels may be among those of future; they are no columns.
        calendar_names = calendar_channels(calendar)
        columns = tuple(name for name in future if name not in calendar_names)
        for option, names in (("future", columns), ("static", static), ("calendar", calendar)):
            if len(set(names)) < len(names):
                raise errors.ConfigError(f"{option} must name each once, got {', '.join(names)}.")
        both = [name for name in columns if name in static]
        if both:
            raise errors.ConfigError(f"'{both[0]}' is in future and in static; a column that never changes is static.")
        return cls(columns, tuple(static), tuple(calendar))

    def expanded(self, categories: Mapping[str, Sequence[str]]) -> Covariates:
        """Return the covariates with the channels of categories in place of their columns."""
        return Covariates(expand_names(self.columns, categories), expand_names(self.static, categories), self.calendar)

    @property
    def future(self) -> tuple[str, ...]:
        """Channels that are known in advance: columns, then those of the calendar."""
        return (*self.columns, *calendar_channels(self.calendar))

    def columns_to_read(self, columns: Sequence[str], channels: Sequence[str] | None) -> list[str]:
        """Return the columns of a file that become channels: all but the static ones where no channels are named."""
        calendar_names = calendar_channels(self.calendar)
        if channels is None:
            names = [name for name in columns if name not in self.static]
        else:
            names = [name for name in channels if name not in calendar_names]
        for name in names:
            if name in self.static:
                raise errors.ConfigError(f"'{name}' is in channels and in static; leave it out of channels.")
        return [*names, *(name for name in self.columns if name not in names)]

    def check_targets(self, targets: Sequence[str]) -> None:
        """Refuse targets that are known in advance.

        Raises:
            ConfigError: If one of them is.
        """
        both = [name for name in targets if name in self.future]
        if both:
            raise errors.ConfigError(
                f"'{both[0]}' is a target and is in future; what is to be forecast is not known in advance. "
                "Leave it out of future."
            )

    def with_calendar(
        self, name: str, channels: Sequence[str], series: Sequence[Series], order: Sequence[str] | None = None
    ) -> tuple[tuple[str, ...], tuple[Series, ...]]:
        """Return channels and series with the channels of the calendar added.

        Args:
            name: Name of the file, for messages.
            channels: Names of the channels of the series.
            series: The series.
            order: Order of the result, if it names all of its channels; else those of the calendar come last.

        Raises:
            ConfigError: If timestamps are integers, or a column has the name of a calendar channel.
        """
        if not self.calendar:
            return tuple(channels), tuple(series)
        if series[0].ds.dtype.kind != "M":
            raise errors.ConfigError(
                f"calendar needs dates, and {terms().file(name)} has integers as timestamps. Leave it out."
            )
        calendar_names = calendar_channels(self.calendar)
        conflicts = [channel for channel in calendar_names if channel in channels]
        if conflicts:
            raise errors.ConfigError(
                f"{terms().file(name)} has a column '{conflicts[0]}', as calendar would make it. Rename it."
            )
        merged = (*channels, *calendar_names)
        ordered = tuple(order) if order is not None and sorted(order) == sorted(merged) else merged
        indices = [merged.index(channel) for channel in ordered]
        result = []
        for each in series:
            values = np.concatenate([each.values, calendar_values(each.ds, self.calendar)], axis=1)
            result.append(replace(each, values=values[:, indices]))
        return ordered, tuple(result)
