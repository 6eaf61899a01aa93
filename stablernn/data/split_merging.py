"""Training data changed before training: validation sequences joined to it, classes weighted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from stablernn.data.named.lazy import LazySplit
from stablernn.data.step_data import StepData
from stablernn.data.types import ClassificationData, ForecastData, SequenceSplit
from stablernn.errors import ConfigError

Data = ClassificationData | ForecastData | StepData


def without_validation(data: Data) -> Data:
    """The same data with its validation split as part of the training split, and nothing left to validate on.

    Raises:
        ConfigError: If it is for the task 'predict-next'.
    """
    if isinstance(data, StepData):
        raise ConfigError(f"training.refit is not used by the task 'predict-next', and '{data.name}' is for it.")
    notes = {**data.notes, "validation": {"how": "none: joined to the training split by training.refit"}}
    if isinstance(data, ForecastData):
        joined = replace(data, validation_steps=0, notes=notes)
        joined.notes["windows"] = joined.window_counts()
        return joined
    return replace(data, train=_joined(data.train, data.validation), validation=_nothing(data.train), notes=notes)


def class_weights(data: ClassificationData) -> Tensor:
    """How much a sequence of each class counts, ``(classes,)``, so that all classes count alike; 1 on average."""
    counts = np.bincount(data.train.y, minlength=len(data.labels))
    weights = np.where(counts > 0, len(data.train) / (np.count_nonzero(counts) * np.maximum(counts, 1)), 0.0)
    return torch.from_numpy(weights.astype(np.float32))


def _joined(first: SequenceSplit, second: SequenceSplit) -> SequenceSplit:
    if isinstance(first, LazySplit) and isinstance(second, LazySplit):
        return first.concatenate(second)
    one, two = (split.gather(np.arange(len(split))) for split in (first, second))
    return SequenceSplit(
        np.concatenate([one.x, two.x]),
        np.concatenate([one.lengths, two.lengths]),
        np.concatenate([first.y, second.y]),
        (*first.ids, *second.ids),
        None if one.dt is None or two.dt is None else np.concatenate([one.dt, two.dt]),
    )


def _nothing(split: SequenceSplit) -> SequenceSplit:
    none = split.gather(np.arange(0))
    return SequenceSplit(none.x, none.lengths, split.y[:0], (), none.dt)
