"""Inspection of labeled sequences: classes, lengths, duplicates within and across splits, features that leak labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from stablernn.data.arrays import Float32Array
from stablernn.data.check.channel_statistics import (
    build_columns,
    compute_statistics,
    content_hash,
    warn_about_statistics,
)
from stablernn.data.check.report import Column, Findings, Role
from stablernn.data.messages import format_names, pluralize, quote
from stablernn.data.sequences import NO_LABEL, Sequences, sort_labels
from stablernn.data.types import ClassificationData, Notes

#: Classes are unbalanced if the largest has at least this many times the training sequences of the smallest.
_IMBALANCE_RATIO = 5
#: A class with fewer training sequences than this gets a warning.
_MIN_EXAMPLES = 5
#: With fewer sequences than this, a feature may determine the label by chance.
_MIN_SEQUENCES_FOR_LEAKAGE = 10


class SplitSequences(NamedTuple):
    """Sequences of one split: arrays (length, features), and a label for each; None if the file has no labels."""

    values: Sequence[Float32Array]
    labels: list[str] | None


def labeled_splits(data: ClassificationData) -> dict[str, SplitSequences]:
    """Return the splits of a dataset."""
    splits = {"train": data.train, "validation": data.validation, "test": data.test}
    return {
        name: SplitSequences(split.sequences(), [data.labels[index] for index in split.y])
        for name, split in splits.items()
        if split is not None
    }


def inspect_sequences(
    splits: Mapping[str, SplitSequences], features: tuple[str, ...], findings: Findings
) -> tuple[tuple[Column, ...], Notes]:
    """Return the columns and the content of labeled sequences, and warn about what looks unintended.

    Args:
        splits: The sequences of each split; ``train`` is required.
        features: Names of the channels.
        findings: Gets warnings.
    """
    sequences = [sequence for split in splits.values() for sequence in split.values]
    statistics = compute_statistics(sequences, splits["train"].values)
    roles: list[Role] = ["channel" for _ in features]
    columns = build_columns(statistics, features, roles)
    if any(split.labels is not None for split in splits.values()):
        columns = (*columns, Column("label", "label", "words", missing=_unlabeled_share(splits)))
    lengths = np.array([len(sequence) for sequence in sequences])
    content: Notes = {
        "sequences": {name: len(split.values) for name, split in splits.items()},
        "lengths": {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())},
        "classes": _count_classes(splits),
        "unlabelled": {name: sum(label in NO_LABEL for label in split.labels or ()) for name, split in splits.items()},
        "missing_values": int(statistics.missing.sum()),
        "constant_sequences": sum(map(_is_constant, sequences)),
        "empty_sequences": sum(bool(np.isnan(sequence).all()) for sequence in sequences),
        "duplicates": _find_duplicates(splits, findings),
    }
    warn_about_statistics(statistics, features, findings)
    _warn_about_empty(content, len(sequences), findings)
    _warn_about_classes(content["classes"], splits, findings)
    _warn_about_label_leakage(splits["train"], features, findings)
    return columns, content


def check_test_labels(train: Sequences, test: Sequences, findings: Findings) -> None:
    """Report all labels of the test file that training lacks, and all sequences without a label."""
    for sequences in (train, test):
        num_unlabeled = sum(label in NO_LABEL for label in sequences.labels or ())
        if num_unlabeled > 1:
            findings.problem("no_label", f"'{sequences.name}': {num_unlabeled} sequences have no label.")
    train_labels = set(train.labels or ())
    unseen = Counter(label for label in test.labels or () if label not in train_labels)
    if len(unseen) > 1 or sum(unseen.values()) > 1:
        labels = format_names([f"{quote(label)} ({count})" for label, count in sorted(unseen.items())])
        findings.problem(
            "unseen_label",
            f"'{test.name}' has {pluralize(sum(unseen.values()), 'sequence')} with labels that '{train.name}' does "
            f"not have: {labels}.",
        )


def _unlabeled_share(splits: Mapping[str, SplitSequences]) -> float:
    labels = [label for split in splits.values() for label in split.labels or [""] * len(split.values)]
    return sum(label in NO_LABEL for label in labels) / len(labels)


def _count_classes(splits: Mapping[str, SplitSequences]) -> dict[str, dict[str, int]]:
    """Return the number of sequences of each class in each split."""
    counts = {
        name: Counter(label for label in split.labels or () if label not in NO_LABEL) for name, split in splits.items()
    }
    labels = sort_labels([label for count in counts.values() for label in count])
    return {label: {name: count[label] for name, count in counts.items()} for label in labels}


def _is_constant(sequence: Float32Array) -> bool:
    return len(sequence) > 1 and bool((sequence == sequence[0]).all())


def _find_duplicates(splits: Mapping[str, SplitSequences], findings: Findings) -> Notes:
    """Count sequences that occur twice: within a split, in two splits, and with different labels."""
    hashes = {name: [content_hash(sequence) for sequence in split.values] for name, split in splits.items()}
    within = {name: len(digests) - len(set(digests)) for name, digests in hashes.items()}
    across = {}
    for first, second in combinations(hashes, 2):
        first_digests = set(hashes[first])
        across[f"{first}, {second}"] = sum(digest in first_digests for digest in hashes[second])
    labels_by_digest: dict[bytes, set[str]] = {}
    for name, split in splits.items():
        for digest, label in zip(hashes[name], split.labels or (), strict=bool(split.labels)):
            labels_by_digest.setdefault(digest, set()).add(label)
    contradictions = sum(len(labels) > 1 for labels in labels_by_digest.values())
    if any(within.values()):
        counts = format_names([f"{count} in {name}" for name, count in within.items() if count])
        findings.warn("duplicates", f"Sequences that repeat another one of their split: {counts}.")
    for pair, count in across.items():
        first, second = pair.split(", ")
        if count:
            verb = "is" if count == 1 else "are"
            findings.warn(
                "leakage",
                f"{pluralize(count, 'sequence')} of {second} {verb} in {first} as well, to the last digit; "
                f"the score on {second} will be too good. Take them out of one of the two.",
            )
    if contradictions:
        findings.warn(
            "contradiction",
            f"{pluralize(contradictions, 'sequence')} {'comes' if contradictions == 1 else 'come'} with more than one "
            "label, which no model can get right.",
        )
    return {"within": within, "across": across, "with_other_labels": contradictions}


def _warn_about_empty(content: Notes, count: int, findings: Findings) -> None:
    if content["constant_sequences"]:
        findings.warn(
            "constant_sequence",
            f"{content['constant_sequences']} of {count} sequences never change (scale 0 on their own).",
        )
    if content["empty_sequences"]:
        findings.warn("empty_sequence", f"{content['empty_sequences']} of {count} sequences have no value at all.")


def _warn_about_classes(
    classes: dict[str, dict[str, int]], splits: Mapping[str, SplitSequences], findings: Findings
) -> None:
    train_counts = {label: counts["train"] for label, counts in classes.items()}
    counts_above_zero = [count for count in train_counts.values() if count]
    if len(counts_above_zero) > 1 and max(counts_above_zero) >= _IMBALANCE_RATIO * min(counts_above_zero):
        largest = max(train_counts, key=lambda label: train_counts[label])
        smallest = min(train_counts, key=lambda label: train_counts[label])
        findings.warn(
            "unbalanced",
            f"Class {quote(largest)} has {train_counts[largest]} training sequences, {quote(smallest)} has "
            f"{train_counts[smallest]}: saying {quote(largest)} every time is right in "
            f"{max(counts_above_zero) / sum(counts_above_zero):.1%}. Look at the macro-F1 beside the accuracy.",
        )
    few = [f"{quote(label)} ({count})" for label, count in train_counts.items() if 0 < count < _MIN_EXAMPLES]
    if few:
        findings.warn("few_examples", f"Fewer than {_MIN_EXAMPLES} training sequences of {format_names(few)}.")
    for name in ("validation", "test"):
        absent = [quote(label) for label, counts in classes.items() if name in splits and not counts[name]]
        if absent and splits[name].labels is not None:
            findings.warn("class_not_scored", f"The {name} split has no sequence of {format_names(absent)}.")


def _warn_about_label_leakage(train: SplitSequences, features: tuple[str, ...], findings: Findings) -> None:
    """Warn about features whose first or last value encodes the label: exactly one distinct value for each class."""
    if train.labels is None or len(train.values) < _MIN_SEQUENCES_FOR_LEAKAGE:
        return
    num_classes = len(set(train.labels) - set(NO_LABEL))
    for index, feature in enumerate(features):
        for step in (0, -1):
            pairs = {(float(x[step, index]), label) for x, label in zip(train.values, train.labels, strict=True)}
            if 1 < num_classes == len(pairs) == len({value for value, _ in pairs}):
                findings.warn(
                    "feature_tells_label",
                    f"The {'last' if step else 'first'} value of '{feature}' is a number of its own for each class: it "
                    "seems to be the label. Leave the feature out if it is not known when the model is asked.",
                )
                break
