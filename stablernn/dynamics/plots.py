"""Pictures of what was observed of a model's stability, as PNG."""

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

from stablernn.dynamics.gradients import Gradients
from stablernn.dynamics.report import DynamicsReport
from stablernn.dynamics.spectra import Spectra
from stablernn.plotting import BLACK, BLUE, GREY, ORANGE, _save, _style

Array = npt.NDArray[Any]

_FARTHEST_CIRCLE = 2.0
_CROWDED = 0.5
_DASHES = (0, (5, 4))
_SMALLEST_SHARE = 1e-18
"""Gradient norms below this are drawn there: what is smaller than float64's rounding says nothing."""


def draw_report(folder: Path, observed: DynamicsReport, title: str) -> list[Path]:
    """``jacobian_spectrum.png`` and ``gradient_norms.png``, as far as there is something to draw; what was written.

    Args:
        folder: Where the pictures go.
        observed: What was seen.
        title: Of which data.
    """
    written = []
    if observed.spectra is not None:
        written.append(folder / "jacobian_spectrum.png")
        plot_spectrum(written[-1], observed.spectra, radius=observed.radius, title=title)
    if len(observed.gradients.ratios):
        written.append(folder / "gradient_norms.png")
        plot_gradients(written[-1], observed.gradients, title=title)
    return written


def plot_spectrum(path: Path, found: Spectra, *, radius: float | None, title: str) -> None:
    """All eigenvalues against the unit circle, and how their moduli are distributed.

    Args:
        path: Where the picture goes.
        found: The eigenvalues.
        radius: What is proved of their modulus; None where nothing is.
        title: Of which data.
    """
    points = found.eigenvalues.ravel()
    moduli = np.abs(points)
    drawn = radius if radius is not None and radius <= _FARTHEST_CIRCLE else None
    figure = Figure(figsize=(10.4, 5.8), layout="constrained")
    plane, below = figure.subplots(1, 2, width_ratios=(1.25, 1))
    _style(plane, f"Jacobian eigenvalues: {title}")
    _circles(plane, drawn)
    _eigenvalues(plane, points)
    reach = 1.08 * max(1.0, float(moduli.max()), drawn or 0.0)
    plane.set_xlim(-reach, reach)
    plane.set_ylim(-reach, reach)
    plane.set_aspect("equal")
    plane.set_xlabel("real part")
    plane.set_ylabel("imaginary part")
    _enlarge(plane, points, drawn)
    _style(below, "their moduli")
    low, high = float(moduli.min()), float(moduli.max())
    edges = np.linspace(low - 1e-3, high + 1e-3, 60)
    below.hist(moduli, edges, weights=np.full(len(moduli), 100 / len(moduli)), color=BLUE, alpha=0.75, linewidth=0)
    below.axvline(1, color=BLACK, linewidth=1.2)
    if drawn is not None:
        below.axvline(drawn, color=ORANGE, linewidth=1.4, linestyle=_DASHES)
    below.set_xlabel("modulus")
    below.set_ylabel("share of all eigenvalues, %")
    below.set_title(f"largest observed {high:.4g}", loc="right", color=BLUE, fontsize=9)
    below.xaxis.set_major_locator(MaxNLocator(nbins=6))
    handles = [
        Line2D([], [], color=BLUE, marker="o", markersize=4, linewidth=0, label="eigenvalues of single steps"),
        Line2D([], [], color=BLACK, linewidth=1.2, label="unit circle"),
    ]
    if drawn is not None:
        label = f"certified rate {drawn:.4g}"
        handles.append(Line2D([], [], color=ORANGE, linewidth=1.4, linestyle=_DASHES, label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    _save(figure, path)


def plot_gradients(path: Path, found: Gradients, *, title: str) -> None:
    """How large the gradient of the loss is on its way back through time, relative to its size at the end.

    Args:
        path: Where the picture goes.
        found: Ratios of each sequence.
        title: Of which data.
    """
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    _style(axes, f"Gradient norms: {title}")
    ratios = np.maximum(found.ratios, _SMALLEST_SHARE)
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
        # So near to 1 that a decade on each side says it better than digits do.
        axes.set_ylim(min(lower, 0.1), max(upper, 10.0))
    axes.set_xlim(max(back[-1], 1), 0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("steps before the last one")
    axes.set_ylabel("size of dL/dh, relative to the last step")
    slope = float(np.nanmedian(found.slopes)) if np.isfinite(found.slopes).any() else math.nan
    if math.isfinite(slope):
        axes.set_title(f"median slope {slope:+.3g} a step back", loc="right", color=BLUE, fontsize=9)
    axes.legend(loc="best", frameon=True, framealpha=0.85, edgecolor="none", fontsize=9)
    _save(figure, path)


def _circles(axes: Axes, radius: float | None) -> None:
    axes.axhline(0, color="#D0D0D0", linewidth=0.8, zorder=0)
    axes.axvline(0, color="#D0D0D0", linewidth=0.8, zorder=0)
    axes.add_patch(Circle((0, 0), 1, fill=False, edgecolor=BLACK, linewidth=1.2, zorder=3))
    if radius is not None:
        circle = Circle((0, 0), radius, fill=False, edgecolor=ORANGE, linewidth=1.4, linestyle=_DASHES, zorder=4)
        axes.add_patch(circle)


def _eigenvalues(axes: Axes, points: Array) -> None:
    alpha = float(np.clip(16 / math.sqrt(len(points)), 0.06, 0.8))
    axes.scatter(np.real(points), np.imag(points), s=10, color=BLUE, alpha=alpha, linewidths=0, zorder=2)


def _enlarge(axes: Axes, points: Array, radius: float | None) -> None:
    """Show eigenvalues that crowd on the right of the circle once more, larger, in its empty left half."""
    left, right, high = float(np.real(points).min()), float(np.real(points).max()), float(np.abs(np.imag(points)).max())
    side = max(right - left, 2 * high)
    if side > _CROWDED or left < 0.35:
        return
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
