"""The task 'simulate': the outputs of a machine from its inputs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from stablernn.cells import StableCell
from stablernn.data.arrays import SplitName
from stablernn.data.experiments import SimulationData
from stablernn.data.options import LoadOptions
from stablernn.nn.models import SequenceModel, SequencePredictor
from stablernn.training.evaluation.predictors import BATCH_SIZE, StepPredictor
from stablernn.training.evaluation.scorers import PredictorNames, Scorer
from stablernn.training.evaluation.simulation import SimulationScorer
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loop.closed_form import Solution
from stablernn.training.loop.gauss_newton import fit_simulation, linear_simulator, recommend_size
from stablernn.training.loop.losses import Objective, PredictNextObjective
from stablernn.training.plots import WindowChoice, draw_simulation
from stablernn.training.settings.config import AUTO, Config, ModelConfig, TrainingConfig
from stablernn.training.settings.defaults import GAUSS_NEWTON, TrainingDefaults
from stablernn.training.tasks.predict_next import PredictNextTask, check_scored
from stablernn.training.tasks.task import FinalScores, ScoreExtras, SplitScores

CELL = "ren"
"""Cell that the method of the task fits."""
BPTT_STEPS = 256
"""Steps between two cuts of the gradient: longer than the memory of most machines at a usual sampling time."""


class SimulateTask(PredictNextTask):
    """Answers at every step of experiments: the outputs, from the inputs alone and without measured ones.

    Args:
        data: Experiments.
    """

    data: SimulationData  # pyright: ignore[reportIncompatibleVariableOverride]
    fixed: ClassVar[Mapping[str, str | int | float]] = {
        key: value for key, value in PredictNextTask.fixed.items() if key != "members"
    }
    sample_noun: ClassVar[str] = "experiments"
    figures: ClassVar[tuple[str, ...]] = ("simulation",)

    @staticmethod
    def with_own_model(config: Config) -> Config:
        if config.model.cell == AUTO:
            config = config.updated("model", cell=CELL)
        training = config.training
        if config.model.cell != CELL or "method" in training.model_fields_set:
            return config
        # The fit has no epochs to choose from by a validation split, which it is fitted to as well.
        refit = training.refit if "refit" in training.model_fields_set else True
        return config.updated("training", method=GAUSS_NEWTON, refit=refit)

    def model_settings(self, config: Config, cell: StableCell) -> ModelConfig:
        given = config.model.model_fields_set
        # The settings of a run that is read again have their sizes.
        if config.training.method == GAUSS_NEWTON and not {"hidden_size", "members"} <= given:
            size = recommend_size(self.data)
            changes = {"hidden_size": size.hidden_size, "members": size.members}
            changes = {key: value for key, value in changes.items() if key not in given}
            neurons = {"num_neurons": size.num_neurons, **config.model.cell_options}
            config = config.updated("model", **changes, cell_options=neurons)
        return super().model_settings(config, cell)

    def build_model(self, config: Config) -> SequencePredictor:
        model, data = config.model, self.data
        return SequencePredictor(
            model.cell,
            len(data.features),
            len(data.outputs),
            model.hidden_size,
            output="real",
            saturation=True,
            preset=model.preset,
            num_layers=model.num_layers,
            dropout=model.dropout,
            members=model.members,
            cell_options=model.cell_options,
        )

    def solve(self, model: SequenceModel, training: TrainingConfig) -> Solution:
        assert isinstance(model, SequencePredictor)
        if training.method == GAUSS_NEWTON:
            return Solution(fit_simulation(model, self.data, training.seed))
        return super().solve(model, training)

    def training_defaults(self, config: Config, defaults: TrainingDefaults) -> TrainingDefaults:
        if config.training.bptt_steps is None and self.data.longest_input > BPTT_STEPS:
            config = config.updated("training", bptt_steps=BPTT_STEPS)
        return super().training_defaults(config, defaults)

    def objective(self, training: TrainingConfig) -> Objective:
        return PredictNextObjective(self.data.headline, by_output=True)

    def scorer(self, split: SplitName, config: Config) -> Scorer:
        return SimulationScorer(self.data, split, linear_simulator)

    @staticmethod
    def select_columns(
        options: LoadOptions, features: Sequence[str] | None, targets: Sequence[str] | None
    ) -> LoadOptions:
        # They have names of their own, which the settings state.
        return options

    def final_scores(self, predictor: TorchPredictor, config: Config, plots: Path | None) -> FinalScores:
        metrics = {}
        for split in ("validation", "test"):
            scorer = SimulationScorer(self.data, split, linear_simulator)
            if not scorer.samples:
                continue
            metrics[split] = scorer.score_of(predictor)
            if plots is not None:
                draw_simulation(plots / f"simulation_{split}.png", self.data, split, scorer.residuals(predictor))
        return FinalScores(metrics)

    def score(
        self,
        predictor: StepPredictor,
        split: str,
        names: PredictorNames,
        extras: ScoreExtras | None = None,
        *,
        batch_size: int = BATCH_SIZE,
    ) -> SplitScores:
        scorer = self._scorer_for(split, names)
        return SplitScores(scorer.score_of(predictor), scorer.samples)

    def draw_figure(
        self, kind: str, path: Path, predictor: Any, split: str, names: PredictorNames, window: WindowChoice
    ) -> dict[str, Any]:
        residuals = self._scorer_for(split, names).residuals(predictor)
        draw_simulation(path, self.data, split, residuals)
        return {"experiments": len(residuals.measured)}

    def _scorer_for(self, split: str, names: PredictorNames) -> SimulationScorer:
        check_scored(self.data, split, names.features, names.outputs)
        return SimulationScorer(self.data, split, linear_simulator)
