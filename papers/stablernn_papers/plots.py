"""Figures of reproduced tables, as PNG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from stablernn.plotting import (
    _LOG_RATIO,
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    _epochs_axis,
    _format_name,
    _legend_below,
    _save,
    _style,
    line_styles,
)
from stablernn_papers.results import data_states
from stablernn_papers.table import FULL, Table

Array = npt.NDArray[Any]
Results = Mapping[str, Any]
Reader = Callable[[Sequence[Mapping[str, Any]]], tuple[Sequence[float], Array]]
"""Returns the levels of a disturbance and the accuracies under it, ``(seeds, levels)``."""

_LINES = ((BLUE, "o"), (GREEN, "s"), (ORANGE, "D"), ("#CC79A7", "v"), (BLACK, "^"), ("#E69F00", "P"))
_SEEDS = "mean over the seeds, with their range"
_TITLES = {"whole": "after all epochs", "matched": "at equal clean accuracy"}


_ATTACK = "PGD: largest change of a pixel, of the range 0 to 1"
_NOISES = {
    "white": "white noise: standard deviation, of the range 0 to 1",
    "salt_and_pepper": "salt and pepper: share of the pixels",
}


def plot_robustness(path: Path, results: Results) -> None:
    """Plot accuracy of each cell under PGD, white noise, and salt and pepper: mean and range over the seeds.

    Args:
        path: PNG file.
        results: Result of :func:`stablernn_papers.reproduction.reproduce`; it has a column of panels for each view.
    """
    figure = Figure(figsize=(10, 12), layout="constrained")
    panels = figure.subplots(3, 2, sharex="row", sharey=True)
    readers: list[tuple[str, Reader]] = [(_ATTACK, _read_attack)]
    readers += [(label, partial(_read_noise, kind)) for kind, label in _NOISES.items()]
    for line, (label, read) in zip(panels, readers, strict=True):
        for axes, (view, view_title) in zip(line, _TITLES.items(), strict=True):
            _style(axes, view_title if results["state"] == FULL else f"{view_title} (not the full protocol)")
            for (color, marker), row in zip(_LINES, results["views"][view], strict=False):
                reports = _reports(results, view, row["row"])
                if reports:
                    _plot_band(axes, *read(reports), color=color, marker=marker, label=row["row"])
            axes.set_xlabel(label)
            axes.set_xlim(left=0)
            axes.set_ylim(0, 1.02)
        line[0].set_ylabel("test accuracy")
    _finish(figure, path, _SEEDS, ncols=6)


def _reports(results: Results, view: str, row: str) -> list[Mapping[str, Any]]:
    """Return the robustness reports of a row at the epochs that a view shows."""
    return [
        measurement["robustness"]
        for run in results["runs"]
        for measurement in run["measured"]
        if run["row"] == row and measurement["epoch"] == run["views"][view]
    ]


def _read_attack(reports: Sequence[Mapping[str, Any]]) -> tuple[Sequence[float], Array]:
    attacks = [
        next(attack for attack in report["attacks"] if (attack["name"], attack["norm"]) == ("pgd", "linf"))
        for report in reports
    ]
    accuracy = [[report["accuracy"], *attack["accuracy"]] for report, attack in zip(reports, attacks, strict=True)]
    # A budget of 0 is the clean accuracy.
    return [0.0, *attacks[0]["budgets"]], np.array(accuracy)


def _read_noise(kind: str, reports: Sequence[Mapping[str, Any]]) -> tuple[Sequence[float], Array]:
    curves = [report["noise"][kind] for report in reports]
    return curves[0]["levels"], np.array([curve["accuracy"] for curve in curves])


def _plot_band(
    axes: Axes, x: Sequence[float], values: Array, *, color: str, marker: str = "", dash: str = "-", label: str
) -> None:
    """Plot the mean and the range over the seeds of values, ``(seeds, points)``."""
    axes.fill_between(x, values.min(axis=0), values.max(axis=0), color=color, alpha=0.15, linewidth=0)
    mean = values.mean(axis=0)
    axes.plot(x, mean, color=color, marker=marker, markersize=4, linestyle=dash, linewidth=1.6, label=label)


def plot_trajectories(path: Path, results: Results) -> None:
    """Plot the states of each two-dimensional system from its starts, and the trajectories that it learned.

    Args:
        path: PNG file.
        results: Results of a table of dynamics.
    """
    runs = results["runs"]
    figure, panels = _panels(len(runs), columns=4, size=3.0)
    for axes, run in zip(panels, runs, strict=True):
        _style(axes, run["row"])
        axes.locator_params(nbins=5)
        for target in run.get("targets", ()):
            points = np.array(target)
            axes.plot(points[:, 0], points[:, 1], color=GREY, linewidth=1.0, linestyle="--")
        for (color, _), trajectory in zip(_LINES, run["trajectories"], strict=False):
            points = np.array(trajectory)
            axes.plot(points[:, 0], points[:, 1], color=color, linewidth=1.2)
            axes.plot(*points[-1], color=color, marker="o", markersize=4)
    # Labels of panels: one of the whole figure would be under the legend.
    for axes in panels[-4:]:
        axes.set_xlabel("first number of the state")
    for axes in panels[::4]:
        axes.set_ylabel("second number of the state")
    handles = [
        Line2D([], [], color=BLACK, linewidth=1.2, label="trajectory, one color for each start"),
        Line2D([], [], color=BLACK, marker="o", markersize=4, linewidth=0, label="its end"),
    ]
    if any(run.get("targets") for run in runs):
        handles.append(Line2D([], [], color=GREY, linewidth=1.0, linestyle="--", label="trajectory to learn"))
    _legend_below(figure, ncols=3, handles=handles)
    _save(figure, path)


def plot_sweeps(path: Path, table: Table, results: Results) -> None:
    """Plot the accuracy against each setting that a table sweeps: mean and range over the seeds, by data set.

    Args:
        path: PNG file.
        table: The table.
        results: Its results.
    """
    figure, panels = _panels(len(table.sweeps), columns=len(table.sweeps), size=4.6)
    for axes, (setting, label) in zip(panels, table.sweeps.items(), strict=True):
        _style(axes, "" if results["state"] == FULL else "not the full protocol")
        for (color, marker), data in zip(_LINES, table.data_sets(results["protocol"]["name"]), strict=False):
            for points in sweep_points(table, results, setting, data.key):
                axes.errorbar(
                    *points, color=color, marker=marker, markersize=4, linewidth=1.6, capsize=3, label=data.key
                )
        axes.set_xlabel(label)
    panels[0].set_ylabel("test accuracy")
    _finish(figure, path, _SEEDS, ncols=4)


def plot_curves(path: Path, table: Table, results: Results) -> None:
    """Plot the validation score of each row after each epoch, by data set: mean and range over the seeds.

    Where every run has a single epoch, the rows are next to each other.

    Args:
        path: PNG file.
        table: The table.
        results: Its results.
    """
    runs = results["runs"]
    data_sets = [
        data for data in table.data_sets(results["protocol"]["name"]) if any(run["data"] == data.key for run in runs)
    ]
    states = data_states(table, results)
    # A row looks the same in all panels, which have one legend.
    every_row = list(dict.fromkeys(row.key for data in data_sets for row in table.rows_on(data)))
    styles = dict(zip(every_row, line_styles(len(every_row)), strict=True))
    figure, panels = _panels(len(data_sets), columns=min(2, len(data_sets)), size=5.0)
    for axes, data in zip(panels, data_sets, strict=True):
        _style(axes, data.key if states[data.key] == FULL else f"{data.key} (not the full protocol)")
        rows = [row.key for row in table.rows_on(data)]
        curves = {
            row: [run["validation_curve"] for run in runs if (run["row"], run["data"]) == (row, data.key)]
            for row in rows
        }
        present = [curve for of_row in curves.values() for curve in of_row]
        axes.set_ylabel(f"validation {_format_name(present[0]['metric'])}")
        if all(len(curve["epochs"]) == 1 for curve in present):
            _plot_single_epochs(axes, curves)
            continue
        for row, of_row in curves.items():
            if of_row:
                color, dash = styles[row]
                # Seeds that stopped earlier end the common part.
                length = min(len(curve["epochs"]) for curve in of_row)
                values = np.array([curve["values"][:length] for curve in of_row])
                _plot_band(axes, of_row[0]["epochs"][:length], values, color=color, dash=dash, label=row)
        _epochs_axis(axes)
    _finish(figure, path, _SEEDS, ncols=4)


def _plot_single_epochs(axes: Axes, curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Plot the one validation score of each row's runs: mean and range over the seeds."""
    for position, of_row in enumerate(curves.values()):
        if of_row:
            values = np.array([curve["values"][0] for curve in of_row])
            mean = values.mean()
            spread = [[mean - values.min()], [values.max() - mean]]
            axes.errorbar(position, mean, yerr=spread, color=BLUE, marker="o", markersize=5, capsize=3)
    axes.set_xticks(range(len(curves)), list(curves), rotation=45, ha="right")
    every_value = [curve["values"][0] for of_row in curves.values() for curve in of_row]
    if min(every_value) > 0 and max(every_value) > _LOG_RATIO * min(every_value):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)


def sweep_points(table: Table, results: Results, setting: str, data: str) -> list[tuple[Array, Array, Array]]:
    """Return the curve of a setting: its values, mean accuracies, and their distances to minimum and maximum.

    Args:
        table: The table.
        results: Its results.
        setting: Dotted key of the setting.
        data: Key of the data set.

    Returns:
        The one curve, ``(points,)``, ``(points,)`` and ``(2, points)``; none without a run.
    """
    (rows,) = results["views"].values()
    points = []
    for row in rows:
        settings = table.row(row["row"]).settings
        if row["data"] == data and setting in settings:
            figure = row["figures"]["test.accuracy"]
            points.append((settings[setting].value, figure["mean"], figure["min"], figure["max"]))
    if not points:
        return []
    x, mean, lowest, highest = np.array(sorted(points)).T
    return [(x, mean, np.stack([mean - lowest, highest - mean]))]


def plot_spectra(path: Path, results: Results) -> None:
    """Plot the eigenvalues of the Jacobians of each row in the complex plane, beside the unit circle.

    Args:
        path: PNG file.
        results: Results of a table of spectra.
    """
    runs = [run for run in results["runs"] if run["seed"] == results["runs"][0]["seed"]]
    columns = min(4, len(runs))
    figure, panels = _panels(len(runs), columns=columns, size=3.2)
    # Fine enough for panels that show a thousandth of the circle.
    angles = np.linspace(0, 2 * np.pi, 20_001)
    for axes, run in zip(panels, runs, strict=True):
        real, imaginary = np.array(run["eigenvalues"]).T
        _style(axes, run["row"])
        axes.plot(np.cos(angles), np.sin(angles), color=GREY, linewidth=0.8, label="unit circle")
        axes.scatter(real, imaginary, s=4, color=BLUE, alpha=0.4, linewidths=0, label="eigenvalues of single steps")
        _zoom(axes, real, imaginary)
    for axes in panels[::columns]:
        axes.set_ylabel("imaginary part")
    # Labels of panels: one of the whole figure would be under the legend.
    for axes in panels[-columns:]:
        axes.set_xlabel("real part")
    _finish(figure, path, "" if results["state"] == FULL else "not the full protocol", ncols=2)


def _zoom(axes: Axes, real: Array, imaginary: Array) -> None:
    """Show all eigenvalues in a square, which is far smaller than the unit circle for cells with a small step."""
    half = 0.55 * max(np.ptp(real), np.ptp(imaginary), 1e-3)
    for center, limit in ((np.mean([real.min(), real.max()]), axes.set_xlim), (0.0, axes.set_ylim)):
        limit(center - half, center + half)
    axes.set_aspect("equal")
    axes.locator_params(nbins=4)


def _finish(figure: Figure, path: Path, title: str, ncols: int) -> None:
    """Write a figure with its title, and a legend where a panel has labels."""
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=9, color=GREY)
    if any(axes.get_legend_handles_labels()[1] for axes in figure.axes):
        _legend_below(figure, ncols=ncols)
    _save(figure, path)


def _panels(count: int, columns: int, size: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with panels of a size in inches in lines of some columns, without those that remain empty."""
    lines = -(-count // columns)
    figure = Figure(figsize=(size * columns, size * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).ravel())
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]
