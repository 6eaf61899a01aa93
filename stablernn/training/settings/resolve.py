"""From the settings that were given to the settings that are used: what None stands for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from stablernn.cells import StableCell, create_cell, recommended_training
from stablernn.certificates.projection import certified_kind, is_projected
from stablernn.data import ClassificationData, ForecastData
from stablernn.data.step_data import StepData
from stablernn.errors import ConfigError
from stablernn.training.settings.config import Config, ModelConfig
from stablernn.training.settings.defaults import length_of_training, model_settings, task_training
from stablernn.training.settings.load import validate
from stablernn.training.settings.predict_next_defaults import (
    refuse_step_settings,
    step_epoch,
    step_model,
    step_training,
)

FALLBACK: dict[str, Any] = {
    "epochs": 40,
    "batch_size": 32,
    "optimizer": "adamw",
    "schedule": "constant",
    "weight_decay": 0.0,
}
"""Training settings where the catalog recommends none for the cell."""

FALLBACK_LR: dict[str, float] = {"adamw": 1e-3, "adam": 1e-3, "sgd": 1e-2, "rmsprop": 1e-3}
"""Learning rates where none is recommended, or where the recommended one belongs to another optimizer."""

MOST_SUBSTEPS = 64
"""Parts of one step beyond which a cell would take longer over its gaps than over its data."""

CERTIFIED_MARGIN = 1e-3
"""By how much the rate of a certified cell stays below 1."""

QUANTILES = (0.1, 0.5, 0.9)
"""Levels of a forecast's quantiles: the median and a central interval of 80 %."""


def resolve(config: Config, data: ClassificationData | ForecastData | StepData) -> Config:
    """The same settings with a value in place of every None that stands for a recommendation.

    What stays None is a feature that is off (clipping, early stopping, a test file), a setting of another task or of
    another optimizer or schedule.

    Raises:
        UnknownNameError: If the cell is not in the catalog.
        ConfigError: If a setting does not go with the task of the data, or with one that was recommended.
    """
    tree = config.tree()
    cell = described_cell(config.model)
    tree["task"] = _task(config, data)
    if isinstance(data, StepData):
        tree["model"] |= step_model(config, data)
    else:
        refuse_step_settings(config, data)
        tree["model"] |= model_settings(config, data, cell)
    if config.model.mask_channel == "auto":
        # A cell that takes NaN for missing needs no one to tell it.
        tree["model"]["mask_channel"] = (
            not (isinstance(data, StepData) and data.tokens)
            and not cell.takes_missing
            and any(bool(np.isnan(values).any()) for values in data.training_values())
        )
    tree["model"] |= _time(config, data)
    tree["training"] = _training(config, data, tree["model"])
    return validate(tree)


def training_samples(data: ClassificationData | ForecastData | StepData) -> int:
    """Sequences or windows that are trained on."""
    return len(data.windows("train") if isinstance(data, ForecastData) else data.train)


def _task(config: Config, data: ClassificationData | ForecastData | StepData) -> dict[str, Any]:
    task = config.task.model_dump(mode="json")
    if isinstance(data, ForecastData):
        known = {"horizon": data.horizon, "context_length": data.context_length, "season": data.season}
        levels = QUANTILES if config.task.quantiles is None else config.task.quantiles
        return {**task, **known, "name": data.task, "quantiles": list(levels)}
    for key in ("horizon", "context_length", "season", "quantiles"):
        if task[key] is not None:
            raise ConfigError(
                f"task.{key} is only used by the task 'forecast', and '{data.name}' is for '{data.task}'."
            )
    return {**task, "name": data.task}


def _training(
    config: Config, data: ClassificationData | ForecastData | StepData, model: dict[str, Any]
) -> dict[str, Any]:
    given = config.training.model_dump()
    defaults = {**FALLBACK, **recommended_training(config.model.cell, config.model.preset)}
    if isinstance(data, StepData):
        defaults = step_training(config, data, defaults)
    else:
        defaults |= length_of_training(config, data, defaults)
    optimizer = given["optimizer"] or defaults["optimizer"]
    if optimizer != defaults["optimizer"]:
        # A learning rate that was found for one optimizer says nothing about another.
        _forget(defaults, "lr", "orthogonal_lr", "momentum")
    defaults.setdefault("lr", FALLBACK_LR[optimizer])
    _orthogonal_lr(config, given, defaults)
    if config.training.certified:
        defaults["certified_margin"] = _certified_margin(config)
    defaults |= task_training(config, data, model, given["lr"] or defaults["lr"])
    if optimizer in ("sgd", "rmsprop"):
        defaults.setdefault("momentum", 0.0)
    if (given["schedule"] or defaults["schedule"]) != "step":
        _forget(defaults, "step_epochs", "lr_decay")
    if given["epochs"] is not None or given["max_steps"] is not None:
        # Drops of the rate after 90 epochs belong to a run of 100.
        _forget(defaults, "step_epochs")
    if given["max_steps"] is not None:
        _forget(defaults, "epochs")
    assert defaults.keys() <= given.keys(), f"The catalog recommends {defaults} for '{config.model.cell}'."
    chosen: dict[str, Any] = {key: defaults.get(key) if value is None else value for key, value in given.items()}
    if chosen["schedule"] == "step":
        if isinstance(data, StepData):
            steps = step_epoch(data, chosen["batch_size"], chosen["bptt_steps"])
        else:
            steps = math.ceil(training_samples(data) / chosen["batch_size"])
        epochs = chosen["epochs"] or math.ceil(chosen["max_steps"] / steps)
        chosen["step_epochs"] = chosen["step_epochs"] or math.ceil(epochs / 3)
        chosen["lr_decay"] = chosen["lr_decay"] or 0.1
    if chosen["schedule"] == "plateau":
        chosen["lr_decay"] = chosen["lr_decay"] or 0.5
    return chosen


def _time(config: Config, data: ClassificationData | ForecastData | StepData) -> dict[str, Any]:
    """How the time between steps is used: ``time``, ``time_step``, ``max_dt``."""
    model = config.model
    known = None if isinstance(data, StepData) else data.time_step
    if known is None:
        given = [f"model.{key}" for key in ("time_step", "max_dt") if getattr(model, key) is not None]
        given += ["model.time=dt"] if model.time == "dt" else []
        if given:
            raise ConfigError(
                f"{' and '.join(given)} need data that says when its steps were, by an array 't', and '{data.name}' "
                "does not."
            )
    if known is None or model.time == "ignore":
        return {"time": "ignore", "time_step": None, "max_dt": None}
    assert not isinstance(data, StepData)
    cell = described_cell(model)
    if not cell.takes_dt and isinstance(data, ForecastData) and model.time == "auto":
        # Rows are steps then; notes count the intervals that differ.
        return {"time": "ignore", "time_step": None, "max_dt": None}
    if not cell.takes_dt:
        raise ConfigError(
            f"'{data.name}' says when its steps were, and model.cell='{model.cell}' takes no time between steps. "
            "Take a cell that does, such as lipschitz, lem or gru_d, or set model.time=ignore."
        )
    step = model.time_step or known
    found = data.in_steps_of(step).longest_step()
    if model.max_dt is not None and found > model.max_dt * (1 + 1e-6):
        raise ConfigError(
            f"The longest time between two steps is {found:.4g} regular steps of {step:g}, got "
            f"model.max_dt={model.max_dt:g}; leave it out, or cut the sequences at the gaps."
        )
    longest = model.max_dt or found
    if config.training.certified and not cell.certifies_irregular:
        raise ConfigError(
            f"'{data.name}' says when its steps were, and of model.cell='{model.cell}' regular steps alone are "
            "certified, got training.certified. Take lipschitz, noisy_rnn or lvf_mid, or set model.time=ignore."
        )
    if cell.substeps(longest) > MOST_SUBSTEPS:
        raise ConfigError(
            f"The longest time between two steps is {longest:.4g} regular steps of {step:g}, for which "
            f"'{model.cell}' would divide every step into {cell.substeps(longest)} parts, {MOST_SUBSTEPS} are allowed; "
            "set a longer model.time_step, or cut the sequences at the gaps."
        )
    return {"time": "dt", "time_step": step, "max_dt": longest}


def described_cell(model: ModelConfig) -> StableCell:
    """A cell as the settings describe it, to ask what it can do; the caller's random numbers stay as they are."""
    with enough_memory(model), torch.random.fork_rng(devices=[]):
        return create_cell(model.cell, 1, model.hidden_size, preset=model.preset, **model.cell_options)


@contextmanager
def enough_memory(model: ModelConfig) -> Iterator[None]:
    """Turn a lack of memory into an error that names the settings.

    Raises:
        ConfigError: If what is built inside does not fit into memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # torch's allocator has no class of its own on the CPU; its message is the only mark.
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        raise ConfigError(
            f"A model with model.hidden_size={model.hidden_size} and model.num_layers={model.num_layers} does not fit "
            "into memory. Lower one of the two."
        ) from error


def _certified_margin(config: Config) -> float | None:
    """The margin below 1, None where there is none to keep.

    Raises:
        ConfigError: If the model has no certified region.
    """
    model, given = config.model, config.training.certified_margin
    cell = described_cell(model)
    if certified_kind(cell) == "non-expansive" and model.num_layers > 1:
        raise ConfigError(
            f"The step of '{model.cell}' is non-expansive, which says nothing of several layers one above the other, "
            f"got model.num_layers={model.num_layers} with training.certified. Set it to 1, or take a cell that "
            "contracts, such as lipschitz or lru."
        )
    if is_projected(cell):
        return CERTIFIED_MARGIN
    if given is not None:
        raise ConfigError(
            f"training.certified_margin is not used by '{model.cell}', which is certified by construction, got "
            f"{given:g}; leave it out."
        )
    return None


def _orthogonal_lr(config: Config, given: dict[str, Any], defaults: dict[str, Any]) -> None:
    """Recommend a learning rate for orthogonal matrices where the cell has one, and refuse it where it has none."""
    model = config.model
    if not described_cell(model).orthogonal:
        if given["orthogonal_lr"] is not None:
            raise ConfigError(
                "training.orthogonal_lr is only used by cells with an orthogonal matrix, "
                f"got training.orthogonal_lr={given['orthogonal_lr']:g} with model.cell='{model.cell}'."
            )
        _forget(defaults, "orthogonal_lr")
        return
    # A given rate moves the recommended one for the matrices along with it.
    share = defaults["orthogonal_lr"] / defaults["lr"] if "orthogonal_lr" in defaults else 0.1
    defaults["orthogonal_lr"] = share * (given["lr"] or defaults["lr"])


def _forget(defaults: dict[str, Any], *keys: str) -> None:
    for key in keys:
        defaults.pop(key, None)
