"""`stablernn eval`: scores of a run or of a registry version on a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stablernn_cli.commands import eval_predictions, eval_robustness, eval_stability, eval_stream
from stablernn_cli.errors import UsageError
from stablernn_cli.metric_tables import data_notes, scalar_metrics, show_metrics
from stablernn_cli.options import (
    Device,
    DeviceOption,
    EngineOption,
    JsonOption,
    RepairsOption,
    ScoredDataOption,
    ScoredStampsOption,
    Split,
    SplitOption,
    Stamps,
    TargetArgument,
)
from stablernn_cli.output import Output
from stablernn_cli.prediction.answers import FileOptions, with_file_options
from stablernn_cli.targets import Target, compute_certificate, open_target

if TYPE_CHECKING:
    from stablernn.data.step_data import Data
    from stablernn.training.tasks.task import ScoreExtras

By = Literal["series", "step", "both"]
Table = Literal["series", "step"]

PANEL = "More figures"

_TABLES: dict[By | None, tuple[Table, ...]] = {
    None: (),
    "series": ("series",),
    "step": ("step",),
    "both": ("series", "step"),
}


@dataclass(frozen=True)
class Extras:
    """Measurements in addition to the scores.

    Attributes:
        by: Tables of a forecast's scores in the document.
        tables: Folder to write them to as CSV.
        backtest: Rolling origins of a forecast, ``windows=8,step=24``.
        soak: True for a long free run of a forecast.
        early: True to score a classification on prefixes of the sequences.
        stability: True to certify and observe stability.
        robustness: Options of the attacks on a classification.
        predictions: File to write what is predicted for each sample to.
    """

    by: By | None = None
    tables: Path | None = None
    backtest: str | None = None
    soak: bool = False
    early: bool = False
    stability: bool = False
    robustness: eval_robustness.RobustnessOptions = eval_robustness.RobustnessOptions()
    predictions: Path | None = None


def evaluate(
    context: typer.Context,
    target: TargetArgument,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="[OTHER]",
            help="A second TARGET: both are scored on the same samples, and said to differ by more than noise or not.",
            show_default=False,
        ),
    ] = None,
    data: ScoredDataOption = None,
    stamps: ScoredStampsOption = None,
    repairs: RepairsOption = None,
    split: SplitOption = "test",
    predictions: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FILE",
            help="Also write what is predicted for each sample, beside the truth: CSV, Parquet or JSON lines by the "
            "suffix .csv, .parquet, .jsonl.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[
        By | None,
        typer.Option(
            help="Forecasts: scores of each series, of each step ahead, or both.",
            show_default=False,
            rich_help_panel=PANEL,
        ),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Forecasts: write both tables there, by_series.csv and by_step.csv.",
            show_default=False,
            rich_help_panel=PANEL,
        ),
    ] = None,
    backtest: Annotated[
        str | None,
        typer.Option(
            metavar="windows=N,step=N",
            help="Forecasts: N origins of each series up to the end of the split, N steps apart, once with the state "
            "carried from one to the next and once with the context read again at each.",
            show_default=False,
            rich_help_panel=PANEL,
        ),
    ] = None,
    soak: Annotated[
        bool,
        typer.Option(
            "--soak",
            help="Forecasts: a free run of ten horizons, with forecasts fed back, and whether it stays bounded; and "
            "the split as a stream, with the coverage of fixed and adaptive intervals and alarms of drift.",
            rich_help_panel=PANEL,
        ),
    ] = False,
    early: Annotated[
        bool,
        typer.Option(
            "--early", help="Classification: scores after each tenth of the sequences.", rich_help_panel=PANEL
        ),
    ] = False,
    robustness: eval_robustness.RobustnessOption = False,
    attack_budgets: eval_robustness.BudgetsOption = None,
    attack_budgets_l2: eval_robustness.L2BudgetsOption = None,
    attack_steps: eval_robustness.StepsOption = None,
    attack_sequences: eval_robustness.SequencesOption = None,
    attack_clip: eval_robustness.ClipOption = False,
    attack_random_start: eval_robustness.RandomStartOption = False,
    stability: Annotated[
        bool,
        typer.Option(
            "--stability",
            help="The model's stability certificate, and what is observed on the split: Jacobians, Lyapunov exponents, "
            "gradients. A run gets plots, a version a record.",
            rich_help_panel=PANEL,
        ),
    ] = False,
    device: DeviceOption = "auto",
    engine: EngineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score a run or a registry version

    A run is scored by torch, a registry version by ONNX Runtime on the graph that is served. A forecast is compared
    with the seasonal naive, the naive and the drift forecast on the same windows, a classification with a ridge
    classifier on the raw values and with the most frequent class. docs/evaluation.md has the formulas. Labeled
    sequences of --data that have no test split are scored as a whole.

    With OTHER, differences between the errors of both are tested by Wilcoxon's signed-rank test.

    Example: stablernn eval digits@production --split test
    """
    output = Output.of(context, as_json)
    attacks = eval_robustness.RobustnessOptions(
        robustness,
        attack_budgets,
        attack_budgets_l2,
        attack_steps,
        attack_sequences,
        attack_clip,
        attack_random_start,
    )
    extras = Extras(by, tables, backtest, soak, early, stability, attacks, predictions)
    options = ScoreOptions(data, stamps, tuple(repairs or ()), split, device, engine)
    if other is not None and extras != Extras():
        raise UsageError("More figures are those of one TARGET, got two. Leave the second one out, or the option.")
    document = score(output, target, options, extras) if other is None else compare(output, (target, other), options)
    if as_json:
        output.document(document)
    elif other is None:
        show(output, document)
    else:
        show_comparison(output, document)


@dataclass(frozen=True)
class ScoreOptions:
    """The data to score on, and how to compute, as the options of the command say."""

    data: str | None = None
    stamps: Stamps | None = None
    repairs: tuple[str, ...] = ()
    split: Split = "test"
    device: Device = "auto"
    engine: str | None = None

    def open(self, target: str) -> Target:
        """Open a target, with the repairs of the table."""
        model = open_target(target, self.device, self.engine)
        return model.with_repairs(self.data or model.config.data.source, self.repairs)

    def load(self, model: Target) -> Data:
        """Load the data as a model takes it; labeled sequences of ``data`` that have no test split are one."""
        from stablernn.data.types import ClassificationData

        loaded = model.load_data(self.data, self.stamps)
        if self.data is None or self.split != "test" or not isinstance(loaded, ClassificationData):
            return loaded
        return loaded.as_test()


def score(
    output: Output, target: str, options: ScoreOptions | None = None, extras: Extras | None = None
) -> dict[str, Any]:
    """Return the document that ``eval --json`` prints."""
    options, extras = options or ScoreOptions(), extras or Extras()
    split = options.split
    with output.status(f"Scoring {target} on {split} ..."):
        from stablernn.data.types import score_notes
        from stablernn.training.tasks import task_for

        model = options.open(target)
        # Options that do not fit the task are rejected before the data is read.
        _check(model, extras)
        score_extras = _score_extras(model, extras)
        attack_settings = extras.robustness.settings(model.task, model.name)
        loaded = options.load(model)
        scores = task_for(loaded).score(model.predictor, split, model.names, score_extras)
        results = {**scores.results, "warnings": _warn(model, loaded, split, scores.metrics)}
        if extras.predictions is not None:
            source = options.data or model.config.data.source
            named = with_file_options(model, source, FileOptions())
            rows = eval_predictions.write_split(extras.predictions, named, loaded, split)
            results |= {"output": str(extras.predictions), "rows": rows}
        if extras.stability:
            results |= eval_stability.observe_stability(output, target, model, loaded, split)
    if attack_settings is not None:
        report = eval_robustness.measure(output, target, model, loaded, split, attack_settings)
        # Each report on a version becomes a record of its own.
        records = [*results.pop("records", ()), *report.pop("records", ())]
        results |= report | ({"records": records} if records else {})
    # Data named by --data is expected to differ.
    if options.data is None and loaded.fingerprint != model.fingerprint:
        output.note(f"Note: '{loaded.name}' has changed since {target} was trained on it.")
    return {
        "target": model.name,
        "task": model.task,
        "data": {
            "name": loaded.name,
            "fingerprint": loaded.fingerprint,
            "as_trained": loaded.fingerprint == model.fingerprint,
        },
        "split": split,
        "samples": scores.samples,
        "metrics": scores.metrics,
        "data_notes": score_notes(loaded.notes),
        **results,
    }


def _warn(model: Target, loaded: Data, split: Split, scores: Mapping[str, Any]) -> list[str]:
    """Return sentences about intervals that hold too little, and a model that is much worse than at training."""
    from stablernn.training.verdict import describe_coverage, describe_decline

    name = f"'{loaded.name}'"
    warnings = describe_coverage(f"the {split} split of {name}", scores)
    if loaded.fingerprint != model.fingerprint:
        warnings += describe_decline(name, scores, model.metrics, loaded.task)
    return warnings


def compare(output: Output, targets: tuple[str, str], options: ScoreOptions) -> dict[str, Any]:
    """Return the scores of two targets on the same samples, and whether they differ by more than noise.

    Raises:
        UsageError: If the two have other tasks, horizons or targets.
        stablernn.errors.DataError: If they have no sample in common.
    """
    with output.status(f"Scoring {' and '.join(targets)} on {options.split} ..."):
        from stablernn.compare.results import compare_errors
        from stablernn.training.tasks import task_for

        models = [options.open(target) for target in targets]
        for fact in ("task", "horizon", "targets"):
            first, second = (getattr(model, fact) for model in models)
            if first != second:
                raise UsageError(
                    f"Two models of the same {fact} are compared, got {first} of {models[0].name} and {second} of "
                    f"{models[1].name}. Score them one by one."
                )
        tasks = [task_for(options.load(model)) for model in models]
        scores, errors = [], []
        for task, model in zip(tasks, models, strict=True):
            scores.append(task.score(model.predictor, options.split, model.names).metrics)
            errors.append(task.sample_errors(model.predictor, options.split, model.names))
        comparison = compare_errors(*errors)
    metric = comparison["metric"]
    return {
        "targets": [model.name for model in models],
        "task": models[0].task,
        "data": {"name": tasks[0].data.name, "fingerprint": tasks[0].data.fingerprint},
        "split": options.split,
        "samples": comparison.pop("samples"),
        "metrics": scores,
        "comparison": {**comparison, "first": scores[0][metric], "second": scores[1][metric]},
    }


def show_comparison(output: Output, document: Mapping[str, Any]) -> None:
    """Print the scores of two targets side by side, and one sentence on their difference."""
    from stablernn.compare.results import describe_power

    first, second = document["targets"]
    names = (first, second if second != first else f"{second}, again")
    comparison = document["comparison"]
    output.text(f"{document['data']['name']}, {document['split']}: {document['samples']} samples of both")
    show_metrics(output, {name: scalar_metrics(each) for name, each in zip(names, document["metrics"], strict=True)})
    metric, units, unit = comparison["metric"], comparison["units"], comparison["unit"]
    test = f"p {comparison['p']:.2g} by Wilcoxon's signed-rank test over {units} {unit}"
    output.text()
    if comparison["is_different"]:
        better = names[0] if comparison["better"] == "first" else names[1]
        output.text(f"{better} is better in {metric} by more than noise: {test}.")
    else:
        output.text(f"The difference in {metric} is within noise: {test}; {describe_power(units, 1, unit)}.")


def _score_extras(model: Target, extras: Extras) -> ScoreExtras:
    """Return the measurements of the task's adapter.

    Raises:
        stablernn.errors.ConfigError: If the backtest is malformed.
    """
    from stablernn.training.evaluation.backtest import parse
    from stablernn.training.tasks.task import ScoreExtras

    return ScoreExtras(
        by=_TABLES[extras.by],
        tables=extras.tables,
        backtest=None if extras.backtest is None else parse(extras.backtest),
        free_run=(lambda: compute_certificate(model.name)[1]) if extras.soak else None,
        stream_monitor=eval_stream.ServedEstimates if extras.soak else None,
        early=extras.early,
    )


def _check(model: Target, extras: Extras) -> None:
    """Reject options that do not fit the task.

    Raises:
        UsageError: If an option is for another task.
    """
    if extras.predictions is not None:
        eval_predictions.check_output(extras.predictions, model)
    forecast = {
        "--by": extras.by is not None,
        "--tables": extras.tables is not None,
        "--backtest": extras.backtest is not None,
        "--soak": extras.soak,
    }
    early = {"--early": extras.early}
    for options, task, noun in ((forecast, "forecast", "forecasts"), (early, "classify", "classification")):
        in_use = [name for name, is_set in options.items() if is_set]
        if in_use and model.task != task:
            raise UsageError(f"{in_use[0]} is for {noun}, and {model.name} is for '{model.task}'. Leave it out.")


def show(output: Output, document: Mapping[str, Any]) -> None:
    """Print the scores as text: the model's next to those of the baselines."""
    from stablernn.training.tasks import task_type

    noun = task_type(document["task"]).sample_noun
    output.text(
        f"{document['target']} on {document['data']['name']}, {document['split']}: {document['samples']} {noun}"
    )
    left_out = document.get("windows_without_context")
    if left_out:
        verb = "window is" if left_out == 1 else "windows are"
        output.text(f"{left_out} {verb} left out: no target has a value in the context.")
    show_metrics(output, _metric_columns("model", document["metrics"]))
    line = data_notes(document["data_notes"])
    if line:
        output.text(line)
    for name, title in (("by_series", "By series"), ("by_step", "By step"), ("early", "By share of the sequence")):
        if name in document:
            _show_table(output, document[name], title)
    if "backtest" in document:
        _show_backtest(output, document["backtest"])
    if "soak" in document:
        _show_soak(output, document["soak"])
    if "robustness" in document:
        eval_robustness.show(output, document["robustness"])
    if "stability" in document:
        eval_stability.show(output, document)
    for path in (*document.get("tables", ()), *document.get("plots", ())):
        output.note(f"Wrote {path}.")
    for sentence in document["warnings"]:
        output.text(f"Warning: {sentence}")
    if "output" in document:
        output.note(f"Wrote {document['rows']} rows to {document['output']}.")


def _metric_columns(name: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a column of the model's metrics, and one for each baseline among them."""
    columns = {name: scalar_metrics(metrics)}
    return columns | {key.replace("_", " "): value for key, value in metrics.items() if isinstance(value, Mapping)}


def _show_table(output: Output, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    output.text()
    if rows:
        output.table(list(rows[0]), [list(row.values()) for row in rows], title=title)


def _show_backtest(output: Output, report: Mapping[str, Any]) -> None:
    output.text()
    # Short series have fewer origins than windows were requested.
    missing = f", {report['missing_origins']} more than the series have" if report["missing_origins"] else ""
    output.text(
        f"Backtest: {report['windows']} windows, {report['step']} steps apart; {report['origins']} origins{missing}"
    )
    carried, fresh = report["carried"], report["fresh"]
    columns = _metric_columns("state carried", carried["metrics"])
    # The two next to each other, then the baselines.
    columns = {
        "state carried": columns.pop("state carried"),
        "context reread": scalar_metrics(fresh["metrics"]),
        **columns,
    }
    for name, part in (("state carried", carried), ("context reread", fresh)):
        columns[name] = {**columns[name], "steps read": part["steps_read"], "seconds": part["seconds"]}
    show_metrics(output, columns)
    _show_table(output, report["by_window"], "By window, earliest first")


def _show_soak(output: Output, report: Mapping[str, Any]) -> None:
    """Print the free run, with the proved bound on each state next to the largest observed one."""
    output.text()
    diverged_at = report["diverged_at"]
    verdict = "bounded" if report["bounded"] else "not bounded"
    growing = ", and still growing" if report["still_growing"] else ""
    output.facts(
        {
            "free run": f"{report['series']} series, {report['steps']} steps: {verdict}",
            "largest value": f"{_number(report['largest'])} training spreads from the mean "
            f"({_number(report['largest_in_training'])} in training)",
            "growth": f"{_number(report['growth'])} (last tenth over the first){growing}",
            "diverged": "never" if diverged_at is None else f"at step {diverged_at}",
            "proved of the state": f"none: {report['bound_reason']}"
            if report["bound"] is None
            else "; ".join(
                f"{role} stays within {_number(limit)} (l2), {_number(max(report['state_norms'][role]))} here"
                for role, limit in report["bound"].items()
            ),
        },
        title="Soak",
    )
    eval_stream.show(output, report)


def _number(value: float) -> str:
    return f"{value:.3g}"
