"""The task 'classify': one label for each sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablernn.cells import StableCell
from stablernn.data.arrays import Samples, SplitName
from stablernn.data.options import LoadOptions
from stablernn.data.sequences import has_feature_names
from stablernn.data.types import ClassificationData
from stablernn.errors import ConfigError, DataError
from stablernn.nn.models import Classifier, SequenceModel
from stablernn.plotting import plot_early
from stablernn.terms import terms
from stablernn.training.batches.augmentation import Augmentation
from stablernn.training.batches.losses import ClassifyObjective, Objective
from stablernn.training.batches.minibatches import Minibatches
from stablernn.training.batches.mixup import Mixup
from stablernn.training.batches.sample_minibatches import SampleMinibatches
from stablernn.training.calibration.temperature import fit_temperature, set_temperature
from stablernn.training.evaluation.baselines import Baselines
from stablernn.training.evaluation.early_classification import early, refuse_early
from stablernn.training.evaluation.predictors import BATCH_SIZE, Predictor, predict
from stablernn.training.evaluation.scorers import (
    ClassificationScorer,
    PredictorNames,
    Scorer,
    Scores,
    open_classification,
)
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loop.ridge_head import Solution, fit_class_head
from stablernn.training.plots.data import plot_classes
from stablernn.training.plots.figures import draw_confusion, draw_reliability
from stablernn.training.plots.windows import WindowChoice
from stablernn.training.settings.config import Config, ModelConfig, TaskConfig, TrainingConfig
from stablernn.training.settings.defaults import (
    ModelDefaults,
    TrainingDefaults,
    calibrates,
    fill_model_settings,
    fill_scaling_settings,
    power_of_two,
)
from stablernn.training.settings.task_settings import refuse_settings_of_other_tasks, refuse_skip_settings
from stablernn.training.tasks.task import (
    MAX_EXAMPLE_VALUES,
    FinalScores,
    SampleErrors,
    ScoreExtras,
    SplitScores,
    Task,
    example_series,
    example_values,
    network_options,
)

PATCHES = 24
"""Recurrent steps that the longest sequence is divided into by default."""
PATCH_STEPS = 4
"""Overlapping patches that hold the same sample."""
HEAD_DROPOUT = 0.2
AUGMENTATION = {"time_warp": 0.03, "jitter": 0.1, "rescale": 0.1}
"""Random change of sequences in training."""
LABEL_SMOOTHING = 0.1
LEAST_STEPS = 500
"""Optimizer steps of a training, at least."""
STEPS_OF_A_CLASS = 50
"""Optimizer steps for each class, at least (`python benchmarks/cross_validation.py many-classes`)."""
_LEAST_BATCH = 8


class ClassifyTask(Task):
    """Classification of sequences.

    Args:
        data: Labeled sequences.
    """

    figures = ("confusion", "reliability", "early")

    def __init__(self, data: ClassificationData) -> None:
        self._data = data

    @property
    def data(self) -> ClassificationData:
        return self._data

    def example(self) -> dict[str, Any] | None:
        test = self.data.test
        name: SplitName = "test" if test is not None and len(test) else "validation"
        split = self.data.split(name)
        if not len(split):
            return None
        samples = split.gather([0])
        steps = int(samples.lengths[0])
        x = samples.x[0, :steps]
        if x.size > MAX_EXAMPLE_VALUES:
            return None
        dt = {} if samples.dt is None else {"dt": example_values(samples.dt[0, :steps])}
        label = self.data.labels[int(samples.y[0])]
        return {"split": name, "input": {"series": example_series(x), **dt}, "label": label}

    def task_settings(self, config: Config) -> TaskConfig:
        refuse_settings_of_other_tasks(config, "task", self.data)
        return config.task.model_copy(update={"name": self.data.task})

    def model_settings(self, config: Config, cell: StableCell) -> ModelConfig:
        refuse_settings_of_other_tasks(config, "model", self.data)
        self._refuse_resampling(config.model)
        model = config.model
        is_paper = model.preset == "paper"
        defaults = ModelDefaults() if is_paper else self._model_defaults(model, cell)
        # A cell that takes missing values as they are would meet each of them in every patch that holds it.
        overlap = 1 if cell.takes_missing else PATCH_STEPS
        filled = fill_model_settings(model, defaults, cell, patches_of_a_sample=overlap)
        # Sequences have no season of their own.
        return fill_scaling_settings(
            model, filled, window=self.data.longest_input, season=1, log=lambda: False
        ).model_copy(update={"skip": "none"})

    def _refuse_resampling(self, model: ModelConfig) -> None:
        """Refuse resampling where samples have times, or where the scaling leaves nothing of the length.

        Raises:
            ConfigError: If it does not go with the data or the settings.
        """
        if model.resample_steps is None:
            return
        if self.data.time_step is not None and model.time != "ignore":
            raise ConfigError(
                "model.resample_steps spreads the samples of a sequence evenly over its length, and "
                f"{terms().file(self.data.name)} says when they were; {terms().set('model.time', 'ignore')}, or leave "
                "model.resample_steps out."
            )
        if model.scaling not in (None, "standard", "none"):
            raise ConfigError(
                "model.resample_steps adds the length of a sequence as a feature that is the same at all steps, of "
                f"which model.scaling='{model.scaling}' would leave nothing; take standard or none."
            )

    def _model_defaults(self, model: ModelConfig, cell: StableCell) -> ModelDefaults:
        # About as many recurrent steps however long a sequence is, so that gradients reach its beginning.
        stride = max(1, round((model.resample_steps or self.data.longest_input) / PATCHES))
        return ModelDefaults(
            # What tells classes apart may lie at the end (last), everywhere (mean) or in one place (max).
            readout="all",
            head_dropout=HEAD_DROPOUT,
            # Overlapping patches cut no shape in two.
            patch_size=stride if cell.takes_missing else PATCH_STEPS * stride,
            patch_embedding=0 if cell.takes_missing else model.hidden_size,
        )

    def training_defaults(self, config: Config, defaults: TrainingDefaults) -> TrainingDefaults:
        """Return smaller batches and more epochs for few sequences, so that there are steps enough to learn.

        A cell's recommendations are for some thousand samples.
        """
        if config.model.preset == "paper":
            return defaults
        assert defaults.epochs is not None
        samples = len(self.data.train)
        batch = min(defaults.batch_size, max(_LEAST_BATCH, power_of_two(samples / 4)))
        steps = self.steps_per_epoch(config.training.batch_size or batch, 0)
        least = max(LEAST_STEPS, STEPS_OF_A_CLASS * len(self.data.labels))
        return replace(defaults, batch_size=batch, epochs=max(defaults.epochs, math.ceil(least / steps)))

    def training_settings(self, config: Config, model: ModelConfig, defaults: TrainingDefaults) -> TrainingDefaults:
        refuse_settings_of_other_tasks(config, "training", self.data)
        refuse_skip_settings(config, model)
        is_timed = self.data.time_step is not None and config.model.time != "ignore"
        if is_timed:
            self._refuse_changes_in_time(config.training)
        if config.training.channel_dropout and len(self.data.features) == 1:
            raise ConfigError(
                f"training.channel_dropout never drops all channels, and {terms().file(self.data.name)} has only one; "
                "set it to 0."
            )
        is_practical = config.model.preset == "practical"
        # A small set is learned by heart without random changes.
        changes = AUGMENTATION if is_practical else dict.fromkeys(AUGMENTATION, 0.0)
        missing = None if len(self.data.validation) else "a validation split"
        is_given = config.training.temperature is not None
        return replace(
            defaults,
            label_smoothing=LABEL_SMOOTHING if is_practical else 0.0,
            time_warp=0.0 if is_timed else changes["time_warp"],
            jitter=changes["jitter"],
            rescale=changes["rescale"],
            calibrate=calibrates(config, self.data.name, missing) and not is_given,
        )

    def _refuse_changes_in_time(self, training: TrainingConfig) -> None:
        """Refuse augmentation that does not keep the steps of a sequence at their times.

        Raises:
            ConfigError: If any is set.
        """
        for key, off in (("time_warp", 0), ("shift", 0), ("crop", 1)):
            if getattr(training, key) not in (None, off):
                raise ConfigError(
                    f"training.{key} moves steps in time, and {terms().file(self.data.name)} says when they were; set "
                    f"it to {off}, or {terms().setting('model.time', 'ignore')}."
                )
        if training.mixup:
            raise ConfigError(
                f"training.mixup mixes sequences step by step, and {terms().file(self.data.name)} says when the steps "
                f"of each were; set it to 0, or {terms().setting('model.time', 'ignore')}."
            )

    def steps_per_epoch(self, batch_size: int, bptt_steps: int) -> int:
        return math.ceil(len(self.data.train) / batch_size)

    @staticmethod
    def select_columns(
        options: LoadOptions, features: Sequence[str] | None, targets: Sequence[str] | None
    ) -> LoadOptions:
        # Sequences without names of their own can only be told apart by their position.
        return Task.select_columns(options, features if features and has_feature_names(features) else None, targets)

    def describe(self) -> dict[str, Any]:
        data = self.data
        return {
            "features": list(data.features),
            "labels": list(data.labels),
            "stamps": data.notes.get("stamps"),
            "longest": data.longest_input,
            "splits": {name: len(split) for name, split in data.splits().items()},
        }

    def build_model(self, config: Config) -> Classifier:
        model, data = config.model, self.data
        return Classifier(
            model.cell,
            len(data.features),
            len(data.labels),
            model.hidden_size,
            head_dropout=model.head_dropout or 0.0,
            **network_options(model),
        )

    def fit_inputs(self, model: SequenceModel, config: Config) -> None:
        model.fit_scaling(self.data.training_values())

    def minibatches(self, model: SequenceModel, training: TrainingConfig) -> Minibatches:
        assert training.batch_size is not None
        return SampleMinibatches(self.data.train, training.batch_size, next(model.parameters()).device)

    def objective(self, training: TrainingConfig) -> Objective:
        weights = class_weights(self.data) if training.class_weights == "balanced" else None
        augmentation = Augmentation(
            time_warp=training.time_warp or 0.0,
            jitter=training.jitter or 0.0,
            rescale=training.rescale or 0.0,
            shift=training.shift,
            crop=training.crop,
            magnitude_warp=training.magnitude_warp,
            channel_dropout=training.channel_dropout,
        )
        mixup = Mixup(training.mixup) if training.mixup else None
        return ClassifyObjective(weights, training.label_smoothing or 0.0, augmentation, mixup)

    def solve(self, model: SequenceModel) -> Solution:
        assert isinstance(model, Classifier)
        return fit_class_head(model, self.data.train)

    def scorer(self, split: SplitName, config: Config) -> Scorer:
        return ClassificationScorer(self.data, split)

    def calibrate(self, model: SequenceModel, config: Config, reference: Tensor | None) -> dict[str, Any]:
        assert isinstance(model, Classifier)
        model.eval()
        if config.training.temperature is not None:
            return {"temperature": set_temperature(model, config.training.temperature)}
        if not config.training.calibrate:
            return {}
        return {"temperature": fit_temperature(model, self.data.validation)}

    def final_scores(self, predictor: TorchPredictor, config: Config, plots: Path | None) -> FinalScores:
        data, baselines = self.data, Baselines(self.data)
        metrics: dict[str, Scores] = {}
        for split in ("validation", "test") if data.test is not None else ("validation",):
            scorer = ClassificationScorer(data, split)
            if not scorer.samples:
                continue
            outputs = predict(predictor, scorer.source)
            metrics[split] = scorer.score(outputs) | baselines.scores(split)
            # Figures are of one split.
            if plots is not None and (split == "test" or data.test is None):
                draw_confusion(plots / "confusion.png", data, scorer, outputs, split)
                draw_reliability(plots / "reliability.png", data, scorer, outputs, split)
        return FinalScores(metrics, {"ridge": baselines.notes})

    def baseline_scores(self, split: SplitName) -> Scores:
        baselines = Baselines(self.data)
        return {**(baselines.left_out_scores() if split == "train" else baselines.scores(split))}

    def score(
        self,
        predictor: Predictor,
        split: str,
        names: PredictorNames,
        extras: ScoreExtras | None = None,
        *,
        batch_size: int = BATCH_SIZE,
    ) -> SplitScores:
        scorer = open_classification(self.data, split, labels=names.outputs, features=names.features)
        metrics = scorer.score_of(predictor, batch_size=batch_size)
        # Fitted here to the training split; a forecast's baselines need no fit and are scored with it.
        baselines = Baselines(self.data)
        results: dict[str, Any] = {"baselines": {"ridge": baselines.notes}}
        if extras is not None and extras.early:
            refuse_early(predictor)
            results["early"] = early(predictor, scorer, batch_size=batch_size)
        # A file that is all test split has no other sequences to fit them to.
        is_fitted = self.data.test is self.data.train
        scores = baselines.left_out_scores() if is_fitted else baselines.scores(split)
        return SplitScores(metrics | scores, scorer.samples, results)

    def sample_errors(self, predictor: Predictor, split: str, names: PredictorNames) -> SampleErrors:
        scorer = open_classification(self.data, split, labels=names.outputs, features=names.features)
        wrong = predict(predictor, scorer.source)["probabilities"].argmax(axis=1) != scorer.truth
        samples = self.data.split(split)
        # Sequences of a person have their mistakes in common.
        clusters = {"sequences": np.arange(len(samples))} if samples.groups is None else {"groups": samples.groups}
        return SampleErrors("accuracy", samples.ids or range(len(samples)), wrong.astype(np.float64), clusters)

    def draw_figure(
        self, kind: str, path: Path, predictor: Predictor, split: str, names: PredictorNames, window: WindowChoice
    ) -> dict[str, Any]:
        data = self.data
        scorer = open_classification(data, split, labels=names.outputs, features=names.features)
        if kind == "early":
            refuse_early(predictor)
            # Accuracy of the most frequent class, drawn as a floor.
            majority = Baselines(data).scores(split).get("majority", {}).get("accuracy")
            plot_early(path, early(predictor, scorer), majority=majority, title=f"{data.name}, {split}")
            return {}
        draw = draw_confusion if kind == "confusion" else draw_reliability
        draw(path, data, scorer, predict(predictor, scorer.source), split)
        return {}

    def select_observed_samples(
        self, split: str, *, count: int, max_length: int, outputs: Sequence[str] | None = None
    ) -> Samples:
        samples = super().select_observed_samples(split, count=count, max_length=max_length)
        labels = self.data.labels
        if outputs is None or tuple(outputs) == labels:
            return samples
        unknown = sorted({labels[number] for number in samples.y} - set(outputs))
        if unknown:
            raise DataError(
                f"{terms().file(self.data.name)} has the class '{unknown[0]}', which the model does not know."
            )
        # From numbers of the data's classes to those of the model's.
        return samples._replace(y=np.array([list(outputs).index(labels[number]) for number in samples.y], np.int64))

    def plan(self, config: Config) -> dict[str, Any]:
        return {"classes": list(self.data.labels)}

    def largest_sample(self, training: TrainingConfig) -> tuple[Samples, int]:
        # Autograd keeps every step of a whole sequence.
        lengths = self.data.train.lengths
        longest = int(lengths.argmax())
        return self.data.train.gather([longest]), int(lengths[longest])

    def draw_data(self, path: Path) -> None:
        plot_classes(path, self.data)


def class_weights(data: ClassificationData) -> Tensor:
    """Return the weight of a sequence of each class, ``(classes,)``, so that all classes count alike; 1 on average."""
    counts = np.bincount(data.train.y, minlength=len(data.labels))
    # Classes without a training sequence weigh nothing; the others share the total equally.
    weights = np.where(counts > 0, len(data.train) / (np.count_nonzero(counts) * np.maximum(counts, 1)), 0.0)
    return torch.from_numpy(weights.astype(np.float32))
