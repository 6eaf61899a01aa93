"""`stablernn predict`: a file of sequences or series in, a file of answers out; no server."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stablernn_cli.commands.predict_steps import Rows, read, step_rows
from stablernn_cli.errors import UsageError
from stablernn_cli.options import DeviceOption, Stamps, TargetArgument
from stablernn_cli.output import JsonOption, Output, plain
from stablernn_cli.prediction_files import check_format, csv_text, write_predictions
from stablernn_cli.targets import Target, open_target

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from stablernn.data import InputSet

    Array = npt.NDArray[Any]

_SAID = ("ignored_columns", "gap_steps_filled", "short_contexts", "future_values_missing", "future_rows_unused")
"""What reading counted that a person should hear of."""


def predict(
    context: typer.Context,
    target: TargetArgument,
    source: Annotated[
        str,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Sequences (.npz, .ts, .tsv, .arff, or a table) to classify, series (.csv, .parquet) to forecast, or "
            "steps (.npz, .txt); labels are not needed.",
            show_default=False,
        ),
    ],
    destination: Annotated[
        str,
        typer.Option(
            "--output",
            metavar="FILE",
            help="File to write: CSV, Parquet or JSON lines by the ending .csv, .parquet, .jsonl; - is CSV on stdout.",
        ),
    ] = "-",
    horizon: Annotated[
        int | None,
        typer.Option(
            help="Steps to forecast, at most as many as the model was trained for; default: all of them.",
            show_default=False,
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(help="Column that tells series apart; default: that of the training data.", show_default=False),
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option(help="Column of time stamps; default: that of the training data.", show_default=False),
    ] = None,
    stamps: Annotated[
        Stamps | None,
        typer.Option(help="Meaning of whole numbers as times; default: that of the training data.", show_default=False),
    ] = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Classify or forecast a file

    Classification gives a row a sequence: id (the name that a table gives it, else its position in the file), label,
    and a column probability_LABEL for each class. Forecasting gives a row a series and future time stamp: unique_id,
    ds (in UTC, with a Z, where the file's times have a zone), target (where there are several), mean, and a column
    q0.1, q0.5 ... for each quantile. The answers are those that `eval` scores. A model of the task predict-next gives a
    row a step: id, step, and label, probability, target and nll (what came, and its negative log-likelihood), or a
    column probability_LABEL or mean_TARGET for each output.

    With --json, the rows are in the document, unless --output names a file.

    Example: stablernn predict digits@production --input new.npz --output answers.csv
    """
    output = Output.of(context, as_json)
    if destination != "-" and Path(destination).exists() and Path(destination).samefile(source):
        raise UsageError(f"--output '{destination}' is the input itself. Choose another file.")
    if destination != "-":
        check_format(Path(destination))
    with output.status(f"Running {target} on {source} ..."):
        model = open_target(target, device)
        steps = _steps(model, horizon)
        named = {"id_column": id_column, "time_column": time_column, "stamps": stamps}
        if model.task == "predict-next":
            _check_unnamed(named)
            found = read(model, source)
            columns, rows = step_rows(model, found)
            samples, notes = len(found.steps), found.notes
        else:
            columns, rows, samples, notes = _sample_rows(model, source, steps, named)
    for word, number in notes.items():
        if word in _SAID and number:
            output.note(f"Note: {word.replace('_', ' ')}: {number}")
    document: dict[str, Any] = {
        "target": model.name,
        "task": model.task,
        "input": source,
        "samples": samples,
        "rows": len(rows),
        "output": None if destination == "-" else destination,
    }
    if destination != "-":
        write_predictions(Path(destination), columns, rows)
    elif as_json:
        document["predictions"] = [dict(zip(columns, map(plain, row), strict=True)) for row in rows]
    else:
        sys.stdout.write(csv_text(columns, rows))
    if as_json:
        output.document(document)
    elif destination != "-":
        output.note(f"Wrote {len(rows)} rows to {destination}.")


def _check_unnamed(named: dict[str, str | None]) -> None:
    for option, column in named.items():
        if column is not None:
            raise UsageError(f"--{option.replace('_', '-')} is for tables of series, got '{column}'. Leave it out.")


def _sample_rows(
    model: Target, source: str, steps: int | None, named: dict[str, str | None]
) -> tuple[list[str], Rows, int, dict[str, Any]]:
    """Columns and rows of a classification or a forecast, of how many samples, and what was counted."""
    from stablernn.data import read_inputs
    from stablernn.data.readers.paths import TABLE_FORMATS, detect_format
    from stablernn.training import predict as run

    if detect_format(Path(source)) not in TABLE_FORMATS:
        _check_unnamed(named)
    columns: dict[str, Any] = _columns(model)
    columns |= {option: column for option, column in named.items() if column is not None}
    inputs = read_inputs(
        source,
        task=model.task,
        features=model.features,
        context_length=model.context_length,
        time_step=model.config.model.time_step,
        **columns,
    )
    outputs = run(model.predictor, _Samples(inputs))
    header, rows = (
        _forecast_rows(model, inputs, outputs, steps)
        if steps is not None
        else _class_rows(model, inputs, outputs["probabilities"])
    )
    return header, rows, len(inputs), inputs.notes


class _Samples:
    """Inputs as the numbered samples that prediction runs over."""

    def __init__(self, inputs: InputSet) -> None:
        self._inputs = inputs

    def __len__(self) -> int:
        return len(self._inputs)

    def gather(self, indices: Array) -> Any:
        from stablernn.data import Samples

        inputs = self._inputs
        known = {"dt": inputs.dt, "static": inputs.static, "future": inputs.future}
        chosen = {name: values[indices] for name, values in known.items() if values is not None}
        return Samples(inputs.x[indices], inputs.lengths[indices], indices, **chosen)


def _steps(model: Target, horizon: int | None) -> int | None:
    """How many steps to give; None where nothing is forecast."""
    if model.horizon is None:
        if horizon is not None:
            does = "classifies" if model.task == "classify" else "answers at every step"
            raise UsageError(f"--horizon is for forecasts, and {model.name} {does}. Leave it out.")
        return None
    if horizon is None:
        return model.horizon
    if not 1 <= horizon <= model.horizon:
        raise UsageError(
            f"--horizon must be from 1 to {model.horizon}, the steps that {model.name} was trained for, got {horizon}. "
            f"Train with a longer --horizon for more."
        )
    return horizon


def _columns(model: Target) -> dict[str, Any]:
    data = model.config.data
    columns = {"id_column": data.id_column, "time_column": data.time_column, "stamps": data.stamps}
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
    best = probabilities.argmax(axis=1)
    columns = ["id", "label", *(f"probability_{label}" for label in model.labels)]
    rows = zip(inputs.ids, best, probabilities, strict=True)
    return columns, [[name, model.labels[number], *share] for name, number, share in rows]


def _forecast_rows(model: Target, inputs: InputSet, outputs: dict[str, Array], steps: int) -> tuple[list[str], Rows]:
    named = len(model.targets) > 1
    columns = ["unique_id", "ds", *(["target"] if named else []), "mean", *(f"q{level:g}" for level in model.quantiles)]
    rows: Rows = []
    for number, name in enumerate(inputs.ids):
        stamps = _stamps(inputs.future_ds(number, steps), inputs.notes.get("time_zone") == "UTC")
        for position, target in enumerate(model.targets):
            mean = outputs["mean"][number, :steps, position]
            spread = outputs["quantiles"][number, :steps, position] if model.quantiles else [()] * steps
            rows += [
                [name, stamp, *([target] if named else []), value, *levels]
                for stamp, value, levels in zip(stamps, mean, spread, strict=True)
            ]
    return columns, rows


def _stamps(ds: npt.NDArray[np.datetime64] | npt.NDArray[np.int64], in_utc: bool) -> Sequence[int | str]:
    """Time stamps as they stand in files: a date where none has a time of day; with a Z where they are instants."""
    import numpy as np

    if ds.dtype.kind != "M":
        return [int(step) for step in ds]
    stamps = ds.astype("datetime64[ns]")
    unit: Literal["D", "s", "ns"] = "ns"
    if not in_utc and (stamps == stamps.astype("datetime64[D]")).all():
        unit = "D"
    elif (stamps == stamps.astype("datetime64[s]")).all():
        unit = "s"
    return [f"{text}Z" if in_utc else str(text) for text in np.datetime_as_string(stamps, unit=unit)]
