"""Figures of a certificate document, as images that need no other file."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stablernn.certificates.certificate import Certificate
    from stablernn.dynamics.drawn_trajectories import DrawnTrajectories


@dataclass(frozen=True)
class Image:
    """A figure of the document.

    Attributes:
        name: Key of the figure.
        title: Title above it.
        caption: Explanation below it.
        draw: Draws the picture, and returns it as a data URI.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[], str]


_SPECTRA_INCHES = (7.6, 4.2)
"""A little wider than the text of a page, so that the labels are not made small."""


def describe_figures(trajectories: DrawnTrajectories, certificate: Certificate) -> list[Image]:
    """Return the figures of a document, not drawn yet: trajectories, forgetting, and spectra of a short state.

    Drawing takes most of the time of a document, and JSON needs none of it.
    """
    from stablernn.dynamics.certificate_figures import ball_figure, forgetting_figure, is_drawn_to_scale
    from stablernn.dynamics.plots import spectrum_figure
    from stablernn.plotting import png_bytes, svg_bytes

    # Of several tensors the first, which is the output of the first layer; all are in the table above.
    ball = certificate.balls[0] if certificate.balls else None
    source = f"{len(trajectories.distances)} input sequences, {trajectories.inputs}"
    if ball is None:
        bound = "No bound on the state is proved."
    else:
        scale = "" if is_drawn_to_scale(trajectories, ball) else " (too large to be drawn to scale in the left panel)"
        bound = (
            f"Orange: the proved bound, for every input of the scope{scale}. A trajectory that crossed it would refute "
            "the certificate."
        )
    images = [
        Image(
            "ball",
            "Trajectories" if ball is None else "Trajectories and ball",
            f"Blue: observed trajectories from the zero state under {source}. {bound}",
            lambda: _uri("svg+xml", svg_bytes(ball_figure(trajectories, ball))),
        ),
        Image(
            "forgetting",
            "Forgetting",
            "Blue: observed distance of two drawn starts under the same inputs, as a share of the first distance, in "
            "the norm of the certificate. "
            + (
                "Orange: the proved bound."
                if trajectories.bound is not None
                else "No rate of 1 or less is proved, therefore there is no bound to draw."
            ),
            lambda: _uri("svg+xml", svg_bytes(forgetting_figure(trajectories))),
        ),
    ]
    if trajectories.spectra is not None:
        observed, radius = trajectories.spectra, trajectories.radius
        images.append(
            Image(
                "spectra",
                "Spectra",
                f"Observed eigenvalues of the Jacobians of {len(observed.eigenvalues)} steps along the "
                "trajectories from zero. Eigenvalues at single states decide nothing about a sequence of steps; the "
                "certified rate, where it is drawn, bounds all of them.",
                # Thousands of transparent points would make an SVG of several megabytes.
                lambda: _uri(
                    "png",
                    png_bytes(
                        spectrum_figure(observed, radius=radius, title="drawn inputs", size=_SPECTRA_INCHES), dpi=200
                    ),
                ),
            )
        )
    return images


def _uri(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode('ascii')}"
