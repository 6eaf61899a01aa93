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
from stablernn.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, _save, _style, new_figure
from stablernn.training.plots.times import plottable_times

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHADES = {"train": BLUE, "validation": ORANGE, "test": GREEN}
_MOST_CLASSES, _EXAMPLES = 6, 5
_MOST_SERIES, _MOST_TARGETS = 4, 4
# More classes than this have no room for their names.
_MOST_BARS = 30


def plot_classes(path: Path, data: ClassificationData) -> None:
    """Draw the share of each class in each split, and the first sequences of the first classes, into a PNG file.

    Raises:
        CheckpointError: If the file cannot be written.
    """
    shown = min(len(data.labels), _MOST_CLASSES)
    rows = -(-shown // 2)
    figure = new_figure(11, max(4.0, 1.9 * rows))
    halves: Any = figure.subfigures(1, 2, width_ratios=(2, 3))
    left, right = halves
    _balance(left.subplots(), data)
    panels = np.atleast_1d(right.subplots(rows, 2 if shown > 1 else 1, sharex=True)).ravel()
    for index, axes in enumerate(panels):
        if index >= shown:
            axes.axis("off")
            continue
        _style(axes, "")
        members = np.flatnonzero(data.train.y == index)[:_EXAMPLES]
        for number in members:
            (values,) = data.train.gather([number]).x
            axes.plot(values[: data.train.lengths[number], 0], linewidth=1, alpha=0.7)
        axes.set_title(data.labels[index], loc="left", fontsize=9)
        axes.tick_params(labelsize=8)
    more = "" if shown == len(data.labels) else f" of {shown} of {len(data.labels)} classes"
    right.suptitle(f"first training sequences{more}: {data.features[0]} over steps", x=0.01, ha="left", fontsize=10)
    _save(figure, path)


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
    axes.legend(frameon=False, fontsize=9)


def plot_series(path: Path, data: ForecastData) -> None:
    """Draw the first series, each target in a panel, with shaded splits, into a PNG file.

    Raises:
        CheckpointError: If the file cannot be written.
    """
    panels = [(series, target) for series in data.series[:_MOST_SERIES] for target in data.targets[:_MOST_TARGETS]]
    # Both limits together would allow 16 panels.
    panels = panels[: max(_MOST_SERIES, _MOST_TARGETS)]
    figure = new_figure(11, 1.2 + 2.1 * len(panels))
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
    figure.axes[0].legend(loc="upper left", frameon=False, fontsize=9, ncols=4)
    hidden = len(data.series) * len(data.targets) - len(panels)
    if hidden:
        figure.supxlabel(f"and {hidden} more", fontsize=9, color=GREY)
    _save(figure, path)


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
            label=f"missing ({len(missing):,})",
        )


def plot_steps(path: Path, data: StepData) -> None:
    """Draw the lengths of the sequences of each split, and the first training sequence, into a PNG file.

    Raises:
        CheckpointError: If the file cannot be written.
    """
    figure = new_figure(11, 4)
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    _style(left, f"{data.name}: steps of a sequence")
    lengths = {split: np.asarray(data.split(split).lengths) for split in SPLITS}
    # The same bins for all splits, so that their shares can be compared.
    edges = np.histogram_bin_edges(np.concatenate(list(lengths.values())), bins=30)
    for split, steps in lengths.items():
        share = np.full(len(steps), 1 / max(len(steps), 1))
        left.hist(steps, edges, weights=share, color=_SHADES[split], alpha=0.5, label=f"{split} ({len(steps):,})")
    left.set_ylabel("share of the split")
    left.legend(frameon=False, fontsize=9)
    sample = data.train.gather([0])
    first = sample.x[0, : min(int(sample.lengths[0]), 400)]
    _style(right, "first training sequence")
    if data.tokens:
        right.plot(first, ".", color=BLUE, markersize=3)
        right.set_ylabel("token")
    elif first.shape[1] > _MOST_TARGETS:
        right.imshow(first.T, aspect="auto", origin="lower", cmap="Blues", interpolation="nearest")
        right.set_ylabel("channel")
        right.grid(False)
    else:
        right.plot(first, linewidth=1, label=data.features)
        right.legend(frameon=False, fontsize=9)
    right.set_xlabel("step")
    _save(figure, path)
