"""Whole models: scaling, recurrent layers, readout, head. Raw units in and out; NaN is a missing value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stablernn.errors import ConfigError, near
from stablernn.nn.models._base import READOUTS, NetworkOptions, SequenceModel, States
from stablernn.nn.models.classifier import Classifier
from stablernn.nn.models.forecaster import Forecaster
from stablernn.nn.models.predictor import SequencePredictor

__all__ = [
    "READOUTS",
    "Classifier",
    "Forecaster",
    "NetworkOptions",
    "SequenceModel",
    "SequencePredictor",
    "States",
    "build_model",
]

_MODELS: dict[str, type[SequenceModel]] = {model.task: model for model in (Classifier, Forecaster, SequencePredictor)}


def build_model(config: Mapping[str, Any]) -> SequenceModel:
    """A model from what :meth:`SequenceModel.config` returned, with fresh weights.

    Raises:
        ConfigError: If the task is none of ours.
    """
    options = dict(config)
    task = str(options.pop("task", None))
    if task not in _MODELS:
        raise ConfigError(f"Unknown task '{task}'.{near(task, _MODELS)} It is one of {', '.join(sorted(_MODELS))}.")
    return _MODELS[task](**options)
