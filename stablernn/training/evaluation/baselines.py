"""Baselines of a classification: ridge regression on the raw values, and the most frequent class."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn.data import ClassificationData
from stablernn.data.arrays import Samples
from stablernn.data.types import SequenceSplit
from stablernn.training.evaluation.metrics import label_metrics
from stablernn.training.evaluation.ridge import Float64Array, Ridge

# Sequences that are converted to rows at once; all of a large set would not fit into memory.
_BLOCK = 256
_LEAST_PROBABILITY = float(np.finfo(np.float32).eps)
"""As in the log loss of :func:`stablernn.training.evaluation.metrics.classification_metrics`."""
MOST_FEATURES = 2_000
"""Longest row without averaging over time."""
MOST_ROWS = 20_000
"""Most training sequences of a fit."""
MOST_WORK = 2e10
"""Rows times squared columns, to which the time of the fit is proportional: a few seconds."""


def majority_scores(counts: npt.NDArray[np.int64], truth: npt.NDArray[np.int64]) -> dict[str, float]:
    """Return the scores of ``majority``, see :class:`Baselines`.

    Args:
        counts: (classes,), training sequences of each class.
        truth: (samples,), true classes of those that are scored.
    """
    # A class that training never saw has a probability all the same, as in the log loss of a model.
    frequencies = np.maximum(counts / counts.sum(), _LEAST_PROBABILITY)
    log_loss = min(math.log(len(counts)), float(-np.log(frequencies[truth]).mean()))
    predicted = np.full(len(truth), counts.argmax(), dtype=np.int64)
    return {**label_metrics(predicted, truth, len(counts)), "log_loss": log_loss}


class Baselines:
    """Two classifiers that ignore the order of time steps, fitted to a training split.

    ``ridge`` reads each sequence as one row of raw values: truncated, or padded with the channel's mean, to the length
    of the longest training sequence; missing values are filled with that mean, too. A row of more than
    :data:`MOST_FEATURES` values is averaged over as many consecutive steps as bring it below. If there are more than
    :data:`MOST_ROWS` training sequences, or the fit would take more than :data:`MOST_WORK`, as many as are allowed are
    drawn. ``majority`` predicts the most frequent class of training, the first one of several; its probabilities are
    the frequencies of the classes, or equal ones where these have the lower log loss.

    Args:
        data: Data with the training split to fit to; nothing else of it is used for the fit.
    """

    def __init__(self, data: ClassificationData) -> None:
        self._data = data
        train = data.train
        self._longest = int(train.lengths.max(initial=1))
        self._averaged_steps = max(1, math.ceil(self._longest * len(data.features) / MOST_FEATURES))
        self._columns = math.ceil(self._longest / self._averaged_steps) * len(data.features)
        # With more columns than rows the dual form is the cheaper one, whose work is columns times squared rows.
        self._max_rows = min(MOST_ROWS, max(int(MOST_WORK / self._columns**2), int((MOST_WORK / self._columns) ** 0.5)))

    def scores(self, split: str) -> dict[str, dict[str, float]]:
        """Return accuracy and macro F1 of both on a split, and the log loss of ``majority``.

        Empty if training has fewer than two classes.
        """
        samples = self._data.split(split)
        if self._ridge is None or not len(samples):
            return {}
        return self._scores(self._ridge.predict(self._rows(samples)), samples.y)

    def left_out_scores(self) -> dict[str, dict[str, float]]:
        """Return the same scores of both on the training split, of ``ridge`` for each row by the fit to all others."""
        if self._ridge is None:
            return {}
        return self._scores(self._ridge.classes[self._ridge.left_out.argmax(axis=1)], self._data.train.y[self._fitted])

    def _scores(self, ridge: npt.NDArray[np.int64], truth: npt.NDArray[np.int64]) -> dict[str, dict[str, float]]:
        classes = len(self._data.labels)
        majority = majority_scores(np.bincount(self._data.train.y, minlength=classes), truth)
        return {"ridge": label_metrics(ridge, truth, classes), "majority": majority}

    @property
    def notes(self) -> dict[str, Any]:
        """Facts about the fit of the ridge classifier: ``rows``, ``features``, ``averaged_steps``, ``alpha``."""
        if self._ridge is None:
            return {}
        return {
            "rows": min(len(self._data.train), self._max_rows),
            "features": self._columns,
            "averaged_steps": self._averaged_steps,
            "alpha": self._ridge.alpha,
        }

    @cached_property
    def _ridge(self) -> Ridge | None:
        train = self._data.train
        if len(train) < 2 or len(np.unique(train.y)) < 2:
            return None
        return Ridge(self._rows(train, self._fitted), train.y[self._fitted])

    @cached_property
    def _fitted(self) -> npt.NDArray[np.int64]:
        """Numbers of the training sequences that the ridge classifier is fitted to."""
        count = len(self._data.train)
        if count <= self._max_rows:
            return np.arange(count)
        # A fixed seed: the baseline of a dataset is the same in every run.
        return np.sort(np.random.default_rng(0).permutation(count)[: self._max_rows])

    @cached_property
    def _means(self) -> Float64Array:
        """Mean of each channel over the observed training steps; 0 for a channel without any."""
        total, count = np.zeros(len(self._data.features)), np.zeros(len(self._data.features))
        for values in self._data.train.for_scaling():
            total += np.nansum(values, axis=0, dtype=np.float64)
            count += (~np.isnan(values)).sum(axis=0)
        return total / np.maximum(count, 1)

    def _rows(self, split: SequenceSplit, numbers: npt.NDArray[np.int64] | None = None) -> Float64Array:
        """Return the sequences with these numbers, all if omitted, as rows (samples, columns)."""
        numbers = np.arange(len(split)) if numbers is None else numbers
        blocks = [self._block(split.gather(numbers[i : i + _BLOCK])) for i in range(0, len(numbers), _BLOCK)]
        return np.concatenate(blocks)

    def _block(self, samples: Samples) -> Float64Array:
        x, lengths = samples.x, samples.lengths
        time = min(self._longest, x.shape[1])
        steps = math.ceil(self._longest / self._averaged_steps)
        # The last group of averaged steps may reach beyond the longest sequence; the mean fills it up.
        rows = np.broadcast_to(self._means, (len(x), steps * self._averaged_steps, x.shape[2])).copy()
        is_observed = (np.arange(time) < lengths[:, None])[..., None] & ~np.isnan(x[:, :time])
        rows[:, :time] = np.where(is_observed, x[:, :time], rows[:, :time])
        # (samples, steps, averaged steps, channels) to (samples, steps * channels)
        return np.asarray(rows.reshape(len(x), steps, self._averaged_steps, -1).mean(axis=2).reshape(len(x), -1))
