"""Parts of the training data on which settings are compared; the test split is in none of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stablernn.data.arrays import Int64Array
from stablernn.data.splits import grouped_folds, grouped_validation, stratified_folds, stratified_validation
from stablernn.data.step_data import Data, StepData
from stablernn.data.types import ClassificationData, ForecastData, SequenceSplit
from stablernn.errors import DataError
from stablernn.terms import terms

_INNER_VALIDATION = 0.2
"""Share of a fold's training sequences by which the best epoch is chosen, where one is."""


def resample(data: Data, count: int, *, seed: int, refit: bool) -> Sequence[Data]:
    """Return data sets made of the training data, on whose test split a model is scored that was trained on the rest.

    Sequences are divided into stratified folds, of whole groups where they have groups. Series end earlier and earlier
    (forward chaining): the part that is scored is as long as the validation part, and comes after all that a model was
    trained on. Data of the task 'predict-next' has one part, its validation split, by which the best epoch is chosen
    too.

    Args:
        data: The data; its own test split is left out.
        count: Number of parts; short series may have fewer.
        seed: Seed of the draw of sequences.
        refit: Whether models are trained without a validation split, which sequences then need not give up.

    Raises:
        DataError: If there is nothing to score on.
    """
    if isinstance(data, ClassificationData):
        return _folds(data, count, seed, refit=refit)
    if isinstance(data, ForecastData):
        return _origins(data, count)
    assert isinstance(data, StepData)
    return [replace(data, test=data.validation)]


def alike_sequences(data: Data) -> int | None:
    """Return the number of sequences that are scored in all parts together; None for series, and for groups, which
    differ from each other."""
    if not isinstance(data, ClassificationData) or data.train.groups is not None:
        return None
    return len(data.train) + len(data.validation)


def _folds(data: ClassificationData, count: int, seed: int, *, refit: bool) -> list[Data]:
    pool = data.train.merged(data.validation)
    parts: list[Data] = []
    folds = stratified_folds(pool.y, count, seed)
    if pool.groups is not None:
        folds = grouped_folds(pool.y, pool.groups, count, seed)
    for held_out in folds:
        train_rows = np.setdiff1d(np.arange(len(pool)), held_out)
        validation_rows = np.empty(0, dtype=np.int64)
        if not refit:
            inner = _inner_validation(pool, train_rows, seed)
            train_rows, validation_rows = (train_rows[indices] for indices in inner)
        train = pool.subset(train_rows)
        if len(held_out) and len(np.unique(train.y)) > 1:
            part = replace(data, train=train, validation=pool.subset(validation_rows), test=pool.subset(held_out))
            parts.append(part)
    if not parts:
        raise DataError(
            f"{terms().file(data.name)} has too few sequences to compare settings on: {len(pool)}. Name a cell, such "
            f"as {terms().cell('lru')}, or add sequences."
        )
    return parts


def _inner_validation(pool: SequenceSplit, rows: Int64Array, seed: int) -> tuple[Int64Array, Int64Array]:
    y = pool.y[rows]
    if pool.groups is not None and len(np.unique(pool.groups[rows])) > 1:
        return grouped_validation(y, pool.groups[rows], _INNER_VALIDATION, seed)
    return stratified_validation(y, _INNER_VALIDATION, seed)


def _origins(data: ForecastData, count: int) -> list[Data]:
    parts: list[Data] = []
    for number in range(count):
        end = data.test_steps + number * data.validation_steps
        part = replace(
            data,
            series=tuple(
                replace(
                    series,
                    ds=series.ds[: len(series.ds) - end],
                    values=series.values[: len(series.values) - end],
                    dt=None if series.dt is None else series.dt[: len(series.dt) - end],
                )
                for series in data.series
                if len(series.values) > end + 2 * data.validation_steps
            ),
            test_steps=data.validation_steps,
        )
        # The first part stands even if it is short: without it there is nothing to compare on.
        if not part.series or not all(len(part.windows(split)) for split in ("train", "validation", "test")):
            break
        parts.append(part)
    if not parts:
        raise DataError(
            f"{terms().file(data.name)} is too short to compare settings on: training, validation and "
            f"{data.validation_steps} more steps to score on are needed before the test steps. Name a cell, such as "
            f"{terms().cell('lipschitz')}, or set smaller {terms().key('data.validation_steps')}."
        )
    return parts
