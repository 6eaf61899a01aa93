"""`stablernn cells`: the catalog of architectures."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from stablernn_cli.options import JsonOption
from stablernn_cli.output import Output

LIST_FACTS = ("key", "title", "paper", "year", "guarantee", "family", "exports")
"""Facts about each cell in the JSON document of the list."""

app = typer.Typer(help="Look up the cells that can be trained", no_args_is_help=True, add_completion=False)


@app.command("list")
def list_(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(help="Only keys that match; * and ? are wildcards.")] = "*",
    as_json: JsonOption = False,
) -> None:
    """List the cells

    Example: stablernn cells list 'lipschitz*'
    """
    from stablernn.catalog import list_cell_facts

    output = Output.of(context, as_json)
    rows = [{fact: cell[fact] for fact in LIST_FACTS} for cell in list_cell_facts(pattern)]
    if as_json:
        output.document(rows)
    else:
        # Without the titles, for which a terminal is too narrow.
        columns = [fact for fact in LIST_FACTS if fact != "title"]
        text_rows = [{**row, "exports": ", ".join(row["exports"])} for row in rows]
        output.table(columns, [[row[column] for column in columns] for row in text_rows])
        output.note("`stablernn cells show KEY` prints its equation, its options and a command that trains it.")


@app.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Key of a cell, as `cells list` prints it.")],
    as_json: JsonOption = False,
) -> None:
    """Show one cell: equation, guarantee, options, command

    Options are set by `stablernn train --set model.cell_options.NAME=VALUE`. The preset 'practical' has values that
    this library was tuned with; 'paper' (`--preset paper`) has the published ones.

    Example: stablernn cells show lipschitz
    """
    from stablernn.catalog import get_cell_facts

    output = Output.of(context, as_json)
    cell = get_cell_facts(name)
    command = f"stablernn train --data digits --cell {name} --run-dir runs/{name}"
    document = {**cell, "train": command}
    if as_json:
        output.document(document)
        return
    output.facts(
        {
            "key": name,
            "paper": cell["paper"],
            "family": cell["family"],
            "guarantee": cell["guarantee"],
            "one step": cell["equation"],
            "irregular time": "uses the time between steps" if cell["takes"]["dt"] else "regular steps only",
            "missing values": "handled by the cell" if cell["takes"]["missing"] else "filled in before the cell",
            "exports to": ", ".join(cell["exports"]),
            **({"package": cell["package"]} if "package" in cell else {}),
        },
        title=cell["title"],
    )
    # Options of the cell first, then settings of its training, each with both presets side by side.
    _show_presets(output, "option (model.cell_options.*)", cell["options"])
    _show_presets(output, "recommended (training.*)", cell["training"])
    output.text(f"\nSource of the preset 'paper': {cell['paper_source'] or 'the same values'}")
    output.text(f"\nTrain it:\n    {command}")


def _show_presets(output: Output, heading: str, presets: dict[str, dict[str, Any]]) -> None:
    # The union in order of appearance: a preset may leave a name out.
    names = list(dict.fromkeys([*presets["practical"], *presets["paper"]]))
    if names:
        output.text()
        output.table(
            (heading, "practical", "paper"),
            [[name, *(str(presets[preset].get(name, "-")) for preset in ("practical", "paper"))] for name in names],
        )
