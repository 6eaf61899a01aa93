"""`stablernn plot`: one picture of a run or of a registry version."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stablernn_cli.errors import UsageError
from stablernn_cli.options import DeviceOption, Split, Stamps, TargetArgument
from stablernn_cli.output import JsonOption, Output
from stablernn_cli.targets import Target, is_run, open_target

if TYPE_CHECKING:
    from stablernn.data import ClassificationData, ForecastData

Kind = Literal["forecast", "confusion", "reliability", "early", "loss", "metric"]

KINDS: dict[str, tuple[Kind, ...]] = {
    "forecast": ("forecast", "loss", "metric"),
    "classify": ("confusion", "reliability", "early", "loss", "metric"),
}
CURVES: tuple[Kind, ...] = ("loss", "metric")


def plot(
    context: typer.Context,
    target: TargetArgument,
    destination: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="PNG file to write.", show_default=False)
    ],
    kind: Annotated[
        Kind | None,
        typer.Option(
            help="What to draw: a forecast; of a classification its confusion matrix, reliability or early scores; of "
            "a run its loss or metric by epoch. Default: forecast or confusion.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="A dataset's name or a file; default: what it was trained on.", show_default=False),
    ] = None,
    stamps: Annotated[
        Stamps | None,
        typer.Option(
            help="Meaning of whole numbers as times in --data; default: that of the training data.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[Split, typer.Option(help="Which part of the data.")] = "test",
    series: Annotated[
        str | None, typer.Option(help="Forecast: unique_id of a series; default: the last one.", show_default=False)
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(help="Forecast: which window of the series, from 1; default: the last one.", show_default=False),
    ] = None,
    channel: Annotated[
        str | None, typer.Option(help="Forecast: which target; default: the first one.", show_default=False)
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Draw a forecast, scores or the curves of a run

    A forecast is drawn with its history, its widest interval, the truth and the seasonal naive forecast.

    Example: stablernn plot load@production --series shop_1 --output forecast.png
    """
    output = Output.of(context, as_json)
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
            document |= _draw(target, kind, destination, (data, stamps), split, (series, window, channel), device)
    if as_json:
        output.document(document)
    else:
        output.note(f"Wrote {destination}.")


def _draw_curve(target: str, kind: Kind, path: Path) -> None:
    if not is_run(target):
        raise UsageError(f"--kind {kind} is of a run directory, got '{target}'. Name the run that it came from.")
    from stablernn.errors import CheckpointError
    from stablernn.plotting import plot_loss, plot_metric
    from stablernn.training.loop.checkpoint import load_checkpoint
    from stablernn.training.run_directory import RunDirectory

    place = RunDirectory(Path(target))
    records = place.records()
    if not records:
        raise CheckpointError(f"The run in '{target}' has no epochs yet: there is nothing to draw.")
    if kind == "loss":
        plot_loss(path, records, title=place.path.name)
        return
    best = load_checkpoint(place.checkpoint("best")).state
    if not any(best["metric"] in record["validation"] for record in records):
        raise CheckpointError(f"The run in '{target}' was not validated: it has no metric to draw.")
    plot_metric(path, records, best["metric"], best_epoch=best["epoch"], title=place.path.name)


def _draw(
    target: str,
    kind: Kind | None,
    path: Path,
    data_source: tuple[str | None, Stamps | None],
    split: Split,
    place: tuple[str | None, int | None, str | None],
    device: Any,
) -> dict[str, Any]:
    from stablernn.data import ClassificationData, ForecastData
    from stablernn.training.evaluation.scorers import open_classification

    model = open_target(target, device)
    kinds = KINDS.get(model.task, CURVES)
    chosen = kinds[0] if kind is None else kind
    if chosen not in kinds or chosen in CURVES:
        raise UsageError(
            f"--kind is one of {', '.join(kinds)} for the task '{model.task}' of {model.name}, "
            f"got {'none' if kind is None else kind}."
        )
    if chosen != "forecast" and any(value is not None for value in place):
        raise UsageError(f"--series, --window and --channel are for forecasts, and {model.name} classifies.")
    data = model.load_data(*data_source)
    if isinstance(data, ForecastData):
        return {"kind": chosen, "split": split, **_draw_forecast(model, data, path, split, place)}
    assert isinstance(data, ClassificationData)
    scorer = open_classification(data, split, labels=model.labels, features=model.features)
    _draw_classes(model, data, scorer, path, split, chosen)
    return {"kind": chosen, "split": split}


def _draw_classes(model: Target, data: ClassificationData, scorer: Any, path: Path, split: Split, kind: Kind) -> None:
    from stablernn.plotting import plot_early
    from stablernn.training.evaluation.baselines import Baselines
    from stablernn.training.evaluation.early_classification import early
    from stablernn.training.evaluation.predictors import predict
    from stablernn.training.plots.figures import draw_confusion, draw_reliability

    if kind == "early":
        majority = Baselines(data).scores(split).get("majority", {}).get("accuracy")
        plot_early(path, early(model.predictor, scorer), majority=majority, title=f"{data.name}, {split}")
        return
    draw = draw_confusion if kind == "confusion" else draw_reliability
    draw(path, data, scorer, predict(model.predictor, scorer.source), split)


def _draw_forecast(
    model: Target, data: ForecastData, path: Path, split: Split, place: tuple[str | None, int | None, str | None]
) -> dict[str, Any]:
    import numpy as np

    from stablernn.training.evaluation.predictors import predict
    from stablernn.training.evaluation.scorers import Subset, open_forecast
    from stablernn.training.plots.figures import draw_forecast

    series, window, channel = place
    open_forecast(data, split, quantiles=model.quantiles, features=model.features)
    windows = data.windows(split)
    target = _position(channel, data.targets, "target", f"'{data.name}' forecasts", 0)
    names = [one.unique_id for one in data.series]
    origins = windows.origins
    owner = _position(series, names, "series", f"'{data.name}' has", origins[-1][0])
    mine = [number for number, (index, _) in enumerate(origins) if index == owner]
    if not mine:
        raise UsageError(f"The series '{names[owner]}' has no window in the split '{split}'. Choose another.")
    if window is not None and not 1 <= window <= len(mine):
        raise UsageError(f"--window must be from 1 to {len(mine)}, the windows of '{names[owner]}', got {window}.")
    number = mine[-1 if window is None else window - 1]
    outputs = predict(model.predictor, Subset(windows, np.array([number])))
    found = {name: values[0] for name, values in outputs.items()}
    draw_forecast(path, data, split, number, found, model.quantiles, target)
    return {"series": names[owner], "window": mine.index(number) + 1, "windows": len(mine)}


def _position(name: str | None, names: Sequence[str], noun: str, has: str, default: int) -> int:
    if name is None:
        return default
    if name not in names:
        from stablernn.errors import unknown
        from stablernn_cli.targets import listed

        raise unknown(noun, name, names, f"{has} {listed(names)}.")
    return list(names).index(name)
