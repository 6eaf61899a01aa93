"""Recommended settings where a setting is None: what goes with a cell, and what tasks of whole samples share."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from stablernn.cells import StableCell, recommended_training
from stablernn.data.step_data import Data, StepData
from stablernn.errors import ConfigError
from stablernn.nn.convolutions import check_receptive_field, receptive_field
from stablernn.terms import terms
from stablernn.training.settings.config import Config, ModelConfig, OptimizerName, ScheduleName, TrainingConfig

FALLBACK_OPTIMIZER: OptimizerName = "adamw"

FALLBACK: dict[str, int | float | str] = {
    "epochs": 40,
    "batch_size": 32,
    "optimizer": FALLBACK_OPTIMIZER,
    "schedule": "constant",
    "weight_decay": 0.0,
}
"""Training settings where the catalog recommends none for the cell."""

FALLBACK_LR: dict[str, float] = {"adamw": 1e-3, "adam": 1e-3, "sgd": 1e-2, "rmsprop": 1e-3, "adagrad": 1e-2}
"""Learning rates where none is recommended, or where the recommended one belongs to another optimizer."""

SKIP_SETTINGS = ("skip_strength", "skip_prior", "skip_seasons")
"""Settings of the section ``model`` by which the linear skip is solved for."""


@dataclass(frozen=True)
class TrainingDefaults:
    """Recommended settings of the section ``training``, under their keys; None where nothing is recommended."""

    optimizer: OptimizerName
    schedule: ScheduleName
    batch_size: int
    epochs: int | None = None
    lr: float | None = None
    orthogonal_lr: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    step_epochs: int | None = None
    lr_decay: float | None = None
    clip_norm: float | None = None
    label_smoothing: float | None = None
    time_warp: float | None = None
    jitter: float | None = None
    rescale: float | None = None
    warm_up: int | None = None
    certified_margin: float | None = None
    skip_lr: float | None = None
    calibrate: bool | None = None
    bptt_steps: int | None = None


def cell_training(model: ModelConfig) -> TrainingDefaults:
    """Return the training settings that the catalog recommends for a cell, completed by :data:`FALLBACK`."""
    # The catalog holds JSON types; an unknown key fails here.
    settings: dict[str, Any] = {**FALLBACK, **recommended_training(model.cell, model.preset)}
    return TrainingDefaults(**settings)


@dataclass(frozen=True)
class ModelDefaults:
    """Recommended settings of the section ``model``, under their keys.

    The values here are those of the preset ``paper``, which recommends none of our additions: a sample a step, the last
    output, standard scores.
    """

    readout: Literal["last", "all"] = "last"
    head_dropout: float = 0.0
    scaling: Literal["standard", "context"] = "standard"
    patch_size: int = 1
    patch_embedding: int = 0
    skip: Literal["none", "linear"] = "none"


def fill_model_settings(
    model: ModelConfig, defaults: ModelDefaults, cell: StableCell, *, patches_of_a_sample: int = 1
) -> ModelConfig:
    """Return the model's settings with recommendations in place of None, except for those of the scaling.

    Args:
        model: The settings, before they are resolved.
        defaults: The recommendations.
        cell: The cell that the settings describe.
        patches_of_a_sample: Recommended number of overlapping patches that hold the same sample.

    Raises:
        ConfigError: If two settings do not go together.
    """
    # A setting of the user wins.
    recommended = {key: value for key, value in asdict(defaults).items() if getattr(model, key) is None}
    filled = model.model_copy(update=recommended)
    size, stride = filled.patch_size, filled.patch_stride
    assert size is not None
    # Of size and stride the user may set none, one or both; the other one follows.
    if stride is None:
        stride = size if model.patch_size is not None else max(1, size // patches_of_a_sample)
    elif model.patch_size is None:
        # No sample may be skipped.
        size = max(size, stride)
    if filled.conv_layers:
        if model.patch_size is None:
            size = max(size, receptive_field(filled.conv_layers))
        check_receptive_field(filled.conv_layers, size, section="model.")
        filled = _fill_embedding(model, filled, cell)
    if cell.takes_missing and filled.patch_embedding:
        raise ConfigError(
            f"model.patch_embedding mixes the samples of a patch, and '{model.cell}' takes a missing one as it is, so "
            "that all of its patch would be missing; set it to 0."
        )
    for key in SKIP_SETTINGS:
        if getattr(model, key) is not None and filled.skip != "linear":
            raise ConfigError(
                f"model.{key} is only used with model.skip='linear', got {getattr(model, key)!r} with "
                f"model.skip='{filled.skip}'; leave one of them out."
            )
    return filled.model_copy(update={"patch_size": size, "patch_stride": stride})


def _fill_embedding(model: ModelConfig, filled: ModelConfig, cell: StableCell) -> ModelConfig:
    """Return the settings with an embedding of what convolutions make of a patch.

    Args:
        model: The settings, before they are resolved.
        filled: Those with recommendations, and with convolutions.
        cell: The cell that the settings describe.

    Raises:
        ConfigError: If the settings have none, or the cell takes missing samples.
    """
    if cell.takes_missing:
        raise ConfigError(
            f"model.conv_layers mixes the samples of a patch, and '{model.cell}' takes a missing one as it is, so that "
            "all of its patch would be missing; set it to 0."
        )
    if model.patch_embedding == 0:
        raise ConfigError(
            f"model.conv_layers={model.conv_layers} needs an embedding of what the convolutions make of a patch, got "
            f"model.patch_embedding=0; leave it out for one of {terms().key('model.hidden_size')}."
        )
    return filled.model_copy(update={"patch_embedding": filled.patch_embedding or filled.hidden_size})


def fill_scaling_settings(
    model: ModelConfig, filled: ModelConfig, *, window: int, season: int, log: bool
) -> ModelConfig:
    """Return the model's settings with ``window``, ``season`` and ``log`` of its scaling.

    Args:
        model: The settings, before they are resolved.
        filled: Those with a scaling.
        window: Recommended window, in steps.
        season: Recommended season.
        log: Whether logarithms are recommended.

    Raises:
        ConfigError: If a setting is not used by the scaling.
    """
    kind = filled.scaling
    for key, kinds in (("window", ("window", "context")), ("season", ("context",)), ("log", ("context",))):
        if getattr(model, key) not in (None, False) and kind not in kinds:
            raise ConfigError(
                f"model.{key} is not used by the scaling '{kind}'; {terms().set('model.scaling', kinds[-1])}."
            )
    # The scaling 'standard' remembers nothing, and only 'context' compares with a season before.
    has_window, has_season = kind in ("window", "context"), kind == "context"
    return filled.model_copy(
        update={
            "window": (model.window or max(2, window)) if has_window else None,
            "season": (season if model.season is None else model.season) if has_season else None,
            "log": (log if model.log is None else model.log) if has_season else None,
        }
    )


def calibrates(config: Config, data_name: str, missing: str | None) -> bool:
    """Return True if calibration after training is recommended.

    Args:
        config: The settings, before they are resolved.
        data_name: Name of the data, for the error.
        missing: What calibration needs and the data does not have; None where nothing is missing.

    Raises:
        ConfigError: If ``training.calibrate`` is set and something is missing.
    """
    if missing is not None and config.training.calibrate:
        raise ConfigError(
            f"training.calibrate needs {missing}, of which {terms().file(data_name)} has none here; leave it out."
        )
    return missing is None


def power_of_two(number: float) -> int:
    """Return the largest power of two up to a number, at least 1."""
    return 1 << math.floor(math.log2(max(number, 1)))


CLOSED_FORM = "closed-form"
GAUSS_NEWTON = "gauss-newton"
"""Values of ``training.method`` besides ``gradient``."""
_WITHOUT_STEPS = {
    CLOSED_FORM: "which draws the recurrent weights and solves for the head of one network",
    GAUSS_NEWTON: "which fits all weights to the free run of whole records",
}

MOST_OUTPUTS = 256
"""Outputs at every step that are solved for at most: a large vocabulary takes longer than training by gradients."""
_USED = frozenset(
    {"method", "refit", "certified", "certified_margin", "calibrate", "plots", "seed", "device", "threads"}
)
"""Settings of the section ``training`` that a fit in closed form uses."""
_MODEL_KEYS = ("members", "dropout", "head_dropout")
"""Settings of the section ``model`` that act in training by gradients alone, or on several networks."""


def is_solved(training: TrainingConfig) -> bool:
    """Return True if weights are solved for at once, without minibatches and an optimizer."""
    return training.method in _WITHOUT_STEPS


def refuse_gradient_settings(config: Config, cell: StableCell, data: Data) -> None:
    """Refuse settings, cells and data that do not go with a fit without optimizer steps.

    Args:
        config: The settings, before they are resolved, with ``training.method`` other than ``gradient``.
        cell: The cell that they describe.
        data: Data to train on.

    Raises:
        ConfigError: If one is set that would have no effect, the cell changes itself over the steps of a training, or
            there are too many outputs to solve for.
    """
    method = config.training.method
    if method == GAUSS_NEWTON and data.task != "simulate":
        raise ConfigError(
            f"training.method={method} is for the task 'simulate', and {terms().file(data.name)} is for '{data.task}'; "
            "take training.method=gradient."
        )
    fields = {"training": TrainingConfig.model_fields, "model": ModelConfig.model_fields}
    unused = [("training", key) for key in fields["training"] if key not in _USED]
    for section, key in [*unused, *(("model", key) for key in _MODEL_KEYS)]:
        if method == GAUSS_NEWTON and key == "members":
            continue
        value = getattr(getattr(config, section), key)
        # 0 and False are off: resolved settings say so.
        if value not in (None, 0, fields[section][key].default):
            raise ConfigError(
                f"{section}.{key} is only used by training.method=gradient, got {value!r} with "
                f"training.method={method}, {_WITHOUT_STEPS[method]}; leave one of them out."
            )
    if cell.plans_ahead:
        raise ConfigError(
            f"The cell '{cell.key}' changes its weights over the steps of a training, and training.method="
            f"{method} has none; take a cell such as lru, or training.method=gradient."
        )
    if isinstance(data, StepData) and len(data.outputs) > MOST_OUTPUTS:
        raise ConfigError(
            f"training.method={method} solves for at most {MOST_OUTPUTS} outputs at every step, and "
            f"{terms().file(data.name)} has {len(data.outputs):,}; take training.method=gradient."
        )


def closed_form_training(training: TrainingConfig, defaults: TrainingDefaults) -> TrainingConfig:
    """Return the resolved section ``training`` of a fit in closed form.

    Args:
        training: The settings, before they are resolved.
        defaults: Recommendations for the same settings.
    """
    # All other recommendations are for gradients, and stay None: a run stores what it used.
    used = {key: getattr(defaults, key) for key in ("calibrate", "certified_margin")}
    return training.model_copy(update={key: value for key, value in used.items() if getattr(training, key) is None})
