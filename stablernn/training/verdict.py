"""The verdict on a finished run: whether its training diverged, and whether its model is of any use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from stablernn.data.options import TaskName
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.loop.base_trainer import BaseTrainer
from stablernn.training.loop.losses import Objective
from stablernn.training.settings.defaults import CLOSED_FORM, is_solved

_MOST_MISSES = 1.5
"""Share of values outside an interval, in multiples of what its level allows, above which its coverage is far off."""
_MOST_ERROR = 1.5
"""Error on new data, in multiples of that at training, above which a model does much worse."""
_LEAST_LOSS = 0.05
"""Loss of accuracy, beyond these multiples, that counts: an error of 0 has no multiples."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a run.

    Attributes:
        diverged: True if the training loss ended far above where it began.
        warnings: Sentences for the user, without the failure.
        failure: Reason why the run counts as failed; None where it does not.
    """

    diverged: bool
    warnings: tuple[str, ...] = ()
    failure: str | None = None


def describe_coverage(split: str, scores: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each interval whose coverage on a split is far below its level.

    Args:
        split: The data that the scores are of, as a message names them.
        scores: Scores of a forecast, with ``coverage_p``.
    """
    sentences = []
    for name, coverage in scores.items():
        if not name.startswith("coverage_") or not isinstance(coverage, float | int):
            continue
        level = float(name.removeprefix("coverage_"))
        if 1 - coverage > _MOST_MISSES * (1 - level):
            sentences.append(
                f"Intervals that should hold {level:.0%} of the values hold {coverage:.0%} on {split} ({name}). Train "
                "on newer data, or let intervals adapt (docs/background/streams.md)."
            )
    return sentences


def describe_linear(split: str, scores: Mapping[str, Any]) -> list[str]:
    """Return a sentence where the simulation of a split is no better than that of a linear model.

    Args:
        split: The data that the scores are of, as a message names them.
        scores: Scores of a simulation, with those of ``arx`` if there are any.
    """
    linear = scores.get("arx", {}).get("nrmse")
    # Not "greater or equal": a NaN is no better either.
    if linear is None or scores["nrmse"] < linear:
        return []
    return [
        f"The model simulates {split} no better than {_TRIVIAL_ANSWERS['arx']} (nrmse {scores['nrmse']:.4g}, ARX "
        f"{linear:.4g}). Train it longer or on more data."
    ]


def describe_decline(
    data: str, scores: Mapping[str, Any], trained: Mapping[str, Mapping[str, Any]], task: TaskName
) -> list[str]:
    """Return a sentence where a model does much worse on new data than on what was held out when it was trained.

    Args:
        data: Name of the new data, as a message names it.
        scores: Scores on them.
        trained: Scores of the run by split.
        task: The task, whose metric is accuracy, MASE, which has no unit, or the loss.
    """
    metric = {"classify": "accuracy", "forecast": "mase", "predict-next": "loss", "simulate": "nrmse"}[task]
    split = next((name for name in ("test", "cross_validation", "validation") if name in trained), None)
    before = None if split is None else trained[split].get(metric)
    now = scores.get(metric)
    if before is None or now is None:
        return []
    if task == "classify":
        is_worse = 1 - now > _MOST_ERROR * (1 - before) + _LEAST_LOSS
    else:
        is_worse = before > 0 and now > _MOST_ERROR * before
    if not is_worse:
        return []
    return [
        f"The model does much worse on {data} than when it was trained: {metric} {now:.4g}, and {before:.4g} on its "
        f"{split} data then. Compare the data (`stablernn data check`), or train on newer ones."
    ]


def judge(
    trainer: BaseTrainer,
    comparison: Comparison | None,
    gate: Mapping[str, Any] | None,
    *,
    is_validated: bool,
    choice: Mapping[str, Any] | None = None,
) -> Verdict:
    """Judge a run by its training loss and by the validation scores of the weights that it keeps.

    A run whose loss diverged fails if its weights are of no use: no better than the trivial answer (the same one for
    all sequences, the best naive forecast), of a forecast also if only its linear skip was kept and nothing of the
    layers, or if there is no validation split. Weights of an epoch before the loss diverged can be good ones: then it
    is a warning. So is a model that is no better than the trivial answer without having diverged.

    Args:
        trainer: After its last step.
        comparison: The best weights and the trivial answer on the validation split; None where they cannot be compared.
        gate: Comparison of layers and linear skip; None where there is none.
        is_validated: True if there are scores on a validation split.
        choice: What a search compared, as ``choice.json`` holds it; None where there was none.
    """
    if not trainer.is_diverged:
        if comparison is None or not comparison.is_useless:
            return Verdict(diverged=False)
        sentence = f"The model is no better than {comparison.trivial} ({comparison})."
        if not is_solved(trainer.settings):
            advice = "Train it longer, or see benchmarks/accuracy.md."
        elif trainer.settings.method != CLOSED_FORM or are_networks_compared(choice or {}):
            advice = "See benchmarks/accuracy.md."
        else:
            advice = "Compare it with networks in a larger budget, or see benchmarks/accuracy.md."
        return Verdict(diverged=False, warnings=(f"{sentence} {advice}",))
    # The loss diverged. Good weights may still be kept, from an epoch before that.
    position = trainer.position
    course = f"the training loss ended at {position.last_loss:.4g}, from {position.first_loss:.4g} at the first step"
    advice = f"Set {trainer.stabilizing_advice()}."
    # Nothing shows that the last weights, which are kept then, are of any use.
    if not is_validated:
        return Verdict(diverged=True, failure=f"Training diverged: {course}. {advice}")
    if comparison is not None and comparison.is_useless:
        reason = f"the best weights are no better than {comparison.trivial} ({comparison})"
        return Verdict(diverged=True, failure=f"Training diverged: {course}, and {reason}. {advice}")
    # A share of 0 was chosen on the validation windows: the layers have learned nothing that helps there.
    if gate is not None and gate["share"] == 0:
        reason = "nothing but the linear skip is left of the model"
        return Verdict(diverged=True, failure=f"Training diverged: {course}, and {reason}. {advice}")
    best = f"The weights of epoch {position.best_epoch} are kept, the best ones."
    return Verdict(diverged=True, warnings=(f"Training diverged: {course}. {best} {advice}",))


def are_networks_compared(choice: Mapping[str, Any]) -> bool:
    """Return whether a search scored a network, and not closed forms alone."""
    return any(
        recipe["scores"] and recipe["settings"].get("training.method") != CLOSED_FORM
        for recipe in choice.get("recipes", ())
    )


_TRIVIAL_ANSWERS = {
    "majority": "one answer for all sequences",
    # Of equal ones the first is named.
    "naive": "the naive forecast",
    "seasonal_naive": "the seasonal naive forecast",
    "drift": "the drift forecast",
    "arx": "the best linear ARX model",
    "frequencies": "the frequencies of the targets",
    "mean": "the mean of the targets",
}
"""Trivial answers among the baselines, in words; of several the first counts."""


@dataclass(frozen=True)
class Comparison:
    """A metric of a model on data that it was not fitted on, of which less is better, and that of a trivial answer.

    Attributes:
        split: The data: ``validation``, or ``cross_validation``.
        metric: Name of the metric.
        value: That of the model.
        trivial: The trivial answer, in words.
        trivial_value: Its metric.
    """

    split: str
    metric: str
    value: float
    trivial: str
    trivial_value: float

    @property
    def is_useless(self) -> bool:
        # Nothing is better than no error. Not "greater or equal": a NaN is useless too.
        return not (self.value < self.trivial_value or self.value == self.trivial_value == 0)

    def __str__(self) -> str:
        return f"{self.split.replace('_', '-')} {self.metric} {self.value:.4g}, {self.trivial} {self.trivial_value:.4g}"


def compare_with_trivial(split: str, scores: Mapping[str, Any], objective: Objective) -> Comparison | None:
    """Compare a model with the best trivial answer among its baselines.

    A classification is compared by its log loss, anything else by its headline. Of several series that is MASE: errors
    in the unit of the data would be those of the largest series.

    Args:
        split: The data that the scores are of.
        scores: Scores of the model, those of the baselines among them.
        objective: The objective that the model was trained for.

    Returns:
        The comparison; None where more of the headline is better, or no baseline has a finite value of it.
    """
    metric = "log_loss" if "majority" in scores else objective.headline
    answers = {name: scores[name].get(metric) for name in _TRIVIAL_ANSWERS if name in scores}
    answers = {name: value for name, value in answers.items() if value is not None and math.isfinite(value)}
    if not answers or direction(metric) == "higher":
        return None
    best = min(answers, key=answers.__getitem__)
    return Comparison(split, metric, scores[metric], _TRIVIAL_ANSWERS[best], answers[best])


def searched_scores(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mean score of the chosen recipe and of the baselines over the parts of a search, as scores of a run.

    Args:
        choice: What the search compared, as ``choice.json`` holds it.

    Returns:
        The scores; empty where the chosen recipe was not scored, or not on the parts that the baselines were scored on.
    """
    scores: list[float] = next(
        (recipe["scores"] for recipe in choice.get("recipes", ()) if recipe["name"] == choice["chosen"]), []
    )
    baselines = choice.get("baselines", {})
    if not scores or any(len(values) != len(scores) for values in baselines.values()):
        return {}
    metric = choice["metric"]
    return {metric: fmean(scores), **{name: {metric: fmean(values)} for name, values in baselines.items()}}
