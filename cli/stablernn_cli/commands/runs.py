"""`stablernn runs`: lists and comparisons of training runs."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stablernn_cli.commands import runs_show
from stablernn_cli.errors import UsageError
from stablernn_cli.options import JsonOption
from stablernn_cli.output import Output

if TYPE_CHECKING:
    from stablernn.training.stored_runs.stored_run import StoredRun

DEFAULT_FOLDER = Path("runs")
"""Folder in which `stablernn train` makes run directories."""

COLUMNS = (
    *("run", "data", "task", "cell", "parameters", "epochs", "state"),
    *("metric", "validation", "test", "proved", "seconds", "started (UTC)"),
)
OPTIONAL_COLUMNS = ("task", "seconds", "parameters", "epochs", "data", "started (UTC)", "proved")
"""Columns that narrow terminals do without, in the order in which they are left out."""

app = typer.Typer(help="List and compare training runs", no_args_is_help=True, add_completion=False)


@app.command("list")
def list_(
    context: typer.Context,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER]...",
            help=f"Folders with runs, up to six levels deep, or run directories; default: {DEFAULT_FOLDER}.",
            show_default=False,
        ),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="started (the newest first), path, state, data, task, cell, parameters, epochs, seconds or rate (the "
            "smallest first), or a metric of the validation split, test.METRIC of the test split (the best first).",
        ),
    ] = "started",
    as_json: JsonOption = False,
) -> None:
    """List the runs in folders

    A run is done, diverged (done, but its training loss ended far above where it began), running on this machine,
    stopped (`stablernn train --resume` goes on with it) or damaged, with the reason below the table. The scores are
    those of the metric that selects the best weights, or of the metric to sort by.

    Example: stablernn runs list runs reproductions --sort test.accuracy
    """
    from stablernn.training.stored_runs.listing import SORT_KEYS, list_runs, sort_runs, split_and_metric

    output = Output.of(context, as_json)
    for folder in folders or ():
        if not folder.is_dir():
            raise UsageError(
                f"There is no folder '{folder}'. Name one with runs, or none for those in '{DEFAULT_FOLDER}'."
            )
    runs = sort_runs(list_runs(folders or [DEFAULT_FOLDER]), sort)
    if as_json:
        output.document([run.document() for run in runs])
        return
    if not runs:
        places = " or ".join(f"'{folder}'" for folder in folders or [DEFAULT_FOLDER])
        output.text(
            f"There are no runs in {places}. Train one by `stablernn train --data digits`, or name another folder."
        )
        return
    metric = None if sort in SORT_KEYS else split_and_metric(sort)[1]
    left_out = output.table(COLUMNS, [_row(run, metric) for run in runs], optional=OPTIONAL_COLUMNS)
    if left_out:
        output.note(f"The terminal is too narrow for {', '.join(left_out)}; a file, a pipe and --json have them.")
    for run in runs:
        if run.problem is not None:
            output.text(f"{run.path} is damaged: {run.problem}")


app.command()(runs_show.show)


def _row(run: StoredRun, metric: str | None) -> list[object]:
    return [
        str(run.path),
        run.data,
        run.task,
        run.cell,
        run.parameters,
        runs_show.format_epochs(run),
        run.state,
        metric or run.metric,
        run.score("validation", metric),
        run.score("test", metric),
        runs_show.format_proof(run.certificate),
        None if run.seconds is None else round(run.seconds),
        None if run.started is None else f"{run.started.astimezone(UTC):%Y-%m-%d %H:%M}",
    ]
