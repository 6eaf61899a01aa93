"""Figures of a task: curves of a run, its predictions, and the data before training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stablernn.data.arrays import SPLITS
from stablernn.data.experiments import SimulationData
from stablernn.data.messages import format_names
from stablernn.data.step_data import StepData
from stablernn.data.types import ClassificationData, ForecastData
from stablernn.data.windows import WindowSet, target_range
from stablernn.errors import ConfigError, unknown
from stablernn.plotting import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    _integer_ticks,
    _legend_below,
    _save,
    _style,
    _time_axis,
    forecast_figure,
    line_styles,
    new_figure,
    plot_confusion,
    plot_loss,
    plot_metric,
    reliability_figure,
    stability_figure,
)
from stablernn.training.evaluation.metrics import classification_metrics, confusion_matrix, reliability, seasonal_naive
from stablernn.training.evaluation.predictors import Outputs
from stablernn.training.evaluation.scorers import ClassificationScorer
from stablernn.training.evaluation.simulation import Residuals

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
        _save(stability_figure(certified, best_epoch=best_epoch, title=run), folder / "stability.png")


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
        _save(reliability_figure(table, ece=ece, title=f"{data.name}, {split}"), path)


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
    figure = forecast_figure(
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
    _save(figure, path)


def _window_title(data: ForecastData, split: str, windows: WindowSet, number: int) -> str:
    series = windows.origins[number][0]
    numbers = [other for other, (owner, _) in enumerate(windows.origins) if owner == series]
    # A single series is named by its file already.
    name = data.name if len(data.series) == 1 else f"{data.name}, {data.series[series].unique_id}"
    if number == numbers[-1]:
        return f"{name}: the last {split} window"
    return f"{name}: {split} window {numbers.index(number) + 1} of {len(numbers)}"


_SHADES = {"train": BLUE, "validation": ORANGE, "test": GREEN}
_MOST_CLASSES, _EXAMPLES = 6, 5
_MOST_SERIES, _MOST_TARGETS = 4, 4
# More classes than this have no room for their names.
_MOST_BARS = 30
_LENGTH_BINS = 30


def classes_figure(data: ClassificationData) -> Figure:
    """Return a figure of the share of each class in each split, and the first sequences of the first classes."""
    shown = min(len(data.labels), _MOST_CLASSES)
    rows = -(-shown // 2)
    figure = new_figure(11, max(4.0, 1.9 * rows))
    halves: Any = figure.subfigures(1, 2, width_ratios=(2, 3))
    left, right = halves
    _balance(left.subplots(), data)
    _legend_below(left, ncols=2)
    panels = np.atleast_1d(right.subplots(rows, 2 if shown > 1 else 1, sharex=True)).ravel()
    for index, axes in enumerate(panels):
        if index >= shown:
            axes.axis("off")
            continue
        _style(axes, "")
        members = np.flatnonzero(data.train.y == index)[:_EXAMPLES]
        for number, (color, _) in zip(members, line_styles(len(members)), strict=True):
            (values,) = data.train.gather([number]).x
            axes.plot(values[: data.train.lengths[number], 0], color=color, linewidth=1, alpha=0.7)
        axes.set_title(data.labels[index], loc="left", fontsize=9)
        axes.tick_params(labelsize=8)
    more = "" if shown == len(data.labels) else f" of {shown} of {len(data.labels)} classes"
    right.suptitle(f"first training sequences{more}: {data.features[0]} over steps", x=0.01, ha="left", fontsize=10)
    right.supxlabel("step", fontsize=9)
    return figure


def _balance(axes: Axes, data: ClassificationData) -> None:
    _style(axes, f"{data.name}: share of each class")
    splits = data.splits()
    positions = np.arange(len(data.labels))
    height = 0.8 / len(splits)
    for number, (name, split) in enumerate(splits.items()):
        share = np.bincount(split.y, minlength=len(data.labels)) / max(len(split), 1)
        offset = (number - (len(splits) - 1) / 2) * height
        axes.barh(positions + offset, share, height, color=_SHADES[name], label=f"{name} ({len(split):,})")
    if len(data.labels) <= _MOST_BARS:
        axes.set_yticks(positions, data.labels)
    axes.invert_yaxis()
    axes.set_xlabel("share of the split")


def series_figure(data: ForecastData) -> Figure:
    """Return a figure of the first series, each target in a panel, with shaded splits."""
    panels = [(series, target) for series in data.series[:_MOST_SERIES] for target in data.targets[:_MOST_TARGETS]]
    # Both limits together would allow 16 panels.
    panels = panels[: max(_MOST_SERIES, _MOST_TARGETS)]
    figure = new_figure(11, 1.6 + 2.1 * len(panels))
    for axes, (series, target) in zip(np.atleast_1d(figure.subplots(len(panels), 1)).ravel(), panels, strict=True):
        values = series.values[:, data.channels.index(target)]
        times = plottable_times(series.ds)
        _style(axes, series.unique_id if len(data.series) > 1 else data.name)
        for split in SPLITS:
            start, stop = target_range(len(values), data.validation_steps, data.test_steps, split)
            if stop > start:
                axes.axvspan(times[start], times[stop - 1], color=_SHADES[split], alpha=0.1, linewidth=0, label=split)
        axes.plot(times, values, color=BLACK, linewidth=0.7)
        _mark_missing(axes, times, values)
        axes.set_ylabel(target)
        axes.margins(x=0)
        _time_axis(axes, times)
    for axes in figure.axes[:-1]:
        axes.set_xlabel("")
    hidden = len(data.series) * len(data.targets) - len(panels)
    if hidden:
        figure.suptitle(f"and {hidden:,} more, not drawn", x=0.99, ha="right", fontsize=9, color=GREY)
    _legend_below(figure, ncols=5)
    return figure


def _mark_missing(axes: Axes, times: npt.NDArray[Any], values: npt.NDArray[np.float32]) -> None:
    missing = np.flatnonzero(np.isnan(values))
    if len(missing):
        # Along the lower edge of the axes: missing values have no height in units of the data.
        axes.plot(
            times[missing],
            np.zeros(len(missing)),
            "|",
            color=ORANGE,
            markersize=7,
            transform=axes.get_xaxis_transform(),
            label="missing",
        )
        # Each panel has its own count, and the legend is that of all panels.
        axes.set_title(f"{len(missing):,} missing", loc="right", color=ORANGE, fontsize=9)


def steps_figure(data: StepData) -> Figure:
    """Return a figure of the lengths of the sequences of each split, and the first training sequence."""
    figure = new_figure(11, 4)
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    _style(left, f"{data.name}: steps of a sequence")
    lengths = {split: np.asarray(data.split(split).lengths) for split in SPLITS}
    # The same bins for all splits, so that their shares can be compared; lengths are whole numbers, and so are widths.
    every = np.concatenate(list(lengths.values()))
    width = -(-(int(every.max()) - int(every.min()) + 1) // _LENGTH_BINS)
    edges = np.arange(every.min() - 0.5, every.max() + 0.5 + width, width)
    for (split, steps), dash in zip(lengths.items(), ("-", "--", ":"), strict=True):
        share = np.full(len(steps), 1 / max(len(steps), 1))
        left.hist(
            steps,
            edges,
            weights=share,
            histtype="step",
            linewidth=1.6,
            linestyle=dash,
            color=_SHADES[split],
            label=f"{split} ({len(steps):,})",
        )
    left.set_xlim(edges[0] - width, edges[-1] + width)
    left.set_xlabel("steps")
    left.set_ylabel("share of the split")
    _integer_ticks(left.xaxis, max_ticks=6)
    sample = data.train.gather([0])
    first = sample.x[0, : min(int(sample.lengths[0]), 400)]
    _style(right, "first training sequence")
    if data.tokens:
        right.plot(first, ".", color=BLUE, markersize=3)
        right.set_ylabel("token")
    elif first.shape[1] > _MOST_TARGETS:
        image = right.imshow(first.T, aspect="auto", origin="lower", cmap="Blues", interpolation="nearest")
        figure.colorbar(image, ax=right, label="value")
        right.set_ylabel("channel")
        right.grid(False)
    else:
        for values, name, (color, dash) in zip(first.T, data.features, line_styles(first.shape[1]), strict=True):
            right.plot(values, linewidth=1, color=color, linestyle=dash, label=name)
    right.set_xlabel("step")
    _legend_below(figure, ncols=5)
    return figure


_DRAWN_OUTPUTS = 4


def draw_simulation(path: Path, data: SimulationData, split: str, residuals: Residuals) -> None:
    """Draw measured and simulated outputs of the first experiment, and the correlations of all residuals.

    Raises:
        CheckpointError: If the file cannot be written.
    """
    outputs = data.outputs[:_DRAWN_OUTPUTS]
    figure = new_figure(12, 2.6 * len(outputs) + 0.8)
    rows = figure.subplots(len(outputs), 3, squeeze=False, width_ratios=(4, 1.4, 1.4))
    measured, simulated = residuals.measured[0], residuals.simulated[0]
    unit = "sample" if data.sample_time is None else "seconds"
    time = np.arange(len(measured)) * (data.sample_time or 1)
    scored = np.flatnonzero(~np.isnan(measured).all(axis=1))
    for index, (name, (axes, white, crossed)) in enumerate(zip(outputs, rows, strict=True)):
        _style(axes, f"{data.name}, {split}: {name}")
        axes.plot(time, measured[:, index], linewidth=1, color=GREY, label="measured")
        axes.plot(time, simulated[:, index], linewidth=1, color=BLUE, label="simulated")
        axes.plot(time, measured[:, index] - simulated[:, index], linewidth=0.8, color=ORANGE, label="residual")
        axes.set_xlim(time[scored[0]], time[scored[-1]])
        axes.set_xlabel(unit)
        found = residuals.correlations(index, data.washout)
        _style(white, "residual with itself")
        _style(crossed, "residual with inputs")
        white.set_xlabel("lag in samples")
        crossed.set_xlabel("lag in samples")
        for each, (color, dash) in zip(found, line_styles(len(found)), strict=True):
            panel, first = (white, 1) if each.name == "residual" else (crossed, 0)
            label = None if each.name == "residual" else data.features[int(each.name)]
            lags = np.arange(first, first + len(each.values))
            panel.plot(lags, each.values, dash, marker=".", markersize=3, linewidth=1, color=color, label=label)
            panel.axhspan(-each.band, each.band, color=GREY, alpha=0.2, linewidth=0)
    _legend_below(figure, ncols=5)
    _save(figure, path)


class WindowRangeError(ConfigError):
    """A series has windows, but none of the chosen number."""


@dataclass(frozen=True)
class WindowChoice:
    """Choice of the forecast to draw; None selects the default.

    Attributes:
        series: ``unique_id`` of the series. Default: the series of the last window.
        number: Window of the series, from 1. Default: the last.
        target: Name of the target. Default: the first.
    """

    series: str | None = None
    number: int | None = None
    target: str | None = None

    @property
    def is_default(self) -> bool:
        """True if nothing was selected."""
        return astuple(self) == (None, None, None)


@dataclass(frozen=True)
class SelectedWindow:
    """A window of a split.

    Attributes:
        index: Number of the window in the split, from 0.
        target: Position of the target to draw.
        series: ``unique_id`` of its series.
        number: Window of the series, from 1.
        count: Windows of the series.
    """

    index: int
    target: int
    series: str
    number: int
    count: int


def select_window(data: ForecastData, split: str, choice: WindowChoice) -> SelectedWindow:
    """Return the chosen window of a split that has windows.

    Raises:
        UnknownNameError: If there is no such series or target.
        WindowRangeError: If the series has fewer windows than the number.
        ConfigError: If the series has no window.
    """
    target = _index_of(choice.target, data.targets, "target", f"'{data.name}' forecasts", 0)
    names = [series.unique_id for series in data.series]
    # The windows of all series are numbered in one sequence; those of the chosen series are counted from 1.
    origins = data.windows(split).origins
    series_index = _index_of(choice.series, names, "series", f"'{data.name}' has", origins[-1][0])
    series = names[series_index]
    indices = [index for index, (owner, _) in enumerate(origins) if owner == series_index]
    if not indices:
        raise ConfigError(f"The series '{series}' has no window in the split '{split}'. Choose another.")
    number = len(indices) if choice.number is None else choice.number
    if not 1 <= number <= len(indices):
        raise WindowRangeError(f"window must be from 1 to {len(indices)}, the windows of '{series}', got {number}.")
    return SelectedWindow(indices[number - 1], target, series, number, len(indices))


def _index_of(name: str | None, names: Sequence[str], noun: str, owner: str, default: int) -> int:
    """Return the index of a name; ``noun`` and ``owner`` are for the message about an unknown one."""
    if name is None:
        return default
    if name not in names:
        raise unknown(noun, name, names, f"{owner} {format_names(names)}.")
    return list(names).index(name)


def plottable_times(timestamps: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return datetimes in microseconds; whole numbers stay as they are."""
    # matplotlib reads datetimes of microseconds; some versions take nanoseconds for plain numbers.
    return timestamps.astype("datetime64[us]") if np.issubdtype(timestamps.dtype, np.datetime64) else timestamps
