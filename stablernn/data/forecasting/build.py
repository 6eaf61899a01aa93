"""From tables of series to a forecasting dataset: targets, grid, time-ordered split, lengths of the windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, cast

import numpy as np

from stablernn import errors
from stablernn.data.arrays import FingerprintPart, Timestamps, fingerprint
from stablernn.data.forecasting.covariates import Covariates
from stablernn.data.messages import format_names, format_timestamp, pluralize
from stablernn.data.options import TARGET_COLUMN, LoadOptions
from stablernn.data.readers.tables import OpenTable, Table
from stablernn.data.repairs.short_series import suggest_min_length
from stablernn.data.time.frequency import Frequency, parse_frequency
from stablernn.data.time.regular_grid import align_to_grid
from stablernn.data.types import ForecastData, Notes, Series, add_notes, lengths_of_time
from stablernn.terms import terms

# A day in minutes or more is not a horizon that anybody means without naming it.
_MAX_DEFAULT_HORIZON = 96
_MAX_NAMED_SERIES = 12
# A table with more columns than these may be one of many meters.
_FEW_CHANNELS = 2


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
            shortest series, at least one horizon.
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
    season, horizon = _default_season_and_horizon(options, grid)
    _check_settings(season, horizon, options)
    steps, shortened = _fit_steps(table.name, series, options, season, horizon)
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
    if shortened:
        data.notes["cut_for_the_shortest"] = shortened
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
        DataError: As for :meth:`stablernn.data.readers.tables.OpenTable.read`.
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


def _default_season_and_horizon(options: LoadOptions, grid: Frequency | None) -> tuple[int, int]:
    # Without a grid no season follows from the frequency: 1 means none.
    season = options.season if options.season is not None else (grid.season if grid else 1)
    horizon = options.horizon if options.horizon is not None else min(season, _MAX_DEFAULT_HORIZON)
    return season, horizon


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


def _fit_steps(
    name: str, series: Sequence[Series], options: LoadOptions, season: int, horizon: int
) -> tuple[_WindowSteps, Notes]:
    """Return steps of the context, validation and test that every series has room for.

    Also returned is a note on those that the shortest series makes smaller than a series of median length would.
    """
    shortest = min(series, key=lambda each: len(each.ds))
    steps = _default_steps(len(shortest.ds), options, season, horizon)
    median_steps = _default_steps(int(np.median([len(each.ds) for each in series])), options, season, horizon)
    # Of the steps that series of usual length allow, with the shortest context that may be taken.
    usual_steps = median_steps._replace(context_length=options.context_length or 1)
    _check_lengths(name, series, horizon, steps, usual_steps)
    usual = median_steps._asdict()
    shortened = {key: count for key, count in steps._asdict().items() if count < usual[key]}
    return steps, {"series": shortest.unique_id, "steps": len(shortest.ds), **shortened} if shortened else {}


def _default_steps(length: int, options: LoadOptions, season: int, horizon: int) -> _WindowSteps:
    """Return the steps that are given, and for a series of that length those that are not."""
    share = max(horizon, int(options.validation_fraction * length))
    validation_steps = share if options.validation_steps is None else options.validation_steps
    test_steps = share if options.test_steps is None else options.test_steps
    context_length = options.context_length
    if context_length is None:
        room = length - validation_steps - test_steps - horizon
        context_length = max(1, min(2 * max(season, horizon), room))
    return _WindowSteps(context_length, validation_steps, test_steps)


def _check_lengths(
    name: str, series: Sequence[Series], horizon: int, steps: _WindowSteps, usual_steps: _WindowSteps
) -> None:
    # One training window with its context and horizon, before both held-out splits.
    needed = horizon + sum(steps)
    short = [each for each in series if len(each.ds) < needed]
    if not short:
        return
    first, *others = short
    more = f" (too short as well: {format_names([each.unique_id for each in others])})" if others else ""
    least = suggest_min_length([len(each.ds) for each in series], horizon + sum(usual_steps))
    advice = (
        "leave the series out"
        if least is None
        else f"set shorter series aside with {terms().setting('data.min_length', least)}"
    )
    settings = None if least is None else {"min_length": least}
    raise errors.DataError(
        f"{terms().series_of(name, first.unique_id)} has {pluralize(len(first.ds), 'step')}{more}, {needed} are "
        f"needed: context_length {steps.context_length} + horizon {horizon} + validation {steps.validation_steps} + "
        f"test {steps.test_steps}. Shorten these, or {advice}.",
        settings=settings,
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
        if (np.fmin.reduce(values) == np.fmax.reduce(values)).any():
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
