"""What sequences with a target at every step show: lengths, targets, how far the commonest answer carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np

from stablernn.data.arrays import SPLITS, Samples
from stablernn.data.check._report import Column, Findings, Role
from stablernn.data.check._values import channel_figures, content_hash, figures_as_columns, warn_of_figures
from stablernn.data.messages import pluralize
from stablernn.data.step_data import NO_TARGET, StepData, StepSplit
from stablernn.data.types import Notes

#: Sequences of a split that are looked at one by one; they may be generated, and then there is no end of them.
_MOST_SEQUENCES = 200


def look_at_steps(data: StepData, findings: Findings) -> tuple[tuple[Column, ...], Notes]:
    """Columns and content; of many sequences the first two hundred of each split are looked at."""
    looked: dict[str, list[Samples]] = {word: _first(data.split(word)) for word in SPLITS}
    columns: tuple[Column, ...] = (Column("input", "channel", "words"),)
    if not data.tokens:
        values = {word: [_real(sample) for sample in samples] for word, samples in looked.items()}
        figures = channel_figures([x for one in values.values() for x in one], values["train"])
        if data.output == "bernoulli":
            # Of 88 keys some are never played, and the rarely played ones are far from the mean: no news.
            figures = replace(figures, outliers=np.zeros_like(figures.outliers))
        roles: list[Role] = ["channel" for _ in data.features]
        columns = figures_as_columns(figures, data.features, roles)
        if data.output != "bernoulli":
            warn_of_figures(figures, data.features, findings)
    lengths = {word: np.asarray(data.split(word).lengths) for word in SPLITS}
    content: Notes = {
        "sequences": {word: len(data.split(word)) for word in SPLITS},
        "looked_at": {word: len(samples) for word, samples in looked.items()},
        "steps": {word: int(one.sum()) for word, one in lengths.items()},
        "lengths": {
            "min": min(int(one.min()) for one in lengths.values()),
            "median": float(np.median(np.concatenate(list(lengths.values())))),
            "max": max(int(one.max()) for one in lengths.values()),
        },
        "inputs": {"tokens": data.tokens, "size": len(data.features)},
        "outputs": {"kind": data.output, "size": len(data.outputs), "scored_by": data.headline},
        "continuous": data.continuous,
        "answer_steps": data.answer_steps,
    }
    if data.output == "categorical":
        content["commonest_target"] = _commonest(data, looked["test"])
    if not data.continuous:
        content["duplicates"] = _across(looked, findings)
    return (*columns, Column("target", "label", "numbers" if data.output == "real" else "words")), content


def _first(split: StepSplit) -> list[Samples]:
    return [split.gather([index]) for index in range(min(len(split), _MOST_SEQUENCES))]


def _real(sample: Samples) -> np.ndarray:
    return sample.x[0, : int(sample.lengths[0])].astype(np.float32)


def _commonest(data: StepData, samples: list[Samples]) -> Notes | None:
    """The class that most steps of the test have, and its share."""
    scored = np.concatenate([sample.y[0].ravel() for sample in samples])
    scored = scored[scored != NO_TARGET].astype(np.int64)
    if not len(scored):
        return None
    counts = np.bincount(scored, minlength=len(data.outputs))
    return {"name": data.outputs[int(counts.argmax())], "share": float(counts.max() / counts.sum())}


def _across(looked: Mapping[str, list[Samples]], findings: Findings) -> Notes:
    hashes = {word: {content_hash(sample.x[0]) for sample in samples} for word, samples in looked.items()}
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
