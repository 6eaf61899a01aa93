"""Who is trained on, who decides when to stop, who is scored: by class for sequences, by time for series."""

from __future__ import annotations

import numpy as np

from stablernn.data.windows import Int64Array, SplitName


def stratified_validation(y: Int64Array, fraction: float, seed: int) -> tuple[Int64Array, Int64Array]:
    """Splits samples into training and validation so that every class keeps its share.

    A class gives ``round(fraction * count)`` samples to validation, at least one and never its last; a class with a
    single sample stays in training.

    Args:
        y: int64 (samples,), class indices.
        fraction: Share of validation, between 0 and 1.
        seed: Same seed, same split, on every machine and numpy version.

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


def target_range(length: int, validation_steps: int, test_steps: int, split: SplitName) -> tuple[int, int]:
    """The steps ``start .. stop - 1`` of a series that targets of a split may use.

    The test is at the end, validation right before it, training is the rest: within one series no target of a split is
    later than any target of the next. Series that end at different times are split at different times, so a training
    target of one may be later than a test target of another.
    """
    test_start = length - test_steps
    validation_start = test_start - validation_steps
    ranges: dict[SplitName, tuple[int, int]] = {
        "train": (0, validation_start),
        "validation": (validation_start, test_start),
        "test": (test_start, length),
    }
    return ranges[split]
