"""One training of a search: a recipe on a part of the training data, scored on what that part holds out.

The test split is in none of the parts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing.connection import Connection
from threading import Event
from typing import Any, Literal

import numpy as np

from stablernn.data.arrays import Int64Array
from stablernn.data.classification import grouped_folds, grouped_validation, stratified_folds, stratified_validation
from stablernn.data.options import LARGEST_SEED
from stablernn.data.step_data import Data, StepData
from stablernn.data.types import ClassificationData, ForecastData, SequenceSplit
from stablernn.errors import ConfigError, DataError, TrainingError
from stablernn.nn.models import Classifier, Forecaster, SequenceModel
from stablernn.terms import terms
from stablernn.training.build import WARM_UP_STEPS, create_model, create_trainer, training_steps, with_engine
from stablernn.training.calibration import ConformityScores, conformity_scores, uncalibrated_logits
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.evaluation.scorers import Scores
from stablernn.training.evaluation.torch_predictor import TorchPredictor
from stablernn.training.jobs import Answer, Worker, Workers
from stablernn.training.loop.base_trainer import NoRecorder, Progress
from stablernn.training.loop.device import pick_device, torch_settings
from stablernn.training.resolve import resolve
from stablernn.training.run_data import load_run_data, with_time
from stablernn.training.settings.config import Config, ModelConfig
from stablernn.training.settings.defaults import CLOSED_FORM
from stablernn.training.settings.load import validate
from stablernn.training.tasks import task_for

PARTS = 5
"""Parts of the data that are asked for."""
CROSS_VALIDATION = "cross_validation"
"""Name, in place of a split's, of scores on training samples by fits that left them out."""
_TIE_BREAKERS = {"accuracy": "log_loss"}
"""Metric that decides between equal values of another, by that one: a small fold has few values of accuracy."""
_POLL_SECONDS = 0.2
"""Interval at which a stop by the user is checked for."""
_STOP_SECONDS = 1.0
"""Time in which a stop by the user, which can end a process too, reaches this one."""
_DRAW_SEEDS = 1_000_000
"""Distance of the seeds of two draws, beyond the seeds that users try."""


@dataclass(frozen=True)
class Trial:
    """A training to do.

    Attributes:
        recipe: Number of the recipe; None: nothing is trained, and baselines that take a fit of their own are scored.
        config: Its settings, before they are resolved, with the cell.
        part: Number of the part of the data, see :func:`~stablernn.training.search.trial.resample`.
        share: Share of the optimizer steps of the whole training.
        metric: Metric by which recipes are compared, the same on all parts; None: the one that chooses an epoch.
        most_steps: Optimizer steps after which the training is stopped to measure its speed; None: none.
        draw: Number of the draw of the folds. Those of another one are others, and so are the initial weights.
    """

    recipe: int | None
    config: Config
    part: int
    share: float = 1.0
    metric: str | None = None
    most_steps: int | None = None
    draw: int = 0

    @property
    def seed(self) -> int:
        """Seed of the draw that the part is of, and of the training."""
        return (self.config.training.seed + _DRAW_SEEDS * self.draw) % (LARGEST_SEED + 1)


@dataclass(frozen=True)
class TrialResult:
    """The result of a trial.

    Attributes:
        trial: The training.
        status: ``done``; ``stopped``, after the steps that measure its speed or by a signal; ``failed`` where the loss
            diverged or the recipe does not go with the data.
        score: Value of the metric by which models are chosen.
        metric: Its name.
        tie: Value of a second metric, lower is better, for equal scores; None where the first has no equal values.
        seconds: Processor time of loading, training and scoring.
        steps: Optimizer steps done.
        step_seconds: Processor time of an optimizer step, validation of the epochs included.
        reason: Why it failed.
        scores: All scores, those of the naive answers among them.
        samples: Sequences, windows or steps that were held out and scored; 0 where there is no score.
        held_out: Logits and true classes of what was held out, of a classifier that has no validation split: they score
            the model that is trained in the end, and set its temperature; else None.
        intervals: Scores of a forecast's intervals on what was held out, where they are calibrated; else None.
    """

    trial: Trial
    status: Literal["done", "stopped", "failed"]
    score: float | None = None
    metric: str = ""
    tie: float | None = None
    seconds: float = 0.0
    steps: int = 0
    step_seconds: float = 0.0
    reason: str = ""
    scores: Mapping[str, Any] = field(default_factory=dict)
    samples: int = 0
    held_out: tuple[np.ndarray, np.ndarray] | None = None
    intervals: ConformityScores | None = None

    @property
    def rank(self) -> tuple[float, float]:
        """Key by which results are sorted, the best first."""
        if self.score is None or not math.isfinite(self.score):
            return math.inf, math.inf
        sign = -1.0 if direction(self.metric) == "higher" else 1.0
        return sign * self.score, self.tie or 0.0


class _EndOfTraining(Exception):
    pass


def run_trial(trial: Trial) -> TrialResult:
    """Train a recipe on a part of the data, and score it on what the part holds out."""
    began = time.process_time()
    try:
        result = _train(trial)
    except (ConfigError, DataError, TrainingError) as error:
        result = TrialResult(trial, "failed", reason=str(error))
    return replace(result, seconds=time.process_time() - began)


def _train(trial: Trial) -> TrialResult:
    part, scored = _part(trial)
    if trial.recipe is None:
        return TrialResult(trial, "done", scores=task_for(scored).baseline_scores("test"))
    task = task_for(part)
    config = trial.config.updated("training", seed=trial.seed)
    settings = resolve(config, task)
    if trial.share < 1:
        steps = max(1, round(trial.share * training_steps(settings, task)))
        settings = resolve(config.updated("training", epochs=None, max_steps=steps), task)
    if isinstance(part, ForecastData) and settings.training.method == CLOSED_FORM:
        # Fits of its own calibrate its intervals, once it is chosen.
        settings = settings.updated("training", calibrate=False)
    device = pick_device(settings.training.device)
    with torch_settings(device, seed=settings.training.seed, threads=1):
        model = create_model(settings, part)
        settings = with_engine(settings, model, device)
        reference = task.calibration_reference(model)
        trainer = create_trainer(NoRecorder(), settings, task, model.to(device), certify_epochs=False)
        clock = _Clock(trial)
        try:
            is_done = trainer.fit(clock)
        except _EndOfTraining:
            is_done = False
        result = TrialResult(trial, "stopped", steps=trainer.position.step, step_seconds=clock.step_seconds)
        if not is_done:
            # What a signal cut short has no score.
            return result
        trainer.load_best()
        task.calibrate(trainer.model, settings, reference)
        scorer = task_for(scored).scorer("test", settings)
        scores = scorer.score_of(TorchPredictor(trainer.model))
        held_out = _held_out(trainer.model, settings, part)
        intervals = _interval_scores(trainer.model, settings, part)
    metric = trial.metric or trainer.objective.headline
    if scores.get(metric) is None:
        reason = f"the metric '{metric}' is not defined on what was held out"
        return TrialResult(trial, "failed", reason=reason)
    return replace(
        result,
        status="done",
        score=scores[metric],
        scores=scores,
        metric=metric,
        tie=scores.get(_TIE_BREAKERS.get(metric, "")),
        samples=scorer.samples,
        held_out=held_out,
        intervals=intervals,
    )


class TrialWorkers:
    """Processes that run trials, one thread each.

    Args:
        workers: The processes, none of them started.
        count: Number of processes.
        stop: Event by which the user stops the search.
    """

    def __init__(self, workers: Workers, count: int, stop: Event) -> None:
        self._workers = workers
        self.count = count
        self._stop = stop

    def start_seconds(self) -> float | None:
        """Return the processor time in which a new process imports, while no other works; None if the user stops."""
        return next(self._answers(_answer_start, [()]), None)

    def run(self, trials: Sequence[Trial]) -> Iterator[TrialResult]:
        """Yield the results of trials as they come, or until the user stops. Trials begin in order.

        Raises:
            TrainingError: If a process died.
        """
        return self._answers(_answer_trial, [(trial,) for trial in trials])

    def _answers(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Iterator[Any]:
        waiting, running = list(arguments), set[Worker]()
        while waiting or running:
            while waiting and len(running) < self.count:
                running.add(self._workers.call(function, *waiting.pop(0)))
            if self._stop.is_set():
                return
            for worker, message in self._workers.receive(_POLL_SECONDS):
                if message is None:
                    # Ctrl-C ends a process that has not got as far as a session of its own.
                    if self._stop.wait(_STOP_SECONDS):
                        return
                    raise TrainingError(
                        "A process of the search died, which usually means that memory ran out. Name a cell, such as "
                        f"{terms().cell('lru')}, or try a smaller {terms().key('model.hidden_size')}."
                    )
                if isinstance(message, Answer):
                    running.remove(worker)
                    if message.error is not None:
                        raise message.error
                    yield message.value


def _answer_start(connection: Connection) -> float:
    return time.process_time()


def _answer_trial(connection: Connection, trial: Trial) -> TrialResult:
    return run_trial(trial)


def score_on_a_part(config: Config) -> Scores:
    """Return scores on the first part of the data, by a training on the others; none if that fails.

    Args:
        config: Resolved settings of a training that leaves no split to score on.

    Raises:
        KeyboardInterrupt: If the user stopped it.
    """
    trial = Trial(0, config.updated("training", refit=True), 0)
    result = run_trial(trial)
    if result.status == "stopped":
        raise KeyboardInterrupt
    if not result.scores:
        return {}
    part, _ = _part(trial)
    return {**result.scores, **task_for(part).baseline_scores("test")}


def _held_out(model: SequenceModel, settings: Config, part: Data) -> tuple[np.ndarray, np.ndarray] | None:
    """Return logits and true classes of what the part holds out, where a search scores and calibrates by them."""
    if not settings.training.refit:
        return None
    if not isinstance(model, Classifier) or not isinstance(part, ClassificationData) or part.test is None:
        return None
    return uncalibrated_logits(model, part.test)


def _interval_scores(model: SequenceModel, settings: Config, part: Data) -> ConformityScores | None:
    """Return the scores of a forecast's intervals on what the part holds out, where they are calibrated."""
    if not isinstance(model, Forecaster) or not isinstance(part, ForecastData) or not settings.training.calibrate:
        return None
    return conformity_scores(model, part.windows("test"))


class _Clock:
    """A progress callback that measures the time of a step, and ends a training that only measures it."""

    def __init__(self, trial: Trial) -> None:
        self._trial = trial
        self._first: tuple[int, float] | None = None
        self.step_seconds = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.process_time()
        if self._first is None:
            if progress.step >= WARM_UP_STEPS:
                self._first = progress.step, now
        elif progress.step > self._first[0]:
            step, then = self._first
            self.step_seconds = (now - then) / (progress.step - step)
        if self._trial.most_steps is not None and progress.step >= self._trial.most_steps:
            raise _EndOfTraining


def load_all(config: Config) -> Data:
    """Load the data of settings with its validation split, for the recipes of a search to share.

    Inputs that the settings leave open are not chosen yet: each part chooses them by its own training split.
    """
    return _load(_settings_of_data(config.updated("training", refit=False)))


def _part(trial: Trial) -> tuple[Data, Data]:
    """Return the data to train on, and those to score by.

    The unit of MASE is of the training steps alone, so that scores are only comparable where these are the same: also
    of a model that is trained on the validation steps.
    """
    config = trial.config
    part, scored = _chosen_part(_settings_of_data(config), trial.part, trial.seed)
    resolved = resolve(config, task_for(part))
    return with_time(part, resolved), with_time(scored, resolved)


def _settings_of_data(config: Config) -> str:
    """Return the settings on which the data and its inputs depend, which many recipes share, as JSON."""
    model = config.model.model_dump(include=set(_MODEL_KEYS), exclude_unset=True)
    tree = config.model_dump(mode="json", include={"data", "task"}, exclude_unset=True)
    training = {"seed": config.training.seed, "refit": config.training.refit}
    return validate({**tree, "model": {"cell": "lru", **model}, "training": training}).model_dump_json()


_MODEL_KEYS = (
    "scaling",
    "window",
    "season",
    "log",
    "head",
    *(key for key in ModelConfig.model_fields if "skip" in key),
)
"""Settings of the section ``model`` that a choice of inputs reads."""


@lru_cache(maxsize=4)
def _load(settings: str) -> Data:
    """Load data once in a process; recipes may differ in the length of a context."""
    return load_run_data(Config.model_validate_json(settings), choose=False)


@lru_cache(maxsize=PARTS)
def _chosen_part(settings: str, number: int, seed: int) -> tuple[Data, Data]:
    """Return what :func:`_part` does, before the time of a model's steps is known."""
    config = Config.model_validate_json(settings)
    parts = resample(load_all(config), PARTS, seed=seed, refit=config.training.refit)
    if number >= len(parts):
        # A longer context leaves fewer ends of the series that training comes before.
        raise ConfigError(f"the data has only {len(parts)} of {PARTS} parts with these settings")
    scored = parts[number]
    part = task_for(scored.without_validation() if config.training.refit else scored).choose_inputs(config)
    if isinstance(part, ForecastData) and isinstance(scored, ForecastData):
        scored = replace(scored, context_length=part.context_length, linear=part.linear)
    return part, scored


_INNER_VALIDATION = 0.2
"""Share of a fold's training sequences by which the best epoch is chosen, where one is."""


def resample(data: Data, count: int, *, seed: int, refit: bool) -> Sequence[Data]:
    """Return data sets made of the training data, on whose test split a model is scored that was trained on the rest.

    Sequences are divided into stratified folds, of whole groups where they have groups. Series end earlier and earlier
    (forward chaining): the part that is scored is as long as the validation part, and comes after all that a model was
    trained on. Data of the task 'predict-next' has one part, its validation split, by which the best epoch is chosen
    too.

    Args:
        data: The data; its own test split is left out.
        count: Number of parts; short series may have fewer.
        seed: Seed of the draw of sequences.
        refit: Whether models are trained without a validation split, which sequences then need not give up.

    Raises:
        DataError: If there is nothing to score on.
    """
    if isinstance(data, ClassificationData):
        return _folds(data, count, seed, refit=refit)
    if isinstance(data, ForecastData):
        return _origins(data, count)
    assert isinstance(data, StepData)
    return [replace(data, test=data.validation)]


def _folds(data: ClassificationData, count: int, seed: int, *, refit: bool) -> list[Data]:
    pool = data.train.merged(data.validation)
    parts: list[Data] = []
    folds = stratified_folds(pool.y, count, seed)
    if pool.groups is not None:
        folds = grouped_folds(pool.y, pool.groups, count, seed)
    for held_out in folds:
        train_rows = np.setdiff1d(np.arange(len(pool)), held_out)
        validation_rows = np.empty(0, dtype=np.int64)
        if not refit:
            inner = _inner_validation(pool, train_rows, seed)
            train_rows, validation_rows = (train_rows[indices] for indices in inner)
        train = pool.subset(train_rows)
        if len(held_out) and len(np.unique(train.y)) > 1:
            part = replace(data, train=train, validation=pool.subset(validation_rows), test=pool.subset(held_out))
            parts.append(part)
    if not parts:
        raise DataError(
            f"{terms().file(data.name)} has too few sequences to compare settings on: {len(pool)}. Name a cell, such "
            f"as {terms().cell('lru')}, or add sequences."
        )
    return parts


def _inner_validation(pool: SequenceSplit, rows: Int64Array, seed: int) -> tuple[Int64Array, Int64Array]:
    y = pool.y[rows]
    if pool.groups is not None and len(np.unique(pool.groups[rows])) > 1:
        return grouped_validation(y, pool.groups[rows], _INNER_VALIDATION, seed)
    return stratified_validation(y, _INNER_VALIDATION, seed)


def _origins(data: ForecastData, count: int) -> list[Data]:
    parts: list[Data] = []
    for number in range(count):
        end = data.test_steps + number * data.validation_steps
        part = replace(
            data,
            series=tuple(
                series.without_last(end)
                for series in data.series
                if len(series.values) > end + 2 * data.validation_steps
            ),
            test_steps=data.validation_steps,
        )
        # The first part stands even if it is short: without it there is nothing to compare on.
        if not part.series or not all(len(part.windows(split)) for split in ("train", "validation", "test")):
            break
        parts.append(part)
    if not parts:
        raise DataError(
            f"{terms().file(data.name)} is too short to compare settings on: training, validation and "
            f"{data.validation_steps} more steps to score on are needed before the test steps. Name a cell, such as "
            f"{terms().cell('lipschitz')}, or set smaller {terms().key('data.validation_steps')}."
        )
    return parts
