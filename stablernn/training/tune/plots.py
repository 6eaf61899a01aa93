"""Figures of a study, as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn.plotting import BLACK, BLUE, ORANGE, _integer_ticks, _legend_below, _save, _style, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_history(path: Path, trials: Sequence[Mapping[str, Any]], metric: str, better: str) -> None:
    """Plot the score of each trial that is done, the best score so far, and the numbers of those that were pruned.

    Args:
        path: PNG file.
        trials: Trials as ``results.json`` has them.
        metric: Name of the score.
        better: ``higher`` or ``lower``.
    """
    _save(history_figure(trials, metric, better), path)


def history_figure(trials: Sequence[Mapping[str, Any]], metric: str, better: str) -> Figure:
    """Return the figure of :func:`plot_history`."""
    figure = new_figure(7, 4)
    axes = figure.subplots()
    _style(axes, f"trials of the search, {better} is better")
    done = [(trial["number"], trial["value"]) for trial in trials if trial["value"] is not None]
    numbers, values = [number for number, _ in done], [value for _, value in done]
    axes.plot(numbers, values, color=BLUE, marker="o", markersize=4, linestyle="none", label="done")
    best = list(accumulate(values, max if better == "higher" else min))
    axes.step(numbers, best, where="post", color=ORANGE, linewidth=1.4, label="best so far")
    ended = [trial["number"] for trial in trials if trial["value"] is None]
    if ended:
        # They have no score; their place is above the lower edge, where no tick covers them.
        edge = axes.get_xaxis_transform()
        axes.plot(ended, [0.03] * len(ended), "x", color=BLACK, markersize=6, transform=edge, label="pruned or failed")
    axes.set_xlabel("trial")
    axes.set_ylabel(f"validation {metric.replace('_', ' ')}")
    _integer_ticks(axes.xaxis)
    _legend_below(figure, ncols=3)
    return figure


def plot_importances(path: Path, importances: Mapping[str, float], trials: int) -> None:
    """Plot the share of each parameter in the score.

    Args:
        path: PNG file.
        importances: Shares by parameter, the largest first.
        trials: Number of trials that they are estimated from.
    """
    names = list(importances)[::-1]
    figure = new_figure(7, 1.4 + 0.32 * len(names))
    axes = figure.subplots()
    _style(axes, f"importance of the parameters, PED-ANOVA of {trials} trials")
    axes.barh(names, [importances[name] for name in names], color=BLUE, height=0.6)
    axes.set_xlabel("share of the total importance")
    axes.set_xlim(left=0)
    _save(figure, path)
