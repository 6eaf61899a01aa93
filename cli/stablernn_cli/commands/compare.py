"""`stablernn compare`: cells and recipes on data sets, over seeds, in equal processor time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from stablernn_cli import config_options
from stablernn_cli.errors import UsageError
from stablernn_cli.options import DATA_PANEL, JsonOption, option
from stablernn_cli.output import Output


def compare(
    context: typer.Context,
    data: Annotated[
        list[str] | None,
        option("Dataset name or file, as `train` takes it; may be repeated.", rich_help_panel=DATA_PANEL),
    ] = None,
    cells: Annotated[str | None, option("Keys of the cells to compare.", metavar="KEY,...")] = None,
    recipe: Annotated[
        list[str] | None,
        option(
            "Settings to train each cell with, such as 'wide: model.hidden_size=128'; may be repeated.",
            metavar="NAME: KEY=VALUE ...",
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(metavar="N,...", help="Seeds of the trainings.")] = "0,1,2",
    budget: Annotated[
        str | None,
        option(
            "Processor time of each run, such as 90s or 2m; default: that of the first cell's own training.",
            metavar="TIME",
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        option("Passes over the training data, instead of --budget.", min=1),
    ] = None,
    baselines: Annotated[
        str | None,
        option(
            "Models of other libraries: minirocket, multirocket-hydra, 1nn-dtw, autoets, autotheta.", metavar="NAME,..."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 1,
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the comparison.")] = Path("comparison"),
    track: config_options.TrackOption = None,
    config: config_options.ConfigOption = None,
    overrides: config_options.SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare cells on data sets

    Each cell, with each recipe, is trained with each seed on each data set for the same processor time. Tables have the
    test score, its mean ± standard deviation over the seeds, the rank, parameters, time of a streamed step and what is
    proved. From two data sets on there are mean ranks too, with a critical-difference plot. A sentence says what the
    test over data sets can and cannot separate.

    The folder has the runs, results.json, results.csv with a row for each run, table.md, table.tex and, with several
    data sets, critical_difference.png. Finished runs are kept: the same command goes on after a stop, and further
    seeds, cells and data sets join. Started on several machines with one folder, it shares the runs between them.

    Example: stablernn compare --data digits --cells lru,lstm --seeds 0,1
    """
    out = Output.of(context, as_json)
    if not data:
        raise UsageError("Missing option '--data'. See `stablernn data list` for the choices.")
    if not cells:
        raise UsageError("Missing option '--cells'. See `stablernn cells list` for the choices.")
    if budget is not None and epochs is not None:
        raise UsageError("--budget and --epochs exclude each other. Give only one of them.")
    with out.status("Loading ..."):
        from stablernn.compare import Comparison, parse_recipe
        from stablernn.compare import compare as run_comparison
        from stablernn.compare.baselines import baselines_of
        from stablernn.compare.run_comparison import make_contenders, make_problems

        comparison = Comparison(
            make_problems(data),
            make_contenders(_names(cells), [parse_recipe(text) for text in recipe or ()]),
            _whole_numbers(seeds),
            config,
            tuple(overrides or ()),
            None if budget is None else _seconds(budget),
            epochs,
            baselines_of(_names(baselines or "")),
            tuple(track or ()),
        )

    def show_progress(name: str, done: int, total: int) -> None:
        out.note(f"{done} of {total}: {name}")

    with out.status(f"Training and measuring {cells} on {', '.join(data)} ..."):
        results = run_comparison(comparison, output, jobs=jobs, progress=show_progress, report=out.note)
    out.answer(results, _show, output)


def _show(output: Output, results: Mapping[str, Any], folder: Path) -> None:
    from stablernn.compare.results import columns, describe_test, describe_trivial, table_rows

    for name, table in results["problems"].items():
        output.table(columns(table), table_rows(table), title=name)
        sentence = describe_trivial(table)
        if sentence:
            output.text(sentence)
    ranks = results["ranks"]
    if ranks["problems"] > 1:
        rows = [[name, f"{value:.2f}"] for name, value in ranks["mean"].items()]
        output.table(("", "mean rank"), rows, title=f"over {ranks['problems']} data sets")
    output.text(describe_test(ranks))
    output.note(f"Written to {folder}. See two runs over one another: stablernn runs show A B")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _whole_numbers(text: str) -> list[int]:
    numbers = _names(text)
    if not numbers or not all(number.isdecimal() for number in numbers) or len(set(numbers)) < len(numbers):
        raise UsageError(f"--seeds takes different whole numbers from 0, separated by commas, got '{text}'.")
    return [int(number) for number in numbers]


def _seconds(text: str) -> float:
    from stablernn.training.search.budget import Budget

    seconds = Budget.parse(text).seconds
    if seconds is None:
        raise UsageError(f"--budget takes a time, such as 90s or 2m, got '{text}'. Use --epochs for equal epochs.")
    return seconds
