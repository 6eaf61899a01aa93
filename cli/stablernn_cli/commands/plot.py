"""`stablernn plot`: a plot of a run or of a registry version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stablernn_cli.errors import UsageError
from stablernn_cli.options import (
    Device,
    DeviceOption,
    JsonOption,
    ScoredDataOption,
    ScoredStampsOption,
    Split,
    SplitOption,
    Stamps,
    TargetArgument,
    check_figure_path,
    option,
)
from stablernn_cli.output import Output
from stablernn_cli.targets import is_run, open_target

if TYPE_CHECKING:
    from stablernn.training.plots import WindowChoice

Kind = Literal["forecast", "confusion", "reliability", "early", "simulation", "loss", "metric"]

CURVES: tuple[Kind, ...] = ("loss", "metric")
"""Kinds of plots of a run's history."""


def plot(
    context: typer.Context,
    target: TargetArgument,
    destination: Annotated[Path, option("PNG file to write.", "--output", metavar="FILE")],
    kind: Annotated[
        Kind | None,
        option(
            "Kind of plot: a forecast; a simulation; confusion matrix, reliability or early scores of a "
            "classification; loss or metric of a run by epoch. Default: the first one of the task."
        ),
    ] = None,
    data: ScoredDataOption = None,
    stamps: ScoredStampsOption = None,
    split: SplitOption = "test",
    series: Annotated[str | None, option("Forecast: unique_id of a series; default: the last one.")] = None,
    window: Annotated[
        int | None,
        option("Forecast: number of the window in the series, from 1; default: the last one."),
    ] = None,
    channel: Annotated[str | None, option("Forecast: name of the target; default: the first one.")] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Draw a forecast, scores or the curves of a run

    A forecast is drawn with its history, its widest interval, the truth and the seasonal naive forecast.

    Example: stablernn plot load@production --series shop_1 --output forecast.png
    """
    output = Output.of(context, as_json)
    check_figure_path(destination, "--output")
    document: dict[str, Any] = {"target": target, "output": str(destination)}
    with output.status(f"Drawing {target} ..."):
        if kind in CURVES:
            _draw_curve(target, kind, destination)
            document["kind"] = kind
        else:
            from stablernn.training.plots import WindowChoice

            choice = WindowChoice(series, window, channel)
            document |= _draw(target, kind, destination, (data, stamps), split, choice, device)
    if as_json:
        output.document(document)
    else:
        output.note(f"Wrote {destination}.")


def _draw_curve(target: str, kind: Kind, path: Path) -> None:
    """Draw the loss or the metric of a run by epoch.

    Raises:
        UsageError: If the target is not a run.
        stablernn.errors.CheckpointError: If the run has no epochs, or no metric.
    """
    # A version has no history of its training.
    if not is_run(target):
        raise UsageError(
            f"--kind {kind} needs a run directory, got '{target}'. Name the run that it was exported from."
        )
    from stablernn.errors import CheckpointError
    from stablernn.plotting import plot_loss, plot_metric
    from stablernn.training.loop.checkpoint import load_checkpoint
    from stablernn.training.run_directory import RunDirectory

    run = RunDirectory(Path(target))
    records = run.records()
    if not records:
        raise CheckpointError(f"The run in '{target}' has no epochs yet: there is nothing to draw.")
    if kind == "loss":
        plot_loss(path, records, title=run.path.name)
        return
    best = load_checkpoint(run.checkpoint("best")).state
    if not any(best["metric"] in record["validation"] for record in records):
        raise CheckpointError(f"The run in '{target}' was not validated: it has no metric to draw.")
    plot_metric(path, records, best["metric"], best_epoch=best["epoch"], title=run.path.name)


def _draw(
    target: str,
    kind: Kind | None,
    path: Path,
    data_source: tuple[str | None, Stamps | None],
    split: Split,
    window: WindowChoice,
    device: Device,
) -> dict[str, Any]:
    """Draw a forecast or scores, and return the facts about the plot.

    Raises:
        UsageError: If an option does not fit the task or the data.
    """
    from stablernn.training.plots import WindowRangeError
    from stablernn.training.tasks import task_for, task_type

    model = open_target(target, device)
    kinds = (*task_type(model.task).figures, *CURVES)
    plot_kind = kinds[0] if kind is None else kind
    # The default of a task without plots of its own is a curve, which needs a run.
    if plot_kind not in kinds or plot_kind in CURVES:
        raise UsageError(
            f"--kind must be one of {', '.join(kinds)} for the task '{model.task}' of {model.name}, "
            f"got {'none' if kind is None else kind}."
        )
    if plot_kind != "forecast" and not window.is_default:
        raise UsageError(f"--series, --window and --channel are for forecasts, and {model.name} classifies.")
    data = model.load_data(*data_source)
    try:
        facts = task_for(data).draw_figure(plot_kind, path, model.predictor, split, model.names, window)
    except WindowRangeError as error:
        # The message begins with the name of the option.
        raise UsageError(f"--{error}") from error
    return {"kind": plot_kind, "split": split, **facts}
