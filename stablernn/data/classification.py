"""From what a reader found, sequences with a word each, to the splits of a classification dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stablernn import errors
from stablernn.data.arrays import Float32Array, Int64Array, SplitName
from stablernn.data.fingerprint import fingerprint
from stablernn.data.messages import counted, listing
from stablernn.data.sequences import NO_LABEL, Sequences, in_order, pad, regular_step, sorted_labels, time_steps
from stablernn.data.splits import stratified_validation
from stablernn.data.types import ClassificationData, Notes, SequenceSplit, add_notes

# How a file gets labels, by its ending.
_ADD_LABELS = {
    ".npz": "Add an array 'y'.",
    ".ts": "Say '@classLabel true' and the classes above '@data', and end each line with ':' and its label.",
    ".arff": "Declare the classes in braces as the last attribute.",
    ".csv": "Add a column 'label', or name it by label_column.",
    ".parquet": "Add a column 'label', or name it by label_column.",
}


def require_labels(sequences: Sequences) -> list[str]:
    """The labels.

    Raises:
        DataError: If the file has none, or a sequence has none.
    """
    if sequences.labels is None:
        advice = next((words for kind, words in _ADD_LABELS.items() if kind in sequences.name), "Add them.")
        raise errors.DataError(
            f"'{sequences.name}' has no labels; training and scoring need one for each sequence. {advice}"
        )
    for index, label in enumerate(sequences.labels):
        if label in NO_LABEL:
            where = sequences.places[index] if sequences.places else f"sequence {index} (from 0)"
            raise errors.DataError(f"'{sequences.name}': {where} has no label. Give it one, or leave the sequence out.")
    return sequences.labels


def classification_data(
    name: str,
    train: Sequences,
    test: Sequences | None,
    *,
    validation_fraction: float,
    seed: int,
) -> ClassificationData:
    """A dataset from a training file and, if there is one, a test file; validation is drawn from training.

    Raises:
        DataError: If labels are missing, there is one class only, the test set has a class that training lacks, the
            two files differ in channels, a channel has no value at all in training, or there are too few samples.
    """
    words = require_labels(train)
    labels = _check_classes(train.name, words)
    y = _encode(words, labels)
    kept, held_out = stratified_validation(y, validation_fraction, seed)
    if not len(held_out):
        raise errors.DataError(
            f"'{train.name}' has one sequence for each label, none can be held out for validation. Add sequences."
        )
    step = None if train.times is None else regular_step(train.times)
    pools: dict[SplitName, tuple[Sequences, Int64Array, Int64Array]] = {
        "train": (train, y, kept),
        "validation": (train, y, held_out),
    }
    if test is not None:
        test = _same_channels(train, test)
        if step is not None and test.times is None:
            raise errors.DataError(f"'{train.name}' says when its steps were, and '{test.name}' does not.")
        test_y = _encode(_check_known(test, labels, train.name), labels)
        pools["test"] = (test, test_y, np.arange(len(test_y)))
    splits: dict[SplitName, SequenceSplit] = {split: _take(*pool, step) for split, pool in pools.items()}
    times: Notes = {}
    if train.times is not None:
        off = sum(int((split.dt != 1).sum()) for split in splits.values() if split.dt is not None)
        times = {"irregular_steps": off} if step is not None else {"times_that_do_not_pass": True}
        if together := sum(int((split.dt == 0).sum()) for split in splits.values() if split.dt is not None):
            times["steps_at_one_time"] = together
    how: Notes = {"how": "stratified sample of the training file", "fraction": validation_fraction, "seed": seed}
    return assemble(
        name,
        labels,
        train.features,
        splits,
        validation=how,
        reader={**times, **add_notes(train.notes, test.notes if test else {})},
        time_step=step,
    )


def fixed_splits(name: str, pool: Sequences, members: dict[SplitName, Int64Array], *, how: str) -> ClassificationData:
    """A dataset from one file and the rule of its publisher: which of its sequences belong to which split."""
    words = require_labels(pool)
    labels = _check_classes(pool.name, words)
    y = _encode(words, labels)
    splits: dict[SplitName, SequenceSplit] = {split: _take(pool, y, indices) for split, indices in members.items()}
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
    """The dataset with its counts and its fingerprint."""
    _check_channels_have_values(name, features, splits["train"])
    lengths = np.concatenate([split.lengths for split in splits.values()])
    notes: Notes = {
        "sequences": {split: len(part) for split, part in splits.items()},
        "classes": {
            split: {label: int((part.y == index).sum()) for index, label in enumerate(labels)}
            for split, part in splits.items()
        },
        "missing_values": {split: int(np.isnan(part.x).sum()) for split, part in splits.items()},
        "lengths": {
            "min": int(lengths.min()),
            "max": int(lengths.max()),
            "unequal": bool(lengths.min() < lengths.max()),
        },
        "validation": validation,
        **reader,
    }
    if flat := _constant_features(features, splits["train"]):
        notes["constant_features"] = flat
    if empty := sum(map(_without_values, splits.values())):
        notes["empty_sequences"] = empty
    if (lengths == 1).any():
        notes["one_step_sequences"] = int((lengths == 1).sum())
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


def _content(splits: dict[SplitName, SequenceSplit], time_step: float | None) -> list[str | int | npt.NDArray[Any]]:
    """Every sequence, label and time in file order, so that the hash does not depend on how validation was drawn."""
    pool = [(int(i), x, y) for s in ("train", "validation") for i, x, y in _rows(splits[s])]
    test = [(int(i), x, y) for i, x, y in _rows(splits["test"])] if "test" in splits else []
    parts: list[str | int | npt.NDArray[Any]] = []
    for word, rows in (("train", pool), ("test", test)):
        rows = sorted(rows, key=lambda row: row[0])
        parts += [word, len(rows), np.array([y for _, _, y in rows], dtype=np.int64), *(x for _, x, _ in rows)]
    times = [(int(i), dt) for split in splits.values() if split.dt is not None for i, dt in _dated(split)]
    parts += [dt for _, dt in sorted(times, key=lambda row: row[0])]
    return parts if time_step is None else [*parts, repr(time_step)]


def _rows(split: SequenceSplit) -> list[tuple[str, Float32Array, int]]:
    return [(i, x, int(y)) for i, x, y in zip(split.ids, split.sequences(), split.y, strict=True)]


def _dated(split: SequenceSplit) -> list[tuple[str, Float32Array]]:
    assert split.dt is not None
    return [(i, dt[:length]) for i, dt, length in zip(split.ids, split.dt, split.lengths, strict=True)]


def _take(pool: Sequences, y: Int64Array, indices: Int64Array, step: float | None = None) -> SequenceSplit:
    longest = max(len(sequence) for sequence in pool.values)
    x, lengths = pad([pool.values[i] for i in indices], longest)
    times = pool.times
    dt = None if times is None or step is None else time_steps([times[i] for i in indices], step, longest)
    return SequenceSplit(x, lengths, y[indices], tuple(str(i) for i in indices), dt)


def _encode(words: Sequence[str], labels: tuple[str, ...]) -> Int64Array:
    position = {label: index for index, label in enumerate(labels)}
    return np.array([position[word] for word in words], dtype=np.int64)


def _check_classes(name: str, words: Sequence[str]) -> tuple[str, ...]:
    labels = sorted_labels(words)
    if len(labels) < 2:
        raise errors.DataError(
            f"'{name}' has one class only ('{words[0]}'); classification needs two or more. Add sequences of another "
            "class."
        )
    return labels


def _check_known(test: Sequences, labels: tuple[str, ...], train_name: str) -> list[str]:
    words = require_labels(test)
    for word in words:
        if word not in labels:
            raise errors.DataError(
                f"'{test.name}' has the label '{word}', which '{train_name}' does not have "
                f"({listing(labels)}); a model cannot learn a class that it never sees. Remove those sequences, or add "
                "sequences with the label to the training file."
            )
    return words


def _same_channels(train: Sequences, test: Sequences) -> Sequences:
    found = in_order(test, train.features)
    if found is None:
        raise errors.DataError(
            f"'{test.name}' has {counted(len(test.features), 'feature')} ({listing(test.features)}), "
            f"'{train.name}' has {len(train.features)} ({listing(train.features)}); both must have the same."
        )
    return found


def _constant_features(features: tuple[str, ...], train: SequenceSplit) -> list[str]:
    """Features that never change in training: their scale is 0."""
    # Padding is 0, which may be a value that occurs nowhere else.
    shown = np.where((np.arange(train.x.shape[1]) < train.lengths[:, None])[:, :, None], train.x, np.float32(np.nan))
    flat = np.fmin.reduce(shown, axis=(0, 1)) == np.fmax.reduce(shown, axis=(0, 1))
    return [feature for feature, is_flat in zip(features, flat, strict=True) if is_flat]


def _without_values(split: SequenceSplit) -> int:
    """Sequences in which all values are missing."""
    behind = np.arange(split.x.shape[1]) >= split.lengths[:, None]
    return int((np.isnan(split.x).all(axis=2) | behind).all(axis=1).sum())


def _check_channels_have_values(name: str, features: tuple[str, ...], train: SequenceSplit) -> None:
    # Padding is 0, not NaN; it must not hide a channel without values.
    real = np.arange(train.x.shape[1]) < train.lengths[:, None]
    for index, feature in enumerate(features):
        if np.isnan(train.x[:, :, index][real]).all():
            raise errors.DataError(
                f"'{name}' has no value at all in feature '{feature}' of the training split. Leave the feature out by "
                "'channels', or fill it in."
            )
