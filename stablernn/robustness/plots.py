"""Figures of a robustness report, as PNG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from stablernn.atomic_files import write_json
from stablernn.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, _legend_below, _save, _style, new_figure

Report = Mapping[str, Any]

_UNITS = {
    "l2": "2-norm of the change of a sequence",
    "linf": "largest change of a value",
}
_ATTACKS = {"pgd": ("PGD", ORANGE, "o", "-"), "deepfool": ("DeepFool", BLACK, "s", "--")}
_NOISE = {
    "white": ("white noise", "in standard deviations of a feature"),
    "salt_and_pepper": ("salt and pepper", "share of the values"),
    "missing": ("missing samples", "share of the steps"),
    "jitter": ("time jitter", "standard deviation in steps"),
}
_MIN_SHARE = 1e-4
"""Smallest position on the logarithmic axis, as a share of the largest budget."""


def write_report(run: Path, report: Report) -> list[Path]:
    """Write a report to a run directory: ``robustness.json`` and two figures.

    Returns:
        Paths of the files.
    """
    title = f"{report['data']}, {report['split']}: {report['sequences']} sequences"
    paths = [run / "robustness.json", run / "plots" / "robustness.png", run / "plots" / "noise.png"]
    write_json(paths[0], report)
    plot_robustness(paths[1], report, title=title)
    plot_noise(paths[2], report, title=title)
    return paths


def plot_robustness(path: Path, report: Report, *, title: str) -> None:
    """Plot accuracy against attack strength in both norms; certified accuracy is shaded.

    Args:
        path: PNG file.
        report: Result of :func:`stablernn.robustness.report.robustness`.
        title: Title of the figure.
    """
    figure = new_figure(10, 4.4)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, norm in zip(panels, ("l2", "linf"), strict=True):
        attacks = [attack for attack in report["attacks"] if attack["norm"] == norm]
        _style(axes, title if norm == "l2" else "")
        _plot_attacks(axes, report, norm, attacks)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(f"{_UNITS[norm]}, standard deviations")
        axes.set_ylim(0, 1.02)
    panels[0].set_ylabel("accuracy")
    _legend_below(figure, ncols=4)
    _save(figure, path)


def plot_noise(path: Path, report: Report, *, title: str) -> None:
    """Plot accuracy against the level of each kind of noise, with twice the standard error over the draws.

    Args:
        path: PNG file.
        report: Result of :func:`stablernn.robustness.report.robustness`.
        title: Title of the figure.
    """
    figure = new_figure(10.8, 3.7)
    panels = figure.subplots(1, len(_NOISE), sharey=True)
    for axes, (kind, (name, unit)) in zip(panels, _NOISE.items(), strict=True):
        curve = report["noise"][kind]
        levels, accuracy = np.array(curve["levels"]), np.array(curve["accuracy"])
        error = 2 * np.array(curve["standard_error"])
        _style(axes, name)
        axes.fill_between(
            levels, accuracy - error, accuracy + error, color=BLUE, alpha=0.2, linewidth=0, label="two standard errors"
        )
        axes.plot(levels, accuracy, color=BLUE, marker="o", markersize=4, label="mean over the draws")
        axes.axhline(report["accuracy"], color=GREY, linewidth=1, linestyle=":", label="without noise")
        axes.set_xlabel(unit)
        axes.set_ylim(0, 1.02)
        axes.set_xlim(left=0)
    panels[0].set_ylabel("accuracy")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    _legend_below(figure, ncols=3)
    _save(figure, path)


def _plot_attacks(axes: Axes, report: Report, norm: str, attacks: list[Mapping[str, Any]]) -> None:
    quantiles = report["certified"]["radius_quantiles"]
    radii = np.array(quantiles[norm]) if quantiles is not None else np.empty(0)
    largest = max(attack["budgets"][-1] for attack in attacks)
    smallest = min(attack["budgets"][0] for attack in attacks)
    if len(radii):
        positive = radii[radii > 0]
        # A radius of almost 0 must not stretch the logarithmic axis.
        smallest = min(smallest, max(float(positive[0]) if len(positive) else smallest, largest * _MIN_SHARE))
        # A step function with the certified share at the right end of each step, so that it never claims too much.
        share = report["accuracy"] * (1 - np.arange(len(radii)) / (len(radii) - 1))
        x, y = np.append(smallest / 4, radii), np.append(report["accuracy"], share)
        axes.fill_between(
            x,
            y,
            step="pre",
            color=GREEN,
            alpha=0.3,
            linewidth=0,
            label="certified: no change of this size alters the answer",
        )
        axes.step(x, y, color=GREEN, linewidth=1, where="pre")
    for attack in attacks:
        label, color, marker, line = _ATTACKS[attack["name"]]
        budgets, accuracy = [smallest / 2, *attack["budgets"]], [report["accuracy"], *attack["accuracy"]]
        axes.plot(budgets, accuracy, color=color, linewidth=1.6, linestyle=line, label=label)
        # Markers at the measured budgets only; the curve starts with the clean accuracy, off the axis.
        axes.plot(attack["budgets"], attack["accuracy"], color=color, marker=marker, markersize=4, linestyle="none")
    axes.axhline(report["accuracy"], color=GREY, linewidth=1, linestyle=":", label="not attacked")
    axes.set_xlim(smallest / 2, largest * 1.2)
