"""Recipes that a search tries, as candidates under the settings of the user, and which of them is best.

The recipes were chosen on the nine classification sets and the forecasting tasks of benchmarks/accuracy.md, their order
and length for many classes on the training files of Adiac and Crop as well; docs/guides/choosing.md says what each of
them is for.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn.certificates.projection import certified_kind, is_within_range
from stablernn.data.step_data import Data
from stablernn.data.types import ClassificationData, ForecastData
from stablernn.errors import ConfigError
from stablernn.training.build import training_steps
from stablernn.training.calibration import MOST_SMOOTHED_VALUES, Conformal, best_temperature, conformal_offsets
from stablernn.training.evaluation.baselines import majority_scores
from stablernn.training.evaluation.metrics import logit_metrics
from stablernn.training.loop.linear_forecast import signed_channels
from stablernn.training.resolve import described_cell, resolve
from stablernn.training.search.trial import TrialResult
from stablernn.training.settings.config import AUTO, Config
from stablernn.training.settings.defaults import CLOSED_FORM
from stablernn.training.settings.load import validate
from stablernn.training.tasks import task_for
from stablernn.training.tasks.classify import AUGMENTATION, FIXED_UNITS, PATCHES
from stablernn.training.tasks.forecast import MAX_STEPS, MOST_WINDOWS_A_STEP, smoothing_context

_LOG = logging.getLogger("stablernn.training")

SMALL = 1000
"""Training sequences below which a model is trained on all of them, with none held out to choose the epoch by."""
_SHORT_QUANTILE = 0.1
"""Quantile of the lengths that counts as a short sequence."""
_VARIED_LENGTHS = 2.0
"""Length of the longest tenth of the sequences over that of the shortest, above which resampling is tried."""
MANY_WINDOWS = MAX_STEPS * MOST_WINDOWS_A_STEP // 4
"""Training windows of which the recommended steps see each at most four times, so that longer trainings of larger
networks are worth more than members (`python benchmarks/cross_validation.py longer-forecasts`)."""
MOST_EPOCHS = 20
"""Epochs of a training of so many windows, if the budget allows."""
BASELINE_UNITS = 256
"""Units of a layer that is not trained: in five folds of digits 64 get 97.4 % right and 256 get 98.4 %
(`python benchmarks/cross_validation.py closed-form`)."""
MOST_FORECASTS = 2_000
"""Numbers of a forecast that it makes at every step at most."""
RESAMPLE_STEPS = 100
"""Samples of a resampled sequence: four for each of the recurrent steps of the default."""


@dataclass(frozen=True)
class Recipe:
    """Settings to try.

    Attributes:
        name: Name in tables.
        settings: Values by dotted key of the configuration.
        purpose: The data that it is for, in a few words.
        streams: False for a model that needs complete sequences; a search chooses it only where no recipe that streams
            is as good.
        most_epochs: Epochs up to which a larger budget makes the training longer, before it pays for members; None for
            what the task recommends.
    """

    name: str
    settings: Mapping[str, Any]
    purpose: str
    streams: bool = True
    most_epochs: int | None = None


def recipes(data: Data) -> list[Recipe]:
    """Return the recipes for data, in the order in which they are dropped from the end where the budget is small."""
    if isinstance(data, ClassificationData):
        return _classification(data)
    if isinstance(data, ForecastData):
        return _forecasting(data)
    return [
        Recipe("lru", {"model.cell": "lru"}, "the default"),
        Recipe("lstm", {"model.cell": "lstm"}, "text and events, where gates forget at once"),
        Recipe("lipschitz", {"model.cell": "lipschitz"}, "a fast step"),
        Recipe("lru, two layers", {"model.cell": "lru", "model.num_layers": 2}, "much data"),
    ]


def closed_forms(data: Data) -> list[Recipe]:
    """Return recipes that take no optimizer steps.

    Sequences are classified by fixed kernels. Other layers are random, and contracting by construction where samples
    have no times. More units than a trained network has make up for it, except in forecasts, where the linear skip does
    the work and the layers add nothing.
    """
    settings: dict[str, Any] = {"training.method": CLOSED_FORM}
    if isinstance(data, ForecastData):
        linear = Recipe("linear", {"model.cell": "lru", **settings}, "a linear map of the context, in seconds")
        return [linear, *_smoothing(data, settings)]
    if isinstance(data, ClassificationData):
        # The penalty and the temperature come from leave-one-out, so that a validation split would be idle.
        settings["training.refit"] = True
    settings["model.hidden_size"] = BASELINE_UNITS
    solved = [
        Recipe("lru, closed form", {"model.cell": "lru", **settings}, "an answer in seconds"),
        Recipe("lipschitz, closed form", {"model.cell": "lipschitz", **settings}, "the same with times of samples"),
    ]
    if not isinstance(data, ClassificationData):
        return solved
    kernels = {**settings, "model.cell": "rocket", "model.hidden_size": FIXED_UNITS}
    # Without times one kind of random layers is enough.
    others = solved if data.time_step is not None else solved[:1]
    return [Recipe("rocket, closed form", kernels, "shapes of any length at any place"), *others]


def _smoothing(data: ForecastData, settings: Mapping[str, Any]) -> list[Recipe]:
    """Return the recipes of exponential smoothing; none where three seasons before all scored windows take long."""
    windows = len(data.windows("validation")) * len(data.channels)
    context = min(smoothing_context(data), MOST_SMOOTHED_VALUES // max(1, windows))
    if data.horizon * len(data.channels) > MOST_FORECASTS or context < min(smoothing_context(data), 3 * data.season):
        return []
    fixed = {"model.cell": "smoothing", "model.scaling": "standard", "task.context_length": context}
    fixed |= {"model.skip": "none", **settings}
    additive = Recipe("smoothing", fixed, "short series, changing levels")
    if signed_channels(data) or context * windows > MOST_SMOOTHED_VALUES // 2:
        return [additive]
    return [additive, Recipe("smoothing, log", {**fixed, "model.scaling": "log"}, "seasons that grow with the level")]


def _classification(data: ClassificationData) -> list[Recipe]:
    lengths = np.concatenate([data.train.lengths, data.validation.lengths])
    short, longest = float(np.quantile(lengths, _SHORT_QUANTILE)), int(lengths.max())
    stride = max(1, round(longest / PATCHES))
    fine = max(1, min(stride // 2, round(short / PATCHES)))
    lru = {"model.cell": "lru", "training.refit": len(lengths) < SMALL}
    return [
        Recipe("lru", lru, "the default"),
        *_resampled(data, lru, lengths),
        Recipe(
            "lru, unchanged sequences",
            {**lru, "training.time_warp": 0.0, "training.jitter": 0.0, "training.rescale": 0.0},
            "classes that differ in size, speed or by little",
        ),
        Recipe("lru, any start", {**lru, "training.shift": 0.5}, "sequences whose start is arbitrary"),
        Recipe("lipschitz", {**lru, "model.cell": "lipschitz"}, "a fast step"),
        # Without an effect where the stride is 1 already: it is dropped as the same as the first.
        Recipe("lru, short patches", {**lru, "model.patch_stride": fine, "model.patch_size": 4 * fine}, "short shapes"),
        Recipe(
            "lru, long patches",
            {**lru, "model.patch_stride": stride, "model.patch_size": min(longest, 12 * stride)},
            "shapes longer than a sixth of the sequence",
        ),
        Recipe("lru, convolutions", {**lru, "model.conv_layers": 3}, "shapes of 15 samples or less at any place"),
        Recipe("lru, 128 units", {**lru, "model.hidden_size": 128}, "many classes"),
        Recipe("gru", {**lru, "model.cell": "gru"}, "events that overwrite what came before"),
    ]


def _resampled(data: ClassificationData, lru: Mapping[str, Any], lengths: npt.NDArray[np.int64]) -> list[Recipe]:
    """Return the recipe for complete sequences whose lengths vary much; none for any others.

    It comes early, so that a small budget does not leave out the one that is made for such data.
    """
    shortest, longest = np.quantile(lengths, (_SHORT_QUANTILE, 1 - _SHORT_QUANTILE))
    # Samples with times need not be equidistant.
    if longest <= _VARIED_LENGTHS * shortest or data.time_step is not None:
        return []
    return [
        Recipe(
            "lru, resampled",
            {**lru, "model.resample_steps": RESAMPLE_STEPS},
            "complete sequences of very different lengths; cannot stream",
            streams=False,
        )
    ]


def _forecasting(data: ForecastData) -> list[Recipe]:
    is_large = len(data.windows("train")) > MANY_WINDOWS
    settings: dict[str, Any] = {"model.hidden_size": 128, "training.lr": 0.01} if is_large else {}
    # The folds of the linear forecast decide it otherwise, which gains less by logarithms than networks do.
    if _differs_by_factors(data):
        settings["model.log"] = True
    most_epochs = MOST_EPOCHS if is_large else None
    lru = Recipe("lru", {"model.cell": "lru", **settings}, "long memory", most_epochs=most_epochs)
    lipschitz = Recipe("lipschitz", {"model.cell": "lipschitz", **settings}, "a fast step", most_epochs=most_epochs)
    alone = replace(
        lipschitz,
        name="lipschitz, without a skip",
        settings={**lipschitz.settings, "model.skip": "none"},
        purpose="series that no linear map of the context forecasts",
    )
    return [lru, lipschitz, alone] if is_large else [lipschitz, lru, alone]


def _differs_by_factors(data: ForecastData) -> bool:
    """Return True if all training values are positive, and the largest is many times the least one."""
    values = data.training_values()
    lowest = min(float(np.nanmin(each, initial=np.inf)) for each in values)
    return lowest > 0 and max(float(np.nanmax(each, initial=-np.inf)) for each in values) >= _FACTOR * lowest


_FACTOR = 10.0
"""Largest over least value from which networks read the logarithms of positive series: after three epochs of M4 Hourly
the validation MASE is .863 with them and .899 without (lipschitz)."""
MAX_EPOCH_FACTOR = 2
"""Largest multiple of the recommended epochs of a classifier with augmentation that is worth more than members (`python
benchmarks/cross_validation.py longer-members`). Without augmentation it is too long."""
_STRENGTH = {"none": 0, "bounded": 1, "non-expansive": 2, "contracting": 3}


@dataclass(frozen=True)
class RecommendedLength:
    """Length of a training on all of the training data, which is longer than one on a part of them.

    Attributes:
        steps: Optimizer steps, 0 for a fit in closed form.
        epochs: Epochs, 0 where the length is a number of steps.
        most_epochs: Epochs up to which a larger budget makes the training longer, before it pays for members.
    """

    steps: int
    epochs: int
    most_epochs: int

    @property
    def most_steps(self) -> int:
        """Optimizer steps of the most epochs; those of the length itself where that is no number of epochs."""
        return self.most_epochs * (self.steps // self.epochs) if self.epochs else self.steps


@dataclass
class Candidate:
    """A recipe with its results.

    Attributes:
        recipe: The recipe.
        config: Its settings together with those of the user, which win; not resolved.
        proof: Kind in which training keeps its layers, ``none`` where it is free.
        recommended: Length of its training.
        results: Results of its finished trainings, by the number of the part.
        status: ``chosen``, ``compared`` on all parts, ``stopped`` before the last ones, ``failed``, or ``skipped`` for
            want of time.
        reason: Why it failed, or why a further draw of the parts was left out.
        step_seconds: Processor time of an optimizer step.
    """

    recipe: Recipe
    config: Config
    proof: str
    recommended: RecommendedLength
    results: dict[int, TrialResult] = field(default_factory=dict)
    status: str = "skipped"
    reason: str = ""
    step_seconds: float = 0.0

    @property
    def is_closed_form(self) -> bool:
        return self.config.training.method == CLOSED_FORM

    @property
    def rank(self) -> tuple[float, float]:
        """Key of the mean over the parts, the best first."""
        if not self.results:
            return math.inf, math.inf
        first, second = np.mean([result.rank for result in self.results.values()], axis=0)
        return float(first), float(second)

    @property
    def scores(self) -> list[float]:
        return [float(result.score) for _, result in sorted(self.results.items()) if result.score is not None]

    def document(self) -> dict[str, Any]:
        """Return the candidate as JSON types."""
        scores = self.scores
        parts = sorted(self.results)
        return {
            "name": self.recipe.name,
            "purpose": self.recipe.purpose,
            "streams": self.recipe.streams,
            "settings": dict(self.recipe.settings),
            "proof": self.proof,
            "status": self.status,
            "scores": scores,
            "mean": float(np.mean(scores)) if scores else None,
            "standard_error": _standard_error(scores, _draws(self, parts)) if len(scores) > 1 else None,
            "seconds": round(sum(result.seconds for result in self.results.values()), 2),
            **({"reason": self.reason} if self.reason else {}),
        }


def keep_comparable(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the candidates with results on the same first parts, and take their results on further parts away.

    Where time ran out, some have results on more parts than others, and means over different parts cannot be compared.
    As many parts are taken as more than half of the candidates with any result have: on more, few recipes would be
    left, and these for no better reason than that they came first.
    """
    scored = [candidate for candidate in candidates if candidate.status != "failed" and _finished_parts(candidate)]
    if not scored:
        return []
    parts = sorted(map(_finished_parts, scored), reverse=True)[len(scored) // 2]
    compared = [candidate for candidate in scored if _finished_parts(candidate) >= parts]
    for candidate in compared:
        candidate.results = {part: candidate.results[part] for part in range(parts)}
    return compared


def keep_leading(candidates: Sequence[Candidate], count: int) -> list[Candidate]:
    """Return the best candidates and the first, the default, against which they have to hold their own."""
    if not candidates:
        return []
    first, *others = candidates
    return [first, *sorted(others, key=lambda candidate: candidate.rank)[: max(1, count - 1)]]


def _finished_parts(candidate: Candidate) -> int:
    """Return the number of parts, from the first one on, that a candidate has results on."""
    return next(part for part in itertools.count() if part not in candidate.results)


def select(
    compared: Sequence[Candidate], baselines: Mapping[str, Mapping[int, float]] | None = None
) -> tuple[Candidate, str]:
    """Return the candidate to train, and why.

    What a few parts cannot tell apart is not worth streams, a weaker proof, or a larger model. The rules, each for
    those that the one before has left:

    1. Those that no baseline beats, if there are any.
    2. The best mean, and those as good within a standard error.
    3. If the first, the default, is not among these: those that are better than it, too.
    4. Those that stream, if any does.
    5. Those of which most is proved.
    6. The first, the default, if it is among them, or a model in closed form that is no worse; else the best mean.

    Args:
        compared: Candidates with results on the same parts, in the order of the recipes.
        baselines: Scores of baselines by name and part.
    """
    floors = baselines or {}
    unbeaten = [candidate for candidate in compared if _better_baseline(candidate, floors) is None]
    selected, reason = _select(unbeaten or compared)
    if len(compared) == 1:
        reason = "the only recipe that was compared"
    return selected, reason if unbeaten else f"{reason}; the baseline '{_better_baseline(selected, floors)}' is better"


def _better_baseline(candidate: Candidate, baselines: Mapping[str, Mapping[int, float]]) -> str | None:
    """Return the best of the baselines with a better mean on the parts that both have; None if there is none."""
    gains: dict[str, float] = {}
    for name, scores in baselines.items():
        results = [(candidate.results[part], score) for part, score in scores.items() if part in candidate.results]
        if results:
            gains[name] = float(np.mean([each.rank[0] - replace(each, score=score).rank[0] for each, score in results]))
    best = max(gains, key=lambda name: gains[name], default=None)
    return best if best is not None and gains[best] > 0 else None


def _select(compared: Sequence[Candidate]) -> tuple[Candidate, str]:
    """Return the candidate by the rules 2 to 6 of :func:`select`, and why."""
    best = min(compared, key=_by_rank)
    close = [candidate for candidate in compared if candidate is best or _is_close(best, candidate)]
    first = compared[0]
    if first not in close:
        # What is no better than the default is no reason to leave it.
        close = [each for each in close if each is best or not _is_close(each, first)]
    if streaming := [candidate for candidate in close if candidate.recipe.streams]:
        close = streaming
    strongest = max(_STRENGTH[candidate.proof] for candidate in close)
    equals = [candidate for candidate in close if _STRENGTH[candidate.proof] == strongest]
    if first in equals:
        equals = [first, *(each for each in equals if each.is_closed_form)]
    selected = min(equals, key=_by_rank)
    if selected is best:
        parts = len(best.results)
        reason = "the best score" if parts == 1 else f"the best mean over {parts} parts"
        return selected, reason if selected.recipe.streams else f"{reason}; it cannot stream"
    reason = f"as good as '{best.recipe.name}' within one standard error, and "
    if not best.recipe.streams:
        return selected, f"{reason}it streams, which that does not"
    if _STRENGTH[best.proof] < strongest:
        return selected, f"{reason}proved to be {selected.proof} where that is {best.proof}"
    return selected, reason + ("the default" if selected is first else "in closed form")


def _by_rank(candidate: Candidate) -> tuple[tuple[float, float], bool]:
    return candidate.rank, not candidate.is_closed_form


def held_out_temperature(candidate: Candidate) -> float | None:
    """Return the temperature of the probabilities of all held-out sequences, as scikit-learn calibrates a model that is
    refitted to all data (``CalibratedClassifierCV`` with ``ensemble=False``); None where another way sets it."""
    # A closed form has its own, by leave-one-out.
    is_given = candidate.config.training.temperature is not None or candidate.is_closed_form
    if is_given or (held_out := _held_out(candidate)) is None:
        return None
    return round(best_temperature(*held_out)[0], 4)


def held_out_intervals(candidate: Candidate) -> Conformal | None:
    """Return the offsets of a forecast's quantiles by what the parts held out; None where no intervals are calibrated
    by them."""
    blocks = [result.intervals for result in candidate.results.values() if result.intervals is not None]
    return conformal_offsets(blocks) if blocks else None


def held_out_scores(candidate: Candidate) -> dict[str, Any] | None:
    """Return the scores on all held-out sequences of a classifier that is trained on all of them in the end, and those
    of the most frequent class.

    None where that has a validation split.
    """
    if (held_out := _held_out(candidate)) is None:
        return None
    logits, truth = held_out
    temperature = held_out_temperature(candidate) or candidate.config.training.temperature or 1.0
    majority = majority_scores(np.bincount(truth, minlength=logits.shape[1]), truth)
    return {**logit_metrics(logits, truth, temperature), "majority": majority}


def _held_out(candidate: Candidate) -> tuple[np.ndarray, np.ndarray] | None:
    held_out = [result.held_out for result in candidate.results.values() if result.held_out is not None]
    if not held_out:
        return None
    logits, truth = (np.concatenate(arrays) for arrays in zip(*held_out, strict=True))
    return logits, truth


def _is_close(best: Candidate, other: Candidate) -> bool:
    """Return True if a candidate is as good as the best one within a standard error.

    Over three parts or more it is that of the mean difference, of which two say nothing. A few parts may agree by
    chance, so that the error of a difference of accuracies is at least that of McNemar's test, the square root of the
    number of sequences that one of the two has right and the other one wrong. On a single part it is that of the best
    accuracy, a share of so many sequences (with one more right and one more wrong, so that 1 has an error, too). By
    other metrics nothing is close on one part or two. Further draws of the folds hold out the same sequences again: the
    difference is their mean, and its error remains that of one draw.

    Of classifiers the log loss must be as good, too: two of a few dozen sequences can be right by chance, and by how
    much they are says more.
    """
    parts = sorted(best.results.keys() & other.results.keys())
    if not _is_close_in_log_loss(best, other, parts):
        return False
    if len(parts) == 1 and best.results[parts[0]].metric == "accuracy":
        result, score = best.results[parts[0]], other.results[parts[0]].score
        if result.score is None or score is None or not result.samples:
            return False
        share = (result.score * result.samples + 1) / (result.samples + 2)
        return result.score - score <= math.sqrt(share * (1 - share) / result.samples)
    if len(parts) < (2 if best.results[parts[0]].metric == "accuracy" else 3):
        return False
    differences = np.array([other.results[part].rank[0] - best.results[part].rank[0] for part in parts])
    standard_error = _standard_error(differences, _draws(best, parts))
    return float(differences.mean()) <= max(standard_error, _mcnemar_error(best, other, parts))


def _is_close_in_log_loss(best: Candidate, other: Candidate, parts: Sequence[int]) -> bool:
    """Return True if the log loss of the held-out sequences is as good within a standard error, or is not known."""
    losses = [_log_losses(candidate, parts) for candidate in (best, other)]
    if losses[0] is None or losses[1] is None or len(losses[0]) < 2:
        return True
    differences = losses[1] - losses[0]
    return float(differences.mean()) <= _standard_error(differences, _draws(best, parts))


def _log_losses(candidate: Candidate, parts: Sequence[int]) -> np.ndarray | None:
    """Return the log loss of each held-out sequence with calibrated probabilities; None where they are not known."""
    held_out = [candidate.results[part].held_out for part in parts]
    known = [each for each in held_out if each is not None]
    if not known or len(known) < len(held_out):
        return None
    logits, truth = (np.concatenate(arrays).astype(np.float64) for arrays in zip(*known, strict=True))
    logits /= held_out_temperature(candidate) or candidate.config.training.temperature or 1.0
    return np.asarray(np.logaddexp.reduce(logits, axis=1) - logits[np.arange(len(logits)), truth.astype(np.int64)])


def _draws(candidate: Candidate, parts: Sequence[int]) -> float:
    """Return how many times as many parts these are as those of the first draw among them."""
    return len(parts) / max(1, sum(candidate.results[part].trial.draw == 0 for part in parts))


def _standard_error(values: Sequence[float] | np.ndarray, draws: float) -> float:
    """Return the standard error of a mean over parts, which further draws of the same sequences do not make smaller."""
    return float(np.std(values, ddof=1)) / math.sqrt(len(values) / draws)


def _mcnemar_error(best: Candidate, other: Candidate, parts: Sequence[int]) -> float:
    """Return the standard error of a difference of accuracies by the sequences that one of two has right; 0 for other
    metrics.

    Where it is not known which sequences these are, they are as few as the difference allows.
    """
    pairs = [(best.results[part], other.results[part]) for part in parts]
    if any(result.metric != "accuracy" or not result.samples for pair in pairs for result in pair):
        return 0.0
    disagreements = 0.0
    for first, second in pairs:
        if first.held_out is not None and second.held_out is not None:
            hits = [logits.argmax(axis=1) == truth for logits, truth in (first.held_out, second.held_out)]
            disagreements += float((hits[0] != hits[1]).sum())
        else:
            disagreements += abs((first.score or 0.0) - (second.score or 0.0)) * first.samples
    draws = _draws(best, parts)
    return math.sqrt(disagreements * draws) / sum(first.samples for first, _ in pairs)


def find_networks(config: Config, data: Data) -> list[Candidate]:
    """Return the recipes of networks under the settings of the user, each once.

    Raises:
        ConfigError: If none goes with these settings.
    """
    candidates, refusal = _distinct_candidates(config, recipes(data), data)
    if not candidates:
        assert refusal is not None
        raise refusal
    return candidates


def find_closed_forms(config: Config, data: Data) -> list[Candidate]:
    """Return the recipes that take no optimizer steps under the settings of the user, each once; none may go with them.

    Raises:
        ConfigError: If ``training.method`` asks for one, and none goes with the other settings.
    """
    # A method of the user would win over that of the recipe, and leave a network with its name.
    if "method" in config.training.model_fields_set and config.training.method != CLOSED_FORM:
        return []
    candidates, refusal = _distinct_candidates(config, closed_forms(data), data)
    if refusal is not None and not candidates:
        if config.training.method == CLOSED_FORM:
            raise refusal
        _LOG.info(f"No model in closed form is compared: {refusal}")
    return candidates


def _distinct_candidates(
    config: Config, recipes: Sequence[Recipe], data: Data
) -> tuple[list[Candidate], ConfigError | None]:
    """Return recipes under the settings of the user, each once, and the first refusal of one that does not go there."""
    candidates: list[Candidate] = []
    resolved_settings: list[Config] = []
    error: ConfigError | None = None
    for recipe in recipes:
        try:
            candidate, resolved = _candidate(config, recipe, data)
        except ConfigError as refusal:
            error = error or refusal
            continue
        # A longer context changes the data, so that the same length is told apart before it is loaded.
        key = resolved.model_copy(update={"task": candidate.config.task})
        if key not in resolved_settings:
            resolved_settings.append(key)
            candidates.append(candidate)
    return candidates, error


def _candidate(config: Config, recipe: Recipe, data: Data) -> tuple[Candidate, Config]:
    """Return a recipe under the settings of the user, and these together, resolved.

    The data has the context of the user or the default one: a recipe with a longer one has fewer windows, and a
    training that is shorter than its recommended length.
    """
    combined = merge(config, recipe.settings)
    task = task_for(data.without_validation() if combined.training.refit else data)
    resolved = resolve(combined, task)
    epochs = resolved.training.epochs or 0
    most_epochs = recipe.most_epochs
    if most_epochs is None:
        most_epochs = MAX_EPOCH_FACTOR * epochs if _is_augmented(resolved) else epochs
    recommended = RecommendedLength(training_steps(resolved, task), epochs, most_epochs)
    return Candidate(recipe, combined, _proof(resolved), recommended), resolved


def _is_augmented(settings: Config) -> bool:
    """Return True if resolved settings change sequences at random in training, as a classifier does by default."""
    return any(getattr(settings.training, name) for name in AUGMENTATION)


def merge(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return the settings of the user with those of a recipe where the user left them open."""
    tree = config.model_dump(mode="json", exclude_unset=True)
    for key, value in open_settings(config, settings).items():
        section, name = key.split(".")
        tree[section] = {**(tree.get(section) or {}), name: value}
    return validate(tree)


def open_settings(config: Config, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a recipe that the user left open, by dotted key.

    A validation split is kept where settings of the user need one.
    """
    tree = config.model_dump(mode="json", exclude_unset=True)

    def is_open(key: str) -> bool:
        section, name = key.split(".")
        values = tree.get(section) or {}
        if key == "training.refit" and config.training.needs_validation:
            return False
        if key == "model.log" and (config.model.scaling not in (None, "context") or config.model.head == "recursive"):
            return False
        return name not in values or (key == "model.cell" and values[name] == AUTO)

    return {key: value for key, value in settings.items() if is_open(key)}


def _proof(settings: Config) -> str:
    cell = described_cell(settings.model)
    if settings.training.certified:
        return certified_kind(cell)
    # The states of fixed cells have their bound by the form of the step, some for inputs within a range.
    return "bounded" if cell.is_fixed and not is_within_range(cell) else "none"
