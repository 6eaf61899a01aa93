"""What a classification score stands beside: ridge regression on the raw values, and the most frequent class."""

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

Float64Array = npt.NDArray[np.float64]

ALPHAS = np.logspace(-3, 3, 10)
"""Penalties that leave-one-out chooses among: those that ROCKET's classifier uses (Dempster, Petitjean, Webb, 2020)."""

# Sequences that are made into rows at once; all of a large set would not fit into memory.
_BLOCK = 256
MOST_FEATURES = 2_000
MOST_ROWS = 20_000
MOST_WORK = 2e10
"""Rows times squared columns, to which the time of the fit is proportional: a few seconds."""


class Ridge:
    """Least squares on -1 and 1 for each class, with a penalty chosen by leave-one-out; no intercept is penalized.

    On standardized columns this is scikit-learn's ``RidgeClassifierCV``.

    Args:
        x: (samples, columns).
        y: int (samples,), the classes.

    Attributes:
        alpha: The chosen penalty.
    """

    def __init__(self, x: Float64Array, y: npt.NDArray[np.int64]) -> None:
        self._mean = x.mean(axis=0)
        spread = x.std(axis=0)
        self._spread = np.where(spread > 0, spread, 1.0)
        self.classes = np.unique(y)
        z = (x - self._mean) / self._spread
        signs = np.where(y[:, None] == self.classes, 1.0, -1.0)
        # Of two classes one column says all; the mean squared error of both would be the same.
        self._level = signs.mean(axis=0)
        left, squares, right = _decompose(z)
        inner = left.T @ (signs - self._level)
        best = math.inf
        self.alpha = float(ALPHAS[0])
        # The residual of a row that was left out is that of the whole fit over 1 - leverage.
        leverages = left**2 @ (squares[:, None] / (squares[:, None] + ALPHAS)) + 1 / len(x)
        for alpha, leverage in zip(ALPHAS, leverages.T, strict=True):
            shrunk = squares / (squares + alpha)
            fitted = left @ (shrunk[:, None] * inner) + self._level
            error = float(np.mean(((signs - fitted) / (1 - leverage)[:, None]) ** 2))
            if error < best:
                best, self.alpha = error, float(alpha)
        self._coefficients = right @ ((np.sqrt(squares) / (squares + self.alpha))[:, None] * inner)

    def scores(self, x: Float64Array) -> Float64Array:
        """What is compared, (samples, classes)."""
        found: Float64Array = (x - self._mean) / self._spread @ self._coefficients + self._level
        return found

    def predict(self, x: Float64Array) -> npt.NDArray[np.int64]:
        """The class of each row."""
        found: npt.NDArray[np.int64] = self.classes[self.scores(x).argmax(axis=1)]
        return found


def _decompose(z: Float64Array) -> tuple[Float64Array, Float64Array, Float64Array]:
    """Left vectors, squared singular values and right vectors of ``z``, by the smaller of its two Gram matrices."""
    rows, columns = z.shape
    squares, vectors = np.linalg.eigh(z @ z.T if rows <= columns else z.T @ z)
    kept = squares > max(rows, columns) * np.finfo(np.float64).eps * squares.max(initial=0.0)
    squares, vectors = squares[kept], vectors[:, kept]
    if rows <= columns:
        return vectors, squares, z.T @ vectors / np.sqrt(squares)
    return z @ vectors / np.sqrt(squares), squares, vectors


class Baselines:
    """Two classifiers that know nothing of time, fitted to a training split.

    ``ridge`` sees each sequence as one row of raw values: cut or filled up with the channel's mean to the longest
    training sequence, missing values filled with that mean too. Where a row has more than :data:`MOST_FEATURES` values,
    that many steps in a row are averaged as bring it below. Where there are more than :data:`MOST_ROWS` training
    sequences, or the fit would take more than :data:`MOST_WORK`, as many as are allowed are drawn. ``majority`` answers
    the class that is most frequent in training, the first of several.

    Args:
        data: Its training split is fitted on, nothing else of it.
    """

    def __init__(self, data: ClassificationData) -> None:
        self._data = data
        train = data.train
        self._time = int(train.lengths.max(initial=1))
        self._averaged = max(1, math.ceil(self._time * len(data.features) / MOST_FEATURES))
        self._columns = math.ceil(self._time / self._averaged) * len(data.features)
        # Above the square root of the work there are more columns than rows, and the dual form is the cheap one.
        self._most = min(MOST_ROWS, max(int(MOST_WORK / self._columns**2), int((MOST_WORK / self._columns) ** 0.5)))

    def scores(self, split: str) -> dict[str, dict[str, float]]:
        """Accuracy and macro F1 of both on a split; nothing where there is nothing to fit on, or one class only."""
        scored = self._data.split(split)
        if self._ridge is None or not len(scored):
            return {}
        classes = len(self._data.labels)
        majority = int(np.bincount(self._data.train.y).argmax())
        answers = {
            "ridge": self._ridge.predict(self._rows(scored)),
            "majority": np.full(len(scored), majority, dtype=np.int64),
        }
        return {name: label_metrics(found, scored.y, classes) for name, found in answers.items()}

    @property
    def notes(self) -> dict[str, Any]:
        """How the ridge classifier was fitted: ``rows``, ``features``, ``averaged_steps``, ``alpha``."""
        if self._ridge is None:
            return {}
        return {
            "rows": min(len(self._data.train), self._most),
            "features": self._columns,
            "averaged_steps": self._averaged,
            "alpha": self._ridge.alpha,
        }

    @cached_property
    def _ridge(self) -> Ridge | None:
        train = self._data.train
        if len(train) < 2 or len(np.unique(train.y)) < 2:
            return None
        chosen = np.arange(len(train))
        if len(train) > self._most:
            chosen = np.sort(np.random.default_rng(0).permutation(len(train))[: self._most])
        return Ridge(self._rows(train, chosen), train.y[chosen])

    @cached_property
    def _means(self) -> Float64Array:
        """Mean of each channel over the training steps that are observed; 0 where none is."""
        total, count = np.zeros(len(self._data.features)), np.zeros(len(self._data.features))
        for values in self._data.train.for_scaling():
            total += np.nansum(values, axis=0, dtype=np.float64)
            count += (~np.isnan(values)).sum(axis=0)
        return total / np.maximum(count, 1)

    def _rows(self, split: SequenceSplit, chosen: npt.NDArray[np.int64] | None = None) -> Float64Array:
        rows = np.arange(len(split)) if chosen is None else chosen
        blocks = [self._block(split.gather(rows[i : i + _BLOCK])) for i in range(0, len(rows), _BLOCK)]
        return np.concatenate(blocks)

    def _block(self, samples: Samples) -> Float64Array:
        x, lengths = samples.x, samples.lengths
        known = min(self._time, x.shape[1])
        steps = math.ceil(self._time / self._averaged)
        # The last block may reach beyond the longest sequence, where the mean stands in.
        rows = np.broadcast_to(self._means, (len(x), steps * self._averaged, x.shape[2])).copy()
        seen = (np.arange(known) < lengths[:, None])[..., None] & ~np.isnan(x[:, :known])
        rows[:, :known] = np.where(seen, x[:, :known], rows[:, :known])
        return np.asarray(rows.reshape(len(x), steps, self._averaged, -1).mean(axis=2).reshape(len(x), -1))
