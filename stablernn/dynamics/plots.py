"""Plots of a model's observed dynamics, as PNG."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle
from matplotlib.ticker import MaxNLocator

from stablernn.dynamics.report import DynamicsReport, Gradients
from stablernn.dynamics.spectra import Spectra
from stablernn.plotting import BLACK, BLUE, GREY, ORANGE, _legend_below, _save, _style, new_figure

Array = npt.NDArray[Any]

_MAX_DRAWN_RADIUS = 2.0
"""A certified rate beyond this is not drawn."""
_CROWDED_SPAN = 0.5
"""Span of the eigenvalues up to which they are drawn once more in an inset."""
_DASHES = (0, (5, 4))
_SMALLEST_SHARE = 1e-18
"""Gradient norms below this are drawn at this: anything smaller than float64's rounding says nothing."""


def draw_report(folder: Path, report: DynamicsReport, title: str) -> list[Path]:
    """Write ``jacobian_spectrum.png`` and ``gradient_norms.png``, each if it has data, and return the written files.

    Args:
        folder: Where the files go.
        report: The observations.
        title: Name of the data.
    """
    paths = []
    if report.spectra is not None:
        paths.append(folder / "jacobian_spectrum.png")
        _save(spectrum_figure(report.spectra, radius=report.radius, title=title), paths[-1])
    if len(report.gradients.ratios):
        paths.append(folder / "gradient_norms.png")
        plot_gradients(paths[-1], report.gradients, title=title)
    return paths


def spectrum_figure(
    spectra: Spectra, *, radius: float | None, title: str, size: tuple[float, float] = (10.4, 5.8)
) -> Figure:
    """Draw all eigenvalues with the unit circle, and the distribution of their moduli.

    Args:
        spectra: The eigenvalues.
        radius: The proved bound on their modulus; None if there is none.
        title: Name of the data.
        size: In inches.
    """
    points = spectra.eigenvalues.ravel()
    moduli = np.abs(points)
    drawn_radius = radius if radius is not None and radius <= _MAX_DRAWN_RADIUS else None
    figure = new_figure(*size)
    plane, histogram = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _style(plane, f"Jacobian eigenvalues: {title}")
    _circles(plane, drawn_radius)
    _eigenvalues(plane, points)
    limit = 1.08 * max(1.0, float(moduli.max()), drawn_radius or 0.0)
    plane.set_xlim(-limit, limit)
    plane.set_ylim(-limit, limit)
    plane.set_aspect("equal")
    plane.set_xlabel("real part")
    plane.set_ylabel("imaginary part")
    _add_inset(plane, points, drawn_radius)
    _style(histogram, "their moduli")
    low, high = float(moduli.min()), float(moduli.max())
    # Wider than the range, which may be a single number; every weight is a share in percent.
    edges = np.linspace(low - 1e-3, high + 1e-3, 60)
    histogram.hist(moduli, edges, weights=np.full(len(moduli), 100 / len(moduli)), color=BLUE, alpha=0.75, linewidth=0)
    histogram.axvline(1, color=BLACK, linewidth=1.2)
    if drawn_radius is not None:
        histogram.axvline(drawn_radius, color=ORANGE, linewidth=1.4, linestyle=_DASHES)
    histogram.set_xlabel("modulus")
    histogram.set_ylabel("share of all eigenvalues, %")
    histogram.set_title(f"largest observed {high:.4g}", loc="right", color=BLUE, fontsize=9)
    histogram.xaxis.set_major_locator(MaxNLocator(nbins=6))
    handles = [
        Line2D([], [], color=BLUE, marker="o", markersize=4, linewidth=0, label="eigenvalues of single steps"),
        Line2D([], [], color=BLACK, linewidth=1.2, label="unit circle"),
    ]
    if drawn_radius is not None:
        label = f"certified rate {drawn_radius:.4g}"
        handles.append(Line2D([], [], color=ORANGE, linewidth=1.4, linestyle=_DASHES, label=label))
    _legend_below(figure, ncols=3, handles=handles)
    return figure


def plot_gradients(path: Path, gradients: Gradients, *, title: str) -> None:
    """Plot the norm of the gradient of the loss on its way back through time, relative to that at the end.

    Args:
        path: The file.
        gradients: Ratios of each sequence.
        title: Name of the data.
    """
    figure = new_figure(7, 4.5)
    axes = figure.subplots()
    _style(axes, f"Gradient norms: {title}")
    ratios = np.maximum(gradients.ratios, _SMALLEST_SHARE)
    back = np.arange(ratios.shape[1])
    for row in ratios:
        axes.plot(back, row, color=BLUE, linewidth=0.6, alpha=0.25)
    low, middle, high = np.nanquantile(ratios, (0.1, 0.5, 0.9), axis=0)
    axes.fill_between(back, low, high, color=BLUE, alpha=0.18, linewidth=0, label="80% of the sequences")
    axes.plot(back, middle, color=BLUE, linewidth=1.8, label="median")
    axes.axhline(1, color=GREY, linewidth=1, linestyle=":", label="as at the end")
    axes.set_yscale("log")
    lower, upper = float(np.nanmin(ratios)), float(np.nanmax(ratios))
    if upper < 20 * lower:
        # Ratios this close to 1 are clearer over a decade on each side than on a narrow axis with many digits.
        axes.set_ylim(min(lower, 0.1), max(upper, 10.0))
    # The last step is at the right edge, as time runs.
    axes.set_xlim(max(back[-1], 1), 0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("steps before the last one")
    axes.set_ylabel("size of dL/dh, relative to the last step")
    slope = float(np.nanmedian(gradients.slopes)) if np.isfinite(gradients.slopes).any() else math.nan
    if math.isfinite(slope):
        axes.set_title(f"median slope {slope:+.3g} a step back", loc="right", color=BLUE, fontsize=9)
    _legend_below(figure, ncols=3)
    _save(figure, path)


def _circles(axes: Axes, radius: float | None) -> None:
    axes.axhline(0, color="#D0D0D0", linewidth=0.8, zorder=0)
    axes.axvline(0, color="#D0D0D0", linewidth=0.8, zorder=0)
    axes.add_patch(Circle((0, 0), 1, fill=False, edgecolor=BLACK, linewidth=1.2, zorder=3))
    if radius is not None:
        circle = Circle((0, 0), radius, fill=False, edgecolor=ORANGE, linewidth=1.4, linestyle=_DASHES, zorder=4)
        axes.add_patch(circle)


def _eigenvalues(axes: Axes, points: Array) -> None:
    # Fainter the more there are, so that dense regions still show.
    alpha = float(np.clip(16 / math.sqrt(len(points)), 0.06, 0.8))
    axes.scatter(np.real(points), np.imag(points), s=10, color=BLUE, alpha=alpha, linewidths=0, zorder=2)


def _add_inset(axes: Axes, points: Array, radius: float | None) -> None:
    """Draw eigenvalues that crowd on the right of the circle once more, larger, in its empty left half."""
    left, right, high = float(np.real(points).min()), float(np.real(points).max()), float(np.abs(np.imag(points)).max())
    side = max(right - left, 2 * high)
    if side > _CROWDED_SPAN or left < 0.35:
        return
    # In data coordinates, around the middle of the eigenvalues.
    middle, half = (left + right) / 2, max(0.58 * side, 1e-4)
    inset = axes.inset_axes((-0.66, -0.45, 0.9, 0.9), transform=axes.transData)
    _circles(inset, radius)
    _eigenvalues(inset, points)
    inset.set_xlim(middle - half, middle + half)
    inset.set_ylim(-half, half)
    inset.tick_params(labelsize=7, color=GREY)
    for locator in (inset.xaxis, inset.yaxis):
        locator.set_major_locator(MaxNLocator(nbins=4))
    for spine in inset.spines.values():
        spine.set_color(GREY)
    axes.indicate_inset_zoom(inset, edgecolor=GREY, alpha=0.7)
