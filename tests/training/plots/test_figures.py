from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from stablernn.plotting import (
    _legend_below,
    new_figure,
    reliability_figure,
    stability_figure,
)


def legend_texts(figure: Figure) -> list[str]:
    """Return the entries of the only legend, which is below the panels and covers none of them."""
    assert not any(axes.get_legend() for axes in figure.axes)
    (legend,) = figure.legends
    figure.draw_without_rendering()
    box = legend.get_window_extent()
    assert not any(box.overlaps(axes.get_window_extent()) for axes in figure.axes)
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
    return [text.get_text() for text in legend.get_texts()]


def test_a_legend_has_fewer_columns_rather_than_being_cut_off() -> None:
    figure = new_figure(4, 3)
    axes = figure.subplots()
    for number in range(6):
        axes.plot([0, 1], label=f"a run with a long name {number}")
    _legend_below(figure, ncols=4)
    assert len(legend_texts(figure)) == 6


def _stability_records(rates: list[float], *, linear: bool) -> list[dict[str, Any]]:
    figures = {"norm_W": 0.5, "mu2_A": -0.2} if linear else {"norm_W": 0.5}
    return [
        {"epoch": epoch, "stability": {"contraction_rate": rate, "figures": figures}}
        for epoch, rate in enumerate(rates, start=1)
    ]


@pytest.mark.parametrize("rates", [[0.9965, 0.9962], [1.0, 1.0], [0.0, 3.0], [1e6, 2.0]], ids=str)
@pytest.mark.parametrize("linear", [True, False], ids=["linear term", "none"])
def test_stability_shows_the_rate_and_its_limit(rates: list[float], linear: bool) -> None:
    figure = stability_figure(_stability_records(rates, linear=linear), best_epoch=2, title="run")
    assert len(figure.axes) == 1 + linear
    axes = figure.axes[0]
    low, high = axes.get_ylim()
    drawn = [max(rate, 1e-6) for rate in rates]
    assert low <= min(1, *drawn) < high
    assert max(1, *drawn) <= high
    assert list(axes.lines[0].get_ydata()) == drawn
    texts = legend_texts(figure)
    assert "below 1: disturbances of the state fade" in texts
    assert ("their sum, theorem 1 (a)" in texts) == linear
    labels = [text.get_text() for text in axes.get_yticklabels()]
    assert not axes.yaxis.get_offset_text().get_text(), labels


def test_reliability_shows_the_samples_of_each_bin() -> None:
    table = {
        "samples": np.array([0, 1, 1200]),
        "accuracy": np.array([np.nan, 0.0, 0.9]),
        "confidence": np.array([np.nan, 0.5, 0.9]),
    }
    figure = reliability_figure(table, ece=0.1, title="toy, test")
    counts = [text.get_text() for text in figure.axes[1].texts]
    assert counts == ["", "1", "1,200"]
    # A bin without samples is marked, since its bar would look like an accuracy of 0.
    assert legend_texts(figure) == ["perfect calibration", "measured", "no samples"]
