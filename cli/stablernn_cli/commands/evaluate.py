"""`stablernn eval`: figures of a run or of a registry version on a split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from stablernn_cli.commands.registry import show_metrics
from stablernn_cli.options import Device, DeviceOption, Split, TargetArgument
from stablernn_cli.output import JsonOption, Output
from stablernn_cli.targets import open_target


def evaluate(
    context: typer.Context,
    target: TargetArgument,
    data: Annotated[
        str | None,
        typer.Option(help="A dataset's name or a file; default: what it was trained on.", show_default=False),
    ] = None,
    split: Annotated[Split, typer.Option(help="Which part of the data.")] = "test",
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Score a run or a registry version

    A run is scored by torch, a registry version by ONNX Runtime on the graph that is served. Beside a forecast stand
    the scores of the seasonal naive and the naive forecast on the same windows.

    Example: stablernn eval digits@production --split test
    """
    output = Output.of(context, as_json)
    document = score(output, target, data=data, split=split, device=device)
    if as_json:
        output.document(document)
    else:
        show(output, document)


def score(
    output: Output, target: str, *, data: str | None = None, split: Split = "test", device: Device = "auto"
) -> dict[str, Any]:
    """What ``eval --json`` prints."""
    with output.status(f"Scoring {target} on {split} ..."):
        from stablernn.data import ForecastData
        from stablernn.training import evaluate

        model = open_target(target, device)
        loaded = model.load_data(data)
        metrics = evaluate(
            model.predictor,
            loaded,
            split,
            quantiles=model.quantiles or None,
            labels=model.labels or None,
            features=model.features,
        )
        samples = len(loaded.windows(split)) if isinstance(loaded, ForecastData) else len(loaded.split(split))
    if data is None and loaded.fingerprint != model.fingerprint:
        output.note(f"Note: '{loaded.name}' has changed since {target} was trained on it.")
    return {
        "target": model.name,
        "task": model.task,
        "data": {
            "name": loaded.name,
            "fingerprint": loaded.fingerprint,
            "as_trained": loaded.fingerprint == model.fingerprint,
        },
        "split": split,
        "samples": samples,
        "metrics": metrics,
    }


def show(output: Output, document: Mapping[str, Any]) -> None:
    """The scores for people: a forecast's beside those of the naive forecasts."""
    kind = "windows" if document["task"] == "forecast" else "sequences"
    output.text(
        f"{document['target']} on {document['data']['name']}, {document['split']}: {document['samples']} {kind}"
    )
    metrics = document["metrics"]
    columns = {"model": {name: value for name, value in metrics.items() if not isinstance(value, Mapping)}}
    columns |= {name.replace("_", " "): value for name, value in metrics.items() if isinstance(value, Mapping)}
    show_metrics(output, columns)
