"""What reading data filled, cut or skipped: as figures for programs, as a line for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stablernn.data.messages import counted

# What a count of the notes is called, with the words behind it.
_CALLED = {
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
    "cut_for_the_shortest": ("setting", " cut for the shortest series"),
    "windows_dropped": ("window", " dropped for want of a target"),
    "windows_without_context": ("window", " without any value in their context"),
    "header_contradicted": ("line", " of the header not borne out"),
    "ignored_columns": ("column", " ignored"),
    "ignored_arrays": ("array", " ignored"),
}


def data_counts(notes: Mapping[str, Any]) -> dict[str, int]:
    """How much was filled, cut or skipped, by the names of the notes; nothing that is 0.

    Args:
        notes: Of data that are loaded.
    """
    splits = notes.get("windows", {}).values()
    figures = {key: _figure(key, notes[key]) for key in _CALLED if key in notes} | {
        "windows_dropped": sum(split["dropped_without_target"] for split in splits),
        "windows_without_context": sum(split.get("dropped_without_context", 0) for split in splits),
    }
    return {key: figures[key] for key in _CALLED if figures.get(key)}


def in_words(counts: Mapping[str, int]) -> str:
    """The counts of :func:`data_counts` with commas between them."""
    return ", ".join(_called(count, *_CALLED[key]) for key, count in counts.items())


def _called(count: int, noun: str, rest: str) -> str:
    return (f"{count} {noun}" if noun.endswith("series") else counted(count, noun)) + rest


def _figure(key: str, value: Any) -> int:
    if key == "cut_for_the_shortest":
        return len(value) - len(("series", "steps"))
    if isinstance(value, Mapping):
        return int(value["count"]) if "count" in value else sum(value.values())
    return len(value) if isinstance(value, list) else int(value)
