"""The task 'predict-next': a target at every step of a sequence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np

from stablernn.cells import StableCell
from stablernn.data.arrays import Samples, SplitName, cut_samples
from stablernn.data.segments import streams
from stablernn.data.step_data import StepData
from stablernn.errors import ConfigError
from stablernn.nn.models import SequenceModel, SequencePredictor
from stablernn.training.batches.losses import Objective, PredictNextObjective
from stablernn.training.batches.minibatches import Minibatches, SegmentMinibatches, count_segment_minibatches
from stablernn.training.evaluation.evaluate_predict_next import StepScorer, evaluate_steps
from stablernn.training.evaluation.predictors import BATCH_SIZE
from stablernn.training.evaluation.scorers import PredictorNames, Scorer
from stablernn.training.evaluation.stepwise import StepPredictor
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loop.ridge_head import Solution
from stablernn.training.loop.step_head import fit_step_head
from stablernn.training.plots.data import plot_steps
from stablernn.training.settings.config import Config, ModelConfig, TaskConfig, TrainingConfig
from stablernn.training.settings.defaults import TrainingDefaults, power_of_two
from stablernn.training.settings.task_settings import refuse_settings_of_other_tasks, refuse_skip_settings
from stablernn.training.tasks.task import FinalScores, ScoreExtras, SplitScores, Task


class _Recommended(TypedDict, total=False):
    bptt_steps: int
    batch_size: int


RECOMMENDED: dict[str, _Recommended] = {
    "ptb-char": {"bptt_steps": 150, "batch_size": 128},
    "ptb-word": {"bptt_steps": 300, "batch_size": 32},
    "musedata": {"bptt_steps": 300},
}
"""Training settings of the named datasets for which those of the cell do not work."""

TEXT_BPTT_STEPS = 150
"""Steps between two cuts of the gradient in running text."""

LEAST_TEXT_STEPS = 20
"""Least number of optimizer steps in an epoch of running text; short texts get fewer streams instead."""

LEAST_STEPS = 2000
"""Least number of optimizer steps of a training on sequences, by smaller batches first and then by more epochs.

On 229 chorales (JSB) 2,320 steps in batches of 8 instead of 640 of 32 lower the test error of lipschitz from 8.94 to
8.70 nats a frame, and that of lru from 8.89 to 8.85."""
_LEAST_BATCH = 8

CLIP_NORM = 1.0
"""Largest norm of the gradient where the cell recommends none: a loss at every step makes it large now and then."""

LARGEST_ONE_HOT = 256
"""Different tokens up to which each is a channel of its own."""

_USED = ("cell", "preset", "engine", "hidden_size", "num_layers", "dropout", "mask_channel", "cell_options")
_RESOLVED = (*_USED, "embedding_size", "predict_change", "time", "time_step", "max_dt")
# The other settings of a model, which have one value each when they are resolved.
_FIXED: dict[str, str | int | float] = {
    "readout": "last",
    "scaling": "standard",
    "patch_size": 1,
    "patch_stride": 1,
    "patch_embedding": 0,
    "members": 1,
    "head_dropout": 0.0,
    "skip": "none",
}


class PredictNextTask(Task):
    """Answers at every step of sequences: what comes next, or another target.

    Args:
        data: Sequences with a target at each step.
    """

    def __init__(self, data: StepData) -> None:
        self._data = data

    @property
    def data(self) -> StepData:
        return self._data

    def task_settings(self, config: Config) -> TaskConfig:
        refuse_settings_of_other_tasks(config, "task", self.data)
        return config.task.model_copy(update={"name": self.data.task})

    def model_settings(self, config: Config, cell: StableCell) -> ModelConfig:
        model, data = config.model, self.data
        for key, field in ModelConfig.model_fields.items():
            value = getattr(model, key)
            if key not in _RESOLVED and value not in (field.default, _FIXED.get(key)):
                raise ConfigError(
                    f"model.{key} is not used by the task 'predict-next', and '{data.name}' is for it; got {value!r}."
                )
        if not data.tokens and model.embedding_size:
            raise ConfigError(
                f"model.embedding_size is for tokens, and '{data.name}' has numbers as inputs; got "
                f"{model.embedding_size}."
            )
        size = model.embedding_size
        # A large vocabulary as unit vectors would make the first layer's input very wide.
        if size is None:
            size = model.hidden_size if data.tokens and len(data.features) > LARGEST_ONE_HOT else 0
        if model.predict_change and (data.output != "real" or data.features != data.outputs):
            raise ConfigError(
                f"model.predict_change needs outputs that are the inputs one step on, and those of '{data.name}' are "
                "not."
            )
        return model.model_copy(update={"embedding_size": size, **_FIXED})

    def training_defaults(self, config: Config, defaults: TrainingDefaults) -> TrainingDefaults:
        data = self.data
        if config.training.refit:
            raise ConfigError(f"training.refit is not used by the task 'predict-next', and '{data.name}' is for it.")
        recommended = RECOMMENDED.get(data.name, {})
        bptt_steps = recommended.get("bptt_steps", TEXT_BPTT_STEPS if data.continuous else 0)
        # 0 is a length too: whole sequences.
        if config.training.bptt_steps is not None:
            bptt_steps = config.training.bptt_steps
        batch_size = recommended.get("batch_size", defaults.batch_size)
        if data.continuous and data.name not in RECOMMENDED:
            # A short text in many streams would be a step or two an epoch.
            streams = int(np.asarray(data.train.lengths).sum()) // (max(bptt_steps, 1) * LEAST_TEXT_STEPS)
            batch_size = max(1, min(batch_size, streams))
        epochs = defaults.epochs
        assert epochs is not None
        if not data.continuous:
            few = power_of_two(len(data.train) * epochs / LEAST_STEPS)
            batch_size = min(batch_size, max(_LEAST_BATCH, few))
            steps = self.steps_per_epoch(config.training.batch_size or batch_size, bptt_steps)
            epochs = max(epochs, math.ceil(LEAST_STEPS / steps))
        clip_norm = CLIP_NORM if defaults.clip_norm is None else defaults.clip_norm
        return replace(defaults, batch_size=batch_size, epochs=epochs, bptt_steps=bptt_steps, clip_norm=clip_norm)

    def training_settings(self, config: Config, model: ModelConfig, defaults: TrainingDefaults) -> TrainingDefaults:
        refuse_settings_of_other_tasks(config, "training", self.data)
        refuse_skip_settings(config, model)
        if config.training.calibrate is not None:
            raise ConfigError(
                f"training.calibrate is not used by the task 'predict-next', and '{self.data.name}' is for it."
            )
        return defaults

    def steps_per_epoch(self, batch_size: int, bptt_steps: int) -> int:
        data = self.data
        return count_segment_minibatches(data.train, batch_size, bptt_steps, continuous=data.continuous)

    def describe(self) -> dict[str, Any]:
        data = self.data
        # Numbers are targets, as of a forecast; classes and binary targets are labels.
        names: Literal["targets", "labels"] = "targets" if data.output == "real" else "labels"
        splits = data.splits().items()
        return {
            "features": list(data.features),
            names: list(data.outputs),
            "output": data.output,
            "tokens": data.tokens,
            "continuous": data.continuous,
            "headline": data.headline,
            "longest": data.longest_input,
            "splits": {name: len(split) for name, split in splits},
            "steps": {name: int(np.asarray(split.lengths).sum()) for name, split in splits},
        }

    def build_model(self, config: Config) -> SequencePredictor:
        model, data = config.model, self.data
        return SequencePredictor(
            model.cell,
            len(data.features),
            len(data.outputs),
            model.hidden_size,
            output=data.output,
            tokens=data.tokens,
            embedding_size=model.embedding_size or 0,
            predict_change=model.predict_change,
            preset=model.preset,
            num_layers=model.num_layers,
            dropout=model.dropout,
            mask_channel=model.mask_channel is True,
            cell_options=model.cell_options,
        )

    def fit_inputs(self, model: SequenceModel, config: Config) -> None:
        assert isinstance(model, SequencePredictor)
        # Tokens have no scale.
        if not self.data.tokens:
            model.fit_scaling(self.data.training_values())
        model.fit_targets(np.asarray(y) for _, y in self.data.training_sequences())

    def minibatches(self, model: SequenceModel, training: TrainingConfig) -> Minibatches:
        assert training.batch_size is not None
        assert training.bptt_steps is not None
        return SegmentMinibatches(
            self.data.train,
            training.batch_size,
            training.bptt_steps,
            continuous=self.data.continuous,
            device=next(model.parameters()).device,
        )

    def objective(self, training: TrainingConfig) -> Objective:
        return PredictNextObjective(self.data.headline)

    def solve(self, model: SequenceModel) -> Solution:
        assert isinstance(model, SequencePredictor)
        return Solution(fit_step_head(model, self.data.train))

    def scorer(self, split: SplitName, config: Config) -> Scorer:
        return StepScorer(self.data, split)

    def final_scores(self, predictor: TorchPredictor, config: Config, plots: Path | None) -> FinalScores:
        scorers = {split: StepScorer(self.data, split) for split in ("validation", "test")}
        return FinalScores({split: scorer.score_of(predictor) for split, scorer in scorers.items() if scorer.samples})

    def score(
        self,
        predictor: StepPredictor,
        split: str,
        names: PredictorNames,
        extras: ScoreExtras | None = None,
        *,
        batch_size: int = BATCH_SIZE,
    ) -> SplitScores:
        metrics = evaluate_steps(predictor, self.data, split, features=names.features, outputs=names.outputs)
        return SplitScores(metrics, len(self.data.split(split)))

    def select_observed_samples(
        self, split: str, *, count: int, max_length: int, outputs: Sequence[str] | None = None
    ) -> Samples:
        return cut_samples(self._spread_samples(split, count), max_length, has_step_targets=True)

    def _spread_samples(self, split: str, count: int) -> Samples:
        source = self.data.split(split)
        if not self.data.continuous or not len(source):
            return super()._spread_samples(split, count)
        # A running text is one long sequence: parallel stretches of it stand for several.
        return streams(source, count)

    def plan(self, config: Config) -> dict[str, Any]:
        return {"outputs": len(self.data.outputs), "bptt_steps": config.training.bptt_steps}

    def largest_sample(self, training: TrainingConfig) -> tuple[Samples, int]:
        lengths = np.asarray(self.data.train.lengths)
        longest = int(lengths.argmax())
        steps = int(lengths[longest])
        # Autograd keeps no more than a segment.
        return self.data.train.gather([longest]), min(steps, training.bptt_steps) if training.bptt_steps else steps

    def draw_data(self, path: Path) -> None:
        plot_steps(path, self.data)
