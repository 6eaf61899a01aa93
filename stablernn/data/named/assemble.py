"""Assembly of a classification dataset, with its counts, from splits of labeled sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stablernn.data.arrays import SplitName
from stablernn.data.named.entry import Request
from stablernn.data.types import ClassificationData, SequenceSplit


def classification_data(
    request: Request,
    labels: Sequence[str],
    features: Sequence[str],
    splits: Mapping[SplitName, SequenceSplit],
    *,
    fingerprint_parts: Sequence[str | int] = (),
    notes: Mapping[str, Any] | None = None,
) -> ClassificationData:
    """Build the dataset.

    Args:
        request: The request.
        labels: The classes.
        features: Names of the channels.
        splits: Training, validation and test split.
        fingerprint_parts: Values that the sequences depend on in addition to files and variant.
        notes: Additional notes, which are stored with every score.
    """
    lengths = np.concatenate([split.lengths for split in splits.values()])
    counts = {
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
        notes={**counts, **request.notes(), **(notes or {})},
        fingerprint=request.fingerprint(*fingerprint_parts),
    )
