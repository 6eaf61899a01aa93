"""The draw of validation sequences and of folds; series are split by time, see
:func:`stablernn.data.windows.target_range`."""

from __future__ import annotations

from typing import Any

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


def grouped_validation(y: Int64Array, groups: Int64Array, fraction: float, seed: int) -> tuple[Int64Array, Int64Array]:
    """Split samples into training and validation by whole groups.

    Of as many folds as ``fraction`` asks for, and at most as many as there are groups, the first one without which
    training still has every class is held out.

    Args:
        y: int64 (samples,), class indices.
        groups: int64 (samples,), group indices.
        fraction: Share of validation, between 0 and 1, that is aimed at.
        seed: The same seed gives the same split on every machine and numpy version.

    Returns:
        Indices of training and of validation, each ascending; no validation if every fold has a class of its own.
    """
    everything = np.arange(len(y))
    for held_out in grouped_folds(y, groups, max(2, round(1 / fraction)), seed):
        fitted = np.setdiff1d(everything, held_out)
        if len(np.unique(y[fitted])) == len(np.unique(y)):
            return fitted, held_out
    return everything, everything[:0]


def grouped_folds(y: Int64Array, groups: Int64Array, count: int, seed: int) -> list[Int64Array]:
    """Divide samples into folds of whole groups, over which classes are spread as evenly as the groups allow.

    Groups whose classes are the least balanced go first, each to the fold that leaves the shares of the classes most
    equal over the folds, and of equal ones to the smallest; as scikit-learn's ``StratifiedGroupKFold`` does.

    Args:
        y: int64 (samples,), class indices.
        groups: int64 (samples,), group indices.
        count: Number of folds; fewer if there are fewer groups.
        seed: The same seed gives the same folds on every machine and numpy version.

    Returns:
        Indices of each fold, ascending.
    """
    _, numbers = np.unique(groups, return_inverse=True)
    _, classes = np.unique(y, return_inverse=True)
    counts = np.zeros((numbers.max() + 1, classes.max() + 1))
    np.add.at(counts, (numbers, classes), 1)
    folds = min(count, len(counts))
    # Groups of equal rank come in an order by chance.
    order = np.random.RandomState(seed).permutation(len(counts))
    order = order[np.argsort(-counts[order].std(axis=1), kind="stable")]
    totals = np.zeros((folds, counts.shape[1]))
    fold_of = np.empty(len(counts), dtype=np.int64)
    for position, group in enumerate(order):
        # An empty fold is filled while there are as many groups left as empty folds.
        empty = np.flatnonzero(totals.sum(axis=1) == 0)
        choices = empty if len(order) - position <= len(empty) else np.arange(folds)
        fold_of[group] = min(choices, key=lambda fold: _imbalance(totals, int(fold), counts[group], counts))
        totals[fold_of[group]] += counts[group]
    return [np.flatnonzero(fold_of[numbers] == fold) for fold in range(folds)]


def _imbalance(totals: Any, fold: int, added: Any, counts: Any) -> tuple[float, float]:
    """Return how unequal the classes are spread if a group joins a fold, and the samples of the fold."""
    joined = totals.copy()
    joined[fold] += added
    return float((joined / counts.sum(axis=0)).std(axis=0).mean()), float(joined[fold].sum())


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
