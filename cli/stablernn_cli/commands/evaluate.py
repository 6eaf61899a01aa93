"""`stablernn eval`: figures of a run or of a registry version on a split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from stablernn_cli.commands import eval_robustness, eval_stability
from stablernn_cli.commands.registry import data_notes, show_metrics
from stablernn_cli.errors import UsageError
from stablernn_cli.options import Device, DeviceOption, Split, Stamps, TargetArgument
from stablernn_cli.output import JsonOption, Output
from stablernn_cli.targets import Target, certified, open_target

By = Literal["series", "step", "both"]

MORE = "More figures"


@dataclass(frozen=True)
class Further:
    """What is measured beside the scores.

    Attributes:
        by: Tables of a forecast's scores in the document.
        tables: Folder for them as CSV.
        backtest: Rolling origins of a forecast, ``windows=8,step=24``.
        soak: Whether a forecast runs freely.
        early: Whether a classification is scored on beginnings of sequences.
        stability: Whether stability is certified and observed.
        robustness: Whether and how a classification is attacked.
    """

    by: By | None = None
    tables: Path | None = None
    backtest: str | None = None
    soak: bool = False
    early: bool = False
    stability: bool = False
    robustness: eval_robustness.Asked = eval_robustness.Asked()


def evaluate(
    context: typer.Context,
    target: TargetArgument,
    data: Annotated[
        str | None,
        typer.Option(help="A dataset's name or a file; default: what it was trained on.", show_default=False),
    ] = None,
    stamps: Annotated[
        Stamps | None,
        typer.Option(
            help="Meaning of whole numbers as times in --data; default: that of the training data.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[Split, typer.Option(help="Which part of the data.")] = "test",
    by: Annotated[
        By | None,
        typer.Option(
            help="Forecasts: scores of each series, of each step ahead, or both.",
            show_default=False,
            rich_help_panel=MORE,
        ),
    ] = None,
    tables: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Forecasts: write both tables there, by_series.csv and by_step.csv.",
            show_default=False,
            rich_help_panel=MORE,
        ),
    ] = None,
    backtest: Annotated[
        str | None,
        typer.Option(
            metavar="windows=N,step=N",
            help="Forecasts: N origins of each series up to the end of the split, N steps apart, with the state "
            "carried from one to the next, and with the context read afresh at each.",
            show_default=False,
            rich_help_panel=MORE,
        ),
    ] = None,
    soak: Annotated[
        bool,
        typer.Option(
            "--soak",
            help="Forecasts: run freely for ten horizons, forecasts fed back, and say whether they stay bounded.",
            rich_help_panel=MORE,
        ),
    ] = False,
    early: Annotated[
        bool,
        typer.Option("--early", help="Classification: scores after each tenth of the sequences.", rich_help_panel=MORE),
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
            help="What is proved of the model's stability, and beside it what is observed on the split: Jacobians, "
            "Lyapunov exponents, gradients. A run gets pictures, a version a record.",
            rich_help_panel=MORE,
        ),
    ] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Score a run or a registry version

    A run is scored by torch, a registry version by ONNX Runtime on the graph that is served. Beside a forecast stand
    the scores of the seasonal naive, the naive and the drift forecast on the same windows; beside a classification
    those of a ridge classifier on the raw values and of the most frequent class. docs/evaluation.md has the formulas.

    Example: stablernn eval digits@production --split test
    """
    output = Output.of(context, as_json)
    attacked = eval_robustness.Asked(
        robustness,
        attack_budgets,
        attack_budgets_l2,
        attack_steps,
        attack_sequences,
        attack_clip,
        attack_random_start,
    )
    further = Further(by, tables, backtest, soak, early, stability, attacked)
    document = score(output, target, data=data, stamps=stamps, split=split, device=device, further=further)
    if as_json:
        output.document(document)
    else:
        show(output, document)


def score(
    output: Output,
    target: str,
    *,
    data: str | None = None,
    stamps: Stamps | None = None,
    split: Split = "test",
    device: Device = "auto",
    further: Further | None = None,
) -> dict[str, Any]:
    """What ``eval --json`` prints."""
    asked = further or Further()
    with output.status(f"Scoring {target} on {split} ..."):
        from stablernn.data.step_data import StepData
        from stablernn.data.types import score_notes
        from stablernn.training.evaluation.evaluate_predict_next import evaluate_steps

        model = open_target(target, device)
        _check(model, asked)
        attack = asked.robustness.settings(model.task, model.name)
        loaded = model.load_data(data, stamps)
        extra: dict[str, Any] = {}
        if isinstance(loaded, StepData):
            named = {"features": model.features, "outputs": model.labels or model.targets}
            metrics, samples = evaluate_steps(model.predictor, loaded, split, **named), len(loaded.split(split))
        else:
            metrics, samples, extra = _of_samples(model, loaded, split, asked)
        if asked.stability:
            extra |= eval_stability.observed(output, target, model, loaded, split)
    if attack is not None:
        found = eval_robustness.measure(output, target, model, loaded, split, attack)
        records = [*extra.pop("records", ()), *found.pop("records", ())]
        extra |= found | ({"records": records} if records else {})
    if data is None and loaded.fingerprint != model.fingerprint:
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
        "samples": samples,
        "metrics": metrics,
        "data_notes": score_notes(loaded.notes),
        **extra,
    }


def _of_samples(model: Target, data: Any, split: Split, asked: Further) -> tuple[dict[str, Any], int, dict[str, Any]]:
    """Scores of a classification or a forecast, of how many samples, and what was asked for beside them."""
    from stablernn.data import ForecastData
    from stablernn.training.evaluation.baselines import Baselines
    from stablernn.training.evaluation.predictors import predict
    from stablernn.training.evaluation.scorers import open_classification, open_forecast

    if isinstance(data, ForecastData):
        forecasts = open_forecast(data, split, quantiles=model.quantiles or None, features=model.features)
        outputs = predict(model.predictor, forecasts.source)
        metrics = forecasts.score(outputs)
        left_out = {"windows_without_context": data.windows(split).without_context}
        return metrics, forecasts.samples, left_out | _of_forecast(model, data, split, forecasts, outputs, asked)
    scorer = open_classification(data, split, labels=model.labels or None, features=model.features)
    metrics = scorer.score_of(model.predictor)
    baselines = Baselines(data)
    extra: dict[str, Any] = {"baselines": {"ridge": baselines.notes}}
    if asked.early:
        from stablernn.training.evaluation.early_classification import early

        extra["early"] = early(model.predictor, scorer)
    return metrics | baselines.scores(split), scorer.samples, extra


def _check(model: Target, asked: Further) -> None:
    """Refuse what does not go with the task, and a backtest that does not read.

    Raises:
        UsageError: If something is asked for that the task does not have.
        stablernn.errors.ConfigError: If the backtest is not written as it should be.
    """
    forecast = {
        "--by": asked.by is not None,
        "--tables": asked.tables is not None,
        "--backtest": asked.backtest is not None,
        "--soak": asked.soak,
    }
    for options, task, word in ((forecast, "forecast", "forecasts"), ({"--early": asked.early}, "classify", "classes")):
        given = [name for name, wanted in options.items() if wanted]
        if given and model.task != task:
            raise UsageError(f"{given[0]} is for {word}, and {model.name} is for '{model.task}'. Leave it out.")
    if asked.backtest is not None:
        from stablernn.training.evaluation.backtest import parse

        parse(asked.backtest)


def _of_forecast(
    model: Target, data: Any, split: Split, scorer: Any, outputs: dict[str, Any], asked: Further
) -> dict[str, Any]:
    """What was asked for beside the scores of a forecast."""
    found: dict[str, Any] = {}
    if asked.by or asked.tables is not None:
        from stablernn.training.evaluation.score_tables import by_series, by_step, write_tables

        makers = {"series": by_series, "step": by_step}
        shown = tuple(makers) if asked.by == "both" else (asked.by,)
        made = {
            f"by_{word}": maker(data, scorer, outputs)
            for word, maker in makers.items()
            if word in shown or asked.tables is not None
        }
        found |= {f"by_{word}": made[f"by_{word}"] for word in makers if word in shown}
        if asked.tables is not None:
            found["tables"] = [str(path) for path in write_tables(asked.tables, made)]
    if asked.backtest is not None:
        from stablernn.training.evaluation.backtest import backtest, parse

        levels = model.quantiles or None
        found["backtest"] = backtest(model.predictor, data, split, quantiles=levels, **parse(asked.backtest))
    if asked.soak:
        from stablernn.training.evaluation.free_run import soak

        found["soak"] = soak(model.predictor, data, split, certified(model.name)[1])
    return found


def show(output: Output, document: Mapping[str, Any]) -> None:
    """The scores for people: a model's beside those of the baselines."""
    kind = "windows" if document["task"] == "forecast" else "sequences"
    output.text(
        f"{document['target']} on {document['data']['name']}, {document['split']}: {document['samples']} {kind}"
    )
    left_out = document.get("windows_without_context")
    if left_out:
        word = "window is" if left_out == 1 else "windows are"
        output.text(f"{left_out} {word} left out: no target has a value in the context.")
    show_metrics(output, _columns("model", document["metrics"]))
    line = data_notes(document["data_notes"])
    if line:
        output.text(line)
    for name, title in (("by_series", "By series"), ("by_step", "By step"), ("early", "By share of the sequence")):
        if name in document:
            _table(output, document[name], title)
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


def _columns(name: str, metrics: Mapping[str, Any]) -> dict[str, Any]:
    columns = {name: {key: value for key, value in metrics.items() if not isinstance(value, Mapping)}}
    return columns | {key.replace("_", " "): value for key, value in metrics.items() if isinstance(value, Mapping)}


def _table(output: Output, rows: Sequence[Mapping[str, Any]], title: str) -> None:
    output.text()
    if rows:
        output.table(list(rows[0]), [list(row.values()) for row in rows], title=title)


def _show_backtest(output: Output, report: Mapping[str, Any]) -> None:
    output.text()
    missing = f", {report['missing_origins']} that series did not have" if report["missing_origins"] else ""
    output.text(
        f"Backtest: {report['windows']} windows, {report['step']} steps apart; {report['origins']} origins{missing}"
    )
    carried, fresh = report["carried"], report["fresh"]
    columns = _columns("state carried", carried["metrics"])
    figures = {key: value for key, value in fresh["metrics"].items() if not isinstance(value, Mapping)}
    columns = {"state carried": columns.pop("state carried"), "context afresh": figures, **columns}
    for name, part in (("state carried", carried), ("context afresh", fresh)):
        columns[name] = {**columns[name], "steps read": part["steps_read"], "seconds": part["seconds"]}
    show_metrics(output, columns)
    _table(output, report["by_window"], "By window, earliest first")


def _show_soak(output: Output, report: Mapping[str, Any]) -> None:
    output.text()
    lost = report["diverged_at"]
    verdict = "bounded" if report["bounded"] else "not bounded"
    growing = ", and still growing" if report["still_growing"] else ""
    output.facts(
        {
            "free run": f"{report['series']} series, {report['steps']} steps: {verdict}",
            "largest value": f"{_number(report['largest'])} training spreads from the mean "
            f"({_number(report['largest_in_training'])} in training)",
            "growth": f"{_number(report['growth'])} (last tenth over the first){growing}",
            "diverged": "never" if lost is None else f"at step {lost}",
            "proved of the state": f"none: {report['bound_reason']}"
            if report["bound"] is None
            else "; ".join(
                f"{role} stays within {_number(limit)} (l2), {_number(max(report['state_norms'][role]))} here"
                for role, limit in report["bound"].items()
            ),
        },
        title="Soak",
    )


def _number(value: float) -> str:
    return f"{value:.3g}"
