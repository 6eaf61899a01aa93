"""`stablernn data`: named datasets, and checks of any data."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stablernn_cli.commands.data_check import check
from stablernn_cli.options import JsonOption
from stablernn_cli.output import Output

LIST_FACTS = (
    "name",
    "title",
    "task",
    "here",
    "splits",
    "variants",
    "options",
    "licence",
    "source",
    "settings",
    "files",
)
"""Facts about each dataset in the JSON document of the list."""

app = typer.Typer(help="Look up named datasets, check data", no_args_is_help=True, add_completion=False)


@app.command("list")
def list_(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(help="Only names that match; * and ? are wildcards.")] = "*",
    as_json: JsonOption = False,
) -> None:
    """List the named datasets

    The column `here` tells if the files are below STABLERNN_DATA or in the cache. Missing ones are fetched when they
    are first used, or by `stablernn data fetch`. Wherever `--data` takes a name, it also takes the path of a file.

    Example: stablernn data list "*mnist*"
    """
    from stablernn.catalog import list_dataset_facts

    output = Output.of(context, as_json)
    rows = [{fact: dataset[fact] for fact in LIST_FACTS} for dataset in list_dataset_facts(pattern)]
    if as_json:
        output.document(rows)
    else:
        # A terminal is too narrow for all facts.
        columns = ("name", "task", "here", "title", "splits", "licence")
        output.table(columns, [[row[column] for column in columns] for row in rows])


@app.command("fetch")
def fetch_(
    context: typer.Context,
    names: Annotated[list[str], typer.Argument(help="Datasets, see `data list`.", metavar="NAME...")],
    base: Annotated[
        str | None, typer.Option("--from", help="URL of a mirror with the files under their names.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch the files of named datasets

    From their published sources; each file is compared with its published checksum before it is stored. They go below
    STABLERNN_DATA if that is set and writable, else into the cache. Files that are here already are not fetched again.

    Example: stablernn data fetch mnist etth1
    """
    from stablernn.data import dataset_info
    from stablernn.data.named.fetch import fetch

    output = Output.of(context, as_json)
    # All names are looked up before the first download.
    infos = [dataset_info(name) for name in names]
    # One at a time: an error leaves the datasets before it in place.
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
