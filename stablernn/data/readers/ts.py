"""Reads ``.ts``, the format of the UEA archive: ``#`` comments, an ``@`` header, then a row a sequence."""

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
from stablernn.data.messages import pluralize, quote
from stablernn.data.readers.paths import read_text
from stablernn.data.readers.timestamps import parse_dates
from stablernn.data.readers.ucr_tsv import check_label, is_number, numbered_lines, parse_numbers, to_float32
from stablernn.data.sequences import Sequences, default_channel_names, plain_labels

_TRUE_FALSE = {"true": True, "false": False}
_FLAGS = ("timestamps", "missing", "univariate", "equallength", "targetlabel")
_COUNTS = ("dimensions", "dimension", "serieslength")
_WRITTEN = {
    "timestamps": "timeStamps",
    "equallength": "equalLength",
    "targetlabel": "targetLabel",
    "serieslength": "seriesLength",
}
# Dates have colons in them, so only those outside of parentheses separate channels.
_CHANNEL_END = re.compile(r":(?![^(]*\))")
_STAMPED = re.compile(r"\s*\(([^,()]*),([^,()]*)\)\s*(?:,|$)")


@dataclass(frozen=True)
class _Header:
    """What stands above ``@data``; None where it says nothing.

    Attributes:
        flags: Answers to yes-or-no keys.
        counts: Numbers.
        labels: Labels that the header allows; empty when it does not list them, None when rows have no label.
    """

    flags: dict[str, bool]
    counts: dict[str, int]
    labels: list[str] | None


@dataclass
class _Rows:
    """What stands below, row by row."""

    values: list[Float64Array]
    times: list[Float64Array]
    labels: list[str]
    padded: int = 0


def read_ts(path: Path) -> Sequences:
    """Reads a UEA ``.ts`` file.

    Values are separated by commas, channels by colons; ``?`` is missing; the label is the last field where the header
    says ``@classLabel true``. Channels of one row that are shorter than others are filled up with NaN, counted in
    ``notes["short_channels_padded"]``. With ``@timeStamps true`` values are pairs ``(stamp,value)`` of a number or a
    date and a value; channels with other stamps than their neighbours are missing at those they lack, counted in
    ``notes["unshared_stamps"]``.

    What the header says of lengths and missing values and the rows do otherwise is in
    ``notes["header_contradicted"]``.

    Raises:
        DataError: If header or rows break the format, rows differ in channels or have others than the header says, or
            a label is not among those of the header.
        UnknownNameError: If there is no such file.
    """
    said, lines = _read_header(path)
    stamped = said.flags.get("timestamps", False)
    rows = _Rows([], [], [])
    for number, line in lines:
        fields = _CHANNEL_END.split(line) if stamped else line.split(":")
        if said.labels is not None:
            rows.labels.append(_label(path, number, fields.pop().strip(), said.labels))
        else:
            _check_no_label(path, number, fields, said)
        _check_channels(path, number, len(fields), said, rows.values[0].shape[1] if rows.values else None)
        if stamped:
            _add_stamped(path, number, fields, rows)
        else:
            _add_plain(path, number, fields, rows)
    notes: dict[str, Any] = {}
    if rows.padded:
        notes["unshared_stamps" if stamped else "short_channels_padded"] = rows.padded
    if wrong := _contradicted(said, rows.values, rows.padded):
        notes["header_contradicted"] = wrong
    return Sequences(
        name=path.name,
        values=to_float32(path, rows.values),
        labels=plain_labels(path.name, rows.labels) if said.labels is not None else None,
        features=default_channel_names(rows.values[0].shape[1]),
        notes=notes,
        times=rows.times if stamped else None,
        locations=tuple(f"line {number}" for number, _ in lines),
    )


def _read_header(path: Path) -> tuple[_Header, list[tuple[int, str]]]:
    header: dict[str, str] = {}
    rows: list[tuple[int, str]] = []
    in_data = False
    for number, line in numbered_lines(read_text(path)):
        if line.startswith(("#", "%")):
            continue
        if in_data:
            rows.append((number, line))
        elif line.startswith("@"):
            key, _, rest = line[1:].strip().partition(" ")
            in_data = key.lower() == "data"
            header[key.lower()] = rest.strip()
        else:
            raise errors.DataError(
                f"'{path.name}' line {number} stands before '@data' but does not begin with '@' or '#'. Write '@data' "
                "on a line of its own before the first sequence."
            )
    if not rows:
        raise errors.DataError(f"'{path.name}' has no sequences behind '@data'. Add a line for each.")
    flags = {key: _flag(path, key, header[key].split(" ")[0]) for key in _FLAGS if key in header}
    if flags.get("targetlabel"):
        raise errors.DataError(
            f"'{path.name}' is for regression (@targetLabel true); classification needs class labels."
        )
    counts = {key: _count(path, key, header[key]) for key in _COUNTS if key in header}
    has_labels, *words = header.get("classlabel", "false").split() or [""]
    return _Header(flags, counts, words if _flag(path, "classLabel", has_labels) else None), rows


def _label(path: Path, number: int, word: str, allowed: list[str]) -> str:
    if word not in allowed and "," in word:
        raise errors.DataError(
            f"'{path.name}' line {number} ends without a label: its last field is {quote(word)}. It seems to be cut "
            "off; complete or remove it."
        )
    return check_label(path, number, word, allowed, "@classLabel")


def _flag(path: Path, key: str, word: str) -> bool:
    if word.lower() not in _TRUE_FALSE:
        raise errors.DataError(
            f"'{path.name}': @{_WRITTEN.get(key, key)} must be followed by true or false, got {quote(word)}."
        )
    return _TRUE_FALSE[word.lower()]


def _count(path: Path, key: str, word: str) -> int:
    if not re.fullmatch(r"\d{1,9}", word):
        raise errors.DataError(
            f"'{path.name}': @{_WRITTEN.get(key, key)} must be followed by a whole number, got {quote(word)}."
        )
    return int(word)


def _check_no_label(path: Path, number: int, fields: Sequence[str], said: _Header) -> None:
    """Refuse a last field that seems to be a label where the header does not announce any."""
    *channels, last = fields
    one_more = len(fields) - 1 in (said.counts.get("dimensions"), said.counts.get("dimension")) or (
        said.flags.get("univariate", False) and len(fields) == 2
    )
    if channels and "," not in last and (one_more or not is_number(last)):
        raise errors.DataError(
            f"'{path.name}' line {number} seems to end with a label, {quote(last)}, and no @classLabel says so. Say "
            "'@classLabel true' and the classes above '@data'."
        )


def _check_channels(path: Path, number: int, found: int, said: _Header, before: int | None) -> None:
    if before is not None:
        if found != before:
            raise errors.DataError(
                f"'{path.name}' line {number} has {pluralize(found, 'channel')}, the rows before have {before}."
            )
        return
    if not found:
        raise errors.DataError(f"'{path.name}' line {number} has a label but no values.")
    count = next((said.counts[key] for key in ("dimensions", "dimension") if key in said.counts), None)
    if count is not None and found != count:
        raise errors.DataError(
            f"'{path.name}' line {number} has {pluralize(found, 'channel')}, @dimensions says {count}. "
            "Correct one of them."
        )
    if said.flags.get("univariate") and found != 1:
        raise errors.DataError(
            f"'{path.name}' line {number} has {pluralize(found, 'channel')}, @univariate says true. Correct one of "
            "them."
        )


def _add_plain(path: Path, number: int, fields: Sequence[str], rows: _Rows) -> None:
    channels = [parse_numbers(path, number, field.split(",")) for field in fields]
    length = max(len(channel) for channel in channels)
    values = np.full((length, len(channels)), np.nan)
    for index, channel in enumerate(channels):
        values[: len(channel), index] = channel
        rows.padded += length - len(channel)
    rows.values.append(values)


def _add_stamped(path: Path, number: int, fields: Sequence[str], rows: _Rows) -> None:
    """One row, a step for every stamp that any of its channels has."""
    times: list[Float64Array] = []
    channels: list[Float64Array] = []
    for index, field in enumerate(fields):
        pairs = _STAMPED.findall(field)
        if not pairs or "".join(_STAMPED.split(field)[::3]).strip():
            raise errors.DataError(
                f"'{path.name}' line {number}: channel {index} must be pairs (stamp,value), as @timeStamps says, "
                f"got {quote(field)}."
            )
        times.append(_seconds(path, number, [stamp.strip() for stamp, _ in pairs]))
        channels.append(parse_numbers(path, number, [value for _, value in pairs]))
        if (np.diff(times[-1]) < 0).any():
            raise errors.DataError(f"'{path.name}' line {number}: timestamps must never fall. Sort the steps by time.")
    if all(np.array_equal(one, times[0]) for one in times):
        rows.values.append(np.stack(channels, axis=1))
        rows.times.append(times[0])
        return
    shared = np.unique(np.concatenate(times))
    values = np.full((len(shared), len(channels)), np.nan)
    for index, (one, channel) in enumerate(zip(times, channels, strict=True)):
        if len(np.unique(one)) < len(one):
            raise errors.DataError(
                f"'{path.name}' line {number}: channel {index} has a timestamp twice, and the channels have different "
                "ones, so its values cannot be matched."
            )
        values[np.searchsorted(shared, one), index] = channel
        rows.padded += len(shared) - len(one)
    rows.values.append(values)
    rows.times.append(shared)


def _seconds(path: Path, number: int, stamps: Sequence[str]) -> Float64Array:
    """Timestamps as numbers: as they stand, dates as seconds since 1970."""
    cells = pl.Series(stamps, dtype=pl.String)
    found = cells.cast(pl.Float64, strict=False)
    if not found.is_finite().fill_null(False).all():
        found = parse_dates(cells).cast(pl.Int64) / 1e6
    if found.null_count():
        cell = stamps[int(np.argmax(found.is_null().to_numpy()))]
        raise errors.DataError(
            f"'{path.name}' line {number}: the timestamp {quote(cell)} is neither a number nor a date as 2024-01-31 "
            "or 2024-01-31 13:00:00."
        )
    return found.to_numpy()


def _contradicted(said: _Header, values: Sequence[Float64Array], padded: int) -> list[str]:
    """Keys of the header that the rows do not bear out and that change nothing in how they are read."""
    lengths = {len(sequence) for sequence in values}
    equal = len(lengths) == 1 and not padded
    wrong = []
    if said.flags.get("equallength") and not equal:
        wrong.append("@equalLength true")
    if "serieslength" in said.counts and equal and lengths != {said.counts["serieslength"]}:
        wrong.append(f"@seriesLength {said.counts['serieslength']}")
    if said.flags.get("missing") is False and any(np.isnan(sequence).any() for sequence in values) and not padded:
        wrong.append("@missing false")
    return wrong
