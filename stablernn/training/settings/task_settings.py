"""The part of a task that resolving settings needs, and the refusal of settings that other tasks have."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from stablernn.cells import StableCell
from stablernn.data.options import TaskName
from stablernn.data.step_data import Data
from stablernn.errors import ConfigError
from stablernn.terms import terms
from stablernn.training.settings.config import Config, ModelConfig, TaskConfig
from stablernn.training.settings.defaults import TrainingDefaults


class TaskSettings(Protocol):
    """Settings of one task on loaded data: recommendations, and refusals of what does not go with it.

    Every method raises ConfigError if a setting does not go with the task of the data, or with another setting.
    """

    @property
    def data(self) -> Data:
        """Data to train on."""
        ...

    @property
    def has_optional_time(self) -> bool:
        """True if ``model.time=auto`` may leave the time between steps out where the cell takes none."""
        ...

    def task_settings(self, config: Config) -> TaskConfig:
        """Return the resolved section ``task``."""
        ...

    def model_settings(self, config: Config, cell: StableCell) -> ModelConfig:
        """Return the section ``model``, resolved except for the mask channel and the time.

        Args:
            config: The settings, before they are resolved.
            cell: The cell that they describe.
        """
        ...

    def training_defaults(self, config: Config, defaults: TrainingDefaults) -> TrainingDefaults:
        """Return the recommendations of a cell, changed to go with how much data there is.

        Args:
            config: The settings, before they are resolved.
            defaults: Recommendations of the cell.
        """
        ...

    def training_settings(self, config: Config, model: ModelConfig, defaults: TrainingDefaults) -> TrainingDefaults:
        """Return recommendations with those for the settings that only some tasks have.

        Args:
            config: The settings, before they are resolved.
            model: The resolved section ``model``.
            defaults: Recommendations so far, with a learning rate.
        """
        ...

    def steps_per_epoch(self, batch_size: int, bptt_steps: int) -> int:
        """Return the optimizer steps of an epoch.

        Args:
            batch_size: Samples in a step.
            bptt_steps: Steps between two cuts of the gradient; used by the task 'predict-next' alone.
        """
        ...


class _TaskSetting(NamedTuple):
    """A setting that only one task has."""

    section: str
    key: str
    task: TaskName
    unset: tuple[object, ...] = (None,)
    """Values that do not count as set."""


# Settings that several tasks have, such as training.calibrate, are judged by the tasks themselves.
_SETTINGS_OF_ONE_TASK = (
    _TaskSetting("task", "horizon", "forecast"),
    _TaskSetting("task", "context_length", "forecast"),
    _TaskSetting("task", "season", "forecast"),
    _TaskSetting("task", "quantiles", "forecast"),
    _TaskSetting("model", "embedding_size", "predict-next"),
    _TaskSetting("model", "predict_change", "predict-next", (False,)),
    _TaskSetting("model", "head", "forecast", ("direct",)),
    # Resolved settings say "none" for a classification.
    _TaskSetting("model", "skip", "forecast", (None, "none")),
    _TaskSetting("model", "skip_strength", "forecast", (0.01,)),
    _TaskSetting("model", "resample_steps", "classify"),
    _TaskSetting("training", "bptt_steps", "predict-next"),
    _TaskSetting("training", "class_weights", "classify", ("none",)),
    # 0 is off, as in every other task.
    _TaskSetting("training", "label_smoothing", "classify", (None, 0.0)),
    _TaskSetting("training", "time_warp", "classify", (None, 0.0)),
    _TaskSetting("training", "shift", "classify", (0.0,)),
    _TaskSetting("training", "jitter", "classify", (None, 0.0)),
    _TaskSetting("training", "rescale", "classify", (None, 0.0)),
    _TaskSetting("training", "crop", "classify", (1.0,)),
    _TaskSetting("training", "magnitude_warp", "classify", (0.0,)),
    _TaskSetting("training", "channel_dropout", "classify", (0.0,)),
    _TaskSetting("training", "mixup", "classify", (0.0,)),
    _TaskSetting("training", "temperature", "classify"),
    _TaskSetting("training", "warm_up", "forecast"),
)


def refuse_settings_of_other_tasks(config: Config, section: str, data: Data) -> None:
    """Refuse settings that the task of the data does not have.

    Args:
        config: The settings, before they are resolved.
        section: Section to look at: ``task``, ``model`` or ``training``.
        data: Data to train on.

    Raises:
        ConfigError: If one is set.
    """
    for setting in _SETTINGS_OF_ONE_TASK:
        if setting.section != section or setting.task == data.task:
            continue
        if getattr(getattr(config, section), setting.key) not in setting.unset:
            raise ConfigError(
                f"{section}.{setting.key} is only used by the task '{setting.task}', and {terms().file(data.name)} is "
                f"for '{data.task}'."
            )


def refuse_skip_settings(config: Config, model: ModelConfig) -> None:
    """Refuse a learning rate for a linear skip where there is none.

    Args:
        config: The settings, before they are resolved.
        model: The resolved section ``model``.

    Raises:
        ConfigError: If one is set.
    """
    if config.training.skip_lr is not None and model.skip != "linear":
        raise ConfigError(f"training.skip_lr is only used with model.skip='linear', got {config.training.skip_lr:g}.")
