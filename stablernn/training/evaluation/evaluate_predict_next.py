"""Scores of outputs at every step, segment by segment, so that no split has to fit into memory with its outputs."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stablernn.data.messages import format_names, pluralize
from stablernn.data.segments import Segment
from stablernn.data.step_data import NO_TARGET, StepData
from stablernn.errors import DataError
from stablernn.nn.models.predictor import target_frequencies
from stablernn.nn.preprocessing import Scaling
from stablernn.training.evaluation.predictors import Array
from stablernn.training.evaluation.stepwise import StepPredictor, predict_segments


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
    for kind, names, expected in (("inputs", data.features, features), ("outputs", data.outputs, outputs)):
        if expected is not None and tuple(expected) != names:
            raise DataError(
                f"'{data.name}' has the {kind} {format_names(names)} ({len(names)}), the model was trained with "
                f"{format_names(expected)} ({len(expected)})."
            )
    scorer = StepScorer(data, split)
    if not scorer.samples:
        raise DataError(f"The split '{split}' of '{data.name}' is empty. Choose another split.")
    return scorer.score_of(predictor)


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
