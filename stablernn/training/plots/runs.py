"""Plot of several runs: their losses and validation metrics by epoch, over one another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stablernn.errors import ConfigError
from stablernn.plotting import (
    _LOG_RATIO,
    GREY,
    _epochs_axis,
    _format_name,
    _legend_below,
    _save,
    _style,
    line_styles,
    new_figure,
)
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.stored_runs.stored_run import StoredRun

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEGEND_COLUMNS = 3


def plot_runs(path: Path, runs: Sequence[StoredRun], names: Sequence[str]) -> None:
    """Draw training loss and validation metric of each epoch of several runs into a PNG file.

    A circle marks the best epoch of a run. If no run was validated, only the losses are drawn.

    Args:
        path: PNG file to write.
        runs: Runs with epochs.
        names: Their names in the legend.

    Raises:
        ConfigError: If a run has no epochs, or the runs were not validated by a common metric.
        CheckpointError: If the file cannot be written.
    """
    for run in runs:
        if not run.history:
            raise ConfigError(f"The run in '{run.path}' has no epochs yet: there is nothing to draw. Leave it out.")
    metric = common_metric(runs)
    rows = -(-len(runs) // _LEGEND_COLUMNS)
    figure = new_figure(10 if metric else 6, 4 + 0.22 * rows)
    panels = figure.subplots(1, 2 if metric else 1, squeeze=False)[0]
    _draw_losses(panels[0], runs, names)
    if metric is not None:
        _draw_metric(panels[1], runs, metric)
    for axes in panels:
        _epochs_axis(axes)
    _legend_below(figure, ncols=_LEGEND_COLUMNS)
    _save(figure, path)


def common_metric(runs: Sequence[StoredRun]) -> str | None:
    """Return the metric to compare runs by: that of the first one, or another that all validated runs have.

    None if no run was validated.

    Raises:
        ConfigError: If validated runs have no metric in common.
    """
    validated = [run for run in runs if _metrics(run)]
    if not validated:
        return None
    headlines = [run.metric for run in validated if run.metric is not None]
    # Headlines come first; other metrics are tried in the order of the first run.
    for metric in (*headlines, *_metrics(validated[0])):
        if all(metric in _metrics(run) for run in validated):
            return metric
    first = validated[0]
    other = next(run for run in validated if not set(_metrics(run)) & set(_metrics(first)))
    raise ConfigError(
        f"The runs in '{first.path}' and '{other.path}' have no validation metric in common: they are for "
        f"'{first.task}' and '{other.task}'. Draw runs of one task."
    )


def _metrics(run: StoredRun) -> tuple[str, ...]:
    """Return the names of the scores of a run's epochs, in their order."""
    return tuple(dict.fromkeys(name for epoch in run.history for name in epoch.validation))


def _draw_losses(axes: Axes, runs: Sequence[StoredRun], names: Sequence[str]) -> None:
    _style(axes, "training")
    every_loss: list[float] = []
    for run, name, (color, dash) in zip(runs, names, line_styles(len(runs)), strict=True):
        losses = {epoch.epoch: epoch.train_loss for epoch in run.history if epoch.train_loss is not None}
        every_loss += losses.values()
        axes.plot(
            list(losses), list(losses.values()), color=color, linestyle=dash, marker="o", markersize=3, label=name
        )
    if every_loss and min(every_loss) > 0 and max(every_loss) > _LOG_RATIO * min(every_loss):
        axes.set_yscale("log")
    axes.set_ylabel("training loss")


def _draw_metric(axes: Axes, runs: Sequence[StoredRun], metric: str) -> None:
    better = direction(metric)
    _style(axes, f"validation, {better} is better" if better else "validation")
    axes.set_title("circles: best epochs", loc="right", color=GREY, fontsize=9)
    for run, (color, dash) in zip(runs, line_styles(len(runs)), strict=True):
        scores = {epoch.epoch: epoch.validation[metric] for epoch in run.history if metric in epoch.validation}
        defined = {epoch: score for epoch, score in scores.items() if score is not None}
        axes.plot(list(defined), list(defined.values()), color=color, linestyle=dash, marker="o", markersize=3)
        if run.best_epoch in defined:
            axes.plot(
                run.best_epoch,
                defined[run.best_epoch],
                color=color,
                marker="o",
                markersize=9,
                markerfacecolor="none",
                markeredgewidth=2,
            )
    axes.set_ylabel(f"validation {_format_name(metric)}")
