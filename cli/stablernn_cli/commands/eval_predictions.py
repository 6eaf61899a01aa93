"""`stablernn eval --output`: what a model predicts for each sample of the split, beside the truth."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stablernn_cli.errors import UsageError
from stablernn_cli.prediction.answers import column_names
from stablernn_cli.prediction.files import check_format, write_table
from stablernn_cli.targets import Target

if TYPE_CHECKING:
    import numpy.typing as npt

    from stablernn.data import ClassificationData, ForecastData
    from stablernn.data.step_data import Data

    Array = npt.NDArray[Any]


def check_output(path: Path, model: Target) -> None:
    """Refuse a file that is not written, before the data is read.

    Raises:
        UsageError: If the task has no table of predictions, or the suffix selects no format.
    """
    if model.task == "predict-next":
        raise UsageError(
            f"--output is for forecasts and classification, and {model.name} is for '{model.task}'. Leave it out."
        )
    check_format(path)


def write_split(path: Path, model: Target, data: Data, split: str) -> int:
    """Write the predictions for a split and return the number of rows.

    Raises:
        CommandError: If the file cannot be written.
    """
    from stablernn.data import ClassificationData, ForecastData
    from stablernn.training import predict

    samples = data.split(split)
    outputs = predict(model.predictor, samples)
    if isinstance(data, ForecastData):
        table = _forecast_table(model, data, split, outputs)
    else:
        assert isinstance(data, ClassificationData)
        table = _class_table(model, data, split, outputs["probabilities"])
    write_table(path, table)
    return len(next(iter(table.values())))


def _class_table(model: Target, data: ClassificationData, split: str, probabilities: Array) -> dict[str, Any]:
    samples = data.split(split)
    best = probabilities.argmax(axis=1)
    return {
        column_names(model, "id")[0]: list(samples.ids),
        "label": [data.labels[index] for index in samples.y],
        "predicted": [model.labels[index] for index in best],
        **{f"probability_{label}": probabilities[:, index] for index, label in enumerate(model.labels)},
    }


def _forecast_table(model: Target, data: ForecastData, split: str, outputs: Mapping[str, Array]) -> dict[str, Any]:
    import numpy as np

    windows = data.windows(split)
    horizon, targets = windows.horizon, len(model.targets)
    origins = windows.origins
    # (windows, horizon)
    ds = np.stack([data.series[series].ds[end : end + horizon] for series, end in origins])
    before: Array = np.concatenate([data.series[series].ds[end - 1 : end] for series, end in origins])
    names = np.array([each.unique_id for each in data.series], dtype=object)[[series for series, _ in origins]]
    in_utc = data.notes.get("time_zone") == "UTC"
    # A row for each window, step and target, in this order.
    id_name, time_name = column_names(model, "unique_id")
    table: dict[str, Any] = {
        id_name: np.repeat(names, horizon * targets),
        "origin": _times(np.repeat(before, horizon * targets), in_utc=in_utc),
        time_name: _times(np.repeat(ds.reshape(-1), targets), in_utc=in_utc),
    }
    if targets > 1:
        table["target"] = list(model.targets) * ds.size
    table["actual"] = windows.truth(np.arange(len(windows))).reshape(-1)
    table["mean"] = outputs["mean"].reshape(-1)
    for index, level in enumerate(model.quantiles):
        table[f"q{level:g}"] = outputs["quantiles"][..., index].reshape(-1)
    return table


def _times(ds: Array, *, in_utc: bool) -> Any:
    """Return timestamps as `predict` writes them: text, with a Z in UTC, or whole numbers."""
    from stablernn_cli.prediction.answers import format_times

    return format_times(ds, in_utc)
