"""What None stands for in the settings of a classifier or a forecaster, and which settings go with which."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from stablernn.cells import StableCell
from stablernn.data.step_data import StepData
from stablernn.data.types import ClassificationData, ForecastData
from stablernn.errors import ConfigError
from stablernn.training.evaluation.metrics import mirrored
from stablernn.training.settings.config import Config

Data = ClassificationData | ForecastData

PATCHES = {"classify": 24, "forecast": 14}
"""Recurrent steps that a sequence, or a context, is divided into by default."""
HEAD_DROPOUT = {"classify": 0.2, "forecast": 0.0}
PATCH_STEPS = 4
"""Patches of a sequence to be classified that hold the same sample."""
AUGMENTATION = {"time_warp": 0.03, "jitter": 0.1, "rescale": 0.1}
"""How sequences to be classified are changed in training by default."""
LABEL_SMOOTHING = 0.1
LEAST_STEPS = 500
"""Optimizer steps that a classifier gets at least."""
FORECAST_STEPS = (300, 2000)
"""Optimizer steps that a forecaster gets, within which five epochs lie."""
MOST_WINDOWS_A_STEP = 256
_LOG_RATIO = 10.0
"""Largest over smallest value from which a positive series is taken by its logarithms."""
_FORECAST_ONLY: dict[str, tuple[Any, ...]] = {"head": ("direct",), "skip": (None, "none"), "skip_strength": (0.01,)}
"""Settings that a classifier does not have, and what they are there."""
_PLAIN: dict[str, Any] = {
    "readout": "last",
    "head_dropout": 0.0,
    "scaling": "standard",
    "patch_size": 1,
    "patch_embedding": 0,
    "skip": "none",
}


def model_settings(config: Config, data: Data, cell: StableCell) -> dict[str, Any]:
    """The model's settings with a value in place of every None that stands for a recommendation.

    The preset ``paper`` recommends none of what is ours: a sample a step, the last output, standard scores.

    Args:
        config: The settings that were given.
        data: What is trained on.
        cell: The cell as they describe it.

    Raises:
        ConfigError: If a setting is of the other task, or two do not go together.
    """
    model = config.model
    chosen: dict[str, Any] = model.model_dump(mode="json")
    if isinstance(data, ClassificationData):
        for key, without in _FORECAST_ONLY.items():
            if getattr(model, key) not in without:
                raise ConfigError(
                    f"model.{key} is only used by the task 'forecast', and '{data.name}' is for 'classify'."
                )
        chosen["skip"] = "none"
    recommended = _PLAIN if model.preset == "paper" else _practical(config, data, cell)
    for key, value in recommended.items():
        if chosen[key] is None:
            chosen[key] = value
    if chosen["patch_stride"] is None:
        chosen["patch_stride"] = chosen["patch_size"]
        if model.patch_size is None and isinstance(data, ClassificationData) and not cell.takes_missing:
            chosen["patch_stride"] = max(1, chosen["patch_size"] // PATCH_STEPS)
    elif model.patch_size is None:
        chosen["patch_size"] = max(chosen["patch_size"], chosen["patch_stride"])
    if cell.takes_missing and chosen["patch_embedding"]:
        raise ConfigError(
            f"model.patch_embedding mixes the samples of a patch, and '{model.cell}' takes a missing one as it is, so "
            "that all of its patch would be missing; set it to 0."
        )
    if model.skip_strength != _FORECAST_ONLY["skip_strength"][0] and chosen["skip"] != "linear":
        raise ConfigError(
            f"model.skip_strength is only used with model.skip='linear', got {model.skip_strength:g}; set it, or leave "
            "the strength out."
        )
    return chosen | _scaling(chosen, config, data)


def _practical(config: Config, data: Data, cell: StableCell) -> dict[str, Any]:
    found: dict[str, Any] = {
        "readout": "last",
        "scaling": "standard",
        "head_dropout": HEAD_DROPOUT[data.task],
        "patch_embedding": 0,
    }
    if isinstance(data, ClassificationData):
        longest = int(data.train.lengths.max())
        stride = max(1, round(longest / PATCHES["classify"]))
        return {
            **found,
            "readout": "all",
            # A cell that takes missing values as they are would meet each of them in every patch that holds it.
            "patch_size": stride if cell.takes_missing else PATCH_STEPS * stride,
            "patch_embedding": 0 if cell.takes_missing else config.model.hidden_size,
        }
    # A recursive head makes one sample at a time; scaling by the context wants a season and one to compare it with.
    single = config.model.head == "recursive"
    fits = _remembered(config, data) >= 2 * _season(config, data)
    return {
        **found,
        "patch_size": 1 if single else _patch(data.context_length),
        "scaling": "context" if fits and not single else "standard",
        "skip": "linear" if fits and not single and config.model.scaling in (None, "context") else "none",
    }


def _patch(context: int) -> int:
    """The size nearest to that of the wanted number of patches that divides the context, if one is near."""
    wanted = max(1.0, context / PATCHES["forecast"])
    near = [size for size in range(1, context + 1) if context % size == 0 and wanted / 2 <= size <= 2 * wanted]
    return min(near, key=lambda size: abs(math.log(size / wanted)), default=round(wanted))


def _season(config: Config, data: ForecastData) -> int:
    if config.model.season is not None:
        return config.model.season
    return data.season if 2 * data.season <= _remembered(config, data) else 1


def _remembered(config: Config, data: ForecastData) -> int:
    return config.model.window or data.context_length


def _scaling(chosen: dict[str, Any], config: Config, data: Data) -> dict[str, Any]:
    """``window``, ``season`` and ``log`` of the scaling that was chosen."""
    kind = chosen["scaling"]
    for key, kinds in (("window", ("window", "context")), ("season", ("context",)), ("log", ("context",))):
        if getattr(config.model, key) not in (None, False) and kind not in kinds:
            raise ConfigError(f"model.{key} is not used by the scaling '{kind}'; set model.scaling={kinds[-1]}.")
    if kind == "standard":
        return {"window": None, "season": None, "log": None}
    longest = data.context_length if isinstance(data, ForecastData) else int(data.train.lengths.max())
    window = chosen["window"] or max(2, longest)
    if kind == "window":
        return {"window": window, "season": None, "log": None}
    season = chosen["season"]
    if season is None:
        season = _season(config, data) if isinstance(data, ForecastData) else 1
    return {
        "window": window,
        "season": season,
        "log": takes_logarithms(data) if chosen["log"] is None else chosen["log"],
    }


def takes_logarithms(data: Data) -> bool:
    """Return True if all training values are positive and differ by factors, which logarithms make comparable."""
    if isinstance(data, ClassificationData):
        return False
    lowest, highest = np.inf, 0.0
    for values in data.training_values():
        seen = values[np.isfinite(values)]
        if len(seen):
            lowest, highest = min(lowest, float(seen.min())), max(highest, float(seen.max()))
    return 0 < lowest < np.inf and highest >= _LOG_RATIO * lowest


def length_of_training(config: Config, data: Data, defaults: dict[str, Any]) -> dict[str, Any]:
    """Batch size and epochs that go with how much there is to train on.

    A cell's recommendations are for some thousand samples. With fewer, batches are made smaller and epochs more, so
    that there are steps enough to learn; overlapping windows come by the ten thousand and differ little, so that not
    all of them are needed.
    """
    if config.model.preset == "paper":
        return {}
    samples = len(data.windows("train") if isinstance(data, ForecastData) else data.train)
    if isinstance(data, ForecastData):
        batch = min(MOST_WINDOWS_A_STEP, max(defaults["batch_size"], _power_of_two(samples / 32)))
        steps = math.ceil(samples / (config.training.batch_size or batch))
        wanted = min(max(5 * steps, FORECAST_STEPS[0]), FORECAST_STEPS[1])
        return {"batch_size": batch, "epochs": max(1, round(wanted / steps))}
    batch = min(defaults["batch_size"], max(8, _power_of_two(samples / 4)))
    steps = math.ceil(samples / (config.training.batch_size or batch))
    return {"batch_size": batch, "epochs": max(defaults["epochs"], math.ceil(LEAST_STEPS / steps))}


def task_training(config: Config, data: Data | StepData, model: Mapping[str, Any], lr: float) -> dict[str, Any]:
    """Recommendations for settings that only one of the tasks has.

    Args:
        config: The settings that were given.
        data: What is trained on.
        model: The model's settings, resolved.
        lr: The learning rate.

    Raises:
        ConfigError: If one is given for another task, or has nothing to act on.
    """
    training, skip = config.training, model["skip"] == "linear"
    classify = isinstance(data, ClassificationData)
    recommended = {"label_smoothing": LABEL_SMOOTHING, **AUGMENTATION}
    given = {
        "class_weights": training.class_weights != "none" and not classify,
        **{key: bool(getattr(training, key)) and not classify for key in recommended},
    }
    for key, wrong in given.items():
        if wrong:
            raise ConfigError(
                f"training.{key} is only used by the task 'classify', and '{data.name}' is for '{data.task}'."
            )
    if training.skip_lr is not None and not skip:
        raise ConfigError(f"training.skip_lr is only used with model.skip='linear', got {training.skip_lr:g}.")
    timed = isinstance(data, ClassificationData) and data.time_step is not None and config.model.time != "ignore"
    if timed and training.time_warp:
        raise ConfigError(
            f"training.time_warp moves steps in time, and '{data.name}' says when they were; set it to 0, or "
            "model.time=ignore."
        )
    practical = classify and config.model.preset == "practical"
    found = {key: (value if practical else 0.0) if classify else None for key, value in recommended.items()}
    if timed:
        found["time_warp"] = 0.0
    if isinstance(data, ForecastData):
        found["warm_up"] = _warm_up(config, data, model["patch_stride"])
    elif training.warm_up is not None:
        raise ConfigError(
            f"training.warm_up is only used by the task 'forecast', and '{data.name}' is for '{data.task}'."
        )
    return {**found, "skip_lr": lr / 30 if skip else None, "calibrate": _calibrated(config, data)}


def _warm_up(config: Config, data: ForecastData, stride: int) -> int:
    given = config.training.warm_up
    if given and given < stride:
        raise ConfigError(
            f"training.warm_up makes contexts longer by whole patches, of model.patch_stride={stride} steps, got "
            f"{given}; set it to {stride} or more, or to 0."
        )
    return data.context_length if config.model.preset == "practical" and data.context_length >= stride else 0


def _calibrated(config: Config, data: Data | StepData) -> bool | None:
    """Whether there is something to calibrate; None where the task has nothing of the kind."""
    given = config.training.calibrate
    if isinstance(data, StepData):
        if given is not None:
            raise ConfigError(
                f"training.calibrate is not used by the task 'predict-next', and '{data.name}' is for it."
            )
        return None
    levels = config.task.quantiles
    if isinstance(data, ForecastData) and levels == ():
        missing = "quantiles"
    elif not len(data.windows("validation") if isinstance(data, ForecastData) else data.validation):
        missing = "a validation split"
    elif isinstance(data, ForecastData) and levels is not None and not mirrored(levels):
        if given:
            raise ConfigError(
                "training.calibrate moves two quantiles at once whose levels add up to 1, such as 0.1 and 0.9, and "
                f"task.quantiles={list(levels)} has no such two; name both, or leave it out."
            )
        return False
    else:
        return True
    if given:
        raise ConfigError(f"training.calibrate needs {missing}, of which '{data.name}' has none here; leave it out.")
    return False


def _power_of_two(number: float) -> int:
    """The largest power of two up to a number, at least 1."""
    return 1 << math.floor(math.log2(max(number, 1)))
