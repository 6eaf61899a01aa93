"""From labeled sequences, as readers return them, to the splits of a classification dataset.

Validation sequences and folds are drawn; series are split by time, see :func:`stablernn.data.windows.target_range`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array, SplitName, fingerprint
from stablernn.data.messages import format_names, pluralize
from stablernn.data.sequences import (
    NO_LABEL,
    Sequences,
    compute_dt,
    median_time_step,
    pad_sequences,
    reorder_features,
    sort_labels,
)
from stablernn.data.types import ClassificationData, Notes, SequenceSplit, add_notes
from stablernn.terms import terms

# Ways to add labels to a file, by its ending.
_LABEL_ADVICE = {
    ".npz": "Add an array 'y'.",
    ".ts": "Say '@classLabel true' and the classes above '@data', and end each line with ':' and its label.",
    ".arff": "Declare the classes in braces as the last attribute.",
    ".csv": "Add a column 'label', or name it by label_column.",
    ".parquet": "Add a column 'label', or name it by label_column.",
    ".xlsx": "Add a column 'label', or name it by label_column.",
}
_FOLDER_ADVICE = "Put the recordings into a subfolder for each class, or list them with their labels in manifest.csv."


def require_labels(sequences: Sequences) -> list[str]:
    """Return the labels.

    Raises:
        DataError: If the file has none, or a sequence has none.
    """
    if sequences.labels is None:
        # The ending may be followed by one of a compression.
        advice = next((advice for ending, advice in _LABEL_ADVICE.items() if ending in sequences.name), _FOLDER_ADVICE)
        raise errors.DataError(
            f"{terms().file(sequences.name)} has no labels; training and scoring need one for each sequence. {advice}"
        )
    _require_all(sequences, sequences.labels, "label")
    return sequences.labels


def _require_all(sequences: Sequences, names: Sequence[str], noun: str) -> None:
    """Refuse a sequence without a label or a group."""
    for index, name in enumerate(names):
        if name in NO_LABEL:
            location = sequences.locations[index] if sequences.locations else f"sequence {index} (from 0)"
            raise errors.DataError(
                f"{terms().file(sequences.name)}: {location} has no {noun}. Give it one, or leave the sequence out."
            )


def classification_data(
    name: str,
    train: Sequences,
    test: Sequences | None,
    *,
    validation_fraction: float,
    seed: int,
) -> ClassificationData:
    """Build a dataset from a training file and, if there is one, a test file; validation is drawn from training.

    Raises:
        DataError: If labels are missing, there is one class only, the test set has a class that training lacks, the
            two files differ in channels, a channel has no value at all in training, or there are too few samples.
    """
    sequence_labels = require_labels(train)
    labels = _check_classes(train.name, sequence_labels)
    y = _encode_labels(sequence_labels, labels)
    groups = None if train.groups is None else _encode_groups(train)
    fitted, held_out = _draw_validation(train.name, y, groups, validation_fraction, seed)
    # Of the training file alone, as all statistics of the data.
    step = None if train.times is None else median_time_step(train.times)
    pools: dict[SplitName, tuple[Sequences, Int64Array, Int64Array]] = {
        "train": (train, y, fitted),
        "validation": (train, y, held_out),
    }
    if test is not None:
        test = _match_channels(train, test)
        if step is not None and test.times is None:
            raise errors.DataError(
                f"{terms().file(train.name)} has the times of its steps, and {terms().file(test.name)} does not."
            )
        test_y = _encode_labels(_check_known_labels(test, labels, train.name), labels)
        pools["test"] = (test, test_y, np.arange(len(test_y)))
    splits: dict[SplitName, SequenceSplit] = {split: _select(*pool, step) for split, pool in pools.items()}
    draw: Notes = {"how": "stratified sample of the training file", "fraction": validation_fraction, "seed": seed}
    if groups is not None:
        splits["train"] = replace(splits["train"], groups=groups[fitted])
        splits["validation"] = replace(splits["validation"], groups=groups[held_out])
        names = np.array(train.groups)
        draw["how"] = "whole groups of the training file"
        draw["groups"] = {"train": np.unique(names[fitted]).tolist(), "validation": np.unique(names[held_out]).tolist()}
    in_both = set(train.groups or ()) & set(test.groups or () if test else ())
    return assemble(
        name,
        labels,
        train.features,
        splits,
        validation=draw,
        reader={
            **_time_notes(train, step, splits),
            **add_notes(train.notes, test.notes if test else {}),
            **({"groups_in_both": sorted(in_both)} if in_both else {}),
        },
        time_step=step,
    )


def _encode_groups(train: Sequences) -> Int64Array:
    """Return the number of the group of each sequence.

    Raises:
        DataError: If a sequence has no group, or all have the same.
    """
    assert train.groups is not None
    _require_all(train, train.groups, "group")
    names, numbers = np.unique(np.array(train.groups), return_inverse=True)
    if len(names) < 2:
        raise errors.DataError(
            f"{terms().grouped_file(train.name)} has one group only ('{names[0]}'), so that none can be held out. "
            f"Leave {terms().group_column} out, or add sequences of another group."
        )
    return numbers.astype(np.int64)


def _draw_validation(
    name: str, y: Int64Array, groups: Int64Array | None, fraction: float, seed: int
) -> tuple[Int64Array, Int64Array]:
    """Return the indices of training and of validation.

    Raises:
        DataError: If nothing can be held out.
    """
    if groups is None:
        fitted, held_out = stratified_validation(y, fraction, seed)
        reason = "has one sequence for each label, none can be held out for validation. Add sequences."
    else:
        fitted, held_out = grouped_validation(y, groups, fraction, seed)
        reason = (
            "has a label in one group only, whichever groups are held out for validation. Add sequences of it in "
            f"another group, or leave {terms().group_column} out."
        )
    if not len(held_out):
        raise errors.DataError(f"{terms().file(name)} {reason}")
    return fitted, held_out


def _time_notes(train: Sequences, step: float | None, splits: dict[SplitName, SequenceSplit]) -> Notes:
    if train.times is None:
        return {}
    # All steps of all sequences are at the same time as the one before.
    if step is None:
        return {"times_that_do_not_pass": True}
    dt = [split.dt for split in splits.values() if split.dt is not None]
    notes: Notes = {"irregular_steps": sum(int((values != 1).sum()) for values in dt)}
    if simultaneous := sum(int((values == 0).sum()) for values in dt):
        notes["steps_at_one_time"] = simultaneous
    return notes


def fixed_splits(name: str, pool: Sequences, members: dict[SplitName, Int64Array], *, how: str) -> ClassificationData:
    """Build a dataset from one file and the sequences of each split, as its publisher has split it."""
    sequence_labels = require_labels(pool)
    labels = _check_classes(pool.name, sequence_labels)
    y = _encode_labels(sequence_labels, labels)
    splits: dict[SplitName, SequenceSplit] = {split: _select(pool, y, indices) for split, indices in members.items()}
    return assemble(name, labels, pool.features, splits, validation={"how": how}, reader=pool.notes)


def assemble(
    name: str,
    labels: tuple[str, ...],
    features: tuple[str, ...],
    splits: dict[SplitName, SequenceSplit],
    *,
    validation: Notes,
    reader: Notes,
    time_step: float | None = None,
) -> ClassificationData:
    """Build the dataset from its splits, with its counts and its fingerprint."""
    _check_channels_have_values(name, features, splits["train"])
    missing: dict[SplitName, int] = {name: int(np.isnan(split.x).sum()) for name, split in splits.items()}
    notes = {**count_splits(splits, labels, missing), "validation": validation, **reader}
    if constant := _constant_features(features, splits["train"]):
        notes["constant_features"] = constant
    if empty := sum(map(_count_empty, splits.values())):
        notes["empty_sequences"] = empty
    if short := sum(int((split.lengths == 1).sum()) for split in splits.values()):
        notes["one_step_sequences"] = short
    content = fingerprint(["classify", labels, features, *_content(splits, time_step)])
    return ClassificationData(
        name=name,
        labels=labels,
        features=features,
        train=splits["train"],
        validation=splits["validation"],
        test=splits.get("test"),
        notes=notes,
        fingerprint=content,
        time_step=time_step,
    )


def count_splits(
    splits: Mapping[SplitName, SequenceSplit], labels: Sequence[str], missing: Mapping[SplitName, int]
) -> Notes:
    """Return the notes that all datasets of sequences have: their number, classes, missing values and lengths."""
    lengths = np.concatenate([split.lengths for split in splits.values()])
    return {
        "sequences": {name: len(split) for name, split in splits.items()},
        "classes": {
            name: dict(zip(labels, np.bincount(split.y, minlength=len(labels)).tolist(), strict=True))
            for name, split in splits.items()
        },
        "missing_values": dict(missing),
        "lengths": {
            "min": int(lengths.min()),
            "max": int(lengths.max()),
            "unequal": bool(lengths.min() < lengths.max()),
        },
    }


def _content(splits: dict[SplitName, SequenceSplit], time_step: float | None) -> list[str | int | npt.NDArray[Any]]:
    """Return sequences, labels and times in file order, so that the hash is independent of the draw of validation."""
    parts: list[str | int | npt.NDArray[Any]] = []
    for name, members in (("train", ("train", "validation")), ("test", ("test",))):
        pool = [row for split, content in splits.items() if split in members for row in _rows(content)]
        rows = sorted(pool, key=lambda row: row[0])
        parts += [name, len(rows), np.array([y for _, _, y in rows], dtype=np.int64), *(x for _, x, _ in rows)]
    times = [
        (int(i), dt[:length])
        for split in splits.values()
        if split.dt is not None
        for i, dt, length in zip(split.ids, split.dt, split.lengths, strict=True)
    ]
    parts += [dt for _, dt in sorted(times, key=lambda row: row[0])]
    for split in splits.values():
        if split.weights is not None:
            parts += ["weights", split.weights[np.argsort(np.array(split.ids, dtype=np.int64))]]
    return parts if time_step is None else [*parts, repr(time_step)]


def _rows(split: SequenceSplit) -> list[tuple[int, Float32Array, int]]:
    return [(int(i), x, int(y)) for i, x, y in zip(split.ids, split.sequences(), split.y, strict=True)]


def _select(pool: Sequences, y: Int64Array, indices: Int64Array, step: float | None = None) -> SequenceSplit:
    # All splits are padded to the longest sequence of the file, so that their shapes agree.
    longest = max(len(sequence) for sequence in pool.values)
    x, lengths = pad_sequences([pool.values[i] for i in indices], longest)
    times = pool.times
    dt = None if times is None or step is None else compute_dt([times[i] for i in indices], step, longest)
    weights = None if pool.weights is None else pool.weights[indices]
    return SequenceSplit(x, lengths, y[indices], tuple(str(i) for i in indices), dt, weights=weights)


def _encode_labels(sequence_labels: Sequence[str], labels: tuple[str, ...]) -> Int64Array:
    class_index = {label: index for index, label in enumerate(labels)}
    return np.array([class_index[label] for label in sequence_labels], dtype=np.int64)


def _check_classes(name: str, sequence_labels: Sequence[str]) -> tuple[str, ...]:
    labels = sort_labels(sequence_labels)
    if len(labels) < 2:
        raise errors.DataError(
            f"{terms().file(name)} has one class only ('{sequence_labels[0]}'); classification needs two or more. Add "
            "sequences of another class."
        )
    return labels


def _check_known_labels(test: Sequences, labels: tuple[str, ...], train_name: str) -> list[str]:
    test_labels = require_labels(test)
    for label in test_labels:
        if label not in labels:
            raise errors.DataError(
                f"{terms().file(test.name)} has the label '{label}', which {terms().file(train_name)} does not have "
                f"({format_names(labels)}); a model cannot learn a class that it never sees. Remove those sequences, "
                "or add sequences with the label to the training file."
            )
    return test_labels


def _match_channels(train: Sequences, test: Sequences) -> Sequences:
    matched = reorder_features(test, train.features)
    if matched is None:
        raise errors.DataError(
            f"{terms().file(test.name)} has {pluralize(len(test.features), 'feature')} "
            f"({format_names(test.features)}), {terms().file(train.name)} has {len(train.features)} "
            f"({format_names(train.features)}); both must have the same."
        )
    return matched


def _constant_features(features: tuple[str, ...], train: SequenceSplit) -> list[str]:
    """Return the features that never change in training: their scale is 0."""
    # Padding is 0, which may be a value that occurs nowhere else.
    is_real = (np.arange(train.x.shape[1]) < train.lengths[:, None])[:, :, None]
    values = np.where(is_real, train.x, np.float32(np.nan))
    constant = np.fmin.reduce(values, axis=(0, 1)) == np.fmax.reduce(values, axis=(0, 1))
    return [feature for feature, is_constant in zip(features, constant, strict=True) if is_constant]


def _count_empty(split: SequenceSplit) -> int:
    """Count the sequences in which all values are missing."""
    is_padding = np.arange(split.x.shape[1]) >= split.lengths[:, None]
    return int((np.isnan(split.x).all(axis=2) | is_padding).all(axis=1).sum())


def _check_channels_have_values(name: str, features: tuple[str, ...], train: SequenceSplit) -> None:
    # Padding is 0, not NaN; it must not hide a channel without values.
    real = np.arange(train.x.shape[1]) < train.lengths[:, None]
    for index, feature in enumerate(features):
        if np.isnan(train.x[:, :, index][real]).all():
            advice = (
                "Fill it in." if len(features) == 1 else f"Leave the feature out of {terms().source}, or fill it in."
            )
            raise errors.DataError(
                f"{terms().file(name)} has no value at all{terms().in_column('feature', feature)} the training "
                f"split. {advice}"
            )


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
