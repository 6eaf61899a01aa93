"""Repairs of tables, by the options of :class:`~stablernn.data.options.Repairs`.

They work on arrays, know no file format, and return counts for the notes of the data: nothing is repaired in silence.
"""

from __future__ import annotations

import zoneinfo
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array, Timestamps
from stablernn.data.messages import format_names, format_timestamp, pluralize, quote
from stablernn.data.options import Repairs
from stablernn.data.sequences import plain_label
from stablernn.data.table.frequency import Frequency, infer_frequency, is_part_of_days, parse_frequency
from stablernn.data.types import Notes, Series
from stablernn.terms import terms

#: More categories than this are names or free text, from which nothing is learned.
MAX_CATEGORIES = 100
_UNKNOWN = -1.0
_MAX_LISTED = 12

#: Zones whose changes of clocks are looked for in repeated times; most others change at the same times as one of these.
_USUAL_ZONES = (
    *("Europe/Berlin", "Europe/London", "Europe/Helsinki", "America/New_York", "Australia/Sydney"),
    *("Pacific/Auckland", "Asia/Jerusalem", "Africa/Cairo", "America/Santiago", "America/Havana"),
)
# Zones whose days are looked for in instants: those of other offsets and other changes, too.
_DAY_ZONES = (
    *_USUAL_ZONES,
    *("America/Chicago", "America/Denver", "America/Los_Angeles", "America/Anchorage", "America/Halifax"),
    *("America/St_Johns", "America/Sao_Paulo", "America/Asuncion", "America/Mexico_City", "Atlantic/Azores"),
    *("Australia/Adelaide", "Australia/Lord_Howe", "Asia/Tehran", "Asia/Beirut", "Asia/Amman", "Asia/Damascus"),
)
_HOUR_NS = 3_600_000_000_000
_LARGEST_FIXED_OFFSET = 12
# Shares of times that come twice, in repeated hours and elsewhere, where clocks are the reason.
_MIN_SHARE_IN_HOUR, _MAX_SHARE_ELSEWHERE = 0.9, 0.5
Aggregate = Literal["mean", "sum", "last"]
_DAY_NS = 86_400_000_000_000


def category_channels(column: str, categories: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a column's channels: ``region=north`` and so on."""
    return tuple(f"{column}={category}" for category in categories)


def expand_names(names: Sequence[str], categories: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return names of columns with those of categories replaced by the names of their channels."""
    return tuple(
        channel
        for name in names
        for channel in (category_channels(name, categories[name]) if name in categories else (name,))
    )


def collapse_names(names: Sequence[str], categories: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return names with the channels of known categories replaced by their column, each once."""
    columns = {channel: column for column, names in categories.items() for channel in category_channels(column, names)}
    return tuple(dict.fromkeys(columns.get(name, name) for name in names))


class CategoryCodes:
    """Numbers for the categories of columns, which come in chunks.

    Args:
        file: Name of the file, for messages.
        categories: The columns, each with its categories; none where they are those of the file.
        refuses_unknown: True to refuse a category that is not among the given ones.
    """

    def __init__(self, file: str, categories: Mapping[str, Sequence[str]], *, refuses_unknown: bool) -> None:
        self._file, self._refuses_unknown = file, refuses_unknown
        self._codes = {
            name: {each: code for code, each in enumerate(vocabulary)} for name, vocabulary in categories.items()
        }
        self._is_open = {name: not vocabulary for name, vocabulary in categories.items()}
        self._unknown: dict[str, Counter[str]] = {name: Counter() for name in categories}

    def __contains__(self, column: str) -> bool:
        return column in self._codes

    def encode(self, texts: pl.Series) -> Float32Array:
        """Return a number for the category of each cell, NaN where there is none, -1 where it is unknown.

        Raises:
            DataError: If there are too many categories.
        """
        codes = self._codes[texts.name]
        cells = texts.cast(pl.String)
        counts = cells.drop_nulls().value_counts()
        by_text: dict[str, float] = {}
        for text, count in counts.iter_rows():
            # Numbers of a column that a program made one of decimals.
            category = plain_label(text)
            if category not in codes and self._is_open[texts.name]:
                codes[category] = len(codes)
            elif category not in codes:
                self._unknown[texts.name][category] += count
            by_text[text] = float(codes.get(category, _UNKNOWN))
        if self._is_open[texts.name] and len(codes) > MAX_CATEGORIES:
            raise errors.DataError(
                f"{terms().column_of(self._file, texts.name)} has more than {MAX_CATEGORIES} categories. Leave it out "
                "of data.categories, or merge some of them."
            )
        if not by_text:
            return np.full(len(cells), np.nan, dtype=np.float32)
        mapped = cells.replace_strict(list(by_text), list(by_text.values()), default=None, return_dtype=pl.Float32)
        return mapped.fill_null(float("nan")).to_numpy()

    def finish(self) -> tuple[dict[str, tuple[str, ...]], Notes]:
        """Return the categories of each column, in the order of their channels, and the note on unknown ones.

        Raises:
            DataError: If a category is unknown and that is refused, or a column has no category at all.
        """
        for name, unknown in self._unknown.items():
            if unknown and self._refuses_unknown:
                raise errors.DataError(
                    f"{terms().column_of(self._file, name)} has {quote(next(iter(unknown)))}, which is none of the "
                    f"categories of training ({format_names(list(self._codes[name]))}). Correct it, or train with "
                    f"{terms().setting('data.unknown_category', 'zeros')}."
                )
            if not self._codes[name]:
                raise errors.DataError(
                    f"{terms().column_of(self._file, name)} has no category at all. Leave it out of data.categories."
                )
        unknown_notes = {
            name: {"count": sum(unknown.values()), "first": list(unknown)[:_MAX_LISTED]}
            for name, unknown in self._unknown.items()
            if unknown
        }
        count = sum(sum(unknown.values()) for unknown in self._unknown.values())
        notes: Notes = {"unknown_categories": {"count": count, "columns": unknown_notes}} if count else {}
        return {name: self._ordered(name) for name in self._codes}, notes

    def expand(self, values: Float32Array, columns: Sequence[str]) -> Float32Array:
        """Return numbers with those of categories as a channel for each of them, in the order of :func:`expand_names`.

        Args:
            values: float32 (..., columns), with the numbers of :meth:`encode` in columns of categories.
            columns: Names of the columns.
        """
        parts = []
        for index, name in enumerate(columns):
            part = values[..., [index]]
            if name in self._codes:
                codes = np.array([self._codes[name][category] for category in self._ordered(name)], dtype=np.float32)
                one_hot = (part == codes).astype(np.float32)
                part = np.where(np.isnan(part), np.float32(np.nan), one_hot)
            parts.append(part)
        return np.concatenate(parts, axis=-1) if parts else values

    def name_of(self, column: str, code: float) -> str:
        """Return the category that a number of :meth:`encode` stands for; of an unknown one its number."""
        names = {float(number): category for category, number in self._codes[column].items()}
        return names.get(float(code), f"{code:g}")

    def _ordered(self, name: str) -> tuple[str, ...]:
        # Categories of a file in alphabetical order, whatever the order of its rows.
        return tuple(sorted(self._codes[name])) if self._is_open[name] else tuple(self._codes[name])


class MissingCodes:
    """Replaces codes in the columns of a table, and counts them.

    Args:
        file: Name of the file, for messages.
        codes: Numbers, which match cells that are equal to them however they are written, and texts.
    """

    def __init__(self, file: str, codes: Sequence[int | float | str]) -> None:
        self._file, self._codes = file, codes
        numbers = [number for code in codes if (number := _as_number(code)) is not None]
        self._numbers = pl.Series(numbers, dtype=pl.Float64)
        # As the values of a column of float32 are, when they are compared.
        self._rounded = self._numbers.cast(pl.Float32)
        self.texts = tuple(code for code in codes if isinstance(code, str) and _as_number(code) is None)
        self._filled: Counter[str] = Counter()
        self._replaced: Counter[str] = Counter()

    def replace(self, numbers: pl.Series) -> pl.Series:
        """Return a column of numbers, null where one is a code."""
        if not self._codes:
            return numbers
        is_code = numbers.is_in(self._rounded if numbers.dtype == pl.Float32 else self._numbers).fill_null(False)
        self.count(numbers.name, numbers.count() - int(is_code.sum()), int(is_code.sum()))
        return numbers.set(is_code, None) if is_code.any() else numbers

    def count_texts(self, cells: pl.Series) -> None:
        """Count the cells of a column of text that are codes, before they are replaced."""
        if self.texts and cells.dtype == pl.String:
            self.count(cells.name, 0, int(cells.str.strip_chars().is_in(list(self.texts)).fill_null(False).sum()))

    def count(self, column: str, values: int, codes: int) -> None:
        self._filled[column] += values
        self._replaced[column] += codes

    def finish(self, series_of_column: Callable[[str], Sequence[str]] = lambda name: ()) -> Notes:
        """Return the counts as notes, after all rows.

        Args:
            series_of_column: Returns the names of the series that a column is all of.

        Raises:
            DataError: If every value of a column is a code.
        """
        for column, replaced in self._replaced.items():
            if replaced and not self._filled[column]:
                codes = format_names([quote(str(code)) for code in self._codes])
                raise errors.DataError(
                    f"{terms().column_of(self._file, column)} holds nothing but {codes}, which data.missing takes for "
                    f"missing values. Leave the code out of data.missing, or the column out by {terms().channels}.",
                    series=series_of_column(column),
                )
        columns = {column: count for column, count in self._replaced.items() if count}
        return {"missing_codes": {"count": sum(columns.values()), "columns": columns}} if self._codes else {}


def _as_number(code: int | float | str) -> float | None:
    try:
        return float(code)
    except ValueError:
        return None


def sort_order(ds: Timestamps, ends: Int64Array) -> tuple[Int64Array | None, int]:
    """Return the order that sorts the rows of each series by time, None if they are sorted, and how many were not.

    Rows with the same time keep their order.

    Args:
        ds: Timestamps, the rows of each series together.
        ends: End of each series.
    """
    ticks = ds.view(np.int64)
    is_early = ticks[1:] < ticks[:-1]
    is_early[ends[:-1] - 1] = False
    if not is_early.any():
        return None, 0
    codes = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
    return np.lexsort((ticks, codes)), int(is_early.sum())


class MergedRows(NamedTuple):
    """Rows of which none repeats a time of its series.

    Attributes:
        ds: Timestamps.
        values: float32 (rows, columns).
        ends: End of each series.
        notes: ``duplicate_rows``, rows that were merged into another one, and ``duplicate_rows_differing``, how many of
            them had other values.
    """

    ds: Timestamps
    values: Float32Array
    ends: Int64Array
    notes: Notes


def find_repeats(ds: Timestamps, ends: Int64Array) -> npt.NDArray[np.bool_]:
    """Return, for each row, whether it has the time of the row of its series before."""
    repeats = np.zeros(len(ds), dtype=bool)
    repeats[1:] = ds[1:] == ds[:-1]
    repeats[ends[:-1]] = False
    return repeats


def repeats_differ(values: Float32Array, repeats: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return, for each row that repeats a time, whether its values differ from those of the row before."""
    rows = np.flatnonzero(repeats)
    before, after = values[rows - 1], values[rows]
    return np.asarray(((before != after) & ~(np.isnan(before) & np.isnan(after))).any(axis=1))


def find_unlike_categories(values: Float32Array, repeats: npt.NDArray[np.bool_], column: int) -> int | None:
    """Return the first row that repeats a time with another category; None if there is none."""
    rows = np.flatnonzero(repeats)
    differs = repeats_differ(values[:, [column]], repeats)
    return int(rows[np.argmax(differs)]) if differs.any() else None


def merge_duplicates(
    ds: Timestamps, values: Float32Array, ends: Int64Array, how: Literal["mean", "last"]
) -> MergedRows:
    """Merge rows of one series and time, which follow each other.

    Args:
        ds: Timestamps, in ascending order within each series.
        values: float32 (rows, columns); a mean is that of the values that are not missing.
        ends: End of each series.
        how: Which values the merged row has.
    """
    repeats = find_repeats(ds, ends)
    notes: Notes = {
        "duplicate_rows": int(repeats.sum()),
        "duplicate_rows_differing": int(repeats_differ(values, repeats).sum()),
    }
    if not notes["duplicate_rows"]:
        return MergedRows(ds, values, ends, notes)
    starts = np.flatnonzero(~repeats)
    # Of each series, how many of its rows begin a group of rows of one time.
    new_ends = np.searchsorted(starts, ends, side="left").astype(np.int64)
    if how == "last":
        last = np.append(starts[1:], len(ds)) - 1
        return MergedRows(ds[last], values[last], new_ends, notes)
    is_present = ~np.isnan(values)
    # float64, so that the mean of equal values is that value.
    total = np.add.reduceat(np.where(is_present, values, 0).astype(np.float64), starts, axis=0)
    count = np.add.reduceat(is_present.astype(np.int64), starts, axis=0)
    with np.errstate(invalid="ignore"):
        mean = (total / count).astype(np.float32)
    return MergedRows(ds[starts], mean, new_ends, notes)


@dataclass(frozen=True)
class SkippedTime:
    """A local time that does not exist.

    Attributes:
        index: Its row.
        message: The reason, as the end of a sentence about the row, with advice.
        settings: Settings that may be right instead.
    """

    index: int
    message: str
    settings: Notes


def check_timezone(name: str) -> None:
    """Raise unless there is a time zone of this name.

    Raises:
        UnknownNameError: With the closest one.
    """
    try:
        pl.Series([0], dtype=pl.Datetime("us")).dt.replace_time_zone(name)
    except pl.exceptions.PolarsError:
        hint = "Names are those of the IANA database, such as Europe/Berlin, America/New_York or UTC."
        raise errors.unknown("time zone", name, sorted(zoneinfo.available_timezones()), hint) from None


def are_days(local: Timestamps) -> bool:
    """Return True if there are several times, all at one time of the day: days of the calendar, of unequal length."""
    ticks = _ticks(local)
    return bool((ticks != ticks[0]).any()) and bool((ticks % (24 * _HOUR_NS) == ticks[0] % (24 * _HOUR_NS)).all())


def find_skipped_time(local: Timestamps, zone: str) -> SkippedTime | None:
    """Return the first local time that does not exist in a zone; None if all do."""
    skipped = _localize(local, zone, "earliest").is_null()
    if not skipped.any():
        return None
    index = int(np.argmax(skipped.to_numpy()))
    # The zone that keeps the time of the day before all year.
    before = (_ticks(local[index : index + 1]) - 24 * _HOUR_NS).view("datetime64[ns]")
    hours, remainder = divmod(
        int((_ticks(before) - _ticks(to_instants(_localize(before, zone, "earliest"))))[0]), _HOUR_NS
    )
    advice, settings = "Set data.timezone to the zone in which the times were recorded.", Notes()
    if not remainder and abs(hours) <= _LARGEST_FIXED_OFFSET:
        # The sign of these zones is that of POSIX.
        fixed = f"Etc/GMT{-hours:+d}" if hours else "UTC"
        advice = f"If clocks were never changed, {terms().set('data.timezone', fixed)}; else correct the times."
        settings = {"timezone": fixed}
    message = f"{format_timestamp(local[index])} does not exist in {zone}, where clocks went forward over it. {advice}"
    return SkippedTime(index, message, settings)


def convert_to_utc(local: Timestamps, ends: Int64Array, zone: str) -> tuple[Timestamps, Notes]:
    """Convert the local times of series, all of which exist; return instants in UTC, and counts of rows and hours.

    When clocks go back, an hour of local times comes twice: of the rows of one series with the same local time the
    first half, in the order of the file, is taken for the first pass. When clocks go forward, an hour does not exist:
    rows in it are refused before, since they show that the times are not those of the zone.

    Args:
        local: datetime64[ns], the rows of each series together, in the order of the file.
        ends: End of each series.
        zone: Name of the zone.
    """
    first = to_instants(_localize(local, zone, "earliest"))
    last = to_instants(_localize(local, zone, "latest"))
    ds, repeated, once = first.copy(), np.flatnonzero(first != last), 0
    if len(repeated):
        position, count = _occurrences(local, ends, repeated)
        is_second_pass = position >= (count + 1) // 2
        ds[repeated[is_second_pass]] = last[repeated[is_second_pass]]
        once = int((count == 1).sum())
    goes_forward = np.diff(_ticks(local) - _ticks(ds)) > 0
    goes_forward[ends[:-1] - 1] = False
    notes: Notes = {
        "local_times_converted": len(ds),
        "repeated_hour_rows": len(repeated),
        "repeated_hour_once": once,
        "skipped_hours": int(goes_forward.sum()),
        "local_zone": zone,
    }
    return ds, notes


def to_local(instants: Timestamps, zone: str) -> Timestamps:
    """Return instants in UTC as local times, datetime64[ns]."""
    text = pl.Series(instants.astype("datetime64[us]")).dt.replace_time_zone("UTC").dt.convert_time_zone(zone)
    return np.asarray(text.dt.replace_time_zone(None).to_numpy().astype("datetime64[ns]"))


def to_days(instants: Timestamps, zone: str) -> Timestamps | None:
    """Return instants as the days of a zone, datetime64[ns], if all are of one time of its day; None for others.

    A day whose midnight is skipped begins when clocks have gone forward.
    """
    local = to_local(instants, zone)
    if are_days(local):
        return local
    midnight = np.asarray(local.astype("datetime64[D]").astype("datetime64[ns]"))
    is_late = _localize(midnight, zone, "earliest").is_null().to_numpy() & (
        _ticks(local) - _ticks(midnight) <= _HOUR_NS
    )
    days = np.where(is_late, midnight, local)
    return days if are_days(days) else None


def suggest_day_zone(instants: Timestamps) -> str | None:
    """Return a zone in which instants, a day or more apart, are midnights, or of one time of the day.

    None where they are so in UTC, or in no zone.
    """
    if len(instants) < 2 or np.median(np.diff(_ticks(instants))) < 23 * _HOUR_NS or are_days(instants):
        return None
    days = {zone: local for zone in _DAY_ZONES if (local := to_days(instants, zone)) is not None}
    midnights = (zone for zone, local in days.items() if not _ticks(local[:1]) % (24 * _HOUR_NS))
    return next(midnights, next(iter(days), None))


def suggest_timezone(local: Timestamps, ends: Int64Array) -> str | None:
    """Return a zone whose clocks explain repeated times; None if there is none.

    In its repeated hours nearly all times come twice, elsewhere most do not, as they do where several series have no
    names, and no time is in an hour that is skipped.
    """
    is_twice = _occurrences(local, ends, np.arange(len(local)))[1] >= 2
    for zone in _USUAL_ZONES:
        first = _localize(local, zone, "earliest")
        if first.is_null().any():
            continue
        is_repeated = to_instants(first) != to_instants(_localize(local, zone, "latest"))
        if not is_repeated.any() or is_repeated.all():
            continue
        if is_twice[is_repeated].mean() > _MIN_SHARE_IN_HOUR and is_twice[~is_repeated].mean() < _MAX_SHARE_ELSEWHERE:
            return zone
    return None


def _localize(local: Timestamps, zone: str, ambiguous: str) -> pl.Series:
    times = pl.Series(local.astype("datetime64[us]"))
    return times.dt.replace_time_zone(zone, ambiguous=ambiguous, non_existent="null")  # type: ignore[arg-type]


def to_instants(times: pl.Series) -> npt.NDArray[np.datetime64]:
    """Return times with a zone as datetime64[ns] in UTC."""
    utc = times.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return np.asarray(utc.to_numpy().astype("datetime64[ns]"))


def _ticks(times: Timestamps) -> Int64Array:
    """Return times in nanoseconds."""
    return cast(Int64Array, times.astype("datetime64[ns]").astype(np.int64))


def _occurrences(local: Timestamps, ends: Int64Array, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return, for each of these rows, its number among those of its series and time, and how many those are."""
    series = np.searchsorted(ends, rows, side="right")
    frame = pl.DataFrame({"series": series, "time": local[rows].astype(np.int64)})
    occurrences = frame.select(
        position=pl.int_range(pl.len()).over("series", "time"), count=pl.len().over("series", "time").cast(pl.Int64)
    )
    return occurrences["position"].to_numpy(), occurrences["count"].to_numpy()


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


def keep_long_series(file: str, series: Sequence[Series], min_length: int) -> tuple[list[int], Notes]:
    """Return the positions of the series that are long enough, and the note on the others.

    Args:
        file: Name of the file, for messages.
        series: The series.
        min_length: Number of rows.

    Raises:
        DataError: If none is.
    """
    is_long = [len(each.ds) >= min_length for each in series]
    if not any(is_long):
        longest = max(len(each.ds) for each in series)
        raise errors.DataError(
            f"{terms().file(file)} has no series of {pluralize(min_length, 'row')} (data.min_length); the longest has "
            f"{longest}. Lower it."
        )
    short = [each.unique_id for each, is_kept in zip(series, is_long, strict=True) if not is_kept]
    positions = [index for index, is_kept in enumerate(is_long) if is_kept]
    return positions, {"short_series": {"count": len(short), "names": short}} if short else {}


def check_repairs(repairs: Repairs) -> None:
    """Refuse options that cannot be used, or would have no effect.

    Raises:
        UnknownNameError: If a time zone or a frequency alias does not exist.
        ConfigError: If a value is not allowed, or an option needs another one that is not set.
    """
    for name in ("on_duplicate", "unknown_category", "aggregate"):
        allowed = get_args(Repairs.model_fields[name].annotation)
        if getattr(repairs, name) not in allowed:
            raise errors.ConfigError(f"{name} must be {_alternatives(allowed)}, got {getattr(repairs, name)!r}.")
    if repairs.decimal_mark not in (None, ",", "."):
        raise errors.ConfigError(f"decimal_mark must be ',' or '.', got {repairs.decimal_mark!r}.")
    if repairs.thousands_mark not in (None, ",", ".", " ", "'"):
        raise errors.ConfigError(
            f"thousands_mark must be ',', '.', ' ' or an apostrophe, got {repairs.thousands_mark!r}."
        )
    if repairs.decimal_mark is not None and repairs.decimal_mark == repairs.thousands_mark:
        raise errors.ConfigError(
            f"decimal_mark and thousands_mark are both '{repairs.decimal_mark}', and must differ. Change one of them."
        )
    if repairs.aggregate != "mean" and repairs.resample is None:
        raise errors.ConfigError(
            f"aggregate={repairs.aggregate} needs resample, the step to aggregate to. Set it, or leave aggregate out."
        )
    if repairs.unknown_category != "zeros" and not repairs.categories:
        raise errors.ConfigError(
            f"unknown_category={repairs.unknown_category} needs categories, the columns of text. Set them, or leave "
            "unknown_category out."
        )
    if repairs.min_length is not None and repairs.min_length < 1:
        raise errors.ConfigError(f"min_length must be 1 or more, got {repairs.min_length}.")
    if repairs.timezone is not None:
        check_timezone(repairs.timezone)
    if repairs.resample is not None:
        parse_step(repairs.resample)


def _alternatives(values: tuple[str, ...]) -> str:
    return f"{', '.join(values[:-1])} or {values[-1]}"
