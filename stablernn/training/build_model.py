"""The model of a run, built from resolved settings and fitted to the scale of its training data."""

from __future__ import annotations

import torch

from stablernn.data.step_data import Data
from stablernn.engines import select_engine
from stablernn.nn.models import SequenceModel
from stablernn.training.settings.config import Config
from stablernn.training.settings.resolve import enough_memory
from stablernn.training.tasks import task_for


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


def with_engine(config: Config, model: SequenceModel, device: torch.device) -> Config:
    """Return the settings with the engine that runs the model on a device, and let the model use it.

    Raises:
        ConfigError: If the engine of the settings cannot run the cell there.
        UnknownNameError: If there is no such engine.
    """
    # Engines look at device and dtype.
    drive = next(model.parameters()).new_empty(0, device=device)
    names = {
        select_engine(config.model.engine or "auto", cell, drive, timed=model.max_dt is not None).name
        for cell in model.rnn.cells
    }
    name = names.pop() if len(names) == 1 else "auto"
    model.rnn.use_engine(name)
    return config.model_copy(update={"model": config.model.model_copy(update={"engine": name})})
