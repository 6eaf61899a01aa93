"""The tables of ``docs/online.md``, from what ``online.py`` measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import replace_tables

PAGE = Path(__file__).parents[1] / "docs" / "online.md"
SHIFTS = ("level", "variance", "trend")
SHOWN_STEP_SIZE = 0.1
"""Step size of the served intervals."""


def write_page(results: dict[str, Any]) -> None:
    """Replace the tables between their markers in docs/online.md."""
    tables = {
        "coverage": _coverage(results),
        "step sizes": _step_sizes(results),
        "drift": _drift(results),
        "memory": _memory(results),
        "cost": _cost(results),
    }
    replace_tables(PAGE, tables)


def _rows(dataset: dict[str, Any], kind: str) -> dict[float | None, dict[str, Any]]:
    return {row["step_size"]: row for row in dataset["intervals"] if row["kind"] == kind}


def _coverage(results: dict[str, Any]) -> str:
    lines = [
        "| data | shift | fixed, 100 readings after | adaptive | fixed, all after | adaptive | width | score |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, dataset in results["datasets"].items():
        for kind in ("none", *SHIFTS):
            rows = _rows(dataset, kind)
            fixed, adaptive = rows[None], rows[SHOWN_STEP_SIZE]
            shares = [f"{row[part]['coverage']:.3f}" for part in ("near", "after") for row in (fixed, adaptive)]
            ratios = [f"{adaptive['after'][figure] / fixed['after'][figure]:.2f}" for figure in ("width", "score")]
            lines.append(f"| {name} | {kind} | {' | '.join(shares + ratios)} |")
    return "\n".join(lines)


def _step_sizes(results: dict[str, Any]) -> str:
    datasets = results["datasets"]
    sizes = [row["step_size"] for row in next(iter(datasets.values()))["intervals"] if row["kind"] == "none"]
    titles = ["fixed" if size is None else f"{size:g}" for size in sizes]
    lines = [f"| data | shift | {' | '.join(titles)} |", "| --- " * (len(sizes) + 2) + "|"]
    for name, dataset in datasets.items():
        for kind in ("none", *SHIFTS):
            rows = _rows(dataset, kind)
            reference = rows[None]["after"]["score"]
            cells = [
                f"{rows[size]['after']['coverage']:.3f} ({rows[size]['after']['score'] / reference:.2f})"
                for size in sizes
            ]
            lines.append(f"| {name} | {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _drift(results: dict[str, Any]) -> str:
    lines = [
        "| data | block | detector | false alarms | a 1,000 readings | level | variance | trend |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, dataset in results["datasets"].items():
        for detector, row in dataset["drift"].items():
            rate = f"{1000 * row['false_alarms'] / row['readings']:.2f}"
            cells = [_detection(row[kind]) for kind in SHIFTS]
            alarms = f"{row['false_alarms']} in {row['readings']:,}"
            lines.append(f"| {name} | {dataset['block']} | {detector} | {alarms} | {rate} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _detection(row: dict[str, Any]) -> str:
    delay = "" if row["delay"] is None else f", {row['delay']:.0f}"
    return f"{row['detected']} of {row['shifts']}{delay}"


def _memory(results: dict[str, Any]) -> str:
    lines = ["| correlation | alarms over stated, rate 0.0001 | rate 0.001 |", "| --- " * 3 + "|"]
    for row in results["memory"]:
        ratios = [f"{row[rate] / (float(rate) * row['readings']):.2f}" for rate in ("0.0001", "0.001")]
        lines.append(f"| {row['coefficient']:g} | {' | '.join(ratios)} |")
    return "\n".join(lines)


def _cost(results: dict[str, Any]) -> str:
    lines = ["| streams in a frame | microseconds a stream, intervals | drift | bytes of state |", "| --- " * 4 + "|"]
    for row in results["cost"]:
        lines.append(f"| {row['streams']} | {row['intervals']:.1f} | {row['drift']:.1f} | {row['bytes']:,} |")
    return "\n".join(lines)
