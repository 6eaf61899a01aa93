"""`stablernn data`: the datasets that have a name."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stablernn_cli.output import JsonOption, Output

app = typer.Typer(help="Look up the named datasets", no_args_is_help=True)


@app.command("list")
def list_(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(help="Only names that match, with * and ? as wildcards.")] = "*",
    as_json: JsonOption = False,
) -> None:
    """List the named datasets

    Everything that takes `--data` also takes the path of a file: .npz, .ts, .tsv (sequences with labels) or .csv
    (series to forecast).

    Example: stablernn data list
    """
    from stablernn.data import list_datasets

    output = Output.of(context, as_json)
    rows: list[dict[str, Any]] = [
        {
            "name": info.key,
            "title": info.title,
            "task": info.task,
            "splits": info.splits,
            "licence": info.licence,
            "source": info.source,
            "settings": dict(info.settings),
            "path": str(info.file),
        }
        for info in list_datasets(pattern)
    ]
    if as_json:
        output.document(rows)
    else:
        columns = ("name", "task", "title", "splits", "licence")
        output.table(columns, [[row[column] for column in columns] for row in rows])
