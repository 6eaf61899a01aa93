"""Inspection of series: lengths, gaps, constant and duplicate series, columns that leak the target."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import Float32Array, Timestamps
from stablernn.data.check.channel_statistics import (
    build_columns,
    compute_statistics,
    content_hash,
    warn_about_statistics,
)
from stablernn.data.check.missing_codes import warn_about_missing_codes
from stablernn.data.check.report import Column, Findings, Role
from stablernn.data.forecasting.covariates import calendar_channels
from stablernn.data.messages import format_names, format_timestamp, pluralize
from stablernn.data.repairs.local_times import suggest_day_zone
from stablernn.data.repairs.short_series import suggest_min_length
from stablernn.data.types import ForecastData, Notes, Series

#: Two columns are the same in different units if the unexplained share of their variance is below this.
_MAX_UNEXPLAINED = 1e-6
#: Columns are compared in so many steps of the longest series, and so many steps ahead.
_MAX_COMPARED_STEPS, _MAX_STEPS_AHEAD = 20_000, 48
#: With fewer steps than this, two columns may agree by chance.
_MIN_COMPARED_STEPS = 20


def inspect_series(
    series: Sequence[Series],
    channels: tuple[str, ...],
    targets: tuple[str, ...],
    notes: Notes,
    findings: Findings,
    data: ForecastData | None = None,
) -> tuple[tuple[Column, ...], Notes]:
    """Return the columns and the content of series, and warn about what looks unintended.

    Args:
        series: The series on their time grid, or as in the file if they could not be loaded.
        channels: Names of their columns.
        targets: Names of the columns to forecast.
        notes: Counts of the readers.
        findings: Gets warnings.
        data: The dataset; None if it could not be loaded.
    """
    values = [each.values for each in series]
    training = data.training_values() if data is not None else values
    statistics = compute_statistics(values, training, own_scale=True)
    future = data.future if data is not None else ()
    roles: list[Role] = [
        "target" if name in targets else "future" if name in future else "channel" for name in channels
    ]
    lengths = np.array([len(each.ds) for each in series])
    constant = [
        each.unique_id
        for each, training_values in zip(series, training, strict=True)
        if _is_constant(training_values, channels, targets)
    ]
    content: Notes = {
        "series": len(series),
        "steps": {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())},
        "first": format_timestamp(min(each.ds[0] for each in series)),
        "last": format_timestamp(max(each.ds[-1] for each in series)),
        "frequency": data.frequency if data is not None else notes.get("frequency"),
        "season": data.season if data is not None else notes.get("season"),
        **({"frequencies": notes["frequencies"]} if "frequencies" in notes else {}),
        "gap_steps_filled": notes.get("gap_steps_filled", 0),
        "irregular_intervals": notes.get("irregular_intervals", 0),
        "missing_values": int(statistics.missing.sum()),
        "constant_series": len(constant),
        "duplicate_series": _count_duplicates(series),
    }
    num_calendar = len(calendar_channels(data.calendar)) if data is not None else 0
    warn_about_statistics(statistics, channels, findings, num_computed=num_calendar)
    warn_about_missing_codes(values, channels, findings)
    _warn_about_series(content, constant, findings)
    _warn_about_intervals(content, findings)
    if notes.get("time_zone") == "UTC":
        _warn_about_days(max((each.ds for each in series), key=len), findings)
    _warn_about_target_leakage(max(training, key=len), channels, targets, data.horizon if data else 1, findings)
    if data is not None:
        _warn_about_splits(data, findings)
    return build_columns(statistics, channels, roles), content


def _is_constant(values: Float32Array, channels: tuple[str, ...], targets: tuple[str, ...]) -> bool:
    """Return True if no target of a series changes; without targets, if no channel does."""
    columns = [values[:, channels.index(target)] for target in targets or channels]
    return len(values) > 1 and all(np.fmin.reduce(column) == np.fmax.reduce(column) for column in columns)


def _count_duplicates(series: Sequence[Series]) -> int:
    hashes = [content_hash(each.values) for each in series]
    return len(hashes) - len(set(hashes))


def _warn_about_series(content: Notes, constant: list[str], findings: Findings) -> None:
    if constant and content["series"] > 1:
        findings.warn(
            "constant_series",
            f"{len(constant)} of {content['series']} series never change in training (scale 0): "
            f"{format_names(constant)}.",
        )
    if content["duplicate_series"]:
        findings.warn(
            "duplicate_series",
            f"{content['duplicate_series']} of {content['series']} series have the values of another one. "
            "They weigh double, and teach nothing new.",
        )


def _warn_about_intervals(content: Notes, findings: Findings) -> None:
    if content["gap_steps_filled"]:
        findings.warn(
            "gaps",
            f"{pluralize(content['gap_steps_filled'], 'row')} missing on the time grid, filled as steps without "
            "values.",
        )
    if content["irregular_intervals"]:
        findings.warn(
            "irregular_time",
            f"Time stamps have no common step: {pluralize(content['irregular_intervals'], 'interval')} differ from the "
            "usual one. Rows are taken as steps; give the frequency if there is one.",
        )


def _warn_about_days(instants: Timestamps, findings: Findings) -> None:
    zone = suggest_day_zone(instants)
    if zone is not None:
        findings.warn(
            "local_days",
            f"The times are days, or longer steps, that begin at one time of the day in {zone} and at several in UTC. "
            "Set data.timezone to that zone, or to another one with the same changes of clocks.",
            {"timezone": zone},
        )


def _warn_about_splits(data: ForecastData, findings: Findings) -> None:
    shortest = data.notes.get("cut_for_the_shortest")
    if shortest:
        defaults = format_names([f"{name} {shortest[name]}" for name in shortest if name not in ("series", "steps")])
        findings.warn(
            "cut_for_the_shortest",
            f"Series '{shortest['series']}' has {shortest['steps']} steps only, which shortens the defaults for all: "
            f"{defaults}. Leave it out, or set them.",
            _settings_without_short_series(data),
        )
    dropped = {split: count["dropped_without_target"] for split, count in data.notes["windows"].items()}
    if any(dropped.values()):
        counts = ", ".join(f"{count} of {split}" for split, count in dropped.items() if count)
        findings.warn(
            "windows_dropped",
            f"{pluralize(sum(dropped.values()), 'window')} without any value to forecast: {counts}. They are dropped.",
        )
    if data.series[0].ds.dtype.kind == "M" and data.test_steps:
        _warn_about_ends(data, findings)


def _settings_without_short_series(data: ForecastData) -> Notes:
    """Return the setting that sets series aside of less than half the median length; none if there are none."""
    least = suggest_min_length([len(series.ds) for series in data.series], 1)
    return {} if least is None else {"min_length": least}


def _warn_about_ends(data: ForecastData, findings: Findings) -> None:
    last_training = _last_training_time(data)
    first_test = min(series.ds[len(series.ds) - data.test_steps] for series in data.series)
    if last_training >= first_test:
        findings.warn(
            "ends_apart",
            f"Series end at different times: one is trained on until {format_timestamp(last_training)}, the test of "
            f"another begins at {format_timestamp(first_test)}. What all of them share, such as a holiday, is then "
            "known from training.",
        )


def _last_training_time(data: ForecastData) -> np.datetime64 | np.int64:
    held_out = data.validation_steps + data.test_steps
    latest: np.datetime64 | np.int64 = max(series.ds[len(series.ds) - held_out - 1] for series in data.series)
    return latest


def _warn_about_target_leakage(
    values: Float32Array, channels: tuple[str, ...], targets: tuple[str, ...], horizon: int, findings: Findings
) -> None:
    """Warn about columns that are a target in another unit, contain its future, or only count the rows."""
    tail = values[-_MAX_COMPARED_STEPS:].astype(np.float64)
    if len(tail) < _MIN_COMPARED_STEPS:
        return
    rows = np.arange(len(tail), dtype=np.float64)
    for index, name in enumerate(channels):
        if name in targets:
            continue
        if _unexplained(tail[:, index], rows) < _MAX_UNEXPLAINED:
            findings.warn(
                "counts_rows",
                f"Column '{name}' rises by the same amount in every row, as time does: in the test it has values that "
                "training never saw. Leave it out.",
            )
            continue
        for target in targets:
            target_values = tail[:, channels.index(target)]
            ahead = _steps_ahead(tail[:, index], target_values, min(horizon, _MAX_STEPS_AHEAD))
            if ahead == 0:
                findings.warn(
                    "column_equals_target",
                    f"Column '{name}' is the target '{target}' in another unit (correlation 1). Leave it out.",
                )
            elif ahead is not None:
                findings.warn(
                    "column_tells_future",
                    f"Column '{name}' is the target '{target}' of {pluralize(ahead, 'step')} later (correlation 1), "
                    "which nobody knows when the forecast is made. Leave it out.",
                )


def _steps_ahead(column: npt.NDArray[np.float64], target: npt.NDArray[np.float64], max_steps: int) -> int | None:
    """Return how many steps, 0 to ``max_steps``, the column is ahead of the target; None if they do not match."""
    for ahead in range(min(max_steps, len(target) - _MIN_COMPARED_STEPS) + 1):
        if _unexplained(column[: len(column) - ahead], target[ahead:]) < _MAX_UNEXPLAINED and (
            # A target that is a straight line or periodic agrees with its own future as well.
            ahead == 0 or _unexplained(target[: len(target) - ahead], target[ahead:]) >= _MAX_UNEXPLAINED
        ):
            return ahead
    return None


def _unexplained(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """Return 1 - r² over the steps at which both have a value; 1 if there are too few, or if one is constant."""
    is_valid = np.isfinite(first) & np.isfinite(second)
    if is_valid.sum() < _MIN_COMPARED_STEPS:
        return 1.0
    a, b = first[is_valid] - first[is_valid].mean(), second[is_valid] - second[is_valid].mean()
    norms = float((a @ a) * (b @ b))
    return 1.0 if norms == 0 else 1 - float(a @ b) ** 2 / norms
