"""The end of a run: calibration, scores of the best weights, figures, the summary."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import Tensor

from stablernn.atomic_files import plain, write_json
from stablernn.certificates.certificate import prove
from stablernn.data import ClassificationData, ForecastData
from stablernn.data.step_data import StepData
from stablernn.data.types import score_notes
from stablernn.errors import TrainingError
from stablernn.nn.models import Classifier, Forecaster, SequenceModel
from stablernn.training.calibration.temperature import fit_offsets, fit_temperature
from stablernn.training.evaluation.baselines import Baselines
from stablernn.training.evaluation.evaluate import Scorer, TorchPredictor, predict
from stablernn.training.evaluation.evaluate_predict_next import StepScorer
from stablernn.training.loaded_run import Summary
from stablernn.training.loop.certificate_log import check_certified, proved_in_short
from stablernn.training.loop.ridge_skip import gate
from stablernn.training.loop.trainer import Trainer
from stablernn.training.plots.figures import draw_curves, draw_predictions
from stablernn.training.run_data import Data
from stablernn.training.run_directory import RunDirectory
from stablernn.training.settings.config import Config
from stablernn.training.verdict import judge

_LOG = logging.getLogger("stablernn.training")


def calibrate(model: SequenceModel, config: Config, data: Data, skip: Tensor | None) -> dict[str, Any]:
    """Fit to the validation split what is fitted after training, in directory.

    Args:
        model: With its best weights; it is left in evaluation mode.
        config: The resolved settings.
        data: What it was trained on.
        skip: The weights of a forecast's linear skip before training.

    Returns:
        What was found: the ``gate`` of a skip, the ``temperature`` of a classifier, the ``intervals`` of a forecast.
    """
    model.eval()
    found: dict[str, Any] = {}
    if isinstance(model, Forecaster) and isinstance(data, ForecastData):
        windows = data.windows("validation")
        if not len(windows):
            return found
        if skip is not None:
            found["gate"] = asdict(gate(model, skip, windows))
        if config.training.calibrate:
            found["intervals"] = fit_offsets(model, windows)
    elif isinstance(model, Classifier) and isinstance(data, ClassificationData) and config.training.calibrate:
        found["temperature"] = fit_temperature(model, data.validation)
    return found


def finish(directory: RunDirectory, config: Config, data: Data, trainer: Trainer, start: Tensor | None) -> Summary:
    """Score the best weights, draw, and write the summary, whose being there says that the run is done."""
    trainer.load_best()
    calibration = calibrate(trainer.model, config, data, start)
    if calibration:
        write_json(directory.calibration, calibration)
    directory.save("best", trainer.best(trainer.model.state_dict()))
    if config.training.certified:
        check_certified(trainer.model, prove(trainer.model, stored=False))
    predictor = TorchPredictor(trainer.model)
    position = trainer.position
    if config.training.plots:
        draw_curves(
            directory.plots, directory.records(), trainer.task.headline, position.best_epoch, directory.path.name
        )
    if isinstance(data, StepData):
        scorers = {split: StepScorer(data, split) for split in ("validation", "test")}
        found = {split: scorer.score_of(predictor) for split, scorer in scorers.items() if scorer.samples}
        return _summarize(directory, config, data, trainer, found, {}, calibration)
    metrics: dict[str, Any] = {}
    drawn = "validation"
    validation = scorer = Scorer(data, "validation", quantiles=config.task.quantiles)
    outputs = predict(predictor, validation.source)
    if validation.samples:
        metrics["validation"] = validation.score(outputs)
    if isinstance(data, ForecastData) or data.test is not None:
        drawn, scorer = "test", Scorer(data, "test", quantiles=config.task.quantiles)
        outputs = predict(predictor, scorer.source)
        metrics["test"] = scorer.score(outputs)
    baselines: dict[str, Any] = {}
    if isinstance(data, ClassificationData):
        fitted = Baselines(data)
        metrics = {split: scores | fitted.scores(split) for split, scores in metrics.items()}
        baselines = {"ridge": fitted.notes}
    if scorer.samples and config.training.plots:
        draw_predictions(directory.plots, data, scorer, outputs, config.task.quantiles or (), drawn)
    return _summarize(directory, config, data, trainer, metrics, baselines, calibration)


def _summarize(
    directory: RunDirectory,
    config: Config,
    data: Data,
    trainer: Trainer,
    metrics: Mapping[str, Any],
    baselines: Mapping[str, Any],
    calibration: Mapping[str, Any],
) -> Summary:
    position = trainer.position
    verdict = judge(trainer, data, metrics.get("validation"), calibration.get("gate"))
    summary: Summary = {
        "run": str(directory.path),
        "task": data.task,
        "cell": config.model.cell,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad),
        "epochs": trainer.epochs_begun,
        "steps": position.step,
        "seconds": round(position.seconds, 3),
        "best_epoch": position.best_epoch,
        "metrics": metrics,
        "baselines": baselines,
        "certificate": proved_in_short(trainer.model),
        "data_notes": score_notes(data.notes),
        "diverged": verdict.diverged,
        "warnings": [*verdict.warnings, *([verdict.failure] if verdict.failure is not None else [])],
    }
    if "gate" in calibration:
        summary["gate"] = calibration["gate"]
    if "context_length" in data.notes:
        summary["context_length"] = data.notes["context_length"]
    write_json(directory.summary, summary)
    for sentence in verdict.warnings:
        _LOG.warning(sentence)
    if verdict.failure is not None:
        raise TrainingError(verdict.failure)
    return dict(plain(summary))
