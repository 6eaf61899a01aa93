"""From splits of labelled sequences to a dataset with its counts: what the named sets for classification share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stablernn.data.arrays import SplitName
from stablernn.data.named.entry import Request
from stablernn.data.types import ClassificationData, SequenceSplit


def labelled(
    request: Request,
    labels: Sequence[str],
    features: Sequence[str],
    splits: Mapping[SplitName, SequenceSplit],
    *,
    drawn: Sequence[str | int] = (),
    notes: Mapping[str, Any] | None = None,
) -> ClassificationData:
    """The dataset.

    Args:
        request: What was asked for.
        labels: The classes.
        features: Names of the channels.
        splits: Training, validation and test.
        drawn: What the sequences depend on beside files and variant.
        notes: More to be kept with every score.
    """
    lengths = np.concatenate([split.lengths for split in splits.values()])
    counted = {
        "sequences": {name: len(split) for name, split in splits.items()},
        "classes": {
            name: dict(zip(labels, np.bincount(split.y, minlength=len(labels)).tolist(), strict=True))
            for name, split in splits.items()
        },
        "missing_values": dict.fromkeys(splits, 0),
        "lengths": {
            "min": int(lengths.min()),
            "max": int(lengths.max()),
            "unequal": bool(lengths.min() < lengths.max()),
        },
        "validation": {"how": request.info.splits},
    }
    return ClassificationData(
        name=request.info.key,
        labels=tuple(labels),
        features=tuple(features),
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        notes={**counted, **request.notes(), **(notes or {})},
        fingerprint=request.fingerprint(*drawn),
    )
