"""``.ts``, the format of the UEA archive: ``#`` comments, an ``@`` header, then one sequence per row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stablernn import errors
from stablernn.data.arrays import Float64Array
from stablernn.data.files import read_text
from stablernn.data.messages import pluralize, quote
from stablernn.data.readers.ucr_tsv import check_label, is_number, number_lines, parse_numbers, to_float32
from stablernn.data.sequences import Sequences, default_channel_names, plain_labels
from stablernn.data.table.timestamps import parse_dates

_TRUE_FALSE = {"true": True, "false": False}
_FLAGS = ("timestamps", "missing", "univariate", "equallength", "targetlabel")
_COUNTS = ("dimensions", "dimension", "serieslength")
_KEY_SPELLING = {
    "timestamps": "timeStamps",
    "equallength": "equalLength",
    "targetlabel": "targetLabel",
    "serieslength": "seriesLength",
}
# Dates have colons in them, so only those outside of parentheses separate channels.
_CHANNEL_END = re.compile(r":(?![^(]*\))")
_PAIR = re.compile(r"\s*\(([^,()]*),([^,()]*)\)\s*(?:,|$)")


@dataclass(frozen=True)
class _Header:
    """The header above ``@data``.

    Attributes:
        flags: Values of the keys that are true or false, of those it has.
        counts: Values of the keys that are numbers, of those it has.
        labels: Labels that the header allows; empty when it does not list them, None when rows have no label.
    """

    flags: dict[str, bool]
    counts: dict[str, int]
    labels: list[str] | None


@dataclass
class _Rows:
    """The sequences below the header, with the number of values that were filled up with NaN."""

    values: list[Float64Array]
    times: list[Float64Array]
    labels: list[str]
    num_padded: int = 0


def read_ts(path: Path) -> Sequences:
    """Read a UEA ``.ts`` file.

    Values are separated by commas, channels by colons; ``?`` is missing; the label is the last field where the header
    has ``@classLabel true``. Channels of one row that are shorter than others are filled up with NaN, counted in
    ``notes["short_channels_padded"]``. With ``@timeStamps true`` values are pairs ``(timestamp,value)`` of a number or
    a date and a value; a channel is missing at timestamps that only others have, counted in
    ``notes["unshared_stamps"]``.

    Lengths and missing values that differ from those of the header are listed in ``notes["header_contradicted"]``.

    Raises:
        DataError: If header or rows break the format, rows differ in channels or have others than the header
            says, or a label is not among those of the header.
        UnknownNameError: If there is no such file.
    """
    header, lines = _read_header(path)
    has_timestamps = header.flags.get("timestamps", False)
    rows = _Rows([], [], [])
    for number, line in lines:
        fields = _CHANNEL_END.split(line) if has_timestamps else line.split(":")
        if header.labels is not None:
            rows.labels.append(_check_row_label(path, number, fields.pop().strip(), header.labels))
        else:
            _check_no_label(path, number, fields, header)
        _check_channels(path, number, len(fields), header, rows.values[0].shape[1] if rows.values else None)
        if has_timestamps:
            _add_timed(path, number, fields, rows)
        else:
            _add_untimed(path, number, fields, rows)
    notes: dict[str, Any] = {}
    if rows.num_padded:
        notes["unshared_stamps" if has_timestamps else "short_channels_padded"] = rows.num_padded
    if contradictions := _find_contradictions(header, rows.values, rows.num_padded):
        notes["header_contradicted"] = contradictions
    return Sequences(
        name=path.name,
        values=to_float32(path, rows.values),
        labels=plain_labels(path.name, rows.labels) if header.labels is not None else None,
        features=default_channel_names(rows.values[0].shape[1]),
        notes=notes,
        times=rows.times if has_timestamps else None,
        locations=tuple(f"line {number}" for number, _ in lines),
    )


def _read_header(path: Path) -> tuple[_Header, list[tuple[int, str]]]:
    keys: dict[str, str] = {}
    rows: list[tuple[int, str]] = []
    in_data = False
    for number, line in number_lines(read_text(path)):
        if line.startswith(("#", "%")):
            continue
        if in_data:
            rows.append((number, line))
        elif line.startswith("@"):
            key, _, value = line[1:].strip().partition(" ")
            in_data = key.lower() == "data"
            keys[key.lower()] = value.strip()
        else:
            raise errors.DataError(
                f"'{path.name}' line {number} stands before '@data' but does not begin with '@' or '#'. Write '@data' "
                "on a line of its own before the first sequence."
            )
    if not rows:
        raise errors.DataError(f"'{path.name}' has no sequences behind '@data'. Add a line for each.")
    flags = {key: _parse_flag(path, key, keys[key].split(" ")[0]) for key in _FLAGS if key in keys}
    if flags.get("targetlabel"):
        raise errors.DataError(
            f"'{path.name}' is for regression (@targetLabel true); classification needs class labels."
        )
    counts = {key: _parse_count(path, key, keys[key]) for key in _COUNTS if key in keys}
    # "@classLabel true a b" lists the labels, "@classLabel true" allows any.
    has_labels, *labels = keys.get("classlabel", "false").split() or [""]
    return _Header(flags, counts, labels if _parse_flag(path, "classLabel", has_labels) else None), rows


def _check_row_label(path: Path, number: int, label: str, allowed: list[str]) -> str:
    if label not in allowed and "," in label:
        raise errors.DataError(
            f"'{path.name}' line {number} ends without a label: its last field is {quote(label)}. It seems to be cut "
            "off; complete or remove it."
        )
    return check_label(path, number, label, allowed, "@classLabel")


def _parse_flag(path: Path, key: str, value: str) -> bool:
    if value.lower() not in _TRUE_FALSE:
        raise errors.DataError(
            f"'{path.name}': @{_KEY_SPELLING.get(key, key)} must be followed by true or false, got {quote(value)}."
        )
    return _TRUE_FALSE[value.lower()]


def _parse_count(path: Path, key: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,9}", value):
        raise errors.DataError(
            f"'{path.name}': @{_KEY_SPELLING.get(key, key)} must be followed by a whole number, got {quote(value)}."
        )
    return int(value)


def _check_no_label(path: Path, number: int, fields: Sequence[str], header: _Header) -> None:
    """Refuse a last field that seems to be a label where the header declares none."""
    *channels, last = fields
    # One field more than channels, or a text, is a label; a field with commas is a channel.
    has_extra_field = len(fields) - 1 in (header.counts.get("dimensions"), header.counts.get("dimension")) or (
        header.flags.get("univariate", False) and len(fields) == 2
    )
    if channels and "," not in last and (has_extra_field or not is_number(last)):
        raise errors.DataError(
            f"'{path.name}' line {number} seems to end with a label, {quote(last)}, and no @classLabel says so. Say "
            "'@classLabel true' and the classes above '@data'."
        )


def _check_channels(path: Path, number: int, num_channels: int, header: _Header, previous: int | None) -> None:
    # Only the first row is compared with the header; all others must be like it.
    if previous is not None:
        if num_channels != previous:
            raise errors.DataError(
                f"'{path.name}' line {number} has {pluralize(num_channels, 'channel')}, the rows before have "
                f"{previous}."
            )
        return
    if not num_channels:
        raise errors.DataError(f"'{path.name}' line {number} has a label but no values.")
    count = next((header.counts[key] for key in ("dimensions", "dimension") if key in header.counts), None)
    if count is not None and num_channels != count:
        raise errors.DataError(
            f"'{path.name}' line {number} has {pluralize(num_channels, 'channel')}, @dimensions says {count}. "
            "Correct one of them."
        )
    if header.flags.get("univariate") and num_channels != 1:
        raise errors.DataError(
            f"'{path.name}' line {number} has {pluralize(num_channels, 'channel')}, @univariate says true. "
            "Correct one of them."
        )


def _add_untimed(path: Path, number: int, fields: Sequence[str], rows: _Rows) -> None:
    channels = [parse_numbers(path, number, field.split(",")) for field in fields]
    length = max(len(channel) for channel in channels)
    values = np.full((length, len(channels)), np.nan)
    for index, channel in enumerate(channels):
        values[: len(channel), index] = channel
        rows.num_padded += length - len(channel)
    rows.values.append(values)


def _add_timed(path: Path, number: int, fields: Sequence[str], rows: _Rows) -> None:
    """Add one row, with a step for every timestamp of any of its channels."""
    times: list[Float64Array] = []
    channels: list[Float64Array] = []
    for index, field in enumerate(fields):
        pairs = _PAIR.findall(field)
        # split() gives the text between pairs and their two groups in turn: nothing else may be there.
        if not pairs or "".join(_PAIR.split(field)[::3]).strip():
            raise errors.DataError(
                f"'{path.name}' line {number}: channel {index} must be pairs (stamp,value), as @timeStamps says, "
                f"got {quote(field)}."
            )
        times.append(_parse_times(path, number, [timestamp.strip() for timestamp, _ in pairs]))
        channels.append(parse_numbers(path, number, [value for _, value in pairs]))
        if (np.diff(times[-1]) < 0).any():
            raise errors.DataError(f"'{path.name}' line {number}: timestamps must never fall. Sort the steps by time.")
    if all(np.array_equal(channel_times, times[0]) for channel_times in times):
        rows.values.append(np.stack(channels, axis=1))
        rows.times.append(times[0])
        return
    merged_times = np.unique(np.concatenate(times))
    values = np.full((len(merged_times), len(channels)), np.nan)
    for index, (channel_times, channel) in enumerate(zip(times, channels, strict=True)):
        if len(np.unique(channel_times)) < len(channel_times):
            raise errors.DataError(
                f"'{path.name}' line {number}: channel {index} has a timestamp twice, and the channels have different "
                "ones, so its values cannot be matched."
            )
        values[np.searchsorted(merged_times, channel_times), index] = channel
        rows.num_padded += len(merged_times) - len(channel_times)
    rows.values.append(values)
    rows.times.append(merged_times)


def _parse_times(path: Path, number: int, timestamps: Sequence[str]) -> Float64Array:
    """Return timestamps as numbers: numbers as they are, dates as seconds since 1970."""
    cells = pl.Series(timestamps, dtype=pl.String)
    times = cells.cast(pl.Float64, strict=False)
    if not times.is_finite().fill_null(False).all():
        # Dates are parsed in microseconds.
        times = parse_dates(cells).cast(pl.Int64) / 1e6
    if times.null_count():
        cell = timestamps[int(np.argmax(times.is_null().to_numpy()))]
        raise errors.DataError(
            f"'{path.name}' line {number}: the timestamp {quote(cell)} is neither a number nor a date as 2024-01-31 "
            "or 2024-01-31 13:00:00."
        )
    return times.to_numpy()


def _find_contradictions(header: _Header, values: Sequence[Float64Array], num_padded: int) -> list[str]:
    """Return the keys of the header that the rows contradict and that do not affect how they are read."""
    lengths = {len(sequence) for sequence in values}
    is_equal = len(lengths) == 1 and not num_padded
    contradictions = []
    if header.flags.get("equallength") and not is_equal:
        contradictions.append("@equalLength true")
    if "serieslength" in header.counts and is_equal and lengths != {header.counts["serieslength"]}:
        contradictions.append(f"@seriesLength {header.counts['serieslength']}")
    # Padding is NaN, too; where there is any, missing values cannot be told from it.
    has_missing = any(np.isnan(sequence).any() for sequence in values) and not num_padded
    if header.flags.get("missing") is False and has_missing:
        contradictions.append("@missing false")
    return contradictions
