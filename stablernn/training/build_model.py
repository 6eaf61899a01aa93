"""The model of a run, built from resolved settings and fitted to the scale of its training data."""

from __future__ import annotations

import logging

import torch

from stablernn.data.step_data import Data
from stablernn.engines import select_engine
from stablernn.errors import ConfigError, UnknownNameError
from stablernn.nn.models import SequenceModel
from stablernn.training.settings.config import Config
from stablernn.training.settings.resolve import enough_memory
from stablernn.training.tasks import task_for

_LOG = logging.getLogger("stablernn.training")


def create_model(config: Config, data: Data) -> SequenceModel:
    """Return the model that resolved settings describe, its scaling fitted to the training split.

    Raises:
        ConfigError: If the cell or the model has no such option, or the model does not fit into memory.
        UnknownNameError: If the cell is not in the catalog.
    """
    task = task_for(data)
    with enough_memory(config.model):
        model = task.build_model(config)
    # Outside of the check: that reading the data takes too much memory is no fault of the model's size.
    task.fit_inputs(model, config)
    return model


def with_engine(config: Config, model: SequenceModel, device: torch.device, *, may_change: bool = False) -> Config:
    """Return the settings with the engine that runs the model on a device, and let the model use it.

    Args:
        config: Resolved settings.
        model: The model.
        device: Where it is to run.
        may_change: Whether ``auto`` takes the place of an engine that cannot run here, which is logged. A resumed run
            may have begun on another device.

    Raises:
        ConfigError: If the engine of the settings cannot run the cell there.
        UnknownNameError: If there is no such engine.
    """
    # Engines look at device and dtype.
    drive = next(model.parameters()).new_empty(0, device=device)
    wanted, is_timed = config.model.engine or "auto", model.max_dt is not None
    try:
        names = {select_engine(wanted, cell, drive, timed=is_timed).name for cell in model.rnn.cells}
    except (ConfigError, UnknownNameError):
        if not may_change:
            raise
        names = {select_engine("auto", cell, drive, timed=is_timed).name for cell in model.rnn.cells}
        _LOG.info(
            f"The run began with the engine '{wanted}', which cannot run on {device.type} here; it goes on with "
            f"'{', '.join(sorted(names))}', and its last digits may differ from those of an uninterrupted run."
        )
    name = names.pop() if len(names) == 1 else "auto"
    model.rnn.use_engine(name)
    return config.model_copy(update={"model": config.model.model_copy(update={"engine": name})})
