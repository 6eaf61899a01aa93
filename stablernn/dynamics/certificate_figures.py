"""Figures of a certificate document: what is proved is drawn in orange and dashed, what is observed in blue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stablernn.dynamics.drawn_trajectories import DrawnTrajectories
from stablernn.plotting import BLACK, BLUE, GREY, ORANGE, _legend_below, _style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]

_DASHES = (0, (5, 4))
_FAR = 8.0
"""Ratio of a ball's radius to the largest observed state beyond which the ball is not drawn to scale."""
_SMALLEST_SHARE = 1e-12
"""Distances below this are drawn at this: they are mostly the rounding of float64."""


def ball_figure(trajectories: DrawnTrajectories, ball: Mapping[str, Any] | None) -> Figure:
    """Draw the trajectories from the zero state in a plane, and their norm over time, with the proved ball.

    Args:
        trajectories: The observations.
        ball: The first ball of the certificate, to which the plane belongs; None if there is none.
    """
    figure = new_figure(9.6, 4.3)
    plane, norms = figure.subplots(1, 2, width_ratios=(1, 1.35))
    _style(plane, "states, two coordinates")
    for row in trajectories.plane:
        plane.plot(row[:, 0], row[:, 1], color=BLUE, linewidth=0.6, alpha=0.55)
    plane.plot([0], [0], color=BLACK, marker="+", markersize=8)
    largest = _largest_coordinate(trajectories)
    # Balls for rare inputs can be a million times as large as any state that is seen.
    radius = None if ball is None else float(ball["radius"])
    if radius is not None and ball is not None and is_drawn_to_scale(trajectories, ball):
        _draw_ball(plane, ball["norm"], radius)
        largest = max(largest, radius)
    plane.set_xlim(-1.1 * largest, 1.1 * largest)
    plane.set_ylim(-1.1 * largest, 1.1 * largest)
    plane.set_aspect("equal")
    plane.set_xlabel("coordinate with the largest variance")
    plane.set_ylabel("coordinate with the second largest")
    _style(norms, "norm of the state")
    values = trajectories.norms[ball["state"]] if ball is not None else np.linalg.norm(trajectories.plane, axis=2)
    for number, row in enumerate(values):
        norms.plot(row, color=BLUE, linewidth=0.7, alpha=0.6, label=None if number else "observed")
    if radius is not None:
        norms.axhline(radius, color=ORANGE, linestyle=_DASHES, linewidth=1.6, label=f"proved: at most {radius:.4g}")
        # A linear axis up to the radius would flatten the trajectories to a line.
        if radius > _FAR * max(float(values.max()), 1e-6):
            norms.set_yscale("log")
    norms.set_xlabel("step")
    norms.set_ylabel(f"{ball['norm']} norm of {ball['state']}" if ball is not None else "2-norm of both coordinates")
    _legend_below(figure, ncols=2)
    return figure


def forgetting_figure(trajectories: DrawnTrajectories) -> Figure:
    """Draw the distance of two drawn starts under the same inputs over time, with the proved bound."""
    figure = new_figure(9.6, 3.9)
    axes = figure.subplots()
    _style(axes, "distance of two states under the same inputs, as a share of the first distance")
    shares = np.maximum(trajectories.distances, _SMALLEST_SHARE)
    for number, row in enumerate(shares):
        axes.plot(row, color=BLUE, linewidth=0.8, alpha=0.6, label=None if number else "observed")
    if trajectories.bound is not None:
        bound = np.maximum(trajectories.bound, _SMALLEST_SHARE)
        label = f"proved: at most {trajectories.bound[1]:.4g} times per step"
        axes.plot(bound, color=ORANGE, linestyle=_DASHES, linewidth=1.6, label=label)
    axes.axhline(0.01, color=GREY, linewidth=0.8, linestyle=":", label="1 % of the first distance")
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel(f"share ({trajectories.norm} norm)")
    _legend_below(figure, ncols=3)
    return figure


def is_drawn_to_scale(trajectories: DrawnTrajectories, ball: Mapping[str, Any]) -> bool:
    """Return whether a ball is small enough to be drawn around the trajectories."""
    return float(ball["radius"]) <= _FAR * _largest_coordinate(trajectories)


def _largest_coordinate(trajectories: DrawnTrajectories) -> float:
    return max(float(np.abs(trajectories.plane).max()), 1e-6)


def _draw_ball(axes: Axes, norm: str, radius: float) -> None:
    """Draw the projection of a ball onto two coordinates: a disc of the 2-norm, a square of the infinity norm."""
    from matplotlib.patches import Circle, Rectangle

    style: dict[str, Any] = {"fill": False, "edgecolor": ORANGE, "linestyle": _DASHES, "linewidth": 1.6, "zorder": 4}
    if norm == "linf":
        axes.add_patch(Rectangle((-radius, -radius), 2 * radius, 2 * radius, **style))
    else:
        axes.add_patch(Circle((0, 0), radius, **style))
