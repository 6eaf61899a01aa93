"""`stablernn reproduce`: published tables, trained again and compared with the published figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from stablernn.errors import CheckpointError
from stablernn_cli.errors import UsageError
from stablernn_cli.options import JsonOption
from stablernn_cli.output import Output
from stablernn_papers.folder import ReproductionFolder, default_folder
from stablernn_papers.results import (
    current_runs,
    data_states,
    describe_optional_runs,
    describe_state,
    progress,
    read_results,
    state_of,
    stored_results,
)
from stablernn_papers.statements import judge_statements
from stablernn_papers.table import FULL, SHORT, STATES, Table
from stablernn_papers.tables import TABLES

EpochsOption = Annotated[
    int | None,
    typer.Option(min=1, help="Epochs after which training stops; the result is partial, and a greater number goes on."),
]
StepsOption = Annotated[
    int | None, typer.Option(min=1, help="Optimizer steps after which training stops, as --epochs.")
]

app = typer.Typer(help="Train published tables again", no_args_is_help=True, add_completion=False)


@app.command("list")
def list_(
    context: typer.Context,
    root: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the reproductions.", show_default=True)] = Path(
        "reproductions"
    ),
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Add the papers, the origin of shipped results, and what they decide.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List the tables that can be reproduced

    With the state of the best reproduction, below the folder or stored with stablernn: not run; short, a scaled-down
    one; partial, a share of the training, of the data or of the seeds; full, if all is done. Data sets are named where
    their states differ.

    Example: stablernn reproduce list
    """
    from stablernn.errors import CheckpointError

    output = Output.of(context, as_json)
    rows = states(root)
    if as_json:
        output.document(rows)
    else:
        _show_states(output, rows)
        if verbose:
            _show_sources(output, rows)
    problems = [problem for row in rows for problem in row["problems"]]
    if problems:
        raise CheckpointError(problems[0])


def _show_states(output: Output, rows: Sequence[Mapping[str, Any]]) -> None:
    lines = [
        (
            row["table"],
            row["summary"],
            row["description"],
            _describe_progress(row["progress"], row["optional_runs"]),
            # Without a reproduction below the folder, the stored one counts.
            row["output"] or (row["shipped"] and "shipped"),
        )
        for row in rows
    ]
    output.table(("table", "measures", "state", "done", "output"), lines)


def _show_sources(output: Output, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        output.text()
        output.text(f"{row['table']}: {row['title']}; {row['rows']} rows on {', '.join(row['data'])}.")
        output.text(f"{row['paper']}, {row['source']}.")
        if row["shipped"] is not None:
            output.text(f"Shipped: {_describe_shipped(row['shipped'])}")
        for statement in row["statements"]:
            if statement["verdict"] != "not tested":
                output.text(f"{statement['verdict'].capitalize()}: {statement['statement']} {statement['figures']}.")


def _describe_progress(progress: Mapping[str, Any] | None, optional_runs: Sequence[str]) -> str | None:
    """Return how much is done: runs, and shares of rows, data, seeds and epochs that are below the whole."""
    if progress is None:
        return None
    parts = ["{} of {} runs".format(*progress["runs"])]
    for name in ("rows", "data", "seeds"):
        done, total = progress[name]
        if 0 < done < total:
            parts.append(f"{name} {done} of {total}")
    if progress["epochs"] is not None and progress["epochs"] < 1:
        parts.append(f"epochs {100 * progress['epochs']:.3g} %")
    if progress["partial_data"]:
        parts.append("data sets in part")
    return ", ".join([*parts, *optional_runs])


def _describe_shipped(shipped: Mapping[str, Any]) -> str:
    """Return a line about shipped results: the commit of the code, and their path."""
    commit, _, dirty = (shipped["commit"] or "unknown").partition("-")
    changes = " with uncommitted changes" if dirty else ""
    return f"{shipped['state']} results of {shipped['time'][:10]}, commit {commit[:12]}{changes}: {shipped['results']}"


def _command(table: Table) -> Callable[..., None]:
    """Return the command that reproduces one table."""
    key, data_names = table.key, ", ".join(data.key for data in table.data) or "none"

    def command(
        context: typer.Context,
        short: Annotated[
            bool, typer.Option("--short", help="A scaled-down protocol of a few minutes, without a comparison.")
        ] = False,
        seeds: Annotated[
            str | None, typer.Option(metavar="N,N,...", help="Seeds of the runs; default: the protocol's.")
        ] = None,
        rows: Annotated[str | None, typer.Option(metavar="KEY,...", help="Rows of the table; default: all.")] = None,
        data: Annotated[
            str | None,
            typer.Option(metavar="NAME,...", help="Data sets of the table, named above; default: the published ones."),
        ] = None,
        epochs: EpochsOption = None,
        steps: StepsOption = None,
        partial_data: Annotated[
            bool, typer.Option("--partial-data", help="Accept a data set of which only a part is on disk.")
        ] = False,
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
        printer = Output.of(context, as_json)
        arguments = {
            "seeds": None if seeds is None else _parse_seeds(seeds),
            "rows": _split(rows),
            "data": _split(data),
            "partial_data": partial_data,
            "match_accuracy": match_accuracy,
            "jobs": jobs,
        }
        _reproduce(printer, key, short, output, (epochs, steps), arguments)

    # A docstring cannot be an f-string; the help is made from this attribute.
    command.__doc__ = f"""{_first_line(table)}

    Trains the models of the published table and models to compare them with, measures them, and prints the results next
    to the published figures. Data sets: {data_names}. Finished runs in the folder are reused, and stopped ones
    continue: press Ctrl-C and repeat the command. Started on several machines with one folder, it shares the runs
    between them. docs/background/papers.md has the protocol, the gaps of the paper that were
    filled, and the results.

    Example: stablernn reproduce {key} --short --jobs 2
    """
    return command


def _first_line(table: Table) -> str:
    """Return the first line of a help text, which is short and begins with a capital letter."""
    line = table.summary or table.title
    return line[0].upper() + line[1:]


for _key, _table in TABLES.items():
    app.command(_key)(_command(_table))


def _split(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",")]


def _reproduce(
    output: Output,
    key: str,
    short: bool,
    folder: Path | None,
    length: tuple[int | None, int | None],
    arguments: Mapping[str, Any],
) -> None:
    epochs, steps = length
    if epochs is not None and steps is not None:
        raise UsageError("--epochs and --steps exclude each other.")
    match_accuracy = arguments["match_accuracy"]
    if match_accuracy is not None and not 0 < match_accuracy <= 1:
        raise UsageError(f"--match-accuracy must be above 0 and at most 1, got {match_accuracy:g}.")
    with output.status("Loading ..."):
        from torch import device

        from stablernn.training.loop.device import environment
        from stablernn_papers.kinds.kind import Length
        from stablernn_papers.reproduction import reproduce
        from stablernn_papers.table import FULL, SHORT
    if not short and (environment(device("cpu"))["commit"] or "").endswith("-dirty"):
        output.note("Note: the code has uncommitted changes, so these results cannot be reproduced from a commit.")
    with output.status(f"Running the models of {key} ..."):
        results = reproduce(
            key, SHORT if short else FULL, folder, length=Length(epochs, steps), report=output.note, **arguments
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
    from stablernn_papers.rendering import header, lines, notes, sections
    from stablernn_papers.tables import published_table

    table = published_table(results["table"])
    output.text(f"{table.paper}, {table.source}: {table.title}")
    for title, columns, rows in sections(table, results):
        output.text()
        output.table(header(columns), lines(columns, rows, narrow=True), title=title)
    output.text()
    for sentence in notes(table, results):
        output.text(sentence)
    figure = Path(results["output"]) / f"{table.key}.png"
    drawn = f", {figure.name}" if figure.is_file() else ""
    output.note(f"Wrote {results['output']} (results.json, table.md{drawn}, runs).")


def states(root: Path) -> list[dict[str, Any]]:
    """Return every table with the state of its best reproduction, made below a folder or stored with stablernn.

    A file that cannot be used, because it was edited or is damaged, is left out; ``problems`` has the reason.
    ``statements`` are those of the papers that the figures of the table are judged by.
    """
    shown: dict[str, dict[str, Any]] = {}
    rows = [_table_state(root, table, shown) for table in TABLES.values()]
    judged = judge_statements(shown)
    return [
        {**row, "statements": [statement for statement in judged if statement["table"] == row["table"]]} for row in rows
    ]


def _table_state(root: Path, table: Table, all_shown: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the state of a table, and add the results that it is of to those of all tables."""
    problems: list[str] = []
    folders = [ReproductionFolder(default_folder(root, table, name), table, name) for name in (FULL, SHORT)]
    pairs = []
    for folder in folders:
        results = _usable(partial(read_results, folder.results), problems)
        if results is not None and results.get("table") == table.key:
            pairs.append((folder, results))
    # The most advanced state; the full protocol comes first among equals.
    best = max(pairs, key=lambda pair: STATES.index(state_of(table, pair[1])), default=None)
    stored = _usable(partial(stored_results, table), problems)
    candidates = [pair[1] for pair in (best, stored) if pair is not None]
    shown = max(candidates, key=lambda results: STATES.index(state_of(table, results)), default=None)
    keys = [data.key for data in table.data]
    if shown is not None:
        all_shown[table.key] = shown
    return {
        "table": table.key,
        "paper": table.paper,
        "rows": len(table.rows),
        "state": STATES[0] if shown is None else state_of(table, shown),
        "data_states": dict.fromkeys(keys, STATES[0]) if shown is None else data_states(table, shown),
        "description": STATES[0] if shown is None else describe_state(table, shown),
        "optional_runs": [] if shown is None else describe_optional_runs(table, shown),
        "title": table.title,
        "summary": table.summary or table.title,
        "source": table.source,
        "data": keys,
        "progress": None if shown is None else _progress(table, shown),
        "output": None if best is None else str(best[0].path),
        "shipped": None if stored is None else _stored_row(table, *stored),
        "finished_runs": {
            FULL: len(folders[0].finished_runs()),
            SHORT: len(folders[1].finished_runs()),
        },
        "problems": problems,
    }


def _usable(read: Callable[[], Any], problems: list[str]) -> Any:
    try:
        return read()
    except CheckpointError as error:
        problems.append(str(error))
        return None


def _progress(table: Table, results: Mapping[str, Any]) -> dict[str, Any]:
    protocol = results["protocol"]["name"]
    return progress(table, protocol, current_runs(table, protocol, results["runs"]))


def _stored_row(table: Table, path: Path, results: dict[str, Any]) -> dict[str, Any]:
    environment = results["environment"]
    return {
        "state": state_of(table, results),
        "commit": environment["commit"],
        "time": environment["time"],
        "results": str(path),
    }
