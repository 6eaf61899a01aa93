"""What sequences with a label each show: classes, lengths, duplicates within and across splits, features that tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np

from stablernn.data.arrays import Float32Array
from stablernn.data.check._report import Column, Findings, Role
from stablernn.data.check._values import channel_figures, content_hash, figures_as_columns, warn_of_figures
from stablernn.data.messages import format_names, pluralize, quote
from stablernn.data.sequences import NO_LABEL, Sequences, sort_labels
from stablernn.data.types import ClassificationData, Notes

#: The largest class this many times as large as the smallest is worth a word.
_UNBALANCED = 5
#: Fewer training sequences of a class than this are few.
_FEW = 5
#: Below this number of sequences any feature may seem to tell the label.
_LEAST_TO_TELL = 10


class Part(NamedTuple):
    """Sequences of one split: arrays (length, features), and a word each where the file has labels."""

    values: list[Float32Array]
    labels: list[str] | None


def parts_of(data: ClassificationData) -> dict[str, Part]:
    """The splits of a dataset."""
    splits = {"train": data.train, "validation": data.validation, "test": data.test}
    return {
        word: Part(split.sequences(), [data.labels[index] for index in split.y])
        for word, split in splits.items()
        if split is not None
    }


def look_at_sequences(
    parts: Mapping[str, Part], features: tuple[str, ...], findings: Findings
) -> tuple[tuple[Column, ...], Notes]:
    """Columns and content of labelled sequences.

    Args:
        parts: The splits, ``train`` among them.
        features: Names of the channels.
        findings: Where warnings go.
    """
    everything = [sequence for part in parts.values() for sequence in part.values]
    figures = channel_figures(everything, parts["train"].values)
    roles: list[Role] = ["channel" for _ in features]
    columns = figures_as_columns(figures, features, roles)
    if any(part.labels is not None for part in parts.values()):
        columns = (*columns, Column("label", "label", "words", missing=_unlabelled(parts)))
    lengths = np.array([len(sequence) for sequence in everything])
    content: Notes = {
        "sequences": {word: len(part.values) for word, part in parts.items()},
        "lengths": {"min": int(lengths.min()), "median": float(np.median(lengths)), "max": int(lengths.max())},
        "classes": _classes(parts),
        "unlabelled": {word: sum(label in NO_LABEL for label in part.labels or ()) for word, part in parts.items()},
        "missing_values": int(figures.missing.sum()),
        "constant_sequences": sum(map(_is_flat, everything)),
        "empty_sequences": sum(bool(np.isnan(sequence).all()) for sequence in everything),
        "duplicates": _duplicates(parts, findings),
    }
    warn_of_figures(figures, features, findings)
    _warn_of_sequences(content, len(everything), findings)
    _warn_of_classes(content["classes"], parts, findings)
    _warn_of_telling_features(parts["train"], features, findings)
    return columns, content


def unseen_labels(train: Sequences, test: Sequences, findings: Findings) -> None:
    """Every label of the test file that training lacks, and all sequences without one."""
    for sequences in (train, test):
        none = sum(label in NO_LABEL for label in sequences.labels or ())
        if none > 1:
            findings.problem("no_label", f"'{sequences.name}': {none} sequences have no label.")
    known = set(train.labels or ())
    strange = Counter(label for label in test.labels or () if label not in known)
    if len(strange) > 1 or sum(strange.values()) > 1:
        words = format_names([f"{quote(label)} ({count})" for label, count in sorted(strange.items())])
        findings.problem(
            "unseen_label",
            f"'{test.name}' has {pluralize(sum(strange.values()), 'sequence')} with labels that '{train.name}' does "
            "not "
            f"have: {words}.",
        )


def _unlabelled(parts: Mapping[str, Part]) -> float:
    labels = [label for part in parts.values() for label in part.labels or [""] * len(part.values)]
    return sum(label in NO_LABEL for label in labels) / len(labels)


def _classes(parts: Mapping[str, Part]) -> dict[str, dict[str, int]]:
    """Sequences of each class in each split."""
    counts = {
        word: Counter(label for label in part.labels or () if label not in NO_LABEL) for word, part in parts.items()
    }
    labels = sort_labels([label for count in counts.values() for label in count])
    return {label: {word: count[label] for word, count in counts.items()} for label in labels}


def _is_flat(sequence: Float32Array) -> bool:
    return len(sequence) > 1 and bool((sequence == sequence[0]).all())


def _duplicates(parts: Mapping[str, Part], findings: Findings) -> Notes:
    """Sequences that come twice: within a split, across two of them, and with different labels."""
    hashes = {word: [content_hash(sequence) for sequence in part.values] for word, part in parts.items()}
    within = {word: len(found) - len(set(found)) for word, found in hashes.items()}
    across = {}
    for first, second in combinations(hashes, 2):
        known = set(hashes[first])
        across[f"{first}, {second}"] = sum(found in known for found in hashes[second])
    said: dict[bytes, set[str]] = {}
    for word, part in parts.items():
        for found, label in zip(hashes[word], part.labels or (), strict=bool(part.labels)):
            said.setdefault(found, set()).add(label)
    contradictions = sum(len(labels) > 1 for labels in said.values())
    if any(within.values()):
        words = format_names([f"{count} in {word}" for word, count in within.items() if count])
        findings.warn("duplicates", f"Sequences that repeat another one of their split: {words}.")
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


def _warn_of_sequences(content: Notes, count: int, findings: Findings) -> None:
    if content["constant_sequences"]:
        findings.warn(
            "constant_sequence",
            f"{content['constant_sequences']} of {count} sequences never change (scale 0 on their own).",
        )
    if content["empty_sequences"]:
        findings.warn("empty_sequence", f"{content['empty_sequences']} of {count} sequences have no value at all.")


def _warn_of_classes(classes: dict[str, dict[str, int]], parts: Mapping[str, Part], findings: Findings) -> None:
    train = {label: counts["train"] for label, counts in classes.items()}
    present = [count for count in train.values() if count]
    if len(present) > 1 and max(present) >= _UNBALANCED * min(present):
        largest, smallest = max(train, key=lambda label: train[label]), min(train, key=lambda label: train[label])
        findings.warn(
            "unbalanced",
            f"Class {quote(largest)} has {train[largest]} training sequences, {quote(smallest)} has "
            f"{train[smallest]}: saying {quote(largest)} every time is right in "
            f"{max(present) / sum(present):.1%}. Look at the macro-F1 beside the accuracy.",
        )
    few = [f"{quote(label)} ({count})" for label, count in train.items() if 0 < count < _FEW]
    if few:
        findings.warn("few_examples", f"Fewer than {_FEW} training sequences of {format_names(few)}.")
    for split in ("validation", "test"):
        absent = [quote(label) for label, counts in classes.items() if split in parts and not counts[split]]
        if absent and parts[split].labels is not None:
            findings.warn("class_not_scored", f"The {split} split has no sequence of {format_names(absent)}.")


def _warn_of_telling_features(train: Part, features: tuple[str, ...], findings: Findings) -> None:
    """Features whose first or last value is the label in other words: one value for each class, and no other."""
    if train.labels is None or len(train.values) < _LEAST_TO_TELL:
        return
    classes = len(set(train.labels) - set(NO_LABEL))
    for index, feature in enumerate(features):
        for step in (0, -1):
            pairs = {(float(x[step, index]), label) for x, label in zip(train.values, train.labels, strict=True)}
            if 1 < classes == len(pairs) == len({value for value, _ in pairs}):
                findings.warn(
                    "feature_tells_label",
                    f"The {'last' if step else 'first'} value of '{feature}' is a number of its own for each class: it "
                    "seems to be the label. Leave the feature out if it is not known when the model is asked.",
                )
                break
