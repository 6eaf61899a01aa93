"""`stablernn eval`: scores of a run or of a registry version on a split."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stablernn_cli.errors import UsageError
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
    option,
)
from stablernn_cli.output import Output, data_notes, drop_none, figure, plain, scalar_metrics, show_metrics
from stablernn_cli.prediction import FileOptions, column_names, format_times, with_file_options
from stablernn_cli.prediction_files import check_format, write_table
from stablernn_cli.records import record_report
from stablernn_cli.targets import Target, certify_target, is_run, open_target, open_weights

if TYPE_CHECKING:
    import numpy.typing as npt

    from stablernn.data import ClassificationData, ForecastData
    from stablernn.data.step_data import Data
    from stablernn.nn.models import Classifier
    from stablernn.robustness.settings import Settings
    from stablernn.training.tasks.task import ScoreExtras

    Array = npt.NDArray[Any]

By = Literal["series", "step", "both"]
TABLES: tuple[Literal["series", "step"], ...] = ("series", "step")

_figure = partial(option, rich_help_panel="More figures")
_attack = partial(option, rich_help_panel="Robustness")
_CURVE = ("levels", "accuracy", "standard_error")
_ATTACK_NAMES = {"pgd": "PGD", "deepfool": "DeepFool"}
_MAX_EXPONENTS = 5
FALSE_ALARM_RATE = 1e-4
"""Rate of false alarms a reading at which a split is tested for drift."""
MOST_ALARMS_A_BLOCK = 0.1
"""Rate of false alarms a block that a test of long blocks does not exceed."""


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
        robustness: True to attack a classification.
        attacks: Settings of the attacks that were made.
        predictions: File to write what is predicted for each sample to.
    """

    by: By | None = None
    tables: Path | None = None
    backtest: str | None = None
    soak: bool = False
    early: bool = False
    stability: bool = False
    robustness: bool = False
    attacks: Mapping[str, Any] = field(default_factory=dict)
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
        option(
            "Also write what is predicted for each sample, beside the truth: CSV, Parquet or JSON lines by the "
            "suffix .csv, .parquet, .jsonl. A sequence has its position in the file as id, from 0.",
            "--output",
            metavar="FILE",
        ),
    ] = None,
    by: Annotated[
        By | None,
        _figure("Forecasts: scores of each series, of each step ahead, or both."),
    ] = None,
    tables: Annotated[
        Path | None,
        _figure("Forecasts: write both tables there, by_series.csv and by_step.csv.", metavar="DIR"),
    ] = None,
    backtest: Annotated[
        str | None,
        _figure(
            "Forecasts: N origins of each series up to the end of the split, N steps apart, once with the state "
            "carried from one to the next and once with the context read again at each.",
            metavar="windows=N,step=N",
        ),
    ] = None,
    soak: Annotated[
        bool,
        _figure(
            "Forecasts: a free run of ten horizons, with forecasts fed back, and whether it stays bounded; and "
            "the split as a stream, with the coverage of fixed and adaptive intervals and alarms of drift.",
        ),
    ] = False,
    early: Annotated[
        bool,
        _figure("Classification: scores after each tenth of the sequences."),
    ] = False,
    robustness: Annotated[
        bool,
        _attack(
            "Classification: accuracy under attacks and noise, certified accuracy, curvature of the loss. The "
            "report is stored in the run, or as a record of the version.",
        ),
    ] = False,
    attack_budgets: Annotated[
        str | None,
        _attack(
            "Largest change of a value, in standard deviations of its feature; default: .001,.003,.01,.03,.1,.3.",
            metavar="B,B,...",
        ),
    ] = None,
    attack_budgets_l2: Annotated[
        str | None,
        _attack(
            "Largest 2-norm of all changes of a sequence, in the same unit; default: .01,.03,.1,.3,1,3.",
            metavar="B,B,...",
        ),
    ] = None,
    attack_steps: Annotated[
        int | None,
        _attack("Gradient steps of an attack; default: 20."),
    ] = None,
    attack_sequences: Annotated[
        int | None,
        _attack(
            "Number of sequences to measure, drawn at random; default: 200.",
        ),
    ] = None,
    attack_clip: Annotated[
        bool,
        _attack(
            "Keep attacked values within their feature's range in training.",
        ),
    ] = False,
    attack_random_start: Annotated[
        bool,
        _attack("Start PGD at a random point of the ball."),
    ] = False,
    stability: Annotated[
        bool,
        _figure(
            "The model's stability certificate, and what is observed on the split: Jacobians, Lyapunov exponents, "
            "gradients. A run gets plots, a version a record.",
        ),
    ] = False,
    device: DeviceOption = "auto",
    engine: EngineOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score a run or a registry version

    A run is scored by torch, a registry version by ONNX Runtime on the graph that is served. A forecast is compared
    with the seasonal naive, the naive and the drift forecast on the same windows, a classification with a ridge
    classifier on the raw values and with the most frequent class. docs/reference/metrics.md has the formulas. Labeled
    sequences of --data that have no test split are scored as a whole.

    With OTHER, differences between the errors of both are tested by Wilcoxon's signed-rank test.

    Example: stablernn eval digits@production --split test
    """
    output = Output.of(context, as_json)
    attacks = {
        "linf_budgets": _numbers("--attack-budgets", attack_budgets),
        "l2_budgets": _numbers("--attack-budgets-l2", attack_budgets_l2),
        "steps": attack_steps,
        "sequences": attack_sequences,
        # A flag that is off is left to the default, like an option that is absent.
        "clip": attack_clip or None,
        "random_start": attack_random_start or None,
    }
    extras = Extras(by, tables, backtest, soak, early, stability, robustness, drop_none(attacks), predictions)
    options = ScoreOptions(data, stamps, tuple(repairs or ()), split, device, engine)
    if other is not None and extras != Extras():
        raise UsageError("More figures are those of one TARGET, got two. Leave the second one out, or the option.")
    document = score(output, target, options, extras) if other is None else compare(output, (target, other), options)
    if as_json:
        output.document(document)
    elif other is None:
        show(output, document)
    else:
        _show_comparison(output, document)


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
        """Load the data as a model takes it; sequences and experiments of ``data`` without a test split are one."""
        from stablernn.data.experiments import SimulationData
        from stablernn.data.types import ClassificationData

        loaded = model.load_data(self.data, self.stamps)
        if not isinstance(loaded, ClassificationData | SimulationData) or self.split == "train":
            return loaded
        if self.data is None and model.config.training.refit and loaded.test is None:
            raise self._nothing_left(model)
        return loaded if self.data is None or self.split != "test" else loaded.as_test()

    def _nothing_left(self, model: Target) -> Exception:
        from stablernn.errors import DataError

        command = "runs show" if is_run(model.name) else "registry show"
        scores = f"its scores are those of its cross-validation (stablernn {command} {model.name})"
        trained = f"{model.name} was trained on all sequences of '{model.config.data.source}', so that none are left"
        known = f": {scores}" if "cross_validation" in model.metrics else ""
        return DataError(f"{trained} to score it on{known}; --data FILE scores it on other data.")


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
        attack_settings = _attack_settings(model, extras)
        loaded = options.load(model)
        scores = task_for(loaded).score(model.predictor, split, model.names, score_extras)
        results = {**scores.results, "warnings": _warn(model, loaded, split, scores.metrics)}
        if extras.predictions is not None:
            source = options.data or model.config.data.source
            named = with_file_options(model, source, FileOptions())
            rows = _write_split(extras.predictions, named, loaded, split)
            results |= {"output": str(extras.predictions), "rows": rows}
        if extras.stability:
            results |= _observe_stability(output, target, model, loaded, split)
    if attack_settings is not None:
        report = _measure_robustness(output, target, model, loaded, split, attack_settings)
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
    from stablernn.training.verdict import describe_coverage, describe_decline, describe_linear

    name = f"'{loaded.name}'"
    part = f"the {split} split of {name}"
    warnings = describe_coverage(part, scores) + describe_linear(part, scores)
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


def _show_comparison(output: Output, document: Mapping[str, Any]) -> None:
    """Print the scores of two targets side by side, and one sentence on their difference."""
    from stablernn.compare.results import describe_power, units_needed

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
    elif units < units_needed(1):
        output.text(
            f"Whether the difference in {metric} is more than noise cannot be told: Wilcoxon's signed-rank test needs "
            f"{units_needed(1)} {unit} or more, and there are {units}."
        )
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
        by=TABLES if extras.by == "both" else () if extras.by is None else (extras.by,),
        tables=extras.tables,
        backtest=None if extras.backtest is None else parse(extras.backtest),
        free_run=(lambda: certify_target(model.name).document) if extras.soak else None,
        stream_monitor=ServedEstimates if extras.soak else None,
        early=extras.early,
    )


def _attack_settings(model: Target, extras: Extras) -> Settings | None:
    """Return the settings of the attacks, or None without ``--robustness``.

    Raises:
        UsageError: If an option needs ``--robustness``, or the model does not classify.
        stablernn.errors.ConfigError: If a number is out of its range.
    """
    if not extras.robustness:
        if extras.attacks:
            raise UsageError("The options --attack-... need --robustness. Add it, or leave them out.")
        return None
    if model.task != "classify":
        raise UsageError(f"--robustness is for classification, and {model.name} is for '{model.task}'. Leave it out.")
    from stablernn.robustness.settings import Settings

    return Settings(**extras.attacks)


def _check(model: Target, extras: Extras) -> None:
    """Reject options that do not fit the task.

    Raises:
        UsageError: If an option is for another task.
    """
    if extras.predictions is not None:
        _check_output(extras.predictions, model)
    for name, task, noun in (
        *((name, "forecast", "forecasts") for name in ("by", "tables", "backtest", "soak")),
        ("early", "classify", "classification"),
    ):
        if getattr(extras, name) and model.task != task:
            raise UsageError(f"--{name} is for {noun}, and {model.name} is for '{model.task}'. Leave it out.")


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
        _show_robustness(output, document["robustness"])
    if "stability" in document:
        _show_stability(output, document)
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
    parts = {"state carried": report["carried"], "context reread": report["fresh"]}
    if report["carried"] is None:
        output.text("The step is no whole number of the model's patches, so that each origin reads its context.")
        del parts["state carried"]
    # The two next to each other, then the baselines.
    columns = {
        name: {**scalar_metrics(part["metrics"]), "steps read": part["steps_read"], "seconds": part["seconds"]}
        for name, part in parts.items()
    }
    columns = {**_metric_columns("context reread", report["fresh"]["metrics"]), **columns}
    columns = {**{name: columns.pop(name) for name in parts}, **columns}
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
    _show_stream(output, report)


def _number(value: float) -> str:
    return f"{value:.3g}"


class ServedEstimates:
    """Adaptive intervals and the test for drift, as `serve` computes them.

    Attributes:
        false_alarm_rate: Stated bound on the mean number of false alarms a reading; None without a test for drift.
        block: Readings in a block of that test; None without.
        reason: Why there is no test; None if there is one.
    """

    def __init__(
        self, data: ForecastData, levels: Sequence[float], stride: int, certificate: Mapping[str, Any]
    ) -> None:
        """Define the estimates of a model's streams.

        Args:
            data: Data of its forecasts.
            levels: Levels of its quantiles, of which two add up to 1.
            stride: Readings in a sample.
            certificate: Its certificate.
        """
        from stablernn_runtime.adaptive_intervals import AdaptiveIntervals
        from stablernn_runtime.drift import DriftDetector
        from stablernn_runtime.online_streams import OnlineStreams, block_length

        self.false_alarm_rate: float | None = None
        self.block: int | None = None
        self.reason: str | None = None
        # The positions of targets are those among the channels, which are what a stream sends.
        targets = list(data.target_indices)
        test = None
        try:
            self.block = block_length(certificate, data.season, stride)
        except ValueError as error:
            self.reason = str(error)
        else:
            # A rate a reading that suits short blocks would be several alarms a block of long ones.
            self.false_alarm_rate = min(FALSE_ALARM_RATE, MOST_ALARMS_A_BLOCK / self.block)
            test = DriftDetector(self.false_alarm_rate, self.block, data.horizon, len(targets), stride)
        intervals = AdaptiveIntervals(data.horizon, len(targets), levels, stride)
        self._online = OnlineStreams(targets, list(levels), intervals, test)

    def run(self, x: Array, quantiles: Array) -> tuple[Array, int]:
        """Return the adaptive quantiles after each sample of a new stream, and the number of alarms.

        Args:
            x: (samples, stride, channels), raw units.
            quantiles: (samples, horizon, targets, levels), the forecasts after each sample.
        """
        from stablernn_runtime.online_streams import ADAPTIVE_QUANTILES

        update = self._online.advance({}, x[None], quantiles[None])
        return update.outputs[ADAPTIVE_QUANTILES][0], int(update.alarms[0])


def _show_stream(output: Output, report: Mapping[str, Any]) -> None:
    """Print the coverage of the streamed split and its alarms."""
    output.text()
    streamed = report["streamed"]
    if streamed is None:
        output.facts({"intervals": f"none: {report['streamed_reason']}"}, title="Stream")
        return
    facts: dict[str, object] = {"read": f"{streamed['series']} series, {streamed['readings']} readings"}
    for row in streamed["coverage"]:
        fixed, adaptive = (_share(row[name]) for name in ("fixed", "adaptive"))
        facts[f"coverage, {row['nominal']:.0%} nominal"] = f"{fixed} fixed, {adaptive} adaptive"
    if streamed["alarms"] is None:
        facts["alarms of drift"] = f"not tested: {streamed['drift_reason']}"
    else:
        expected = streamed["readings"] * streamed["false_alarm_rate"]
        facts["alarms of drift"] = (
            f"{streamed['alarms']} in blocks of {streamed['block']} readings; without drift at most {expected:.2g} "
            "on average"
        )
    output.facts(facts, title="Stream")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _check_output(path: Path, model: Target) -> None:
    """Refuse a file that is not written, before the data is read.

    Raises:
        UsageError: If the task has no table of predictions, or the suffix selects no format.
    """
    if model.task in ("predict-next", "simulate"):
        raise UsageError(
            f"--output is for forecasts and classification, and {model.name} is for '{model.task}'. Leave it out."
        )
    check_format(path)


def _write_split(path: Path, model: Target, data: Data, split: str) -> int:
    """Write the predictions for a split and return the number of rows.

    Raises:
        CommandError: If the file cannot be written.
    """
    from stablernn.data import ClassificationData, ForecastData
    from stablernn.training import predict

    samples = data.split(split)
    outputs = predict(model.predictor, samples)
    if isinstance(data, ForecastData):
        table = _forecast_table(model, data, split, outputs)
    else:
        assert isinstance(data, ClassificationData)
        table = _class_table(model, data, split, outputs["probabilities"])
    write_table(path, table)
    return len(next(iter(table.values())))


def _class_table(model: Target, data: ClassificationData, split: str, probabilities: Array) -> dict[str, Any]:
    samples = data.split(split)
    best = probabilities.argmax(axis=1)
    return {
        column_names(model, "id")[0]: list(samples.ids),
        "label": [data.labels[index] for index in samples.y],
        "predicted": [model.labels[index] for index in best],
        **{f"probability_{label}": probabilities[:, index] for index, label in enumerate(model.labels)},
    }


def _forecast_table(model: Target, data: ForecastData, split: str, outputs: Mapping[str, Array]) -> dict[str, Any]:
    import numpy as np

    windows = data.windows(split)
    horizon, targets = windows.horizon, len(model.targets)
    origins = windows.origins
    # (windows, horizon)
    ds: Array = np.stack([data.series[series].ds[end : end + horizon] for series, end in origins])
    before: Array = np.concatenate([data.series[series].ds[end - 1 : end] for series, end in origins])
    names = np.array([each.unique_id for each in data.series], dtype=object)[[series for series, _ in origins]]
    in_utc = data.notes.get("time_zone") == "UTC"
    # A row for each window, step and target, in this order.
    id_name, time_name = column_names(model, "unique_id")
    table: dict[str, Any] = {
        id_name: np.repeat(names, horizon * targets),
        "origin": format_times(np.repeat(before, horizon * targets), in_utc),
        time_name: format_times(np.repeat(ds.reshape(-1), targets), in_utc),
    }
    if targets > 1:
        table["target"] = list(model.targets) * ds.size
    table["actual"] = windows.truth(np.arange(len(windows))).reshape(-1)
    table["mean"] = outputs["mean"].reshape(-1)
    for index, level in enumerate(model.quantiles):
        table[f"q{level:g}"] = outputs["quantiles"][..., index].reshape(-1)
    return table


def _store_report(
    output: Output, text: str, target: Target, kind: str, write: Callable[[Path], list[Path]]
) -> dict[str, Any]:
    """Write a report into the directory of a run, or beside a version, which never changes, as a record.

    Args:
        output: Prints where the record is.
        text: TARGET as it was typed.
        target: The same, opened.
        kind: Type of the record.
        write: Writes the files below a folder, and returns those of a run.

    Returns:
        ``plots`` with the files of a run, or ``records``.
    """
    if is_run(text):
        return {"plots": [str(path) for path in write(Path(text))]}
    with tempfile.TemporaryDirectory(prefix="stablernn-eval-") as folder:
        write(Path(folder))
        return {"records": record_report(output, target.name, kind, Path(folder))}


def _observe_stability(output: Output, text: str, target: Target, data: Data, split: Split) -> dict[str, Any]:
    """Return the certificate of a model and what is observed of it on a split, and where the report is stored."""
    from stablernn.dynamics.plots import draw_report
    from stablernn.dynamics.report import observe_dynamics
    from stablernn.export.step import weights_digest

    # The torch model, also for a version: Jacobians and gradients need it.
    model = open_weights(target.name)
    observation = observe_dynamics(model, data, split, labels=target.labels or None)
    stability = observation.document()

    def write(folder: Path) -> list[Path]:
        if not is_run(text):
            # The digest ties the record to the weights that were observed.
            report = {"weights": weights_digest(model), "data": data.name, "split": split, **stability}
            (folder / "stability.json").write_text(json.dumps(plain(report), indent=2) + "\n", encoding="utf-8")
        return draw_report(folder / "plots", observation, f"{data.name}, {split}")

    return {"stability": stability, **_store_report(output, text, target, "stability", write)}


def _show_stability(output: Output, document: Mapping[str, Any]) -> None:
    """Print both parts as text, the certificate first."""
    certificate, empirical = document["stability"]["certificate"], document["stability"]["empirical"]
    output.text()
    output.facts(_certificate_facts(certificate), title="Proved")
    output.text()
    sequences = empirical["sequences"]
    noun = "sequence" if sequences == 1 else "sequences"
    title = f"Observed on {sequences} {noun} of the {document['split']} split, {empirical['steps']:,} steps"
    jacobian = _jacobian_facts(empirical["jacobian"], certificate)
    lyapunov, gradients = _lyapunov_facts(empirical["lyapunov"]), _gradient_facts(empirical["gradients"])
    output.facts(jacobian | lyapunov | gradients, title=title)


def _certificate_facts(certificate: Mapping[str, Any]) -> dict[str, object]:
    from stablernn_registry.certificates import describe_certificate, format_upper

    rate, gain = certificate["contraction_rate"], certificate["gains"]["input_to_output"]
    facts = {
        "kind": describe_certificate(certificate),
        "norm": certificate["norm"],
        "contraction rate": None if rate is None else format_upper(rate, 6),
        "gain, input to output": None if gain is None else format_upper(gain, 4),
    }
    return drop_none(facts)


def _jacobian_facts(spectrum: Mapping[str, Any] | None, certificate: Mapping[str, Any]) -> dict[str, object]:
    if spectrum is None:
        return {"Jacobian": "not decomposed, the state is too long"}
    from stablernn_registry.certificates import format_upper

    # Hypotheses are named "layer 0 contraction rate", or without the layer if there is one only.
    proved_rates = {
        hypothesis["name"].removesuffix("contraction rate").strip(): hypothesis["value"]
        for hypothesis in certificate["hypotheses"]
    }
    radius, largest, smallest = (
        spectrum[name] for name in ("spectral_radius", "largest_singular_value", "smallest_singular_value")
    )
    facts: dict[str, object] = {
        f"{row['layer']} largest factor of a step".strip(): f"{figure(row['factor'])} in {row['norm']} "
        f"(proved: at most {_digits(proved_rates[row['layer']], format_upper)})"
        for row in spectrum["largest_factors"]
    }
    facts |= {
        "spectral radius": f"{figure(radius['mean'])} on average, up to {figure(radius['most'])}",
        "outside the unit circle": f"{spectrum['share_outside']:.1%} of the eigenvalues",
        "mean modulus": spectrum["mean_modulus"],
        "singular values": f"{figure(smallest['least'])} to {figure(largest['most'])}",
        "departure from normality": f"{figure(spectrum['departure_from_normality']['mean'])} (Henrici)",
    }
    # Only cells that discretize a differential equation have a flow.
    real_part = spectrum["continuous_real_part"]
    if real_part is not None:
        span = f"{figure(real_part['least'])} to {figure(real_part['most'])}"
        facts["real part of the flow"] = f"{span} a unit of time"
    return facts


def _lyapunov_facts(spectrum: Mapping[str, Any]) -> dict[str, object]:
    # JSON has no infinities: an exponent of minus infinity is None.
    pairs = list(zip(spectrum["exponents"], spectrum["standard_error"], strict=True))
    shown = ", ".join(
        "-inf" if exponent is None else figure(exponent) + ("" if error is None else f" +- {error:.1g}")
        for exponent, error in pairs[:_MAX_EXPONENTS]
    )
    more = f", ... ({len(pairs)})" if len(pairs) > _MAX_EXPONENTS else ""
    return {
        "Lyapunov exponents": f"{shown}{more} a step",
        "Kaplan-Yorke dimension": spectrum["kaplan_yorke"],
        "entropy rate": spectrum["entropy_rate"],
    }


def _gradient_facts(gradients: Mapping[str, Any]) -> dict[str, object]:
    def spread(name: str) -> str:
        # Quantiles over the sequences, in ascending order.
        low, middle, high = gradients[name].values()
        return f"{figure(middle)} ({figure(low)} to {figure(high)})"

    if not gradients["sequences"]:
        return {"gradients": "no loss at the end of these sequences"}
    return {
        "gradient, slope of its log": spread("slope"),
        "gradient, first over last": spread("first_over_last"),
        "gradient, least over most": spread("least_over_most"),
    }


def _measure_robustness(
    output: Output, target: str, model: Target, data: Any, split: Split, settings: Settings
) -> dict[str, Any]:
    """Return the report on a model under attacks, and its record if it is a version."""
    from stablernn.robustness.plots import write_report
    from stablernn.robustness.report import robustness

    # Attacks follow gradients, so a version is measured by its torch weights instead of its graph.
    report = robustness(
        _classifier(model),
        data,
        split,
        settings,
        labels=model.labels or None,
        features=model.features,
        stage=lambda name: output.status(f"Robustness of {target}: {name} ..."),
    )
    stored = _store_report(output, target, model, "robustness", lambda folder: write_report(folder, report))
    if "plots" in stored:
        output.note(f"Wrote {', '.join(stored.pop('plots'))}.")
    return {"robustness": report, **stored}


def _show_robustness(output: Output, report: Mapping[str, Any]) -> None:
    """Print the report as text."""
    output.text()
    output.text(f"Robustness on {report['sequences']} sequences; changes in standard deviations of each feature")
    # A table for each norm: a row for each budget, a column for each attack and for the certified accuracy.
    for norm, title in (("linf", "Largest change (linf)"), ("l2", "2-norm of the change (l2)")):
        output.text()
        attacks = [attack for attack in report["attacks"] if attack["norm"] == norm]
        certified = report["certified"][norm]
        columns = ["change up to", *(_ATTACK_NAMES[attack["name"]] for attack in attacks), "certified"]
        budgets = attacks[0]["budgets"]
        no_values = [None] * len(budgets)
        rows = [
            # The first row is without a change.
            [0.0, *[report["accuracy"]] * len(attacks), None if certified is None else report["accuracy"]],
            *zip(budgets, *(attack["accuracy"] for attack in attacks), certified or no_values, strict=True),
        ]
        output.table(columns, rows, title=title)
    output.text()
    output.facts(_robustness_facts(report))
    output.text()
    output.table(("noise", "level", "accuracy", "standard error"), _noise_rows(report["noise"]), title="Noise")


def _robustness_facts(report: Mapping[str, Any]) -> dict[str, object]:
    from stablernn_registry.certificates import format_lower

    # DeepFool searches the smallest change; PGD stays within a budget.
    deepfool = {attack["norm"]: attack for attack in report["attacks"] if attack["name"] == "deepfool"}
    certified, hessian = report["certified"], report["hessian"]
    facts: dict[str, object] = {
        "median change that flips a label": ", ".join(
            f"{_digits(attack['median_perturbation'])} ({norm})" for norm, attack in deepfool.items()
        ),
        "median certified radius": certified["reason"] or f"{_digits(certified['median_radius'], format_lower)} (l2)",
    }
    if hessian is not None:
        facts |= {
            "curvature, largest": hessian["largest"],
            "curvature, smallest": hessian["smallest"],
            "curvature, trace": f"{_digits(hessian['trace'])} +- {_digits(hessian['trace_standard_error'])}",
            "condition number": hessian["condition_number"],
        }
    return facts


def _noise_rows(noise: Mapping[str, Mapping[str, Sequence[float]]]) -> list[list[object]]:
    return [
        [kind.replace("_", " "), level, accuracy, error]
        for kind, curve in noise.items()
        for level, accuracy, error in zip(*(curve[key] for key in _CURVE), strict=True)
        # Level 0 is the accuracy without noise, which the other tables have.
        if level
    ]


def _classifier(model: Target) -> Classifier:
    """Return the torch model; the exported graphs have no gradients."""
    from stablernn.nn.models import Classifier
    from stablernn.training import TorchPredictor

    loaded = model.predictor.model if isinstance(model.predictor, TorchPredictor) else None
    classifier = loaded or open_weights(model.name)
    assert isinstance(classifier, Classifier)
    return classifier


def _numbers(option: str, text: str | None) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{option} must be a list of numbers such as 0.01,0.05,0.1, got '{text}'.") from None


def _digits(value: float | None, round_bound: Callable[[float, int], str] | None = None) -> str:
    """Return a number with four digits, rounded to the side on which a bound holds; a dash for none."""
    if value is None:
        return "-"
    return f"{value:.4g}" if round_bound is None else round_bound(value, 4)
