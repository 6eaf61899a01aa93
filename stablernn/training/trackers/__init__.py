"""Trackers of experiments as callbacks of training: TensorBoard, MLflow, Weights & Biases.

Each takes its settings from the environment variables of its library. ``docs/tracking.md`` describes them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

from stablernn.errors import ConfigError, did_you_mean
from stablernn.training.callbacks import Callback

__all__ = ["TRACKERS", "open_trackers"]


class _Tracker(NamedTuple):
    title: str
    """Name of its library in messages."""
    module: str
    """Module that the library installs."""
    callback: str
    """Class in the module of this folder."""


TRACKERS = {
    "tensorboard": _Tracker("TensorBoard", "tensorboard", "TensorBoardTracker"),
    "mlflow": _Tracker("MLflow", "mlflow", "MlflowTracker"),
    "wandb": _Tracker("Weights & Biases", "wandb", "WandbTracker"),
}
"""Trackers by name, which is that of the extra and of the module in this folder, too."""


def open_trackers(names: Sequence[str]) -> list[Callback]:
    """Return the trackers of these names.

    Raises:
        ConfigError: If there is no tracker of a name, one is named twice, or its library is not installed.
    """
    callbacks: list[Callback] = []
    for index, name in enumerate(names):
        if name not in TRACKERS:
            raise ConfigError(
                f"Unknown tracker '{name}'.{did_you_mean(name, TRACKERS)} It is one of {', '.join(TRACKERS)}."
            )
        if name in names[:index]:
            raise ConfigError(f"The tracker '{name}' is named twice. Name it once.")
        tracker = TRACKERS[name]
        if find_spec(tracker.module) is None:
            raise ConfigError(f"The tracker '{name}' uses {tracker.title}, which the extra 'stablernn[{name}]' brings.")
        module = importlib.import_module(f"{__name__}.{name}")
        callbacks.append(getattr(module, tracker.callback)())
    return callbacks
