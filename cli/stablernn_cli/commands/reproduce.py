"""`stablernn reproduce`: published tables, trained again and compared with the published figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from stablernn_cli.errors import UsageError
from stablernn_cli.options import JsonOption
from stablernn_cli.output import Output

app = typer.Typer(help="Train published tables again", no_args_is_help=True, add_completion=False)

# Same as in stablernn.reproduce.published_tables, whose import is too slow for a program that only prints its help.
TABLES = {
    "robustness": "Attacked accuracy and curvature, MNIST in rows",
}


@app.command("list")
def list_(
    context: typer.Context,
    root: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the reproductions.", show_default=True)] = Path(
        "reproductions"
    ),
    as_json: JsonOption = False,
) -> None:
    """List the tables that can be reproduced

    With the state of the best reproduction, below the folder or shipped with stablernn: not run; short, a scaled-down
    one; partial, if some runs of the comparison are done; full, if all are.

    Example: stablernn reproduce list
    """
    from stablernn.reproduce.states import states

    output = Output.of(context, as_json)
    rows = states(root)
    if as_json:
        output.document(rows)
        return
    columns = ("table", "paper", "source", "rows", "state", "output")
    # Without a reproduction below the folder, the shipped one counts.
    lines = [{**row, "output": row["output"] or (row["shipped"] and "shipped")} for row in rows]
    output.table(columns, [[row[column] for column in columns] for row in lines])
    for row in rows:
        if row["shipped"] is not None:
            output.note(f"{row['table']}: {_describe_shipped(row['shipped'])}")


def _describe_shipped(shipped: Mapping[str, Any]) -> str:
    """Return a line about shipped results: the commit of the code, and their path."""
    commit, _, dirty = (shipped["commit"] or "unknown").partition("-")
    changes = " with uncommitted changes" if dirty else ""
    return f"{shipped['state']} results of {shipped['time'][:10]}, commit {commit[:12]}{changes}: {shipped['results']}"


def _command(key: str, title: str) -> Callable[..., None]:
    """Return the command that reproduces one table."""

    def command(
        context: typer.Context,
        short: Annotated[
            bool, typer.Option("--short", help="A scaled-down protocol of a few minutes, without a comparison.")
        ] = False,
        seeds: Annotated[
            str | None, typer.Option(metavar="N,N,...", help="Seeds of the runs; default: the protocol's.")
        ] = None,
        cells: Annotated[str | None, typer.Option(metavar="CELL,...", help="Cells of the table; default: all.")] = None,
        match_accuracy: Annotated[
            float | None,
            typer.Option(
                metavar="SHARE",
                help="Validation accuracy at which the second view compares models; default: the highest that all "
                "runs reach.",
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
        jobs: Annotated[int, typer.Option(min=1, help="Parallel runs, one thread each.")] = 1,
        as_json: JsonOption = False,
    ) -> None:
        _reproduce(Output.of(context, as_json), key, short, seeds, cells, match_accuracy, output, jobs)

    # A docstring cannot be an f-string; the help is made from this attribute.
    command.__doc__ = f"""{title}

    Trains the models of the published table and models to compare them with, measures them, and prints the results next
    to the published figures. Finished runs in the folder are reused, and stopped ones continue: press Ctrl-C and repeat
    the command. docs/reproduce.md has the protocol, the gaps of the paper that were filled, and the results.

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
    seed_numbers = None if seeds is None else _parse_seeds(seeds)
    if match_accuracy is not None and not 0 < match_accuracy <= 1:
        raise UsageError(f"--match-accuracy must be above 0 and at most 1, got {match_accuracy:g}.")
    with output.status("Loading ..."):
        from torch import device

        from stablernn.reproduce.run_protocol import reproduce
        from stablernn.reproduce.table import FULL, SHORT
        from stablernn.training.loop.environment import environment
    if not short and (environment(device("cpu"))["commit"] or "").endswith("-dirty"):
        output.note("Note: the code has uncommitted changes, so these results cannot be reproduced from a commit.")
    results = reproduce(
        key,
        SHORT if short else FULL,
        folder,
        seeds=seed_numbers,
        cells=None if cells is None else [cell.strip() for cell in cells.split(",")],
        jobs=jobs,
        match_accuracy=match_accuracy,
        report=output.note,
    )
    if output.as_json:
        output.document(results)
    else:
        _show(output, results)


def _parse_seeds(text: str) -> list[int]:
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--seeds must be a list of whole numbers such as 0,1,2, got '{text}'.") from None
    if len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise UsageError(f"--seeds must be a list of distinct numbers of 0 or more, got '{text}'.")
    return seeds


def _show(output: Output, results: Mapping[str, Any]) -> None:
    from stablernn.reproduce.published_tables import published_table
    from stablernn.reproduce.rendering import header, lines, notes, title

    # Two views of the same runs: their best weights, and those of the first epoch at a common accuracy.
    table = published_table(results["table"])
    output.text(f"{table.paper}, {table.source}: {table.title}")
    for view, rows in results["views"].items():
        output.text()
        output.table(header(table), lines(table, rows, narrow=True), title=title(view, results))
    output.text()
    for sentence in notes(results):
        output.text(sentence)
    output.note(f"Wrote {results['output']} (results.json, table.md, {table.key}.png, runs).")
