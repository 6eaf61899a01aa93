"""`stablernn data`: named datasets, and checks of any data."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablernn_cli import config_options
from stablernn_cli.config_options import check_cell, flag, read_settings, setting_options, takes_settings
from stablernn_cli.errors import FAILED, CommandError, Reported, UsageError, exit_code_of
from stablernn_cli.options import JsonOption, option
from stablernn_cli.output import Output, count_of, figure, format_names

if TYPE_CHECKING:
    from stablernn.data.check import DataReport, Finding
    from stablernn.training import Config

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


# Cell of the plan if none is named; other cells lead to similar plans.
_CELL = "lipschitz"
_MAX_ROWS = 40


@app.command()
@takes_settings("cell", sections=("data", "task"), cell=f"Cell for which the plan is made; default: {_CELL}.")
def check(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="Dataset name (see `data list`), file or folder.", show_default=False),
    ],
    options: dict[str, Any],
    config: config_options.ConfigOption = None,
    overrides: config_options.SetOption = None,
    plot: Annotated[Path | None, option("Also draw the data into a PNG file.", metavar="FILE.png")] = None,
    fix: Annotated[
        Path | None,
        option("Write a configuration for `train --config` with the settings that mend the data.", metavar="FILE.yaml"),
    ] = None,
    no_plan: Annotated[
        bool, option("Omit what `train` would do, which takes seconds: it needs torch.", "--no-plan")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check data before training

    Prints the content of a file or a named dataset, what is wrong with it, and what `train` would do with the same
    options: columns and their roles, series or sequences, lengths, gaps, missing values, duplicates, classes, leakage
    between splits. Nothing is trained, and nothing is written without --fix or --plot. Below each finding stands the
    option that mends it, if there is one; --fix writes all of them into a file.

    Exit code 1 when `train` would refuse, 2 when an option is wrong, as there; every problem that can be found is
    listed, not only the first. Warnings leave it at 0. With --no-plan, options of the cell are not checked.

    Example: stablernn data check sales.csv --target sold --horizon 14
    """
    output = Output.of(context, as_json)
    # Before the data is read.
    if plot is not None and plot.suffix.lower() != ".png":
        raise UsageError(f"--plot must end in .png, got '{plot}'.")
    if fix is not None:
        check_path(fix)
    with output.status(f"Checking {data} ..."):
        from stablernn.catalog import get_cell_facts
        from stablernn.training.data_report import check_run_data

        settings = read_settings(options, config, overrides or (), {"model": {"cell": _CELL}})
        # A misspelled cell is rejected from the catalog, which needs no torch.
        get_cell_facts(settings.model.cell)
        report = check_run_data(settings)
    if not as_json:
        _show_report(output, report)
    if plot is not None:
        _draw(output, plot, report)
    if fix is not None and report.ok and not report.fixes:
        # Written all the same: a script trains with it whatever the data needs.
        output.note(f"There is nothing to mend: '{fix}' has no settings but those that you gave.")
    if fix is not None:
        # Without the defaults of this command, which are no settings of the user.
        stated = read_settings(options, config, overrides or ())
        settings, report = _write_fixed(output, fix, report, stated)
        settings = settings.model_copy(
            update={"model": settings.model.model_copy(update={"cell": options.get("cell", _CELL)})}
        )
    # Only after the findings are printed, since importing torch takes seconds.
    planned, plan = (report, None) if no_plan else _plan(output, report, settings, options)
    if as_json:
        output.document({**planned.as_json(), "train": plan, "plot": plot, "fix": fix})
    else:
        _show_plan(output, planned, plan, fix, planned.problems[len(report.problems) :])
    if not planned.ok:
        raise Reported(FAILED if planned.refusal is None else exit_code_of(planned.refusal) or FAILED)


def _write_fixed(output: Output, path: Path, report: DataReport, stated: Config) -> tuple[Config, DataReport]:
    """Write settings with which the data can be read, and return them with the report on the data so read.

    Raises:
        CommandError: If no settings mend all problems, or the file cannot be written.
    """
    from stablernn.data.check import merge_settings
    from stablernn.data.messages import data_counts, format_counts, repair_counts
    from stablernn.training.data_report import check_run_data
    from stablernn.training.settings.load import validate

    tree = stated.model_dump(mode="json", exclude_unset=True)
    settings = validate({**tree, "data": merge_settings(tree["data"], report.fixes)})
    with output.status("Checking with the settings that mend the data ..."):
        fixed = check_run_data(settings)
    if fixed.problems:
        raise CommandError(
            f"'{path}' is not written: no option mends all of '{report.source}'. {fixed.problems[0].text}"
        )
    _write_config(path, settings, report)
    output.note(f"Wrote {path}. Train with: stablernn train --config {shlex.quote(str(path))}")
    if fixed.data is not None and (repairs := repair_counts(data_counts(fixed.data.notes))):
        output.note(f"Repaired with it: {format_counts(repairs)}.")
    return settings, fixed


def _plan(
    output: Output, report: DataReport, settings: Config, options: Mapping[str, Any]
) -> tuple[DataReport, dict[str, Any] | None]:
    """Return the report, with a problem of the model's settings if there is one, and the plan of training.

    Raises:
        stablernn.errors.ConfigError: If an option of the cell is wrong, as `train` would.
    """
    if report.data is None and not settings.model.cell_options:
        return report, None
    with output.status("Planning the training ..."):
        from stablernn.training.dry_run import add_plan
        from stablernn.training.settings.config import AUTO
        from stablernn.training.train_model import with_own_model

        if settings.model.cell == _CELL and "cell" not in options:
            recommended = with_own_model(settings.updated("model", cell=AUTO))
            settings = settings if recommended.model.cell == AUTO else recommended
        check_cell(settings)
        return add_plan(report, settings)


def _draw(output: Output, path: Path, report: DataReport) -> None:
    if report.data is None:
        output.note(f"Nothing to draw: {report.source} cannot be loaded.")
        return
    from stablernn.training.tasks import task_for

    with output.status("Drawing ..."):
        task_for(report.data).draw_data(path)
    output.note(f"Drawn: {path}")


def _show_report(output: Output, report: DataReport) -> None:
    """Print a report as text: the content, then problems and warnings."""
    output.facts(_facts(report))
    if report.columns:
        output.text()
        _show_columns(output, report)
    if report.content.get("classes"):
        output.text()
        _show_classes(output, report.content)
    if report.preview:
        output.text("\nThe file begins:")
        for line in report.preview:
            output.text(f"    {line}")
    if report.assumed:
        output.text(f"\nRead with guessed options, without which `train` refuses:\n    {_options(report.assumed)}")
    if report.problems or report.warnings:
        output.text()
    for label, findings in (("problem", report.problems), ("warning", report.warnings)):
        for finding in findings:
            output.text(f"{label}: {finding.text} [{finding.code}]")
            if finding.settings:
                output.text(f"    mend: {_options(finding.settings)}")


def _show_plan(
    output: Output,
    report: DataReport,
    plan: Mapping[str, Any] | None,
    fix: Path | None,
    new_problems: Sequence[Finding],
) -> None:
    """Print what `train` would do, the problems that only the plan revealed, and the verdict on all of them."""
    if plan is not None:
        output.text()
        output.facts(_plan_facts(plan), title="What `train` would do")
    output.text()
    for finding in new_problems:
        output.text(f"problem: {finding.text} [{finding.code}]")
    output.text(_verdict(report) if fix is None else f"With {fix}: {_verdict(report)}")


def _facts(report: DataReport) -> dict[str, object]:
    from stablernn.data.messages import data_counts, describe_reading, format_counts, repair_counts

    content = report.content
    facts: dict[str, object] = {"source": ", ".join(report.files.values()) or report.source}
    notes = report.data.notes if report.data is not None else {}
    if reading := describe_reading(notes):
        facts["written as"] = reading
    facts["task"] = report.task or "cannot be told"
    if "series" in content:
        facts["series"] = f"{content['series']}, of {_spread(content['steps'])} steps"
        facts["time"] = f"{content['first']} to {content['last']}, {_rhythm(content)}"
    # Data for predict-next has sequences too, and outputs below.
    elif "sequences" in content:
        facts["sequences"] = ", ".join(f"{split} {count:,}" for split, count in content["sequences"].items())
        facts["lengths"] = f"{_spread(content['lengths'])} steps"
    if groups := notes.get("validation", {}).get("groups"):
        facts["validation"] = f"of {format_names(groups['validation'])}"
    if repairs := repair_counts(data_counts(notes)):
        facts["repaired"] = format_counts(repairs)
    if "short_series" in notes:
        facts["set aside"] = format_names(notes["short_series"]["names"])
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
        return "frequencies " + ", ".join(f"{alias} ({count})" for alias, count in content["frequencies"].items())
    if content["frequency"] is None:
        return f"irregular ({content['irregular_intervals']} intervals differ from the usual one)"
    return f"frequency {content['frequency']}, season {content['season']}, {content['gap_steps_filled']} gaps filled"


def _show_columns(output: Output, report: DataReport) -> None:
    rows = [
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
    # Facts that no column has would only widen the table.
    headings = [name for name in rows[0] if any(row[name] != "-" for row in rows)]
    output.table(headings, [[row[name] for name in headings] for row in rows[:_MAX_ROWS]])
    _note_omitted(output, len(rows), "columns")


def _show_classes(output: Output, content: Mapping[str, Any]) -> None:
    splits = list(content["sequences"])
    rows = [[label, *(counts[split] for split in splits)] for label, counts in content["classes"].items()]
    if any(content["unlabelled"].values()):
        rows.append(["(no label)", *(content["unlabelled"][split] for split in splits)])
    output.table(("class", *splits), rows[:_MAX_ROWS])
    _note_omitted(output, len(rows), "classes")


def _note_omitted(output: Output, count: int, noun: str) -> None:
    if count > _MAX_ROWS:
        output.text(f"... and {count - _MAX_ROWS} more {noun}; --json has all of them.")


def _plan_facts(plan: Mapping[str, Any]) -> dict[str, object]:
    from stablernn.training.tasks import task_type

    counts = ", ".join(f"{split} {count:,}" for split, count in plan["samples"].items())
    inputs, memory = plan["inputs"], plan["memory"]
    mask = ", with a channel that marks missing values" if inputs["mask_channel"] else ""
    time = ", with the time between steps" if inputs["time"] == "dt" else ""
    facts: dict[str, object] = {"task": plan["task"]}
    if "horizon" in plan:
        horizon, context = (count_of(plan[key], "step") for key in ("horizon", "context_length"))
        facts["forecast"] = f"{horizon} of {', '.join(plan['targets'])} from {context}"
    facts[task_type(plan["task"]).sample_noun] = counts
    training = f"{count_of(plan['steps_per_epoch'], 'step')} of {plan['batch_size']} an epoch, {plan['steps']:,} in all"
    methods = {"closed-form": "in closed form, one pass over the data", "gauss-newton": "all weights by Gauss-Newton"}
    training = methods.get(plan["method"], training)
    return {
        **facts,
        "scaling": f"{inputs['scaling']}{mask}{time}",
        "model": f"{plan['cell']} {plan['hidden_size']}, {plan['parameters']:,} parameters",
        "training": training,
        "memory": f"about {_format_bytes(memory['total_bytes'])} in addition to torch itself: data "
        f"{_format_bytes(memory['data_bytes'])}, a batch {_format_bytes(memory['batch_bytes'])}",
    }


def _format_bytes(size: int) -> str:
    # Decimal units; at most one digit after the point.
    for unit, factor in (("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"


def _options(settings: Mapping[str, Any]) -> str:
    """Return settings of the section ``data`` as options, quoted for the shell."""
    with_option = {
        option.key.removeprefix("data."): name
        for name, option in setting_options().items()
        if option.key.startswith("data.")
    }
    return " ".join(
        f"{flag(with_option[key])} {_quoted(','.join(value) if isinstance(value, list) else str(value))}"
        # A list of several targets takes the option several times.
        if key in with_option and (key != "target" or not isinstance(value, list))
        else "--set " + _quoted(f"data.{key}={_format_value(value)}")
        for key, value in settings.items()
    )


def _quoted(text: str) -> str:
    """Return a word for the shell; in double quotes where it has single ones, as YAML puts around a format of dates."""
    is_plain = "'" in text and not any(character in text for character in '"$`\\!')
    return f'"{text}"' if is_plain else shlex.quote(text)


def _verdict(report: DataReport) -> str:
    warnings = count_of(len(report.warnings), "warning")
    if report.problems:
        sentence = f"`train` would refuse this: {count_of(len(report.problems), 'problem')}, {warnings}."
        if all(finding.settings for finding in report.problems):
            sentence += " --fix FILE.yaml writes the settings that mend it."
        return sentence
    return f"`train` would accept this; {warnings}." if report.warnings else "Nothing is wrong."


_LINE_WIDTH = 100
_COLUMNS_AS_SERIES = "Where each column is a series to forecast, set data.channels_as_series=true in its place."


def check_path(path: Path) -> None:
    """Refuse a file that must not be written, before the data is read.

    Raises:
        UsageError: If it does not end in .yaml or .yml, or exists.
    """
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise UsageError(f"--fix must end in .yaml or .yml, got '{path}'. Choose another name.")
    if path.exists():
        raise UsageError(f"--fix '{path}' exists already. Remove it, or choose another name.")


def _write_config(path: Path, settings: Config, report: DataReport) -> None:
    """Write settings as YAML, with the findings that they mend as comments.

    Raises:
        CommandError: If the file cannot be written.
    """
    import yaml

    findings = (*report.problems, *report.warnings)
    comments = [f"Written by `stablernn data check {report.source} --fix {path}`."]
    comments += [
        f"{', '.join(f'data.{name}' for name in finding.settings)}: {finding.text}"
        for finding in findings
        if finding.settings
    ]
    explained = {name for finding in findings for name in finding.settings}
    comments += [
        f"data.{name}: guessed, and `train` refuses the data without it. Replace it if you mean another."
        + (f" {_COLUMNS_AS_SERIES}" if name == "target" else "")
        for name in report.assumed
        if name not in explained
    ]
    lines = [f"# {' '.join(comment.split())}" for comment in comments]
    tree = settings.model_dump(mode="json", exclude_unset=True)
    categories = tree["data"].get("categories")
    if categories and not any(categories.values()):
        # Names alone, as people write them; training finds the categories.
        tree["data"]["categories"] = list(categories)
    text = "\n".join([*lines, yaml.safe_dump(tree, sort_keys=False, allow_unicode=True, width=_LINE_WIDTH)])
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CommandError(f"Cannot write '{path}': {error.strerror}. Choose another --fix.") from error


def _format_value(value: object) -> str:
    """Return a value as YAML on one line, as ``--set`` takes it."""
    # Imported here, since a serving image lists datasets without it.
    import yaml

    return yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6).removesuffix("...\n").strip()
