"""The task 'classify': one label for each sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stablernn.cells import StableCell
from stablernn.data.arrays import Samples, SplitName
from stablernn.data.options import LoadOptions
from stablernn.data.sequences import has_feature_names
from stablernn.data.types import ClassificationData
from stablernn.data.windows import SampleSource, evenly_spaced
from stablernn.errors import ConfigError, DataError
from stablernn.nn.models import Classifier, SequenceModel
from stablernn.plotting import plot_early
from stablernn.terms import terms
from stablernn.training.calibration import Conformal, fit_temperature, set_temperature
from stablernn.training.evaluation.baselines import Baselines
from stablernn.training.evaluation.metrics import label_metrics
from stablernn.training.evaluation.predictors import BATCH_SIZE, Predictor, predict
from stablernn.training.evaluation.scorers import (
    ClassificationScorer,
    PredictorNames,
    Scorer,
    Scores,
    open_classification,
)
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loop.augmentation import Augmentation, Mixup
from stablernn.training.loop.closed_form import Solution, fit_class_head
from stablernn.training.loop.losses import ClassifyObjective, Objective
from stablernn.training.loop.minibatches import Minibatches, SampleMinibatches, model_inputs
from stablernn.training.plots import WindowChoice, classes_figure, draw_confusion, draw_reliability
from stablernn.training.settings.config import Config, ModelConfig, TrainingConfig
from stablernn.training.settings.defaults import (
    ModelDefaults,
    TrainingDefaults,
    calibrates,
    fill_model_settings,
    fill_scaling_settings,
    power_of_two,
)
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

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
FIXED_UNITS = 2520
"""Features of a cell that no gradient trains: 30 for each of 84 kernels. MiniRocket has 9,996, of which a stream would
keep four times the numbers."""
FIT_SEQUENCES = 256
"""Training sequences, evenly spaced, that such a cell is fitted to."""
_LEAST_BATCH = 8


class ClassifyTask(Task):
    """Classification of sequences.

    Args:
        data: Labeled sequences.
    """

    figures = ("confusion", "reliability", "early")
    data: ClassificationData  # pyright: ignore[reportIncompatibleVariableOverride]

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

    def model_settings(self, config: Config, cell: StableCell) -> ModelConfig:
        self._refuse_resampling(config.model)
        model = config.model
        if cell.is_fixed and "hidden_size" not in model.model_fields_set:
            model = model.model_copy(update={"hidden_size": FIXED_UNITS})
        # A fixed cell pools over time by itself, and its kernels are of single samples.
        is_plain = model.preset == "paper" or cell.is_fixed
        defaults = ModelDefaults() if is_plain else self._model_defaults(model, cell)
        # A cell that takes missing values as they are would meet each of them in every patch that holds it.
        overlap = 1 if cell.takes_missing else PATCH_STEPS
        filled = fill_model_settings(model, defaults, cell, patches_of_a_sample=overlap)
        # Sequences have no season of their own.
        return fill_scaling_settings(model, filled, window=self.data.longest_input, season=1, log=False).model_copy(
            update={"skip": "none"}
        )

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
        if model.rnn.cells[0].is_fixed:
            numbers = evenly_spaced(len(self.data.train), FIT_SEQUENCES)
            x, lengths, *_ = model_inputs(self.data.train.gather(numbers), model)
            model.fit_layers(x, lengths)

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

    def solve(self, model: SequenceModel, training: TrainingConfig) -> Solution:
        assert isinstance(model, Classifier)
        return fit_class_head(model, self.data.train)

    def scorer(self, split: SplitName, config: Config) -> Scorer:
        return ClassificationScorer(self.data, split)

    def calibrate(
        self, model: SequenceModel, config: Config, reference: Tensor | None, intervals: Conformal | None = None
    ) -> dict[str, Any]:
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
        scorer = open_classification(self.data, split, names)
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
        scorer = open_classification(self.data, split, names)
        wrong = predict(predictor, scorer.source)["probabilities"].argmax(axis=1) != scorer.truth
        samples = self.data.split(split)
        # Sequences of a person have their mistakes in common.
        clusters = {"sequences": np.arange(len(samples))} if samples.groups is None else {"groups": samples.groups}
        return SampleErrors("accuracy", samples.ids or range(len(samples)), wrong.astype(np.float64), clusters)

    def draw_figure(
        self, kind: str, path: Path, predictor: Predictor, split: str, names: PredictorNames, window: WindowChoice
    ) -> dict[str, Any]:
        data = self.data
        scorer = open_classification(data, split, names)
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

    def data_figure(self) -> Figure:
        return classes_figure(self.data)


def class_weights(data: ClassificationData) -> Tensor:
    """Return the weight of a sequence of each class, ``(classes,)``, so that all classes count alike; 1 on average."""
    counts = np.bincount(data.train.y, minlength=len(data.labels))
    # Classes without a training sequence weigh nothing; the others share the total equally.
    weights = np.where(counts > 0, len(data.train) / (np.count_nonzero(counts) * np.maximum(counts, 1)), 0.0)
    return torch.from_numpy(weights.astype(np.float32))


SHARES = tuple(tenths / 10 for tenths in range(1, 11))
"""Shares of a sequence's length after which predictions are scored."""


def early(
    predictor: Predictor, scorer: ClassificationScorer, *, batch_size: int = BATCH_SIZE
) -> list[dict[str, float]]:
    """Return accuracy and macro F1 after each tenth of every sequence.

    Args:
        predictor: Predictor to score.
        scorer: Scorer of the split.
        batch_size: Sequences per run.

    Returns:
        Rows of ``share``, ``steps`` (the mean over the sequences of the share in steps, rounded up), ``accuracy`` and
        ``macro_f1``. The last row is the score of whole sequences.
    """
    rows = []
    for share in SHARES:
        beginnings = Beginnings(scorer.source, share)
        predicted = predict(predictor, beginnings, batch_size=batch_size)["probabilities"].argmax(axis=1)
        scores = label_metrics(predicted, scorer.truth, len(scorer.classes))
        rows.append({"share": share, "steps": beginnings.steps_seen / len(beginnings), **scores})
    return rows


def refuse_early(predictor: Predictor) -> None:
    """Refuse predictors of complete sequences.

    Raises:
        ConfigError: If it is one: the beginning of a sequence would be resampled as a whole one, shorter than it is.
    """
    steps = getattr(predictor, "resample_steps", None)
    if steps is not None:
        raise ConfigError(
            f"The model resamples complete sequences to {steps} samples and has no answer before the last one. Leave "
            "out early classification, or train without model.resample_steps."
        )


class Beginnings:
    """The first part of each sequence of a source, rounded up to whole steps.

    Args:
        source: Whole sequences.
        share: Share of each sequence's length, above 0 and up to 1.

    Attributes:
        steps_seen: Steps of all samples that have been gathered.
    """

    def __init__(self, source: SampleSource, share: float) -> None:
        self._source = source
        self._share = share
        self.steps_seen = 0

    def __len__(self) -> int:
        return len(self._source)

    def gather(self, indices: npt.NDArray[np.int64]) -> Samples:
        batch = self._source.gather(indices)
        # Rounding can lift a product such as .3 * 10 just above the whole number that it is.
        lengths = np.ceil(batch.lengths * self._share - 1e-9).astype(np.int64)
        self.steps_seen += int(lengths.sum())
        longest = int(lengths.max())
        # Steps after the part must not leak into it: they become padding, 0 with intervals of 1.
        is_inside = np.arange(longest) < lengths[:, None]
        dt = None if batch.dt is None else np.where(is_inside, batch.dt[:, :longest], np.float32(1))
        x = np.where(is_inside[..., None], batch.x[:, :longest], np.float32(0))
        return batch._replace(x=x, lengths=lengths, dt=dt)
