"""`stablernn data`: the datasets that have a name, and a look at any data."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stablernn_cli.commands.data_check import check
from stablernn_cli.output import JsonOption, Output

LISTED = ("name", "title", "task", "here", "splits", "variants", "options", "licence", "source", "settings", "files")
"""Facts that the list gives of each dataset."""

app = typer.Typer(help="Look up named datasets, look at data", no_args_is_help=True)


@app.command("list")
def list_(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(help="Only names that match, with * and ? as wildcards.")] = "*",
    as_json: JsonOption = False,
) -> None:
    """List the named datasets

    Whether the files are here is said as well: below STABLERNN_DATA or in the cache. What is not here is fetched when
    it is first used, or by `stablernn data fetch`. Everything that takes `--data` also takes the path of a file.

    Example: stablernn data list "*mnist*"
    """
    from stablernn.catalog import list_dataset_facts

    output = Output.of(context, as_json)
    rows = [{fact: dataset[fact] for fact in LISTED} for dataset in list_dataset_facts(pattern)]
    if as_json:
        output.document(rows)
    else:
        columns = ("name", "task", "here", "title", "splits", "licence")
        output.table(columns, [[row[column] for column in columns] for row in rows])


@app.command("fetch")
def fetch_(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(help="Datasets, see `data list`.", metavar="NAME...")],
    base: Annotated[
        str | None, typer.Option("--from", help="Address that has the files under their names, in place of their home.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch the files of named datasets

    From their homes, each file held against its published checksum before it is in place. They go below STABLERNN_DATA
    where that is set and can be written to, else into the cache. What is here already is not fetched again.

    Example: stablernn data fetch mnist etth1
    """
    from stablernn.data import dataset_info
    from stablernn.data.named.fetch import fetch

    output = Output.of(context, as_json)
    infos = [dataset_info(name) for name in names]
    rows: list[dict[str, Any]] = []
    for info in infos:
        fetched = fetch(info, base=base, report=output.note)
        rows.append({"name": info.key, "here": info.presence, "fetched": [str(path) for path in fetched]})
    if as_json:
        output.document(rows)
        return
    for row in rows:
        if not row["fetched"]:
            output.text(f"{row['name']}: nothing to fetch")
        for path in row["fetched"]:
            output.text(f"{row['name']}: {path}")


app.command("check")(check)
