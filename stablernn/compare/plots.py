"""Figure of a comparison: mean ranks with groups that no test tells apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stablernn.plotting import BLACK, _save, new_figure


def plot_critical_difference(path: Path, ranks: Mapping[str, Any]) -> None:
    """Plot the mean ranks on an axis, the best on the left, with a bar along each group that no test tells apart.

    This is the diagram of Demsar (JMLR 2006), with Wilcoxon's test and Holm's correction in place of Nemenyi's.

    Args:
        path: PNG file.
        ranks: Result of :func:`stablernn.compare.results.rank`.
    """
    names = list(ranks["mean"])
    left, right = names[: (len(names) + 1) // 2], names[(len(names) + 1) // 2 :]
    groups = find_groups(ranks)
    figure = new_figure(8, 1.6 + 0.3 * (len(left) + len(groups)))
    axes = figure.subplots()
    axes.set_axis_off()
    low, high = 1, max(2, len(names))
    margin = 0.55 * (high - low)
    axes.set_xlim(low - margin, high + margin)
    base = 0.35 * len(groups) + 0.5
    axes.set_ylim(0.3 - base - len(left), 1.2)
    axes.plot([low, high], [0, 0], color=BLACK, linewidth=1)
    for tick in range(low, high + 1):
        axes.plot([tick, tick], [0, 0.15], color=BLACK, linewidth=1)
        axes.text(tick, 0.25, str(tick), ha="center", va="bottom", fontsize=9)
    for side, edge, align in ((left, low, "right"), (right[::-1], high, "left")):
        for line, name in enumerate(side):
            mean, y = ranks["mean"][name], -base - line
            axes.plot([mean, mean, edge], [0, y, y], color=BLACK, linewidth=0.8)
            text = f"{name}  {mean:.2f} " if align == "right" else f" {mean:.2f}  {name}"
            axes.text(edge, y, text, ha=align, va="center", fontsize=9)
    for number, group in enumerate(groups):
        y = -0.3 - 0.35 * number
        ends = [ranks["mean"][group[0]] - 0.05, ranks["mean"][group[-1]] + 0.05]
        axes.plot(ends, [y, y], color=BLACK, linewidth=3.5, solid_capstyle="round")
    title = f"mean rank over {ranks['problems']} data sets; a bar joins those without a significant difference"
    axes.set_title(title, fontsize=10)
    _save(figure, path)


def find_groups(ranks: Mapping[str, Any]) -> list[Sequence[str]]:
    """Return the largest runs of neighbors by rank in which no pair differs, of two or more."""
    names = list(ranks["mean"])
    different = {frozenset((pair["first"], pair["second"])) for pair in ranks["wilcoxon"] if pair["is_different"]}
    groups: list[Sequence[str]] = []
    last = -1
    for start in range(len(names)):
        end = start
        while end + 1 < len(names) and not any(
            frozenset((name, names[end + 1])) in different for name in names[start : end + 1]
        ):
            end += 1
        # A run within the one before it says nothing new.
        if end > max(start, last):
            groups.append(names[start : end + 1])
        last = max(last, end)
    return groups
