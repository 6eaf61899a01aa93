"""The draw of validation sequences and of folds; series are split by time, see
:func:`stablernn.data.windows.target_range`."""

from __future__ import annotations

import numpy as np

from stablernn.data.arrays import Int64Array


def stratified_validation(y: Int64Array, fraction: float, seed: int) -> tuple[Int64Array, Int64Array]:
    """Split samples into training and validation so that every class keeps its share.

    A class gives ``round(fraction * count)`` samples to validation, at least one and never its last; a class with a
    single sample stays in training.

    Args:
        y: int64 (samples,), class indices.
        fraction: Share of validation, between 0 and 1.
        seed: The same seed gives the same split on every machine and numpy version.

    Returns:
        Indices of training and of validation, each ascending.
    """
    # RandomState's stream is frozen by numpy's compatibility policy; that of default_rng may change with a release.
    random = np.random.RandomState(seed)
    is_validation = np.zeros(len(y), dtype=bool)
    for label in np.unique(y):
        members = np.flatnonzero(y == label)
        count = min(max(1, round(fraction * len(members))), len(members) - 1)
        is_validation[random.permutation(members)[:count]] = True
    return np.flatnonzero(~is_validation), np.flatnonzero(is_validation)


def stratified_folds(y: Int64Array, count: int, seed: int) -> list[Int64Array]:
    """Divide samples into folds over which every class is spread evenly, for cross-validation.

    Args:
        y: int64 (samples,), class indices.
        count: Number of folds; each has a sample if there are as many samples as folds.
        seed: The same seed gives the same folds on every machine and numpy version.

    Returns:
        Indices of each fold, ascending.
    """
    random = np.random.RandomState(seed)
    # One class after another is dealt out, each from where the one before has ended, so that folds are of one size.
    dealt = np.concatenate([random.permutation(np.flatnonzero(y == label)) for label in np.unique(y)])
    fold = np.empty(len(y), dtype=np.int64)
    fold[dealt] = np.arange(len(y)) % count
    return [np.flatnonzero(fold == number) for number in range(count)]
