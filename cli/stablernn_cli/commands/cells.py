"""`stablernn cells`: the catalog of architectures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablernn_cli.output import JsonOption, Output

if TYPE_CHECKING:
    from stablernn.cells import CellInfo

app = typer.Typer(help="Look up the cells that can be trained", no_args_is_help=True)


@app.command("list")
def list_(
    context: typer.Context,
    pattern: Annotated[str, typer.Argument(help="Only keys that match, with * and ? as wildcards.")] = "*",
    as_json: JsonOption = False,
) -> None:
    """List the cells

    Example: stablernn cells list 'lipschitz*'
    """
    from stablernn.cells import cell_info, list_cells

    output = Output.of(context, as_json)
    rows = [_row(cell_info(key)) for key in list_cells(pattern)]
    if as_json:
        output.document(rows)
    else:
        columns = ("key", "paper", "year", "guarantee", "family", "exports")
        shown = [{**row, "exports": ", ".join(row["exports"])} for row in rows]
        output.table(columns, [[row[column] for column in columns] for row in shown])
        output.note("`stablernn cells show KEY` has equation, options and a command that trains it.")


@app.command()
def show(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Key of a cell, as `cells list` prints it.")],
    as_json: JsonOption = False,
) -> None:
    """Show one cell: equation, guarantee, options, command

    Options are set by `stablernn train --set model.cell_options.NAME=VALUE`. The preset 'practical' holds values of
    ours that train well; 'paper' (`--preset paper`) holds the published ones.

    Example: stablernn cells show lipschitz
    """
    from stablernn.cells import cell_info

    output = Output.of(context, as_json)
    info = cell_info(name)
    presets = {preset: info.options(preset) for preset in ("practical", "paper")}
    document = {
        **_row(info),
        "equation": info.equation,
        "options": presets,
        "training": {preset: dict(info.training.get(preset, {})) for preset in presets},
        "paper_source": info.paper_source,
        "takes": {"dt": info.cell.takes_dt, "missing": info.cell.takes_missing},
        "train": f"stablernn train --data digits --cell {info.key} --hidden-size 64 --run-dir runs/{info.key}",
    }
    if as_json:
        output.document(document)
        return
    output.facts(
        {
            "key": info.key,
            "paper": info.paper,
            "family": info.family,
            "guarantee": info.guarantee,
            "one step": info.equation,
            "irregular time": "takes the time between steps" if info.cell.takes_dt else "regular steps only",
            "missing values": "takes them as they are" if info.cell.takes_missing else "filled in before the cell",
            "exports to": ", ".join(info.exports),
        },
        title=info.title,
    )
    _show_presets(output, "option (model.cell_options.*)", presets)
    _show_presets(output, "recommended (training.*)", document["training"])
    output.text(f"\nThe preset 'practical' is ours. 'paper': {info.paper_source or 'the same values'}")
    output.text(f"\nTrain it:\n    {document['train']}")


def _show_presets(output: Output, heading: str, presets: dict[str, dict[str, Any]]) -> None:
    names = list(dict.fromkeys([*presets["practical"], *presets["paper"]]))
    if names:
        output.text()
        output.table(
            (heading, "practical", "paper"),
            [[name, *(str(presets[preset].get(name, "-")) for preset in ("practical", "paper"))] for name in names],
        )


def _row(info: CellInfo) -> dict[str, Any]:
    return {
        "key": info.key,
        "title": info.title,
        "paper": info.paper,
        "year": info.year,
        "guarantee": info.guarantee,
        "family": info.family,
        "exports": list(info.exports),
    }
