"""Resolution of settings: a value for every None that stands for a recommendation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

import torch

from stablernn.cells import StableCell, create_cell
from stablernn.certificates.projection import (
    ONLY_ON_REQUEST,
    certified_kind,
    is_projected,
    is_within_range,
    largest_margin,
    least_margin,
)
from stablernn.data.step_data import StepData
from stablernn.errors import ConfigError
from stablernn.terms import terms
from stablernn.training.settings.config import Config, ModelConfig, TrainingConfig
from stablernn.training.settings.defaults import (
    CLOSED_FORM,
    FALLBACK_LR,
    TrainingDefaults,
    cell_training,
    closed_form_training,
    is_solved,
    refuse_gradient_settings,
)
from stablernn.training.settings.load import validate
from stablernn.training.tasks.task import Task, refuse_settings_of_other_tasks

MOST_SUBSTEPS = 64
"""Parts of one step beyond which a cell would take longer over its gaps than over its data."""

CERTIFIED_MARGIN = 1e-3
"""Distance of a certified cell's rate from 1, at least."""


def resolve(config: Config, task: Task) -> Config:
    """Return the same settings with a value in place of every None that stands for a recommendation.

    What stays None is a feature that is off (clipping, early stopping, a test file), a setting of another task or of
    another optimizer or schedule.

    Args:
        config: The settings.
        task: The task, with the data.

    Raises:
        UnknownNameError: If the cell is not in the catalog.
        ConfigError: If a setting does not go with the task of the data, or with one that was recommended.
    """
    cell = described_cell(config.model)
    if cell.is_fixed:
        config = _with_closed_form(config)
    has_no_steps = is_solved(config.training)
    if has_no_steps:
        refuse_gradient_settings(config, cell, task.data)
    refuse_settings_of_other_tasks(config, task.data)
    section = task.task_settings(config)
    model = task.model_settings(config, cell)
    if model.mask_channel == "auto":
        # A cell that takes NaN for missing needs no mask.
        has_mask = not cell.takes_missing and task.data.has_missing_inputs()
        model = model.model_copy(update={"mask_channel": has_mask})
    if has_no_steps:
        model = model.model_copy(update={"head_dropout": 0.0})
    model = _with_cell_options(model, task)
    model = _with_time(config, model, task)
    config = config.updated("training", certified=_is_certified(config, model, cell))
    training = _resolve_training(config, task, model)
    # Copies are not checked, so the whole is.
    return validate(
        {
            # With the categories and the marks of the training data, by which other files are read.
            "data": config.data.model_dump(mode="json")
            | {"categories": task.data.notes.get("categories", {}), "decimal_mark": _decimal_mark(config, task)},
            "task": section.model_dump(mode="json"),
            "model": model.model_dump(mode="json"),
            "training": training.model_dump(mode="json"),
        }
    )


def _with_closed_form(config: Config) -> Config:
    """Return the settings of a cell that no gradient trains, whose head is solved for unless another way is set.

    Raises:
        ConfigError: If the method is set to ``gradient``.
    """
    if config.training.method == CLOSED_FORM:
        return config
    if "method" in config.training.model_fields_set:
        raise ConfigError(
            f"No gradient reaches the weights of '{config.model.cell}', got training.method={config.training.method}; "
            f"leave it out for {CLOSED_FORM}, which solves for the head."
        )
    return config.updated("training", method=CLOSED_FORM)


def _with_cell_options(model: ModelConfig, task: Task) -> ModelConfig:
    """Return the model's settings with the options of the cell that the data decides, unless they are set."""
    data = task.data
    if isinstance(data, StepData):
        return model
    samples = model.resample_steps or data.longest_input
    channels = len(data.features) * (2 if model.mask_channel is True else 1) * (model.patch_size or 1)
    recommended = described_cell(model).recommended_options(-(-samples // (model.patch_stride or 1)), channels)
    return model.model_copy(update={"cell_options": {**recommended, **model.cell_options}})


def _decimal_mark(config: Config, task: Task) -> str | None:
    """Return the mark of decimals that is set, else that of training data with commas in its numbers; None without."""
    notes = task.data.notes
    recognized = "," if notes.get("decimal_mark") == "comma" else None
    if notes.get("thousands_mark") == "comma" and "decimal_mark" not in notes:
        recognized = "."
    return config.data.decimal_mark or recognized


def _resolve_training(config: Config, task: Task, model: ModelConfig) -> TrainingConfig:
    training = config.training
    defaults = task.training_defaults(config, cell_training(config.model))
    optimizer = training.optimizer or defaults.optimizer
    if optimizer != defaults.optimizer:
        # A learning rate that was found for one optimizer says nothing about another.
        defaults = replace(defaults, lr=None, orthogonal_lr=None, momentum=None)
    if defaults.lr is None:
        defaults = replace(defaults, lr=FALLBACK_LR[optimizer])
    defaults = replace(defaults, orthogonal_lr=_orthogonal_lr(config, defaults))
    if training.certified:
        defaults = replace(defaults, certified_margin=_certified_margin(config))
        _check_within_range(model, task)
    if training.skip_lr is not None and model.skip != "linear":
        raise ConfigError(f"training.skip_lr is only used with model.skip='linear', got {training.skip_lr:g}.")
    defaults = task.training_settings(config, model, defaults)
    if is_solved(training):
        return closed_form_training(training, defaults)
    if optimizer in ("sgd", "rmsprop") and defaults.momentum is None:
        defaults = replace(defaults, momentum=0.0)
    if (training.schedule or defaults.schedule) != "step":
        defaults = replace(defaults, step_epochs=None, lr_decay=None)
    if training.epochs is not None or training.max_steps is not None:
        # Drops of the rate after 90 epochs belong to a run of 100.
        defaults = replace(defaults, step_epochs=None)
    if training.max_steps is not None:
        defaults = replace(defaults, epochs=None)
    recommended = {key: value for key, value in asdict(defaults).items() if getattr(training, key) is None}
    return _with_schedule(training.model_copy(update=recommended), task)


def _with_schedule(training: TrainingConfig, task: Task) -> TrainingConfig:
    """Return the settings with the options of the schedules ``step`` and ``plateau``."""
    if training.schedule == "plateau":
        return training.model_copy(update={"lr_decay": training.lr_decay or 0.5})
    if training.schedule != "step":
        return training
    assert training.batch_size is not None
    epochs = training.epochs
    if epochs is None:
        assert training.max_steps is not None
        epochs = math.ceil(training.max_steps / task.steps_per_epoch(training.batch_size, training.bptt_steps or 0))
    step_epochs = training.step_epochs or math.ceil(epochs / 3)
    return training.model_copy(update={"step_epochs": step_epochs, "lr_decay": training.lr_decay or 0.1})


def _with_time(config: Config, model: ModelConfig, task: Task) -> ModelConfig:
    """Return the model's settings with ``time``, ``time_step`` and ``max_dt``."""
    settings, data = config.model, task.data
    without_time = model.model_copy(update={"time": "ignore", "time_step": None, "max_dt": None})
    data_step = data.time_step
    if data_step is None:
        keys = [f"model.{key}" for key in ("time_step", "max_dt") if getattr(settings, key) is not None]
        keys += [terms().setting("model.time", "dt")] if settings.time == "dt" else []
        if keys:
            raise ConfigError(
                f"{' and '.join(keys)} need data that says when its steps were, by an array 't', and "
                f"{terms().file(data.name)} does not."
            )
    if data_step is None or settings.time == "ignore":
        return without_time
    cell = described_cell(settings)
    if not cell.takes_dt and task.has_optional_time and settings.time == "auto":
        # Rows are steps then; notes count the intervals that differ.
        return without_time
    if not cell.takes_dt:
        raise ConfigError(
            f"{terms().file(data.name)} says when its steps were, and {terms().key('model.cell')}='{settings.cell}' "
            "takes no time between steps. Take a cell that does, such as lipschitz, lem or gru_d, or "
            f"{terms().set('model.time', 'ignore')}."
        )
    step = settings.time_step or data_step
    longest = data.with_time_step(step).longest_step()
    # In float32 a time may lie just above the number that it was written as.
    if settings.max_dt is not None and longest > settings.max_dt * (1 + 1e-6):
        raise ConfigError(
            f"The longest time between two steps is {longest:.4g} regular steps of {step:g}, got "
            f"model.max_dt={settings.max_dt:g}; leave it out, or cut the sequences at the gaps."
        )
    max_dt = settings.max_dt or longest
    if config.training.certified and not cell.certifies_irregular:
        raise ConfigError(
            f"{terms().file(data.name)} says when its steps were, and of {terms().key('model.cell')}='{settings.cell}' "
            f"regular steps alone are certified, got {terms().key('training.certified')}. Take lipschitz, noisy_rnn or "
            f"lvf_mid, or {terms().set('model.time', 'ignore')}."
        )
    if cell.substeps(max_dt) > MOST_SUBSTEPS:
        raise ConfigError(
            f"The longest time between two steps is {max_dt:.4g} regular steps of {step:g}, for which "
            f"'{settings.cell}' would divide every step into {cell.substeps(max_dt)} parts, {MOST_SUBSTEPS} are "
            "allowed; set a longer model.time_step, or cut the sequences at the gaps."
        )
    return model.model_copy(update={"time": "dt", "time_step": step, "max_dt": max_dt})


def described_cell(model: ModelConfig) -> StableCell:
    """Return a cell as the settings describe it, to ask what it can do; the caller's random state stays as it is."""
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
            f"A model with {terms().setting('model.hidden_size', model.hidden_size)} and "
            f"{terms().setting('model.num_layers', model.num_layers)} does not fit into memory. Lower one of the two."
        ) from error


def _is_certified(config: Config, model: ModelConfig, cell: StableCell) -> bool:
    """Return whether training stays certified: as set, else with ``practical`` but for a few cells."""
    if config.training.certified is not None:
        return config.training.certified
    if model.preset != "practical" or (model.max_dt is not None and not cell.certifies_irregular):
        return False
    try:
        kind = certified_kind(cell)
    except ConfigError:
        return False
    margin = config.training.certified_margin or CERTIFIED_MARGIN
    if cell.key in ONLY_ON_REQUEST or (is_projected(cell) and margin >= largest_margin(cell)):
        return False
    # Several non-expansive layers, one above the other, may expand.
    return kind != "non-expansive" or model.num_layers == 1


def _certified_margin(config: Config) -> float | None:
    """Return the margin below 1; None where the cell is certified by construction.

    Raises:
        ConfigError: If the model has no certified region.
    """
    model, margin = config.model, config.training.certified_margin
    cell = described_cell(model)
    if certified_kind(cell) == "non-expansive" and model.num_layers > 1:
        raise ConfigError(
            f"The step of '{model.cell}' is non-expansive, which says nothing of several layers one above the other, "
            f"got {terms().setting('model.num_layers', model.num_layers)} with {terms().key('training.certified')}. "
            "Set it to 1, or take a cell that contracts, such as lipschitz or lru."
        )
    if is_projected(cell):
        limit = largest_margin(cell)
        if (margin or CERTIFIED_MARGIN) >= limit:
            raise ConfigError(
                f"The cell '{model.cell}' keeps its singular values above {1 - limit:g} by its option "
                f"margin={limit:g}, got training.certified_margin={margin or CERTIFIED_MARGIN:g}. Set a smaller one, "
                "or a larger model.cell_options.margin."
            )
        least = least_margin(cell)
        if (margin or CERTIFIED_MARGIN) <= least:
            raise ConfigError(
                f"The cell '{model.cell}' with hidden_size={model.hidden_size} is proved by a margin of more than "
                f"{least:.2g}, what float32 rounds, got training.certified_margin={margin or CERTIFIED_MARGIN:g}. Set "
                "a larger one."
            )
        return CERTIFIED_MARGIN
    if margin is not None:
        raise ConfigError(
            f"training.certified_margin is not used by '{model.cell}', which is certified by construction, got "
            f"{margin:g}; leave it out."
        )
    return None


def _check_within_range(model: ModelConfig, task: Task) -> None:
    """Check that inputs have a range, if the cell is certified for inputs within one only.

    Raises:
        ConfigError: If they have none, or steps are irregular.
    """
    if not is_within_range(described_cell(model)):
        return
    if model.time == "dt":
        raise ConfigError(
            f"The cell '{model.cell}' is certified for regular steps only, got {terms().setting('model.time', 'dt')} "
            f"with {terms().key('training.certified')}. Take a cell such as lipschitz, lem or cfc, or "
            f"{terms().set('model.time', 'ignore')}."
        )
    has_tokens = isinstance(task.data, StepData) and task.data.tokens
    if has_tokens or model.scaling == "window":
        inputs = "are tokens" if has_tokens else "have no bounds with model.scaling=window"
        raise ConfigError(
            f"The cell '{model.cell}' is certified for inputs within the range of training only, and the layers' "
            f"inputs {inputs}. Take a cell that is certified for all inputs, such as lipschitz or gru"
            f"{'' if has_tokens else ', or another scaling'}."
        )


def _orthogonal_lr(config: Config, defaults: TrainingDefaults) -> float | None:
    """Return the recommended learning rate for orthogonal matrices; None where the cell has none.

    Raises:
        ConfigError: If one is set for a cell without such a matrix.
    """
    model, training = config.model, config.training
    if not described_cell(model).orthogonal:
        if training.orthogonal_lr is not None:
            raise ConfigError(
                "training.orthogonal_lr is only used by cells with an orthogonal matrix, got "
                f"training.orthogonal_lr={training.orthogonal_lr:g} with {terms().key('model.cell')}='{model.cell}'."
            )
        return None
    assert defaults.lr is not None
    # A learning rate that the user sets moves the recommended one for the matrices along with it.
    share = 0.1 if defaults.orthogonal_lr is None else defaults.orthogonal_lr / defaults.lr
    return share * (training.lr or defaults.lr)
