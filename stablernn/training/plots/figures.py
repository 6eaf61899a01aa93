"""Figures of runs and of their predictions: curves, confusion, reliability and forecasts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stablernn.data import ClassificationData, ForecastData, WindowSet
from stablernn.plotting import (
    plot_confusion,
    plot_forecast,
    plot_loss,
    plot_metric,
    plot_reliability,
    plot_stability,
)
from stablernn.training.evaluation.metrics import classification_metrics, confusion_matrix, reliability, seasonal_naive
from stablernn.training.evaluation.predictors import Outputs
from stablernn.training.evaluation.scorers import ClassificationScorer
from stablernn.training.plots.times import plottable_times


def draw_curves(
    folder: Path, records: Sequence[dict[str, Any]], headline: str, best_epoch: int, run: str, *, note: str = ""
) -> None:
    """Draw ``loss.png``, and ``metric.png`` and ``stability.png`` if ``metrics.jsonl`` has figures for them.

    Args:
        folder: Folder of the plots.
        records: Lines of ``metrics.jsonl``.
        headline: Metric that selects the best epoch.
        best_epoch: The best epoch.
        run: Name of the run.
        note: Words after it above the plot of the metric.
    """
    if not records:
        return
    plot_loss(folder / "loss.png", records, title=run)
    if any(headline in record["validation"] for record in records):
        plot_metric(folder / "metric.png", records, headline, best_epoch=best_epoch, title=run + note)
    certified = [record for record in records if "contraction_rate" in record.get("stability", {})]
    if certified:
        plot_stability(folder / "stability.png", certified, best_epoch=best_epoch, title=run)


def draw_last_window(path: Path, data: ForecastData, split: str, outputs: Outputs, levels: Sequence[float]) -> None:
    """Draw the last window of a split from the outputs for all its windows."""
    last = {name: values[-1] for name, values in outputs.items()}
    draw_forecast(path, data, split, len(data.windows(split)) - 1, last, levels)


def draw_confusion(
    path: Path, data: ClassificationData, scorer: ClassificationScorer, outputs: Outputs, split: str
) -> None:
    """Draw the confusion matrix of a split."""
    predicted = outputs["probabilities"].argmax(axis=1)
    counts = confusion_matrix(predicted, scorer.truth, len(scorer.classes))
    share = float((predicted == scorer.truth).mean())
    title = f"{data.name}, {split}: {share:.1%} of {len(predicted)} right"
    plot_confusion(path, counts, scorer.classes, title=title)


def draw_reliability(
    path: Path, data: ClassificationData, scorer: ClassificationScorer, outputs: Outputs, split: str
) -> None:
    """Draw the reliability diagram of a split; nothing if a probability is not finite."""
    probabilities = outputs["probabilities"]
    if np.isfinite(probabilities).all():
        table = reliability(probabilities, scorer.truth)
        ece = classification_metrics(probabilities, scorer.truth)["ece"]
        plot_reliability(path, table, ece=ece, title=f"{data.name}, {split}")


def draw_forecast(
    path: Path,
    data: ForecastData,
    split: str,
    number: int,
    outputs: Outputs,
    levels: Sequence[float],
    target: int = 0,
) -> None:
    """Draw one window of a split: history, true values, forecast and seasonal naive forecast.

    Args:
        path: PNG file to write.
        data: Data of the window.
        split: Split of the window.
        number: Number of the window in the split.
        outputs: ``mean`` (horizon, targets) and, with levels, ``quantiles`` (horizon, targets, levels).
        levels: Levels of the quantiles.
        target: Position of the target to draw.
    """
    windows = data.windows(split)
    series_index, end = windows.origins[number]
    series, channel = data.series[series_index], data.target_indices[target]
    window = windows.gather(np.array([number]))
    start, stop = end - data.context_length, end + data.horizon
    # The whole history, as for the scores: the naive forecast is not limited to the context.
    naive = seasonal_naive(series.values[:, [channel]], np.array([end]), season=data.season, horizon=data.horizon)
    interval, coverage = None, None
    # The widest interval, between the first and the last level.
    if levels and levels[0] < 0.5:
        quantiles = outputs["quantiles"][:, target]
        interval, coverage = (quantiles[:, 0], quantiles[:, -1]), levels[-1] - levels[0]
    plot_forecast(
        path,
        history=window.x[0, :, channel],
        truth=window.y[0, :, target],
        mean=outputs["mean"][:, target],
        naive=naive[0, :, 0],
        times=plottable_times(series.ds[start:stop]),
        interval=interval,
        coverage=coverage,
        ylabel=data.targets[target],
        title=_window_title(data, split, windows, number),
    )


def _window_title(data: ForecastData, split: str, windows: WindowSet, number: int) -> str:
    series = windows.origins[number][0]
    numbers = [other for other, (owner, _) in enumerate(windows.origins) if owner == series]
    # A single series is named by its file already.
    name = data.name if len(data.series) == 1 else f"{data.name}, {data.series[series].unique_id}"
    if number == numbers[-1]:
        return f"{name}: the last {split} window"
    return f"{name}: {split} window {numbers.index(number) + 1} of {len(numbers)}"
