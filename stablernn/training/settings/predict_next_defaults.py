"""What None stands for where the task is 'predict-next', and which settings it does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stablernn.data.step_data import StepData
from stablernn.data.types import ClassificationData, ForecastData
from stablernn.errors import ConfigError
from stablernn.nn.models import SequencePredictor
from stablernn.training.batches.minibatches import feed_steps
from stablernn.training.settings.config import Config, ModelConfig

RECOMMENDED: dict[str, dict[str, Any]] = {
    "ptb-char": {"bptt_steps": 150, "batch_size": 128},
    "ptb-word": {"bptt_steps": 300, "batch_size": 32},
    "musedata": {"bptt_steps": 300},
}
"""Training settings of the named datasets for which those of the cell will not do."""

TEXT_BPTT_STEPS = 150
"""Steps between two cuts of the gradient in running text."""

LEAST_STEPS = 20
"""Optimizer steps that an epoch of running text has at least, if need be with fewer streams."""

CLIP_NORM = 1.0
"""Largest norm of the gradient where the cell recommends none: a loss at every step makes it large now and then."""

LARGEST_ONE_HOT = 256
"""Different tokens up to which each is a channel of its own."""

_USED = ("cell", "preset", "hidden_size", "num_layers", "dropout", "mask_channel", "cell_options")
_HANDLED = (*_USED, "embedding_size", "predict_change", "time", "time_step", "max_dt")
# What the others are when they are resolved: one value each.
_FIXED: dict[str, Any] = {
    "readout": "last",
    "scaling": "standard",
    "patch_size": 1,
    "patch_stride": 1,
    "patch_embedding": 0,
    "members": 1,
    "head_dropout": 0.0,
    "skip": "none",
}


def step_model(config: Config, data: StepData) -> dict[str, Any]:
    """The resolved ``embedding_size``, and what all models of this task have.

    Raises:
        ConfigError: If a setting of the model is given that this task does not have.
    """
    model = config.model
    for key, field in ModelConfig.model_fields.items():
        value = getattr(model, key)
        if key not in _HANDLED and value not in (field.default, _FIXED.get(key)):
            raise ConfigError(
                f"model.{key} is not used by the task 'predict-next', and '{data.name}' is for it; got {value!r}."
            )
    if not data.tokens and model.embedding_size:
        raise ConfigError(
            f"model.embedding_size is for tokens, and '{data.name}' has numbers as inputs; got {model.embedding_size}."
        )
    size = model.embedding_size
    if size is None:
        size = model.hidden_size if data.tokens and len(data.features) > LARGEST_ONE_HOT else 0
    if model.predict_change and (data.output != "real" or data.features != data.outputs):
        raise ConfigError(
            f"model.predict_change needs outputs that are the inputs one step on, and those of '{data.name}' are not."
        )
    return {"embedding_size": size, **_FIXED}


def step_training(config: Config, data: StepData, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Defaults of training with what goes with the data and not with the cell.

    Args:
        config: The settings that were given.
        data: What is trained on.
        defaults: Those of the cell.

    Raises:
        ConfigError: If a setting is given that this task does not have.
    """
    if config.training.refit:
        raise ConfigError(f"training.refit is not used by the task 'predict-next', and '{data.name}' is for it.")
    found = {"clip_norm": CLIP_NORM, **defaults, "bptt_steps": TEXT_BPTT_STEPS if data.continuous else 0}
    found |= RECOMMENDED.get(data.name, {})
    bptt = found["bptt_steps"] if config.training.bptt_steps is None else config.training.bptt_steps
    if data.continuous and data.name not in RECOMMENDED:
        # A short text in many streams would be a step or two an epoch.
        most = int(np.asarray(data.train.lengths).sum()) // (max(bptt, 1) * LEAST_STEPS)
        found["batch_size"] = max(1, min(found["batch_size"], most))
    return {**found, "bptt_steps": bptt}


def step_epoch(data: StepData, batch_size: int, bptt_steps: int) -> int:
    """Optimizer steps of an epoch."""
    return feed_steps(data.train, batch_size, bptt_steps, continuous=data.continuous)


def refuse_step_settings(config: Config, data: ClassificationData | ForecastData) -> None:
    """Refuse settings that only the task 'predict-next' has.

    Raises:
        ConfigError: If one is given.
    """
    given = {
        "model.embedding_size": config.model.embedding_size is not None,
        "model.predict_change": config.model.predict_change,
        "training.bptt_steps": config.training.bptt_steps is not None,
    }
    for key, is_given in given.items():
        if is_given:
            raise ConfigError(f"{key} is only used by the task 'predict-next', and '{data.name}' is for '{data.task}'.")


def build_predictor(config: Config, data: StepData) -> SequencePredictor:
    """The model that resolved settings describe, with what it takes from the training split.

    Raises:
        ConfigError: If the cell has no such option.
    """
    settings = config.model
    shared: dict[str, Any] = {key: getattr(settings, key) for key in _USED if key not in ("cell", "hidden_size")}
    shared["mask_channel"] = settings.mask_channel is True
    model = SequencePredictor(
        settings.cell,
        len(data.features),
        len(data.outputs),
        settings.hidden_size,
        output=data.output,
        tokens=data.tokens,
        embedding_size=settings.embedding_size or 0,
        predict_change=settings.predict_change,
        **shared,
    )
    if not data.tokens:
        model.fit_scaling(data.training_values())
    model.fit_targets(np.asarray(y) for _, y in data.training_sequences())
    return model


def describe_steps(data: StepData) -> dict[str, Any]:
    """What ``data.json`` holds of data with a target at each step."""
    splits = {"train": data.train, "validation": data.validation, "test": data.test}
    names = "targets" if data.output == "real" else "labels"
    return {
        "features": list(data.features),
        names: list(data.outputs),
        "output": data.output,
        "tokens": data.tokens,
        "continuous": data.continuous,
        "headline": data.headline,
        "longest": int(np.asarray(data.train.lengths).max()),
        "splits": {name: len(split) for name, split in splits.items()},
        "steps": {name: int(np.asarray(split.lengths).sum()) for name, split in splits.items()},
    }
