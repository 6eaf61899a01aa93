"""Inspection of data with a target at every step: lengths, targets, share of the most frequent target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np

from stablernn.data.arrays import SPLITS, Samples
from stablernn.data.check.channel_statistics import (
    build_columns,
    compute_statistics,
    content_hash,
    warn_about_statistics,
)
from stablernn.data.check.report import Column, Findings, Role
from stablernn.data.messages import pluralize
from stablernn.data.step_data import NO_TARGET, StepData, StepSplit
from stablernn.data.types import Notes

#: So many sequences of each split are inspected; generated splits have no end.
_MAX_SEQUENCES = 200


def inspect_steps(data: StepData, findings: Findings) -> tuple[tuple[Column, ...], Notes]:
    """Return the columns and the content; only the first two hundred sequences of each split are inspected."""
    inspected: dict[str, list[Samples]] = {name: _first_sequences(data.split(name)) for name in SPLITS}
    columns: tuple[Column, ...] = (Column("input", "channel", "words"),)
    if not data.tokens:
        values = {name: [_channel_values(sample) for sample in samples] for name, samples in inspected.items()}
        statistics = compute_statistics([x for sequences in values.values() for x in sequences], values["train"])
        if data.output == "bernoulli":
            # A binary input that is rarely 1, such as a key of a piano, is no outlier.
            statistics = replace(statistics, outliers=np.zeros_like(statistics.outliers))
        roles: list[Role] = ["channel" for _ in data.features]
        columns = build_columns(statistics, data.features, roles)
        if data.output != "bernoulli":
            warn_about_statistics(statistics, data.features, findings)
    lengths = {name: np.asarray(data.split(name).lengths) for name in SPLITS}
    content: Notes = {
        "sequences": {name: len(data.split(name)) for name in SPLITS},
        "looked_at": {name: len(samples) for name, samples in inspected.items()},
        "steps": {name: int(counts.sum()) for name, counts in lengths.items()},
        "lengths": {
            "min": min(int(counts.min()) for counts in lengths.values()),
            "median": float(np.median(np.concatenate(list(lengths.values())))),
            "max": max(int(counts.max()) for counts in lengths.values()),
        },
        "inputs": {"tokens": data.tokens, "size": len(data.features)},
        "outputs": {"kind": data.output, "size": len(data.outputs), "scored_by": data.headline},
        "continuous": data.continuous,
        "answer_steps": data.answer_steps,
    }
    if data.output == "categorical":
        content["commonest_target"] = _most_frequent_target(data, inspected["test"])
    if not data.continuous:
        content["duplicates"] = _find_duplicates(inspected, findings)
    return (*columns, Column("target", "label", "numbers" if data.output == "real" else "words")), content


def _first_sequences(split: StepSplit) -> list[Samples]:
    return [split.gather([index]) for index in range(min(len(split), _MAX_SEQUENCES))]


def _channel_values(sample: Samples) -> np.ndarray:
    return sample.x[0, : int(sample.lengths[0])].astype(np.float32)


def _most_frequent_target(data: StepData, samples: list[Samples]) -> Notes | None:
    """Return the most frequent class of the test steps and its share."""
    targets = np.concatenate([sample.y[0].ravel() for sample in samples])
    targets = targets[targets != NO_TARGET].astype(np.int64)
    if not len(targets):
        return None
    counts = np.bincount(targets, minlength=len(data.outputs))
    return {"name": data.outputs[int(counts.argmax())], "share": float(counts.max() / counts.sum())}


def _find_duplicates(inspected: Mapping[str, list[Samples]], findings: Findings) -> Notes:
    """Count the sequences that two splits share."""
    hashes = {name: {content_hash(sample.x[0]) for sample in samples} for name, samples in inspected.items()}
    across = {}
    for first, second in combinations(hashes, 2):
        shared = len(hashes[first] & hashes[second])
        across[f"{first}, {second}"] = shared
        if shared:
            findings.warn(
                "leakage",
                f"{pluralize(shared, 'sequence')} of {second} {'is' if shared == 1 else 'are'} in {first} as well, to "
                "the last digit.",
            )
    return {"across": across}
