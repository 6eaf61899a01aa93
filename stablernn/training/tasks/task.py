"""The interface of a task on loaded data, as a run uses it from its settings to its scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from stablernn.cells import StableCell
from stablernn.data.arrays import Samples
from stablernn.data.step_data import Data
from stablernn.nn.models import NetworkOptions, SequenceModel
from stablernn.training.batches.losses import Objective
from stablernn.training.batches.minibatches import Minibatches
from stablernn.training.evaluation.predictors import BATCH_SIZE
from stablernn.training.evaluation.scorers import PredictorNames, Scorer, Scores
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.evaluation.trivial import Comparison
from stablernn.training.settings.config import Config, ModelConfig, TaskConfig, TrainingConfig
from stablernn.training.settings.defaults import TrainingDefaults


@dataclass(frozen=True)
class FinalScores:
    """Scores of a finished run, as ``summary.json`` holds them.

    Attributes:
        metrics: Scores by split.
        baselines: Notes on how the baselines were fitted.
    """

    metrics: dict[str, Scores]
    baselines: dict[str, Any] = field(default_factory=dict)


class Task(ABC):
    """A task on loaded data.

    The first five methods are :class:`~stablernn.training.settings.task_settings.TaskSettings`, with which settings are
    resolved; those that follow take resolved settings. JSON types are typed as ``dict[str, Any]``.
    """

    has_optional_time: bool = False

    @property
    @abstractmethod
    def data(self) -> Data:
        """Data to train on."""

    # Settings, see TaskSettings.

    @abstractmethod
    def task_settings(self, config: Config) -> TaskConfig: ...

    @abstractmethod
    def model_settings(self, config: Config, cell: StableCell) -> ModelConfig: ...

    @abstractmethod
    def training_defaults(self, config: Config, defaults: TrainingDefaults) -> TrainingDefaults: ...

    @abstractmethod
    def training_settings(self, config: Config, model: ModelConfig, defaults: TrainingDefaults) -> TrainingDefaults: ...

    @abstractmethod
    def steps_per_epoch(self, batch_size: int, bptt_steps: int) -> int: ...

    # Data.

    def choose_inputs(self, config: Config) -> Data:
        """Return the data with whatever of its inputs is chosen by validation before training.

        Args:
            config: The settings, before they are resolved.
        """
        return self.data

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the part of ``data.json`` that is particular to the task."""

    # Model.

    @abstractmethod
    def build_model(self, config: Config) -> SequenceModel:
        """Return the model, not fitted to the data yet."""

    @abstractmethod
    def fit_inputs(self, model: SequenceModel, config: Config) -> None:
        """Fit to the training split what of a model is solved for before training, such as its scaling."""

    # Training.

    @abstractmethod
    def minibatches(self, model: SequenceModel, training: TrainingConfig) -> Minibatches:
        """Return the minibatches of the training split, on the device of the model."""

    @abstractmethod
    def objective(self, training: TrainingConfig) -> Objective:
        """Return the loss to train on and the metric to choose by."""

    @abstractmethod
    def validation_scorer(self, config: Config) -> Scorer:
        """Return the scorer of the validation split, which may be empty."""

    # After training.

    def calibration_reference(self, model: SequenceModel) -> Tensor | None:
        """Return a copy of the weights before training that :meth:`calibrate` compares with; None if it needs none."""
        return None

    def calibrate(self, model: SequenceModel, config: Config, reference: Tensor | None) -> dict[str, Any]:
        """Fit to the validation split what is fitted after training, in place.

        Args:
            model: With its best weights; it is left in evaluation mode.
            config: The resolved settings.
            reference: Weights of :meth:`calibration_reference`.

        Returns:
            What was fitted, as ``calibration.json`` holds it.
        """
        model.eval()
        return {}

    @abstractmethod
    def final_scores(self, predictor: TorchPredictor, config: Config, plots: Path | None) -> FinalScores:
        """Score the best weights on the validation and the test split.

        Args:
            predictor: The model with these weights.
            config: The resolved settings.
            plots: Folder for figures of the predictions; None for no figures.
        """

    @abstractmethod
    def compare_with_trivial(self, scores: Mapping[str, Any], objective: Objective) -> Comparison | None:
        """Compare a model with a trivial answer, by its scores on the validation split; None if they say nothing."""

    @abstractmethod
    def evaluate(self, predictor: Any, split: str, names: PredictorNames, *, batch_size: int = BATCH_SIZE) -> Scores:
        """Score a predictor on a split, see :func:`stablernn.training.evaluate`.

        Raises:
            UnknownNameError: If there is no split of that name.
            DataError: If the split is empty, or the data is not of the kind that the predictor was trained on.
        """

    # Before training.

    @abstractmethod
    def plan(self, config: Config) -> dict[str, Any]:
        """Return the part of a dry run's plan that is particular to the task."""

    @abstractmethod
    def largest_sample(self, training: TrainingConfig) -> tuple[Samples, int]:
        """Return the training sample that asks for most memory, and its steps that autograd keeps."""

    @abstractmethod
    def draw_data(self, path: Path) -> None:
        """Draw the data into a PNG file.

        Raises:
            CheckpointError: If the file cannot be written.
        """


def network_options(model: ModelConfig) -> NetworkOptions:
    """Return the options that classifiers and forecasters share, from the resolved section ``model``."""
    assert model.readout is not None
    assert model.scaling is not None
    assert model.patch_size is not None
    return {
        "preset": model.preset,
        "num_layers": model.num_layers,
        "dropout": model.dropout,
        "readout": model.readout,
        "patch_size": model.patch_size,
        "patch_stride": model.patch_stride,
        "patch_embedding": model.patch_embedding or 0,
        "members": model.members,
        "scaling": model.scaling,
        "window": model.window,
        "season": model.season,
        "log": model.log is True,
        "mask_channel": model.mask_channel is True,
        "max_dt": model.max_dt,
        "cell_options": model.cell_options,
    }
