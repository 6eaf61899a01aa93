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


Float64Array = npt.NDArray[np.float64]

ALPHAS = np.logspace(-3, 3, 10)
"""Penalties that leave-one-out selects from: those of ROCKET's classifier (Dempster, Petitjean, Webb, 2020)."""


class RidgeRegression:
    """Linear least squares of several outputs with a penalty on the squared coefficients, not on the intercept.

    Columns are standardized first. The leave-one-out residual of a row is that of the whole fit over 1 - leverage, so
    that all penalties together take one decomposition (Rifkin, Lippert, "Notes on regularized least squares", MIT
    2007).

    Args:
        x: (samples, columns), finite.
        targets: (samples, outputs), finite.
        weights: (samples,), weight of each row's squared residual, greater than 0; None: all weigh the same.

    Attributes:
        alpha: The penalty with the least (weighted) mean squared leave-one-out residual.
        left_out: (samples, outputs), the prediction of each row by the fit to all others.
    """

    def __init__(self, x: Float64Array, targets: Float64Array, weights: Float64Array | None = None) -> None:
        shares = np.full(len(x), 1 / len(x)) if weights is None else weights / weights.sum()
        self._mean = x.mean(axis=0) if weights is None else shares @ x
        deviation = x.std(axis=0) if weights is None else np.sqrt(shares @ (x - self._mean) ** 2)
        # The rounding of a weighted mean of equal numbers is no deviation.
        least = 0.0 if weights is None else 1e-12 * np.abs(self._mean)
        self._scale = np.where(deviation > least, deviation, 1.0)
        # A row that weighs w is a row times the root of w in least squares.
        roots = np.sqrt(len(x) * shares)[:, None]
        z = roots * (x - self._mean) / self._scale
        # Columns of z have mean 0, so that the mean of the targets is the intercept.
        self._intercept = shares @ targets
        left, squares, right = _decompose(z)
        projections = left.T @ (roots * (targets - self._intercept))
        best = math.inf
        self.alpha = float(ALPHAS[0])
        self.left_out = np.zeros_like(targets)
        # The weight's share of all is the intercept's share of the leverage.
        leverages = left**2 @ (squares[:, None] / (squares[:, None] + ALPHAS)) + shares[:, None]
        for alpha, leverage in zip(ALPHAS, leverages.T, strict=True):
            shrunk = squares / (squares + alpha)
            fitted = left @ (shrunk[:, None] * projections) / roots + self._intercept
            residuals = (targets - fitted) / (1 - leverage)[:, None]
            error = float(np.mean(shares @ residuals**2))
            if error < best:
                best, self.alpha, self.left_out = error, float(alpha), targets - residuals
        self._coefficients = right @ ((np.sqrt(squares) / (squares + self.alpha))[:, None] * projections)

    def outputs(self, x: Float64Array) -> Float64Array:
        """Return the predicted targets of rows, (samples, outputs)."""
        outputs: Float64Array = (x - self._mean) / self._scale @ self._coefficients + self._intercept
        return outputs

    def linear_map(self) -> tuple[Float64Array, Float64Array]:
        """Return weight (outputs, columns) and bias (outputs,) of the same map of columns that are not standardized."""
        weight = (self._coefficients / self._scale[:, None]).T
        return weight, self._intercept - weight @ self._mean


class Ridge(RidgeRegression):
    """Least squares on -1 and 1 for each class, the penalty selected by leave-one-out and the intercept not penalized.

    On standardized columns this is scikit-learn's ``RidgeClassifierCV``.

    Args:
        x: (samples, columns).
        y: int (samples,), the classes.

    Attributes:
        classes: The classes of ``y``, ascending.
    """

    def __init__(self, x: Float64Array, y: npt.NDArray[np.int64]) -> None:
        self.classes = np.unique(y)
        # Two classes could do with one column: the mean squared error of both would be the same.
        super().__init__(x, np.where(y[:, None] == self.classes, 1.0, -1.0))

    def scores(self, x: Float64Array) -> Float64Array:
        """Return the decision values, (samples, classes); the highest one is that of the predicted class."""
        return self.outputs(x)

    def predict(self, x: Float64Array) -> npt.NDArray[np.int64]:
        """Return the class of each row."""
        classes: npt.NDArray[np.int64] = self.classes[self.scores(x).argmax(axis=1)]
        return classes


def _decompose(z: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Return left singular vectors, squared singular values and right singular vectors of a matrix."""
    rows, columns = z.shape
    # The smaller of the two Gram matrices has all nonzero singular values, and is the cheaper one to decompose.
    squares, vectors = np.linalg.eigh(z @ z.T if rows <= columns else z.T @ z)
    # Directions below rounding are noise; dividing by their singular values would amplify it.
    is_significant = squares > max(rows, columns) * np.finfo(np.float64).eps * squares.max(initial=0.0)
    squares, vectors = squares[is_significant], vectors[:, is_significant]
    if rows <= columns:
        return vectors, squares, z.T @ vectors / np.sqrt(squares)
    return z @ vectors / np.sqrt(squares), squares, vectors
