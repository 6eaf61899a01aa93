"""From tables of series to a forecasting dataset: targets, grid, time-ordered split, lengths of the windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from stablernn import errors
from stablernn.data.arrays import Timestamps
from stablernn.data.fingerprint import Part, fingerprint
from stablernn.data.forecasting.covariates import Covariates
from stablernn.data.messages import counted, listing, stamp_text
from stablernn.data.readers.tables import OpenTable, Table
from stablernn.data.time.regular_grid import to_grid
from stablernn.data.types import ForecastData, Series, add_notes, lengths_of_time

#: The target when none is named and the table has this column.
TARGET_COLUMN = "y"
# A day in minutes or more is no horizon that anybody means without saying so.
_LONGEST_DEFAULT_HORIZON = 96
_MOST_NAMED = 12


def forecast_data(
    name: str,
    table: Table,
    *,
    target: str | Sequence[str] | None = None,
    test: Table | None = None,
    horizon: int | None = None,
    context_length: int | None = None,
    season: int | None = None,
    frequency: str | None = None,
    validation_steps: int | None = None,
    test_steps: int | None = None,
    validation_fraction: float = 0.2,
    future: Sequence[str] = (),
    static: Sequence[str] = (),
    calendar: Sequence[str] = (),
    channels: Sequence[str] | None = None,
    window_stride: int = 1,
) -> ForecastData:
    """A dataset from the table of a file and, if the test lies in a file of its own, the table that continues it.

    Args:
        name: What the dataset is called.
        table: The series.
        target: Channels to forecast; ``y``, or the only channel there is, when omitted.
        test: Later rows of the same series. They are the test steps.
        horizon: Steps to forecast; the season, at most 96, when omitted.
        context_length: Steps before them; twice the season or the horizon, as far as it fits, when omitted.
        season: Steps of a season; what the frequency suggests when omitted.
        frequency: Word of the time grid; inferred when omitted.
        validation_steps: Steps before the test that validation targets use; see ``validation_fraction``.
        test_steps: Steps at the end that test targets use; see ``validation_fraction``.
        validation_fraction: Share of the shortest series that validation and test get each where their steps are not
            given; at least one horizon.
        future: Channels that are known in advance.
        static: Names of what never changes in a series, as the table was read with them.
        calendar: Periods of which the model is told where each step lies: ``day``, ``week``, ``year``.
        channels: Order of the channels, those of the calendar included; as they come when omitted.
        window_stride: Steps from a training window to the next.

    Raises:
        UnknownNameError: If a target is no channel.
        ConfigError: If a number is out of its range.
        DataError: If a series is too short, a test table does not continue the series, or a target has no value in
            training.
    """
    covariates = Covariates.of(future, static, calendar)
    for known in covariates.columns:
        if known not in table.channels:
            raise errors.unknown("future column", known, table.channels, f"'{name}' has {listing(table.channels)}.")
    if covariates.static and len(table.series[0].static) != len(covariates.static):
        raise errors.ConfigError(f"static is for tables that have such columns; '{name}' has none.")
    targets = _targets(table, target, covariates)
    series, grid, notes = to_grid(table.name, _continued(table, test, covariates.static), frequency)
    names, series = covariates.with_calendar(table.name, table.channels, series, channels)
    if test is not None:
        if test_steps is not None:
            raise errors.ConfigError("test_steps is for one file; the test file's rows are the test steps here.")
        test_steps = _steps_after(table, series, test.name)
    season = season if season is not None else (grid.season if grid else 1)
    horizon = horizon if horizon is not None else min(season, _LONGEST_DEFAULT_HORIZON)
    given = {"validation_steps": validation_steps, "test_steps": test_steps, "context_length": context_length}
    _check_settings(season, horizon, given, window_stride)
    shortest = min(series, key=lambda one: len(one.ds))
    steps = _window_steps(len(shortest.ds), given, season, horizon, validation_fraction)
    _check_lengths(table.name, series, horizon, steps)
    usual = _window_steps(int(np.median([len(one.ds) for one in series])), given, season, horizon, validation_fraction)
    cut = {word: value for word, value in steps.items() if value < usual[word]}
    data = ForecastData(
        name=name,
        series=series,
        channels=names,
        targets=targets,
        frequency=grid.word if grid else None,
        season=season,
        horizon=horizon,
        context_length=steps["context_length"],
        validation_steps=steps["validation_steps"],
        test_steps=steps["test_steps"],
        notes={**add_notes(table.notes, test.notes if test else {}), **notes, "series": len(series)},
        fingerprint=series_fingerprint(names, series),
        future=covariates.future,
        static=covariates.static,
        calendar=covariates.calendar,
        window_stride=window_stride,
        has_default_context=context_length is None,
    )
    if grid is None:
        data = _dated(data)
    if data.future:
        indices = list(data.future_indices)
        data.notes["future_values_missing"] = sum(int(np.isnan(one.values[:, indices]).sum()) for one in series)
    if cut:
        data.notes["cut_for_the_shortest"] = {"series": shortest.unique_id, "steps": len(shortest.ds), **cut}
    _check_training_values(data)
    _note_constants(data)
    data.notes["windows"] = data.window_counts()
    _check_windows(data)
    return data


def read_series(opened: OpenTable, settings: Mapping[str, Any]) -> Table:
    """The columns of a table that :func:`forecast_data` needs for these of its settings.

    Args:
        opened: The table.
        settings: Of which ``channels``, ``future``, ``static`` and ``calendar`` are looked at.

    Raises:
        UnknownNameError: If a column does not exist.
        ConfigError: If a column has two parts.
        DataError: As :meth:`stablernn.data.readers.tables.OpenTable.read`.
    """
    covariates = Covariates.of(*(settings.get(word) or () for word in ("future", "static", "calendar")))
    return opened.read(covariates.to_read(opened.columns, settings.get("channels")), static=covariates.static)


def series_fingerprint(channels: tuple[str, ...], series: Sequence[Series]) -> str:
    """Hash of time stamps, channels and values; not of what is forecast from them."""
    parts: list[Part] = ["forecast", channels, len(series)]
    for one in series:
        parts += [one.unique_id, one.ds, one.values]
        parts += [one.static] if len(one.static) else []
    return fingerprint(parts)


def _dated(data: ForecastData) -> ForecastData:
    """The data with the distances of its time stamps, in units of their median over the training steps."""
    training = [one.ds[: len(values)] for one, values in zip(data.series, data.training_values(), strict=True)]
    gaps = np.concatenate([lengths_of_time(np.diff(ds)) for ds in training])
    return data.in_steps_of(float(np.median(gaps))) if len(gaps) else data


def _targets(table: Table, wanted: str | Sequence[str] | None, covariates: Covariates) -> tuple[str, ...]:
    if wanted is None:
        if TARGET_COLUMN in table.channels:
            covariates.check_targets((TARGET_COLUMN,))
            return (TARGET_COLUMN,)
        left_out = TARGET_COLUMN in table.notes.get("ignored_columns", ())
        unknown = tuple(name for name in table.channels if name not in covariates.columns)
        if len(unknown) == 1 and not left_out:
            return unknown
        reason = "is read without its" if left_out else "has no"
        raise errors.DataError(
            f"'{table.name}' {reason} column '{TARGET_COLUMN}', so the target must be named: one or more of "
            f"{listing(table.channels)}."
        )
    targets = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    for target in targets:
        if target not in table.channels:
            raise errors.unknown("target", target, table.channels, f"'{table.name}' has {listing(table.channels)}.")
    if not targets or len(set(targets)) < len(targets):
        raise errors.ConfigError(f"target must name each channel once, got {', '.join(targets) or 'none'}.")
    covariates.check_targets(targets)
    return targets


def _continued(table: Table, test: Table | None, static: Sequence[str]) -> tuple[Series, ...]:
    """The series of the table, each with its rows of the test table behind it."""
    if test is None:
        return table.series
    if test.channels != table.channels:
        raise errors.DataError(
            f"'{test.name}' has the columns {listing(test.channels)}, '{table.name}' has "
            f"{listing(table.channels)}; both must have the same."
        )
    later = {one.unique_id: one for one in test.series}
    if len(table.series) == len(test.series) == 1:
        # Without a column of names each file's only series is called after its file.
        later = {table.series[0].unique_id: test.series[0]}
    strange = set(later) ^ {one.unique_id for one in table.series}
    if strange:
        raise errors.DataError(
            f"'{test.name}' must continue every series of '{table.name}' and no other; "
            f"series '{min(strange)}' is in one of them only."
        )
    for one in table.series:
        begin = later[one.unique_id].ds[0]
        if one.ds.dtype != later[one.unique_id].ds.dtype or begin <= one.ds[-1]:
            raise errors.DataError(
                f"'{test.name}': series '{one.unique_id}' begins at {stamp_text(begin)}, which is not after "
                f"{stamp_text(one.ds[-1])}, the end of its training rows."
            )
        other = later[one.unique_id].static
        changed = one.static != other
        if changed.any():
            column = int(np.argmax(changed))
            raise errors.DataError(
                f"'{test.name}': column '{static[column]}' must have one value for each series, got {other[column]:g} "
                f"for series '{one.unique_id}', and {one.static[column]:g} in '{table.name}'."
            )
    return tuple(
        replace(
            one,
            ds=cast(Timestamps, np.concatenate([one.ds, later[one.unique_id].ds])),
            values=np.concatenate([one.values, later[one.unique_id].values]),
        )
        for one in table.series
    )


def _steps_after(table: Table, series: Sequence[Series], test_name: str) -> int:
    """Steps behind the table's last row, which must be as many in every series."""
    steps = [int((one.ds > known.ds[-1]).sum()) for one, known in zip(series, table.series, strict=True)]
    for count, one in zip(steps, series, strict=True):
        if count != steps[0]:
            raise errors.DataError(
                f"'{test_name}' must add as many steps to every series, got {steps[0]} for "
                f"'{series[0].unique_id}' and {count} for '{one.unique_id}'."
            )
    return steps[0]


def _window_steps(
    length: int, given: Mapping[str, int | None], season: int, horizon: int, validation_fraction: float
) -> dict[str, int]:
    """Validation, test and context for series of a length, where they are not given."""
    share = max(horizon, int(validation_fraction * length))
    steps = {}
    for word in ("validation_steps", "test_steps"):
        value = given[word]
        steps[word] = share if value is None else value
    context = given["context_length"]
    if context is None:
        context = max(1, min(2 * max(season, horizon), length - sum(steps.values()) - horizon))
    return {"context_length": context, **steps}


def _check_settings(season: int, horizon: int, given: Mapping[str, int | None], window_stride: int) -> None:
    counts = {"season": season, "horizon": horizon, "context_length": given["context_length"]}
    for word, value in {**counts, "window_stride": window_stride}.items():
        if value is not None and value < 1:
            raise errors.ConfigError(f"{word} must be 1 or more, got {value}.")
    for word in ("validation_steps", "test_steps"):
        value = given[word]
        if value is not None and value < horizon:
            raise errors.ConfigError(
                f"{word} must be at least the horizon ({horizon}), so that one window fits, got {value}."
            )


def _check_lengths(name: str, series: Sequence[Series], horizon: int, steps: Mapping[str, int]) -> None:
    needed = horizon + sum(steps.values())
    short = [one for one in series if len(one.ds) < needed]
    if not short:
        return
    first, *others = short
    more = f" (too short as well: {listing([one.unique_id for one in others])})" if others else ""
    raise errors.DataError(
        f"'{name}': series '{first.unique_id}' has {counted(len(first.ds), 'step')}{more}, {needed} are needed: "
        f"context_length {steps['context_length']} + horizon {horizon} + validation {steps['validation_steps']} + "
        f"test {steps['test_steps']}. Shorten these, or leave the series out."
    )


def _check_training_values(data: ForecastData) -> None:
    present = np.any([np.isfinite(values).any(axis=0) for values in data.training_values()], axis=0)
    if not present.all():
        channel = data.channels[int(np.argmin(present))]
        raise errors.DataError(
            f"'{data.name}' has no value at all in column '{channel}' of the training steps. "
            "Leave the column out by 'channels', or fill it in."
        )


def _note_constants(data: ForecastData) -> None:
    """Name the series of which some target never changes in training: their scale is 0; and those without a value."""
    targets = list(data.target_indices)
    found, empty = [], []
    for one, values in zip(data.series, data.training_values(), strict=True):
        seen = values[:, targets]
        if np.isnan(one.values[:, targets]).all():
            empty.append(one.unique_id)
        # Where all is missing both are NaN, which differ.
        if (np.fmin.reduce(seen) == np.fmax.reduce(seen)).any():
            found.append(one.unique_id)
    for key, names in (("constant_series", found), ("empty_series", empty)):
        if names:
            data.notes[key] = {"count": len(names), "first": names[:_MOST_NAMED]}


def _check_windows(data: ForecastData) -> None:
    for split, count in data.notes["windows"].items():
        if not count["kept"]:
            raise errors.DataError(
                f"'{data.name}' has no window in the {split} steps with a value to forecast; "
                f"all {count['dropped_without_target']} lack one. Leave such series out, or fill the values in."
            )
