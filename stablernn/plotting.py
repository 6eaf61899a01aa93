"""Figures of a run, as PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stablernn.atomic_files import write_bytes

# matplotlib takes half a second to load, so it is imported when the first figure is drawn.
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]
Record = dict[str, Any]

# Okabe and Ito's palette, which people with any common form of color blindness can distinguish.
BLUE, ORANGE, GREEN, BLACK, GREY = "#0072B2", "#D55E00", "#009E73", "#222222", "#8A8A8A"
_COLORS = (BLUE, ORANGE, GREEN, BLACK, "#CC79A7", "#56B4E9", "#E69F00", GREY)
_DASHES = ("-", "--", ":", "-.")
_MIN_RATE = 1e-6
"""The smallest contraction rate that is drawn; smaller ones would have an exponent near minus infinity."""
_THEOREM_1_TERMS = (("mu2_A",), ("norm_W",), ("mu2_A", "norm_W"))
"""The damping term, the recurrent term and their sum, which theorem 1 requires to be negative."""
_MAX_LABELED_CLASSES = 25
"""Larger confusion matrices have no labels and counts, which would not be legible."""


def plot_loss(path: Path, records: Sequence[Record], *, title: str) -> None:
    """Plot the mean training loss of each epoch, and the learning rate below it."""
    figure = new_figure(7, 4.6)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    epochs = [record["epoch"] for record in records]
    _style(axes, title)
    losses = [record["train_loss"] for record in records]
    axes.plot(epochs, losses, color=BLUE, marker="o", markersize=3)
    # A logarithmic axis once the losses span more than a factor of 20.
    if min(losses) > 0 and max(losses) > 20 * min(losses):
        axes.set_yscale("log")
    axes.set_ylabel("training loss")
    _style(below, "")
    below.plot(epochs, [record["lr"] for record in records], color=GREY)
    below.set_ylabel("learning rate")
    below.set_ylim(bottom=0)
    below.ticklabel_format(axis="y", style="sci", scilimits=(-2, 3))
    _epochs_axis(below)
    _save(figure, path)


def plot_metric(path: Path, records: Sequence[Record], name: str, *, best_epoch: int, title: str) -> None:
    """Plot the validation metric of each epoch, and mark the epoch of the best weights."""
    figure = new_figure(7, 4)
    axes = figure.subplots()
    values = {record["epoch"]: record["validation"].get(name) for record in records}
    defined = {epoch: value for epoch, value in values.items() if value is not None}
    _style(axes, title)
    axes.plot(list(defined), list(defined.values()), color=BLUE, marker="o", markersize=3)
    if best_epoch in defined:
        best = defined[best_epoch]
        axes.plot(
            [best_epoch], [best], marker="o", markersize=9, color=ORANGE, markerfacecolor="none", markeredgewidth=2
        )
        axes.axhline(best, color=ORANGE, linewidth=0.8, linestyle=":")
        axes.set_title(f"best {best:.4g} in epoch {best_epoch}", loc="right", color=ORANGE, fontsize=9)
    axes.set_ylabel(f"validation {name.replace('_', ' ')}")
    _epochs_axis(axes)
    _save(figure, path)


def plot_stability(path: Path, records: Sequence[Record], *, best_epoch: int, title: str) -> None:
    """Plot the certified exponent after each epoch and, for cells with a linear term, the terms of theorem 1.

    The exponent is the logarithm of the contraction rate, which no Lyapunov exponent of the layers exceeds. The right
    panel shows the largest figures over layers and ensemble members.
    """
    rates = {record["epoch"]: record["stability"]["contraction_rate"] for record in records}
    linear = [record for record in records if any("mu2_A" in name for name in record["stability"]["figures"])]
    figure = new_figure(10 if linear else 7, 4)
    left, *right = figure.subplots(1, 2 if linear else 1, squeeze=False)[0]
    exponents = {epoch: float(np.log(max(rate, _MIN_RATE))) for epoch, rate in rates.items()}
    _style(left, title)
    left.plot(list(exponents), list(exponents.values()), color=BLUE, marker="o", markersize=3)
    lowest, highest = min(exponents.values()), max(exponents.values())
    # Keep zero visible, with a margin even if all exponents are equal.
    margin = 0.08 * max(highest - lowest, abs(lowest), abs(highest), 1e-3)
    left.set_ylim(min(lowest, 0) - margin, max(highest, 0) + margin)
    _mark_zero(left, best_epoch if best_epoch in rates else None)
    if best_epoch in rates:
        rate_title = f"rate {rates[best_epoch]:.5g} in epoch {best_epoch}"
        left.set_title(rate_title, loc="right", color=ORANGE, fontsize=9)
    left.set_ylabel("bound of all exponents, per step")
    for axes in right:
        _style(axes, "of the differential equation")
        epochs = [record["epoch"] for record in linear]
        damping, recurrence, total = ([_largest_sum(record, *names) for record in linear] for names in _THEOREM_1_TERMS)
        axes.plot(epochs, recurrence, color=GREY, linewidth=1.2, linestyle="--", label="norm(W)")
        axes.plot(epochs, damping, color=GREY, linewidth=1.2, label="mu2(A)")
        axes.plot(epochs, total, color=BLUE, marker="o", markersize=3, label="their sum: theorem 1 (a) below 0")
        _mark_zero(axes, best_epoch if best_epoch in rates else None)
        axes.set_ylabel("1 / unit of time")
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    for axes in (left, *right):
        _epochs_axis(axes)
    _save(figure, path)


def _largest_sum(record: Record, *names: str) -> float:
    """Return the largest sum of the named figures over layers and ensemble members."""
    figures = record["stability"]["figures"]
    first, *others = names
    # A key is the layer and member, if there are several, followed by the name of the figure.
    prefixes = [key.removesuffix(first) for key in figures if key.split()[-1] == first]
    return float(max(sum(figures[prefix + name] for name in (first, *others)) for prefix in prefixes))


def _mark_zero(axes: Axes, best_epoch: int | None) -> None:
    """Shade the area below zero, where differences decay, and mark the best epoch."""
    axes.margins(x=0.02)
    axes.axhline(0, color=BLACK, linewidth=1)
    low, high = axes.get_ylim()
    axes.axhspan(min(low, 0), 0, color=GREEN, alpha=0.08, linewidth=0)
    axes.set_ylim(low, high)
    if best_epoch is not None:
        axes.axvline(best_epoch, color=ORANGE, linewidth=0.8, linestyle=":")


def plot_confusion(path: Path, counts: Array, labels: Sequence[str], *, title: str) -> None:
    """Plot a confusion matrix: rows are true classes, shaded by the share of the row and labeled with counts."""
    classes = len(labels)
    side = min(12.0, 3.2 + 0.42 * classes)
    figure = new_figure(side + 0.8, side)
    axes = figure.subplots()
    # Shares of each row; a class without samples has 0.
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true class")
    if classes <= _MAX_LABELED_CLASSES:
        axes.set_xticks(range(classes), labels, rotation=45 if max(map(len, labels)) > 3 else 0)
        axes.set_yticks(range(classes), labels)
        for row, column in zip(*np.nonzero(counts), strict=True):
            text_color = "white" if shares[row, column] > 0.5 else BLACK
            axes.text(column, row, str(counts[row, column]), ha="center", va="center", color=text_color, fontsize=9)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(title, loc="left", fontsize=11)
    for spine in axes.spines.values():
        spine.set_visible(False)
    _save(figure, path)


def plot_reliability(path: Path, table: dict[str, Array], *, ece: float, title: str) -> None:
    """Plot the accuracy of predictions against their probability, and the number of samples at each probability.

    Args:
        path: PNG file.
        table: Result of :func:`stablernn.training.evaluation.metrics.reliability`.
        ece: Expected calibration error, shown above the plot.
        title: Title of the figure.
    """
    figure = new_figure(5.4, 6)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    bins = len(table["samples"])
    middle = (np.arange(bins) + 0.5) / bins
    _style(axes, title)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":", label="stated = right")
    filled = table["samples"] > 0
    accuracy, confidence = table["accuracy"][filled], table["confidence"][filled]
    axes.bar(middle[filled], accuracy, width=0.92 / bins, color=BLUE, alpha=0.35, linewidth=0)
    axes.plot(confidence, accuracy, color=BLUE, marker="o", markersize=5, label="measured")
    axes.set_ylabel("share that is right")
    axes.set_ylim(0, 1.02)
    axes.set_title(f"ECE {ece:.3f}", loc="right", color=ORANGE, fontsize=9)
    axes.legend(loc="upper left", frameon=False, fontsize=9)
    _style(below, "")
    below.bar(middle, table["samples"], width=0.92 / bins, color=GREY, linewidth=0)
    below.set_ylabel("samples")
    _integer_ticks(below.yaxis, max_ticks=3)
    below.set_xlabel("probability of the predicted class")
    below.set_xlim(0, 1)
    _save(figure, path)


def plot_early(path: Path, rows: Sequence[Record], *, majority: float | None, title: str) -> None:
    """Plot accuracy and macro F1 against the observed share of each sequence.

    Args:
        path: PNG file.
        rows: Result of :func:`stablernn.training.evaluation.early_classification.early`.
        majority: Accuracy of the most frequent class, drawn as a baseline; None: no baseline.
        title: Title of the figure.
    """
    figure = new_figure(7, 4)
    axes = figure.subplots()
    _style(axes, title)
    shares = [100 * row["share"] for row in rows]
    for name, color, marker in (("accuracy", BLUE, "o"), ("macro_f1", GREEN, "s")):
        axes.plot(
            shares, [row[name] for row in rows], color=color, marker=marker, markersize=4, label=_format_name(name)
        )
    if majority is not None:
        axes.axhline(majority, color=GREY, linewidth=1, linestyle=":", label="most frequent class")
    axes.set_xlabel("share of the sequence seen, %")
    axes.set_ylabel("score")
    axes.set_xlim(0, 102)
    axes.set_ylim(0, 1.15)  # room for the legend
    axes.set_yticks(np.arange(6) / 5)
    axes.legend(loc="upper left", frameon=False, ncols=3, fontsize=9)
    _save(figure, path)


def plot_forecast(
    path: Path,
    *,
    history: Array,
    truth: Array,
    mean: Array,
    naive: Array,
    times: Array,
    interval: tuple[Array, Array] | None = None,
    coverage: float | None = None,
    ylabel: str,
    title: str,
) -> None:
    """Plot one window of one target: history, true values and forecast.

    Args:
        path: PNG file.
        history: Input of the model, (context,).
        truth: True values, (horizon,), NaN where missing.
        mean: Forecast, (horizon,).
        naive: Seasonal naive forecast, (horizon,).
        times: Timestamps, (context + horizon,).
        interval: Lower and upper bound, (horizon,) each.
        coverage: Share of true values that the interval should contain, between 0 and 1.
        ylabel: Name of the target.
        title: Title of the figure.
    """
    figure = new_figure(9, 4)
    axes = figure.subplots()
    past, future = times[: len(history)], times[len(history) :]
    _style(axes, title)
    axes.plot(past, history, color=GREY, linewidth=1.2, label="history")
    axes.plot(future, truth, color=BLACK, linewidth=1.6, label="truth")
    axes.plot(future, naive, color=GREEN, linewidth=1, linestyle="--", label="seasonal naive")
    if interval is not None:
        label = "interval" if coverage is None else f"{coverage:.0%} interval"
        axes.fill_between(future, *interval, color=BLUE, alpha=0.18, linewidth=0, label=label)
    axes.plot(future, mean, color=BLUE, linewidth=1.8, label="forecast")
    axes.axvline(future[0], color=GREY, linewidth=0.8, linestyle=":")
    axes.set_ylabel(ylabel)
    axes.margins(x=0.01)
    axes.legend(loc="upper left", frameon=False, ncols=5, fontsize=9, bbox_to_anchor=(0, 1.0))
    lower, upper = axes.get_ylim()
    axes.set_ylim(lower, upper + 0.12 * (upper - lower))  # room for the legend
    _save(figure, path)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches, whose axes are laid out without overlaps."""
    from matplotlib.figure import Figure

    # A Figure without pyplot draws with Agg: no display, no global state, safe in any thread.
    return Figure(figsize=(width, height), layout="constrained")


def _style(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(True, color="#E4E4E4", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _format_name(name: str) -> str:
    return {"macro_f1": "macro F1"}.get(name, name.replace("_", " "))


def line_styles(count: int) -> list[tuple[str, str]]:
    """Return colors and dashes: each color once with whole lines, then again with dashed ones."""
    size = len(_COLORS)
    return [(_COLORS[number % size], _DASHES[number // size % len(_DASHES)]) for number in range(count)]


def _epochs_axis(axes: Axes) -> None:
    axes.set_xlabel("epoch")
    _integer_ticks(axes.xaxis)


def _integer_ticks(axis: Axis, max_ticks: int = 10) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins=max_ticks, integer=True))


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, png_bytes(figure, dpi=120))


def png_bytes(figure: Figure, dpi: int) -> bytes:
    """Return a figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def svg_bytes(figure: Figure) -> bytes:
    """Return a figure as an SVG file, which is the same for the same figure."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    # Element ids are random, and the date is that of today, unless both are set.
    with rc_context({"svg.hashsalt": "stablernn"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
