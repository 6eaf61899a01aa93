"""`stablernn tune`: a search over ranges of settings, by Optuna."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from stablernn_cli import config_options
from stablernn_cli.commands.train import explicit_command
from stablernn_cli.config_options import check_cell, check_options, read_settings, takes_settings
from stablernn_cli.errors import CommandError, UsageError
from stablernn_cli.options import JsonOption, Kind, option, require_option
from stablernn_cli.output import Output, count_of

SEARCH_PANEL = "Search"
DEFAULT_TRIALS = 50
SHOWN_TRIALS = 5


search_option = partial(option, rich_help_panel=SEARCH_PANEL)


@takes_settings(
    *("cell", "epochs", "max_steps", "seed", "device"),
    sections=("data", "task"),
    cell="Keys of cells, separated by commas; several: the cell is searched, too; default: those that `train` "
    "compares.",
    epochs="Passes over the training data; default: depends on the cell and the data.",
    seed="Seed of the search and of every training; default: 0.",
)
def tune(
    context: typer.Context,
    options: dict[str, Any],
    trials: Annotated[
        int | None,
        search_option(
            f"Trials of the study, those of earlier calls included; default: {DEFAULT_TRIALS}, or no limit with "
            "--timeout.",
            min=1,
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        search_option(
            "Time, such as 90s, 30m or 2h, after which running trials are stopped; default: none.", metavar="TIME"
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Parallel trainings, one thread each.", rich_help_panel=SEARCH_PANEL)
    ] = 1,
    output: Annotated[
        Path | None,
        search_option("Folder of the study; default: tuning/, then data and cell.", metavar="DIR"),
    ] = None,
    storage: Annotated[
        str | None,
        search_option(
            "Database of the study, such as postgresql://user@host/name; default: a journal in --output.",
            metavar="URL",
            envvar="STABLERNN_TUNE_STORAGE",
        ),
    ] = None,
    require: Annotated[
        Kind,
        require_option("Prune trials of which less is proved; default: none.", rich_help_panel=SEARCH_PANEL),
    ] = "none",
    track: config_options.TrackOption = None,
    config: config_options.ConfigOption = None,
    overrides: config_options.SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search settings over ranges

    Optuna chooses settings by the validation split: learning rate, sizes, dropout, weight decay, patches or context,
    and the options of the cell. A setting that you give, here, in --config or by --set, is not searched.
    docs/reference/settings.md has the ranges. The test split takes no part in the search.

    Each trial is a run like any other, in the folder trials of --output. Trials that fall behind are pruned, and with
    --require those of which less is proved.

    Ctrl-C stops with exit code 130. The same command goes on, also with trials whose process died. Several of these
    commands work on one study together, on several machines with --storage.

    Example: stablernn tune --data digits --cell lipschitz --trials 20 --workers 2
    """
    output_ = Output.of(context, as_json)
    overrides = overrides or []
    check_options(options, has_source=bool(config or overrides))
    named = next((text for text in overrides if text.partition("=")[0].strip() == "model.cell"), None)
    if "cell" in options and named is not None:
        raise UsageError(f"--cell {options['cell']} contradicts --set {named}. Give only one of them.")
    if find_spec("optuna") is None:
        raise CommandError(
            "`stablernn tune` needs Optuna, which is not installed. Install it with pip install -e '.[tune]' in the "
            "checkout."
        )
    with output_.status("Loading ..."):
        from stablernn.errors import ConfigError
        from stablernn.training.search.budget import Budget
        from stablernn.training.settings.config import AUTO
        from stablernn.training.tune import TuneOptions, default_output
        from stablernn.training.tune import tune as search

        cells = tuple(dict.fromkeys(key.strip() for key in options.get("cell", "").split(",") if key.strip()))
        settings = read_settings({name: value for name, value in options.items() if name != "cell"}, config, overrides)
        if not cells and settings.model.cell != AUTO:
            cells = (settings.model.cell,)
        for key in cells:
            check_cell(settings.model_copy(update={"model": settings.model.model_copy(update={"cell": key})}))
        limit = None if timeout is None else Budget.parse(timeout).seconds
        if timeout is not None and limit is None:
            raise ConfigError(f"--timeout is a time such as 90s, 30m or 2h, got '{timeout}'. --trials is a number.")
    search_options = TuneOptions(
        cells=cells,
        trials=trials or (DEFAULT_TRIALS if timeout is None else None),
        seconds=limit,
        workers=workers,
        output=output or default_output(settings.data.source, cells),
        storage=storage,
        require=require,
        track=tuple(track or ()),
    )
    with output_.status(f"Searching; the trials are in {search_options.output} ..."):
        results = search(settings, search_options, output_.note)
    results["command"] = explicit_command(results["best"], options, config=config, overrides=overrides)
    output_.answer(results, _show)


def _show(output: Output, results: Mapping[str, Any]) -> None:
    trials = {trial["number"]: trial for trial in results["trials"]}
    ranked = [trials[number] for number in results["ranked"][:SHOWN_TRIALS]]
    rows = [
        [
            str(trial["number"]),
            f"{trial['value']:.4g}",
            trial["certificate"],
            str(trial["epochs"]),
            trial["cell"],
            _in_words(trial["settings"]),
        ]
        for trial in ranked
    ]
    columns = ("trial", f"validation {results['metric']}", "proved", "epochs", "cell", "settings")
    counts = results["counts"]
    title = f"the best of {count_of(sum(counts.values()), 'trial')}: " + ", ".join(
        f"{count} {state}" for state, count in counts.items() if count
    )
    output.table(columns, rows, title=title)
    if results["importances"]:
        shares = (f"{name} {share:.0%}" for name, share in results["importances"].items())
        output.text(f"Importance: {', '.join(shares)}")
    output.text(f"Best run: {results['best']['run']}")
    output.text(f"The same without a search: {results['command']}")
    if results["running"]:
        output.note(f"Still running in another process: {count_of(results['running'], 'trial')}.")
    output.note(f"Wrote {results['output']} (results.json, plots, trials).")
    output.note(f"Next: stablernn export {results['best']['run']} --name NAME")


def _in_words(settings: Mapping[str, Any]) -> str:
    """Return settings without the names of their sections."""
    return ", ".join(
        f"{key.rpartition('.')[2]} {value:g}" if isinstance(value, float) else f"{key.rpartition('.')[2]} {value}"
        for key, value in settings.items()
        if key != "model.cell"
    )
