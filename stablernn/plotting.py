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
    from matplotlib.artist import Artist
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
_LOG_RATIO = 20
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
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
    if min(losses) > 0 and max(losses) > _LOG_RATIO * min(losses):
        axes.set_yscale("log")
    axes.set_ylabel("training loss")
    _style(below, "")
    # A line of a single epoch has nothing but its marker.
    below.plot(
        epochs, [record["lr"] for record in records], color=GREY, marker="o", markersize=3 if len(epochs) == 1 else 0
    )
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


def stability_figure(records: Sequence[Record], *, best_epoch: int, title: str) -> Figure:
    """Draw the proved contraction rate of each epoch and, for cells with a linear term, the terms of theorem 1.

    The right panel shows the largest figures over layers and ensemble members.

    Args:
        records: Lines of ``metrics.jsonl`` with a contraction rate; the smallest one that is drawn is 1e-6.
        best_epoch: The epoch of the best weights, which is marked.
        title: Title of the figure.
    """
    linear = [record for record in records if any("mu2_A" in name for name in record["stability"]["figures"])]
    figure = new_figure(11 if linear else 7, 4.4)
    left, *right = figure.subplots(1, 2 if linear else 1, squeeze=False)[0]
    _draw_rates(left, records, best_epoch, title)
    for axes in right:
        _draw_theorem_1(axes, linear, best_epoch)
    for axes in (left, *right):
        _epochs_axis(axes)
    _legend_below(figure, ncols=3 if linear else 2)
    return figure


def _draw_rates(axes: Axes, records: Sequence[Record], best_epoch: int, title: str) -> None:
    rates = {record["epoch"]: record["stability"]["contraction_rate"] for record in records}
    _style(axes, title)
    drawn = [max(rate, _MIN_RATE) for rate in rates.values()]
    axes.plot(list(rates), drawn, color=BLUE, marker="o", markersize=3, label="proved rate, quick check of each epoch")
    if max(1.0, *drawn) > _LOG_RATIO * min(1.0, *drawn):
        axes.set_yscale("log")
    else:
        # Ticks such as 0.9965, not differences from a number above the axis.
        axes.ticklabel_format(axis="y", useOffset=False)
    _mark_limit(axes, 1.0, best_epoch if best_epoch in rates else None, "below 1: disturbances of the state fade")
    if best_epoch in rates:
        best = f"rate {rates[best_epoch]:.5g} in the best epoch, {best_epoch}"
        axes.set_title(best, loc="right", color=ORANGE, fontsize=9)
    axes.set_ylabel("a disturbance grows per step\nby at most this factor")


def _draw_theorem_1(axes: Axes, records: Sequence[Record], best_epoch: int) -> None:
    _style(axes, "damping against recurrent weights")
    epochs = [record["epoch"] for record in records]
    damping, recurrence, total = ([_largest_sum(record, *names) for record in records] for names in _THEOREM_1_TERMS)
    axes.plot(epochs, recurrence, color=GREY, linewidth=1.2, linestyle="--", label="recurrent weights, norm(W)")
    axes.plot(epochs, damping, color=GREY, linewidth=1.2, label="damping, mu2(A)")
    axes.plot(epochs, total, color=GREEN, marker="s", markersize=3, label="their sum, theorem 1 (a)")
    marked = best_epoch if best_epoch in epochs else None
    _mark_limit(axes, 0.0, marked, "below 0: the differential equation is stable")
    axes.set_ylabel("growth rate, 1 / unit of time")


def _largest_sum(record: Record, *names: str) -> float:
    """Return the largest sum of the named figures over layers and ensemble members."""
    figures = record["stability"]["figures"]
    first, *others = names
    # A key is the layer and member, if there are several, followed by the name of the figure.
    prefixes = [key.removesuffix(first) for key in figures if key.split()[-1] == first]
    return float(max(sum(figures[prefix + name] for name in (first, *others)) for prefix in prefixes))


def _mark_limit(axes: Axes, limit: float, best_epoch: int | None, label: str) -> None:
    """Shade the area below a limit, which stays visible, name it in the legend, and mark the best epoch."""
    axes.margins(x=0.02)
    axes.axhline(limit, color=BLACK, linewidth=1)
    low, high = axes.get_ylim()
    if axes.get_yscale() == "linear":
        # Room on both sides of the limit even if all values are on one side, or equal.
        margin = 0.08 * max(high - low, 1e-3)
        low, high = min(low, limit - margin), max(high, limit + margin)
    axes.axhspan(low, limit, color=GREEN, alpha=0.08, linewidth=0, label=label)
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


def reliability_figure(table: dict[str, Array], *, ece: float, title: str) -> Figure:
    """Draw the accuracy of predictions against their probability, and the number of samples at each probability.

    Args:
        table: Result of :func:`stablernn.training.evaluation.metrics.reliability`.
        ece: Expected calibration error, shown above the plot.
        title: Title of the figure.
    """
    figure = new_figure(6.4, 6.4)
    axes, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    bins = len(table["samples"])
    middle = (np.arange(bins) + 0.5) / bins
    _style(axes, title)
    axes.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":", label="perfect calibration")
    filled = table["samples"] > 0
    accuracy, confidence = table["accuracy"][filled], table["confidence"][filled]
    axes.bar(middle[filled], accuracy, width=0.92 / bins, color=BLUE, alpha=0.35, linewidth=0)
    # Without samples nothing is measured: an accuracy of 0 would look the same.
    if not filled.all():
        empty = middle[~filled]
        axes.bar(empty, np.ones(len(empty)), width=0.92 / bins, color=GREY, alpha=0.15, linewidth=0, label="no samples")
    axes.plot(confidence, accuracy, color=BLUE, marker="o", markersize=5, label="measured")
    axes.set_ylabel("accuracy")
    axes.set_ylim(0, 1.02)
    axes.set_title(f"expected calibration error {ece:.3f}", loc="right", color=ORANGE, fontsize=9)
    _style(below, "")
    bars = below.bar(middle, table["samples"], width=0.92 / bins, color=GREY, linewidth=0)
    # A point above that stands for one sample says little; its bar is too low to be seen.
    below.bar_label(bars, [f"{count:,}" if count else "" for count in table["samples"]], fontsize=7, padding=1)
    below.margins(y=0.2)
    below.set_ylabel("samples")
    _integer_ticks(below.yaxis, max_ticks=3)
    below.set_xlabel("probability of the predicted class")
    below.set_xlim(0, 1)
    _legend_below(figure, ncols=3)
    return figure


def plot_early(path: Path, rows: Sequence[Record], *, majority: float | None, title: str) -> None:
    """Plot accuracy and macro F1 against the observed share of each sequence.

    Args:
        path: PNG file.
        rows: Result of :func:`stablernn.training.tasks.classify.early`.
        majority: Accuracy of the most frequent class, drawn as a baseline; None: no baseline.
        title: Title of the figure.
    """
    figure = new_figure(7, 4)
    axes = figure.subplots()
    _style(axes, title)
    shares = [100 * row["share"] for row in rows]
    # Dashed, because both are often equal.
    for name, color, marker, dash in (("accuracy", BLUE, "o", "-"), ("macro_f1", GREEN, "s", "--")):
        scores = [row[name] for row in rows]
        axes.plot(shares, scores, color=color, marker=marker, markersize=4, linestyle=dash, label=_format_name(name))
    if majority is not None:
        axes.axhline(majority, color=GREY, linewidth=1, linestyle=":", label="most frequent class")
    axes.set_xlabel("share of the sequence seen, %")
    axes.set_ylabel("score")
    axes.set_xlim(0, 102)
    axes.set_ylim(0, 1.02)
    axes.set_yticks(np.arange(6) / 5)
    _legend_below(figure, ncols=3)
    _save(figure, path)


def forecast_figure(
    *,
    history: Array,
    truth: Array,
    mean: Array,
    naive: Array,
    times: Array,
    interval: tuple[Array, Array] | None,
    coverage: float | None,
    ylabel: str,
    title: str,
) -> Figure:
    """Draw one window of one target: history, true values and forecast.

    Args:
        history: Input of the model, (context,).
        truth: True values, (horizon,), NaN where missing.
        mean: Forecast, (horizon,).
        naive: Seasonal naive forecast, (horizon,).
        times: Timestamps, (context + horizon,).
        interval: Lower and upper bound, (horizon,) each; None for none.
        coverage: Share of true values that the interval should contain, between 0 and 1.
        ylabel: Name of the target.
        title: Title of the figure.
    """
    figure = new_figure(9, 4.2)
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
    axes.axvline(future[0], color=GREY, linewidth=0.8, linestyle=":", label="first forecast step")
    axes.set_ylabel(ylabel)
    axes.margins(x=0.01)
    _time_axis(axes, times)
    _legend_below(figure, ncols=6)
    return figure


def plot_contributions(
    path: Path,
    values: Sequence[Array],
    contributions: Array,
    bounds: Array,
    features: Sequence[str],
    *,
    titles: Sequence[str],
    unit: str,
) -> None:
    """Plot series over the contributions of their channels and stretches.

    Args:
        path: PNG file.
        values: (time, channels) of each series that is drawn.
        contributions: (series, stretches, channels), of these and further series.
        bounds: (series, stretches + 1), the first step of each stretch and the end of the last.
        features: Names of the channels.
        titles: Title of each series.
        unit: Meaning of the contributions, beside their scale.
    """
    figure = new_figure(8, max(2.0, 0.9 + 0.45 * len(features)) * len(values) + 0.6)
    limit = float(np.abs(contributions[: len(values)]).max()) or 1.0
    panels = figure.subplots(len(values), 1, squeeze=False)[:, 0]
    shades = []
    for number, (axes, series, title) in enumerate(zip(panels, values, titles, strict=True)):
        _style(axes, title)
        edges = bounds[number] + 0.5
        shade = axes.pcolormesh(
            edges,
            np.arange(len(features) + 1),
            contributions[number].T,
            cmap="RdBu_r",
            vmin=-limit,
            vmax=limit,
            alpha=0.7,
        )
        shades.append(shade)
        # Each channel runs within its row; fmin and fmax pass over missing values.
        low, high = np.fmin.reduce(series, axis=0), np.fmax.reduce(series, axis=0)
        heights = 0.9 - 0.8 * (series - low) / np.where(high > low, high - low, 1)
        axes.plot(np.arange(1, len(series) + 1), np.arange(len(features)) + heights, color=BLACK, linewidth=0.8)
        axes.set_yticks(np.arange(len(features)) + 0.5, features)
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(len(features), 0)
    panels[-1].set_xlabel("step")
    figure.colorbar(shades[0], ax=list(panels), label=unit)
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
    low, high = axes.get_xlim()
    if high - low < 1:
        # A single epoch, around which there would be ticks at fractions.
        middle = round((low + high) / 2)
        axes.set_xlim(middle - 1, middle + 1)


def _time_axis(axes: Axes, times: Array) -> None:
    """Name the axis of times, and label dates with all that is needed to read them, the year once."""
    if not np.issubdtype(times.dtype, np.datetime64):
        axes.set_xlabel("time, whole numbers")
        return
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(maxticks=9)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.set_xlabel("time")


def _legend_below(figure: Figure, *, ncols: int, handles: Sequence[Artist] = ()) -> None:
    """Put one legend of all panels below them, where it covers no data.

    Args:
        figure: The figure.
        ncols: Columns, fewer if they are wider than the figure.
        handles: What the legend shows; default: everything with a label in any panel, each label once.
    """
    entries: dict[str, Any] = {str(handle.get_label()): handle for handle in handles}
    if not entries:
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                entries.setdefault(label, handle)
    for columns in range(ncols, 0, -1):
        legend = figure.legend(
            entries.values(), list(entries), loc="outside lower center", ncols=columns, frameon=False, fontsize=9
        )
        if columns == 1 or legend.get_window_extent().width <= figure.bbox.width:
            return
        legend.remove()


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
