"""Plots of data before training: classes with examples, series with their splits, or sequences step by step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stablernn.data import ClassificationData, ForecastData
from stablernn.data.arrays import SPLITS
from stablernn.data.step_data import StepData
from stablernn.data.windows import target_range
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
    line_styles,
    new_figure,
)
from stablernn.training.plots.times import plottable_times

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SHADES = {"train": BLUE, "validation": ORANGE, "test": GREEN}
_MOST_CLASSES, _EXAMPLES = 6, 5
_MOST_SERIES, _MOST_TARGETS = 4, 4
# More classes than this have no room for their names.
_MOST_BARS = 30
_LENGTH_BINS = 30


def plot_classes(path: Path, data: ClassificationData) -> None:
    """Draw the share of each class in each split, and the first sequences of the first classes, into a PNG file.

    Raises:
        CheckpointError: If the file cannot be written.
    """
    _save(classes_figure(data), path)


def classes_figure(data: ClassificationData) -> Figure:
    """Return the figure of :func:`plot_classes`."""
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


def plot_series(path: Path, data: ForecastData) -> None:
    """Draw the first series, each target in a panel, with shaded splits, into a PNG file.

    Raises:
        CheckpointError: If the file cannot be written.
    """
    _save(series_figure(data), path)


def series_figure(data: ForecastData) -> Figure:
    """Return the figure of :func:`plot_series`."""
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


def plot_steps(path: Path, data: StepData) -> None:
    """Draw the lengths of the sequences of each split, and the first training sequence, into a PNG file.

    Raises:
        CheckpointError: If the file cannot be written.
    """
    _save(steps_figure(data), path)


def steps_figure(data: StepData) -> Figure:
    """Return the figure of :func:`plot_steps`."""
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
