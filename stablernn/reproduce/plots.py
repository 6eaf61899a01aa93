"""Figures of reproduced tables, as PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from stablernn.plotting import BLACK, BLUE, GREEN, ORANGE, _save, _style
from stablernn.reproduce.table import FULL

Results = Mapping[str, Any]

_LINES = ((BLUE, "o"), (GREEN, "s"), (ORANGE, "D"), ("#CC79A7", "v"), (BLACK, "^"), ("#E69F00", "P"))
_TITLES = {"whole": "after all epochs", "matched": "at equal clean accuracy"}


def plot_attacks(path: Path, results: Results) -> None:
    """Plot accuracy against the budget of PGD for each cell: mean and range over the seeds, in both views.

    Args:
        path: PNG file.
        results: Result of :func:`stablernn.reproduce.run_protocol.reproduce`.
    """
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (view, view_title) in zip(panels, _TITLES.items(), strict=True):
        _style(axes, view_title if results["state"] == FULL else f"{view_title} (short: no comparison)")
        for (color, marker), row in zip(_LINES, results["views"][view], strict=False):
            _plot_curve(axes, results, view, row["row"], color, marker)
        axes.set_xlabel("PGD: largest change of a pixel, of the range 0 to 1")
        axes.set_xlim(left=0)
        axes.set_ylim(0, 1.02)
    panels[0].set_ylabel("test accuracy")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False, fontsize=9
    )
    _save(figure, path)


def _plot_curve(axes: Axes, results: Results, view: str, row: str, color: str, marker: str) -> None:
    reports = [
        measurement["robustness"]
        for run in results["runs"]
        for measurement in run["measured"]
        if run["row"] == row and measurement["epoch"] == run["views"][view]
    ]
    if not reports:
        return
    attacks = [
        next(attack for attack in report["attacks"] if (attack["name"], attack["norm"]) == ("pgd", "linf"))
        for report in reports
    ]
    # A budget of 0 is the clean accuracy.
    budgets = [0.0, *attacks[0]["budgets"]]
    # (seeds, budgets)
    accuracy = np.array(
        [[report["accuracy"], *attack["accuracy"]] for report, attack in zip(reports, attacks, strict=True)]
    )
    axes.fill_between(budgets, accuracy.min(axis=0), accuracy.max(axis=0), color=color, alpha=0.15, linewidth=0)
    axes.plot(budgets, accuracy.mean(axis=0), color=color, marker=marker, markersize=4, linewidth=1.6, label=row)
