"""From tables of series to a forecasting dataset: covariates, targets, grid, time-ordered split, lengths of windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import FingerprintPart, Float32Array, Timestamps, fingerprint
from stablernn.data.messages import format_names, format_timestamp, pluralize
from stablernn.data.options import TARGET_COLUMN, LoadOptions
from stablernn.data.table.frequency import align_to_grid, parse_frequency
from stablernn.data.table.repairs import expand_names
from stablernn.data.table.series import OpenTable, Table
from stablernn.data.types import ForecastData, Notes, Series, add_notes, lengths_of_time
from stablernn.terms import terms

_DAY = 86_400.0
#: Length and beginning of each period in seconds since 1970-01-01T00:00Z, a Thursday: weeks begin on Monday.
_PERIODS = {"day": (_DAY, 0.0), "week": (7 * _DAY, 4 * _DAY), "year": (365.2425 * _DAY, 0.0)}
PERIODS = tuple(_PERIODS)

# A day in minutes or more is not a horizon that anybody means without naming it.
_MAX_DEFAULT_HORIZON = 96
# One step each of context, training, validation and test.
_LEAST_STEPS = 4
_MAX_NAMED_SERIES = 12
# A table with more columns than these may be one of many meters.
_FEW_CHANNELS = 2
CHANNEL = "y"


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


class _WindowSteps(NamedTuple):
    """Steps of each series that the context and the held-out splits take."""

    context_length: int
    validation_steps: int
    test_steps: int


def forecast_data(name: str, table: Table, options: LoadOptions, *, test: Table | None = None) -> ForecastData:
    """Build a dataset from the table of a file and, if the test lies in a file of its own, the table that continues it.

    Args:
        name: Name of the dataset.
        table: The series.
        options: Used are those of the targets, covariates, grid, split and windows; ``channels`` gives the order of the
            channels, those of the calendar included. Steps of validation and test that are not given are a share of the
            shortest series that is at least half as long as the median, at least one horizon.
        test: Later rows of the same series. They are the test steps.

    Raises:
        UnknownNameError: If a target is no channel.
        ConfigError: If a number is out of its range.
        DataError: If a series is too short, a test table does not continue the series, or a target has no value in
            training.
    """
    covariates = _check_covariates(name, table, options)
    targets = _select_targets(table, options.target, covariates)
    # One grid over training and test rows: rows that are missing between the files become steps, too.
    series, grid, notes = align_to_grid(
        table.name, _append_test_rows(table, test, covariates.static), _frequency(options)
    )
    channels, series = covariates.with_calendar(table.name, table.channels, series, options.channels)
    if test is not None:
        if options.test_steps is not None:
            raise errors.ConfigError("test_steps is for one file; the test file's rows are the test steps here.")
        options = options.with_options(test_steps=_count_test_steps(table, series, test.name))
    # Without a grid no season follows from the frequency: 1 means none.
    season = options.season if options.season is not None else (grid.season if grid else 1)
    horizon = _default_horizon(series, options, season) if options.horizon is None else options.horizon
    _check_settings(season, horizon, options)
    steps, short = _fit_steps(table.name, series, options, season, horizon)
    data = ForecastData(
        name=name,
        series=series,
        channels=channels,
        targets=targets,
        frequency=grid.alias if grid else None,
        season=season,
        horizon=horizon,
        context_length=steps.context_length,
        validation_steps=steps.validation_steps,
        test_steps=steps.test_steps,
        notes={**add_notes(table.notes, test.notes if test else {}), **notes, "series": len(series)},
        fingerprint=series_fingerprint(channels, series),
        future=covariates.future,
        static=covariates.static,
        calendar=covariates.calendar,
        window_stride=options.window_stride,
        has_default_context=options.context_length is None,
    )
    if grid is None:
        # Without a grid rows are steps of unequal length, which the model may be told.
        data = _measure_time(data)
    if data.future:
        indices = list(data.future_indices)
        data.notes["future_values_missing"] = sum(int(np.isnan(each.values[:, indices]).sum()) for each in series)
    if short:
        data.notes["series_without_training"] = short
    _check_training_values(data)
    _note_constants(data)
    data.notes["windows"] = data.window_counts()
    _check_windows(data)
    return data


def read_series(table: OpenTable, options: LoadOptions) -> Table:
    """Read the columns of a table that :func:`forecast_data` needs.

    Args:
        table: The table.
        options: Used are ``channels``, ``future``, ``static`` and ``calendar``.

    Raises:
        UnknownNameError: If a column does not exist.
        ConfigError: If a column has two roles.
        DataError: As for :meth:`stablernn.data.table.series.OpenTable.read`.
    """
    covariates = Covariates.of(options.future, options.static, options.calendar)
    return table.read(covariates.columns_to_read(table.columns, options.channels), static=covariates.static)


def _frequency(options: LoadOptions) -> str | None:
    """Return the frequency alias of the grid: that of resampled rows is their step."""
    if options.resample is None or options.frequency is None:
        return options.resample or options.frequency
    if parse_frequency(options.frequency) != parse_frequency(options.resample):
        raise errors.ConfigError(
            f"{terms().setting('data.resample', options.resample)} makes steps of that length, and "
            f"{terms().setting('data.frequency', options.frequency)} asks for others. Leave "
            f"{terms().key('data.frequency')} out."
        )
    return options.resample


def series_fingerprint(channels: tuple[str, ...], series: Sequence[Series]) -> str:
    """Hash timestamps, channels and values; not what is forecast from them."""
    parts: list[FingerprintPart] = ["forecast", channels, len(series)]
    for each in series:
        parts += [each.unique_id, each.ds, each.values]
        parts += [each.static] if len(each.static) else []
    return fingerprint(parts)


def _measure_time(data: ForecastData) -> ForecastData:
    """Return the data with the time between rows, in units of its median over the training steps."""
    training = [each.ds[: len(values)] for each, values in zip(data.series, data.training_values(), strict=True)]
    gaps = np.concatenate([lengths_of_time(np.diff(ds)) for ds in training])
    return data.with_time_step(float(np.median(gaps))) if len(gaps) else data


def _check_covariates(name: str, table: Table, options: LoadOptions) -> Covariates:
    covariates = Covariates.of(options.future, options.static, options.calendar).expanded(table.categories)
    for column in covariates.columns:
        if column not in table.channels:
            channels = format_names(table.channels)
            raise errors.unknown("future column", column, table.channels, f"{terms().file(name)} has {channels}.")
    if covariates.static and len(table.series[0].static) != len(covariates.static):
        raise errors.ConfigError(f"static is for tables that have such columns; {terms().file(name)} has none.")
    return covariates


def _select_targets(table: Table, targets: Sequence[str] | None, covariates: Covariates) -> tuple[str, ...]:
    if targets is None:
        if TARGET_COLUMN in table.channels:
            covariates.check_targets((TARGET_COLUMN,))
            return (TARGET_COLUMN,)
        # With 'y' left out by data.channels, another channel must not become the target unasked.
        is_ignored = TARGET_COLUMN in table.notes.get("ignored_columns", ())
        candidates = tuple(name for name in table.channels if name not in covariates.columns)
        if len(candidates) == 1 and not is_ignored:
            return candidates
        reason = "is read without its" if is_ignored else "has no"
        advice = ""
        if len(candidates) > _FEW_CHANNELS and len(table.series) == 1:
            advice = f" Where each is a series to forecast, {terms().set('data.channels_as_series', True)}."
        raise errors.DataError(
            f"{terms().file(table.name)} {reason} column '{TARGET_COLUMN}', so the target must be named: one or more "
            f"of {format_names(table.channels)}.{advice}"
        )
    for target in targets:
        if target not in table.channels:
            raise errors.unknown(
                "target", target, table.channels, f"{terms().file(table.name)} has {format_names(table.channels)}."
            )
    if not targets or len(set(targets)) < len(targets):
        raise errors.ConfigError(f"target must name each channel once, got {', '.join(targets) or 'none'}.")
    covariates.check_targets(targets)
    return tuple(targets)


def _append_test_rows(table: Table, test: Table | None, static: Sequence[str]) -> tuple[Series, ...]:
    """Return the series of the table, each with its rows of the test table behind it."""
    if test is None:
        return tuple(table.series)
    if test.channels != table.channels:
        raise errors.DataError(
            f"{terms().file(test.name)} has the columns {format_names(test.channels)}, {terms().file(table.name)} has "
            f"{format_names(table.channels)}; both must have the same."
        )
    later = {series.unique_id: series for series in test.series}
    if len(table.series) == len(test.series) == 1:
        # Without a column of names each file's only series is called after its file.
        later = {table.series[0].unique_id: test.series[0]}
    unmatched = set(later) ^ {series.unique_id for series in table.series}
    if unmatched:
        raise errors.DataError(
            f"{terms().file(test.name)} must continue every series of {terms().file(table.name)} and no other; "
            f"{terms().series(table.name, min(unmatched))} is in one of them only."
        )
    # Rows that overlap with training would be scored although they were learned.
    for series in table.series:
        _check_continues(table.name, series, test.name, later[series.unique_id], static)
    return tuple(
        replace(
            series,
            ds=cast(Timestamps, np.concatenate([series.ds, later[series.unique_id].ds])),
            values=np.concatenate([series.values, later[series.unique_id].values]),
        )
        for series in table.series
    )


def _check_continues(name: str, series: Series, test_name: str, test: Series, static: Sequence[str]) -> None:
    """Refuse test rows that begin before the training rows end, or have other static values."""
    begin = test.ds[0]
    if series.ds.dtype != test.ds.dtype or begin <= series.ds[-1]:
        raise errors.DataError(
            f"{terms().series_of(test_name, series.unique_id)} begins at {format_timestamp(begin)}, which is not after "
            f"{format_timestamp(series.ds[-1])}, the end of its training rows."
        )
    changed = series.static != test.static
    if changed.any():
        column = int(np.argmax(changed))
        raise errors.DataError(
            f"{terms().file(test_name)}: column '{static[column]}' must have one value for each series, got "
            f"{test.static[column]:g} for {terms().series(test_name, series.unique_id)}, and {series.static[column]:g} "
            f"in {terms().file(name)}."
        )


def _count_test_steps(table: Table, series: Sequence[Series], test_name: str) -> int:
    """Return the number of steps after the table's last row, which must be the same in every series."""
    # Counted on the grid: a test file may begin some steps after the training file ends.
    steps = [int((merged.ds > original.ds[-1]).sum()) for merged, original in zip(series, table.series, strict=True)]
    for count, each in zip(steps, series, strict=True):
        if count != steps[0]:
            raise errors.DataError(
                f"{terms().file(test_name)} must add as many steps to every series, got {steps[0]} for "
                f"'{series[0].unique_id}' and {count} for '{each.unique_id}'."
            )
    return steps[0]


def _check_settings(season: int, horizon: int, options: LoadOptions) -> None:
    counts = {
        "season": season,
        "horizon": horizon,
        "context_length": options.context_length,
        "window_stride": options.window_stride,
    }
    for name, count in counts.items():
        if count is not None and count < 1:
            raise errors.ConfigError(f"{name} must be 1 or more, got {count}.")
    # Without test steps there is no test split.
    for name, steps in (("validation_steps", options.validation_steps), ("test_steps", options.test_steps or None)):
        if steps is not None and steps < horizon:
            raise errors.ConfigError(
                f"{name} must be at least the horizon ({horizon}), so that one window fits, got {steps}."
            )


def _default_horizon(series: Sequence[Series], options: LoadOptions, season: int) -> int:
    """Return one season, as far as training, validation and test have room for one horizon each after a context."""
    room = [max(1, int(_usual_lengths(series).min()) // _LEAST_STEPS), options.validation_steps, options.test_steps]
    return min(season, _MAX_DEFAULT_HORIZON, *filter(None, room))


def _usual_lengths(series: Sequence[Series]) -> npt.NDArray[np.int64]:
    """Return the steps of the series that are at least half as long as the median."""
    lengths = np.array([len(each.ds) for each in series])
    return np.asarray(lengths[2 * lengths >= np.median(lengths)])


def _fit_steps(
    name: str, series: Sequence[Series], options: LoadOptions, season: int, horizon: int
) -> tuple[_WindowSteps, Notes]:
    """Return steps of the context, validation and test, and a note on the series without a training window.

    Of the series that are at least half as long as the median, the shortest sets the steps of validation and test, and
    the median of these the context. Shorter ones use what they have.
    """
    usual = _usual_lengths(series)
    share = max(horizon, int(options.validation_fraction * usual.min()))
    validation_steps = share if options.validation_steps is None else options.validation_steps
    test_steps = share if options.test_steps is None else options.test_steps
    held_out = horizon + validation_steps + test_steps
    context_length = options.context_length
    if context_length is None:
        context_length = max(1, min(2 * max(season, horizon), int(np.median(usual)) - held_out))
    steps = _WindowSteps(context_length, validation_steps, test_steps)
    # A context that is asked for must fit somewhere; another one may begin before a series.
    needed = held_out + (options.context_length or 1)
    if max(len(each.ds) for each in series) < needed:
        _refuse_short(name, series, horizon, needed, steps._replace(context_length=options.context_length or 1))
    # One value to forecast from.
    short = [each.unique_id for each in series if len(each.ds) < held_out + 1]
    return steps, {"count": len(short), "first": short[:_MAX_NAMED_SERIES]} if short else {}


def _refuse_short(name: str, series: Sequence[Series], horizon: int, needed: int, steps: _WindowSteps) -> None:
    """Refuse series of which none has a training window before both held-out splits."""
    longest = max(series, key=lambda each: len(each.ds))
    raise errors.DataError(
        f"{terms().series_of(name, longest.unique_id)} has {pluralize(len(longest.ds), 'step')}"
        f"{', no other has more' if len(series) > 1 else ''}, {needed} are needed: context_length "
        f"{steps.context_length} + horizon {horizon} + validation {steps.validation_steps} + test {steps.test_steps}. "
        f"{'Add rows' if needed == _LEAST_STEPS else 'Shorten these'}."
    )


def _check_training_values(data: ForecastData) -> None:
    present = np.any([np.isfinite(values).any(axis=0) for values in data.training_values()], axis=0)
    if not present.all():
        channel = data.channels[int(np.argmin(present))]
        is_only = len(data.channels) == 1
        advice = "Fill it in." if is_only else f"Leave the column out by {terms().channels}, or fill it in."
        raise errors.DataError(
            f"{terms().file(data.name)} has no value at all{terms().in_column('column', channel)} the training "
            f"steps. {advice}"
        )


def _note_constants(data: ForecastData) -> None:
    """Note the series with a target that never changes in training, whose scale is 0, and those without a value."""
    targets = list(data.target_indices)
    constant, empty = [], []
    for series, training in zip(data.series, data.training_values(), strict=True):
        values = training[:, targets]
        if np.isnan(series.values[:, targets]).all():
            empty.append(series.unique_id)
        # Where all values are missing, minimum and maximum are NaN, which are not equal.
        if len(values) and (np.fmin.reduce(values) == np.fmax.reduce(values)).any():
            constant.append(series.unique_id)
    for key, names in (("constant_series", constant), ("empty_series", empty)):
        if names:
            data.notes[key] = {"count": len(names), "first": names[:_MAX_NAMED_SERIES]}


def _check_windows(data: ForecastData) -> None:
    for split, count in data.notes["windows"].items():
        if not count["kept"] and (split != "test" or data.test_steps):
            raise errors.DataError(
                f"{terms().file(data.name)} has no window in the {split} steps with a value to forecast; all "
                f"{count['dropped_without_target']} lack one. Leave such series out, or fill the values in."
            )


def channels_to_series(data: ForecastData, channels: tuple[str, ...] | None) -> ForecastData:
    """Return the same values with one series per channel, named after it, with the old name in front if it had several.

    Channels that are known in advance are not forecast: every new series keeps them as channels.

    Args:
        data: Series with several channels.
        channels: The channels that become series, none of them known in advance; all such when omitted.

    Raises:
        ConfigError: If a channel that is known in advance has the name of the new one.
        DataError: If a new series has no value.
    """
    melted_channels = channels or tuple(name for name in data.channels if name not in data.future)
    if CHANNEL in data.future:
        raise errors.ConfigError(
            f"data.channels_as_series calls what is forecast '{CHANNEL}', and a channel of that name is known in "
            f"advance. Take it out of {terms().key('data.future')}, or rename it."
        )
    melted_series = split_series(
        data.series, data.channels, melted_channels, data.future, is_single=len(data.series) == 1
    )
    series_data = replace(
        data,
        series=melted_series,
        channels=(CHANNEL, *data.future),
        targets=(CHANNEL,),
        notes={**data.notes, "channels_as_series": list(melted_channels), "series": len(melted_series)},
        fingerprint=fingerprint(["channels as series", data.fingerprint, melted_channels]),
    )
    _check_values(data.name, melted_series)
    left_out = [name for name in data.channels if name not in (*melted_channels, *data.future)]
    if left_out:
        series_data.notes["channels_left_out"] = left_out
    series_data.notes["windows"] = series_data.window_counts()
    return series_data


def split_series(
    series: Sequence[Series],
    channels: Sequence[str],
    melted_channels: Sequence[str],
    shared: Sequence[str],
    *,
    is_single: bool,
) -> tuple[Series, ...]:
    """Return a series for each melted channel of each series: the channel's values, then those of the shared channels.

    Args:
        series: The series.
        channels: Names of their channels.
        melted_channels: The channels that become series.
        shared: The channels that every new series has.
        is_single: Whether the file has one series, so that the name of a channel says which one is meant.
    """
    shared_indices = [channels.index(name) for name in shared]
    return tuple(
        replace(
            each,
            unique_id=name if is_single else f"{each.unique_id}/{name}",
            values=each.values[:, [channels.index(name), *shared_indices]],
        )
        for each in series
        for name in melted_channels
    )


def _check_values(name: str, series: tuple[Series, ...]) -> None:
    # The channel itself comes first; the shared ones may have values where it has none.
    for each in series:
        if not np.isfinite(each.values[:, 0]).any():
            raise errors.DataError(
                f"{terms().file(name)} has no value at all in the channel that is "
                f"{terms().series(name, each.unique_id)}. Name the others by {terms().key('data.target')}."
            )
