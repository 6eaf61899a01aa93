"""Wording of messages: names, cells, timestamps, and the counts of what reading filled, cut or skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

# A table may have a thousand columns; a sentence may not.
_MAX_NAMES = 12
_MAX_QUOTE_LENGTH = 40

# Each count of the notes as a noun and a description that follows it.
_REPAIRS = {
    "rows_sorted": ("row", " out of order, sorted"),
    "duplicate_rows": ("row", " with a repeated time merged"),
    "duplicate_rows_differing": ("row", " of them with other values"),
    "local_times_converted": ("local time", " converted to UTC"),
    "repeated_hour_rows": ("row", " in an hour that comes twice"),
    "repeated_hour_once": ("row", " of such an hour that is there once only"),
    "skipped_hours": ("hour", " skipped by clocks"),
    "missing_codes": ("cell", " with a code for a missing value"),
    "unknown_categories": ("cell", " with a category that training did not have"),
    "resampled": ("row", " aggregated into others"),
    "incomplete_sums": ("sum", " missing for want of a value"),
    "short_series": ("series", " set aside as too short"),
}
_DESCRIPTIONS = {
    **_REPAIRS,
    "short_rows": ("row", " with too few cells"),
    "blank_rows_skipped": ("blank row", " skipped"),
    "missing_values": ("missing value", ""),
    "masked_values": ("masked value", ""),
    "gap_steps_filled": ("missing step", " filled"),
    "irregular_intervals": ("irregular interval", ""),
    "irregular_steps": ("irregular step", ""),
    "steps_at_one_time": ("step", " at the time of the one before"),
    "trailing_missing_cut": ("missing value", " cut at the end of rows"),
    "short_channels_padded": ("value", " padded in short channels"),
    "unshared_stamps": ("value", " missing at times of other channels"),
    "future_values_missing": ("value", " of columns known in advance missing"),
    "constant_features": ("constant feature", ""),
    "constant_series": ("constant series", ""),
    "empty_series": ("series", " without a value"),
    "empty_sequences": ("sequence", " without a value"),
    "one_step_sequences": ("sequence", " of one step"),
    "series_without_training": ("series", " too short for a training window"),
    "windows_dropped": ("window", " dropped for want of a target"),
    "windows_without_context": ("window", " without any value in their context"),
    "header_contradicted": ("line", " of the header not borne out"),
    "ignored_columns": ("column", " ignored"),
    "ignored_arrays": ("array", " ignored"),
    "ignored_files": ("file", " ignored"),
}


def format_names(names: Sequence[str]) -> str:
    """Return the names with commas between them; of many the first twelve and how many more there are."""
    more = len(names) - _MAX_NAMES
    shown = ", ".join(names[:_MAX_NAMES])
    return f"{shown} and {more} more" if more > 0 else shown


def quote(cell: str) -> str:
    """Return text of a file in quotes, on one line and cut to forty characters."""
    text = " ".join(cell.split())
    return f"'{text[:_MAX_QUOTE_LENGTH]}...'" if len(text) > _MAX_QUOTE_LENGTH else f"'{text}'"


def pluralize(count: int, noun: str) -> str:
    """Return the number with its noun: ``1 feature``, ``5 features``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_timestamp(timestamp: np.datetime64 | np.int64) -> str:
    """Return a timestamp as people write it: without a time of day when that is midnight."""
    if not isinstance(timestamp, np.datetime64):
        return str(timestamp)
    text = str(timestamp.astype("datetime64[ns]"))
    return text.removesuffix(".000000000").removesuffix("T00:00:00").replace("T", " ")


def data_counts(notes: Mapping[str, Any]) -> dict[str, int]:
    """Return how much was filled, cut or skipped, by the names of the notes; nothing that is 0.

    Args:
        notes: Notes of loaded data.
    """
    splits = notes.get("windows", {}).values()
    counts = {key: _count(key, notes[key]) for key in _DESCRIPTIONS if key in notes} | {
        "windows_dropped": sum(split["dropped_without_target"] for split in splits),
        "windows_without_context": sum(split.get("dropped_without_context", 0) for split in splits),
    }
    # In the order of the table, whatever the order of the notes.
    return {key: counts[key] for key in _DESCRIPTIONS if counts.get(key)}


def repair_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return those of the counts of :func:`data_counts` that stand for repairs that options ask for."""
    return {key: count for key, count in counts.items() if key in _REPAIRS}


def describe_shared_groups(notes: Mapping[str, Any]) -> list[str]:
    """Return a sentence if groups are both in the training and in the test file."""
    return [
        f"Groups of the training file are in the test file, too: {format_names(names)}. The score on test will be too "
        "good; take them out of one of the two."
        for names in [notes.get("groups_in_both")]
        if names
    ]


def describe_reading(notes: Mapping[str, Any]) -> str:
    """Return how a text was recognized to be written, such as ``semicolons, decimal commas``; empty if as usual."""
    marks = {"comma": "decimal commas", "mixed": "decimal commas and points"}
    numbers = [marks[notes["decimal_mark"]]] if "decimal_mark" in notes else []
    if "thousands_mark" in notes:
        numbers.append(f"{notes['thousands_mark']}s between thousands")
    return ", ".join([*(notes[key] for key in ("encoding", "delimiter") if key in notes), *numbers])


def format_counts(counts: Mapping[str, int]) -> str:
    """Return the counts of :func:`data_counts` as text with commas between them."""
    return ", ".join(_describe(count, *_DESCRIPTIONS[key]) for key, count in counts.items())


def _describe(count: int, noun: str, description: str) -> str:
    # "series" is its own plural.
    return (f"{count} {noun}" if noun.endswith("series") else pluralize(count, noun)) + description


def _count(key: str, value: Any) -> int:
    """Return the number that a note stands for: a count itself, counts of splits, or a list of names."""
    if isinstance(value, Mapping):
        return int(value["count"]) if "count" in value else sum(value.values())
    return len(value) if isinstance(value, list) else int(value)
