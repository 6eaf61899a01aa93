"""The task 'predict-next': a target at every step of a sequence."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict

import numpy as np

from stablernn.cells import StableCell
from stablernn.data.arrays import Samples, SplitName, cut_samples
from stablernn.data.messages import format_names, pluralize
from stablernn.data.step_data import NO_TARGET, Segment, StepData, streams
from stablernn.errors import ConfigError, DataError
from stablernn.nn.models import SequenceModel, SequencePredictor
from stablernn.nn.models.predictor import target_frequencies
from stablernn.nn.preprocessing import Scaling
from stablernn.training.evaluation.predictors import BATCH_SIZE, Array, StepPredictor, predict_segments
from stablernn.training.evaluation.scorers import PredictorNames, Scorer
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loop.closed_form import Solution, fit_step_head
from stablernn.training.loop.losses import Objective, PredictNextObjective
from stablernn.training.loop.minibatches import Minibatches, SegmentMinibatches, count_segment_minibatches
from stablernn.training.plots import steps_figure
from stablernn.training.settings.config import Config, ModelConfig, TrainingConfig
from stablernn.training.settings.defaults import TrainingDefaults, power_of_two
from stablernn.training.tasks.task import (
    FinalScores,
    ScoreExtras,
    SplitScores,
    Task,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class _Recommended(TypedDict, total=False):
    bptt_steps: int
    batch_size: int


RECOMMENDED: dict[str, _Recommended] = {
    "ptb-char": {"bptt_steps": 150, "batch_size": 128},
    "ptb-word": {"bptt_steps": 300, "batch_size": 32},
    "musedata": {"bptt_steps": 300},
}
"""Training settings of the named datasets for which those of the cell do not work."""

TEXT_BPTT_STEPS = 150
"""Steps between two cuts of the gradient in running text."""

LEAST_TEXT_STEPS = 20
"""Least number of optimizer steps in an epoch of running text; short texts get fewer streams instead."""

LEAST_STEPS = 2000
"""Least number of optimizer steps of a training on sequences, by smaller batches first and then by more epochs.

On 229 chorales (JSB) 2,320 steps in batches of 8 instead of 640 of 32 lower the test error of lipschitz from 8.94 to
8.70 nats a frame, and that of lru from 8.89 to 8.85."""
_LEAST_BATCH = 8

CLIP_NORM = 1.0
"""Largest norm of the gradient where the cell recommends none: a loss at every step makes it large now and then."""

LARGEST_ONE_HOT = 256
"""Different tokens up to which each is a channel of its own."""

_USED = ("cell", "preset", "engine", "hidden_size", "num_layers", "dropout", "mask_channel", "cell_options")
_RESOLVED = (*_USED, "embedding_size", "predict_change", "time", "time_step", "max_dt")
# The other settings of a model.
_FIXED: dict[str, str | int | float] = {
    "readout": "last",
    "scaling": "standard",
    "patch_size": 1,
    "patch_stride": 1,
    "patch_embedding": 0,
    "members": 1,
    "head_dropout": 0.0,
    "skip": "none",
}


class PredictNextTask(Task):
    """Answers at every step of sequences: what comes next, or another target.

    Args:
        data: Sequences with a target at each step.
    """

    data: StepData  # pyright: ignore[reportIncompatibleVariableOverride]
    fixed: ClassVar[Mapping[str, str | int | float]] = _FIXED
    """Settings of the model that have one value each when they are resolved."""

    def model_settings(self, config: Config, cell: StableCell) -> ModelConfig:
        model, data = config.model, self.data
        for key, field in ModelConfig.model_fields.items():
            value = getattr(model, key)
            is_free = key in _RESOLVED or (key in _FIXED and key not in self.fixed)
            if not is_free and value not in (field.default, self.fixed.get(key)):
                raise ConfigError(
                    f"model.{key} is not used by the task '{data.task}', and '{data.name}' is for it; got {value!r}."
                )
        if not data.tokens and model.embedding_size:
            raise ConfigError(
                f"model.embedding_size is for tokens, and '{data.name}' has numbers as inputs; got "
                f"{model.embedding_size}."
            )
        size = model.embedding_size
        # A large vocabulary as unit vectors would make the first layer's input very wide.
        if size is None:
            size = model.hidden_size if data.tokens and len(data.features) > LARGEST_ONE_HOT else 0
        if model.predict_change and (data.output != "real" or data.features != data.outputs):
            raise ConfigError(
                f"model.predict_change needs outputs that are the inputs one step on, and those of '{data.name}' are "
                "not."
            )
        return model.model_copy(update={"embedding_size": size, **self.fixed})

    def training_defaults(self, config: Config, defaults: TrainingDefaults) -> TrainingDefaults:
        data = self.data
        if config.training.refit and data.task != "simulate":
            raise ConfigError(f"training.refit is not used by the task '{data.task}', and '{data.name}' is for it.")
        recommended = RECOMMENDED.get(data.name, {})
        bptt_steps = recommended.get("bptt_steps", TEXT_BPTT_STEPS if data.continuous else 0)
        # 0 is a length too: whole sequences.
        if config.training.bptt_steps is not None:
            bptt_steps = config.training.bptt_steps
        batch_size = recommended.get("batch_size", defaults.batch_size)
        if data.continuous and data.name not in RECOMMENDED:
            # A short text in many streams would be a step or two an epoch.
            streams = int(np.asarray(data.train.lengths).sum()) // (max(bptt_steps, 1) * LEAST_TEXT_STEPS)
            batch_size = max(1, min(batch_size, streams))
        epochs = defaults.epochs
        assert epochs is not None
        if not data.continuous:
            few = power_of_two(len(data.train) * epochs / LEAST_STEPS)
            batch_size = min(batch_size, max(_LEAST_BATCH, few))
            steps = self.steps_per_epoch(config.training.batch_size or batch_size, bptt_steps)
            epochs = max(epochs, math.ceil(LEAST_STEPS / steps))
        clip_norm = CLIP_NORM if defaults.clip_norm is None else defaults.clip_norm
        return replace(defaults, batch_size=batch_size, epochs=epochs, bptt_steps=bptt_steps, clip_norm=clip_norm)

    def training_settings(self, config: Config, model: ModelConfig, defaults: TrainingDefaults) -> TrainingDefaults:
        if config.training.calibrate is not None:
            raise ConfigError(
                f"training.calibrate is not used by the task '{self.data.task}', and '{self.data.name}' is for it."
            )
        return defaults

    def steps_per_epoch(self, batch_size: int, bptt_steps: int) -> int:
        data = self.data
        return count_segment_minibatches(data.train, batch_size, bptt_steps, continuous=data.continuous)

    def describe(self) -> dict[str, Any]:
        data = self.data
        # Numbers are targets, as of a forecast; classes and binary targets are labels.
        names: Literal["targets", "labels"] = "targets" if data.output == "real" else "labels"
        splits = data.splits().items()
        return {
            "features": list(data.features),
            names: list(data.outputs),
            "output": data.output,
            "tokens": data.tokens,
            "continuous": data.continuous,
            "headline": data.headline,
            "longest": data.longest_input,
            "splits": {name: len(split) for name, split in splits},
            "steps": {name: int(np.asarray(split.lengths).sum()) for name, split in splits},
        }

    def build_model(self, config: Config) -> SequencePredictor:
        model, data = config.model, self.data
        return SequencePredictor(
            model.cell,
            len(data.features),
            len(data.outputs),
            model.hidden_size,
            output=data.output,
            tokens=data.tokens,
            embedding_size=model.embedding_size or 0,
            predict_change=model.predict_change,
            preset=model.preset,
            num_layers=model.num_layers,
            dropout=model.dropout,
            mask_channel=model.mask_channel is True,
            cell_options=model.cell_options,
        )

    def fit_inputs(self, model: SequenceModel, config: Config) -> None:
        assert isinstance(model, SequencePredictor)
        # Tokens have no scale.
        if not self.data.tokens:
            model.fit_scaling(self.data.training_values())
        model.fit_targets(np.asarray(y) for _, y in self.data.training_sequences())

    def minibatches(self, model: SequenceModel, training: TrainingConfig) -> Minibatches:
        assert training.batch_size is not None
        assert training.bptt_steps is not None
        return SegmentMinibatches(
            self.data.train,
            training.batch_size,
            training.bptt_steps,
            continuous=self.data.continuous,
            device=next(model.parameters()).device,
        )

    def objective(self, training: TrainingConfig) -> Objective:
        return PredictNextObjective(self.data.headline)

    def solve(self, model: SequenceModel, training: TrainingConfig) -> Solution:
        assert isinstance(model, SequencePredictor)
        return Solution(fit_step_head(model, self.data.train))

    def scorer(self, split: SplitName, config: Config) -> Scorer:
        return StepScorer(self.data, split)

    def final_scores(self, predictor: TorchPredictor, config: Config, plots: Path | None) -> FinalScores:
        scorers = {split: StepScorer(self.data, split) for split in ("validation", "test")}
        return FinalScores({split: scorer.score_of(predictor) for split, scorer in scorers.items() if scorer.samples})

    def score(
        self,
        predictor: StepPredictor,
        split: str,
        names: PredictorNames,
        extras: ScoreExtras | None = None,
        *,
        batch_size: int = BATCH_SIZE,
    ) -> SplitScores:
        metrics = evaluate_steps(predictor, self.data, split, features=names.features, outputs=names.outputs)
        return SplitScores(metrics, len(self.data.split(split)))

    def select_observed_samples(
        self, split: str, *, count: int, max_length: int, outputs: Sequence[str] | None = None
    ) -> Samples:
        return cut_samples(self._spread_samples(split, count), max_length, has_step_targets=True)

    def _spread_samples(self, split: str, count: int) -> Samples:
        source = self.data.split(split)
        if not self.data.continuous or not len(source):
            return super()._spread_samples(split, count)
        # A running text is one long sequence: parallel stretches of it stand for several.
        return streams(source, count)

    def plan(self, config: Config) -> dict[str, Any]:
        return {"outputs": len(self.data.outputs), "bptt_steps": config.training.bptt_steps}

    def largest_sample(self, training: TrainingConfig) -> tuple[Samples, int]:
        lengths = np.asarray(self.data.train.lengths)
        longest = int(lengths.argmax())
        steps = int(lengths[longest])
        # Autograd keeps no more than a segment.
        return self.data.train.gather([longest]), min(steps, training.bptt_steps) if training.bptt_steps else steps

    def data_figure(self) -> Figure:
        return steps_figure(self.data)


class StepScorer:
    """One split of sequences, to score any number of predictors on.

    Args:
        data: Data to score on.
        split: train, validation or test.

    Attributes:
        source: The split.
        headline: The metric that selects the best weights.
        naive: Scores of the baselines, by their name; empty before the first predictor has been scored.

    Raises:
        UnknownNameError: If there is no split of that name.
    """

    def __init__(self, data: StepData, split: str) -> None:
        self._data = data
        self.source = data.split(split)
        self.headline = data.headline
        self.naive: dict[str, dict[str, float]] = {}

    @property
    def samples(self) -> int:
        """Sequences of the split."""
        return len(self.source)

    def score_of(self, predictor: StepPredictor) -> dict[str, Any]:
        """Return the scores of a predictor, see :func:`evaluate_steps`."""
        data = self._data
        totals = _TOTALS[data.output](data)
        # Baselines are the same for every predictor: they are scored with the first one.
        baselines = {} if self.naive else _baselines(data)
        baseline_totals = {name: _TOTALS[data.output](data) for name in baselines}
        for segment, outputs in predict_segments(predictor, self.source, len(data.outputs), continuous=data.continuous):
            if outputs.shape[2] != len(data.outputs):
                raise DataError(
                    f"'{data.name}' has {pluralize(len(data.outputs), 'output')}, the model answers {outputs.shape[2]}."
                )
            totals.add(segment, outputs)
            for name, baseline in baselines.items():
                baseline_totals[name].add(segment, baseline(segment))
        self.naive = self.naive or {name: sums.scores() for name, sums in baseline_totals.items()}
        return {**totals.scores(), **self.naive}


def evaluate_steps(
    predictor: StepPredictor,
    data: StepData,
    split: str = "test",
    *,
    features: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Return the scores on one split, over the steps that have a target.

    Args:
        predictor: Predictor to score.
        data: Data to score on.
        split: train, validation or test.
        features: Inputs or vocabulary that the predictor was trained on, in its order; None: those of the data.
        outputs: Outputs of the predictor, in its order; None: those of the data.

    Returns:
        Categorical: ``loss`` = ``nll``, the mean negative log-likelihood in nats, ``bpc`` in bits, ``perplexity``,
        ``accuracy`` (over the answer's steps, if the data has them). Bernoulli: ``loss`` = ``nll``, summed over the
        binary targets, the mean over the steps. Real: ``loss`` = ``mse`` and ``rmse``, over the observed numbers, in
        raw units. By name, the same scores of baselines: ``frequencies`` or ``mean`` of the training targets; and
        ``naive``, the last observed value of each number, if the outputs are the inputs one step ahead.

    Raises:
        UnknownNameError: If there is no split of that name.
        DataError: If the split is empty, or its inputs or outputs are not those that the predictor was trained with.
    """
    check_scored(data, split, features, outputs)
    return StepScorer(data, split).score_of(predictor)


def check_scored(data: StepData, split: str, features: Sequence[str] | None, outputs: Sequence[str] | None) -> None:
    """Refuse a split that a predictor cannot be scored on; arguments and errors are those of :func:`evaluate_steps`."""
    for kind, names, expected in (("inputs", data.features, features), ("outputs", data.outputs, outputs)):
        if expected is not None and tuple(expected) != names:
            raise DataError(
                f"'{data.name}' has the {kind} {format_names(names)} ({len(names)}), the model was trained with "
                f"{format_names(expected)} ({len(expected)})."
            )
    if not len(data.split(split)):
        raise DataError(f"The split '{split}' of '{data.name}' is empty. Choose another split.")


class _Totals(ABC):
    """Sums over the segments added so far.

    Attributes:
        loss: Sum of the losses of all targets.
        count: Number of targets, or of steps with a target.
        correct: Number of correct classes among ``classified``.
        classified: Number of steps that count for the accuracy.
    """

    def __init__(self, data: StepData) -> None:
        self.loss = 0.0
        self.count = 0
        self.correct = 0
        self.classified = 0
        self._answer_steps = data.answer_steps

    @abstractmethod
    def add(self, segment: Segment, outputs: Array) -> None:
        """Add a segment; ``outputs`` are logits or means, of any shape that broadcasts to that of the targets."""

    @abstractmethod
    def scores(self) -> dict[str, float]:
        """Return the scores of all segments; NaN if no step had a target."""

    def mean_loss(self) -> float:
        """Return the mean loss; NaN if no step had a target."""
        return self.loss / self.count if self.count else math.nan


class _CategoricalTotals(_Totals):
    """Negative log-likelihood and accuracy of mutually exclusive classes."""

    def add(self, segment: Segment, outputs: Array) -> None:
        has_target = segment.y != NO_TARGET
        y = segment.y[has_target]
        # (targets, classes)
        logits = np.broadcast_to(outputs, (*segment.y.shape, outputs.shape[-1]))[has_target].astype(np.float64)
        # Log-sum-exp relative to the highest logit, so that no exponential overflows.
        highest = logits.max(axis=1, initial=-np.inf)
        normalizer = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
        self.loss += float((normalizer - logits[np.arange(len(y)), y]).sum())
        self.count += len(y)
        is_correct = logits.argmax(axis=1) == y
        if self._answer_steps is not None:
            # The answer is at the end: steps with at most answer_steps left, this one included.
            steps_left = segment.remaining[:, None] - np.arange(segment.y.shape[1])
            is_correct = is_correct[(steps_left <= self._answer_steps)[has_target]]
        self.correct += int(is_correct.sum())
        self.classified += len(is_correct)

    def scores(self) -> dict[str, float]:
        nll = self.mean_loss()
        accuracy = self.correct / self.classified if self.classified else math.nan
        # math.exp overflows above 709.78 with an error; a model that diverged has an infinite perplexity.
        perplexity = math.exp(nll) if nll < 709 else math.inf if nll == nll else math.nan
        return {"loss": nll, "nll": nll, "bpc": nll / math.log(2), "perplexity": perplexity, "accuracy": accuracy}


class _BernoulliTotals(_Totals):
    """Negative log-likelihood of binary targets, summed over the targets of a step."""

    def add(self, segment: Segment, outputs: Array) -> None:
        # The sum over the targets of a step needs all of them.
        has_target = ~np.isnan(segment.y).any(axis=2)
        y = segment.y[has_target].astype(np.float64)
        logits = np.broadcast_to(outputs, segment.y.shape)[has_target].astype(np.float64)
        # -log p of a Bernoulli target is log(1 + e^z) - y z; logaddexp does not overflow.
        self.loss += float((np.logaddexp(0, logits) - y * logits).sum())
        self.count += len(y)

    def scores(self) -> dict[str, float]:
        return {"loss": self.mean_loss(), "nll": self.mean_loss()}


class _RealTotals(_Totals):
    """Squared error of numbers, each of which may be missing."""

    def add(self, segment: Segment, outputs: Array) -> None:
        error = segment.y.astype(np.float64) - outputs
        is_observed = ~np.isnan(segment.y)
        self.loss += float(np.square(error[is_observed]).sum())
        self.count += int(is_observed.sum())

    def scores(self) -> dict[str, float]:
        mse = self.mean_loss()
        return {"loss": mse, "mse": mse, "rmse": math.sqrt(mse)}


_TOTALS: dict[str, type[_Totals]] = {
    "categorical": _CategoricalTotals,
    "bernoulli": _BernoulliTotals,
    "real": _RealTotals,
}


def _baselines(data: StepData) -> dict[str, Callable[[Segment], Array]]:
    """Return the baselines by name: functions of a segment that return its logits or means."""
    targets = (y for _, y in data.training_sequences())
    if data.output != "real":
        frequencies = target_frequencies(targets, len(data.outputs), data.output)
        # Logits of classes are log p, those of binary targets log p - log(1 - p).
        logits = np.log(frequencies) - (np.log1p(-frequencies) if data.output == "bernoulli" else 0)
        return {"frequencies": lambda segment: logits}
    scaling = Scaling(len(data.outputs))
    scaling.fit(targets)
    mean = scaling.mean.numpy()
    baselines: dict[str, Callable[[Segment], Array]] = {"mean": lambda segment: mean}
    if not data.tokens and set(data.outputs) <= set(data.features):
        baselines["naive"] = _LastObserved([data.features.index(name) for name in data.outputs], mean)
    return baselines


class _LastObserved:
    """The baseline of the last observed value of each channel; before the first one, of the training mean.

    Args:
        channels: Positions of the outputs among the features.
        mean: (outputs,), mean of the training targets.
    """

    def __init__(self, channels: list[int], mean: Array) -> None:
        self._channels = channels
        self._mean = mean
        self._last: Array = mean

    def __call__(self, segment: Segment) -> Array:
        values = segment.x[:, :, self._channels]
        rows, steps, _ = values.shape
        # Segments of the same sequences follow each other, so that the last values go on from one to the next.
        previous = np.broadcast_to(self._mean, values[:, 0].shape) if segment.start == 0 else self._last[:rows]
        # (rows, 1 + steps, outputs): a forward fill whose first step is never missing.
        extended = np.concatenate([previous[:, None], values], axis=1)
        latest = np.maximum.accumulate(np.where(np.isnan(extended), 0, np.arange(steps + 1)[:, None]), axis=1)
        filled = np.take_along_axis(extended, latest, axis=1)
        self._last = filled[np.arange(rows), segment.lengths]
        return filled[:, 1:]
