from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from stablernn.plotting import (
    plot_confusion,
    plot_early,
    plot_forecast,
    plot_loss,
    plot_metric,
    plot_reliability,
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
