"""The interface of a task on loaded data, as a run uses it from its settings to its scores."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from stablernn.cells import StableCell
from stablernn.data.arrays import Float32Array, Samples, SplitName, cut_samples
from stablernn.data.options import LoadOptions
from stablernn.data.step_data import Data
from stablernn.data.types import ForecastData
from stablernn.errors import ConfigError, DataError
from stablernn.nn.models import NetworkOptions, SequenceModel
from stablernn.plotting import _save
from stablernn.terms import terms
from stablernn.training.calibration import Conformal
from stablernn.training.evaluation.backtest import BacktestSettings, StreamMonitor
from stablernn.training.evaluation.predictors import BATCH_SIZE
from stablernn.training.evaluation.scorers import PredictorNames, Scorer, Scores
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loop.closed_form import Solution
from stablernn.training.loop.losses import Objective
from stablernn.training.loop.minibatches import Minibatches
from stablernn.training.plots import WindowChoice
from stablernn.training.settings.config import Config, ModelConfig, TaskConfig, TrainingConfig
from stablernn.training.settings.defaults import SKIP_SETTINGS, TrainingDefaults

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_EXAMPLE_VALUES = 20_000
"""Largest number of values of a stored example: about 200 kB of JSON, which a page reads at once."""


@dataclass(frozen=True)
class FinalScores:
    """Scores of a finished run, as ``summary.json`` holds them.

    Attributes:
        metrics: Scores by split.
        baselines: Notes on how the baselines were fitted.
    """

    metrics: dict[str, Scores]
    baselines: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ScoreExtras:
    """Measurements in addition to the scores; a task leaves out those of other tasks.

    Attributes:
        by: Forecast: tables of the scores to return, by series and by step ahead.
        tables: Forecast: folder to write both tables to as CSV files; None for no files.
        backtest: Forecast: rolling origins; None for no backtest.
        free_run: Forecast: function that returns the certificate to compare a long free run with; None for no such run.
        stream_monitor: Forecast: function that returns the estimates of streams, from data, levels, readings in a
            sample and certificate, with which a free run also streams the split; None to leave that out.
        early: Classify: True to score predictions from the first part of each sequence, too.
    """

    by: tuple[Literal["series", "step"], ...] = ()
    tables: Path | None = None
    backtest: BacktestSettings | None = None
    free_run: Callable[[], Mapping[str, Any]] | None = None
    stream_monitor: Callable[[ForecastData, Sequence[float], int, Mapping[str, Any]], StreamMonitor] | None = None
    early: bool = False


@dataclass(frozen=True)
class SplitScores:
    """Scores of a predictor on a split.

    Attributes:
        metrics: Scores of the predictor, and of baselines by their name.
        samples: Number of sequences or windows that were scored.
        results: Results of :class:`ScoreExtras` and notes on the scores, by name, as JSON types.
    """

    metrics: Scores
    samples: int
    results: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SampleErrors:
    """Errors of a predictor sample by sample, to compare it with another on the same samples.

    Attributes:
        metric: Metric of the whole that these errors make up.
        keys: What tells each sample apart: identifiers, or series and origins.
        errors: (samples,), less is better.
        clusters: Cluster of each sample, (samples,), by the plural noun of the clusters, which are independent of one
            another: single sequences, stretches of origins whose targets do not overlap, series.
    """

    metric: str
    keys: Sequence[Hashable]
    errors: npt.NDArray[np.float64]
    clusters: Mapping[str, npt.NDArray[np.int64]]


class Task(ABC):
    """A task on loaded data.

    Settings are resolved with the first five methods; those that follow take resolved settings. JSON types are typed as
    ``dict[str, Any]``.
    """

    has_optional_time: bool = False
    """True if ``model.time=auto`` may leave the time between steps out where the cell takes none."""
    sample_noun: ClassVar[str] = "sequences"
    """Plural noun for the samples of a split in printed text."""
    figures: ClassVar[tuple[str, ...]] = ()
    """Kinds of prediction figures that :meth:`draw_figure` draws, the default first."""

    data: Data
    """Data to train on, of the task's own class."""

    def __init__(self, data: Any) -> None:
        self.data = data

    # Settings. These methods take settings that are not resolved yet, and raise ConfigError if a setting does not go
    # with the task of the data, or with another setting.

    def task_settings(self, config: Config) -> TaskConfig:
        """Return the resolved section ``task``."""
        return config.task.model_copy(update={"name": self.data.task})

    @abstractmethod
    def model_settings(self, config: Config, cell: StableCell) -> ModelConfig:
        """Return the section ``model``, resolved except for the mask channel and the time.

        Args:
            config: The settings.
            cell: The cell that they describe.
        """

    @abstractmethod
    def training_defaults(self, config: Config, defaults: TrainingDefaults) -> TrainingDefaults:
        """Return the recommendations of a cell, changed to go with how much data there is.

        Args:
            config: The settings.
            defaults: Recommendations of the cell.
        """

    @abstractmethod
    def training_settings(self, config: Config, model: ModelConfig, defaults: TrainingDefaults) -> TrainingDefaults:
        """Return recommendations with those for the settings that only some tasks have.

        Args:
            config: The settings.
            model: The resolved section ``model``.
            defaults: Recommendations so far, with a learning rate.
        """

    def steps_per_epoch(self, batch_size: int, bptt_steps: int) -> int:
        """Return the optimizer steps of an epoch.

        Args:
            batch_size: Samples in a step.
            bptt_steps: Steps between two cuts of the gradient; used by the task 'predict-next' alone.
        """
        return math.ceil(len(self.data.splits()["train"]) / batch_size)

    @staticmethod
    def with_own_model(config: Config) -> Config:
        """Return settings of a run with the cell and the method of the task in place of a search, if it has any.

        Args:
            config: The settings, before the data is read.
        """
        return config

    # Data.

    def example(self) -> dict[str, Any] | None:
        """Return a sample that the model was not fitted on, as a request, with its true answer.

        Returns:
            ``split``, ``input`` (one of the ``inputs`` of ``/v1/timeseries``, raw units, None where a value is missing)
            and the true ``label`` or ``actual`` values, one list a target; None without such a sample, or where it has
            more than ``MAX_EXAMPLE_VALUES`` values.
        """
        return None

    @staticmethod
    def select_columns(
        options: LoadOptions, features: Sequence[str] | None, targets: Sequence[str] | None
    ) -> LoadOptions:
        """Return options that find the inputs and targets of a trained model by their names.

        Args:
            options: Options of loading data.
            features: Features of the model, in its order; None for those of the data.
            targets: Targets of the model, in its order; None for those of the data.
        """
        return options.with_options(channels=tuple(features)) if features else options

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
    def scorer(self, split: SplitName, config: Config) -> Scorer:
        """Return the scorer of a split, which may be empty."""

    @abstractmethod
    def solve(self, model: SequenceModel, training: TrainingConfig) -> Solution:
        """Solve for the head of a model on the training split in closed form, or for all of its weights.

        Args:
            model: In evaluation mode, its scaling fitted.
            training: The resolved section ``training``.

        Raises:
            TrainingError: If the split has too few samples for a regression.
        """

    # After training.

    def calibration_reference(self, model: SequenceModel) -> Tensor | None:
        """Return a copy of the weights before training that :meth:`calibrate` compares with; None if it needs none."""
        return None

    def calibrate(
        self,
        model: SequenceModel,
        config: Config,
        reference: Tensor | None,
        intervals: Conformal | None = None,
    ) -> dict[str, Any]:
        """Fit to the validation split what is fitted after training, in place.

        Args:
            model: With its best weights; it is left in evaluation mode.
            config: The resolved settings.
            reference: Weights of :meth:`calibration_reference`.
            intervals: Offsets of a forecast's quantiles by fits to earlier steps, in place of those of the validation
                split.

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

    def baseline_scores(self, split: SplitName) -> Scores:
        """Return the scores of baselines that are not among those of a scorer, by their name.

        On the training split they are those of fits that left out the sample.
        """
        return {}

    @abstractmethod
    def score(
        self,
        predictor: Any,
        split: str,
        names: PredictorNames,
        extras: ScoreExtras | None = None,
        *,
        batch_size: int = BATCH_SIZE,
    ) -> SplitScores:
        """Score a predictor on a split, see :func:`stablernn.training.evaluate`.

        Args:
            predictor: Predictor to score.
            split: train, validation or test.
            names: Names by which the predictor was trained.
            extras: Further measurements; none when omitted.
            batch_size: Samples that are predicted at once.

        Raises:
            UnknownNameError: If there is no split of that name.
            DataError: If the split is empty, or the data is not of the kind that the predictor was trained on.
        """

    def sample_errors(self, predictor: Any, split: str, names: PredictorNames) -> SampleErrors:
        """Return the errors of a predictor on each sample of a split; raises as :meth:`score`.

        Raises:
            ConfigError: If the task has no errors of single samples.
        """
        raise ConfigError(
            f"Two models are compared on forecasts and classification, and {terms().file(self.data.name)} is for "
            f"'{self.data.task}'. Score them one by one."
        )

    def draw_figure(
        self, kind: str, path: Path, predictor: Any, split: str, names: PredictorNames, window: WindowChoice
    ) -> dict[str, Any]:
        """Draw predictions on a split into a PNG file, and return facts about the figure as JSON types.

        Args:
            kind: One of :attr:`figures`.
            path: The file.
            predictor: Predictor to draw.
            split: train, validation or test.
            names: Names by which the predictor was trained.
            window: Forecast: the window to draw.

        Raises:
            UnknownNameError: If there is no split of that name, or no such series or target.
            ConfigError: If there is no such window.
            DataError: If the split is empty, or the data is not of the kind that the predictor was trained on.
        """
        raise NotImplementedError

    def select_observed_samples(
        self, split: str, *, count: int, max_length: int, outputs: Sequence[str] | None = None
    ) -> Samples:
        """Return evenly spread samples of a split, along which the dynamics of a model are observed.

        Args:
            split: train, validation or test.
            count: Most samples.
            max_length: Steps to which samples are cut; those that remain are the first ones, of a context the last.
            outputs: Classify: names of the model's classes, in its order; None: those of the data. Other tasks ignore
                it.

        Raises:
            UnknownNameError: If there is no split of that name.
            DataError: If the split is empty, or has a class that is not among ``outputs``.
        """
        return cut_samples(self._spread_samples(split, count), max_length)

    def _spread_samples(self, split: str, count: int) -> Samples:
        source = self.data.split(split)
        if not len(source):
            raise DataError(f"The split '{split}' of {terms().file(self.data.name)} is empty. Choose another split.")
        return source.gather(np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(np.int64))

    # Before training.

    @abstractmethod
    def plan(self, config: Config) -> dict[str, Any]:
        """Return the part of a dry run's plan that is particular to the task."""

    @abstractmethod
    def largest_sample(self, training: TrainingConfig) -> tuple[Samples, int]:
        """Return the training sample that asks for most memory, and its steps that autograd keeps."""

    @abstractmethod
    def data_figure(self) -> Figure:
        """Return a figure of the data."""

    def draw_data(self, path: Path) -> None:
        """Draw the data into a PNG file.

        Raises:
            CheckpointError: If the file cannot be written.
        """
        _save(self.data_figure(), path)


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
        "conv_layers": model.conv_layers,
        "conv_channels": model.conv_channels,
        "members": model.members,
        "scaling": model.scaling,
        "window": model.window,
        "season": model.season,
        "log": model.log is True,
        "mask_channel": model.mask_channel is True,
        "max_dt": model.max_dt,
        "resample_steps": model.resample_steps,
        "cell_options": model.cell_options,
    }


def example_values(values: Float32Array) -> list[Any]:
    """Return float32 values as the shortest decimals that are read back as the same ones; None where one is missing."""
    if values.ndim > 1:
        return [example_values(row) for row in values]
    return [None if np.isnan(value) else float(str(value)) for value in values]


def example_series(x: Float32Array) -> list[Any]:
    """Return samples (time, features) as a series of a request, which is flat if there is one feature."""
    return example_values(x[:, 0] if x.shape[1] == 1 else x)


_SETTINGS_OF_ONE_TASK: tuple[tuple[Any, ...], ...] = (
    ("task.horizon", "forecast"),
    ("task.context_length", "forecast"),
    ("task.season", "forecast"),
    ("task.quantiles", "forecast"),
    ("model.embedding_size", "predict-next"),
    ("model.predict_change", "predict-next", False),
    ("model.head", "forecast", "direct"),
    # Resolved settings say "none" for a classification.
    ("model.skip", "forecast", None, "none"),
    ("model.non_negative", "forecast"),
    *((f"model.{key}", "forecast") for key in SKIP_SETTINGS),
    ("model.resample_steps", "classify"),
    ("training.bptt_steps", ("predict-next", "simulate")),
    ("training.class_weights", "classify", "none"),
    # 0 is off, as in every other task.
    ("training.label_smoothing", "classify", None, 0.0),
    ("training.time_warp", "classify", None, 0.0),
    ("training.shift", "classify", 0.0),
    ("training.jitter", "classify", None, 0.0),
    ("training.rescale", "classify", None, 0.0),
    ("training.crop", "classify", 1.0),
    ("training.magnitude_warp", "classify", 0.0),
    ("training.channel_dropout", "classify", 0.0),
    ("training.mixup", "classify", 0.0),
    ("training.temperature", "classify"),
    ("training.warm_up", "forecast"),
)


def refuse_settings_of_other_tasks(config: Config, data: Data) -> None:
    """Refuse settings that the task of the data does not have.

    Args:
        config: The settings, before they are resolved.
        data: Data to train on.

    Raises:
        ConfigError: If one is set.
    """
    for key, task, *unset in _SETTINGS_OF_ONE_TASK:
        section, name = key.split(".")
        tasks = (task,) if isinstance(task, str) else task
        if data.task not in tasks and getattr(getattr(config, section), name) not in (unset or (None,)):
            raise ConfigError(
                f"{key} is only used by the task {' and '.join(map(repr, tasks))}, and {terms().file(data.name)} is "
                f"for '{data.task}'."
            )
