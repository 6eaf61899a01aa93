"""``resample``: the rows of each series aggregated to one step, where files mix frequencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array, Timestamps
from stablernn.data.repairs.local_times import to_local
from stablernn.data.time.frequency import Frequency, infer_frequency, is_part_of_days, parse_frequency
from stablernn.data.types import Notes, Series
from stablernn.terms import terms

Aggregate = Literal["mean", "sum", "last"]
_DAY_NS = 86_400_000_000_000


class Resampling(NamedTuple):
    """Step and aggregation of resampling.

    Attributes:
        step: The new step.
        aggregate: What the value of a step is.
        shares: Columns of categories, of which a sum is the mean, the share of the step.
        zone: Zone in which the times were local; days are then those of its calendar.
    """

    step: Frequency
    aggregate: Aggregate
    shares: tuple[int, ...] = ()
    zone: str | None = None

    @property
    def has_local_days(self) -> bool:
        """True if the steps are days of the calendar of a zone, which are not instants."""
        return self.zone is not None and self.step.step % _DAY_NS == 0


class _Bins(NamedTuple):
    """The steps of one series that have a row.

    Attributes:
        ds: Beginning of each.
        starts: First row of each.
        expected: Number of rows that a whole one has.
    """

    ds: Timestamps
    starts: Int64Array
    expected: npt.NDArray[np.float64]


def parse_step(alias: str) -> Frequency:
    """Return the step of a frequency alias.

    Raises:
        UnknownNameError: If there is no such alias.
        ConfigError: If its steps are of no fixed length.
    """
    step = parse_frequency(alias)
    if not is_part_of_days(step):
        raise errors.ConfigError(f"resample takes a multiple of s, min, h or D, such as 15min, got '{alias}'.")
    return step


def resample_series(file: str, series: Sequence[Series], how: Resampling) -> tuple[tuple[Series, ...], Notes]:
    """Return the series in steps of one length, and the notes on what was aggregated.

    Steps without a row are left out; the time grid fills them. Steps begin at multiples of their length since
    1970-01-01T00:00, days at midnight.

    Args:
        file: Name of the file, for messages.
        series: Series with dates as timestamps.
        how: Step and aggregation.

    Raises:
        DataError: If timestamps are integers, or a series has longer steps, or steps of which the new one is no
            multiple.
    """
    if series[0].ds.dtype.kind != "M":
        raise errors.DataError(
            f"{terms().file(file)} has integers as timestamps, and data.resample needs dates. Leave it out."
        )
    resampled, incomplete = [], 0
    for each in series:
        bins = _make_bins(each.ds, how, _usual_step(file, each, how.step))
        values, missing = _aggregate(each.values, bins, how)
        incomplete += missing
        resampled.append(replace(each, ds=bins.ds, values=values))
    rows = {"before": sum(len(each.ds) for each in series), "after": sum(len(each.ds) for each in resampled)}
    notes: Notes = {
        "resampled": {
            "count": rows["before"] - rows["after"],
            "step": how.step.alias,
            "aggregate": how.aggregate,
            "rows": rows,
        },
        **({"incomplete_sums": incomplete} if how.aggregate == "sum" else {}),
    }
    return tuple(resampled), notes


def _usual_step(file: str, series: Series, step: Frequency) -> int:
    """Return the usual distance between rows in nanoseconds, which must divide the new step."""
    if len(series.ds) < 2:
        return step.step
    grid = infer_frequency(series.ds)
    distance = int(np.median(np.diff(series.ds).astype(np.int64)))
    if grid is not None and grid.kind == "fixed":
        distance = grid.step
    name = f"in steps of '{grid.alias}'" if grid is not None else f"irregular, about {distance // 10**9} s apart"
    if distance > step.step or (grid is not None and grid.kind != "fixed"):
        raise errors.DataError(
            f"{terms().series_of(file, series.unique_id)} is {name}, and "
            f"{terms().setting('data.resample', step.alias)} is finer. Rows can only be aggregated: set it to the "
            "longest step of the series, or leave this series out."
        )
    if grid is not None and step.step % distance:
        raise errors.DataError(
            f"{terms().series_of(file, series.unique_id)} is {name}, of which "
            f"{terms().setting('data.resample', step.alias)} is no multiple. Set it to one."
        )
    return distance


def _make_bins(ds: Timestamps, how: Resampling, usual_step: int) -> _Bins:
    local = to_local(ds, how.zone) if how.zone is not None and how.has_local_days else ds
    ticks = local.astype("datetime64[ns]").astype(np.int64)
    numbers = ticks // how.step.step
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[0] - 1))
    lasts = np.append(starts[1:], len(ds)) - 1
    # A day on which clocks change is an hour shorter or longer.
    offsets = ticks - ds.astype("datetime64[ns]").astype(np.int64)
    change = offsets[lasts] - offsets[starts]
    begin = (numbers[starts] * how.step.step).astype("datetime64[ns]")
    return _Bins(begin, starts, (how.step.step - change) / usual_step)


def _aggregate(values: Float32Array, bins: _Bins, how: Resampling) -> tuple[Float32Array, int]:
    """Return the value of each step, (steps, columns), and how many sums are missing since a part of them is."""
    is_present = ~np.isnan(values)
    count = np.add.reduceat(is_present.astype(np.int64), bins.starts, axis=0)
    total = np.add.reduceat(np.where(is_present, values, 0).astype(np.float64), bins.starts, axis=0)
    with np.errstate(invalid="ignore"):
        mean = (total / count).astype(np.float32)
    if how.aggregate == "mean":
        return mean, 0
    if how.aggregate == "last":
        # Position of the last present value of each step, of each column.
        rows = np.where(is_present, np.arange(len(values))[:, None], -1)
        last = np.maximum.reduceat(rows, bins.starts, axis=0)
        return np.where(last >= 0, np.take_along_axis(values, np.maximum(last, 0), axis=0), np.nan), 0
    is_whole = count >= bins.expected[:, None]
    sums = np.where(is_whole, total, np.nan).astype(np.float32)
    sums[:, list(how.shares)] = mean[:, list(how.shares)]
    is_partial = (count > 0) & ~is_whole
    is_partial[:, list(how.shares)] = False
    return sums, int(is_partial.sum())
