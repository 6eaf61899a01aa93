"""`stablernn predict`: a file of sequences or series in, a file of predictions out, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from stablernn_cli.commands.predict_folder import predict_folder
from stablernn_cli.errors import UsageError
from stablernn_cli.options import DeviceOption, EngineOption, JsonOption, RepairsOption, Stamps, TargetArgument
from stablernn_cli.output import Output
from stablernn_cli.prediction.answers import FileOptions, describe_notes, explain_file, predict_file
from stablernn_cli.prediction.files import FORMATS, PredictionWriter, check_format, table_rows
from stablernn_cli.prediction.job import one_thread
from stablernn_cli.prediction.pieces import answer_file
from stablernn_cli.targets import open_target


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
            metavar="FILE|FOLDER",
            help="File to write: CSV, Parquet or JSON lines by the suffix .csv, .parquet, .jsonl; - is CSV on stdout. "
            "A folder of Parquet files for a folder of files.",
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
    workers: Annotated[
        int | None, typer.Option(min=1, help="Folders: processes, each with one thread.", show_default="1")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Folders: every N-th file, from number I on, which is 0 to N - 1, for jobs on several machines.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Folders: leave out files whose answers are there already.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Folders: stop at the first file of which a series cannot be answered.")
    ] = False,
    explain: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write explanation.csv and explanation.png here: what each channel and tenth of the time contributes.",
            show_default=False,
        ),
    ] = None,
    device: DeviceOption = "auto",
    engine: EngineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Classify or forecast a file, or a folder of files

    Classification writes a row for each sequence: id (its name in a table, else its position in the file), label, and
    a column probability_LABEL for each class. Forecasting writes a row for each series and future timestamp: unique_id,
    ds (in UTC, with a Z, if the file's times have a zone), target (if there are several), mean, and a column q0.1,
    q0.5 ... for each quantile. The predictions are those that `eval` scores. A model of the task predict-next writes a
    row for each step: id, step, and label, probability, target and nll (the actual class and its negative
    log-likelihood), or a column probability_LABEL or mean_TARGET for each output. Columns of series and times that have
    other names in a table (--id-column, --time-column) keep them.

    With --explain, each tenth of each channel is left out as missing values are, and its contribution is what the
    probability of the answer loses, or the mean absolute change of the mean forecast.

    With --json, the rows are in the document unless --output names a file.

    For a folder, --output names a folder, which gets a Parquet file for each file, written whole or not at all. A file
    that cannot be answered is named with the reason, and the others are answered; the exit code is 3 then. A series
    that cannot be answered has a row at the end of its file, with the reason in the column error.

    Example: stablernn predict digits@production --input new.npz --output answers.csv
    """
    output = Output.of(context, as_json)
    options = FileOptions(horizon, id_column, time_column, stamps, tuple(repairs or ()))
    if is_job(source, destination):
        if explain is not None:
            raise UsageError(
                "--explain is for one file, and --output names a folder of answers. Leave one of them out."
            )
        predict_folder(
            output,
            Path(source),
            Path(destination),
            target,
            options,
            device=device,
            engine=engine,
            workers=workers or 1,
            shard=shard,
            resume=resume,
            strict=strict,
        )
        return
    for option, value in {"workers": workers, "shard": shard, "resume": resume, "strict": strict}.items():
        if value:
            raise UsageError(f"--{option} is for a folder of files whose answers go to a folder. Leave it out.")
    file = None if destination == "-" else Path(destination)
    if file is not None:
        # Two paths may name the same file.
        if file.exists() and file.samefile(source):
            raise UsageError(f"--output '{destination}' is the input itself. Choose another file.")
        # Before the model runs, whose answers would be lost.
        check_format(file)
    with one_thread("POLARS_MAX_THREADS"), PredictionWriter(file) as writer:
        rows = None
        with output.status(f"Running {target} on {source} ..."):
            model = open_target(target, device, engine)
            if output.as_json and file is None:
                # The document holds all rows, so that pieces would save no memory.
                predictions = predict_file(model, source, options)
                samples, notes, rows = predictions.samples, predictions.notes, list(table_rows(predictions.table))
            else:
                summary = answer_file(model, source, options, writer)
                samples, notes = summary.samples, summary.notes
        for note in describe_notes(notes):
            output.note(f"Note: {note}")
        if rows is None:
            writer.commit()
        explanation = [] if explain is None else explain_file(model, source, options, explain)
        document: dict[str, Any] = {
            "target": model.name,
            "task": model.task,
            "engine": model.engine,
            "input": source,
            "samples": samples,
            "rows": len(writer) if rows is None else len(rows),
            "output": None if file is None else destination,
            **({"explanation": explanation} if explanation else {}),
        }
    if output.as_json:
        output.document(document if rows is None else {**document, "predictions": rows})
    elif file is not None:
        output.note(f"Wrote {document['rows']} rows to {destination}.")
    for path in explanation:
        output.note(f"Wrote {path}.")


def is_job(source: str, destination: str) -> bool:
    """Return whether a folder of files is to be answered by a folder; a folder of recordings is one file of answers."""
    return destination != "-" and Path(source).is_dir() and Path(destination).suffix.lower() not in FORMATS
