"""Training by settings: a run from its data, model and trainer to its scores and its summary.

A run is fitted, then its best weights are calibrated, scored and judged. It can be resumed from any step, and several
processes can train it together.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from decimal import ROUND_FLOOR
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import yaml
from torch import Tensor

from stablernn.atomic_files import read_json, to_json_types, write_bytes, write_json
from stablernn.certificates.certificate import Certificate
from stablernn.certificates.certified_radius import certified_radii
from stablernn.certificates.input_range import InputRange
from stablernn.certificates.plain_words import describe_guarantee, format_size
from stablernn.certificates.projection import is_within_range, suggest_proof
from stablernn.certificates.stored_certificate import described_bounds, series_facts
from stablernn.data.messages import describe_shared_groups, format_names
from stablernn.data.step_data import Data
from stablernn.data.types import score_notes
from stablernn.errors import CertificateError, ConfigError, DataError, InterruptedRun, TrainingError
from stablernn.nn.models import Classifier, SequenceModel
from stablernn.training.build import certified_range, create_model, create_trainer, describe_data, with_engine
from stablernn.training.calibration import HELD_OUT, Conformal
from stablernn.training.callbacks import Callback, CallbackRecorder
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.evaluation.metrics import logit_metrics
from stablernn.training.evaluation.scorers import ClassificationScorer, Scorer, Scores
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.loaded_run import Summary
from stablernn.training.loop.base_trainer import BaseTrainer, NoRecorder, Progress
from stablernn.training.loop.certificate_log import check_certified, takes_long
from stablernn.training.loop.checkpoint import decode_checkpoint, read_checkpoint
from stablernn.training.loop.device import environment, pick_device, torch_settings
from stablernn.training.loop.launch import read_launch, refuse_several_processes
from stablernn.training.loop.process_group import ProcessGroup, open_group
from stablernn.training.plots import draw_curves
from stablernn.training.resolve import described_cell, resolve
from stablernn.training.run_data import data_files, load_run_data, locate_files, relative_path, with_time
from stablernn.training.run_directory import RunDirectory, mark_running, new_directory
from stablernn.training.search.trial import CROSS_VALIDATION, score_on_a_part
from stablernn.training.settings.config import AUTO, Config
from stablernn.training.settings.defaults import CLOSED_FORM, is_solved
from stablernn.training.settings.load import merge_settings, stored_settings
from stablernn.training.tasks import Task, task_for, task_type
from stablernn.training.tasks.task import FinalScores
from stablernn.training.verdict import (
    compare_with_trivial,
    describe_coverage,
    describe_linear,
    judge,
    searched_scores,
)

if TYPE_CHECKING:
    from stablernn.training.search import Budget, Choice

_PROGRESS = logging.getLogger("stablernn.progress")
_LOG = logging.getLogger("stablernn.training")


def train(
    config: Config | None,
    run_dir: str | Path | None = None,
    resume: bool = False,
    progress: Callable[[Progress], None] | None = None,
    *,
    budget: Budget | None = None,
    callbacks: Sequence[Callback] = (),
) -> Summary:
    """Train by settings, and write a run directory.

    With the cell ``auto``, cell and other settings are chosen first, by cross-validation on the training data.

    Processes that torchrun has started train one model together: each takes its share of every minibatch, and the first
    one writes the run directory and calls ``progress`` and ``callbacks``. All of them return the summary.

    Args:
        config: The settings; None with ``resume``: those of the run, which also stand for all that it leaves out.
        run_dir: Directory of the run; None: ``runs/<dataset>-<cell>-<number>`` below the working directory.
        resume: True to go on with the run in ``run_dir``, from where it was stopped. The numbers are those of a run
            that was never stopped.
        progress: Called after each step and each validation, for a progress bar.
        budget: What choosing the settings and the training may take together; None: two minutes. Only for the cell
            ``auto``.
        callbacks: Are told of the start, each epoch and the end, see :mod:`stablernn.training.callbacks`.

    Returns:
        The content of ``summary.json``: ``run``, ``task``, ``cell``, ``engine``, ``parameters``, ``epochs``, ``steps``,
        ``seconds``, ``best_epoch``, ``metrics`` of the best weights on ``validation`` and, where there is one,
        ``test``, ``baselines``, notes on how those of a classification were fitted, ``data_notes``, which files of the
        data were missing (``partial``) or had no published checksum (``unchecked``), ``still_improving``, the gain of
        the last quarter of the epochs where it was large, ``diverged`` and ``warnings``, sentences; of a forecast with
        a linear skip also ``gate``, and ``linear_forecast`` where it was chosen, and ``choice`` of settings that were.

    Raises:
        ConfigError: If a setting is wrong, the model does not fit into memory, there is a run in ``run_dir`` already,
            or none to resume, or the settings do not go with several processes.
        UnknownNameError: If the dataset or the cell does not exist.
        DataError: If the data cannot be used, or is not that with which the run began.
        DeviceError: If the device is missing.
        TrainingError: If another process ended, the loss is not finite, no epoch left weights that give finite
            answers, the loss diverged and the best weights are of no use, or less is proved of them than
            ``training.certified`` asks for.
        InterruptedRun: If the user stopped it; it can be resumed.
    """
    origin = _find_origin(config, run_dir, resume=resume)
    config = with_own_model(origin.config)
    launch = read_launch()
    refuse_settings_of_one_process(config)
    device = pick_device(config.training.device, launch)
    choice = _choose(config, budget)
    if choice is not None:
        config = choice.config
    # Before the data is read, which may take some processes longer than others.
    with open_group(launch, device) as processes:
        data = load_run_data(origin.locate_files(config))
        if groups := data.notes.get("validation", {}).get("groups"):
            _LOG.info(f"Groups held out for validation: {format_names(groups['validation'])}.")
        settings = resolve(config, task_for(data))
        data = with_time(data, settings)
        if origin.stored is not None:
            check_resumable(origin.stored, settings)
        with torch_settings(device, seed=settings.training.seed, threads=settings.training.threads):
            # The model is created on the CPU, so that a seed gives the same first weights on every device.
            model = create_model(settings, data)
            settings = with_engine(settings, model, device, may_change=origin.engine_may_change)
            check_processes(processes, settings, data, device)
            model.rnn.recompute_every(settings.training.recompute_every)
            # All processes have read a run that is resumed before its files are replaced.
            path = processes.run_on_rank_zero(
                lambda: str(_open_directory(run_dir, settings, data, model, device, resume=resume).path)
            )
            directory = RunDirectory(Path(path))
            if choice is not None:
                write_json(directory.choice, choice.document)
                if choice.intervals is not None:
                    write_json(directory.calibration, {"intervals": choice.intervals.document()})
            if not processes.is_main:
                progress, callbacks = None, ()
            with mark_running(directory.path) if processes.is_main else nullcontext():
                return _fit(directory, settings, task_for(data), model.to(device), progress, callbacks, processes)


class _Origin(NamedTuple):
    """The settings that a training begins with, and the run that they come from.

    Attributes:
        config: The settings, not resolved.
        resumed: Directory of the run that is resumed; None for a new run.
        stored: Settings of that run.
        engine_may_change: Whether ``auto`` takes the place of an engine that cannot run here.
    """

    config: Config
    resumed: RunDirectory | None = None
    stored: Config | None = None
    engine_may_change: bool = False

    def locate_files(self, config: Config) -> Config:
        """Return settings in which the files of a resumed run are found from any working directory."""
        if self.resumed is None:
            return config
        return locate_files(config, self.resumed.path, read_json(self.resumed.data))


def _find_origin(config: Config | None, run_dir: str | Path | None, *, resume: bool) -> _Origin:
    """Return the settings given, merged over those of a run that is resumed.

    Raises:
        ConfigError: If there is no run to resume, a run in the directory of a new one, or no settings.
    """
    if resume:
        resumed = directory_to_resume(run_dir)
        stored = stored_settings(resumed)
        if config is None:
            return _Origin(stored, resumed, stored, engine_may_change=True)
        # The command line gives the stored settings with those that were typed: the stored engine was not asked for.
        is_engine_asked_for = config.model.engine not in (None, stored.model.engine)
        merged = merge_settings(stored, config)
        return _Origin(merged, resumed, stored, engine_may_change=not is_engine_asked_for)
    if config is None:
        raise ConfigError("train needs settings: give a config, or resume a run.")
    if run_dir is not None and RunDirectory(Path(run_dir)).has_run:
        raise ConfigError(f"There is a run in '{run_dir}' already. Resume it with --resume, or name another directory.")
    return _Origin(config)


def with_own_model(config: Config) -> Config:
    """Return settings with the cell and the method of a task that has its own, in place of a search."""
    name = config.task.name
    return config if name is None else task_type(name).with_own_model(config)


def _choose(config: Config, budget: Budget | None) -> Choice | None:
    """Choose cell and settings where the cell is ``auto``; None where there is nothing to choose."""
    if config.model.cell == AUTO:
        # Imported here: a search trains models itself.
        from stablernn.training.search import choose_settings

        return choose_settings(config, budget)
    if budget is not None:
        raise ConfigError(
            f"A budget is for choosing a cell, and '{config.model.cell}' is given. Leave one of them out."
        )
    return None


def _open_directory(
    run_dir: str | Path | None, config: Config, data: Data, model: SequenceModel, device: torch.device, *, resume: bool
) -> RunDirectory:
    """Return the run directory with settings, environment and data written, or checked where a run is resumed."""
    try:
        path = Path(run_dir) if run_dir is not None else new_directory(data.name, config.model.cell)
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"Cannot make the run directory '{error.filename}': {error.strerror}.") from error
    directory = RunDirectory(path)
    machine = environment(device)
    description = describe_data(data, model)
    if resume:
        before = directory.read_data()
        if before["fingerprint"] != data.fingerprint:
            raise DataError(
                f"'{data.name}' has changed since the run in '{run_dir}' began: its fingerprint was "
                f"{before['fingerprint']}, now it is {data.fingerprint}. Give the old data, or start a new run."
            )
        first = read_json(directory.environment)
        machine = {**first, "resumed": [*first.get("resumed", []), machine]}
        description["files"] = before.get("files", {})
        # What was chosen is among the settings of the run, so that it was not chosen again.
        comparison = before.get("notes", {}).get("linear_forecast")
        if comparison is not None:
            data.notes["linear_forecast"] = comparison
    else:
        description["files"] = {key: relative_path(file, path) for key, file in data_files(config).items()}
    write_json(directory.environment, machine)
    write_json(directory.data, description)
    # The settings make the directory a run, so they come last: a directory with a config.yaml has the other files.
    write_bytes(directory.config, yaml.safe_dump(config.tree(), sort_keys=False, allow_unicode=True).encode())
    return directory


def _fit(
    directory: RunDirectory,
    config: Config,
    task: Task,
    model: SequenceModel,
    progress: Callable[[Progress], None] | None,
    callbacks: Sequence[Callback],
    processes: ProcessGroup,
) -> Summary:
    for callback in callbacks:
        callback.on_start(config.by_key(), directory.path)
    try:
        summary = _fit_and_finish(directory, config, task, model, progress, callbacks, processes)
    except BaseException as error:
        processes.stop_monitor()
        for callback in callbacks:
            callback.on_failure(error)
        raise
    processes.stop_monitor()
    for callback in callbacks:
        callback.on_end(summary)
    return summary


def _fit_and_finish(
    directory: RunDirectory,
    config: Config,
    task: Task,
    model: SequenceModel,
    progress: Callable[[Progress], None] | None,
    callbacks: Sequence[Callback],
    processes: ProcessGroup,
) -> Summary:
    # Taken before the last checkpoint is restored: a resumed run compares with the same first weights.
    reference = task.calibration_reference(model)
    recorder = CallbackRecorder(directory, callbacks) if processes.is_main else NoRecorder()
    trainer = create_trainer(recorder, config, task, model, certify_epochs=processes.is_main, processes=processes)
    # The first process reads for all: on a machine that does not share the directory, this path may be another run's.
    last = directory.checkpoint("last")
    content = processes.run_for_bytes_on_rank_zero(lambda: read_checkpoint(last) if last.is_file() else b"")
    if content:
        trainer.restore(decode_checkpoint(content, last))
    if processes.is_main:
        directory.drop_records_after(trainer.position.epoch)
    _PROGRESS.info("Training %s ...", config.model.cell)
    try:
        if not trainer.fit(progress):
            raise _interrupted(directory, trainer)
        return processes.run_on_rank_zero(lambda: finish(directory, config, task, trainer, reference))
    except KeyboardInterrupt:
        # A second signal during training, or one while the run is scored; the last checkpoint is from before.
        raise _interrupted(directory, trainer) from None


def _interrupted(directory: RunDirectory, trainer: BaseTrainer) -> InterruptedRun:
    return InterruptedRun(
        f"Stopped at step {trainer.position.step} of {trainer.total_steps}. "
        f"Go on with it by --resume --run-dir {directory.path}."
    )


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
    calibration = task.calibrate(trainer.model, config, reference, _searched_intervals(directory))
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
    if "validation" not in scores.metrics and not trainer.is_diverged:
        scores = replace(
            scores, metrics={**scores.metrics, **_cross_validate(directory, config, task, trainer, scores)}
        )
    _PROGRESS.info("Computing what is proved ...")
    sentence = describe_proof(trainer, task.scorer("validation", config), inputs, task.describe())
    if sentence is not None:
        _LOG.info(sentence)
    return _summarize(directory, config, task, trainer, scores, calibration, inputs, improvement)


def _searched_intervals(directory: RunDirectory) -> Conformal | None:
    """Return the offsets of a forecast's quantiles by the fits of a search; None where there are none."""
    if not directory.calibration.is_file():
        return None
    intervals = read_json(directory.calibration).get("intervals", {})
    return Conformal.of(intervals) if intervals.get("by") == HELD_OUT else None


def _cross_validate(
    directory: RunDirectory, config: Config, task: Task, trainer: BaseTrainer, final: FinalScores
) -> dict[str, Scores]:
    """Return scores on training samples by fits that left them out, for a run without a validation split.

    They come from the search, from the closed form, or else, where there is no test split either, from another training
    on four fifths of the sequences.
    """
    choice = read_json(directory.choice) if directory.choice.is_file() else {}
    if CROSS_VALIDATION in choice:
        scores = task.baseline_scores("train") | choice[CROSS_VALIDATION]
    elif trainer.left_out is not None:
        scores = task.baseline_scores("train") | logit_metrics(*trainer.left_out)
    elif final.metrics:
        return {}
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
    choice = read_json(directory.choice) if directory.choice.is_file() else None
    compared = searched_scores(choice or {}) if judged is None else scores.metrics[judged]
    comparison = compare_with_trivial(judged or CROSS_VALIDATION, compared, trainer.objective)
    is_validated = judged == "validation"
    verdict = judge(trainer, comparison, calibration.get("gate"), is_validated=is_validated, choice=choice)
    # Calibration has seen the validation split.
    warnings = [
        *verdict.warnings,
        *describe_coverage("the test split", scores.metrics.get("test", {})),
        *describe_linear("the test split", scores.metrics.get("test", {})),
        *describe_shared_groups(data.notes),
    ]
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
    if "linear_forecast" in data.notes:
        summary["linear_forecast"] = data.notes["linear_forecast"]
    if choice is not None:
        summary["choice"] = choice
    # A failed run leaves a summary too: its weights are scored, and the failure is among its warnings.
    write_json(directory.summary, summary)
    for sentence in warnings:
        _LOG.warning(sentence)
    if verdict.failure is not None:
        raise TrainingError(verdict.failure)
    return dict(to_json_types(summary))


LEAST_EPOCHS = 4
"""Epochs below which nothing is said of a curve."""
LEAST_GAIN = 0.05
"""Share of the error by which the last quarter of the epochs must have lowered it."""


def improvement_at_end(records: Sequence[Mapping[str, Any]], metric: str, samples: int) -> dict[str, Any] | None:
    """Return by how much the last quarter of the epochs improved a metric; None if it did not.

    The best value of the last quarter is compared with the best before it. An error that is a share, such as 1 minus
    the accuracy, must also have become smaller by more than its standard error, since the best of several epochs is
    better by chance alone.

    Args:
        records: Lines of ``metrics.jsonl``.
        metric: Metric that selects the best weights.
        samples: Number of validation sequences or windows.

    Returns:
        ``metric``, ``before`` and ``after``, its best values, and ``epochs``, the number of epochs of each.
    """
    values = [record["validation"].get(metric) for record in records]
    if len(values) < LEAST_EPOCHS:
        return None
    is_share = direction(metric) == "higher"
    errors = [math.inf if value is None else (1.0 - value if is_share else value) for value in values]
    count = 3 * len(errors) // 4
    before, after = min(errors[:count]), min(errors[count:])
    if not (math.isfinite(before) and before > 0):
        return None
    noise = math.sqrt(max(0.0, before * (1.0 - before)) / max(1, samples)) if is_share else 0.0
    if before - after < max(LEAST_GAIN * before, noise):
        return None
    first, last = (1.0 - before, 1.0 - after) if is_share else (before, after)
    return {"metric": metric, "before": first, "after": last, "epochs": [count, len(errors)]}


def describe_improvement(improvement: Mapping[str, Any]) -> str:
    """Return a sentence for the user."""
    first, last = improvement["epochs"]
    return (
        f"The validation {improvement['metric']} was still improving when training stopped: "
        f"{improvement['before']:.4g} after {first} epochs, {improvement['after']:.4g} after {last}. "
        f"Train longer, such as --epochs {2 * last}."
    )


_RADIUS_SEQUENCES = 100
"""Validation sequences of which the radius is computed: enough for a median of two digits, and one short forward
pass."""

_LEAST_RADIUS = 1e-3
"""A radius below this, in standard deviations of the data, is of no use, and is left out."""
_MOST_SENTENCES = 2


def promised_certificate(trainer: BaseTrainer, inputs: InputRange | None) -> Certificate:
    """Return the certificate that ``training.certified`` is judged by: for all inputs, or those of training.

    Args:
        trainer: With the best weights.
        inputs: Range of the training inputs, half as wide again; None if they have none.
    """
    if inputs is not None and is_within_range(trainer.model.rnn.cells[0]):
        return trainer.stability.prove_within(inputs)
    return trainer.stability.prove()


def describe_proof(
    trainer: BaseTrainer, scorer: Scorer, inputs: InputRange | None, data: Mapping[str, Any]
) -> str | None:
    """Return what is proved of the best weights in words; None for a state that is too long to be certified quickly.

    Args:
        trainer: With the best weights.
        scorer: Of the validation split.
        inputs: Range of the training inputs, half as wide again; None if they have none.
        data: The description of the data.
    """
    model = trainer.model
    if takes_long(model):
        return None
    try:
        certificate = trainer.stability.prove()
        is_open = certificate.kind in ("bounded", "none") and inputs is not None
        bounded = trainer.stability.prove_within(inputs) if is_open and inputs is not None else None
    except CertificateError:
        # A weight is not finite, which the trainer reports.
        return None
    sentences = describe_guarantee(described_bounds(model, certificate, bounded), **series_facts(data))
    radius = _describe_radius(model, scorer, certificate)
    if radius is not None and len(sentences) < _MOST_SENTENCES:
        sentences.append(radius)
    kinds = {certificate.kind, "none" if bounded is None else bounded.kind}
    cell = model.rnn.cells[0]
    # No training changes what is proved of weights that are not trained.
    if kinds <= {"bounded", "none"} and not trainer.settings.certified and not cell.is_fixed:
        sentences.append(suggest_proof(cell))
    return " ".join(sentences)


def _describe_radius(model: SequenceModel, scorer: Scorer, certificate: Certificate) -> str | None:
    """Return the sentence about the median certified radius of validation sequences; None if it is of no use."""
    radius, sequences = _median_radius(model, scorer, certificate)
    if radius is None or radius < _LEAST_RADIUS:
        return None
    unit = " standard deviations"
    if model.input_size == 1:
        radius, unit = radius * float(model.scaling.scale[0]), ""
    return (
        f"Half of {sequences:,} validation sequences keep their label whatever changes of their values come to less "
        f"than {format_size(radius, ROUND_FLOOR)}{unit} in all (root of the sum of squares)."
    )


def _median_radius(model: object, scorer: Scorer, certificate: Certificate) -> tuple[float | None, int]:
    """Return the median certified radius, None if none is proved, and of how many validation sequences it is."""
    if not (isinstance(model, Classifier) and isinstance(scorer, ClassificationScorer)):
        return None, 0
    # Radii are derived from the bounds for all inputs.
    if not scorer.samples or certificate.inputs is not None:
        return None, 0
    # Evenly spaced, so that files that are sorted by class give all of them.
    numbers = np.unique(np.linspace(0, scorer.samples - 1, _RADIUS_SEQUENCES).astype(int))
    samples, device = scorer.source.gather(numbers), model.scaling.mean.device
    x, lengths = (torch.from_numpy(np.ascontiguousarray(values)).to(device) for values in (samples.x, samples.lengths))
    try:
        radii = certified_radii(model.eval(), x, lengths, layers=certificate.stacks)
    except CertificateError:
        # Raised for models of which no radius is derived, such as those for irregular time.
        return None, 0
    median = float(np.median(radii))
    return (median if np.isfinite(median) else None), len(numbers)


_LENGTH = ("training.epochs", "training.max_steps", "training.patience", "training.patience_steps")
"""Settings that a resumed run may change where the learning rate does not depend on the length of the run."""
_ADDABLE = ("data.stamps",)
"""Settings that a resumed run may set if they were not set when it began."""
_MACHINE = ("training.device", "training.threads", "training.recompute_every", "model.engine")
"""Settings that a resumed run may always change."""


def directory_to_resume(run_dir: str | Path | None) -> RunDirectory:
    """Return the directory of a run that exists.

    Raises:
        ConfigError: If no directory is named, or there is no run in it.
    """
    if run_dir is None:
        raise ConfigError("To resume a run, its directory must be named (--run-dir).")
    directory = RunDirectory(Path(run_dir))
    if not directory.has_run:
        raise ConfigError(f"There is no run to resume in '{run_dir}'. Start it without --resume.")
    return directory


def check_resumable(stored: Config, resolved: Config) -> None:
    """Refuse settings with which a run could not go on as it began.

    Args:
        stored: The resolved settings with which it began.
        resolved: Those with which it is to go on.

    Raises:
        ConfigError: If one has changed that decides the numbers of the steps to come.
    """
    before, after = stored.by_key(), resolved.by_key()
    changed = [key for key in sorted({*before, *after}) if before.get(key) != after.get(key) and key not in _MACHINE]
    # A setting that was missing may be added: the fingerprint tells whether the data are still the same.
    changed = [key for key in changed if key not in _ADDABLE or before.get(key) is not None]
    if not changed:
        return
    # A setting that can never change is named before one that only cannot change here.
    fixed = [key for key in changed if key not in _LENGTH]
    key = (fixed or changed)[0]
    difference = f"'{key}' was {before.get(key)!r} when the run began, got {after.get(key)!r}"
    if fixed:
        raise ConfigError(f"A resumed run keeps its settings: {difference}. Start a new run to change it.")
    # These were laid out over the length that the run had when it began.
    planned = (
        []
        if stored.training.schedule in ("constant", "step", "plateau")
        else [f"schedule '{stored.training.schedule}'"]
    )
    planned += [f"cell '{stored.model.cell}'"] if described_cell(stored.model).plans_ahead else []
    if planned:
        raise ConfigError(
            f"The {planned[0]} is laid out over the whole run, so its length cannot change on resume: {difference}. "
            "Start a new run to change it."
        )


_RECORDED = "cuda-graph"
"""The engine whose recordings of a GPU were never run while NCCL is at work in the same process."""


def refuse_settings_of_one_process(config: Config) -> None:
    """Refuse settings that several processes cannot share, before anything is read or written.

    Raises:
        ConfigError: If there are several processes, and such a setting.
    """
    if config.model.cell == AUTO:
        refuse_several_processes(
            "The search for a cell (--cell auto)",
            "Run it without torchrun, and train the command that it prints with torchrun; or name a cell by --cell.",
        )
    elif is_solved(config.training) or described_cell(config.model).is_fixed:
        method = config.training.method if is_solved(config.training) else CLOSED_FORM
        refuse_several_processes(
            f"training.method={method}", "It solves for weights in one pass; run it without torchrun."
        )


def check_processes(processes: ProcessGroup, config: Config, data: Data, device: torch.device) -> None:
    """Refuse processes that would not train the same model on the same data, before anything is written.

    Args:
        processes: The processes.
        config: The resolved settings of this one.
        data: The data that it has read.
        device: Its device.

    Raises:
        ConfigError: If a setting differs between processes, which the device can decide, a minibatch is too small, or
            the engine cannot run in several.
        DataError: If the data differ.
    """
    if processes.world_size == 1:
        return
    if device.type == "cuda" and config.model.engine in (_RECORDED, "auto"):
        raise ConfigError(
            f"The engine '{_RECORDED}' records what a GPU does, and was never run in several processes. Take "
            "--engine loop, or another that runs the cell (see docs/guides/gpu.md)."
        )
    rows = config.training.batch_size or 1
    if rows < processes.world_size:
        raise ConfigError(
            f"{processes.world_size} processes cannot share minibatches of {rows}. Start at most {rows}, or set a "
            "larger training.batch_size."
        )
    everyone = processes.all_gather([data.fingerprint, device.type, config.by_key()])
    fingerprint, kind, settings = everyone[0]
    for rank, (other_fingerprint, other_kind, other_settings) in enumerate(everyone):
        if other_fingerprint != fingerprint:
            raise DataError(
                f"Process {rank} has read other data than process 0 (fingerprint {other_fingerprint}, not "
                f"{fingerprint}). Give all machines the same files."
            )
        if other_kind != kind:
            raise ConfigError(
                f"Process {rank} trains on {other_kind} and process 0 on {kind}. Set --device to one that all have."
            )
        changed = [key for key in sorted(settings) if other_settings.get(key) != settings[key]]
        if changed:
            key = changed[0]
            raise ConfigError(
                f"'{key}' is {other_settings.get(key)!r} in process {rank} and {settings[key]!r} in process 0. Set it, "
                "so that all processes train the same model."
            )
