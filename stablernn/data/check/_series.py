"""What series show: lengths, gaps, constants, copies, columns that give the target away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import Float32Array
from stablernn.data.check._report import Column, Findings, Role
from stablernn.data.check._values import channel_figures, content_hash, figures_as_columns, warn_of_figures
from stablernn.data.forecasting.covariates import calendar_channels
from stablernn.data.messages import format_names, format_timestamp, pluralize
from stablernn.data.types import ForecastData, Notes, Series

#: Unexplained share of a column's variance below which it is the other one in another unit.
_SAME = 1e-6
#: Steps of the longest series in which columns are compared, and how far ahead.
_MOST_COMPARED, _FURTHEST_AHEAD = 20_000, 48
#: Below this number of steps any two columns may seem to agree.
_LEAST_COMPARED = 20


def look_at_series(
    series: Sequence[Series],
    channels: tuple[str, ...],
    targets: tuple[str, ...],
    notes: Notes,
    findings: Findings,
    data: ForecastData | None = None,
) -> tuple[tuple[Column, ...], Notes]:
    """Columns and content of series.

    Args:
        series: On their grid, or as they stand in the file where no dataset could be made of them.
        channels: Names of their columns.
        targets: Those that are forecast.
        notes: What readers counted.
        findings: Where warnings go.
        data: The dataset; None where there is none.
    """
    values = [one.values for one in series]
    training = data.training_values() if data is not None else values
    figures = channel_figures(values, training, own_scale=True)
    future = data.future if data is not None else ()
    roles: list[Role] = [
        "target" if name in targets else "future" if name in future else "channel" for name in channels
    ]
    lengths = np.array([len(one.ds) for one in series])
    flat = [one.unique_id for one, known in zip(series, training, strict=True) if _is_flat(known, channels, targets)]
    content: Notes = {
        "series": len(series),
        "steps": {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())},
        "first": format_timestamp(min(one.ds[0] for one in series)),
        "last": format_timestamp(max(one.ds[-1] for one in series)),
        "frequency": data.frequency if data is not None else notes.get("frequency"),
        "season": data.season if data is not None else notes.get("season"),
        **({"frequencies": notes["frequencies"]} if "frequencies" in notes else {}),
        "gap_steps_filled": notes.get("gap_steps_filled", 0),
        "irregular_intervals": notes.get("irregular_intervals", 0),
        "missing_values": int(figures.missing.sum()),
        "constant_series": len(flat),
        "duplicate_series": _copies(series),
    }
    made = len(calendar_channels(data.calendar)) if data is not None else 0
    warn_of_figures(figures, channels, findings, made=made)
    _warn_of_series(content, flat, findings)
    _warn_of_rhythm(content, findings)
    _warn_of_telling_columns(max(training, key=len), channels, targets, data.horizon if data else 1, findings)
    if data is not None:
        _warn_of_splits(data, findings)
    return figures_as_columns(figures, channels, roles), content


def _is_flat(known: Float32Array, channels: tuple[str, ...], targets: tuple[str, ...]) -> bool:
    """Whether no target of a series changes."""
    chosen = [known[:, channels.index(target)] for target in targets or channels]
    return len(known) > 1 and all(np.fmin.reduce(one) == np.fmax.reduce(one) for one in chosen)


def _copies(series: Sequence[Series]) -> int:
    hashes = [content_hash(one.values) for one in series]
    return len(hashes) - len(set(hashes))


def _warn_of_series(content: Notes, flat: list[str], findings: Findings) -> None:
    if flat and content["series"] > 1:
        findings.warn(
            "constant_series",
            f"{len(flat)} of {content['series']} series never change in training (scale 0): {format_names(flat)}.",
        )
    if content["duplicate_series"]:
        findings.warn(
            "duplicate_series",
            f"{content['duplicate_series']} of {content['series']} series have the values of another one. "
            "They weigh double, and teach nothing new.",
        )


def _warn_of_rhythm(content: Notes, findings: Findings) -> None:
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


def _warn_of_splits(data: ForecastData, findings: Findings) -> None:
    cut = data.notes.get("cut_for_the_shortest")
    if cut:
        shorter = format_names([f"{word} {cut[word]}" for word in cut if word not in ("series", "steps")])
        findings.warn(
            "cut_for_the_shortest",
            f"Series '{cut['series']}' has {cut['steps']} steps only, which shortens the defaults for all: {shorter}. "
            "Leave it out, or set them.",
        )
    dropped = {split: count["dropped_without_target"] for split, count in data.notes["windows"].items()}
    if any(dropped.values()):
        words = ", ".join(f"{count} of {split}" for split, count in dropped.items() if count)
        findings.warn(
            "windows_dropped",
            f"{pluralize(sum(dropped.values()), 'window')} without any value to forecast: {words}. They are dropped.",
        )
    if data.series[0].ds.dtype.kind == "M" and data.test_steps:
        _warn_of_ends(data, findings)


def _warn_of_ends(data: ForecastData, findings: Findings) -> None:
    late, early = _latest_training(data), min(one.ds[len(one.ds) - data.test_steps] for one in data.series)
    if late >= early:
        findings.warn(
            "ends_apart",
            f"Series end at different times: one is trained on until {format_timestamp(late)}, the test of another "
            "begins at "
            f"{format_timestamp(early)}. What all of them share, such as a holiday, is then known from training.",
        )


def _latest_training(data: ForecastData) -> np.datetime64 | np.int64:
    held_out = data.validation_steps + data.test_steps
    latest: np.datetime64 | np.int64 = max(one.ds[len(one.ds) - held_out - 1] for one in data.series)
    return latest


def _warn_of_telling_columns(
    values: Float32Array, channels: tuple[str, ...], targets: tuple[str, ...], horizon: int, findings: Findings
) -> None:
    """Columns that are a target in another unit, that hold its future, or that only count the rows."""
    part = values[-_MOST_COMPARED:].astype(np.float64)
    if len(part) < _LEAST_COMPARED:
        return
    rows = np.arange(len(part), dtype=np.float64)
    for index, name in enumerate(channels):
        if name in targets:
            continue
        if _unexplained(part[:, index], rows) < _SAME:
            findings.warn(
                "counts_rows",
                f"Column '{name}' rises by the same amount in every row, as time does: in the test it has values that "
                "training never saw. Leave it out.",
            )
            continue
        for target in targets:
            ahead = _ahead(part[:, index], part[:, channels.index(target)], min(horizon, _FURTHEST_AHEAD))
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


def _ahead(column: npt.NDArray[np.float64], target: npt.NDArray[np.float64], furthest: int) -> int | None:
    """How many steps ahead the column knows the target, 0 to ``furthest``; None when it does not."""
    for ahead in range(min(furthest, len(target) - _LEAST_COMPARED) + 1):
        if _unexplained(column[: len(column) - ahead], target[ahead:]) < _SAME and (
            # A target that is a straight line, or repeats itself, agrees with its own future as well.
            ahead == 0 or _unexplained(target[: len(target) - ahead], target[ahead:]) >= _SAME
        ):
            return ahead
    return None


def _unexplained(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """1 - r², of the steps where both have a value; 1 where that says nothing."""
    both = np.isfinite(first) & np.isfinite(second)
    if both.sum() < _LEAST_COMPARED:
        return 1.0
    a, b = first[both] - first[both].mean(), second[both] - second[both].mean()
    sizes = float((a @ a) * (b @ b))
    return 1.0 if sizes == 0 else 1 - float(a @ b) ** 2 / sizes
