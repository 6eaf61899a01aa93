"""`stablernn plot`: a plot of a run or of a registry version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
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
)
from stablernn_cli.output import Output, format_names
from stablernn_cli.targets import Target, is_run, open_target

if TYPE_CHECKING:
    from stablernn.data import ClassificationData, ForecastData

Kind = Literal["forecast", "confusion", "reliability", "early", "loss", "metric"]

KINDS: dict[str, tuple[Kind, ...]] = {
    "forecast": ("forecast", "loss", "metric"),
    "classify": ("confusion", "reliability", "early", "loss", "metric"),
}
"""Kinds of plots for each task, the default first."""
CURVES: tuple[Kind, ...] = ("loss", "metric")
"""Kinds of plots of a run's history."""


@dataclass(frozen=True)
class Window:
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


def plot(
    context: typer.Context,
    target: TargetArgument,
    destination: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="PNG file to write.", show_default=False)
    ],
    kind: Annotated[
        Kind | None,
        typer.Option(
            help="Kind of plot: a forecast; confusion matrix, reliability or early scores of a classification; loss or "
            "metric of a run by epoch. Default: forecast or confusion.",
            show_default=False,
        ),
    ] = None,
    data: ScoredDataOption = None,
    stamps: ScoredStampsOption = None,
    split: SplitOption = "test",
    series: Annotated[
        str | None, typer.Option(help="Forecast: unique_id of a series; default: the last one.", show_default=False)
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            help="Forecast: number of the window in the series, from 1; default: the last one.", show_default=False
        ),
    ] = None,
    channel: Annotated[
        str | None, typer.Option(help="Forecast: name of the target; default: the first one.", show_default=False)
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Draw a forecast, scores or the curves of a run

    A forecast is drawn with its history, its widest interval, the truth and the seasonal naive forecast.

    Example: stablernn plot load@production --series shop_1 --output forecast.png
    """
    output = Output.of(context, as_json)
    # Both checks come before the model runs.
    if destination.suffix.lower() != ".png":
        raise UsageError(f"--output must end in .png, got '{destination}'.")
    if not destination.absolute().parent.is_dir():
        raise UsageError(f"There is no folder '{destination.parent}'. Make it, or choose another --output.")
    document: dict[str, Any] = {"target": target, "output": str(destination)}
    with output.status(f"Drawing {target} ..."):
        if kind in CURVES:
            _draw_curve(target, kind, destination)
            document["kind"] = kind
        else:
            selection = Window(series, window, channel)
            document |= _draw(target, kind, destination, (data, stamps), split, selection, device)
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
    window: Window,
    device: Device,
) -> dict[str, Any]:
    """Draw a forecast or scores, and return the facts about the plot.

    Raises:
        UsageError: If an option does not fit the task.
    """
    from stablernn.data import ClassificationData, ForecastData
    from stablernn.training.evaluation.scorers import open_classification

    model = open_target(target, device)
    kinds = KINDS.get(model.task, CURVES)
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
    if isinstance(data, ForecastData):
        return {"kind": plot_kind, "split": split, **_draw_forecast(model, data, path, split, window)}
    assert isinstance(data, ClassificationData)
    scorer = open_classification(data, split, labels=model.labels, features=model.features)
    _draw_classes(model, data, scorer, path, split, plot_kind)
    return {"kind": plot_kind, "split": split}


def _draw_classes(model: Target, data: ClassificationData, scorer: Any, path: Path, split: Split, kind: Kind) -> None:
    from stablernn.plotting import plot_early
    from stablernn.training.evaluation.baselines import Baselines
    from stablernn.training.evaluation.early_classification import early
    from stablernn.training.evaluation.predictors import predict
    from stablernn.training.plots.figures import draw_confusion, draw_reliability

    if kind == "early":
        # Accuracy of the most frequent class, drawn as a floor.
        majority = Baselines(data).scores(split).get("majority", {}).get("accuracy")
        plot_early(path, early(model.predictor, scorer), majority=majority, title=f"{data.name}, {split}")
        return
    draw = draw_confusion if kind == "confusion" else draw_reliability
    draw(path, data, scorer, predict(model.predictor, scorer.source), split)


def _draw_forecast(model: Target, data: ForecastData, path: Path, split: Split, window: Window) -> dict[str, Any]:
    """Draw one window, and return its series, its number and the number of windows of the series."""
    import numpy as np

    from stablernn.training.evaluation.predictors import predict
    from stablernn.training.evaluation.scorers import Subset, open_forecast
    from stablernn.training.plots.figures import draw_forecast

    # Raises if the data does not fit the model; its scorer is not needed.
    open_forecast(data, split, quantiles=model.quantiles, features=model.features)
    windows = data.windows(split)
    target = _index_of(window.target, data.targets, "target", f"'{data.name}' forecasts", 0)
    names = [series.unique_id for series in data.series]
    # The windows of all series are numbered in one sequence; those of the chosen series are counted from 1.
    origins = windows.origins
    series_index = _index_of(window.series, names, "series", f"'{data.name}' has", origins[-1][0])
    series_name = names[series_index]
    numbers = [number for number, (index, _) in enumerate(origins) if index == series_index]
    if not numbers:
        raise UsageError(f"The series '{series_name}' has no window in the split '{split}'. Choose another.")
    if window.number is not None and not 1 <= window.number <= len(numbers):
        raise UsageError(
            f"--window must be from 1 to {len(numbers)}, the windows of '{series_name}', got {window.number}."
        )
    number = numbers[-1 if window.number is None else window.number - 1]
    outputs = predict(model.predictor, Subset(windows, np.array([number])))
    # Without the batch axis: (steps, targets), and (steps, targets, levels) for quantiles.
    answer = {name: values[0] for name, values in outputs.items()}
    draw_forecast(path, data, split, number, answer, model.quantiles, target)
    return {"series": series_name, "window": numbers.index(number) + 1, "windows": len(numbers)}


def _index_of(name: str | None, names: Sequence[str], noun: str, owner: str, default: int) -> int:
    """Return the index of a name; ``noun`` and ``owner`` are for the message about an unknown one."""
    if name is None:
        return default
    if name not in names:
        from stablernn.errors import unknown

        raise unknown(noun, name, names, f"{owner} {format_names(names)}.")
    return list(names).index(name)
