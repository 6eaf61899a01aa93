"""`stablernn predict`: a file of sequences or series in, a file of predictions out, without a server."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stablernn_cli.commands.predict_steps import Rows, read_step_file, step_rows
from stablernn_cli.config_options import flag
from stablernn_cli.errors import UsageError
from stablernn_cli.options import DeviceOption, EngineOption, JsonOption, RepairsOption, Stamps, TargetArgument
from stablernn_cli.output import Output, drop_none, plain
from stablernn_cli.prediction_files import check_format, csv_text, write_predictions
from stablernn_cli.targets import Target, open_target

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from stablernn.data import InputSet

    Array = npt.NDArray[Any]

_REPORTED_NOTES = (
    "ignored_columns",
    "gap_steps_filled",
    "short_contexts",
    "future_values_missing",
    "future_rows_unused",
)
"""Counts of reading a file that are printed."""


@dataclass(frozen=True)
class Predictions:
    """Predictions of a model for one file.

    Attributes:
        columns: Names of the columns.
        rows: Rows of the table.
        samples: Number of sequences or series in the file.
        notes: Counts of reading the file.
    """

    columns: list[str]
    rows: Rows
    samples: int
    notes: Mapping[str, Any]


def predict(
    context: typer.Context,
    target: TargetArgument,
    source: Annotated[
        str,
        typer.Option(
            "--input",
            metavar="FILE|FOLDER",
            help="Sequences (.npz, .ts, .tsv, .arff, a table, or a folder of recordings) to classify, series (.csv, "
            ".parquet, .xlsx) to forecast, or steps (.npz, .txt); labels are not needed.",
            show_default=False,
        ),
    ],
    destination: Annotated[
        str,
        typer.Option(
            "--output",
            metavar="FILE",
            help="File to write: CSV, Parquet or JSON lines by the suffix .csv, .parquet, .jsonl; - is CSV on stdout.",
        ),
    ] = "-",
    horizon: Annotated[
        int | None,
        typer.Option(
            help="Steps to forecast, at most those that the model was trained for; default: all of them.",
            show_default=False,
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(help="Column that identifies the series; default: that of the training data.", show_default=False),
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option(help="Column of timestamps; default: that of the training data.", show_default=False),
    ] = None,
    stamps: Annotated[
        Stamps | None,
        typer.Option(help="Meaning of whole numbers as times; default: that of the training data.", show_default=False),
    ] = None,
    repairs: RepairsOption = None,
    device: DeviceOption = "auto",
    engine: EngineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Classify or forecast a file

    Classification writes a row for each sequence: id (its name in a table, else its position in the file), label, and
    a column probability_LABEL for each class. Forecasting writes a row for each series and future timestamp: unique_id,
    ds (in UTC, with a Z, if the file's times have a zone), target (if there are several), mean, and a column q0.1,
    q0.5 ... for each quantile. The predictions are those that `eval` scores. A model of the task predict-next writes a
    row for each step: id, step, and label, probability, target and nll (the actual class and its negative
    log-likelihood), or a column probability_LABEL or mean_TARGET for each output.

    With --json, the rows are in the document unless --output names a file.

    Example: stablernn predict digits@production --input new.npz --output answers.csv
    """
    output = Output.of(context, as_json)
    file = None if destination == "-" else Path(destination)
    if file is not None:
        # Two paths may name the same file.
        if file.exists() and file.samefile(source):
            raise UsageError(f"--output '{destination}' is the input itself. Choose another file.")
        # Before the model runs, whose answers would be lost.
        check_format(file)
    table_options = {"id_column": id_column, "time_column": time_column, "stamps": stamps}
    with output.status(f"Running {target} on {source} ..."):
        model = open_target(target, device, engine).with_repairs(source, repairs)
        predictions = predict_file(model, source, horizon, table_options)
    _report_notes(output, predictions.notes)
    document: dict[str, Any] = {
        "target": model.name,
        "task": model.task,
        "engine": model.engine,
        "input": source,
        "samples": predictions.samples,
        "rows": len(predictions.rows),
        "output": None if file is None else destination,
    }
    _write(output, file, predictions, document)


def _report_notes(output: Output, notes: Mapping[str, Any]) -> None:
    """Print how the file was read, what was repaired, and what was filled or ignored."""
    from stablernn.data.notes import data_counts, describe_reading, format_counts, repair_counts

    reading, repairs = describe_reading(notes), repair_counts(data_counts(notes))
    if reading:
        output.note(f"Note: read as {reading}")
    if repairs:
        output.note(f"Note: repaired: {format_counts(repairs)}")
    for name, count in notes.items():
        if name in _REPORTED_NOTES and count:
            output.note(f"Note: {name.replace('_', ' ')}: {count}")


def _write(output: Output, file: Path | None, predictions: Predictions, document: dict[str, Any]) -> None:
    """Write the predictions to a file, else into the JSON document, else as CSV to stdout."""
    columns, rows = predictions.columns, predictions.rows
    if file is not None:
        write_predictions(file, columns, rows)
    elif output.as_json:
        document["predictions"] = [dict(zip(columns, map(plain, row), strict=True)) for row in rows]
    else:
        sys.stdout.write(csv_text(columns, rows))
    if output.as_json:
        output.document(document)
    elif file is not None:
        output.note(f"Wrote {len(rows)} rows to {document['output']}.")


def predict_file(
    model: Target, source: str, horizon: int | None, table_options: Mapping[str, str | None]
) -> Predictions:
    """Return the predictions of a model for a file.

    Args:
        model: The model.
        source: File of sequences, series or steps.
        horizon: Steps to forecast. Default: all that the model was trained for.
        table_options: Columns and meaning of times in a table of series. Default: those of the training data.

    Raises:
        UsageError: If an option does not fit the model or the file.
        stablernn.errors.DataError: If the file cannot be used.
    """
    steps = _forecast_steps(model, horizon)
    if model.task == "predict-next":
        _reject_table_options(table_options)
        file = read_step_file(model, source)
        columns, rows = step_rows(model, file)
        return Predictions(columns, rows, len(file.steps), file.notes)
    return _predict_samples(model, source, steps, table_options)


def _reject_table_options(table_options: Mapping[str, str | None]) -> None:
    for option, value in table_options.items():
        if value is not None:
            raise UsageError(f"{flag(option)} is for tables of series, got '{value}'. Leave it out.")


def _predict_samples(
    model: Target, source: str, steps: int | None, table_options: Mapping[str, str | None]
) -> Predictions:
    """Return the predictions of a classification or a forecast."""
    from stablernn.data import read_inputs
    from stablernn.data.readers.paths import is_table
    from stablernn.training import predict as run

    # Other files have no columns to name.
    if not is_table(source):
        _reject_table_options(table_options)
    inputs = read_inputs(
        source,
        task=model.task,
        features=model.features,
        context_length=model.context_length,
        time_step=model.config.model.time_step,
        **_reading_options(model) | drop_none(table_options),
    )
    model.check_sample_rate(source, inputs.notes)
    outputs = run(model.predictor, inputs)
    columns, rows = (
        _forecast_rows(model, inputs, outputs, steps)
        if steps is not None
        else _class_rows(model, inputs, outputs["probabilities"])
    )
    return Predictions(columns, rows, len(inputs), inputs.notes)


def _forecast_steps(model: Target, horizon: int | None) -> int | None:
    """Return the number of steps to forecast; None for other tasks."""
    if model.horizon is None:
        if horizon is not None:
            purpose = "classifies" if model.task == "classify" else "answers at every step"
            raise UsageError(f"--horizon is for forecasts, and {model.name} {purpose}. Leave it out.")
        return None
    # Fewer steps are the first ones of the whole forecast.
    if horizon is None:
        return model.horizon
    if not 1 <= horizon <= model.horizon:
        raise UsageError(
            f"--horizon must be from 1 to {model.horizon}, the steps that {model.name} was trained for, got {horizon}. "
            f"Train with a longer --horizon for more."
        )
    return horizon


def _reading_options(model: Target) -> dict[str, Any]:
    """Return the options of :func:`stablernn.data.read_inputs` that the training data was read with."""
    data = model.config.data
    columns = {
        "id_column": data.id_column,
        "time_column": data.time_column,
        "stamps": data.stamps,
        "repairs": data.repairs,
    }
    if model.task == "classify":
        return {**columns, "label_column": data.label_column}
    return {
        **columns,
        "frequency": model.frequency,
        "future": data.future,
        "static": data.static,
        "calendar": data.calendar,
        "horizon": model.horizon,
        "targets": model.targets,
        "channels_as_series": data.channels_as_series,
    }


def _class_rows(model: Target, inputs: InputSet, probabilities: Array) -> tuple[list[str], Rows]:
    # (sequences, classes)
    best = probabilities.argmax(axis=1)
    columns = ["id", "label", *(f"probability_{label}" for label in model.labels)]
    rows = zip(inputs.ids, best, probabilities, strict=True)
    return columns, [[name, model.labels[predicted], *shares] for name, predicted, shares in rows]


def _forecast_rows(model: Target, inputs: InputSet, outputs: dict[str, Array], steps: int) -> tuple[list[str], Rows]:
    # One target needs no column to distinguish it.
    has_targets = len(model.targets) > 1
    columns = [
        "unique_id",
        "ds",
        *(["target"] if has_targets else []),
        "mean",
        *(f"q{level:g}" for level in model.quantiles),
    ]
    rows: Rows = []
    for number, name in enumerate(inputs.ids):
        stamps = format_times(inputs.future_ds(number, steps), inputs.notes.get("time_zone") == "UTC")
        for position, target in enumerate(model.targets):
            # (series, horizon, targets), and (series, horizon, targets, levels) for quantiles.
            mean = outputs["mean"][number, :steps, position]
            quantiles = outputs["quantiles"][number, :steps, position] if model.quantiles else [()] * steps
            rows += [
                [name, stamp, *([target] if has_targets else []), value, *levels]
                for stamp, value, levels in zip(stamps, mean, quantiles, strict=True)
            ]
    return columns, rows


def format_times(ds: npt.NDArray[np.datetime64] | npt.NDArray[np.int64], in_utc: bool) -> Sequence[int | str]:
    """Format timestamps as in files: dates if none has a time of day; with a Z if they are in UTC."""
    import numpy as np

    # Series whose times are whole numbers.
    if ds.dtype.kind != "M":
        return [int(step) for step in ds]
    stamps = ds.astype("datetime64[ns]")
    unit: Literal["D", "s", "ns"] = "ns"
    if not in_utc and (stamps == stamps.astype("datetime64[D]")).all():
        unit = "D"
    elif (stamps == stamps.astype("datetime64[s]")).all():
        unit = "s"
    return [f"{text}Z" if in_utc else str(text) for text in np.datetime_as_string(stamps, unit=unit)]
