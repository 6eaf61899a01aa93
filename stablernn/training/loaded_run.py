"""Runs read from their directories, and scores of a predictor on data of any task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stablernn.atomic_files import read_json
from stablernn.data.step_data import Data
from stablernn.errors import CheckpointError
from stablernn.nn.models import SequenceModel, build_model
from stablernn.training.evaluation.predictors import BATCH_SIZE, Predictor, StepPredictor
from stablernn.training.evaluation.scorers import PredictorNames
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loop.checkpoint import load_checkpoint
from stablernn.training.run_data import load_run_data, locate_files
from stablernn.training.run_directory import RunDirectory
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import stored_settings
from stablernn.training.tasks import task_for

Summary = dict[str, Any]


@dataclass(frozen=True)
class LoadedRun:
    """A run as read from its directory.

    Attributes:
        path: The directory.
        model: With the best weights, or those of the epoch that was asked for, on the CPU, in evaluation mode.
        config: The resolved settings, as stored.
        data: Content of ``data.json``: fingerprint, files, splits, features, labels or targets, scaling.
        summary: Content of ``summary.json``; None while the run is not done.
    """

    path: Path
    model: SequenceModel
    config: Config
    data: dict[str, Any]
    summary: Summary | None

    def predictor(self) -> TorchPredictor:
        return TorchPredictor(self.model)

    @property
    def located(self) -> Config:
        """The settings with the data's files named by where they lie, whatever the working directory is."""
        return locate_files(self.config, self.path, self.data)

    def load_data(self, source: str | None = None) -> Data:
        """Load the run's data, or another source so that it fits the model; see :func:`load_run_data`.

        Raises:
            UnknownNameError: If a file is missing.
            DataError: If its content cannot be used.
        """
        return load_run_data(self.located, source, features=self.data["features"], targets=self.data.get("targets"))


def load_run(run_dir: str | Path, epoch: int | None = None) -> LoadedRun:
    """Read a run with its best weights so far, or with those after one epoch.

    Args:
        run_dir: The directory.
        epoch: From 1; the run must have been trained with ``training.keep_epochs``. These weights are not calibrated.

    Raises:
        CheckpointError: If there is no run, no validated weights yet, none of that epoch, or a file is damaged.
    """
    directory = RunDirectory(Path(run_dir))
    if not directory.has_run:
        raise CheckpointError(f"There is no run in '{run_dir}': it has no config.yaml.")
    if not directory.checkpoint("best").is_file():
        raise CheckpointError(
            f"The run in '{run_dir}' has no trained weights yet: no epoch was finished. Go on with it by --resume."
        )
    name = "best" if epoch is None else f"epoch-{epoch}"
    if not directory.checkpoint(name).is_file():
        raise CheckpointError(
            f"The run in '{run_dir}' keeps no weights of epoch {epoch}. It has {len(directory.records())} epochs; "
            "train with training.keep_epochs=true to keep those of each."
        )
    # The checkpoint has the model's own configuration, so that the data need not be loaded to build it.
    checkpoint = load_checkpoint(directory.checkpoint(name))
    model = build_model(checkpoint.state["model"])
    model.load_state_dict(checkpoint.group("model"))
    model.mark_fitted()
    # The directory may have been moved since the summary was written.
    summary = {**read_json(directory.summary), "run": str(run_dir)} if directory.summary.is_file() else None
    return LoadedRun(directory.path, model.eval(), stored_settings(directory), directory.read_data(), summary)


def evaluate(
    predictor: Predictor | StepPredictor,
    data: Data,
    split: str = "test",
    *,
    quantiles: Sequence[float] | None = None,
    labels: Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    batch_size: int = BATCH_SIZE,
) -> dict[str, Any]:
    """Return the scores on one split.

    Args:
        predictor: Predictor to score.
        data: Data to score it on.
        split: train, validation or test.
        quantiles: Levels of the predictor's quantiles; None where it has none.
        labels: The classes or outputs that the predictor knows, in its order; None: those of the data.
        features: The features that the predictor was trained on, in its order; None: those of the data.
        batch_size: Samples that are predicted at once.

    Returns:
        Classify: see :func:`~stablernn.training.evaluation.metrics.classification_metrics`; ``ridge`` and ``majority``
        with the scores of :class:`~stablernn.training.evaluation.baselines.Baselines` on the same sequences.

        Forecast: see :func:`~stablernn.training.evaluation.metrics.forecast_metrics` and
        :func:`~stablernn.training.evaluation.metrics.quantile_metrics`, over all windows of the split in raw units;
        ``seasonal_naive``, ``naive`` and ``drift`` with the scores of these forecasts on the same windows;
        ``relative_mae``, the MAE over that of the seasonal naive forecast.

        Predict-next: see :func:`~stablernn.training.tasks.predict_next.evaluate_steps`.

    Raises:
        UnknownNameError: If there is no split of that name.
        DataError: If the split is empty, or the data is not of the kind that the predictor was trained on.
    """
    names = PredictorNames(features=features, outputs=labels, quantiles=quantiles)
    return task_for(data).score(predictor, split, names, batch_size=batch_size).metrics
