"""``docs/speed.md`` and its image, from what ``speed.py`` measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from speed_goals import goals, summary

DOCS = Path(__file__).parents[1] / "docs"
PAGE, IMAGE = DOCS / "speed.md", DOCS / "images" / "speed.svg"
HEADINGS = {
    "train": "Training steps",
    "cells": "A training step of every cell",
    "lengths": "Lengths and irregular steps",
    "layers": "Layers",
    "members": "Members of an ensemble",
    "certified": "Certified training",
    "threads": "Threads",
    "allocator": "The C allocator",
    "memory": "Memory",
    "inference": "Inference",
    "step": "One streamed step",
}
"""Kinds of tables in the order of the page."""
SUMMARIZED = ("train", "cells", "inference", "step")
"""Kinds with a line for each table; of the others each has a table of its own."""
DRAWN = tuple(f"train {cell} B={batch} T=784 N=128" for cell in ("antisymmetric", "lipschitz") for batch in (32, 128))
# Okabe and Ito's palette, which people with any common form of color blindness can distinguish.
OUR_COLOR, PEER_COLOR, LIMIT_COLOR = "#0072B2", "#B0B0B0", "#D55E00"

Tables = dict[str, dict[str, Any]]


def write_page(results: dict[str, Any], method: str) -> None:
    """Write the page and draw its image.

    Args:
        results: As ``benchmarks/results/speed.json`` holds them.
        method: What is measured and how, in the markup of a docstring.
    """
    tables: Tables = results["tables"]
    drawn = [name for name in DRAWN if name in tables]
    lines = [
        "# Speed",
        "",
        "Written by `python benchmarks/speed.py --page` from `benchmarks/results/speed.json`; do not edit. "
        "`python benchmarks/speed.py` measures.",
        "",
        *[line.replace("``", "`") for line in method.splitlines()],
        "",
        *_conditions(tables),
        "",
        *_goals(tables),
    ]
    if drawn:
        draw(tables, drawn, IMAGE)
        lines += ["", f"![Training steps relative to the limit, by engine and peer](images/{IMAGE.name})"]
    for kind, heading in HEADINGS.items():
        chosen = {name: table for name, table in tables.items() if name.split()[0] == kind}
        if chosen:
            write = _summaries if kind in SUMMARIZED else _details
            lines += ["", f"## {heading}", *write(chosen)]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _conditions(tables: Tables) -> Iterator[str]:
    """Yield a paragraph for each set of conditions under which tables were measured."""
    sets: dict[str, list[int]] = {}
    for table in tables.values():
        facts = table["conditions"]
        sentence = (
            f"{facts['date']}, {facts['machine']}, {facts['cores']} shared cores, {facts['threads']} thread, torch "
            f"{facts['torch']} ({facts['cpu_capability']}), denormal numbers {facts['denormals']}, engines "
            f"{', '.join(facts['engines'])}"
        )
        sets.setdefault(sentence, []).append(facts["rounds"])
    for sentence, rounds in sets.items():
        yield f"{sentence}: {len(rounds)} tables, medians of {min(rounds)} to {max(rounds)} rounds."
        yield ""
    yield "A ratio is the time of a row over that of its limit in the same round, the median; behind it the quartiles,"
    yield "or in wide tables half their distance. T time steps, B sequences in a minibatch, N units."


def _goals(tables: Tables) -> Iterator[str]:
    found = list(goals(tables))
    met, missed, missing = summary(found)
    yield "## Goals"
    yield ""
    yield f"{met} met, {missed} missed, {missing} not measured yet."
    yield ""
    yield from _table(
        ("what", "goal", "reached", ""),
        ((goal.what, goal.goal, goal.reached or "-", _verdict(goal.reached, is_met=goal.is_met)) for goal in found),
    )


def _verdict(reached: str | None, *, is_met: bool) -> str:
    if reached is None:
        return "not measured"
    return "met" if is_met else "missed"


def _summaries(tables: Tables) -> Iterator[str]:
    """Yield a table for each cell, or one for all cells of the catalog, with a line for each stored one."""
    named = [(name.split(maxsplit=2)[1:], table) for name, table in sorted(tables.items(), key=_by_sizes)]
    is_catalog = all(name.startswith("cells") for name in tables)
    for cell, group in groupby(named, key=lambda item: "" if is_catalog else item[0][0]):
        members = list(group)
        names = dict.fromkeys(row for _, table in members for row in table["rows"] if row != "limit")
        # Not all tables have all engines, whose columns come first, in the order of their names.
        rows = sorted(names, key=lambda row: (0, row) if row.startswith("engine ") else (1, ""))
        lines = []
        for (key, sizes), table in members:
            ratios = (_short_ratio(table["rows"].get(row)) for row in rows)
            lines.append((f"`{key}`" if is_catalog else sizes, f"{table['rows']['limit']['cpu_ms']:.1f}", *ratios))
        yield ""
        yield from [f"### `{cell}`", ""] if cell else []
        yield from _table(("", "limit, ms", *rows), lines)


def _by_sizes(item: tuple[str, dict[str, Any]]) -> tuple[Any, ...]:
    sizes = item[1]["sizes"]
    numbers = (sizes.get(name, 0) or 0 for name in ("step_size", "hidden", "time_steps", "batch"))
    return (sizes["cell"], *numbers)


def _short_ratio(figures: dict[str, float] | None) -> str:
    if figures is None:
        return "-"
    return f"{figures['ratio']:.2f} ± {(figures['ratio_high'] - figures['ratio_low']) / 2:.2f}"


def _details(tables: Tables) -> Iterator[str]:
    for name, table in sorted(tables.items(), key=_by_sizes):
        yield ""
        yield f"### {name.split(maxsplit=1)[1]}"
        yield ""
        if name.startswith("memory"):
            lines = ((row, f"{f['peak_mib']:,.0f}", f"{f['state_tensors']:.2f}") for row, f in table["rows"].items())
            yield from _table(("", "MiB", "state tensors"), lines)
            continue
        clock = table["conditions"]["clock"]
        lines = (
            (row, f"{f[clock]:.1f}", f"{f['ratio']:.2f} ({f['ratio_low']:.2f} to {f['ratio_high']:.2f})")
            for row, f in table["rows"].items()
        )
        yield from _table(("", "ms", "ratio"), lines)


def _table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    columns = tuple(header)
    for cells in (columns, ["---"] * len(columns), *rows):
        yield "| " + " | ".join(cells) + " |"


def draw(tables: Tables, names: list[str], path: Path) -> None:
    """Draw the ratios of some tables as bars with their quartiles, a panel for each table, as an SVG."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "speed", "font.size": 9})
    columns = 2
    count = -(-len(names) // columns)
    figure, panels = plt.subplots(
        count, columns, figsize=(8, 2.9 * count), sharex=True, squeeze=False, layout="constrained"
    )
    for axes, name in zip(panels.flat, names, strict=False):
        rows = {row: figures for row, figures in tables[name]["rows"].items() if row != "limit"}
        ordered = sorted(rows, key=lambda row: rows[row]["ratio"], reverse=True)
        ratios = [rows[row]["ratio"] for row in ordered]
        spread = [
            [rows[row]["ratio"] - rows[row]["ratio_low"] for row in ordered],
            [rows[row]["ratio_high"] - rows[row]["ratio"] for row in ordered],
        ]
        colors = [OUR_COLOR if row.startswith("engine") else PEER_COLOR for row in ordered]
        axes.barh(ordered, ratios, xerr=spread, color=colors, height=0.7, ecolor="#444444")
        for position, (ratio, high) in enumerate(zip(ratios, spread[1], strict=True)):
            # Behind the line of the limit, which would cross the label of a shorter bar.
            end = max(ratio + high, 1)
            axes.annotate(f"{ratio:.2f}", (end, position), xytext=(4, 0), textcoords="offset points", va="center")
        axes.axvline(1, color=LIMIT_COLOR, linewidth=1)
        axes.set_title(name.removeprefix("train "), fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.12)
    for axes in panels[-1]:
        axes.set_xlabel("time of a training step / limit")
    for axes in panels.flat[len(names) :]:
        axes.set_visible(False)
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
