"""`stablernn train`: data in, run directory out."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stablernn.training.loop.launch import read_launch
from stablernn_cli import config_options
from stablernn_cli.config_options import check_cell, check_options, option_words, read_settings, takes_settings
from stablernn_cli.errors import UsageError
from stablernn_cli.options import MODEL_PANEL, JsonOption, option
from stablernn_cli.output import (
    Output,
    TextHandler,
    count_of,
    data_notes,
    figure,
    library_stages,
    scalar_metrics,
    show_metrics,
)

if TYPE_CHECKING:
    from stablernn.training import Progress
    from stablernn.training.settings.config import Config


@takes_settings(sections=("data", "task", "model", "training"), after={"cell": "budget"})
def train(
    context: typer.Context,
    options: dict[str, Any],
    budget: Annotated[
        str | None,
        option(
            "Time, such as 90s, 2m or 1h, or 20000steps, for choosing a cell and training it; default: 2m.",
            metavar="TIME",
            rich_help_panel=MODEL_PANEL,
        ),
    ] = None,
    config: config_options.ConfigOption = None,
    overrides: config_options.SetOption = None,
    run_dir: config_options.RunDirOption = None,
    resume: Annotated[bool, option("Continue the run in --run-dir from where it stopped.")] = False,
    track: config_options.TrackOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a model

    Settings come from --config, then from the options here and from --set, which must not contradict each other. A
    setting that is left open gets the value recommended for the cell and the data; the run's config.yaml holds all of
    them, docs/reference/settings.md describes them. `stablernn data check` shows what would be done with a file.

    Without --cell, recipes of cell and settings are compared on parts of the training data within --budget, and the
    best is trained; a setting that you give is kept. docs/guides/choosing.md says how.

    Exit code 1: the loss was not finite, or training diverged and left useless weights. A model that is no better than
    a trivial answer gets a warning; both are in summary.json.

    At the end a note says in words what is proved of the model, or which option would give a proof.

    Ctrl-C stops with exit code 130 and leaves a run that --resume continues to the same numbers.

    Started by torchrun, several processes share each minibatch; docs/guides/machines.md describes it.

    Example: stablernn train --data digits
    """
    output = Output.of(context, as_json)
    if resume and run_dir is None:
        raise UsageError("--resume needs the directory of the run, got no --run-dir. Add --run-dir DIR.")
    check_options(options, has_source=bool(config or overrides or resume))
    is_main = read_launch().is_main
    summary = fit(
        output if is_main else Output(quiet=True),
        options,
        config=config,
        overrides=overrides or (),
        run_dir=run_dir,
        resume=resume,
        budget=budget,
        track=(track or ()) if is_main else (),
    )
    if not is_main:
        return
    output.answer(summary, show)
    if not as_json:
        if "choice" in summary:
            show_choice(output, summary["choice"], options, config=config, overrides=overrides or ())
        output.note(f"Next: stablernn export {summary['run']} --name NAME")


def fit(
    output: Output,
    options: Mapping[str, Any],
    *,
    config: Path | None = None,
    overrides: Sequence[str] = (),
    run_dir: Path | None = None,
    resume: bool = False,
    budget: str | None = None,
    track: Sequence[str] = (),
) -> dict[str, Any]:
    """Train with options (by parameter name of :func:`train`) and show progress.

    Returns:
        The summary that ``train --json`` prints.
    """
    # torch is imported below the spinner: it takes seconds.
    with output.status("Loading ..."):
        from stablernn.training import train as train_run
        from stablernn.training.callbacks import open_trackers
        from stablernn.training.search.budget import Budget
        from stablernn.training.settings.config import AUTO

        # Options of a resumed run add to its own settings; alone they would be incomplete.
        if resume and run_dir is not None and config is None and (run_dir / "config.yaml").is_file():
            config = run_dir / "config.yaml"
        settings = None
        if config is not None or not resume:
            settings = read_settings(options, config, overrides)
            # Before the data is read, which may take longer.
            if settings.model.cell != AUTO:
                _check_cell(settings, run_dir if resume else None)
        limit = None if budget is None else Budget.parse(budget)
        callbacks = open_trackers(track)
    with library_messages(output), _progress_report(output) as report:
        return dict(
            train_run(settings, run_dir=run_dir, resume=resume, progress=report, budget=limit, callbacks=callbacks)
        )


def _check_cell(settings: Config, resumed: Path | None) -> None:
    """Check the cell as :func:`check_cell`; of a run that is resumed, the error names the package of its cell."""
    from stablernn.errors import CheckpointError, UnknownNameError
    from stablernn.training import load_run

    try:
        check_cell(settings)
    except UnknownNameError:
        # A run without weights does not say which.
        with suppress(CheckpointError):
            if resumed is not None:
                load_run(resumed)
        raise


def show(output: Output, summary: Mapping[str, Any]) -> None:
    """Print a summary as text."""
    output.facts(
        {
            "run": summary["run"],
            "model": f"{summary['cell']}, {summary['parameters']:,} parameters, for '{summary['task']}'",
            "trained": ", ".join(
                [
                    count_of(summary["epochs"], "epoch"),
                    count_of(summary["steps"], "step"),
                    f"{summary['seconds']:.0f} s",
                ]
            ),
            **_layers_fact(summary.get("gate")),
            **_certificate_fact(summary.get("certificate")),
        }
    )
    # Scores of a baseline are nested in those of its split; here it gets a column of its own.
    columns: dict[str, Mapping[str, Any]] = {}
    for split, scores in summary["metrics"].items():
        columns[split] = scalar_metrics(scores)
        for baseline in ("seasonal_naive", "ridge", "frequencies", "arx", "state_space", "mean"):
            if baseline in scores:
                columns[f"{baseline.replace('_', ' ')}, {split}"] = scores[baseline]
    show_metrics(output, columns)
    line = data_notes(summary["data_notes"])
    if line:
        output.text(line)


def show_choice(
    output: Output,
    choice: Mapping[str, Any],
    options: Mapping[str, Any],
    *,
    config: Path | None,
    overrides: Sequence[str],
) -> None:
    """Print what was compared, what was chosen and why, and the command that trains the same without a search."""
    rows = [
        [name, "naive answer", figure(sum(scores) / len(scores)), "", f"{len(scores)} of {choice['parts']}", "", ""]
        for name, scores in choice["baselines"].items()
    ]
    rows += [
        [
            recipe["name"],
            recipe["status"],
            "" if recipe["mean"] is None else f"{recipe['mean']:.4g}",
            "" if recipe["standard_error"] is None else f"{recipe['standard_error']:.2g}",
            f"{len(recipe['scores'])} of {choice['parts']}",
            recipe["proof"],
            recipe["purpose"],
        ]
        # From the first rung to the last.
        for recipe in sorted(choice["recipes"], key=lambda recipe: "training.method" not in recipe["settings"])
    ]
    metric = choice.get("metric", "score")
    columns = ("recipe", "", metric, "standard error", "parts", "proved", "for")
    output.table(columns, rows, title="compared on parts of the training data")
    output.text(f"Chosen: {choice['chosen']}, {choice['reason']}.")
    output.text(f"The same without a search: {explicit_command(choice, options, config=config, overrides=overrides)}")


def explicit_command(
    choice: Mapping[str, Any], options: Mapping[str, Any], *, config: Path | None, overrides: Sequence[str]
) -> str:
    """Return the command line that trains the chosen settings."""
    words = ["stablernn", "train"]
    for name, value in options.items():
        if name == "cell":
            continue
        for each in value if isinstance(value, (list, tuple)) else [value]:
            words += option_words(name, each)
    if config is not None:
        words += ["--config", str(config)]
    for override in overrides:
        words += ["--set", override]
    for key, value in choice["settings"].items():
        if key == "model.cell":
            words += ["--cell", value]
        else:
            words += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
    return shlex.join(words)


def _layers_fact(gate: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the share of its layers that a forecast keeps besides its linear skip, if the two were compared."""
    if gate is None:
        return {}
    # None if the validation windows do not suffice to estimate it.
    noise = gate["standard_error"]
    comparison = (
        f"validation error {gate['layers_error']:.4g} with them, {gate['skip_error']:.4g} without, "
        f"standard error of the difference {'unknown' if noise is None else format(noise, '.2g')}"
    )
    verdict = f"{gate['share']:.0%} kept" if gate["share"] else "left out, the linear skip alone is no worse"
    return {"layers": f"{verdict} ({comparison})"}


def _certificate_fact(certificate: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the certificate of the best weights, if it was computed."""
    if certificate is None:
        return {}
    from stablernn_registry.certificates import format_kind_and_radius, format_upper

    text, rate = format_kind_and_radius(certificate), certificate["contraction_rate"]
    if rate is not None:
        text += f", at a rate of {format_upper(rate, 5)}"
    within = certificate.get("bounded_inputs")
    if within is not None and within["kind"] != "none":
        text += f" for all inputs; {format_kind_and_radius(within)} in the range of training, half as wide again"
    return {"proved": text}


_LONG_EPOCH_SECONDS = 10.0
"""Time without a line after which one is printed within an epoch."""


@contextmanager
def _progress_report(output: Output) -> Iterator[Callable[[Progress], None] | None]:
    """Give the callback that training reports to: a progress bar in a terminal, else lines for stages and epochs."""
    if not output.is_live:
        with library_stages(output.note):
            yield None if output.quiet else _EpochLines(output)
        return
    # Under another name: `Progress` is the report of training here.
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as ProgressBar

    bar = ProgressBar(
        TextColumn("{task.fields[stage]}", markup=False),
        TextColumn("{task.fields[epoch]}"),
        BarColumn(),
        TextColumn("{task.fields[scores]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    # The number of steps is known with the first report only.
    row = bar.add_task("", total=None, stage="", epoch="", scores="")
    with bar, library_stages(lambda text: bar.update(row, stage=text)):

        def report(progress: Progress) -> None:
            bar.update(
                row,
                completed=progress.step,
                total=progress.total_steps,
                stage="",
                epoch=f"epoch {progress.epoch}/{progress.epochs}",
                scores="  ".join(_scores(progress)),
            )

        yield report


@contextmanager
def library_messages(output: Output) -> Iterator[None]:
    """Print what the library logs, each text once: values filled, cut or skipped, choices, and warnings of a run."""
    printed: set[str] = set()

    def show(text: str, is_warning: bool) -> None:
        # A search and the training after it both load the data, and find the same in it.
        if text not in printed:
            printed.add(text)
            (output.warn if is_warning else output.note)(text)

    handler = TextHandler(show)
    loggers = [logging.getLogger(name) for name in ("stablernn.data", "stablernn.training")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        # The handler of the root logger would print each message a second time.
        logger.propagate = False
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


def _scores(progress: Progress) -> list[str]:
    """Return the scores so far as text; there is no metric where the validation split is trained on, too."""
    metric = [] if progress.metric is None else [f"validation {progress.metric_name} {figure(progress.metric)}"]
    return [f"loss {figure(progress.loss)}", *metric]


class _EpochLines:
    """A callback that prints a line for each validated epoch, and within long epochs one now and then."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._last_step = -1
        self._start = time.monotonic()
        # From the first step on, before which a search may take long.
        self._last_line: float | None = None

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        epoch = f"epoch {progress.epoch}/{progress.epochs}"
        # A step is reported once; the second report of the same step comes after the epoch's validation.
        if progress.step == self._last_step:
            self._print([epoch, *_scores(progress)], now)
        elif self._last_line is None:
            self._last_line = now
        elif now - self._last_line > _LONG_EPOCH_SECONDS:
            # The metric is that of an earlier epoch.
            self._print(
                [epoch, f"step {progress.step:,} of {progress.total_steps:,}", f"loss {figure(progress.loss)}"], now
            )
        self._last_step = progress.step

    def _print(self, parts: list[str], now: float) -> None:
        self._output.note("  ".join([*parts, f"{now - self._start:.0f} s"]))
        self._last_line = now
