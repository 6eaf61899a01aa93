"""Training: settings, the trainer, run directories, evaluation.

Public names are imported when they are first used, so that one part does not load all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stablernn._lazy import lazy_names

if TYPE_CHECKING:
    from stablernn.training.evaluation.evaluate import Predictor, TorchPredictor, evaluate, predict
    from stablernn.training.loop.trainer import Progress
    from stablernn.training.run import LoadedRun, load_run, load_run_data, train
    from stablernn.training.settings.config import Config, load_config

__all__ = [
    "Config",
    "LoadedRun",
    "Predictor",
    "Progress",
    "TorchPredictor",
    "evaluate",
    "load_config",
    "load_run",
    "load_run_data",
    "predict",
    "train",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Config": "settings.config",
        "LoadedRun": "run",
        "Predictor": "evaluation.evaluate",
        "Progress": "loop.trainer",
        "TorchPredictor": "evaluation.evaluate",
        "evaluate": "evaluation.evaluate",
        "load_config": "settings.config",
        "load_run": "run",
        "load_run_data": "run",
        "predict": "evaluation.evaluate",
        "train": "run",
    },
)
