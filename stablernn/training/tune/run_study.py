"""The search: trials are handed to processes until there are enough, time is over, or the user stops it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.exceptions import StorageInternalError

from stablernn.data.step_data import Data
from stablernn.errors import ConfigError, InterruptedRun, TrainingError
from stablernn.training.callbacks import open_trackers
from stablernn.training.evaluation.metric_catalog import direction
from stablernn.training.jobs import Answer, Worker, Workers, open_workers
from stablernn.training.loop.launch import refuse_several_processes, stop_signals
from stablernn.training.resolve import resolve
from stablernn.training.search.candidates import recipes
from stablernn.training.search.trial import load_all
from stablernn.training.settings.config import AUTO, Config
from stablernn.training.tasks import task_for
from stablernn.training.tune.space import CELL, Space, build_space, combined
from stablernn.training.tune.study import (
    HEARTBEAT_SECONDS,
    Results,
    StartedTrial,
    StudyFolder,
    TuningStudy,
    write_results,
)
from stablernn.training.tune.trial import STARTED, Order, Outcome, Scores, silence_log, train_trial

_PROGRESS = logging.getLogger("stablernn.progress")

_POLL_SECONDS = 0.2
"""Interval at which a stop by the user is checked for."""
_STOP_SECONDS = 30.0
"""Time for a training to end its step and to save a checkpoint, after which its process is killed."""
_LOOK_SECONDS = 5.0
"""Interval at which an idle process looks for trials that processes of others have left."""
_MACHINE = ("data.source", "data.test", "training.device", "training.threads", "training.plots", "model.engine")
"""Settings that a study may be continued with others of. The fingerprint says whether data are the same."""


@dataclass(frozen=True)
class TuneOptions:
    """Options of a search that are no settings of a run.

    Attributes:
        cells: Keys of the cells; empty for those of the recipes of `stablernn train`.
        trials: Trials of the study, those of earlier calls and of other processes included; None for no limit.
        seconds: Time after which the running trials are stopped; None for no limit.
        workers: Processes, one thread each.
        output: Folder of the study; its name is that of the study in a database.
        storage: Database as SQLAlchemy names it; None for a journal in ``output``.
        require: Weakest kind of certificate that is accepted.
        track: Names of trackers that each trial is logged to, as of
            :func:`stablernn.training.callbacks.open_trackers`.
    """

    cells: tuple[str, ...]
    trials: int | None
    seconds: float | None
    workers: int
    output: Path
    storage: str | None = None
    require: str = "none"
    track: tuple[str, ...] = ()


def tune(config: Config, options: TuneOptions, note: Callable[[str], None]) -> Results:
    """Search settings by the validation metric, and go on with a search that was stopped.

    Args:
        config: Settings that all trials have; what they leave open is searched. Its seed is that of the search too.
        options: Options of the search.
        note: Called with a sentence at the end of each trial.

    Returns:
        The best trial, all trials and the importances of the parameters, as ``results.json`` holds them.

    Raises:
        ConfigError: If a setting is wrong, nothing is left to search, or the study was begun with other settings.
        DataError: If the data cannot be used.
        TrainingError: If no trial was successful.
        InterruptedRun: If the user stopped the search; its message has the best trial so far.
    """
    refuse_several_processes("A search for settings", "Run it without torchrun; --workers gives it more processes.")
    # A tracker whose library is missing would make every trial fail.
    open_trackers(options.track)
    if config.training.refit:
        raise ConfigError("A search compares models by the validation split, which training.refit trains on.")
    data = load_all(combined(config, {CELL: AUTO}))
    if not len(data.splits()["validation"]):
        raise ConfigError(
            f"A search compares models by the validation split, and '{data.name}' has none. Set "
            "data.validation_fraction, or data.validation_steps of a forecast."
        )
    cells = options.cells or tuple(dict.fromkeys(recipe.settings["model.cell"] for recipe in recipes(data)))
    task = task_for(data)
    # Settings that do not go with a cell are found before anything is trained.
    resolved = {cell: resolve(combined(config, {CELL: cell}), task) for cell in cells}
    space = build_space(config, cells, data, options.require)
    metric = task.objective(resolved[cells[0]].training).headline
    study = TuningStudy(
        StudyFolder(options.output),
        options.storage,
        direction=direction(metric) or "lower",
        seed=config.training.seed,
        definition=_definition(config, data, space, metric, options.require),
        first=[space.recommended(cell, resolved[cell]) for cell in cells],
    )
    search = _Search(study, StudyFolder(options.output), space, metric, options, note)
    try:
        search.run()
        return write_results(study, StudyFolder(options.output), space, metric, options.require)
    except StorageInternalError as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise TrainingError(
            f"The database '{study.storage_name}' failed: {reason}. Run the same command again to go on."
        ) from error


def _definition(config: Config, data: Data, space: Space, metric: str, require: str) -> dict[str, Any]:
    """Return all that decides the trials of a study, by dotted key, as JSON types."""
    settings = combined(config, {CELL: AUTO}).by_key()
    return {
        "cell": ", ".join(space.cells),
        "require": require,
        "metric": metric,
        **{key: value for key, value in settings.items() if key not in (*_MACHINE, CELL)},
        **{f"range of {name}": values for name, values in space.document().items()},
        "fingerprint of the data": data.fingerprint,
    }


class _Search:
    """The trials that this process starts."""

    def __init__(
        self,
        study: TuningStudy,
        folder: StudyFolder,
        space: Space,
        metric: str,
        options: TuneOptions,
        note: Callable[[str], None],
    ) -> None:
        self._study = study
        self._folder = folder
        self._space = space
        self._metric = metric
        self._options = options
        self._note = note
        self._deadline = math.inf if options.seconds is None else time.monotonic() + options.seconds
        self._workers = Workers("stablernn-tune", silence_log)
        self._running: dict[Worker, StartedTrial] = {}
        self._look_at = 0.0

    def run(self) -> None:
        """Train trials until there are enough, or time is over.

        Raises:
            InterruptedRun: If the user stopped it.
            StableRNNError: An error that other trials would meet too, such as a full disk.
        """
        _PROGRESS.info("Training trials ...")
        with stop_signals() as stop, open_workers("stablernn-tune", silence_log) as self._workers:
            try:
                while not stop.is_set() and time.monotonic() < self._deadline:
                    if time.monotonic() >= self._look_at and not self._start_trials():
                        return
                    for worker, message in self._workers.receive(_POLL_SECONDS):
                        self._handle(worker, message)
                    self._study.keep_alive(self._numbers(), HEARTBEAT_SECONDS)
            finally:
                self._interrupt()
        if stop.is_set():
            raise InterruptedRun(self._describe_stop())

    def _numbers(self) -> list[int]:
        return [started.number for started in self._running.values()]

    def _start_trials(self) -> bool:
        """Start as many trials and processes as there is work for; return False if all is done."""
        self._look_at = time.monotonic() + _LOOK_SECONDS
        target = self._options.trials
        with self._folder.locked():
            left = self._study.count_left(target, self._numbers())
        wanted = self._options.workers if left is None else min(self._options.workers, len(self._running) + left)
        if not wanted:
            return False
        while len(self._workers) < wanted:
            self._workers.start()
        for worker in self._workers.idle[: wanted - len(self._running)]:
            # Until the process has the lock of the run, by which others see that the trial is alive.
            with self._folder.locked():
                started = self._study.start_trial(self._space)
                self._running[worker] = started
                message = self._hand_over(worker, started)
            if message != STARTED:
                self._handle(worker, message)
        return True

    def _hand_over(self, worker: Worker, started: StartedTrial) -> Any:
        """Let a process train a trial, and return its first message."""
        config = self._space.run_config(self._space.settings(started.trial.params))
        if "plots" not in config.training.model_fields_set:
            # They take longer than a small training; `stablernn plot` draws those of the best run.
            config = combined(config, {"training.plots": False})
        directory = self._folder.run(started.run)
        order = Order(config, directory, self._options.require, self._metric, self._options.track)
        worker.call(train_trial, order)
        return self._workers.receive_from(worker)

    def _handle(self, worker: Worker, message: Any) -> None:
        if isinstance(message, Scores):
            worker.send(self._study.report(self._running[worker], message))
            return
        # There may be something to start.
        self._look_at = 0.0
        if isinstance(message, Answer):
            if message.error is not None:
                raise message.error
            self._end(self._running.pop(worker), message.value)
        elif message is None:
            self._bury(worker)

    def _end(self, started: StartedTrial, outcome: Outcome) -> None:
        if outcome.error is not None:
            with self._folder.locked():
                self._study.repeat(started.number, counts=False)
            raise outcome.error
        if outcome.status == "interrupted":
            # By a signal of another program than this one; the run goes on.
            with self._folder.locked():
                self._study.repeat(started.number)
            return
        self._study.finish(started, outcome)
        result = f"{'failed' if outcome.status == 'failed' else 'pruned'}, {outcome.reason}"
        if outcome.status == "done":
            result = f"{self._metric} {outcome.value:.4g}, {outcome.kind}"
        best = self._study.best()
        suffix = "" if best is None else f"; best so far {best.value:.4g}, of trial {best.number}"
        self._note(f"trial {started.number}: {result}{suffix}")

    def _bury(self, worker: Worker) -> None:
        """Forget a process that is dead, and let its trial be repeated.

        Raises:
            TrainingError: If it died before it could train anything.
        """
        if worker.is_idle:
            return
        started = self._running.pop(worker, None)
        if started is None:
            raise TrainingError(
                f"A process of the search ended with exit code {worker.process.exitcode} while it was starting. Run "
                "the same command with fewer --workers, or with more memory."
            )
        with self._folder.locked():
            self._study.repeat(started.number)
        self._note(f"trial {started.number}: its process died; its run goes on in another one")

    def _interrupt(self) -> None:
        """Let the running trainings save their state, and leave their trials to be repeated."""
        for worker in self._running:
            # The training ends after the step, as after Ctrl-C; outside of its steps the process ends at once.
            worker.process.terminate()
        waiting, deadline = set(self._running), time.monotonic() + _STOP_SECONDS
        while waiting and (left := deadline - time.monotonic()) > 0:
            for worker, message in self._workers.receive(left):
                if isinstance(message, Scores):
                    # Only the answer is awaited: a trial that is repeated reports its scores again.
                    worker.send(True)
                if message is not None and not isinstance(message, Answer):
                    continue
                waiting.discard(worker)
                outcome = None if message is None else message.value
                if outcome is not None and outcome.status not in ("interrupted", "failed"):
                    self._study.finish(self._running.pop(worker), outcome)
        for worker, started in self._running.items():
            worker.kill()
            with self._folder.locked():
                self._study.repeat(started.number, counts=False)
        self._running.clear()

    def _describe_stop(self) -> str:
        count, target, best = len(self._study.finished()), self._options.trials, self._study.best()
        progress = f"{count} trials" if target is None else f"{count} of {target} trials"
        best_run = "None of them is done."
        if best is not None:
            best_run = (
                f"The best so far is trial {best.number}, with a validation {self._metric} of {best.value:.4g}, in "
                f"'{self._study.run_path(best)}'."
            )
        return f"Stopped after {progress}. {best_run} Run the same command again to go on."
