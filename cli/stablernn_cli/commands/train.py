"""`stablernn train`: data in, run directory out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stablernn_cli.commands.registry import data_notes, show_metrics
from stablernn_cli.errors import UsageError
from stablernn_cli.options import DATA_PANEL, MODEL_PANEL, TRAINING_PANEL, Device, Stamps
from stablernn_cli.output import JsonOption, Output, figure

if TYPE_CHECKING:
    from stablernn.training import Config
    from stablernn.training import Progress as Position

# Every option that stands for one key of the configuration.
KEYS = {
    "data": "data.source",
    "test": "data.test",
    "target": "data.target",
    "id_column": "data.id_column",
    "time_column": "data.time_column",
    "stamps": "data.stamps",
    "frequency": "data.frequency",
    "task": "task.name",
    "horizon": "task.horizon",
    "context_length": "task.context_length",
    "season": "task.season",
    "cell": "model.cell",
    "preset": "model.preset",
    "hidden_size": "model.hidden_size",
    "num_layers": "model.num_layers",
    "dropout": "model.dropout",
    "patch_size": "model.patch_size",
    "patch_stride": "model.patch_stride",
    "readout": "model.readout",
    "members": "model.members",
    "epochs": "training.epochs",
    "max_steps": "training.max_steps",
    "batch_size": "training.batch_size",
    "lr": "training.lr",
    "optimizer": "training.optimizer",
    "patience": "training.patience",
    "certified": "training.certified",
    "seed": "training.seed",
    "device": "training.device",
    "threads": "training.threads",
}


def _data(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=DATA_PANEL, show_default=False, **more)


def _model(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=MODEL_PANEL, show_default=False, **more)


def _training(text: str, **more: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=TRAINING_PANEL, show_default=False, **more)


def train(
    context: typer.Context,
    data: Annotated[
        str | None, _data("A dataset's name (see `data list`) or a file: .csv, .parquet, .npz, .ts, .tsv, .arff, .txt.")
    ] = None,
    test: Annotated[str | None, _data("File with the test split; default: NAME_TEST beside a NAME_TRAIN.")] = None,
    target: Annotated[
        list[str] | None, _data("Column to forecast, may be repeated; default: y, or the only one there is.")
    ] = None,
    id_column: Annotated[str | None, _data("Column that tells series apart; default: unique_id.")] = None,
    time_column: Annotated[str | None, _data("Column of time stamps; default: ds.")] = None,
    stamps: Annotated[
        Stamps | None, _data("Meaning of whole numbers as times; default: step, refused where they look like dates.")
    ] = None,
    frequency: Annotated[
        str | None, _data("Word of the time grid, such as h or W; default: found in the data.")
    ] = None,
    task: Annotated[
        Literal["classify", "forecast", "predict-next"] | None, _data("What to learn; default: what the data is for.")
    ] = None,
    horizon: Annotated[int | None, _data("Steps to forecast; default: the dataset's, else one season.")] = None,
    context_length: Annotated[
        int | None,
        _data("Steps seen before a forecast; default: twice the season or the horizon; without a season, chosen."),
    ] = None,
    season: Annotated[int | None, _data("Steps of the main season, 1 = none; default: from the frequency.")] = None,
    cell: Annotated[str | None, _model("Key of the recurrent cell (see `cells list`).")] = None,
    preset: Annotated[
        Literal["practical", "paper"] | None, _model("Whose defaults the cell takes; default: practical.")
    ] = None,
    hidden_size: Annotated[int | None, _model("Length of each layer's state; default: 64.")] = None,
    num_layers: Annotated[int | None, _model("Recurrent layers, one above the other; default: 1.")] = None,
    dropout: Annotated[float | None, _model("Probability between layers, 0 to 1; default: 0.")] = None,
    patch_size: Annotated[
        int | None, _model("Samples that the layers see at once; default: by the length of the sequences.")
    ] = None,
    patch_stride: Annotated[
        int | None, _model("Samples from one step of the layers to the next; default: --patch-size, where given.")
    ] = None,
    readout: Annotated[
        Literal["last", "mean", "max", "all"] | None,
        _model("What the head sees of the outputs over time; default: all to classify, last to forecast."),
    ] = None,
    members: Annotated[
        int | None, _model("Networks trained side by side whose answers are averaged; default: 1.")
    ] = None,
    epochs: Annotated[
        int | None, _training("Passes over the training data; default: by the cell and how much there is.")
    ] = None,
    max_steps: Annotated[int | None, _training("Optimizer steps, in place of --epochs.")] = None,
    batch_size: Annotated[
        int | None, _training("Samples in a step; default: by the cell and how many there are.")
    ] = None,
    lr: Annotated[
        float | None, _training("Learning rate, the largest of its schedule; default: recommended for the cell.")
    ] = None,
    optimizer: Annotated[
        Literal["adamw", "adam", "sgd", "rmsprop"] | None, _training("Default: recommended for the cell.")
    ] = None,
    patience: Annotated[
        int | None, _training("Stop after so many epochs without a better validation metric; default: never.")
    ] = None,
    certified: Annotated[
        bool | None,
        typer.Option(
            "--certified",
            help="Keep every step where the layers are proved to contract, or not to expand; default: no.",
            rich_help_panel=TRAINING_PANEL,
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int | None, _training("Of initial weights, order of samples and dropout; default: 0.")] = None,
    device: Annotated[Device | None, _training("Where to compute; default: auto, a GPU where there is one.")] = None,
    threads: Annotated[int | None, _training("CPU threads; default: 1, fastest for small states.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="YAML with the sections data, task, model, training.", show_default=False),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Any key of the configuration, such as training.clip_norm=1; may be repeated. Wins over --config.",
            show_default=False,
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the run goes; default: a new folder in runs/.", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --run-dir where it stopped.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Train a model

    Settings come from --config, then from the options here and from --set, which may not contradict each other. What
    nobody sets takes values that are recommended for the cell and the data; the run's config.yaml holds all of them,
    docs/configuration.md says what they are. `stablernn data check` says what would be done with a file.

    Exit code 1: the loss was not finite, or it diverged and left weights that are of no use. A model that is no better
    than a trivial answer is a warning; both stand in summary.json.

    Ctrl-C stops with exit code 130 and leaves a run that --resume continues to the same numbers.

    Example: stablernn train --data digits --cell lipschitz --hidden-size 128
    """
    given = {name: context.params[name] for name in KEYS if context.params[name] not in (None, [], ())}
    output = Output.of(context, as_json)
    if resume and run_dir is None:
        raise UsageError("--resume needs the run to go on with, got no --run-dir. Add --run-dir DIR.")
    if epochs is not None and max_steps is not None:
        raise UsageError(
            f"--epochs and --max-steps exclude each other, got {epochs} and {max_steps}. Give one of the two."
        )
    if not (config or overrides or resume):
        for name, hint in (("data", "data list"), ("cell", "cells list")):
            if name not in given:
                raise UsageError(f"Missing option '--{name}'. See `stablernn {hint}` for what there is.")
    summary = fit(output, given, config=config, overrides=overrides or (), run_dir=run_dir, resume=resume)
    if as_json:
        output.document(summary)
    else:
        show(output, summary)
        output.note(f"Next: stablernn export {summary['run']} --name NAME")


def fit(
    output: Output,
    given: Mapping[str, Any],
    *,
    config: Path | None = None,
    overrides: Sequence[str] = (),
    run_dir: Path | None = None,
    resume: bool = False,
) -> dict[str, Any]:
    """Train with the options ``given`` (by parameter name of :func:`train`) and show progress.

    Returns:
        The summary that ``train --json`` prints.
    """
    with output.status("Loading ..."):
        from stablernn.training import train as train_run

        if resume and run_dir is not None and config is None and (run_dir / "config.yaml").is_file():
            config = run_dir / "config.yaml"
        settings = None if resume and config is None else read_settings(given, config, overrides)
    with _library_messages(output), _progress(output) as report:
        return dict(train_run(settings, run_dir=run_dir, resume=resume, progress=report))


def show(output: Output, summary: Mapping[str, Any]) -> None:
    """The summary for people."""
    output.facts(
        {
            "run": summary["run"],
            "model": f"{summary['cell']}, {summary['parameters']:,} parameters, for '{summary['task']}'",
            "trained": ", ".join(
                [
                    _counted(summary["epochs"], "epoch"),
                    _counted(summary["steps"], "step"),
                    f"{summary['seconds']:.0f} s",
                ]
            ),
            **_layers_kept(summary.get("gate")),
            **_proved(summary.get("certificate")),
        }
    )
    columns: dict[str, Mapping[str, Any]] = {}
    for split, scores in summary["metrics"].items():
        columns[split] = {name: value for name, value in scores.items() if not isinstance(value, Mapping)}
        for baseline in ("seasonal_naive", "ridge", "frequencies", "mean"):
            if baseline in scores:
                columns[f"{baseline.replace('_', ' ')}, {split}"] = scores[baseline]
    show_metrics(output, columns)
    line = data_notes(summary["data_notes"])
    if line:
        output.text(line)


def _layers_kept(gate: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the share of its layers that a forecast keeps beside its linear skip, where the two were compared."""
    if gate is None:
        return {}
    noise = gate["standard_error"]
    compared = (
        f"validation error {gate['layers_error']:.4g} with them, {gate['skip_error']:.4g} without, "
        f"standard error of the difference {'unknown' if noise is None else format(noise, '.2g')}"
    )
    kept = f"{gate['share']:.0%} kept" if gate["share"] else "left out, the linear skip alone is no worse"
    return {"layers": f"{kept} ({compared})"}


def _proved(certificate: Mapping[str, Any] | None) -> dict[str, str]:
    """What is proved of the best weights, where that was computed."""
    if certificate is None:
        return {}
    kind, rate = certificate["kind"], certificate["contraction_rate"]
    return {"proved": kind if rate is None else f"{kind}, at a rate of {rate:.5g}"}


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def read_settings(
    given: Mapping[str, Any],
    config: Path | None,
    overrides: Sequence[str],
    defaults: Mapping[str, Any] | None = None,
) -> Config:
    """The settings from a file, options (by parameter name of :func:`train`) and ``--set``, over ``defaults``."""
    from stablernn.errors import ConfigError
    from stablernn.training import load_config

    options = {KEYS[name]: value for name, value in given.items()}
    try:
        settings = load_config(config, overrides, defaults, options=options)
    except ConfigError as error:
        raise ConfigError(_in_options(str(error), given)) from error
    tree = settings.tree()
    for name, value in given.items():
        section, key = KEYS[name].split(".")
        if tree[section][key] != value:
            raise UsageError(
                f"{_flag(name)} {value} contradicts --set, which makes {section}.{key} {tree[section][key]}. "
                "Give one of the two."
            )
    _check_cell(settings)
    return settings


def _check_cell(settings: Config) -> None:
    """Refuse an option of the cell before the data is read."""
    from stablernn.cells import create_cell

    model = settings.model
    # A size that memory cannot hold is a RuntimeError here; the training has the sentence for it.
    with suppress(RuntimeError):
        create_cell(model.cell, 1, model.hidden_size, preset=model.preset, **model.cell_options)


def _in_options(sentence: str, given: Mapping[str, Any]) -> str:
    """The sentence in the words that the user wrote: ``--lr`` for ``training.lr``."""
    for name in given:
        sentence = sentence.replace(KEYS[name], _flag(name))
    return sentence


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


@contextmanager
def _progress(output: Output) -> Iterator[Callable[[Position], None] | None]:
    """What training reports to: a bar that moves where somebody watches, else a line an epoch."""
    if not output.is_live:
        yield None if output.quiet else _Lines(output)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("epoch {task.fields[epoch]}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]}  {task.fields[metric]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bar:
        row = bar.add_task("", total=None, epoch="-", loss="-", metric="")

        def report(now: Position) -> None:
            metric = "" if now.metric is None else f"validation {now.metric_name} {figure(now.metric)}"
            epoch = f"{now.epoch}/{now.epochs}"
            bar.update(
                row, completed=now.step, total=now.total_steps, epoch=epoch, loss=figure(now.loss), metric=metric
            )

        yield report


@contextmanager
def _library_messages(output: Output) -> Iterator[None]:
    """Print what the library logs: what was filled, cut or skipped, what was chosen, and warnings of a run."""
    handler = _Notes(output)
    loggers = [logging.getLogger(name) for name in ("stablernn.data", "stablernn.training")]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


class _Notes(logging.Handler):
    """What is logged, as notes on stderr."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self._output.warn(record.getMessage())
        else:
            self._output.note(record.getMessage())


class _Lines:
    """A line for each validated epoch."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._step = -1
        self._started = time.monotonic()

    def __call__(self, now: Position) -> None:
        # A step is reported once; the second report of the same step comes after the epoch's validation.
        if now.step == self._step:
            self._output.note(
                f"epoch {now.epoch}/{now.epochs}  loss {figure(now.loss)}  validation {now.metric_name} "
                f"{figure(now.metric)}  {time.monotonic() - self._started:.0f} s"
            )
        self._step = now.step
