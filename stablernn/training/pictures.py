"""Which pictures a run gets, and of what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn.data import ClassificationData, ForecastData, WindowSet
from stablernn.metrics import confusion_matrix, seasonal_naive
from stablernn.training.evaluate import Outputs, Scorer
from stablernn.training.plots import plot_confusion, plot_forecast, plot_loss, plot_metric


def draw_curves(folder: Path, records: Sequence[dict[str, Any]], headline: str, best_epoch: int, run: str) -> None:
    """``loss.png`` and ``metric.png`` from the lines of ``metrics.jsonl``."""
    if not records:
        return
    plot_loss(folder / "loss.png", records, title=run)
    if any(headline in record["validation"] for record in records):
        plot_metric(folder / "metric.png", records, headline, best_epoch=best_epoch, title=run)


def draw_predictions(
    folder: Path,
    data: ClassificationData | ForecastData,
    scorer: Scorer,
    outputs: Outputs,
    levels: Sequence[float],
    split: str,
) -> None:
    """``confusion.png`` of a split, or ``forecast.png`` of its last window."""
    if isinstance(data, ClassificationData):
        predicted = outputs["probabilities"].argmax(axis=1)
        counts = confusion_matrix(predicted, scorer.truth, len(scorer.classes))
        share = float((predicted == scorer.truth).mean())
        title = f"{data.name}, {split}: {share:.1%} of {len(predicted)} right"
        plot_confusion(folder / "confusion.png", counts, scorer.classes, title=title)
        return
    _draw_forecast(folder / "forecast.png", data, scorer, outputs, levels, split)


def _draw_forecast(
    path: Path, data: ForecastData, scorer: Scorer, outputs: Outputs, levels: Sequence[float], split: str
) -> None:
    windows = scorer.source
    assert isinstance(windows, WindowSet)
    number, end = windows.origins[-1]
    series, target = data.series[number], data.target_indices[0]
    window = windows.gather(np.array([len(windows) - 1]))
    begin, stop = end - data.context_length, end + data.horizon
    naive = seasonal_naive(series.values[:, [target]], np.array([end]), season=data.season, horizon=data.horizon)
    interval, coverage = None, None
    if levels and levels[0] < 0.5:
        quantiles = outputs["quantiles"][-1, :, 0]
        interval, coverage = (quantiles[:, 0], quantiles[:, -1]), levels[-1] - levels[0]
    # One series of a file has the file's name already.
    name = data.name if len(data.series) == 1 else f"{data.name}, {series.unique_id}"
    plot_forecast(
        path,
        history=window.x[0, :, target],
        truth=window.y[0, :, 0],
        mean=outputs["mean"][-1, :, 0],
        naive=naive[0, :, 0],
        times=_times(series.ds[begin:stop]),
        interval=interval,
        coverage=coverage,
        ylabel=data.targets[0],
        title=f"{name}: the last {split} window",
    )


def _times(stamps: npt.NDArray[Any]) -> npt.NDArray[Any]:
    # matplotlib reads datetimes of microseconds; nanoseconds it takes for plain numbers in some versions.
    return stamps.astype("datetime64[us]") if stamps.dtype.kind == "M" else stamps
