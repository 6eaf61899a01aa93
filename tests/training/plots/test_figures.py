from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from stablernn.plotting import (
    _legend_below,
    forecast_figure,
    new_figure,
    plot_confusion,
    plot_early,
    plot_forecast,
    plot_loss,
    plot_metric,
    plot_reliability,
    reliability_figure,
    stability_figure,
)
from stablernn.training.evaluation.metrics import reliability

RECORDS: list[dict[str, Any]] = [
    {"epoch": 1, "train_loss": 2.0, "lr": 0.01, "validation": {"accuracy": 0.2}},
    {"epoch": 2, "train_loss": 0.05, "lr": 0.02, "validation": {"accuracy": None}},
    {"epoch": 3, "train_loss": 0.01, "lr": 0.0, "validation": {"accuracy": 0.9}},
]


def ink(path: Path) -> float:
    """Share of the picture that is not background."""
    pixels = imread(path)[..., :3]
    return float((pixels < 0.98).any(axis=-1).mean())


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


def test_loss(tmp_path: Path) -> None:
    plot_loss(tmp_path / "plots/loss.png", RECORDS, title="run")
    assert ink(tmp_path / "plots/loss.png") > 0.01


@pytest.mark.parametrize("records", [RECORDS, RECORDS[:1], RECORDS[1:2]], ids=["several", "one", "missing"])
def test_metric(records: list[dict[str, Any]], tmp_path: Path) -> None:
    plot_metric(tmp_path / "metric.png", records, "accuracy", best_epoch=3, title="run")
    assert ink(tmp_path / "metric.png") > 0.005


@pytest.mark.parametrize("classes", [2, 10, 40], ids=lambda n: f"K{n}")
def test_confusion(classes: int, tmp_path: Path) -> None:
    counts = np.eye(classes, dtype=int) * 9
    counts[0] = 0
    labels = [f"a long label {number}" for number in range(classes)]
    plot_confusion(tmp_path / "confusion.png", counts, labels, title="toy, test: 90.0% of 100 right")
    assert ink(tmp_path / "confusion.png") > 0.02


@pytest.mark.parametrize("dated", [True, False], ids=["dates", "numbers"])
@pytest.mark.parametrize("interval", [True, False], ids=["interval", "no interval"])
def test_forecast(dated: bool, interval: bool, tmp_path: Path) -> None:
    steps = np.arange(30)
    values = np.sin(steps / 4)
    truth = values[20:].copy()
    truth[3] = np.nan
    plot_forecast(
        tmp_path / "forecast.png",
        history=values[:20],
        truth=truth,
        mean=values[20:] + 0.1,
        naive=values[10:20],
        times=np.datetime64("2024-01-01") + steps if dated else steps,
        interval=(values[20:] - 1, values[20:] + 1) if interval else None,
        coverage=0.8 if interval else None,
        ylabel="y",
        title="toy: the last test window",
    )
    assert ink(tmp_path / "forecast.png") > 0.01


@pytest.mark.parametrize("samples", [1, 400], ids=["one sample", "many"])
def test_reliability(samples: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    p = random.dirichlet(np.ones(3), size=samples)
    table = reliability(p, random.integers(0, 3, samples))
    plot_reliability(tmp_path / "reliability.png", table, ece=0.1, title="toy, test")
    assert ink(tmp_path / "reliability.png") > 0.01


@pytest.mark.parametrize("majority", [0.4, None], ids=["majority", "none"])
def test_early(majority: float | None, tmp_path: Path) -> None:
    rows = [{"share": n / 10, "accuracy": n / 10, "macro_f1": n / 11} for n in range(1, 11)]
    plot_early(tmp_path / "early.png", rows, majority=majority, title="toy, test")
    assert ink(tmp_path / "early.png") > 0.01


def _stability_records(rates: list[float], *, linear: bool) -> list[dict[str, Any]]:
    figures = {"norm_W": 0.5, "mu2_A": -0.2} if linear else {"norm_W": 0.5}
    return [
        {"epoch": epoch, "stability": {"contraction_rate": rate, "figures": figures}}
        for epoch, rate in enumerate(rates, start=1)
    ]


def test_a_single_epoch_stands_between_whole_numbers() -> None:
    axes = stability_figure(_stability_records([0.9], linear=False), best_epoch=1, title="run").axes[0]
    assert axes.get_xlim() == (0, 2)
    assert [tick for tick in axes.get_xticks() if 0 <= tick <= 2] == [0, 1, 2]


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


def test_forecast_shows_the_year_of_hourly_times() -> None:
    steps = np.arange(30)
    figure = forecast_figure(
        history=steps[:20],
        truth=steps[20:],
        mean=steps[20:],
        naive=steps[:10],
        times=np.datetime64("2024-05-17T00", "us") + steps * np.timedelta64(1, "h"),
        interval=(steps[20:] - 1, steps[20:] + 1),
        coverage=0.8,
        ylabel="y",
        title="toy",
    )
    (axes,) = figure.axes
    figure.draw_without_rendering()
    shown = [text.get_text() for text in axes.get_xticklabels()] + [axes.xaxis.get_offset_text().get_text()]
    assert any("2024" in text for text in shown)
    assert axes.get_xlabel() == "time"
    assert legend_texts(figure) == [
        "history",
        "truth",
        "seasonal naive",
        "80% interval",
        "forecast",
        "first forecast step",
    ]


def test_forecast_of_whole_numbers_names_the_axis() -> None:
    steps = np.arange(6)
    figure = forecast_figure(
        history=steps[:4],
        truth=steps[4:],
        mean=steps[4:],
        naive=steps[:2],
        times=steps,
        interval=None,
        coverage=None,
        ylabel="y",
        title="toy",
    )
    assert figure.axes[0].get_xlabel() == "time, whole numbers"
