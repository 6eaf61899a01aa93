"""Tables of metrics, and the line about the data that stands below them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stablernn_cli.output import Output


def show_metrics(output: Output, metrics: Mapping[str, Any]) -> None:
    """Print metrics with a column for each split; those of baselines are listed below with their name in front."""
    columns = {split: _flatten(scores) for split, scores in metrics.items() if isinstance(scores, Mapping)}
    # The union in order of appearance: not every split has every metric.
    names = list(dict.fromkeys(name for scores in columns.values() for name in scores))
    if names:
        output.text()
        output.table(
            ("metric", *columns), [[name, *(scores.get(name) for scores in columns.values())] for name in names]
        )


def scalar_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of the model itself; those of a baseline are a mapping under its name."""
    return {name: value for name, value in metrics.items() if not isinstance(value, Mapping)}


def data_notes(notes: Mapping[str, Any]) -> str | None:
    """Return a line about the data that the scores depend on, or None if there is nothing to note."""
    # Files of a named dataset that are missing, and those without a checksum to verify.
    labels = {"partial": "only in part, missing or short:", "unchecked": "with no published checksum to compare with:"}
    parts = [f"{labels[key]} {', '.join(notes[key])}" for key in labels if key in notes]
    if "read_as" in notes:
        parts.append(f"read as {notes['read_as']}")
    if "counts" in notes:
        from stablernn.data.notes import format_counts

        parts.append(format_counts(notes["counts"]))
    return f"Data: {'; '.join(parts)}." if parts else None


def _flatten(metrics: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name} ")
        else:
            flat[prefix + name] = value
    return flat
