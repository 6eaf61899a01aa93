"""`stablernn reproduce`: published tables, trained again and printed beside the published figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from stablernn_cli.errors import UsageError
from stablernn_cli.output import JsonOption, Output

app = typer.Typer(help="Train published tables again", no_args_is_help=True)

# As stablernn.reproduce.published_tables has them, whose import is too slow for a program that only prints its help.
TABLES = {
    "robustness": "Attacked accuracy and curvature, MNIST in rows",
}


@app.command("list")
def list_(
    context: typer.Context,
    root: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder below which the tables were made.", show_default=True)
    ] = Path("reproductions"),
    as_json: JsonOption = False,
) -> None:
    """List the tables that can be made again

    With the state of the best reproduction that is there, below the folder or shipped with stablernn: not run; short, a
    scaled-down one; partial, where some runs of the comparison are done; full, where all are.

    Example: stablernn reproduce list
    """
    from stablernn.reproduce.states import states

    output = Output.of(context, as_json)
    rows = states(root)
    if as_json:
        output.document(rows)
        return
    columns = ("table", "paper", "source", "rows", "state", "output")
    lines = [{**row, "output": row["output"] or (row["shipped"] and "shipped")} for row in rows]
    output.table(columns, [[row[column] for column in columns] for row in lines])
    for row in rows:
        if row["shipped"] is not None:
            output.note(f"{row['table']}: {_shipped(row['shipped'])}")


def _shipped(shipped: Mapping[str, Any]) -> str:
    """Returns a sentence about shipped results: of which code they are, and where they lie."""
    commit, _, dirty = (shipped["commit"] or "unknown").partition("-")
    changes = " with changes that were not committed" if dirty else ""
    return f"{shipped['state']} results of {shipped['time'][:10]}, commit {commit[:12]}{changes}: {shipped['results']}"


def _command(key: str, title: str) -> Callable[..., None]:
    """The command of one table."""

    def command(
        context: typer.Context,
        short: Annotated[
            bool, typer.Option("--short", help="A scaled-down protocol, some minutes; it compares nothing.")
        ] = False,
        seeds: Annotated[
            str | None, typer.Option(metavar="N,N,...", help="Seeds of the runs; default: the protocol's.")
        ] = None,
        cells: Annotated[
            str | None, typer.Option(metavar="CELL,...", help="Only some of the table's cells; default: all.")
        ] = None,
        match_accuracy: Annotated[
            float | None,
            typer.Option(
                metavar="SHARE",
                help="Validation accuracy at which models are compared in the second view; default: the highest that "
                "all runs reach.",
                show_default=False,
            ),
        ] = None,
        output: Annotated[
            Path | None,
            typer.Option(
                metavar="DIR",
                help="Folder for runs, results and picture; default: reproductions/TABLE, with --short "
                "reproductions/TABLE-short.",
                show_default=False,
            ),
        ] = None,
        jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 1,
        as_json: JsonOption = False,
    ) -> None:
        _reproduce(Output.of(context, as_json), key, short, seeds, cells, match_accuracy, output, jobs)

    command.__doc__ = f"""{title}

    Trains the models of the published table and those put beside it, measures them, and prints the table beside the
    published figures. What is done already in the folder is kept, and a run that was stopped goes on: Ctrl-C and the
    same command again. docs/reproduce.md has the protocol, what the paper does not say, and what was found.

    Example: stablernn reproduce {key} --short --jobs 2
    """
    return command


for _key, _title in TABLES.items():
    app.command(_key)(_command(_key, _title))


def _reproduce(
    output: Output,
    key: str,
    short: bool,
    seeds: str | None,
    cells: str | None,
    match_accuracy: float | None,
    folder: Path | None,
    jobs: int,
) -> None:
    numbers = None if seeds is None else _seeds(seeds)
    if match_accuracy is not None and not 0 < match_accuracy <= 1:
        raise UsageError(f"--match-accuracy is a share above 0 and up to 1, got {match_accuracy:g}.")
    with output.status("Loading ..."):
        from torch import device

        from stablernn.reproduce.run_protocol import reproduce
        from stablernn.reproduce.table import FULL, SHORT
        from stablernn.training.loop.environment import environment
    if not short and (environment(device("cpu"))["commit"] or "").endswith("-dirty"):
        output.note("Note: the code has changes that are not committed, so that nobody can make these results again.")
    results = reproduce(
        key,
        SHORT if short else FULL,
        folder,
        seeds=numbers,
        cells=None if cells is None else [cell.strip() for cell in cells.split(",")],
        jobs=jobs,
        match_accuracy=match_accuracy,
        report=output.note,
    )
    if output.as_json:
        output.document(results)
    else:
        _show(output, results)


def _seeds(text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--seeds is a list of whole numbers such as 0,1,2, got '{text}'.") from None
    if len(set(found)) < len(found) or min(found) < 0:
        raise UsageError(f"--seeds is a list of different numbers of 0 or more, got '{text}'.")
    return found


def _show(output: Output, results: Mapping[str, Any]) -> None:
    from stablernn.reproduce.published_tables import published_table
    from stablernn.reproduce.rendering import header, lines, notes, title

    table = published_table(results["table"])
    output.text(f"{table.paper}, {table.source}: {table.title}")
    for view, rows in results["views"].items():
        output.text()
        output.table(header(table), lines(table, rows, narrow=True), title=title(view, results))
    output.text()
    for sentence in notes(results):
        output.text(sentence)
    output.note(f"Wrote {results['output']} (results.json, table.md, {table.key}.png, runs).")
