"""Models: scaling, recurrent layers, readout and head. Raw units in and out; NaN is a missing value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stablernn.cells import list_cells
from stablernn.errors import ConfigError, UnknownNameError, did_you_mean
from stablernn.nn.models._arguments import NetworkOptions
from stablernn.nn.models._base import SequenceModel, States
from stablernn.nn.models._readout import READOUTS
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
    """Build a model with fresh weights from a configuration, as :meth:`SequenceModel.config` returns it.

    Raises:
        ConfigError: If the task is unknown, or the cell cannot be loaded.
        UnknownNameError: If the package of the cell is not installed.
    """
    options = dict(config)
    package = options.pop("cell_package", None)
    if package is not None and options["cell"] not in list_cells():
        raise UnknownNameError(
            f"The cell '{options['cell']}' of this model comes with the package '{package}', which is not installed "
            "here. Install it, and open the model again."
        )
    task = str(options.pop("task", None))
    if task not in _MODELS:
        raise ConfigError(
            f"Unknown task '{task}'.{did_you_mean(task, _MODELS)} It is one of {', '.join(sorted(_MODELS))}."
        )
    return _MODELS[task](**options)
