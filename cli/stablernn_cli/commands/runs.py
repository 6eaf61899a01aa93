"""`stablernn runs`: lists and comparisons of training runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablernn_cli.errors import UsageError
from stablernn_cli.options import JsonOption, check_figure_path, option
from stablernn_cli.output import Output, count_of, drop_none, scalar_metrics, show_metrics
from stablernn_cli.targets import is_run, missing_run_message

if TYPE_CHECKING:
    from stablernn.training.settings.config import Config
    from stablernn.training.stored_runs import Epoch, StoredRun

DEFAULT_FOLDER = Path("runs")
"""Folder in which `stablernn train` makes run directories."""

COLUMNS = (
    *("run", "data", "task", "cell", "parameters", "epochs", "state"),
    *("metric", "validation", "test", "proved", "seconds", "started (UTC)"),
)
OPTIONAL_COLUMNS = ("task", "seconds", "parameters", "epochs", "data", "started (UTC)", "proved")
"""Columns that narrow terminals do without, in the order in which they are left out."""

SHOWN_EPOCHS = 12
"""Epochs in the table of a run, besides the best one."""

app = typer.Typer(help="List and compare training runs", no_args_is_help=True, add_completion=False)


@app.command("list")
def list_(
    context: typer.Context,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FOLDER]...",
            help=f"Folders with runs, up to six levels deep, or run directories; default: {DEFAULT_FOLDER}.",
            show_default=False,
        ),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="started (the newest first), path, state, data, task, cell, parameters, epochs, seconds or rate (the "
            "smallest first), or a metric of the validation split, test.METRIC of the test split (the best first).",
        ),
    ] = "started",
    as_json: JsonOption = False,
) -> None:
    """List the runs in folders

    A run is done, diverged (done, but its training loss ended far above where it began), running on this machine,
    stopped (`stablernn train --resume` goes on with it) or damaged, with the reason below the table. The scores are
    those of the metric that selects the best weights, or of the metric to sort by.

    Example: stablernn runs list runs reproductions --sort test.accuracy
    """
    from stablernn.training.stored_runs import SORT_KEYS, list_runs, sort_runs, split_and_metric

    output = Output.of(context, as_json)
    for folder in folders or ():
        if not folder.is_dir():
            raise UsageError(
                f"There is no folder '{folder}'. Name one with runs, or none for those in '{DEFAULT_FOLDER}'."
            )
    runs = sort_runs(list_runs(folders or [DEFAULT_FOLDER]), sort)
    if as_json:
        output.document([run.document() for run in runs])
        return
    if not runs:
        places = " or ".join(f"'{folder}'" for folder in folders or [DEFAULT_FOLDER])
        output.text(
            f"There are no runs in {places}. Train one by `stablernn train --data digits`, or name another folder."
        )
        return
    metric = None if sort in SORT_KEYS else split_and_metric(sort)[1]
    left_out = output.table(COLUMNS, [_row(run, metric) for run in runs], optional=OPTIONAL_COLUMNS)
    if left_out:
        output.note(f"The terminal is too narrow for {', '.join(left_out)}; a file, a pipe and --json have them.")
    for run in runs:
        if run.problem is not None:
            output.text(f"{run.path} is damaged: {run.problem}")


def _row(run: StoredRun, metric: str | None) -> list[object]:
    return [
        str(run.path),
        run.data,
        run.task,
        run.cell,
        run.parameters,
        _format_epochs(run),
        run.state,
        metric or run.metric,
        run.score("validation", metric),
        run.score("test", metric),
        _format_proof(run.certificate),
        None if run.seconds is None else round(run.seconds),
        None if run.started is None else f"{run.started.astimezone(UTC):%Y-%m-%d %H:%M}",
    ]


@app.command()
def show(
    context: typer.Context,
    paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories: one, or several to compare.")],
    plot: Annotated[
        Path | None,
        option(
            "PNG file to write: training loss and validation metric by epoch, all runs over one another.",
            metavar="FILE",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show one run, or what differs between several

    Of one run: scores, the settings that differ from defaults which do not depend on the data, and its epochs. Of
    several: scores side by side, the settings that differ, and if the data are the same.

    Example: stablernn runs show runs/digits-lem-1 runs/digits-lem-2 --plot curves.png
    """
    from stablernn.training.stored_runs import (
        changed_settings,
        differing_settings,
        has_same_data,
        read_run,
        read_settings,
    )

    output = Output.of(context, as_json)
    if plot is not None:
        check_figure_path(plot, "--plot")
    for path in paths:
        if not is_run(path):
            raise UsageError(missing_run_message(str(path), "See 'stablernn runs list FOLDER'."))
    runs = [read_run(path) for path in paths]
    configs = [read_settings(run) for run in runs]
    names = _names(paths)
    if plot is not None:
        from stablernn.training.stored_runs import plot_runs

        plot_runs(plot, runs, names)
    differing = differing_settings(configs)
    if as_json:
        output.document(
            {
                "runs": [_document(run, config) for run, config in zip(runs, configs, strict=True)],
                "differing_settings": differing,
                "same_data": has_same_data(runs),
                "plot": plot,
            }
        )
        return
    if len(runs) == 1:
        _show_one(output, runs[0], changed_settings(configs[0]))
    else:
        _show_side_by_side(output, runs, names, differing)
        if not has_same_data(runs):
            output.warn(
                "The runs were trained on different data, so that their scores cannot be compared: "
                + "; ".join(f"{name} on {_format_data(run)}" for name, run in zip(names, runs, strict=True))
                + "."
            )
    if plot is not None:
        output.note(f"Wrote {plot}.")


def _format_epochs(run: StoredRun) -> str:
    """Return the epochs done, and those of the whole run where they are more."""
    planned = run.planned_epochs
    return str(run.epochs) if planned in (None, run.epochs) else f"{run.epochs} of {planned}"


def _format_proof(certificate: Mapping[str, Any] | None) -> str | None:
    """Return the kind of a certificate with its rate or radius, as in ``contracting 0.9981``; None without one."""
    from stablernn_registry.certificates import format_kind_and_radius, format_upper

    if certificate is None:
        return None
    rate, bounded = certificate["contraction_rate"], certificate["bounded_inputs"]
    text = format_kind_and_radius(certificate)
    if rate is not None:
        text = f"{text} {format_upper(rate, 5)}"
    if bounded is None or bounded["kind"] == "none":
        return text
    return f"{text}; {_format_proof(bounded)} for bounded inputs"


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the names of the directories, or the paths if two names are equal."""
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) and all(names) else [str(path) for path in paths]


def _document(run: StoredRun, config: Config) -> dict[str, Any]:
    from stablernn.training.stored_runs import changed_settings

    return {
        **run.document(),
        "settings": config.by_key(),
        "changed_settings": {
            key: {"value": value, "default": default} for key, (value, default) in changed_settings(config).items()
        },
        "history": [epoch.model_dump() for epoch in run.history],
    }


def _show_one(output: Output, run: StoredRun, changed: Mapping[str, tuple[Any, Any]]) -> None:
    output.facts(drop_none(_facts(run)), title=str(run.path))
    for sentence in run.warnings:
        output.text(f"Warning: {sentence}")
    show_metrics(output, run.metrics)
    output.text()
    if changed:
        rows = [[key, _format_setting(value), _format_setting(default)] for key, (value, default) in changed.items()]
        output.table(("setting", "value", "default"), rows, title="Settings that differ from their defaults")
    else:
        output.text("No setting differs from a default that does not depend on the data.")
    if run.history:
        output.text()
        _show_epochs(output, run)


def _facts(run: StoredRun) -> dict[str, object]:
    state = run.state if run.problem is None else f"{run.state}: {run.problem}"
    if run.state == "stopped":
        state = f"stopped; go on with it by: stablernn train --resume --run-dir {run.path}"
    size = "" if run.parameters is None else f", {run.parameters:,} parameters"
    best = None if run.best_epoch is None else f"epoch {run.best_epoch}"
    steps, seconds = count_of(run.steps, "step"), f"{run.seconds or 0:.1f} s"
    return {
        "state": state,
        "data": _format_data(run),
        "model": f"{run.cell}{size}, for '{run.task}'",
        "trained": f"{_format_epochs(run)} {'epoch' if run.epochs == 1 else 'epochs'}, {steps}, {seconds}",
        "best weights": best if best is None or run.metric is None else f"{best}, by {run.metric}",
        "proved": _format_proof(run.certificate),
        "started": None if run.started is None else f"{run.started.astimezone(UTC):%Y-%m-%d %H:%M} UTC",
    }


def _format_data(run: StoredRun) -> str:
    # Twelve digits tell data sets apart, and fit into a line.
    algorithm, _, digest = (run.fingerprint or "").partition(":")
    return f"{run.data} ({algorithm}:{digest[:12]})"


def _show_epochs(output: Output, run: StoredRun) -> None:
    epochs = _condensed(run.history, run.best_epoch)
    rows = [
        [
            epoch.epoch,
            epoch.train_loss,
            None if run.metric is None else epoch.validation.get(run.metric),
            epoch.lr,
            round(epoch.seconds, 1),
            "best" if epoch.epoch == run.best_epoch else "",
        ]
        for epoch in epochs
    ]
    score = "validation" if run.metric is None else f"validation {run.metric}"
    title = None if len(epochs) == len(run.history) else f"{len(epochs)} of {count_of(len(run.history), 'epoch')}"
    output.table(("epoch", "training loss", score, "learning rate", "seconds", ""), rows, title=title)


def _condensed(history: Sequence[Epoch], best_epoch: int | None) -> list[Epoch]:
    """Return evenly spaced epochs, the first, the best and the last among them."""
    last = len(history) - 1
    shown = min(SHOWN_EPOCHS, len(history))
    numbers = {round(position * last / max(shown - 1, 1)) for position in range(shown)}
    return [epoch for number, epoch in enumerate(history) if number in numbers or epoch.epoch == best_epoch]


def _show_side_by_side(
    output: Output, runs: Sequence[StoredRun], names: Sequence[str], differing: Mapping[str, Sequence[Any]]
) -> None:
    from stablernn.training.evaluation.metric_catalog import direction

    facts: dict[str, list[object]] = {
        "state": [run.state for run in runs],
        "data": [run.data for run in runs],
        "cell": [run.cell for run in runs],
        "parameters": [run.parameters for run in runs],
        "epochs": [_format_epochs(run) for run in runs],
        "best epoch": [run.best_epoch for run in runs],
        "training time": [None if run.seconds is None else f"{run.seconds:.1f} s" for run in runs],
        "proved": [_format_proof(run.certificate) for run in runs],
    }
    rows: list[list[object]] = [[name, "", *values] for name, values in facts.items()]
    for split in dict.fromkeys(split for run in runs for split in run.metrics):
        scores = [scalar_metrics(run.metrics.get(split, {})) for run in runs]
        for metric in dict.fromkeys(name for values in scores for name in values):
            rows.append([f"{split} {metric}", direction(metric) or "", *(values.get(metric) for values in scores)])
    output.table(("", "better", *names), rows)
    output.text()
    if differing:
        setting_rows = [[key, *map(_format_setting, values)] for key, values in differing.items()]
        output.table(("setting", *names), setting_rows)
    else:
        output.text("No settings differ.")
    for name, run in zip(names, runs, strict=True):
        if run.problem is not None:
            output.text(f"{name} is damaged: {run.problem}")
        for sentence in run.warnings:
            output.text(f"Warning about {name}: {sentence}")


def _format_setting(value: object) -> object:
    # As in YAML, so that the value can be given to --set.
    if isinstance(value, bool):
        return str(value).lower()
    return value if value is None or isinstance(value, int | float | str) else str(value)
