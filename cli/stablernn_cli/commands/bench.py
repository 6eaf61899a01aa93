"""`stablernn bench`: how fast a cell trains and runs on this machine, beside the limit and peers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from stablernn_cli.options import JsonOption, option
from stablernn_cli.output import Output

Part = Literal["train", "sequence", "step"]

TITLES: dict[Part, str] = {
    "train": "A training step: forward, backward and Adam",
    "sequence": "A batch of whole sequences",
    "step": "A step of one stream",
}
UNITS: dict[Part, str] = {"train": "ms", "sequence": "ms", "step": "us"}


def parse_part(text: str) -> Part:
    """Return a part for ``--part``; typer takes no lists of literals.

    Raises:
        typer.BadParameter: If there is no such part.
    """
    if text not in TITLES:
        raise typer.BadParameter(f"'{text}' is not one of {', '.join(map(repr, TITLES))}.")
    return text


def bench(
    context: typer.Context,
    cell: Annotated[str, typer.Option(metavar="NAME", help="Key of a cell, as `cells list` prints it.")] = (
        "antisymmetric"
    ),
    hidden_size: Annotated[int, typer.Option(min=1, help="Units of each layer.")] = 128,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences in a minibatch; a stream is one.")] = 128,
    length: Annotated[int, typer.Option(min=1, help="Time steps of each sequence.")] = 784,
    num_layers: Annotated[int, typer.Option(min=1, help="Recurrent layers.")] = 1,
    members: Annotated[int, typer.Option(min=1, help="Networks of an ensemble, of which peers get as many.")] = 1,
    part: Annotated[
        list[str] | None,
        option(
            "What is timed; can be given several times; default: all.",
            parser=parse_part,
            metavar=f"[{'|'.join(TITLES)}]",
            autocompletion=lambda incomplete: [part for part in TITLES if part.startswith(incomplete)],
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=2, help="How often each row is timed.")] = 7,
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch and of ONNX Runtime.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Time a cell's training and inference next to peers

    Prints up to three tables: a training step, by every engine that runs the cell, a loop written by hand and layers of
    torch; a batch of whole sequences, through the exported graph, the engine native of the server, torch and ONNX
    Runtime's LSTM; a step of one stream, through the same. The data are random sequences of one feature, in float32 and
    on the CPU.

    All rows of a table are timed in turn, round after round, so that a slow moment of the machine affects each of them.
    The limit is the time of the cell's matrix products alone, by torch: those of each step with the state, and those
    between layers. A cell without a step form counts as one product a step. A ratio is the time of a row divided by
    that of the limit in the same round, a median with its quartiles; it is below 1 where an engine has faster products.
    With one thread, times are processor time; with more, wall time. Denormal numbers are flushed to zero for all rows
    where the processor can do that; the conditions say so.

    Example: stablernn bench --cell lipschitz --hidden-size 64 --part train
    """
    from stablernn.catalog import get_cell_facts

    output = Output.of(context, as_json)
    sizes = {
        "cell": get_cell_facts(cell)["key"],
        "hidden_size": hidden_size,
        "batch_size": batch_size,
        "length": length,
        "num_layers": num_layers,
        "members": members,
    }
    # In the order of the tables, each once.
    parts: list[Part] = [name for name in TITLES if not part or part.count(name)]
    document = time_parts(output, sizes, parts, rounds, threads)
    output.answer(document, _show)


def time_parts(output: Output, sizes: dict[str, Any], parts: list[Part], rounds: int, threads: int) -> dict[str, Any]:
    """Return the document that ``bench --json`` prints.

    Args:
        output: For progress and warnings.
        sizes: Fields of :class:`stablernn_cli.bench.Sizes`.
        parts: The tables to measure.
        rounds: How often each row is timed, 2 or more.
        threads: Threads of torch and of each session.

    Raises:
        stablernn.errors.ConfigError: If the cell cannot have these sizes.
    """
    with output.status("Loading ..."):
        import torch

        from stablernn_cli import bench as rows_of

    clock: rows_of.Clock = "cpu_ms" if threads == 1 else "wall_ms"
    tables = []
    with rows_of.pinned(threads) as is_flushed:
        facts = {**rows_of.conditions(is_flushed=is_flushed), "rounds": rounds, "clock": clock}
        if is_flushed and threads > 1:
            # Each session sets this for the threads that it starts.
            facts["denormals"] = "flushed, but not in the worker threads of ONNX Runtime"
        if not is_flushed:
            output.warn(
                "This processor cannot flush denormal numbers, which slow down some rows several times and others not "
                "at all: ratios compare rows only where none occur."
            )
        for name in parts:
            with output.status(f"Timing {name}, {rounds} rounds ..."):
                torch.manual_seed(0)
                network = rows_of.Sizes(**sizes)
                make = {"sequence": rows_of.sequence_rows, "step": rows_of.step_rows}.get(name)
                rows = rows_of.training_rows(network) if make is None else make(network, threads)
                figures = rows_of.measure(rows, rounds, is_warmed=name != "train", clock=clock)
            tables.append(_table(name, figures))
    return {"sizes": sizes, "conditions": facts, "tables": tables}


def _table(part: Part, figures: dict[str, dict[str, float]]) -> dict[str, Any]:
    unit = UNITS[part]
    rows = []
    for name, row in figures.items():
        times = {f"cpu_{unit}": row["cpu_ms"], f"wall_{unit}": row["wall_ms"]}
        rows.append({"row": name, **times, **{key: row[key] for key in ("ratio", "ratio_low", "ratio_high")}})
    return {"part": part, "title": TITLES[part], "unit": unit, "rows": rows}


def _show(output: Output, document: dict[str, Any]) -> None:
    sizes, facts = document["sizes"], document["conditions"]
    clock = facts["clock"].removesuffix("_ms")
    for table in document["tables"]:
        unit = table["unit"]
        output.table(
            ("row", unit, "ratio to the limit", "quartiles"),
            [
                [row["row"], row[f"{clock}_{unit}"], row["ratio"], f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}"]
                for row in table["rows"]
            ],
            title=table["title"],
        )
        output.text()
    output.facts(
        {
            "sizes": ", ".join(f"{name} {value}" for name, value in sizes.items()),
            "times": f"{'processor' if clock == 'cpu' else 'wall'} time, medians of {facts['rounds']} rounds",
            "threads": f"{facts['threads']} of {facts['cores']} cores",
            "torch": f"{facts['torch']} ({facts['cpu_capability']}), {facts['machine']}",
            "denormal numbers": facts["denormals"],
        }
    )
