"""Training: settings, the trainer, run directories, evaluation.

Public names are imported when they are first used, so that one part does not load all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stablernn._lazy import lazy_names

if TYPE_CHECKING:
    from stablernn.training.callbacks import Callback
    from stablernn.training.evaluation.predictors import Predictor, predict
    from stablernn.training.evaluation.torch_predictor import TorchPredictor
    from stablernn.training.loaded_run import LoadedRun, evaluate, load_run
    from stablernn.training.loop.base_trainer import Progress
    from stablernn.training.run_data import load_run_data
    from stablernn.training.settings.config import Config
    from stablernn.training.settings.load import load_config
    from stablernn.training.train_model import train

__all__ = [
    "Callback",
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
        "Callback": "callbacks",
        "Config": "settings.config",
        "LoadedRun": "loaded_run",
        "Predictor": "evaluation.predictors",
        "Progress": "loop.base_trainer",
        "TorchPredictor": "evaluation.torch_predictor",
        "evaluate": "loaded_run",
        "load_config": "settings.load",
        "load_run": "loaded_run",
        "load_run_data": "run_data",
        "predict": "evaluation.predictors",
        "train": "train_model",
    },
)
