"""Training: settings, the loop, run directories, scores."""

from stablernn.training.config import Config, load_config
from stablernn.training.evaluate import Predictor, TorchPredictor, evaluate, predict
from stablernn.training.loop import Progress
from stablernn.training.run import LoadedRun, load_run, load_run_data, train

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
