"""The description of a run's data, as ``data.json`` holds it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from stablernn.certificates.input_range import InputRange, training_range
from stablernn.data.step_data import Data
from stablernn.nn.models import SequenceModel
from stablernn.training.tasks import task_for


def describe_data(data: Data, model: SequenceModel) -> dict[str, Any]:
    """Return the content of ``data.json``: all that is needed to read more data of the same kind, and the notes."""
    scaling = model.scaling
    mean, scale = model.feature_scaling()
    return {
        "name": data.name,
        "task": data.task,
        "fingerprint": data.fingerprint,
        **task_for(data).describe(),
        "scaling": {
            "kind": scaling.kind,
            "mean": mean.tolist(),
            "scale": scale.tolist(),
            "window": model.window,
            "mask_channel": scaling.mask_channel,
        },
        **_resampling_facts(model),
        # Tokens have none.
        "input_range": _input_range(data.training_values()) if scaling.has_channel_range else None,
        "notes": data.notes,
    }


def _resampling_facts(model: SequenceModel) -> dict[str, Any]:
    """Return the resampling of whole sequences as an entry of ``data.json``; none if there is none."""
    if model.resampling is None:
        return {}
    shortest, longest = model.resampling.length_range.tolist()
    return {"resampling": {"steps": model.resampling.steps, "shortest": shortest, "longest": longest}}


def certified_range(data: Data, model: SequenceModel) -> InputRange | None:
    """Return the range of raw inputs for which a run is certified: that of training, half as wide again.

    Args:
        data: The training data.
        model: The model, whose scaling decides whether inputs within a range have channels within one.
    """
    if not model.scaling.has_channel_range:
        return None
    return training_range({"input_range": _input_range(data.training_values())})


def _input_range(sequences: Iterable[np.ndarray]) -> dict[str, list[float]]:
    """Return the smallest and the largest observed value of each feature, in raw units."""
    lower, upper = np.inf, -np.inf
    for values in sequences:
        lower = np.fmin(lower, np.fmin.reduce(values, axis=0, initial=np.inf))
        upper = np.fmax(upper, np.fmax.reduce(values, axis=0, initial=-np.inf))
    return {"lower": np.asarray(lower).tolist(), "upper": np.asarray(upper).tolist()}
