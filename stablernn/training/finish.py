"""The end of a run: calibration, scores of the best weights, figures, the summary."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from stablernn.atomic_files import read_json, to_json_types, write_json
from stablernn.certificates.input_range import InputRange
from stablernn.data.types import score_notes
from stablernn.errors import TrainingError
from stablernn.training.describe import certified_range
from stablernn.training.evaluation.learning_curve import describe_improvement, improvement_at_end
from stablernn.training.evaluation.metrics import logit_metrics
from stablernn.training.evaluation.scorers import Scores
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.evaluation.trivial import compare_with_trivial
from stablernn.training.guarantee import describe_proof, promised_certificate
from stablernn.training.loaded_run import Summary
from stablernn.training.loop.base_trainer import BaseTrainer
from stablernn.training.loop.certificate_log import check_certified
from stablernn.training.plots.figures import draw_curves
from stablernn.training.run_data import locate_files
from stablernn.training.run_directory import RunDirectory
from stablernn.training.search.trial import CROSS_VALIDATION, score_on_a_part
from stablernn.training.settings.config import Config
from stablernn.training.tasks import Task
from stablernn.training.tasks.task import FinalScores
from stablernn.training.verdict import describe_coverage, judge

_LOG = logging.getLogger("stablernn.training")
_PROGRESS = logging.getLogger("stablernn.progress")


def finish(
    directory: RunDirectory, config: Config, task: Task, trainer: BaseTrainer, reference: Tensor | None
) -> Summary:
    """Calibrate and score the best weights, draw figures, and write the summary, which marks the run as done.

    Args:
        directory: The run directory.
        config: The resolved settings.
        task: The task, with the data.
        trainer: After its last step.
        reference: Weights from before training that calibration compares with, if any.

    Raises:
        TrainingError: If the run diverged and the best weights are of no use, or less is proved of them than
            ``training.certified`` asks for.
    """
    # Scores, certificate and figures are of the weights that are kept, not of the last ones.
    trainer.load_best()
    _PROGRESS.info("Scoring the best weights ...")
    calibration = task.calibrate(trainer.model, config, reference)
    if calibration:
        write_json(directory.calibration, calibration)
    # Calibration has changed the best weights, so they are stored again.
    directory.save("best", trainer.best(trainer.model.state_dict()))
    inputs = certified_range(task.data, trainer.model)
    if config.training.certified:
        check_certified(trainer.model, promised_certificate(trainer, inputs))
    records, samples = directory.records(), task.scorer("validation", config).samples
    improvement = improvement_at_end(records, trainer.objective.headline, samples)
    if improvement is not None:
        _LOG.info(describe_improvement(improvement))
    plots = directory.plots if config.training.plots else None
    if plots is not None:
        headline, best_epoch = trainer.objective.headline, trainer.position.best_epoch
        note = "" if improvement is None else ", still improving when stopped"
        draw_curves(plots, records, headline, best_epoch, directory.path.name, note=note)
        if (example := task.example()) is not None:
            write_json(directory.example, example)
    scores = task.final_scores(TorchPredictor(trainer.model), config, plots)
    if not scores.metrics and not trainer.is_diverged:
        scores = replace(scores, metrics=_cross_validate(directory, config, task, trainer))
    _PROGRESS.info("Computing what is proved ...")
    sentence = describe_proof(trainer, task.scorer("validation", config), inputs, task.describe())
    if sentence is not None:
        _LOG.info(sentence)
    return _summarize(directory, config, task, trainer, scores, calibration, inputs, improvement)


def _cross_validate(directory: RunDirectory, config: Config, task: Task, trainer: BaseTrainer) -> dict[str, Scores]:
    """Return scores on training samples by fits that left them out, for a run with no split that is held out.

    They come from the closed form, from the search, or else from another training on four fifths of the sequences.
    """
    choice = read_json(directory.choice) if directory.choice.is_file() else {}
    if trainer.left_out is not None:
        scores = task.baseline_scores("train") | logit_metrics(*trainer.left_out)
    elif CROSS_VALIDATION in choice:
        scores = task.baseline_scores("train") | choice[CROSS_VALIDATION]
    else:
        _PROGRESS.info("Training once more without a part of the data, to score on that ...")
        # A run may be resumed in another working directory than that of its files.
        scores = score_on_a_part(locate_files(config, directory.path, read_json(directory.data)))
    return {CROSS_VALIDATION: scores} if scores else {}


def _summarize(
    directory: RunDirectory,
    config: Config,
    task: Task,
    trainer: BaseTrainer,
    scores: FinalScores,
    calibration: Mapping[str, Any],
    inputs: InputRange | None,
    improvement: Mapping[str, Any] | None,
) -> Summary:
    position, data = trainer.position, task.data
    # The split that the verdict is by; scores on a test split alone are for the user to judge.
    judged = next((split for split in ("validation", CROSS_VALIDATION) if split in scores.metrics), None)
    comparison = None if judged is None else compare_with_trivial(judged, scores.metrics[judged], trainer.objective)
    verdict = judge(trainer, comparison, calibration.get("gate"), is_validated=judged == "validation")
    # Calibration has seen the validation split.
    warnings = [*verdict.warnings, *describe_coverage("the test split", scores.metrics.get("test", {}))]
    summary: Summary = {
        "run": str(directory.path),
        "task": data.task,
        "cell": config.model.cell,
        "engine": config.model.engine,
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad),
        "epochs": trainer.epochs_begun,
        "steps": position.step,
        "seconds": round(position.seconds, 3),
        "best_epoch": position.best_epoch,
        "metrics": scores.metrics,
        "baselines": scores.baselines,
        "certificate": trainer.stability.prove_in_short(inputs),
        "data_notes": score_notes(data.notes),
        "still_improving": improvement,
        "diverged": verdict.diverged,
        "warnings": [*warnings, *([verdict.failure] if verdict.failure is not None else [])],
    }
    if "gate" in calibration:
        summary["gate"] = calibration["gate"]
    if "context_length" in data.notes:
        summary["context_length"] = data.notes["context_length"]
    if directory.choice.is_file():
        summary["choice"] = read_json(directory.choice)
    # A failed run leaves a summary too: its weights are scored, and the failure is among its warnings.
    write_json(directory.summary, summary)
    for sentence in warnings:
        _LOG.warning(sentence)
    if verdict.failure is not None:
        raise TrainingError(verdict.failure)
    return dict(to_json_types(summary))
