"""`stablernn data check`: a look at data before anything is trained on it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stablernn_cli.commands.train import read_settings
from stablernn_cli.errors import FAILED, Reported, UsageError, exit_code_of
from stablernn_cli.options import DATA_PANEL, MODEL_PANEL, Stamps
from stablernn_cli.output import JsonOption, Output, figure

if TYPE_CHECKING:
    from stablernn.data.check import DataReport

_OPTIONS = (
    "test",
    "target",
    "id_column",
    "time_column",
    "stamps",
    "frequency",
    "task",
    "horizon",
    "context_length",
    "season",
    "cell",
)
# Whose recommended settings the plan shows where nobody names a cell; any other plans alike.
_CELL = "lipschitz"
_MOST_ROWS = 40


def _data(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=DATA_PANEL, show_default=False, **more)


def check(
    context: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A dataset's name (see `data list`) or a file.", show_default=False)
    ],
    test: Annotated[str | None, _data("File with the test split; default: NAME_TEST beside a NAME_TRAIN.")] = None,
    target: Annotated[
        list[str] | None, _data("Column to forecast, may be repeated; default: y, or the only one.")
    ] = None,
    id_column: Annotated[str | None, _data("Column that tells series apart; default: unique_id.")] = None,
    time_column: Annotated[str | None, _data("Column of time stamps; default: ds.")] = None,
    stamps: Annotated[
        Stamps | None, _data("Meaning of whole numbers as times; default: step, refused where they look like dates.")
    ] = None,
    frequency: Annotated[str | None, _data("Word of the time grid; default: found in the data.")] = None,
    task: Annotated[
        Literal["classify", "forecast", "predict-next"] | None, _data("What to learn; default: what the data is for.")
    ] = None,
    horizon: Annotated[int | None, _data("Steps to forecast; default: the dataset's, else one season.")] = None,
    context_length: Annotated[int | None, _data("Steps seen before a forecast; default: from the data.")] = None,
    season: Annotated[int | None, _data("Steps of the main season; default: from the frequency.")] = None,
    cell: Annotated[
        str | None,
        typer.Option(
            help=f"Cell for which the plan is made; default: {_CELL}.", rich_help_panel=MODEL_PANEL, show_default=False
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="YAML of a run, as for `train`.", show_default=False)
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any key of the configuration, as for `train`; may be repeated.",
            show_default=False,
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Also draw the data into a picture.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Look at data before training

    Says what is in a file or a named dataset, what is wrong with it, and what `train` would do with the same options:
    columns and their roles, series or sequences, lengths, gaps, missing values, duplicates, classes, leakage between
    splits. Nothing is trained and nothing is written.

    Exit code 1 when `train` would refuse, 2 when an option is wrong, as there; then every problem that can be found is
    listed, not the first alone. Warnings leave it at 0.

    Example: stablernn data check sales.csv --target sold --horizon 14
    """
    output = Output.of(context, as_json)
    if plot is not None and plot.suffix.lower() != ".png":
        raise UsageError(f"--plot must end in .png, got '{plot}'.")
    given = {name: context.params[name] for name in _OPTIONS if context.params[name] not in (None, [], ())}
    with output.status(f"Looking at {source} ..."):
        from stablernn.training.dry_run import check_run

        defaults = {"model": {"cell": _CELL}}
        report, plan = check_run(read_settings({"data": source, **given}, config, overrides or (), defaults))
        if plot is not None:
            _draw(output, plot, report)
    if as_json:
        output.document({**report.as_json(), "train": plan, "plot": plot})
    else:
        show(output, report, plan)
    if not report.ok:
        raise Reported(FAILED if report.refusal is None else exit_code_of(report.refusal) or FAILED)


def _draw(output: Output, path: Path, report: DataReport) -> None:
    from stablernn.training.tasks import task_for

    if report.data is None:
        output.note(f"Nothing to draw: {report.source} cannot be loaded.")
        return
    task_for(report.data).draw_data(path)
    output.note(f"Drawn: {path}")


def show(output: Output, report: DataReport, plan: Mapping[str, Any] | None) -> None:
    """The report for people: what is there, what `train` would do, what is wrong."""
    output.facts(_facts(report))
    if report.columns:
        output.text()
        _show_columns(output, report)
    if report.content.get("classes"):
        output.text()
        splits = list(report.content["sequences"])
        rows = [[label, *(counts[split] for split in splits)] for label, counts in report.content["classes"].items()]
        if any(report.content["unlabelled"].values()):
            rows.append(["(no label)", *(report.content["unlabelled"][split] for split in splits)])
        output.table(("class", *splits), rows[:_MOST_ROWS])
        _say_more(output, len(rows), "classes")
    if report.preview:
        output.text("\nThe file begins:")
        for line in report.preview:
            output.text(f"    {line}")
    if report.assumed:
        words = " ".join(_flag(key, value) for key, value in report.assumed.items())
        output.text(f"\nRead with guessed options, without which `train` refuses:\n    {words}")
    if plan is not None:
        output.text()
        output.facts(_plan_facts(plan), title="What `train` would do")
    output.text()
    for finding in report.problems:
        output.text(f"problem: {finding.text} [{finding.code}]")
    for finding in report.warnings:
        output.text(f"warning: {finding.text} [{finding.code}]")
    output.text(_verdict(report))


def _facts(report: DataReport) -> dict[str, object]:
    content = report.content
    facts: dict[str, object] = {"source": ", ".join(report.files.values()) or report.source}
    facts["task"] = report.task or "cannot be told"
    if "series" in content:
        facts["series"] = f"{content['series']}, of {_spread(content['steps'])} steps"
        facts["time"] = f"{content['first']} to {content['last']}, {_rhythm(content)}"
    elif "sequences" in content:
        facts["sequences"] = ", ".join(f"{split} {count:,}" for split, count in content["sequences"].items())
        facts["lengths"] = f"{_spread(content['lengths'])} steps"
    if "outputs" in content:
        inputs, outputs = content["inputs"], content["outputs"]
        facts["inputs"] = f"{inputs['size']} {'tokens' if inputs['tokens'] else 'channels'}"
        facts["outputs"] = f"{outputs['size']}, {outputs['kind']}, scored by {outputs['scored_by']}"
    return facts


def _spread(lengths: Mapping[str, float]) -> str:
    low, high = lengths["min"], lengths["max"]
    return f"{low:,}" if low == high else f"{low:,} to {high:,} (median {lengths['median']:g})"


def _rhythm(content: Mapping[str, Any]) -> str:
    if "frequencies" in content:
        return "frequencies " + ", ".join(f"{word} ({count})" for word, count in content["frequencies"].items())
    if content["frequency"] is None:
        return f"irregular ({content['irregular_intervals']} intervals differ from the usual one)"
    return f"frequency {content['frequency']}, season {content['season']}, {content['gap_steps_filled']} gaps filled"


def _show_columns(output: Output, report: DataReport) -> None:
    cells = [
        {
            "column": column.name,
            "role": column.role,
            "holds": column.kind,
            "missing": f"{column.missing:.1%}" if column.missing else "-",
            "from": "-" if column.low is None else figure(column.low),
            "to": "-" if column.high is None else figure(column.high),
            "far out": column.outliers or "-",
            "unreadable": column.unreadable or "-",
        }
        for column in report.columns
    ]
    # What is nowhere needs no room.
    shown = [name for name in cells[0] if any(row[name] != "-" for row in cells)]
    rows = [[row[name] for name in shown] for row in cells]
    output.table(shown, rows[:_MOST_ROWS])
    _say_more(output, len(rows), "columns")


def _say_more(output: Output, count: int, word: str) -> None:
    if count > _MOST_ROWS:
        output.text(f"... and {count - _MOST_ROWS} more {word}; --json has all of them.")


def _plan_facts(plan: Mapping[str, Any]) -> dict[str, object]:
    counts = ", ".join(f"{split} {count:,}" for split, count in plan["samples"].items())
    inputs, memory = plan["inputs"], plan["memory"]
    told = ", told which values are missing" if inputs["mask_channel"] else ""
    timed = ", told the time between steps" if inputs["time"] == "dt" else ""
    facts: dict[str, object] = {"task": plan["task"]}
    if plan["task"] == "forecast":
        facts["forecast"] = (
            f"{_steps(plan['horizon'])} of {', '.join(plan['targets'])} from {_steps(plan['context_length'])}"
        )
        facts["windows"] = counts
    else:
        facts["sequences"] = counts
    return {
        **facts,
        "scaling": f"{inputs['scaling']}{told}{timed}",
        "model": f"{plan['cell']} {plan['hidden_size']}, {plan['parameters']:,} parameters",
        "training": f"{_steps(plan['steps_per_epoch'])} of {plan['batch_size']} an epoch, {plan['steps']:,} in all",
        "memory": f"about {_bytes(memory['total_bytes'])} beside torch itself: data "
        f"{_bytes(memory['data_bytes'])}, a batch {_bytes(memory['batch_bytes'])}",
    }


def _steps(count: int) -> str:
    return f"{count:,} step" if count == 1 else f"{count:,} steps"


def _bytes(size: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"


def _flag(key: str, value: object) -> str:
    """The option that a shell takes as it is."""
    if isinstance(value, list):
        return "--set " + shlex.quote(f"data.{key}=[{', '.join(map(str, value))}]")
    return f"--{key.replace('_', '-')} {shlex.quote(str(value))}"


def _verdict(report: DataReport) -> str:
    warnings = f"{len(report.warnings)} warning{'' if len(report.warnings) == 1 else 's'}"
    if report.problems:
        problems = f"{len(report.problems)} problem{'' if len(report.problems) == 1 else 's'}"
        return f"`train` would refuse this: {problems}, {warnings}."
    return f"`train` would take this; {warnings}." if report.warnings else "Nothing is wrong."
