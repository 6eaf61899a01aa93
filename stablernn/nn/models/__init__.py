"""Models: scaling, recurrent layers, readout and head. Raw units in and out; NaN is a missing value."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from stablernn.cells import StableCell, list_cells
from stablernn.errors import ConfigError, UnknownNameError, UntrainedWarning, did_you_mean
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
    "warn_of_missing_calls",
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


def warn_of_missing_calls(module: nn.Module, *, stacklevel: int) -> None:
    """Warn of each call that stablernn's training loop makes and that this module has not received.

    Args:
        module: A cell, layers or a model.
        stacklevel: As for :func:`warnings.warn`, counted from the caller of this function.
    """
    for message in _missing_calls(module):
        warnings.warn(message, UntrainedWarning, stacklevel=stacklevel + 1)


def _missing_calls(module: nn.Module) -> Iterator[str]:
    """Yield a message for each missing call."""
    cells = [cell for cell in module.modules() if isinstance(cell, StableCell)]
    # Layers and members are trained together, so that one message serves all of them.
    missed = next((missed for cell in cells if (missed := cell.missed_schedule()) is not None), None)
    if missed is not None:
        yield (
            f"The cell '{cells[0].key}' was trained without after_step, which should {missed}. Call "
            "after_step(step, total_steps) of the model after each optimizer step."
        )
    if isinstance(module, SequenceModel):
        yield from module.missing_calls()
