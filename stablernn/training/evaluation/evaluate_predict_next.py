"""Scores of answers at every step, taken stretch by stretch: no split has to lie in memory with all its answers."""

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
from stablernn.training.evaluation.stepwise import StepPredictor, follow


class StepScorer:
    """One split with what is needed to score any number of predictors on it.

    Args:
        data: What is scored on.
        split: train, validation or test.

    Attributes:
        source: The split.
        headline: The metric to choose by.
        naive: Scores of the baselines, by their name; empty before the first predictor was scored.

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
        """The scores of a predictor, see :func:`evaluate_steps`."""
        data = self._data
        totals = _TOTALS[data.output](data)
        baselines = {} if self.naive else _baselines(data)
        theirs = {name: _TOTALS[data.output](data) for name in baselines}
        for part, answers in follow(predictor, self.source, len(data.outputs), continuous=data.continuous):
            if answers.shape[2] != len(data.outputs):
                raise DataError(
                    f"'{data.name}' has {pluralize(len(data.outputs), 'output')}, the model answers {answers.shape[2]}."
                )
            totals.add(part, answers)
            for name, answer in baselines.items():
                theirs[name].add(part, answer(part))
        self.naive = self.naive or {name: their.scores() for name, their in theirs.items()}
        return {**totals.scores(), **self.naive}


def evaluate_steps(
    predictor: StepPredictor,
    data: StepData,
    split: str = "test",
    *,
    features: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Scores on one split, over the steps that have a target.

    Args:
        predictor: What is scored.
        data: What it is scored on.
        split: train, validation or test.
        features: Inputs or vocabulary that the predictor was trained on, in its order; None: those of the data.
        outputs: What it answers, in its order; None: those of the data.

    Returns:
        Categorical: ``loss`` = ``nll``, the mean negative log-likelihood in nats, ``bpc`` in bits, ``perplexity``,
        ``accuracy`` (over the answer's steps, where the data has them). Bernoulli: ``loss`` = ``nll``, summed over the
        switches, the mean over the steps. Real: ``loss`` = ``mse`` and ``rmse``, over the numbers that are there, in
        raw units. Beside them by name the same scores of what knows the training targets alone: ``frequencies``, or
        ``mean``; and ``naive``, that every number stays as it was last seen, where outputs are inputs one step on.

    Raises:
        UnknownNameError: If there is no split of that name.
        DataError: If the split is empty, or the data is not of the kind that the predictor was trained on.
    """
    for kind, found, expected in (("inputs", data.features, features), ("outputs", data.outputs, outputs)):
        if expected is not None and tuple(expected) != found:
            raise DataError(
                f"'{data.name}' has the {kind} {format_names(found)} ({len(found)}), the model was trained with "
                f"{format_names(expected)} ({len(expected)})."
            )
    scorer = StepScorer(data, split)
    if not scorer.samples:
        raise DataError(f"The split '{split}' of '{data.name}' is empty. Choose another split.")
    return scorer.score_of(predictor)


class _Totals(ABC):
    """Sums over the steps that were seen so far."""

    def __init__(self, data: StepData) -> None:
        self.loss = 0.0
        self.count = 0
        self.right = 0
        self.answered = 0
        self._answer_steps = data.answer_steps

    @abstractmethod
    def add(self, part: Segment, answers: Array) -> None:
        """Count a stretch in; ``answers`` are logits or means, of any shape that broadcasts to that of the targets."""

    @abstractmethod
    def scores(self) -> dict[str, float]:
        """The scores of all stretches; NaN where no step had a target."""

    def mean_loss(self) -> float:
        return self.loss / self.count if self.count else math.nan


class _Categorical(_Totals):
    def add(self, part: Segment, answers: Array) -> None:
        there = part.y != NO_TARGET
        y = part.y[there]
        logits = np.broadcast_to(answers, (*part.y.shape, answers.shape[-1]))[there].astype(np.float64)
        highest = logits.max(axis=1, initial=-np.inf)
        normalizer = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
        self.loss += float((normalizer - logits[np.arange(len(y)), y]).sum())
        self.count += len(y)
        right = logits.argmax(axis=1) == y
        if self._answer_steps is not None:
            to_go = part.left[:, None] - np.arange(part.y.shape[1])
            right = right[(to_go <= self._answer_steps)[there]]
        self.right += int(right.sum())
        self.answered += len(right)

    def scores(self) -> dict[str, float]:
        nll = self.mean_loss()
        accuracy = self.right / self.answered if self.answered else math.nan
        # e to the power of 709 is the largest there is; what diverges is shown as infinite.
        perplexity = math.exp(nll) if nll < 709 else math.inf if nll == nll else math.nan
        return {"loss": nll, "nll": nll, "bpc": nll / math.log(2), "perplexity": perplexity, "accuracy": accuracy}


class _Bernoulli(_Totals):
    def add(self, part: Segment, answers: Array) -> None:
        there = ~np.isnan(part.y).any(axis=2)
        y = part.y[there].astype(np.float64)
        logits = np.broadcast_to(answers, part.y.shape)[there].astype(np.float64)
        self.loss += float((np.logaddexp(0, logits) - y * logits).sum())
        self.count += len(y)

    def scores(self) -> dict[str, float]:
        return {"loss": self.mean_loss(), "nll": self.mean_loss()}


class _Real(_Totals):
    def add(self, part: Segment, answers: Array) -> None:
        error = part.y.astype(np.float64) - answers
        there = ~np.isnan(part.y)
        self.loss += float(np.square(error[there]).sum())
        self.count += int(there.sum())

    def scores(self) -> dict[str, float]:
        mse = self.mean_loss()
        return {"loss": mse, "mse": mse, "rmse": math.sqrt(mse)}


_TOTALS: dict[str, type[_Totals]] = {"categorical": _Categorical, "bernoulli": _Bernoulli, "real": _Real}


def _baselines(data: StepData) -> dict[str, Callable[[Segment], Array]]:
    """What answers without a model, from the training targets or from the last input."""
    targets = (y for _, y in data.training_sequences())
    if data.output != "real":
        share = target_frequencies(targets, len(data.outputs), data.output)
        logits = np.log(share) - (np.log1p(-share) if data.output == "bernoulli" else 0)
        return {"frequencies": lambda part: logits}
    scaling = Scaling(len(data.outputs))
    scaling.fit(targets)
    mean = scaling.mean.numpy()
    answers: dict[str, Callable[[Segment], Array]] = {"mean": lambda part: mean}
    if not data.tokens and set(data.outputs) <= set(data.features):
        answers["naive"] = _LastSeen([data.features.index(name) for name in data.outputs], mean)
    return answers


class _LastSeen:
    """The last observed value of each channel; before there is one, the training mean."""

    def __init__(self, channels: list[int], mean: Array) -> None:
        self._channels = channels
        self._mean = mean
        self._last: Array = mean

    def __call__(self, part: Segment) -> Array:
        values = part.x[:, :, self._channels]
        rows, steps, _ = values.shape
        before = np.broadcast_to(self._mean, values[:, 0].shape) if part.start == 0 else self._last[:rows]
        held = np.concatenate([before[:, None], values], axis=1)
        latest = np.maximum.accumulate(np.where(np.isnan(held), 0, np.arange(steps + 1)[:, None]), axis=1)
        filled = np.take_along_axis(held, latest, axis=1)
        self._last = filled[np.arange(rows), part.lengths]
        return filled[:, 1:]
