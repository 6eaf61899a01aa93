"""Which pictures a run gets, and of what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

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


def draw_curves(folder: Path, records: Sequence[dict[str, Any]], headline: str, best_epoch: int, run: str) -> None:
    """``loss.png``, ``metric.png`` and ``stability.png`` from the lines of ``metrics.jsonl`` that have such figures."""
    if not records:
        return
    plot_loss(folder / "loss.png", records, title=run)
    if any(headline in record["validation"] for record in records):
        plot_metric(folder / "metric.png", records, headline, best_epoch=best_epoch, title=run)
    certified = [record for record in records if "contraction_rate" in record.get("stability", {})]
    if certified:
        plot_stability(folder / "stability.png", certified, best_epoch=best_epoch, title=run)


def draw_last_window(path: Path, data: ForecastData, split: str, outputs: Outputs, levels: Sequence[float]) -> None:
    """Draw the last window of a split, of whose windows these are the outputs."""
    last = {name: values[-1] for name, values in outputs.items()}
    draw_forecast(path, data, split, len(data.windows(split)) - 1, last, levels)


def draw_confusion(
    path: Path, data: ClassificationData, scorer: ClassificationScorer, outputs: Outputs, split: str
) -> None:
    """The confusion matrix of a split."""
    predicted = outputs["probabilities"].argmax(axis=1)
    counts = confusion_matrix(predicted, scorer.truth, len(scorer.classes))
    share = float((predicted == scorer.truth).mean())
    title = f"{data.name}, {split}: {share:.1%} of {len(predicted)} right"
    plot_confusion(path, counts, scorer.classes, title=title)


def draw_reliability(
    path: Path, data: ClassificationData, scorer: ClassificationScorer, outputs: Outputs, split: str
) -> None:
    """Stated probabilities of a split against the share that is right; nothing where one is not finite."""
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
    """One window of a split: what was seen, what came, what was forecast.

    Args:
        path: Where the picture goes.
        data: What was forecast.
        split: Of the window.
        number: Of the window in the split.
        outputs: ``mean`` (horizon, targets) and, where there are levels, ``quantiles`` (horizon, targets, levels).
        levels: Of the quantiles.
        target: Which target is drawn, by its position.
    """
    windows = data.windows(split)
    chosen, end = windows.origins[number]
    series, channel = data.series[chosen], data.target_indices[target]
    window = windows.gather(np.array([number]))
    begin, stop = end - data.context_length, end + data.horizon
    naive = seasonal_naive(series.values[:, [channel]], np.array([end]), season=data.season, horizon=data.horizon)
    interval, coverage = None, None
    if levels and levels[0] < 0.5:
        quantiles = outputs["quantiles"][:, target]
        interval, coverage = (quantiles[:, 0], quantiles[:, -1]), levels[-1] - levels[0]
    plot_forecast(
        path,
        history=window.x[0, :, channel],
        truth=window.y[0, :, target],
        mean=outputs["mean"][:, target],
        naive=naive[0, :, 0],
        times=_times(series.ds[begin:stop]),
        interval=interval,
        coverage=coverage,
        ylabel=data.targets[target],
        title=_window_title(data, split, windows, number),
    )


def _window_title(data: ForecastData, split: str, windows: WindowSet, number: int) -> str:
    series = windows.origins[number][0]
    same = [other for other, (owner, _) in enumerate(windows.origins) if owner == series]
    # One series of a file has the file's name already.
    name = data.name if len(data.series) == 1 else f"{data.name}, {data.series[series].unique_id}"
    if number == same[-1]:
        return f"{name}: the last {split} window"
    return f"{name}: {split} window {same.index(number) + 1} of {len(same)}"


def _times(stamps: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # matplotlib reads datetimes of microseconds; nanoseconds it takes for plain numbers in some versions.
    return stamps.astype("datetime64[us]") if stamps.dtype.kind == "M" else stamps
